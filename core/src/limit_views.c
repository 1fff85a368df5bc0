/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "limit_views.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cgroups.h"
#include "corefs.h"

#define STEP RAMET_STEP_INIT_VIEW
/* So many are kept that no sandbox has: most have the same limits as those before them. */
#define UNUSED_MAX 16

struct limits {
  uint64_t memory, processes, quota;
};

struct limit_view {
  struct limit_view *next; /* the one used last comes first */
  struct limits limits;
  int holders;
};

static int directory = -1;
static struct limit_view *all;

void
limit_views_setup(int taken)
{
  directory = taken;
}

static struct limits
limits_of(const struct plan *plan)
{
  return (struct limits){plan->memory, plan->processes, plan->quota};
}

static void
name_of(const struct limits *limits, char name[64])
{
  snprintf(name, 64, "%" PRIx64 "-%" PRIx64 "-%" PRIx64, limits->memory, limits->processes, limits->quota);
}

void
limit_view_path(const struct plan *plan, char path[LIMIT_VIEW_PATH_MAX])
{
  const struct limits limits = limits_of(plan);
  char name[64];

  name_of(&limits, name);
  snprintf(path, LIMIT_VIEW_PATH_MAX, COREFS_LIMIT_VIEWS "/%s", name);
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

/* LONG_MAX in whole pages, which is how version 1 writes that there is no limit. */
#define V1_UNLIMITED "9223372036854771712"

/* As programs look for them in both versions. */
static const char *const directories[] = {"memory", "cpu", "pids"};
static const char *const files[] = {
    "memory.max",
    "memory/memory.limit_in_bytes",
    "pids.max",
    "pids/pids.max",
    "cpu.max",
    "cpu/cpu.cfs_quota_us",
    "cpu/cpu.cfs_period_us",
    /* libuv takes the lower one of the limit and this, and a file that is missing for 0. */
    "memory.high",
    "memory/memory.soft_limit_in_bytes",
    "memory.swap.max",
    "memory/memory.memsw.limit_in_bytes",
    "cgroup.controllers", /* by which programs tell version 2; libuv looks for it before it reads cpu.max */
};
enum {
  FILES = sizeof files / sizeof files[0],
  DIRECTORIES = sizeof directories / sizeof directories[0],
  TEXT_MAX = 48
};

static void
bound_text(char text[TEXT_MAX], uint64_t bound, const char *none, const char *more)
{
  if (bound)
    snprintf(text, TEXT_MAX, "%" PRIu64 "%s\n", bound, more);
  else
    snprintf(text, TEXT_MAX, "%s%s\n", none, more);
}

static void
make_texts(const struct limits *limits, char texts[FILES][TEXT_MAX])
{
  char period[16];

  snprintf(period, sizeof period, " %d", CGROUP_PERIOD_US);
  bound_text(texts[0], limits->memory, "max", "");
  bound_text(texts[1], limits->memory, V1_UNLIMITED, "");
  bound_text(texts[2], limits->processes, "max", "");
  bound_text(texts[3], limits->processes, "max", "");
  bound_text(texts[4], limits->quota, "max", period);
  bound_text(texts[5], limits->quota, "-1", "");
  bound_text(texts[6], CGROUP_PERIOD_US, "", "");
  bound_text(texts[7], 0, "max", "");
  bound_text(texts[8], 0, V1_UNLIMITED, "");
  bound_text(texts[9], 0, limits->memory ? "0" : "max", "");
  bound_text(texts[10], limits->memory, V1_UNLIMITED, "");
  bound_text(texts[11], 0, "cpu memory pids", "");
}

static int
make_file(int dir, const char *name, const char *text, struct err *err)
{
  /* The umask of core is 0. */
  cleanup_fd int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
  size_t length = strlen(text);

  if (fd < 0 || write(fd, text, length) != (ssize_t)length)
    return err_step(err, STEP, "make %s: %s", name, strerror(errno));
  return 0;
}

static int
fill(int dir, const struct limits *limits, struct err *err)
{
  char texts[FILES][TEXT_MAX];

  for (int i = 0; i < DIRECTORIES; i++)
    if (mkdirat(dir, directories[i], 0755) < 0)
      return err_step(err, STEP, "make %s: %s", directories[i], strerror(errno));
  make_texts(limits, texts);
  for (int i = 0; i < FILES; i++)
    if (make_file(dir, files[i], texts[i], err) < 0)
      return -1;
  return 0;
}

static void
take_away(const struct limits *limits)
{
  char name[64];

  name_of(limits, name);
  cleanup_fd int dir = openat(directory, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < FILES && dir >= 0; i++)
    unlinkat(dir, files[i], 0);
  for (int i = 0; i < DIRECTORIES && dir >= 0; i++)
    unlinkat(dir, directories[i], AT_REMOVEDIR);
  unlinkat(directory, name, AT_REMOVEDIR);
}

static int
make(const struct limits *limits, struct err *err)
{
  char name[64];

  name_of(limits, name);
  if (mkdirat(directory, name, 0755) < 0)
    return err_step(err, STEP, "make a directory for limits: %s", strerror(errno));
  cleanup_fd int dir = openat(directory, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
  int result =
      dir < 0 ? err_step(err, STEP, "open a directory for limits: %s", strerror(errno)) : fill(dir, limits, err);
  if (result < 0)
    take_away(limits);
  return result;
}

/* ---- who has them --------------------------------------------------------------------------------------------- */

static struct limit_view *
find(const struct limits *limits)
{
  for (struct limit_view **at = &all; *at; at = &(*at)->next)
    if (memcmp(&(*at)->limits, limits, sizeof *limits) == 0) {
      struct limit_view *found = *at;
      *at = found->next;
      found->next = all;
      return all = found;
    }
  return NULL;
}

struct limit_view *
limit_view_hold(const struct plan *plan, struct err *err)
{
  const struct limits limits = limits_of(plan);
  struct limit_view *view = find(&limits);

  if (!view) {
    view = malloc(sizeof *view);
    if (!view || make(&limits, err) < 0) {
      free(view);
      if (!view)
        err_code(err, "internal", "no memory for the files of limits");
      return NULL;
    }
    *view = (struct limit_view){all, limits, 0};
    all = view;
  }
  view->holders++;
  return view;
}

void
limit_view_release(struct limit_view *view)
{
  int unused = 0;

  if (!view || --view->holders > 0)
    return;
  for (struct limit_view **at = &all; *at;) {
    struct limit_view *one = *at;
    if (one->holders > 0 || ++unused <= UNUSED_MAX) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    take_away(&one->limits);
    free(one);
  }
}
