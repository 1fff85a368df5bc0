/* SPDX-License-Identifier: Apache-2.0 */
#include "cgroup_stock.h"

#include "loop.h"

#define STOCK_MAX 64
/* Nobody makes sandboxes any more: what is kept goes. */
#define COOLING_NS 100000000u

static struct {
  uint64_t number;
  struct cgroup_limits limits;
} stock[STOCK_MAX];
static int count;
static struct deadline cooling;

static void
cooled(struct deadline *deadline)
{
  (void)deadline;
  while (count > 0)
    cgroups_remove(stock[--count].number);
}

uint64_t
cgroup_stock_take(struct cgroup_limits *limits)
{
  if (count == 0)
    return 0;
  *limits = stock[--count].limits;
  return stock[count].number;
}

void
cgroup_stock_give(uint64_t number, const struct cgroup_limits *limits)
{
  if (count == STOCK_MAX || !cgroups_renew(number)) {
    cgroups_remove(number);
    return;
  }
  stock[count].number = number;
  stock[count++].limits = *limits;
  cooling.fire = cooled;
  deadline_set(&cooling, loop_now() + COOLING_NS);
}
