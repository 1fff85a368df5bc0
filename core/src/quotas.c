/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "quotas.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"

/* Quarters. */
#define ALL 3
#define ONE 1

static const struct {
  const char *host, *own; /* below /proc */
} counts[] = {
    {"sys/fs/inotify/max_user_instances", "sys/user/max_inotify_instances"},
    {"sys/fs/inotify/max_user_watches", "sys/user/max_inotify_watches"},
};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static unsigned long whole[COUNTS]; /* what the user outside has; 0: a kernel without inotify */

static int
learn(int proc, int i, enum ramet_step step, struct err *err)
{
  char text[24];
  cleanup_fd int file = openat(proc, counts[i].host, O_RDONLY | O_CLOEXEC);

  if (file < 0 && errno == ENOENT)
    return 0;
  ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (length < 0)
    return err_step(err, step, "read %s: %s", counts[i].host, strerror(errno));
  text[length] = 0;
  whole[i] = strtoul(text, NULL, 10);
  return 0;
}

static int
bound(int proc, int i, unsigned quarters, enum ramet_step step, struct err *err)
{
  char text[24];
  unsigned long share = whole[i] / 4 * quarters;

  if (!whole[i])
    return 0;
  cleanup_fd int own = openat(proc, counts[i].own, O_WRONLY | O_CLOEXEC);
  int length = snprintf(text, sizeof text, "%lu", share ? share : 1);
  if (own < 0 || write(own, text, (size_t)length) != length)
    return err_step(err, step, "%s: %s", counts[i].own, strerror(errno));
  return 0;
}

int
quotas_bound_all(int proc, enum ramet_step step, struct err *err)
{
  for (int i = 0; i < COUNTS; i++)
    if (learn(proc, i, step, err) < 0 || bound(proc, i, ALL, step, err) < 0)
      return -1;
  return 0;
}

int
quotas_bound_one(int proc, enum ramet_step step, struct err *err)
{
  for (int i = 0; i < COUNTS; i++)
    if (bound(proc, i, ONE, step, err) < 0)
      return -1;
  return 0;
}

void
quotas_lower(void)
{
  static const int resources[] = {RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE};

  for (size_t i = 0; i < sizeof resources / sizeof resources[0]; i++) {
    struct rlimit limit;
    if (getrlimit(resources[i], &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      limit.rlim_cur = limit.rlim_cur / 4 * ALL;
      setrlimit(resources[i], &limit);
    }
  }
}
