/* SPDX-License-Identifier: Apache-2.0
 * An interrupt that comes just before a program goes to sleep in a system call is noticed by its handler, and acted
 * upon by interpreters only when the call returns: CPython looks at what its handler has noted between two
 * instructions, and time.sleep(60) is one. Another signal that it handles ends the call (EINTR, signal(7)), and SIGURG
 * means nothing to those who do not. */
#ifndef RAMET_NUDGE_H
#define RAMET_NUDGE_H

#include <stdbool.h>
#include <stdint.h>

/* Command `number` was sent an interrupt. */
void nudge_plan(uint32_t number);
/* For poll(2). */
int nudge_timeout(void);
/* Whether command `number` is to be sent SIGURG now. */
bool nudge_due(uint32_t *number);

#endif
