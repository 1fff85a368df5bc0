/* SPDX-License-Identifier: Apache-2.0
 * Snapshots in a core that cannot watch anything more: the loop was never set up, so loop_add() fails. */
#define _GNU_SOURCE
#include "snapshot_parts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "image_writer.h"
#include "tap.h"

static int
file_of(const void *data, size_t length)
{
  int fd = memfd_create("test", MFD_CLOEXEC);

  NEED(fd >= 0 && write(fd, data, length) == (ssize_t)length);
  return fd;
}

static struct snapshot *
stored(void)
{
  static const uint8_t pages[SMALL_PAGES];
  cleanup_writer struct writer writer = {0};
  struct small_image small;
  struct err err;
  struct snapshot *s = snapshot_alloc(1, 0, &err);

  small_image_init(&small);
  small_image_put(&small, &writer);
  NEED(s);
  s->description = file_of(writer.data, writer.length);
  s->pages = file_of(pages, sizeof pages);
  NEED(snapshot_map_description(s, &err) == 0);
  s->state = SNAPSHOT_READY;
  return s;
}

static bool
has_children(void)
{
  while (waitpid(-1, NULL, 0) > 0)
    continue;
  return errno != ECHILD;
}

static void
a_stem_that_cannot_be_watched_is_ended_and_the_next_fork_makes_another(void)
{
  struct snapshot *s = stored();
  int before = tap_open_descriptors();

  for (int i = 0; i < 2; i++) {
    struct err err = {0};
    CHECK(snapshot_build_stem(s, &err) < 0);
    CHECK(err.step == RAMET_STEP_STEM_FORK && err.number == EBADF);
    CHECK(s->state == SNAPSHOT_READY && s->stem == -1 && s->stem_pid == 0);
    CHECK(!has_children());
  }
  CHECK(tap_open_descriptors() == before);
  snapshot_retire(s);
}

static void
an_exporter_that_cannot_be_watched_is_never_started(void)
{
  struct snapshot *s = stored();

  s->in_stem = true;
  s->stem = dup(2);
  int before = tap_open_descriptors();
  for (int i = 0; i < 2; i++) {
    struct err err = {0};
    CHECK(snapshot_export(1, 7, &err) < 0);
    CHECK(err.step == RAMET_STEP_EXPORT && err.number == EBADF);
    CHECK(s->tracer == -1 && s->tracer_pid == 0 && !s->exporting && !s->export_request);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
  }
  CHECK(tap_open_descriptors() == before);
  snapshot_retire(s);
}

static void
a_page_file_in_memory_counts_until_it_is_gone(void)
{
  struct snapshot *s = stored();

  CHECK(snapshot_memory_used() == SMALL_PAGES);
  snapshot_retire(s);
  CHECK(snapshot_memory_used() == 0);
}

int
main(void)
{
  RUN(a_stem_that_cannot_be_watched_is_ended_and_the_next_fork_makes_another);
  RUN(an_exporter_that_cannot_be_watched_is_never_started);
  RUN(a_page_file_in_memory_counts_until_it_is_gone);
  return tap_end();
}
