/* SPDX-License-Identifier: Apache-2.0 */
#include "overdue.h"

#include "loop.h"

static uint64_t ends_at;
static unsigned allowed_ms;

void
overdue_set(unsigned milliseconds)
{
  allowed_ms = milliseconds;
  ends_at = loop_now() + (uint64_t)milliseconds * 1000000u;
}

int
overdue_refuse(unsigned milliseconds, enum ramet_step step, struct err *err)
{
  err_code(err, "snapshot_timeout", "took longer than %u.%03u s; the sandbox runs on", milliseconds / 1000,
           milliseconds % 1000);
  err->step = step;
  return -1;
}

int
overdue_check(enum ramet_step step, struct err *err)
{
  return ends_at && loop_now() > ends_at ? overdue_refuse(allowed_ms, step, err) : 0;
}
