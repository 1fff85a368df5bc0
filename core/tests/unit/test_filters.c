/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "filters.h"

#include "tap.h"

static struct err last;

static int
define(struct writer *writer)
{
  struct frame frame = {.payload = {writer->data, (uint32_t)writer->length}};

  memset(&last, 0, sizeof last);
  int result = filter_define(&frame, &last);
  writer_free(writer);
  return result;
}

static int
define_bytes(uint32_t id, size_t length)
{
  static const uint8_t program[RAMET_FILTER_BYTES_MAX + 8];
  struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_FILTER, id);
  put_bytes(&writer, RAMET_TAG_BYTES, program, length);
  return define(&writer);
}

static void
a_defined_filter_is_found_by_its_number_alone(void)
{
  struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_FILTER, 4);
  put_bytes(&writer, RAMET_TAG_BYTES, "abcdefgh", 8);
  CHECK(define(&writer) == 0);
  CHECK(filter_find(4).length == 8 && memcmp(filter_find(4).data, "abcdefgh", 8) == 0);
  CHECK(filter_find(5).length == 0 && filter_find(0).length == 0);
}

static void
a_number_is_given_once(void)
{
  CHECK(define_bytes(10, 8) == 0);
  CHECK(define_bytes(10, 16) < 0);
  CHECK_TEXT(last.field, "filter");
  CHECK(filter_find(10).length == 8);
}

static void
a_program_is_whole_instructions_up_to_the_limit(void)
{
  CHECK(define_bytes(20, RAMET_FILTER_BYTES_MAX) == 0);
  CHECK(define_bytes(21, RAMET_FILTER_BYTES_MAX + 8) < 0);
  CHECK_TEXT(last.field, "bytes");
  CHECK(define_bytes(21, 0) < 0);
  CHECK(define_bytes(21, 7) < 0);
  CHECK(filter_find(21).length == 0);
}

static void
a_filter_needs_a_number(void)
{
  struct writer writer = {0}, wide = {0};

  CHECK(define_bytes(0, 8) < 0);
  put_bytes(&writer, RAMET_TAG_BYTES, "abcdefgh", 8);
  CHECK(define(&writer) < 0);
  CHECK_TEXT(last.field, "filter");
  put_u64(&wide, RAMET_TAG_FILTER, 30);
  put_bytes(&wide, RAMET_TAG_BYTES, "abcdefgh", 8);
  CHECK(define(&wide) < 0);
  CHECK_TEXT(last.field, "filter");
}

static void
other_tags_are_refused(void)
{
  struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_FILTER, 40);
  put_bytes(&writer, RAMET_TAG_BYTES, "abcdefgh", 8);
  put_u32(&writer, RAMET_TAG_ROOT, 1);
  CHECK(define(&writer) < 0);
  CHECK(filter_find(40).length == 0);
}

int
main(void)
{
  RUN(a_defined_filter_is_found_by_its_number_alone);
  RUN(a_number_is_given_once);
  RUN(a_program_is_whole_instructions_up_to_the_limit);
  RUN(a_filter_needs_a_number);
  RUN(other_tags_are_refused);
  return tap_end();
}
