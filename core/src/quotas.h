/* SPDX-License-Identifier: Apache-2.0
 * What the kernel counts for the user outside, who is one for all sandboxes of a core and for that user's own programs:
 * a sandbox can take a quarter of it, all of them three quarters, so that one that takes all it can get leaves half to
 * others, and the user outside is never without. Where a user namespace counts, user_namespaces(7) and namespaces(7). */
#ifndef RAMET_QUOTAS_H
#define RAMET_QUOTAS_H

#include "err.h"

/* The launcher, before it makes core's user namespace, which records these resource limits as the most that counts in it
 * and below. Core, and so init, inherit them. */
void quotas_lower(void);
/* Core, in its user namespace with a /proc of its own. */
int quotas_bound_all(enum ramet_step step, struct err *err) MUST_CHECK;
/* Init, in the sandbox's. */
int quotas_bound_one(enum ramet_step step, struct err *err) MUST_CHECK;

#endif
