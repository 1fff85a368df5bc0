/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "image.h"

#include "image_writer.h"
#include "tap.h"

static struct err last;

/* Whether it is taken; it is freed again. */
static bool
taken(const struct small_image *small)
{
  struct writer writer = {0};
  struct image image;

  memset(&last, 0, sizeof last);
  small_image_put(small, &writer);
  int result = image_decode((struct span){writer.data, (uint32_t)writer.length}, SMALL_PAGES, &image, &last);
  if (result == 0)
    image_free(&image);
  writer_free(&writer);
  return result == 0;
}

#define WITH(change)                                                                                               \
  __extension__({                                                                                                  \
    struct small_image small;                                                                                      \
    small_image_init(&small);                                                                                      \
    small.change;                                                                                                  \
    taken(&small);                                                                                                 \
  })

static void
what_was_written_is_read(void)
{
  struct small_image small;
  struct writer writer = {0};
  struct image image;

  small_image_init(&small);
  small_image_put(&small, &writer);
  NEED(image_decode((struct span){writer.data, (uint32_t)writer.length}, SMALL_PAGES, &image, &last) == 0);
  const struct process_image *process = &image.processes[0];
  CHECK(image.process_count == 1 && process->thread_count == 1 && process->mapping_count == 2);
  CHECK(process->threads[0].tid == 2 && process->mappings[1].backing == IMAGE_SHARED);
  CHECK(process->first_run[0] == 0 && process->first_run[1] == 1 && process->first_run[2] == 1);
  CHECK(process->runs[0].address == 0x11000 && process->cwd.length == 1);
  CHECK(image.terminal_count == 1 && image_terminal(&image, 3) == image.terminals && !image_terminal(&image, 0));
  CHECK(image.description_count == 4 && image.first_extent[0] == 0 && image.first_extent[1] == 1);
  CHECK(process->timer_count == 1 && process->timers[0].thread == 2 && process->scheduling_count == 1);
  CHECK(image.extents[0].offset == 0x1000 && image.first_epoll[1] == 0);
  CHECK(image.command_count == 1 && image_command(&image, 7) == 0 && image_command(&image, 8) < 0);
  CHECK(image.commands[0].begin[0] == 5 && image.command_records[0].length == 0);
  image_free(&image);
  writer_free(&writer);
}

static void
an_image_of_another_version_is_refused_by_its_number(void)
{
  CHECK(!WITH(header.version = IMAGE_VERSION + 1));
  CHECK_TEXT(last.code, "image_version");
  CHECK(!WITH(header.version = 0));
  CHECK(!WITH(header.page = 8192));
}

static void
commands_that_nobody_could_have_started_are_refused(void)
{
  CHECK(!WITH(command.number = 0));
  CHECK(!WITH(command.pid = 1));
  CHECK(!WITH(command.log_bytes = (uint64_t)RAMET_LOG_BYTES_MAX + 1));
}

static void
counts_that_do_not_hold_are_refused(void)
{
  CHECK(!WITH(header.process_count = 2));
  CHECK(!WITH(header.process_count = 0));
  CHECK(!WITH(header.zombie_count = 2));
  CHECK(!WITH(process.thread_count = 2));
  CHECK(!WITH(process.relations.pid = 1));
  CHECK(!WITH(process.relations.parent = 0));
  CHECK(!WITH(process.relations.session = 0));
  CHECK(!WITH(process.relations.exit_signal = 65));
  CHECK(!WITH(process.death_signal = 65));
  CHECK(!WITH(zombie.relations.group = 0));
  CHECK(!WITH(zombie.status = 0x7f));
  CHECK(!WITH(thread.tid = 3));
  CHECK(!WITH(thread.xstate_length = 575));
}

static void
locks_of_nothing_are_refused(void)
{
  CHECK(!WITH(lock.description = 77));
  CHECK(!WITH(lock.kind = IMAGE_LOCK_OF_PROCESS));
  CHECK(!WITH(lock.kind = 4));
  CHECK(!WITH(lock.exclusive = 2));
  CHECK(!WITH(process_lock.kind = IMAGE_LOCK_OF_FILE));
  CHECK(!WITH(process_lock.start = (uint64_t)1 << 63));
  CHECK(!WITH(process_lock.length = (uint64_t)INT64_MAX + 1));
}

static void
terminals_that_nobody_can_take_or_that_hold_too_much_are_refused(void)
{
  CHECK(!WITH(terminal.index = 4));
  CHECK(!WITH(terminal.index = IMAGE_TERMINALS_MAX));
  CHECK(!WITH(terminal.mode = 04600));
  CHECK(!WITH(terminal.session = -1));
  CHECK(!WITH(terminal.input_length = IMAGE_TERMINAL_BYTES + 1));
  CHECK(!WITH(terminal.output_length = UINT64_MAX));
  CHECK(!WITH(terminal.offset = SMALL_PAGES - 11));
  CHECK(WITH(terminal.offset = SMALL_PAGES - 12));
  CHECK(!WITH(control.value[0] = 2));
  CHECK(!WITH(control.value[1] = IMAGE_MASTER));
  CHECK(!WITH(control.value[1] = IMAGE_HUNG_UP + 1));
  CHECK(!WITH(control.id = 77));
}

