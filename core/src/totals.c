/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "totals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroups.h"
#include "sandbox.h"

enum { MEMORY, CPUS, PROCESSES, SANDBOXES, TOTALS };

static const char *const names[TOTALS] = {"memory", "cpus", "processes", "sandboxes"};
static const char *const units[TOTALS] = {"bytes of memory", "us of processor time in each 100 ms", "processes",
                                          "sandboxes"};
static uint64_t bounds[TOTALS]; /* 0: any */
static bool any;

int
totals_take(const char *text)
{
  while (*text) {
    size_t length = strcspn(text, "=");
    int which = 0;
    char *end;
    while (which < TOTALS && (strlen(names[which]) != length || strncmp(names[which], text, length) != 0))
      which++;
    if (which == TOTALS || text[length] != '=' || text[length + 1] < '0' || text[length + 1] > '9')
      return -1;
    bounds[which] = strtoull(text + length + 1, &end, 10);
    if (bounds[which] == 0 || (*end && *end != ','))
      return -1;
    any = true;
    text = end + (*end == ',');
  }
  return 0;
}

/* What has no limit of its own may take all that the machine has. */
static uint64_t
whole_machine(void)
{
  return (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) * CGROUP_PERIOD_US;
}

static void
add(uint64_t sums[TOTALS], uint64_t memory, uint64_t quota, uint64_t processes)
{
  sums[MEMORY] += memory;
  sums[CPUS] += quota ? quota : whole_machine();
  sums[PROCESSES] += processes;
  sums[SANDBOXES]++;
}

/* Those that end have given up what they had, as soon as that is told. */
static void
add_all(uint64_t sums[TOTALS])
{
  for (const struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox))
    if (sandbox->id && !sandbox->ended && sandbox->state != SANDBOX_ENDING)
      add(sums, sandbox->memory, sandbox->quota, sandbox->processes);
}

int
totals_admit(const struct plan *plan, struct err *err)
{
  uint64_t sums[TOTALS] = {0}, more[TOTALS] = {0};
  char code[32];

  if (!any)
    return 0;
  add_all(sums);
  add(more, plan->memory, plan->quota, plan->processes);
  for (int i = 0; i < TOTALS; i++) {
    if (!bounds[i] || sums[i] + more[i] <= bounds[i])
      continue;
    snprintf(code, sizeof code, "total_%s", names[i]);
    return err_code(err, code,
                    "%" PRIu64 " %s more than the %" PRIu64 " that are given are above the total, %" PRIu64,
                    more[i], units[i], sums[i], bounds[i]);
  }
  return 0;
}
