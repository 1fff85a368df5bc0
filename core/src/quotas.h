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
/* Core, in its user namespace: `proc` is a /proc of its own. What the user has is read now, for all that come. */
int quotas_bound_all(int proc, enum ramet_step step, struct err *err) MUST_CHECK;
/* Init, in the sandbox's, whose own /proc this is, before /proc/sys is made read-only. In a shared one the kernel keeps an
 * entry of the same name for each user namespace, and walks through all of them (proc_sys_compare()). */
int quotas_bound_one(int proc, enum ramet_step step, struct err *err) MUST_CHECK;

#endif
