/* SPDX-License-Identifier: Apache-2.0
 * Who opens such a file breaks init's lease on it (fcntl(2), F_SETLEASE), and waits while init writes what is true at
 * that moment: nothing is written, and init does not wake up, unless somebody looks. A lease cannot be had while a file is
 * open: who keeps one open reads what is written at least every second. */
#define _GNU_SOURCE
#include "guest_view.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "cgroups.h"
#include "limit_views.h"
#include "loop.h"
#include "memory_watch.h"
#include "mounts.h"
#include "procfs.h"
#include "syscalls.h"

#define STEP RAMET_STEP_INIT_VIEW
#define PLACE "v"
#define CGROUP_PLACE "sys/fs/cgroup"
/* Between two attempts to have a lease again. */
#define SOONEST_NS 10000000u
#define LATEST_NS 1000000000u

struct text {
  char *data;
  size_t length;
};

typedef struct text make(void);
static make make_meminfo, make_stat, make_cpuinfo;

static struct view {
  const char *name;
  make *make;
  int source; /* of the kernel, to be opened before it is covered: -1 when there is none */
  int fd;
  bool leased;
  uint64_t next_at, wait;
} views[] = {
    {.name = "meminfo", .make = make_meminfo, .source = -1, .fd = -1},
    {.name = "stat", .make = make_stat, .source = -1, .fd = -1},
    {.name = "cpuinfo", .make = make_cpuinfo, .source = -1, .fd = -1},
};
enum { MEMINFO, STAT, CPUINFO, VIEWS };

static int place = -1, memory_group = -1;
static uint64_t memory_limit, processors;
static bool watched, started;

/* ---- what they say -------------------------------------------------------------------------------------------- */

/* From its beginning, as far as it goes. */
static char *
read_source(int fd)
{
  size_t capacity = 16384, used = 0;
  char *text = malloc(capacity);
  ssize_t n = 0;

  while (text && (n = pread(fd, text + used, capacity - used - 1, (off_t)used)) > 0) {
    used += (size_t)n;
    if (capacity - used > 4096)
      continue;
    char *grown = realloc(text, capacity *= 2);
    if (!grown)
      free(text);
    text = grown;
  }
  if (text)
    text[used] = 0;
  return text;
}

static uint64_t
kibibytes(const char *text, const char *name)
{
  const char *value = text ? procfs_field(text, name) : NULL;

  return value ? strtoull(value, NULL, 10) : 0;
}

