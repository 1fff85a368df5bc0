/* SPDX-License-Identifier: Apache-2.0
 * The processes of a command, wherever they went. Sessions, groups and parents can be left; a hard limit is inherited
 * by every fork and exec and cannot be raised again, and the filter lets no guest lower this one. It is
 * RLIMIT_RTTIME, which without real-time scheduling, which no guest may have, limits nothing. */
#ifndef RAMET_MARKED_H
#define RAMET_MARKED_H

#include <stdint.h>

/* Marks the calling process as of command `number`; -1 with errno. */
int mark_self(uint32_t number);
/* Kills every process of this pid namespace, but pid 1, that is marked so. */
void marked_kill(uint32_t number);

#endif
