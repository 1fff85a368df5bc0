/* SPDX-License-Identifier: Apache-2.0 */
#include "filters.h"

#include <linux/filter.h>
#include <string.h>

struct filter {
  struct filter *next;
  uint32_t id;
  struct span program;
};

static struct filter *filters;

struct span
filter_find(uint32_t id)
{
  for (struct filter *filter = filters; filter; filter = filter->next)
    if (filter->id == id)
      return filter->program;
  return (struct span){0};
}

int
filter_define(const struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value, program = {0};
  uint32_t id = 0;
  uint16_t tag;
  int more;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    if (tag == RAMET_TAG_FILTER && span_u32(value, &id) < 0)
      return err_field(err, "filter", "is no 32-bit number");
    else if (tag == RAMET_TAG_BYTES)
      program = value;
    else if (tag != RAMET_TAG_FILTER)
      return err_field(err, "payload", "tag %u does not belong into a filter", tag);
  }
  if (more < 0)
    return -1;
  if (id == 0 || filter_find(id).length)
    return err_field(err, "filter", id ? "this number is taken" : "is missing");
  if (program.length == 0 || program.length > RAMET_FILTER_BYTES_MAX ||
      program.length % sizeof(struct sock_filter) != 0)
    return err_field(err, "bytes", "%u bytes are no program", program.length);
  struct filter *filter = malloc(sizeof *filter + program.length);
  if (!filter)
    return err_code(err, "internal", "no memory for a filter");
  uint8_t *copy = (uint8_t *)(filter + 1);
  memcpy(copy, program.data, program.length);
  *filter = (struct filter){filters, id, {copy, program.length}};
  filters = filter;
  return 0;
}
