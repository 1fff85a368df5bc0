/* SPDX-License-Identifier: Apache-2.0
 * The time of the tree is what its processes have run, which their clocks tell to the nanosecond, and what those have
 * run that were waited for. A parent that ignores SIGCHLD waits for nobody: the kernel forgets what its children have
 * run, as soon as they end. */
#define _GNU_SOURCE
#include "time_watch.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"
#include "procfs.h"

#define SOONEST_NS 10000000u
#define LATEST_NS 3600000000000u
#define SECOND_NS 1000000000u
/* Of a limit on standing idle: so much later may be noticed that it is over. */
#define IDLE_LOOKS 8
/* Of /proc/PID/stat, proc(5). */
#define FIELD_USER_REAPED 16
#define FIELD_SYSTEM_REAPED 17

struct measure {
  uint64_t used, largest; /* of all; of the one that has run longest */
  uint64_t print;         /* another one whenever anything has run */
};

static uint64_t cpu_limit, idle_limit, next_at, active_at, last_print;
static bool own_limits, warned, killed;
static unsigned processors = 1;

/* ---- measuring ------------------------------------------------------------------------------------------------ */

/* clock_getcpuclockid(3), without its look at whether the process is there. */
static uint64_t
clock_of(int pid)
{
  struct timespec time;
  clockid_t clock = (clockid_t)(~(unsigned)pid << 3 | 2);

  return clock_gettime(clock, &time) < 0 ? 0 : (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

static uint64_t
reaped_by(int pid)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  cleanup_free char *stat = procfs_read(path, NULL);
  if (!stat)
    return 0;
  uint64_t ticks = procfs_stat_field(stat, FIELD_USER_REAPED) + procfs_stat_field(stat, FIELD_SYSTEM_REAPED);
  return ticks * (SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK));
}

static uint64_t
reaped_by_init(void)
{
  struct rusage usage;

  if (getrusage(RUSAGE_CHILDREN, &usage) < 0)
    return 0;
  return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SECOND_NS +
         (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u;
}

static struct measure
measure_tree(void)
{
  struct measure found = {.used = reaped_by_init()};
  struct dirent *entry;
  DIR *dir = opendir("/proc");

  found.print = found.used;
  while (dir && (entry = readdir(dir))) {
    int pid = atoi(entry->d_name);
    if (pid <= 1)
      continue;
    uint64_t own = clock_of(pid);
    found.used += own + (cpu_limit ? reaped_by(pid) : 0);
    found.print = (found.print ^ own) * 0x9e3779b97f4a7c15u + (uint64_t)pid;
    if (own > found.largest)
      found.largest = own;
  }
  if (dir)
    closedir(dir);
  return found;
}

/* ---- acting --------------------------------------------------------------------------------------------------- */

/* As the kernel does for one process: SIGXCPU, and after a second more SIGKILL. A process that has nearly all of the time
 * to itself hears it from the kernel, by its own limit. */
static void
bound_time(const struct measure *found)
{
  bool told = own_limits && found->largest > cpu_limit - cpu_limit / 32;

  if (found->used >= cpu_limit + SECOND_NS) {
    killed = true;
    kill(-1, SIGKILL);
  } else if (found->used >= cpu_limit && !warned && !told) {
    warned = true;
    kill(-1, SIGXCPU);
  }
}

static uint64_t
bounded(uint64_t value)
{
  return value < SOONEST_NS ? SOONEST_NS : value > LATEST_NS ? LATEST_NS : value;
}

/* Before the time can be over, on all processors. */
static void
plan_next(const struct measure *found, uint64_t now)
{
  uint64_t wait = LATEST_NS;

  if (cpu_limit) {
    uint64_t limit = found->used < cpu_limit ? cpu_limit : cpu_limit + SECOND_NS;
    uint64_t left = found->used < limit ? limit - found->used : 0;
    wait = bounded(left / processors);
  }
  if (idle_limit && idle_limit / IDLE_LOOKS < wait)
    wait = bounded(idle_limit / IDLE_LOOKS);
  next_at = now + wait;
}

void
time_watch_start(uint64_t cpu, uint64_t idle, bool own)
{
  const struct measure nothing = {0};
  cpu_set_t set;

  if (sched_getaffinity(0, sizeof set, &set) == 0)
    processors = (unsigned)CPU_COUNT(&set);
  cpu_limit = cpu;
  idle_limit = idle;
  own_limits = own;
  active_at = loop_now();
  if (cpu_limit || idle_limit)
    plan_next(&nothing, active_at);
}

int
time_watch_timeout(void)
{
  if (!cpu_limit && !idle_limit)
    return -1;
  uint64_t now = loop_now();
  return now >= next_at ? 0 : (int)((next_at - now) / 1000000u) + 1;
}

bool
time_watch_look(void)
{
  uint64_t now = cpu_limit || idle_limit ? loop_now() : 0;

  if (now < next_at || now == 0)
    return false;
  struct measure found = measure_tree();
  if (cpu_limit)
    bound_time(&found);
  if (found.print != last_print)
    active_at = now;
  last_print = found.print;
  plan_next(&found, now);
  return idle_limit && now - active_at >= idle_limit;
}

void
time_watch_touch(void)
{
  active_at = loop_now();
}

bool
time_watch_killed(void)
{
  return killed;
}
