/* SPDX-License-Identifier: Apache-2.0
 * With the listing of threads in the hands of the test: what the kernel does to it under load cannot be had at will. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "procfs.h"

static int listing, listings, stopped;

static int
listed(int pid, int *out, int most)
{
  (void)most;
  listings++;
  if (listing < 0)
    errno = EAGAIN;
  else if (listing > 0)
    out[0] = pid;
  return listing;
}

static char *
read_as_ended(const char *path, size_t *length)
{
  (void)path;
  (void)length;
  return strdup("Name:\tx\nState:\tZ (zombie)\n");
}

static int
killed_nobody(int pid, int number)
{
  (void)pid;
  stopped += number == SIGSTOP;
  return 0;
}

#define procfs_threads listed
#define procfs_read read_as_ended
#define kill killed_nobody
#include "../../src/memory_watch.c"

#include "tap.h"

static void
what_cannot_be_listed_is_as_it_was(void)
{
  struct measure measure = {0};

  limit = 100 << 20;
  last = 70 << 20;
  listing = -1;
  CHECK(measure_tree(&measure, false) >= last);
  CHECK(measure.failed && listings > 0);
  free(measure.processes);
}

static void
all_stand_still_to_be_measured_again(void)
{
  int stopped_before;

  limit = 100 << 20;
  last = 70 << 20;
  next_at = 0;
  listing = -1;
  stopped = 0;
  CHECK(!memory_watch_look(&stopped_before));
  CHECK(stopped == 1 && last >= 70 << 20 && memory_watch_kills() == 0);
}

static void
who_has_ended_with_all_its_threads_has_no_memory(void)
{
  struct measure measure = {0};

  listing = 0;
  last = (uint64_t)1 << 60;
  CHECK(measure_tree(&measure, false) < last);
  CHECK(!measure.failed && measure.count == 0);
  free(measure.processes);
}

int
main(void)
{
  RUN(what_cannot_be_listed_is_as_it_was);
  RUN(all_stand_still_to_be_measured_again);
  RUN(who_has_ended_with_all_its_threads_has_no_memory);
  return tap_end();
}
