/* SPDX-License-Identifier: Apache-2.0
 * Guards what the kernel counts for the user outside and for no namespace, descriptors in flight in unix sockets and watches of
 * epoll: notices when sandboxes have half of it, has it counted who has how much (census.h), and has init kill the
 * processes that do (shares.h says whose). */
#ifndef RAMET_OVERUSE_H
#define RAMET_OVERUSE_H

#include "err.h"

/* Once, before anything begins; where nothing can be watched nothing is guarded, which the log says. */
void overuse_setup(void);
/* A command begins, of this user inside: watch from now on, as long as there is a sandbox. */
void overuse_expect(uint32_t uid);
/* Whether it was the census that has ended. */
bool overuse_reaped(int pid);

#endif
