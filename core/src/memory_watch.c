/* SPDX-License-Identifier: Apache-2.0
 * What counts, each page once: anonymous memory and swap of all processes, of a fork without what is its snapshot's
 * (inheritance.h); and the larger of the shared memory that is mapped and the shared memory that exists: written files,
 * memory files that are open, System V segments. Not the sum of both, since a mapped file is in both. What no file of
 * /proc shows is not seen: memory files in flight between processes, buffers of pipes and sockets, page tables. */
#define _GNU_SOURCE
#include "memory_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "inheritance.h"
#include "loop.h"
#include "procfs.h"
#include "syscalls.h"

/* As fast as memory can be filled: the next look must come before what is left can be used up. */
#define FILL_RATE 2147483648u /* bytes a second and processor */
#define SOONEST_NS 5000000u
#define LATEST_NS 1000000000u
/* A tree that does not grow is looked at less often, but never so seldom that a hog would live longer. */
#define CALM_NS 150000000u
/* What is frozen for good is captured and ended by others, in less than this. */
#define FROZEN_NS 12000000000u
/* What a look has run is at most this part of the time until the next: many processes cost their own sandbox, not the
 * machine. Not how long it took: on a full machine it waits for a processor, and hogs would have that time five times. */
#define COST_SHARE 5
#define FDS_PER_LOOK 16384
#define FILES_SEEN 4096 /* a power of two */
/* One that was killed and is still there with its memory stands at its end, held by its tracer (PTRACE_O_TRACEEXIT of
 * ptrace(2)), and no further signal reaches it: the tracer goes. */
#define KILLED_KEPT 64
#define TRACERS_DEEP 64
/* Of a limit, what a fork may have written before it is looked at anew what is its own. */
#define OWN_SHARE 4
/* Of /proc/PID/stat, proc(5). */
#define FIELD_MINOR_FAULTS 10
#define FIELD_MAJOR_FAULTS 12

struct process {
  int pid;
  bool stopped; /* before anything was frozen */
  uint64_t bytes;
};

struct measure {
  struct anonymous anonymous;
  uint64_t mapped, existing;
  bool failed; /* somebody could not be measured, who is there */
  struct process *processes;
  int count, capacity;
};

static uint64_t limit, peak, kills, killed_at, last, next_at, interval;
static unsigned processors = 1;
static dev_t memory_files; /* the file system of memory files that have no name */
static uint64_t files_seen[FILES_SEEN];
static int fds_left, killed[KILLED_KEPT];
static unsigned killed_next;
static bool own_shm, keeps, stands_still;
static struct inheritance inherited;

/* ---- measuring ------------------------------------------------------------------------------------------------ */

static uint64_t
kibibytes(const char *text, const char *name)
{
  const char *value = procfs_field(text, name);

  return value ? strtoull(value, NULL, 10) * 1024 : 0;
}

/* Counts a file once, however many have it open. A full table forgets: then it is counted again, never left out. */
static bool
is_new_file(uint64_t inode)
{
  uint64_t *slot = &files_seen[(inode * 0x9e3779b97f4a7c15u) >> 52 & (FILES_SEEN - 1)];

  if (*slot == inode)
    return false;
  *slot = inode;
  return true;
}

static uint64_t
open_memory_files(int pid)
{
  char path[32];
  uint64_t bytes = 0;
  struct dirent *entry;
  struct stat st;

  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR *dir = fds_left > 0 ? opendir(path) : NULL;
  while (dir && fds_left > 0 && (entry = readdir(dir))) {
    if (entry->d_name[0] == '.')
      continue;
    fds_left--;
    if (fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) && st.st_dev == memory_files &&
        is_new_file(st.st_ino))
      bytes += (uint64_t)st.st_blocks * 512;
  }
  if (dir)
    closedir(dir);
  return bytes;
}

/* Columns 15 and 16 of a line: resident and swapped bytes. */
static uint64_t
system_v_segments(void)
{
  char *text = procfs_read("/proc/sysvipc/shm", NULL), *line = text ? strchr(text, '\n') : NULL;
  uint64_t bytes = 0, resident, swapped;

  for (; line && line[1]; line = strchr(line + 1, '\n'))
    if (sscanf(line + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %" SCNu64, &resident,
               &swapped) == 2)
      bytes += resident + swapped;
  free(text);
  return bytes;
}

