/* SPDX-License-Identifier: Apache-2.0 */
#include "nudge.h"

#include "loop.h"

#define FIRST_NS 20000000u
#define TIMES 3
/* Each wait is so many times as long as the one before: what has not run since the interrupt needs another. */
#define GROWTH 4

static uint32_t nudged;
static uint64_t at, wait;
static unsigned left;

void
nudge_plan(uint32_t number)
{
  nudged = number;
  left = TIMES;
  wait = FIRST_NS;
  at = loop_now() + wait;
}

int
nudge_timeout(void)
{
  if (!left)
    return -1;
  uint64_t now = loop_now();
  return now >= at ? 0 : (int)((at - now) / 1000000u) + 1;
}

bool
nudge_due(uint32_t *number)
{
  if (!left || loop_now() < at)
    return false;
  left--;
  wait *= GROWTH;
  at += wait;
  *number = nudged;
  return true;
}
