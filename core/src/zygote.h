/* SPDX-License-Identifier: Apache-2.0
 * The process that inits are forked from: a copy of core as it was when it began, with few pages and few descriptors. A
 * clone copies what core has of both, and each init would close a thousand descriptors of sandboxes that live. They are
 * core's children all the same (CLONE_PARENT, clone(2)), and core goes on meanwhile. */
#ifndef RAMET_ZYGOTE_H
#define RAMET_ZYGOTE_H

#include "entry.h"

/* Has an entry made; starts the process if there is none. Each order is answered, in the order of orders, by
 * sandbox_entry_made() or sandbox_entry_failed(). */
int zygote_order(const struct birth *birth, struct err *err) MUST_CHECK;
/* Its end was told of. */
bool zygote_reaped(int pid);
/* Reads the answers that are there. */
void zygote_hear(void);

#endif