static uint64_t
written_to(const char *path)
{
  struct statfs fs;

  return statfs(path, &fs) < 0 ? 0 : (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
}

/* /dev/shm is a directory of the writable layer, unless it has a size of its own. */
static uint64_t
written_files(void)
{
  return written_to("/") + (own_shm ? written_to("/dev/shm") : 0);
}

static bool
add_process(struct measure *measure, const struct process *process)
{
  if (measure->count == measure->capacity) {
    int capacity = measure->capacity ? measure->capacity * 2 : 64;
    struct process *grown = realloc(measure->processes, sizeof *grown * (size_t)capacity);
    if (!grown)
      return false;
    measure->processes = grown;
    measure->capacity = capacity;
  }
  measure->processes[measure->count++] = *process;
  return true;
}

/* The one whose entries in /proc tell of the process: the first thread, unless that has ended before others, which leaves
 * it without memory there. 0: all have ended, and the process is nothing but its status; -1: it cannot be told. */
static int
living_thread(int pid)
{
  int threads[PROCFS_THREADS_MAX], count = procfs_threads(pid, threads, PROCFS_THREADS_MAX);

  if (count < 0)
    return procfs_gone() ? 0 : -1;
  for (int i = 0; i < count; i++) {
    char state = procfs_state(threads[i]);
    if (state && state != 'Z' && state != 'X')
      return threads[i];
  }
  return 0;
}

static char *
read_status(int tid, char *state)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/status", tid);
  char *status = procfs_read(path, NULL);
  const char *field = status ? procfs_field(status, "State") : NULL;
  *state = field ? field[strspn(field, " \t")] : 0;
  return status;
}

/* Its status, by the thread that tells it. NULL: it has no memory any more, or cannot be told, which `measure` notes. */
static char *
find_status(struct measure *measure, int pid, int *tid, char *state)
{
  char *status = read_status(pid, state);

  *tid = pid;
  if (*state == 'Z') {
    free(status);
    *tid = living_thread(pid);
    status = *tid > 0 ? read_status(*tid, state) : NULL;
    measure->failed |= *tid < 0;
  }
  if (!status && *tid > 0 && !procfs_gone())
    measure->failed = true;
  return status;
}

static uint64_t
bounded(uint64_t value, uint64_t lowest, uint64_t highest)
{
  return value < lowest ? lowest : value > highest ? highest : value;
}

static uint64_t
faults_of(int tid)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/stat", tid);
  cleanup_free char *stat = procfs_read(path, NULL);
  return stat ? procfs_stat_field(stat, FIELD_MINOR_FAULTS) + procfs_stat_field(stat, FIELD_MAJOR_FAULTS) : 0;
}

/* What is shared of `resident` bytes that are `proportional` ones: between two who have all of it, and very many. Where in
 * between tells the rollup, which counts shared files too. */
static uint64_t
shared_part(const char *rollup, uint64_t resident, uint64_t proportional)
{
  uint64_t others = resident > proportional ? resident - proportional : 0;

  return bounded(kibibytes(rollup, "Shared_Dirty"), others, 2 * others);
}

/* `rollup` takes the kernel a walk over all pages of the process; without it shared pages count for everybody. Returns what
 * it weighs beside others. */
static uint64_t
add_anonymous(struct anonymous *sum, int tid, const char *status, const char *rollup)
{
  uint64_t resident = kibibytes(status, "RssAnon") + kibibytes(status, "VmSwap"), proportional = resident;

  if (rollup && procfs_field(rollup, "Pss_Anon")) {
    resident = kibibytes(rollup, "Anonymous") + kibibytes(rollup, "Swap");
    proportional = kibibytes(rollup, "Pss_Anon") + kibibytes(rollup, "SwapPss");
    sum->shared += shared_part(rollup, resident, proportional);
  }
  sum->resident += resident;
  sum->proportional += proportional;
  if (sum->largest < resident)
    sum->largest = resident;
  sum->faults += inherited.bytes ? faults_of(tid) : 0;
  sum->processes++;
  return proportional;
}

static void
measure_process(struct measure *measure, int pid, bool exact)
{
  char path[48], state;
  int tid;
  cleanup_free char *status = find_status(measure, pid, &tid, &state);

  if (!status)
    return;
  snprintf(path, sizeof path, "/proc/%d/smaps_rollup", tid);
  cleanup_free char *rollup = exact ? procfs_read(path, NULL) : NULL;
  bool told = rollup && procfs_field(rollup, "Pss_Shmem");
  uint64_t anonymous = add_anonymous(&measure->anonymous, tid, status, rollup);
  uint64_t mapped = told ? kibibytes(rollup, "Pss_Shmem") : kibibytes(status, "RssShmem");
  uint64_t files = open_memory_files(tid);
  measure->existing += files;
  measure->mapped += mapped;
  struct process process = {.pid = pid, .stopped = state == 'T', .bytes = anonymous + mapped + files};
  if (!add_process(measure, &process))
    measure->failed = true;
}

