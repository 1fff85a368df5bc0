/* SPDX-License-Identifier: Apache-2.0
 * Moving a process costs 20 us, or ten milliseconds when nobody has moved one of late: the kernel then waits until all
 * processors have noticed (percpu_down_write). So each init moves itself, at its birth in the pool, while core goes on;
 * and a
 * fork, whose process comes from a stem, moves itself while it has one thread, or is born in its cgroup. */
#define _GNU_SOURCE
#include "cgroups.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP RAMET_STEP_INIT_CGROUP
#define RETRIES_MAX 256

enum controller { MEMORY, CPU, PIDS, IO, ACCOUNT, CONTROLLERS };

/* The last one bounds nothing; it counts time, which in version 2 every cgroup does. */
static const char *const names[CONTROLLERS] = {"memory", "cpu", "pids", "io", ""};
static const char *const old_names[CONTROLLERS] = {"memory", "cpu", "pids", "blkio", "cpuacct"};
static int version;
static int directories[CONTROLLERS] = {-1, -1, -1, -1, -1}; /* in version 2 the same for all */
static bool controls[CONTROLLERS];
static struct disk {
  unsigned major, minor;
} disks[CGROUP_DISKS_MAX];
static int disk_count;
static char told[64];
static uint64_t busy[RETRIES_MAX]; /* could not be removed yet */
static int busy_count;

/* ---- what core was given -------------------------------------------------------------------------------------- */

static int
take_word(const char *word)
{
  const char *equals = strchr(word, '=');
  size_t length = equals ? (size_t)(equals - word) : strlen(word);

  if (version == 2 && equals && length == 3 && strncmp(word, "dir", 3) == 0) {
    for (int i = 0; i < CONTROLLERS; i++)
      directories[i] = atoi(equals + 1);
    return 0;
  }
  for (int i = 0; i < CONTROLLERS; i++) {
    const char *name = version == 1 ? old_names[i] : names[i];
    if (strlen(name) != length || strncmp(name, word, length) != 0 || (version == 1) != (equals != NULL))
      continue;
    controls[i] = true;
    if (equals)
      directories[i] = atoi(equals + 1);
    return 0;
  }
  return -1;
}

int
cgroups_take(const char *text)
{
  char words[128], *rest = words;
  int count = 0;

  if (snprintf(words, sizeof words, "%s", text) >= (int)sizeof words)
    return -1;
  for (char *word; (word = strsep(&rest, " ")); count++) {
    if (count == 0 && strcmp(word, "1") != 0 && strcmp(word, "2") != 0)
      return -1;
    if (count == 0)
      version = atoi(word);
    else if (take_word(word) < 0)
      return -1;
  }
  for (int i = 0; i < CONTROLLERS; i++)
    if (controls[i] && fcntl(directories[i], F_SETFD, FD_CLOEXEC) < 0)
      return -1;
  return count < 2 ? -1 : 0;
}

int
cgroups_descriptors(int out[CGROUP_DIRECTORIES_MAX])
{
  int count = 0;

  for (int i = 0; i < CONTROLLERS; i++) {
    bool known = !controls[i];
    for (int j = 0; j < count; j++)
      known = known || out[j] == directories[i];
    if (!known)
      out[count++] = directories[i];
  }
  return count;
}

const char *
cgroups_told(void)
{
  int n = version ? snprintf(told, sizeof told, "%d", version) : 0;

  for (int i = 0; i < CONTROLLERS; i++)
    if (controls[i] && i != ACCOUNT && (i != IO || disk_count > 0))
      n += snprintf(told + n, sizeof told - (size_t)n, " %s", names[i]);
  return told;
}

int
cgroups_version(void)
{
  return version;
}

bool
cgroups_control_memory(void)
{
  return controls[MEMORY];
}

bool
cgroups_control_cpu(void)
{
  return controls[CPU];
}

bool
cgroups_control_io(void)
{
  return controls[IO] && disk_count > 0;
}

int
cgroups_take_disks(const char *text)
{
  int length;

  for (disk_count = 0; *text; disk_count++) {
    struct disk *disk = &disks[disk_count];
    if (disk_count == CGROUP_DISKS_MAX || sscanf(text, "%u:%u%n", &disk->major, &disk->minor, &length) != 2)
      return -1;
    text += length;
    if (*text && *text++ != ',')
      return -1;
  }
  return 0;
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

static int
write_file(int dir, const char *name, const char *text)
{
  cleanup_fd int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);

  return fd < 0 || write(fd, text, strlen(text)) < 0 ? -1 : 0;
}

