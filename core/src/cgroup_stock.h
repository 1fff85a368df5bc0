/* SPDX-License-Identifier: Apache-2.0
 * Cgroups of sandboxes that have ended, for entries to come: to make and to remove one costs a directory and a dozen
 * files in each hierarchy. */
#ifndef RAMET_CGROUP_STOCK_H
#define RAMET_CGROUP_STOCK_H

#include "cgroups.h"

/* The number of one, and the limits that it has; 0 when there is none. */
uint64_t cgroup_stock_take(struct cgroup_limits *limits);
/* When the sandbox's last process has been reaped: it is kept if it is as good as new, and removed otherwise. */
void cgroup_stock_give(uint64_t number, const struct cgroup_limits *limits);

#endif
