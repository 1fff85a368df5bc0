/* SPDX-License-Identifier: Apache-2.0
 * What all sandboxes together may be promised: the sum of their limits, and how many they are. */
#ifndef RAMET_TOTALS_H
#define RAMET_TOTALS_H

#include "plan.h"

/* "memory=BYTES,cpus=MICROSECONDS,processes=COUNT,sandboxes=COUNT", each of them or not. -1 when it is no such text. */
int totals_take(const char *text);
/* Refuses with total_NAME what would exceed one. */
int totals_admit(const struct plan *plan, struct err *err) MUST_CHECK;

#endif
