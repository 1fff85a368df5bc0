/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "swap.h"

#include <stdlib.h>
#include <string.h>

#include "asked.h"
#include "files.h"
#include "sandbox.h"
#include "snapshot.h"
#include "started.h"

struct swapped {
  uint64_t number;
  struct span record;
  struct sandbox *sandbox;
};

/* SANDBOX, RECORD, SANDBOX, RECORD: the record is what the sandbox has afterwards. */
static int
decode(const struct frame *frame, struct swapped out[2], struct err *err)
{
  static const uint16_t order[] = {RAMET_TAG_SANDBOX, RAMET_TAG_RECORD, RAMET_TAG_SANDBOX, RAMET_TAG_RECORD};
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more, count = 0;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    struct swapped *one = &out[count / 2 % 2];
    if (count == 4 || tag != order[count] || (count % 2 == 0 && span_u64(value, &one->number) < 0))
      return err_field(err, "payload", "tag %u does not belong here", tag);
    if (count++ % 2 == 1)
      one->record = value;
  }
  if (more < 0)
    return -1;
  if (count != 4 || out[0].number == out[1].number || frame->fd_count)
    return err_field(err, "payload", "two sandboxes change numbers, each with a record");
  return 0;
}

/* Nothing that was begun under one number may be answered under another. */
static int
check(struct swapped *one, struct err *err)
{
  one->sandbox = sandbox_find(one->number);
  if (!one->sandbox || one->sandbox->state != SANDBOX_STANDING || one->sandbox->overdue || one->sandbox->offer)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands");
  if (snapshot_capturing(one->number))
    return err_code(err, "capturing", "a snapshot of this sandbox is being taken");
  return 0;
}

int
sandbox_swap(const struct frame *frame, struct err *err)
{
  struct swapped two[2] = {{0}};

  if (decode(frame, two, err) < 0 || check(&two[0], err) < 0 || check(&two[1], err) < 0)
    return -1;
  cleanup_free uint8_t *before = two[0].sandbox->record;
  uint32_t length = two[0].sandbox->record_length;
  two[0].sandbox->record = NULL;
  if (sandbox_keep_record(two[0].sandbox, two[0].record, err) < 0 ||
      sandbox_keep_record(two[1].sandbox, two[1].record, err) < 0) {
    free(two[0].sandbox->record);
    two[0].sandbox->record = before;
    two[0].sandbox->record_length = length;
    before = NULL;
    return -1;
  }
  const uint64_t pair[2] = {two[0].number, two[1].number};
  two[0].sandbox->id = pair[1];
  two[1].sandbox->id = pair[0];
  started_swap(pair);
  files_swap(pair);
  asked_swap(pair);
  snapshot_swap(pair);
  return 0;
}
