/* SPDX-License-Identifier: Apache-2.0
 * What a sandbox uses at the moment, read in /proc by a process that may take its time. */
#ifndef RAMET_USAGE_H
#define RAMET_USAGE_H

#include "wire.h"

/* Of the processes below `init`, and of the file system of `tree`. */
int usage_put(int init, int tree, bool own_shm, struct writer *writer, struct err *err) MUST_CHECK;

#endif
