/* SPDX-License-Identifier: Apache-2.0
 * Memory of the whole machine: what is there only to be fast goes before the machine swaps, and then nobody comes in
 * any more. */
#ifndef RAMET_PRESSURE_H
#define RAMET_PRESSURE_H

#include <stdint.h>

#include "err.h"

/* `bytes` are kept for the machine; 0: a part of what it has. */
void pressure_setup(uint64_t bytes);
/* Whether memory is too short for what nobody has asked for. */
bool pressure_is_high(void);
/* Before a sandbox is made. Gives up spares, then stems, when memory becomes short; refuses when it is. */
int pressure_admit(struct err *err) MUST_CHECK;

#endif
