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
  const char *host, *own;
} counts[] = {
    {"/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances"},
    {"/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches"},
};

static int
bound(const char *host_path, const char *own_path, unsigned quarters)
{
  char text[24];
  cleanup_fd int host = open(host_path, O_RDONLY | O_CLOEXEC);
  cleanup_fd int own = open(own_path, O_WRONLY | O_CLOEXEC);

  if (host < 0 || (own < 0 && errno == ENOENT)) /* a kernel without inotify */
    return 0;
  ssize_t length = read(host, text, sizeof text - 1);
  text[length > 0 ? length : 0] = 0;
  unsigned long share = strtoul(text, NULL, 10) / 4 * quarters;
  length = snprintf(text, sizeof text, "%lu", share ? share : 1);
  return own < 0 || write(own, text, (size_t)length) != length ? -1 : 0;
}

static int
bound_each(unsigned quarters, enum ramet_step step, struct err *err)
{
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
    if (bound(counts[i].host, counts[i].own, quarters) < 0)
      return err_step(err, step, "%s: %s", counts[i].own, strerror(errno));
  return 0;
}

int
quotas_bound_all(enum ramet_step step, struct err *err)
{
  return bound_each(ALL, step, err);
}

int
quotas_bound_one(enum ramet_step step, struct err *err)
{
  return bound_each(ONE, step, err);
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
