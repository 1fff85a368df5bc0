/* SPDX-License-Identifier: Apache-2.0
 * Terminals in sandboxes, whose near ends are core's: what is written to them is a stream like any other. */
#ifndef RAMET_TERMINAL_H
#define RAMET_TERMINAL_H

#include "err.h"

/* The near end of a new terminal of the sandbox with this init, non-blocking; `far` gets the other, which belongs to
 * uid and gid. `window`: as RAMET_TAG_WINDOW. -1 and `err` when there is none. */
int terminal_make(int init, uint32_t window, uint32_t uid, uint32_t gid, int *far, struct err *err) MUST_CHECK;
int terminal_resize(int near, uint32_t window, struct err *err) MUST_CHECK;

#endif
