/* SPDX-License-Identifier: Apache-2.0
 * One sandbox takes the number of another: in one step, so whenever anybody dies each number is one sandbox's. */
#ifndef RAMET_SWAP_H
#define RAMET_SWAP_H

#include "wire.h"

/* SWAP: both go on, each under the other's number and with a new record. */
int sandbox_swap(const struct frame *frame, struct err *err) MUST_CHECK;

/* The other one of two numbers; any third stays. */
static inline void
swap_number(uint64_t *number, const uint64_t pair[2])
{
  if (*number == pair[0])
    *number = pair[1];
  else if (*number == pair[1])
    *number = pair[0];
}

#endif