static void
visit_all(struct measure *measure, bool exact)
{
  struct dirent *entry;
  DIR *dir = opendir("/proc");

  measure->failed = !dir;
  while (dir && (entry = readdir(dir))) {
    int pid = atoi(entry->d_name);
    if (pid > 1)
      measure_process(measure, pid, exact);
  }
  if (dir)
    closedir(dir);
}

/* Of who has memory together with others only what is `exact` tells what is its own: without it is told what it may be at
 * most. What could not be told is as it was. */
static uint64_t
measure_tree(struct measure *measure, bool exact)
{
  const struct anonymous *anonymous = &measure->anonymous;

  measure->anonymous = (struct anonymous){0};
  measure->mapped = measure->existing = 0;
  measure->count = 0;
  memset(files_seen, 0, sizeof files_seen);
  fds_left = FDS_PER_LOOK;
  visit_all(measure, exact);
  measure->existing += written_files() + system_v_segments();
  if (exact && !measure->failed)
    inheritance_update(&inherited, anonymous);
  uint64_t kept = exact ? 0 : inherited.bytes - inheritance_lost_at_most(&inherited, anonymous);
  uint64_t own = exact                        ? inheritance_own(&inherited, anonymous)
                 : anonymous->resident > kept ? anonymous->resident - kept
                                              : 0;
  uint64_t used = own + (measure->mapped > measure->existing ? measure->mapped : measure->existing);
  return measure->failed && used < last ? last : used;
}

/* Also before a fork has written so much that it could not be told any more what of it others gave up. */
static uint64_t
measure_enough(struct measure *measure, uint64_t enough)
{
  uint64_t used = measure_tree(measure, false);

  if (used > enough || inheritance_lost_at_most(&inherited, &measure->anonymous) > limit / OWN_SHARE)
    used = measure_tree(measure, true);
  return used;
}

/* ---- acting --------------------------------------------------------------------------------------------------- */

static bool
somebody_exits(const struct measure *measure)
{
  for (int i = 0; i < measure->count; i++)
    if (procfs_exiting(measure->processes[i].pid))
      return true;
  return false;
}

static struct process *
largest_of(const struct measure *measure)
{
  struct process *largest = NULL;

  for (int i = 0; i < measure->count; i++)
    if (measure->processes[i].bytes > 0 && (!largest || measure->processes[i].bytes > largest->bytes))
      largest = &measure->processes[i];
  return largest;
}

static bool
was_killed(int pid)
{
  for (int i = 0; i < KILLED_KEPT; i++)
    if (killed[i] == pid)
      return true;
  return false;
}

static void
kill_and_note(int pid)
{
  if (kill(pid, SIGKILL) == 0) {
    kills++;
    killed_at = loop_now();
  }
  killed[killed_next++ % KILLED_KEPT] = pid;
}

/* And who traces them: killed alone, a tracer can be held as well. A thread that traces is not known by its process. */
static void
kill_tracers(int pid)
{
  int threads[PROCFS_THREADS_MAX], count = procfs_threads(pid, threads, PROCFS_THREADS_MAX);

  for (int i = 0; i < count; i++)
    for (int depth = 0, tid = threads[i]; depth < TRACERS_DEEP && (tid = procfs_tracer(tid)) > 1; depth++)
      kill_and_note(tid);
}

static void
kill_one(int pid)
{
  if (was_killed(pid))
    kill_tracers(pid);
  else
    kill_and_note(pid);
}

/* Who takes most, and so on until what they had makes up for the excess: what is freed is no more than that, as others
 * may share it. Nobody while one that was killed has not gone yet. */
static void
kill_excess(const struct measure *measure, uint64_t used)
{
  struct process *largest;

  if (used <= limit || somebody_exits(measure))
    return;
  while (used > limit && (largest = largest_of(measure))) {
    kill_one(largest->pid);
    used -= largest->bytes < used ? largest->bytes : used;
    largest->bytes = 0;
  }
}

static bool
was_stopped(const struct measure *measure, int pid)
{
  for (int i = 0; i < measure->count; i++)
    if (measure->processes[i].pid == pid)
      return measure->processes[i].stopped;
  return false;
}

/* Frozen, so that nobody grows or forks while it is looked who takes most: kill(-1) and fork exclude each other. Who
 * was stopped before stays so. */
