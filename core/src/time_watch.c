/* SPDX-License-Identifier: Apache-2.0
 * The time of the tree is what its cgroup has counted, where there is one with everybody in it. Elsewhere it is what its
 * processes have run, which their clocks tell to the nanosecond, and what those have run that were waited for. A parent
 * that ignores SIGCHLD waits for nobody: the kernel forgets what its children have run as soon as they end. There what
 * was once seen stays counted, and while somebody ignores SIGCHLD looks are frequent, and each child that is seen for
 * the first time stands for those that came and went unseen. Rejected: taskstats, the connector of processes and acct(2) need privileges of the host;
 * perf_event_open(2) with `inherit` is what most distributions forbid; ptrace(2) is the guest's own. */
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

#include "cgroups.h"
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

/* Between looks while somebody ignores SIGCHLD; it doubles as long as none of those runs. */
#define DENSE_NS 40000000u
/* What a look may run of the time until the next one. */
#define COST 10u
/* The kernel holds a process to its own limit by ticks, of which each may stand for more than was run. */
#define TICKS_SHARE 4
#define FIELD_PARENT 4
#define FIELD_STARTED 22
#define FIELD_IGNORED 33

/* A process at one look. */
struct seen {
  int pid, parent;
  bool forgets;     /* its children, when they end */
  uint64_t own;     /* what it has run */
  uint64_t started; /* since the boot */
};

struct measure {
  uint64_t used, largest; /* of all, as far as the kernel tells; of the one that has run longest */
  uint64_t print;         /* another one whenever anything has run */
  struct seen *seen;      /* by pid */
  size_t count, room;
  uint64_t at; /* CLOCK_MONOTONIC */
};

static uint64_t cpu_limit, idle_limit, next_at, active_at;
static bool own_limits, warned, killed;
static unsigned processors = 1;
static int group = -1;
static uint64_t group_before; /* the cgroup's time less init's, when the limits began to hold */
static struct measure last;
/* What has been run for certain; of that, what nobody was waited for; what there was of it at the look before. */
static uint64_t known, lost, missing;
static unsigned quiet; /* looks in a row at which nobody who ignores SIGCHLD had run */

/* ---- measuring ------------------------------------------------------------------------------------------------ */

