/* SPDX-License-Identifier: Apache-2.0
 * The time that a snapshot may take, in the process that takes it: looked at between two pieces of its work, each of
 * which is short or has a bound of its own. */
#ifndef RAMET_OVERDUE_H
#define RAMET_OVERDUE_H

#include "err.h"

/* From now on. Elsewhere nothing is ever overdue. */
void overdue_set(unsigned milliseconds);
/* Code "snapshot_timeout" once the time is over. */
int overdue_check(enum ramet_step step, struct err *err) MUST_CHECK;
int overdue_refuse(unsigned milliseconds, enum ramet_step step, struct err *err);

#endif
