/* SPDX-License-Identifier: Apache-2.0
 * Which processes a sandbox has at the moment, as they are called inside; read in /proc by a process that may take its
 * time. */
#ifndef RAMET_PROCESSES_H
#define RAMET_PROCESSES_H

#include "wire.h"

/* Most bytes that one takes in a frame. */
#define PROCESSES_ONE_MAX (RAMET_PROCESS_COMMAND_MAX + 256)

/* Those below `init`, without it; `told` is called behind each, and may send what is there. */
int processes_put(int init, struct writer *writer, void (*told)(struct writer *), struct err *err) MUST_CHECK;

#endif