static int
write_number(int dir, const char *name, uint64_t number)
{
  char text[24];

  snprintf(text, sizeof text, "%" PRIu64, number);
  return write_file(dir, name, text);
}

/* The number behind `key` in a file of such lines, or in a file of nothing else without a key. */
static uint64_t
read_number(int dir, const char *name, const char *key)
{
  char text[4096];
  cleanup_fd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

  if (length <= 0)
    return 0;
  text[length] = 0;
  const char *at = key ? strstr(text, key) : text;
  return at ? strtoull(at + (key ? strlen(key) : 0), NULL, 10) : 0;
}

static int
open_cgroup(enum controller controller, uint64_t number)
{
  char name[24];

  if (!controls[controller]) {
    errno = ENOENT;
    return -1;
  }
  snprintf(name, sizeof name, "s%" PRIu64, number);
  return openat(directories[controller], name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* ---- the launcher --------------------------------------------------------------------------------------------- */

int
cgroups_enter(struct err *err)
{
  int dirs[CGROUP_DIRECTORIES_MAX], count = cgroups_descriptors(dirs);

  for (int i = 0; i < count; i++)
    if (write_file(dirs[i], "cgroup.procs", "0") < 0)
      return err_step(err, RAMET_STEP_CORE_CGROUP, "enter core's cgroup: %s", strerror(errno));
  return 0;
}

int
cgroups_settle(long core, struct err *err)
{
  char word[16];
  int dirs[CGROUP_DIRECTORIES_MAX];

  if (version != 2 || cgroups_descriptors(dirs) != 1)
    return 0;
  if (mkdirat(dirs[0], "core", 0755) < 0 && errno != EEXIST)
    return err_step(err, RAMET_STEP_CORE_CGROUP, "make core's cgroup: %s", strerror(errno));
  if (write_number(dirs[0], "core/cgroup.procs", (uint64_t)core) < 0 ||
      write_file(dirs[0], "core/cgroup.procs", "0") < 0)
    return err_step(err, RAMET_STEP_CORE_CGROUP, "move core into its cgroup: %s", strerror(errno));
  for (int i = 0; i < CONTROLLERS; i++) {
    snprintf(word, sizeof word, "+%s", names[i]);
    if (controls[i] && write_file(dirs[0], "cgroup.subtree_control", word) < 0)
      return err_step(err, RAMET_STEP_CORE_CGROUP, "have %s controlled: %s", names[i], strerror(errno));
  }
  return 0;
}

/* ---- limits --------------------------------------------------------------------------------------------------- */

/* What is written for no bound at all. */
static void
bound_text(char text[24], uint64_t bound)
{
  if (bound)
    snprintf(text, 24, "%" PRIu64, bound);
  else
    snprintf(text, 24, "%s", version == 1 ? "-1" : "max");
}

/* Version 1 keeps the limit on memory below that on memory and swap: which goes first depends on the direction. */
static int
limit_memory_v1(int dir, const char *text)
{
  bool lowered = write_file(dir, "memory.limit_in_bytes", text) == 0;
  int both = write_file(dir, "memory.memsw.limit_in_bytes", text);

  if (both < 0 && errno == ENOENT) /* without accounting of swap */
    both = 0;
  if (lowered || both < 0)
    return both;
  return write_file(dir, "memory.limit_in_bytes", text);
}

static int
limit_memory(int dir, uint64_t memory)
{
  char text[24];

  bound_text(text, memory);
  if (version == 1)
    return limit_memory_v1(dir, text);
  /* What may not be swapped needs no second bound. */
  if (write_file(dir, "memory.swap.max", memory ? "0" : "max") < 0 && errno != ENOENT)
    return -1;
  return write_file(dir, "memory.max", text);
}

static int
limit_cpu(int dir, uint64_t quota)
{
  char bound[24], text[48];

  bound_text(bound, quota);
  if (version == 1)
    return write_file(dir, "cpu.cfs_quota_us", bound);
  snprintf(text, sizeof text, "%s %d", bound, CGROUP_PERIOD_US);
  return write_file(dir, "cpu.max", text);
}

/* Init and a process that is about to be one of the guest's count here; rlimits stop the guest exactly. */
static int
limit_pids(int dir, uint64_t processes)
{
  char text[24];

  bound_text(text, processes && processes < 4194304 ? processes + 2 : 0);
  return write_file(dir, "pids.max", version == 1 && text[0] == '-' ? "max" : text);
}

static int
write_io(int dir, const char *name, const struct disk *disk, const char *before, const char *bound)
{
  char text[80];

  snprintf(text, sizeof text, "%u:%u %s%s", disk->major, disk->minor, before, bound);
  return write_file(dir, name, text);
}

/* Version 2 counts what is written back of cached files for who wrote them, version 1 only what is read. */
static int
limit_io(int dir, uint64_t io)
{
  char bound[24];

  if (io || version == 1)
    snprintf(bound, sizeof bound, "%" PRIu64, io); /* 0: none */
  else
    snprintf(bound, sizeof bound, "max");
  for (int i = 0; i < disk_count; i++) {
    const struct disk *disk = &disks[i];
    int failed = version == 1 ? write_io(dir, "blkio.throttle.read_bps_device", disk, "", bound) |
                                    write_io(dir, "blkio.throttle.write_bps_device", disk, "", bound)
                              : write_io(dir, "io.max", disk, "rbps=", bound) |
                                    write_io(dir, "io.max", disk, "wbps=", bound);
    if (failed && errno != ENODEV) /* it was taken out meanwhile */
      return -1;
  }
  return 0;
}

static int
apply(enum controller controller, int dir, const struct cgroup_limits *limits, struct err *err)
{
  int result = controller == MEMORY ? limit_memory(dir, limits->memory)
               : controller == CPU  ? limit_cpu(dir, limits->quota)
               : controller == PIDS ? limit_pids(dir, limits->processes)
               : controller == IO   ? limit_io(dir, limits->io)
                                    : 0;

  return result < 0 ? err_step(err, STEP, "limit %s: %s", names[controller], strerror(errno)) : 0;
}

static bool
differs(enum controller controller, const struct cgroup_limits *one, const struct cgroup_limits *other)
{
  return controller == MEMORY ? one->memory != other->memory
         : controller == CPU  ? one->quota != other->quota
         : controller == PIDS ? one->processes != other->processes
         : controller == IO   ? one->io != other->io
                              : false;
}

int
cgroups_limit(uint64_t number, const struct cgroup_limits *limits, const struct cgroup_limits *had, struct err *err)
{
  for (int i = 0; i < CONTROLLERS; i++) {
    if (!controls[i] || !differs(i, limits, had))
      continue;
    cleanup_fd int dir = open_cgroup(i, number);
    if (dir < 0)
      return err_step(err, STEP, "open the %s cgroup: %s", names[i], strerror(errno));
    if (apply(i, dir, limits, err) < 0)
      return -1;
  }
  return 0;
}

int
cgroups_join(uint64_t number, const struct cgroup_limits *limits, const struct cgroup_limits *had, struct err *err)
{
  const struct cgroup_limits none = {0};
  int dirs[CGROUP_DIRECTORIES_MAX], count = cgroups_descriptors(dirs);
  char name[40];

  if (fault_here(STEP, err) < 0)
    return -1;
  for (int i = 0; i < count; i++) {
    snprintf(name, sizeof name, "s%" PRIu64, number);
    if (!had && mkdirat(dirs[i], name, 0755) < 0 && errno != EEXIST)
      return err_step(err, STEP, "make a cgroup: %s", strerror(errno));
    /* A thread that moves itself alone takes no lock; to move a process waits for all processors to notice, which
     * takes milliseconds. Only version 1 has threads of one process in different cgroups. */
    snprintf(name, sizeof name, "s%" PRIu64 "/%s", number, version == 1 ? "tasks" : "cgroup.procs");
    if (write_file(dirs[i], name, "0") < 0)
      return err_step(err, STEP, "enter a cgroup: %s", strerror(errno));
  }
  return cgroups_limit(number, limits, had ? had : &none, err);
}

int
cgroups_open_entrances(uint64_t number, struct cgroup_entrances *entrances, struct err *err)
{
  int dirs[CGROUP_DIRECTORIES_MAX], count = cgroups_descriptors(dirs);
  char name[40];

  *entrances = (struct cgroup_entrances){.born_inside = version == 2};
  snprintf(name, sizeof name, "s%" PRIu64 "%s", number, version == 1 ? "/tasks" : "");
  for (int i = 0; i < count; i++) {
    int fd = openat(dirs[i], name, (version == 1 ? O_WRONLY : O_PATH | O_DIRECTORY) | O_CLOEXEC);
    if (fd < 0) {
      err_step(err, STEP, "open a cgroup: %s", strerror(errno));
      cgroups_close_entrances(entrances);
      return -1;
    }
    entrances->fds[entrances->count++] = fd;
  }
  return 0;
}

void
cgroups_close_entrances(struct cgroup_entrances *entrances)
{
  while (entrances->count > 0)
    close_fd(&entrances->fds[--entrances->count]);
}

int
cgroups_open_memory(uint64_t number)
{
  return open_cgroup(MEMORY, number);
}

int
cgroups_open_time(uint64_t number)
{
  return open_cgroup(version == 1 ? ACCOUNT : MEMORY, number);
}

uint64_t
cgroups_memory_used(int dir)
{
  uint64_t used = read_number(dir, version == 1 ? "memory.usage_in_bytes" : "memory.current", NULL);
  uint64_t kept =
      read_number(dir, "memory.stat", "\ninactive_file ") + read_number(dir, "memory.stat", "\nactive_file ");

  return used > kept ? used - kept : 0;
}

uint64_t
cgroups_time_used(int dir)
{
  return version == 1 ? read_number(dir, "cpuacct.usage", NULL)
                      : read_number(dir, "cpu.stat", "usage_usec ") * 1000u;
}

void
cgroups_read(uint64_t number, uint64_t *peak, uint64_t *kills)
{
  cleanup_fd int dir = open_cgroup(MEMORY, number);

  *peak = *kills = 0;
  if (dir < 0)
    return;
  *peak = read_number(dir, version == 1 ? "memory.max_usage_in_bytes" : "memory.peak", NULL);
  *kills = read_number(dir, version == 1 ? "memory.oom_control" : "memory.events", "\noom_kill ");
}

/* Version 1 tells by an eventfd, before it kills. */
static int
open_kills_v1(int memory)
{
  char words[32];
  cleanup_fd int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  cleanup_fd int control = openat(memory, "memory.oom_control", O_RDONLY | O_CLOEXEC);

  snprintf(words, sizeof words, "%d %d", event, control);
  return event < 0 || control < 0 || write_file(memory, "cgroup.event_control", words) < 0 ? -1 : steal_fd(&event);
}

int
cgroups_open_kills(int memory)
{
  return version == 1 ? open_kills_v1(memory) : openat(memory, "memory.events", O_RDONLY | O_CLOEXEC);
}

/* Version 2 tells of a change up to 10 ms later, so the number is looked at; to read it is to have heard of it. */
bool
cgroups_kills_told(int memory, int kills, uint64_t *seen)
{
  char text[512];
  uint64_t events, before = *seen;

  if (version == 1)
    return read(kills, &events, sizeof events) == sizeof events;
  if (pread(kills, text, sizeof text, 0) < 0)
    return false;
  *seen = read_number(memory, "memory.events", "\noom_kill ");
  return *seen > before;
}

/* Of the kernel's own objects some stay for a while, charged to who made them. */
#define CHARGED_MAX (512u << 10)

static bool
renew_memory(uint64_t number)
{
  cleanup_fd int dir = open_cgroup(MEMORY, number);

  return dir >= 0 && read_number(dir, "memory.usage_in_bytes", NULL) <= CHARGED_MAX &&
         write_file(dir, "memory.max_usage_in_bytes", "0") == 0;
}

bool
cgroups_renew(uint64_t number)
{
  if (version != 1 || !controls[PIDS])
    return false;
  cleanup_fd int pids = open_cgroup(PIDS, number);
  char text[8];
  cleanup_fd int current = pids < 0 ? -1 : openat(pids, "pids.current", O_RDONLY | O_CLOEXEC);
  bool empty = current >= 0 && read(current, text, sizeof text) >= 2 && memcmp(text, "0\n", 2) == 0;
  return empty && (!controls[MEMORY] || renew_memory(number));
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

/* False while something is in it: a process that does not die. */
static bool
remove_all(uint64_t number)
{
  int dirs[CGROUP_DIRECTORIES_MAX], count = cgroups_descriptors(dirs);
  char name[24];
  bool gone = true;

  snprintf(name, sizeof name, "s%" PRIu64, number);
  for (int i = 0; i < count; i++)
    if (unlinkat(dirs[i], name, AT_REMOVEDIR) < 0 && errno == EBUSY)
      gone = false;
  return gone;
}

void
cgroups_remove(uint64_t number)
{
  int left = 0;

  for (int i = 0; i < busy_count; i++)
    if (!remove_all(busy[i]))
      busy[left++] = busy[i];
  busy_count = left;
  if (number && !remove_all(number) && busy_count < RETRIES_MAX)
    busy[busy_count++] = number;
}
