/* SPDX-License-Identifier: Apache-2.0
 * Network namespaces of sandboxes that have ended, for entries to come. To make one and to take one apart costs the
 * kernel more than all that is left of an entry, and hardly any sandbox sends a packet. One is kept only if it reads as
 * one that was just made: no socket is left in it, and its counters are all at nought. */
#ifndef RAMET_NETWORKS_H
#define RAMET_NETWORKS_H

#include "err.h"

/* When core is in its own. */
int networks_setup(struct err *err) MUST_CHECK;
/* The network namespace of a process that lives, as a descriptor; -1 when the kernel does not give it, or when none would
 * be kept. */
int network_of(int pidfd);
/* When no process is left in it: takes the descriptor, and keeps the namespace if it is as good as new. */
void network_keep(int network);
/* One for an entry, -1 when there is none. The caller's. */
int network_take(void);
/* Core's own, for who needs it to come out. */
int networks_home(void);
/* The calling process goes in, for a clone to inherit it, and comes out. -1: it has not gone in. */
int network_enter(int network);
void network_leave(void);

#endif