static uint64_t
kill_largest(const struct measure *before)
{
  struct measure frozen = {0};

  kill(-1, SIGSTOP);
  uint64_t used = measure_tree(&frozen, true);
  kill_excess(&frozen, used);
  for (int i = 0; i < frozen.count; i++)
    if (!was_stopped(before, frozen.processes[i].pid))
      kill(frozen.processes[i].pid, SIGCONT);
  free(frozen.processes);
  return used;
}

/* All stand still from now on, if they exceed the limit when nobody grows any more. */
static bool
freeze(const struct measure *before, int *stopped_before)
{
  struct measure still = {0};

  kill(-1, SIGSTOP);
  stands_still = measure_tree(&still, true) > limit;
  *stopped_before = 0;
  for (int i = 0; i < still.count; i++) {
    bool was = was_stopped(before, still.processes[i].pid);
    if (was)
      *stopped_before = still.processes[i].pid;
    else if (!stands_still)
      kill(still.processes[i].pid, SIGCONT);
  }
  free(still.processes);
  if (stands_still) {
    kills++;
    next_at = loop_now() + FROZEN_NS;
  }
  return stands_still;
}

/* `cost`: what this look has run. */
static void
plan_next(uint64_t used, uint64_t cost)
{
  uint64_t left = used < limit ? limit - used : 0;
  uint64_t in_time =
      bounded((uint64_t)((double)left / ((double)FILL_RATE * processors) * 1e9), SOONEST_NS, LATEST_NS);

  interval = left && used <= last + last / 64 ? interval * 2 : in_time;
  interval = bounded(interval, in_time, in_time > CALM_NS ? in_time : CALM_NS);
  last = used;
  /* As long as there is too much, half of the time is for looking. */
  next_at = loop_now() + bounded(interval, left ? cost * COST_SHARE : cost, UINT64_MAX);
}

static void
find_memory_files(void)
{
  struct stat st;
  cleanup_fd int file = memfd_create("", MFD_CLOEXEC);

  if (file >= 0 && fstat(file, &st) == 0)
    memory_files = st.st_dev;
}

void
memory_watch_start(uint64_t bytes, uint64_t inheritance, bool shm, bool keep)
{
  cpu_set_t set;

  if (sched_getaffinity(0, sizeof set, &set) == 0)
    processors = (unsigned)CPU_COUNT(&set);
  limit = bytes;
  own_shm = shm;
  keeps = keep;
  last = 0;
  inheritance_begin(&inherited, inheritance);
  if (limit)
    plan_next(0, 0);
}

int
memory_watch_timeout(void)
{
  if (!limit)
    return -1;
  uint64_t at = loop_now();
  return at >= next_at ? 0 : (int)((next_at - at) / 1000000u) + 1;
}

/* Nobody came. */
static void
end_frozen(void)
{
  kill(-1, SIGKILL);
  next_at = loop_now() + FROZEN_NS;
}

bool
memory_watch_look(int *stopped_before)
{
  struct measure measure = {0};
  bool now_frozen = false;

  if (!limit || loop_now() < next_at)
    return false;
  if (stands_still) {
    end_frozen();
    return false;
  }
  if (!memory_files)
    find_memory_files();
  uint64_t spent = loop_spent(), used = measure_enough(&measure, limit);
  if (used > peak)
    peak = used;
  /* What comes and goes too fast to be told stands still for that. */
  if ((used > limit || measure.failed) && keeps)
    now_frozen = freeze(&measure, stopped_before);
  else if (used > limit || measure.failed)
    used = kill_largest(&measure);
  free(measure.processes);
  if (!now_frozen)
    plan_next(used, loop_spent() - spent);
  return now_frozen;
}

/* Only where pages that are shared may make a difference it is worth to walk over all of them. */
uint64_t
memory_watch_now(void)
{
  struct measure measure = {0};

  if (!memory_files)
    find_memory_files();
  uint64_t used = measure_enough(&measure, limit / 2);
  free(measure.processes);
  return used;
}

uint64_t
memory_watch_peak(void)
{
  return peak;
}

uint64_t
memory_watch_kills(void)
{
  return kills;
}

/* Asked once, when it is reaped: after that its number may be another's. */
bool
memory_watch_killed(int pid)
{
  for (int i = 0; i < KILLED_KEPT; i++)
    if (killed[i] == pid) {
      killed[i] = 0;
      return true;
    }
  return false;
}

uint64_t
memory_watch_killed_at(void)
{
  return killed_at;
}