static uint64_t
lower(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

static uint64_t
written_kibibytes(void)
{
  struct statfs fs;

  return statfs("/", &fs) < 0 ? 0 : (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize / 1024;
}

/* The machine's own figures, where those leave less than the limit. What nothing is known of is 0: nothing is swapped. */
static struct text
make_meminfo(void)
{
  cleanup_free char *host = read_source(views[MEMINFO].source);
  uint64_t all = kibibytes(host, "MemTotal"), total = memory_limit ? lower(memory_limit / 1024, all) : all;
  uint64_t used = (watched ? memory_watch_now() : cgroups_memory_used(memory_group)) / 1024;
  uint64_t left = lower(used < total ? total - used : 0, kibibytes(host, "MemAvailable"));
  uint64_t written = written_kibibytes();
  const struct {
    const char *name;
    uint64_t value;
  } lines[] = {
      {"MemTotal", total},
      {"MemFree", left},
      {"MemAvailable", left},
      {"Buffers", 0},
      {"Cached", written},
      {"SwapCached", 0},
      {"Active", used},
      {"Inactive", 0},
      {"SwapTotal", 0},
      {"SwapFree", 0},
      {"Dirty", 0},
      {"Writeback", 0},
      {"AnonPages", used > written ? used - written : 0},
      {"Mapped", 0},
      {"Shmem", written},
      {"Slab", 0},
      {"SReclaimable", 0},
      {"SUnreclaim", 0},
  };
  enum { COUNT = sizeof lines / sizeof lines[0], LINE_BYTES = 48 };
  struct text text = {host ? malloc(COUNT * LINE_BYTES) : NULL, 0};

  for (int i = 0; text.data && i < COUNT; i++) {
    int colon = (int)(15 - strlen(lines[i].name));
    text.length += (size_t)snprintf(text.data + text.length, LINE_BYTES, "%s:%*s%8" PRIu64 " kB\n", lines[i].name,
                                    colon, "", lines[i].value);
  }
  return text;
}

/* The machine's, without the lines of processors that the sandbox has not. */
static struct text
make_stat(void)
{
  struct text text = {read_source(views[STAT].source), 0};

  if (!text.data)
    return text;
  char *to = text.data;
  for (char *line = text.data, *end; *line; line = end) {
    end = line + strcspn(line, "\n");
    end += *end == '\n';
    if (strncmp(line, "cpu", 3) == 0 && line[3] != ' ' && strtoull(line + 3, NULL, 10) >= processors)
      continue;
    memmove(to, line, (size_t)(end - line));
    to += end - line;
  }
  text.length = (size_t)(to - text.data);
  return text;
}

static struct text
make_cpuinfo(void)
{
  struct text text = {read_source(views[CPUINFO].source), 0};
  const char *end = text.data;

  for (uint64_t i = 0; end && i < processors; i++) {
    const char *next = strstr(end, "\n\n");
    end = next ? next + 2 : end + strlen(end);
  }
  text.length = end ? (size_t)(end - text.data) : 0;
  return text;
}

/* ---- leases --------------------------------------------------------------------------------------------------- */

static void
write_view(struct view *view)
{
  struct text text = view->make();

  if (text.data && pwrite(view->fd, text.data, text.length, 0) == (ssize_t)text.length)
    (void)!ftruncate(view->fd, (off_t)text.length); /* it is shorter by a few bytes at most */
  free(text.data);
}

static void
try_lease(struct view *view)
{
  view->leased = fcntl(view->fd, F_SETLEASE, F_WRLCK) == 0;
  view->wait = view->leased || !view->wait ? SOONEST_NS : lower(view->wait * 2, LATEST_NS);
  view->next_at = loop_now() + view->wait;
}

static void
serve_view(struct view *view)
{
  if (view->leased && fcntl(view->fd, F_GETLEASE) != F_WRLCK) { /* somebody waits */
    write_view(view);
    fcntl(view->fd, F_SETLEASE, F_UNLCK);
    view->leased = false;
    view->wait = SOONEST_NS;
    view->next_at = loop_now() + view->wait;
  } else if (!view->leased && loop_now() >= view->next_at) {
    try_lease(view);
    if (!view->leased)
      write_view(view);
  }
}

void
guest_view_start(void)
{
  started = true;
  for (int i = 0; i < VIEWS; i++) {
    if (views[i].fd < 0 || views[i].leased)
      continue;
    try_lease(&views[i]);
    if (!views[i].leased)
      write_view(&views[i]); /* a fork has it open */
  }
}

void
guest_view_serve(void)
{
  for (int i = 0; started && i < VIEWS; i++)
    if (views[i].fd >= 0)
      serve_view(&views[i]);
}

int
guest_view_timeout(void)
{
  uint64_t now = 0, soonest = UINT64_MAX;

  for (int i = 0; started && i < VIEWS; i++)
    if (views[i].fd >= 0 && !views[i].leased)
      soonest = lower(soonest, views[i].next_at);
  if (soonest == UINT64_MAX)
    return -1;
  now = loop_now();
  return now >= soonest ? 0 : (int)((soonest - now) / 1000000u) + 1;
}

/* ---- mounts --------------------------------------------------------------------------------------------------- */

static int
make_file(const char *name, struct err *err)
{
  cleanup_fd int fd = openat(place, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0444);

  /* The umask of core is 0. */
  return fd < 0 ? err_step(err, STEP, "make %s: %s", name, strerror(errno)) : 0;
}

static int
cover(int root, const char *from, const char *to, struct err *err)
{
  cleanup_fd int mount = tree_clone(place, from, STEP, err);

  if (mount < 0 || tree_set_read_only(mount, STEP, err) < 0)
    return -1;
  return tree_attach(mount, root, to, STEP, err);
}

/* Its source is opened as long as it is to be seen. */
static int
cover_view(struct view *view, int root, struct err *err)
{
  char path[32];

  snprintf(path, sizeof path, "p/%s", view->name);
  view->source = openat(root, path, O_RDONLY | O_CLOEXEC);
  if (view->source < 0)
    return err_step(err, STEP, "open %s: %s", view->name, strerror(errno));
  if (make_file(view->name, err) < 0 || cover(root, view->name, path, err) < 0)
    return -1;
  view->fd = openat(place, view->name, O_RDWR | O_CLOEXEC);
  return view->fd < 0 ? err_step(err, STEP, "open %s: %s", view->name, strerror(errno)) : 0;
}

int
guest_view_prepare(int root, int memory, struct err *err)
{
  struct tmpfs_options options = {.bytes = 4 << 20, .inodes = 64, .mode = "0755"};

  if (fault_here(STEP, err) < 0)
    return -1;
  memory_group = memory;
  cleanup_fd int mount = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, STEP, err);
  if (mount < 0 || tree_attach(mount, root, PLACE, STEP, err) < 0)
    return -1;
  place = openat(root, PLACE, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (place < 0)
    return err_step(err, STEP, "open %s: %s", PLACE, strerror(errno));
  if (cover_view(&views[MEMINFO], root, err) < 0)
    return -1;
  try_lease(&views[MEMINFO]);
  return 0;
}

/* A root that has no place for it does without. */
static int
show_cgroup(const struct plan *plan, int root, struct err *err)
{
  char path[LIMIT_VIEW_PATH_MAX];
  /* Of a fork, the guest may have put a link in its place. */
  cleanup_fd int target =
      sys_openat2(root, CGROUP_PLACE, O_PATH | O_DIRECTORY, 0, RESOLVE_AS_NAMED | RESOLVE_BENEATH);

  if (target < 0)
    return 0;
  limit_view_path(plan, path);
  cleanup_fd int mount = tree_clone(AT_FDCWD, path, STEP, err);
  return mount < 0 ? -1 : tree_attach(mount, target, "", STEP, err);
}

int
guest_view_show(const struct plan *plan, int root, struct err *err)
{
  if (fault_here(STEP, err) < 0)
    return -1;
  memory_limit = plan->memory;
  watched = plan->watch != 0;
  processors = (plan->quota + CGROUP_PERIOD_US - 1) / CGROUP_PERIOD_US;
  /* Init may have to open for a fork what that had open, and would wait for itself. */
  if (plan->snapshot && views[MEMINFO].leased) {
    fcntl(views[MEMINFO].fd, F_SETLEASE, F_UNLCK);
    views[MEMINFO].leased = false;
    views[MEMINFO].wait = 0;
  }
  int result = show_cgroup(plan, root, err);
  if (result == 0 && plan->quota) {
    cleanup_fd int old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    result = old < 0 ? err_step(err, STEP, "open /: %s", strerror(errno)) : 0;
    for (int i = STAT; result == 0 && i < VIEWS; i++)
      result = cover_view(&views[i], old, err);
  }
  close_fd(&place);
  return result;
}