static void
pages_outside_their_mapping_or_their_file_are_refused(void)
{
  CHECK(WITH(run.offset = 3 * IMAGE_PAGE));
  CHECK(!WITH(run.offset = 4 * IMAGE_PAGE));
  CHECK(!WITH(run.offset = 100));
  CHECK(!WITH(run.address = 0x14000));
  CHECK(!WITH(run.address = 0xf000));
  CHECK(!WITH(run.length = 0));
  CHECK(!WITH(run.length = UINT64_MAX - IMAGE_PAGE + 1));
  CHECK(WITH(run.offset = IMAGE_GUARD));
  CHECK(!WITH(run.offset = IMAGE_INHERITED));
}

static void
mappings_that_overlap_or_are_no_pages_are_refused(void)
{
  CHECK(!WITH(shared.start = 0x13000));
  CHECK(!WITH(mapping.end = 0x10000));
  CHECK(!WITH(mapping.start = 0x10001));
  CHECK(!WITH(mapping.backing = IMAGE_SPECIAL + 1));
  CHECK(!WITH(mapping.backing = IMAGE_FILE)); /* without a path */
}

static void
shared_memory_needs_an_object_that_is_there(void)
{
  CHECK(!WITH(shared.description = 0));
  CHECK(!WITH(shared.description = 7));
  CHECK(!WITH(mapping.description = IMAGE_OBJECT_IDS + 1));
  CHECK(!WITH(description.kind = IMAGE_EVENTFD));
}

static void
bytes_outside_their_file_or_the_page_file_are_refused(void)
{
  CHECK(WITH(extent.length = 0x1000));
  CHECK(!WITH(extent.length = 0x1001));
  CHECK(!WITH(extent.length = 0));
  CHECK(!WITH(extent.offset = 0x2000));
  CHECK(!WITH(extent.offset = UINT64_MAX));
  CHECK(!WITH(extent.page_offset = SMALL_PAGES));
}

static void
descriptors_of_no_open_file_are_refused(void)
{
  CHECK(!WITH(fd.description = 9));
  CHECK(!WITH(fd.number = -1));
  CHECK(!WITH(description.kind = 0));
}

static void
pairs_with_one_end_are_refused(void)
{
  CHECK(WITH(ends[0].peer = small.ends[1].peer = 0)); /* both are closed at the other end */
  CHECK(!WITH(ends[0].peer = 0));
  CHECK(!WITH(ends[0].peer = 1));
  CHECK(!WITH(ends[0].peer = 99));
  CHECK(!WITH(ends[1].kind = IMAGE_EVENTFD));
}

static void
timers_that_cannot_be_are_refused(void)
{
  CHECK(!WITH(timer.id = -1));
  CHECK(!WITH(timer.thread = 3));
  CHECK(!WITH(timer.signal = 65));
  CHECK(!WITH(timer.notify = 5));
  CHECK(!WITH(timer.left[1] = 1000000000));
  CHECK(!WITH(timer.interval[1] = UINT64_MAX));
}

static void
scheduling_of_no_thread_is_refused(void)
{
  CHECK(!WITH(scheduling.thread = 1));
  CHECK(!WITH(scheduling.nice = 20));
}

static void
an_image_that_is_cut_short_is_refused_wherever_it_ends(void)
{
  struct small_image small;
  struct writer writer = {0};
  struct image image;

  small_image_init(&small);
  small_image_put(&small, &writer);
  for (uint32_t length = 0; length + sizeof small.shared <= writer.length; length++)
    if (image_decode((struct span){writer.data, length}, SMALL_PAGES, &image, &last) == 0) {
      /* Whole but for its last mapping. */
      CHECK(image.processes[0].mapping_count == 1);
      image_free(&image);
    }
  writer_free(&writer);
}

static const char *seed_path;

static void
the_fuzzers_seed_is_an_image_of_this_version(void)
{
  uint8_t seed[8192];
  struct image image;
  FILE *file = fopen(seed_path, "rb");

  NEED(file);
  size_t length = fread(seed, 1, sizeof seed, file);
  fclose(file);
  NEED(image_decode((struct span){seed, (uint32_t)length}, SMALL_PAGES, &image, &last) == 0);
  image_free(&image);
}

int
main(int argc, char **argv)
{
  NEED(argc == 2);
  seed_path = argv[1];
  RUN(the_fuzzers_seed_is_an_image_of_this_version);
  RUN(what_was_written_is_read);
  RUN(an_image_of_another_version_is_refused_by_its_number);
  RUN(commands_that_nobody_could_have_started_are_refused);
  RUN(counts_that_do_not_hold_are_refused);
  RUN(pairs_with_one_end_are_refused);
  RUN(timers_that_cannot_be_are_refused);
  RUN(scheduling_of_no_thread_is_refused);
  RUN(locks_of_nothing_are_refused);
  RUN(terminals_that_nobody_can_take_or_that_hold_too_much_are_refused);
  RUN(pages_outside_their_mapping_or_their_file_are_refused);
  RUN(mappings_that_overlap_or_are_no_pages_are_refused);
  RUN(shared_memory_needs_an_object_that_is_there);
  RUN(bytes_outside_their_file_or_the_page_file_are_refused);
  RUN(descriptors_of_no_open_file_are_refused);
  RUN(an_image_that_is_cut_short_is_refused_wherever_it_ends);
  return tap_end();
}
