/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "pressure.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kept.h"
#include "loop.h"
#include "snapshot.h"

/* The kernel takes 20 us to count; a burst of requests may share a look. */
#define LOOK_NS 20000000u
#define SMALLEST_RESERVE (32u << 20)
#define RESERVE_SHARE 33 /* 3 % */
/* Of the reserve: below this, spares and stems go. */
#define HIGH_FACTOR 2

static int meminfo = -1;
static uint64_t reserve, available, looked_at;

static uint64_t
kibibytes(const char *text, const char *name)
{
  const char *at = strstr(text, name);

  return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

/* What cannot be read does not refuse anybody: the limits of each sandbox hold all the same. */
static void
look(void)
{
  char text[2048];
  uint64_t now = loop_now();

  if (looked_at && now - looked_at < LOOK_NS)
    return;
  looked_at = now;
  ssize_t length = pread(meminfo, text, sizeof text - 1, 0);
  text[length > 0 ? length : 0] = 0;
  available = length > 0 ? kibibytes(text, "MemAvailable:") : UINT64_MAX;
  uint64_t share = kibibytes(text, "MemTotal:") / RESERVE_SHARE;
  if (!reserve)
    reserve = share > SMALLEST_RESERVE ? share : SMALLEST_RESERVE;
}

void
pressure_setup(uint64_t bytes)
{
  reserve = bytes;
  meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
}

bool
pressure_is_high(void)
{
  look();
  return available / HIGH_FACTOR < reserve;
}

int
pressure_admit(struct err *err)
{
  if (!pressure_is_high())
    return 0;
  kept_forget_all();
  snapshot_memory_shrink();
  if (available >= reserve)
    return 0;
  return err_code(err, "no_memory",
                  "the machine has %" PRIu64 " MiB of memory left, of which %" PRIu64 " are not for sandboxes",
                  available >> 20, reserve >> 20);
}
