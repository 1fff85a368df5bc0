/* SPDX-License-Identifier: Apache-2.0
 * A small image that is right in everything; tests make one thing wrong. */
#ifndef RAMET_TESTS_IMAGE_WRITER_H
#define RAMET_TESTS_IMAGE_WRITER_H

#include <string.h>

#include "image.h"

#define SMALL_PAGES (4 * IMAGE_PAGE)

struct small_image {
  struct image_header header;
  struct image_process process;
  struct image_thread thread;
  struct image_mapping mapping, shared;
  struct image_run run;
  struct image_description description;
  struct image_extent extent;
  struct image_fd fd;
  struct image_description ends[2];
  struct image_timer timer;
  struct image_scheduling scheduling;
  struct image_zombie zombie;
  struct image_lock lock, process_lock;
  struct image_terminal terminal;
  struct image_description control;
  struct image_command command;
};

static inline void
small_image_init(struct small_image *small)
{
  memset(small, 0, sizeof *small);
  small->header =
      (struct image_header){.version = IMAGE_VERSION, .page = IMAGE_PAGE, .process_count = 1, .zombie_count = 1};
  small->process = (struct image_process){
      .relations = {.pid = 2, .parent = 1, .group = 2, .session = 2}, .thread_count = 1, .exe = "/usr/bin/true"};
  small->thread = (struct image_thread){.tid = 2, .xstate_length = 576, .name = "true"};
  small->mapping = (struct image_mapping){.start = 0x10000, .end = 0x14000, .backing = IMAGE_ANONYMOUS};
  small->run = (struct image_run){.address = 0x11000, .length = IMAGE_PAGE, .offset = IMAGE_PAGE};
  small->shared = (struct image_mapping){
      .start = 0x20000, .end = 0x22000, .backing = IMAGE_SHARED, .description = IMAGE_OBJECT_IDS + 1};
  small->description =
      (struct image_description){.id = IMAGE_OBJECT_IDS, .kind = IMAGE_UNLINKED, .value = {1, 0, 0x2000}};
  small->extent = (struct image_extent){.offset = 0x1000, .length = 100, .page_offset = 0};
  for (uint32_t i = 0; i < 2; i++)
    small->ends[i] = (struct image_description){.id = i, .kind = IMAGE_SOCKETPAIR, .peer = 2 - i};
  small->timer = (struct image_timer){.id = 1, .clock = 1, .notify = 4, .signal = 14, .thread = 2};
  small->scheduling = (struct image_scheduling){.processors = {1}};
  small->zombie = (struct image_zombie){.relations = {.pid = 3, .parent = 2, .group = 2, .session = 2}};
  small->lock = (struct image_lock){.kind = IMAGE_LOCK_WHOLE, .description = IMAGE_OBJECT_IDS};
  small->process_lock = (struct image_lock){.kind = IMAGE_LOCK_OF_PROCESS, .number = 3, .length = 1};
  small->terminal = (struct image_terminal){
      .index = 3, .session = 2, .foreground = 2, .mode = 0620, .input_length = 8, .output_length = 4};
  small->control =
      (struct image_description){.id = IMAGE_TERMINAL_IDS + 3, .kind = IMAGE_TERMINAL, .value = {3, IMAGE_SLAVE}};
  small->command = (struct image_command){.number = 7, .pid = 2, .log_bytes = 4096, .begin = {5, 0}};
  small->fd = (struct image_fd){.number = 3, .description = IMAGE_OBJECT_IDS};
}

static inline void
small_image_put(const struct small_image *small, struct writer *writer)
{
  struct {
    struct image_thread thread;
    uint8_t xstate[576];
  } thread = {.thread = small->thread};

  put_bytes(writer, IMAGE_TAG_HEADER, &small->header, sizeof small->header);
  put_bytes(writer, IMAGE_TAG_PROCESS, &small->process, sizeof small->process);
  put_bytes(writer, IMAGE_TAG_CWD, "/", 1);
  put_bytes(writer, IMAGE_TAG_THREAD, &thread, sizeof thread);
  put_bytes(writer, IMAGE_TAG_DESCRIPTION, &small->description, sizeof small->description);
  put_bytes(writer, IMAGE_TAG_EXTENT, &small->extent, sizeof small->extent);
  put_bytes(writer, IMAGE_TAG_DESCRIPTION, &small->ends[0], sizeof small->ends[0]);
  put_bytes(writer, IMAGE_TAG_DESCRIPTION, &small->ends[1], sizeof small->ends[1]);
  put_bytes(writer, IMAGE_TAG_TERMINAL, &small->terminal, sizeof small->terminal);
  put_bytes(writer, IMAGE_TAG_DESCRIPTION, &small->control, sizeof small->control);
  put_bytes(writer, IMAGE_TAG_COMMAND, &small->command, sizeof small->command);
  put_bytes(writer, IMAGE_TAG_TIMER, &small->timer, sizeof small->timer);
  put_bytes(writer, IMAGE_TAG_SCHEDULING, &small->scheduling, sizeof small->scheduling);
  put_bytes(writer, IMAGE_TAG_FD, &small->fd, sizeof small->fd);
  put_bytes(writer, IMAGE_TAG_LOCK, &small->lock, sizeof small->lock);
  put_bytes(writer, IMAGE_TAG_PROCESS_LOCK, &small->process_lock, sizeof small->process_lock);
  put_bytes(writer, IMAGE_TAG_MAPPING, &small->mapping, sizeof small->mapping);
  put_bytes(writer, IMAGE_TAG_RUN, &small->run, sizeof small->run);
  put_bytes(writer, IMAGE_TAG_MAPPING, &small->shared, sizeof small->shared);
  put_bytes(writer, IMAGE_TAG_ZOMBIE, &small->zombie, sizeof small->zombie);
}

#endif
