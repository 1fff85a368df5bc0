/* SPDX-License-Identifier: Apache-2.0
 * Pid 1 of a sandbox. */
#ifndef RAMET_INIT_H
#define RAMET_INIT_H

#include "plan.h"

/* Never returns. `channel` is the only descriptor of core's that it keeps. */
void init_main(int channel) __attribute__((noreturn));

#endif