static uint64_t
nanoseconds_of(clockid_t clock)
{
  struct timespec time;

  return clock_gettime(clock, &time) < 0 ? 0 : (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

/* clock_getcpuclockid(3), without its look at whether the process is there. */
static uint64_t
clock_of(int pid)
{
  return nanoseconds_of((clockid_t)(~(unsigned)pid << 3 | 2));
}

static uint64_t
tick(void)
{
  return SECOND_NS / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* What it has waited for; the rest goes into `seen`. */
static uint64_t
read_stat(int pid, struct seen *seen)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  cleanup_free char *stat = procfs_read(path, NULL);
  if (!stat)
    return 0;
  seen->parent = (int)procfs_stat_field(stat, FIELD_PARENT);
  seen->started = procfs_stat_field(stat, FIELD_STARTED) * tick();
  seen->forgets = procfs_stat_field(stat, FIELD_IGNORED) & 1u << (SIGCHLD - 1);
  return (procfs_stat_field(stat, FIELD_USER_REAPED) + procfs_stat_field(stat, FIELD_SYSTEM_REAPED)) * tick();
}

static uint64_t
time_of(const struct rusage *usage)
{
  return (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * SECOND_NS +
         (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1000u;
}

static uint64_t
reaped_by_init(void)
{
  struct rusage usage;

  return getrusage(RUSAGE_CHILDREN, &usage) < 0 ? 0 : time_of(&usage);
}

static void
keep(struct measure *found, const struct seen *seen)
{
  if (found->count == found->room) {
    size_t room = found->room ? 2 * found->room : 16;
    struct seen *more = reallocarray(found->seen, room, sizeof *more);
    if (!more)
      return; /* it counts all the same, until it ends */
    found->seen = more;
    found->room = room;
  }
  found->seen[found->count++] = *seen;
}

/* /proc lists processes by their numbers, and so each look is sorted. */
static void
measure_tree(struct measure *found)
{
  struct dirent *entry;
  DIR *dir = opendir("/proc");

  found->used = found->print = reaped_by_init();
  found->largest = 0;
  found->count = 0;
  while (dir && (entry = readdir(dir))) {
    struct seen seen = {.pid = atoi(entry->d_name)};
    if (seen.pid <= 1)
      continue;
    seen.own = clock_of(seen.pid);
    found->used += seen.own + (cpu_limit ? read_stat(seen.pid, &seen) : 0);
    found->print = (found->print ^ seen.own) * 0x9e3779b97f4a7c15u + (uint64_t)seen.pid;
    if (seen.own > found->largest)
      found->largest = seen.own;
    if (cpu_limit)
      keep(found, &seen);
  }
  if (dir)
    closedir(dir);
  found->at = loop_now();
}

/* ---- what the kernel forgets ---------------------------------------------------------------------------------- */

static int
compare_pids(const void *one, const void *other)
{
  return ((const struct seen *)one)->pid - ((const struct seen *)other)->pid;
}

static const struct seen *
find(const struct measure *measure, int pid)
{
  const struct seen key = {.pid = pid};

  return measure->count ? bsearch(&key, measure->seen, measure->count, sizeof key, compare_pids) : NULL;
}

/* What the siblings of a new child of somebody who waits for none have run in the time between two looks: as much a
 * second as it. A start is told in whole ticks, half a tick too early in the mean. */
static uint64_t
unseen_siblings(const struct seen *seen, uint64_t between)
{
  uint64_t now = nanoseconds_of(CLOCK_BOOTTIME), age = now > seen->started ? now - seen->started : 0;

  age = age > tick() / 2 ? age - tick() / 2 : 0;
  if (age < seen->own)
    age = seen->own;
  if (between > SECOND_NS)
    between = SECOND_NS;
  return age == 0 || age >= between ? 0 : (uint64_t)((double)seen->own / (double)age * (double)(between - age));
}

/* What those have run since the look before that are there now, and how much of that nobody has seen. */
static uint64_t
growth(const struct measure *found, uint64_t *unseen, bool *forgetful)
{
  uint64_t ran = 0;

  *unseen = 0;
  *forgetful = false;
  for (size_t i = 0; i < found->count; i++) {
    const struct seen *now = &found->seen[i], *before = find(&last, now->pid);
    const struct seen *parent = find(found, now->parent);
    if (before && before->own > now->own) /* the number was given anew */
      before = NULL;
    uint64_t more = now->own - (before ? before->own : 0);
    ran += more;
    if (parent && parent->forgets && !before && last.at)
      *unseen += unseen_siblings(now, found->at - last.at);
    if (more && (now->forgets || (parent && parent->forgets)))
      *forgetful = true;
  }
  return ran + *unseen;
}

/* A wait in the midst of a look moves time from one process to another: it is seen twice, or not at all. */
static bool
torn(const struct measure *found)
{
  uint64_t most = (found->at - last.at) * processors + 2 * tick() * (found->count + last.count);

  return last.at && (found->used < last.used || found->used - last.used > most);
}

/* Time that is waited for is told in ticks, rounded down twice; what is missing at two looks in a row is lost. */
static uint64_t
account(const struct measure *found, bool *forgetful)
{
  uint64_t unseen, grown = known + growth(found, &unseen, forgetful);

  lost += unseen;
  known = found->used + lost > grown ? found->used + lost : grown;
  uint64_t told = found->used + 2 * tick() * found->count, gone = known > told ? known - told : 0;
  uint64_t twice = gone < missing ? gone : missing;
  if (twice > lost)
    lost = twice;
  missing = gone;
  return known;
}

/* As of the last ticks of the processors. */
static uint64_t
counted(void)
{
  uint64_t all = cgroups_time_used(group), others = group_before + nanoseconds_of(CLOCK_PROCESS_CPUTIME_ID);

  return all > others ? all - others : 0;
}

/* ---- acting --------------------------------------------------------------------------------------------------- */

/* As the kernel does for one process: SIGXCPU, and after a second more SIGKILL. A process that has nearly all of the time
 * to itself hears it from the kernel, by its own limit. */
static void
bound_time(uint64_t used, uint64_t largest)
{
  bool told = own_limits && largest > cpu_limit - cpu_limit / 32;

  if (used >= cpu_limit + SECOND_NS) {
    killed = true;
    kill(-1, SIGKILL);
  } else if (used >= cpu_limit && !warned && !told) {
    warned = true;
    kill(-1, SIGXCPU);
  }
}

static uint64_t
bounded(uint64_t value)
{
  return value < SOONEST_NS ? SOONEST_NS : value > LATEST_NS ? LATEST_NS : value;
}

/* Before the time can be over, on all processors, and often enough to see what is forgotten. */
static void
plan_next(uint64_t used, bool forgetful, uint64_t cost, uint64_t at)
{
  uint64_t wait = LATEST_NS, dense = SECOND_NS;

  if (cpu_limit) {
    uint64_t limit = used < cpu_limit ? cpu_limit : cpu_limit + SECOND_NS;
    uint64_t left = used < limit ? limit - used : 0;
    wait = bounded(left / processors / 4);
  }
  if (forgetful)
    quiet = 0;
  else if (quiet < 32)
    quiet++;
  if (quiet < 5)
    dense = DENSE_NS << quiet;
  for (size_t i = 0; i < last.count && group < 0; i++)
    if (last.seen[i].forgets && dense < wait)
      wait = dense;
  if (wait < cost * COST)
    wait = cost * COST;
  if (idle_limit && idle_limit / IDLE_LOOKS < wait)
    wait = bounded(idle_limit / IDLE_LOOKS);
  next_at = at + wait;
}

void
time_watch_start(uint64_t cpu, uint64_t idle, bool own, int cgroup)
{
  cpu_set_t set;

  if (sched_getaffinity(0, sizeof set, &set) == 0)
    processors = (unsigned)CPU_COUNT(&set);
  cpu_limit = cpu;
  idle_limit = idle;
  own_limits = own;
  group = cgroup;
  if (group >= 0)
    group_before = cgroups_time_used(group) - nanoseconds_of(CLOCK_PROCESS_CPUTIME_ID);
  active_at = loop_now();
  if (cpu_limit || idle_limit)
    plan_next(0, false, 0, active_at);
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
  static struct measure found;
  bool forgetful = false;
  uint64_t used = 0, spent = loop_spent();
  measure_tree(&found);
  if (cpu_limit && group < 0 && torn(&found))
    measure_tree(&found);
  if (cpu_limit) {
    used = group < 0 ? account(&found, &forgetful) : counted();
    bound_time(used, found.largest);
  }
  if (found.print != last.print)
    active_at = now;
  struct measure before = last;
  last = found;
  found = before; /* its room is used again */
  plan_next(used, forgetful, loop_spent() - spent, last.at);
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

bool
time_watch_reached(const struct rusage *usage)
{
  uint64_t error = cpu_limit / TICKS_SHARE < SECOND_NS ? cpu_limit / TICKS_SHARE : SECOND_NS;

  return cpu_limit && (warned || killed || time_of(usage) >= cpu_limit - error);
}

uint64_t
time_watch_used(void)
{
  uint64_t reaped = reaped_by_init(), used = group < 0 ? known : counted();

  return used > reaped ? used : reaped;
}
