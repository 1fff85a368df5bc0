/* SPDX-License-Identifier: Apache-2.0 */
#include "deposit.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
/* Of address space, of which a guest may reserve any amount. What is beyond is filled by who has it. */
#define LONGEST ((uint64_t)64 << 30)

uint64_t
deposit_start(uint64_t region, uint64_t region_length)
{
  return (region + region_length + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

/* A stack has to grow, and gets that by how it is mapped. */
bool
deposit_has_place(const struct image_mapping *mapping)
{
  return mapping->backing == IMAGE_ANONYMOUS && !(mapping->flags & (IMAGE_GROWS_DOWN | IMAGE_DROPPABLE)) &&
         mapping->end - mapping->start <= LONGEST;
}

uint64_t
deposit_takes(uint64_t length)
{
  return length > LONGEST ? 0 : length + HUGE_PAGE;
}

/* As far from the beginning of a huge page as it will be: so whole tables of pages are moved, and huge pages. */
uint64_t
deposit_place(const struct image_mapping *mapping, uint64_t *next)
{
  uint64_t length = mapping->end - mapping->start;
  uint64_t at = (*next ? *next : HUGE_PAGE) + ((mapping->start - *next) & (HUGE_PAGE - 1));

  if (!deposit_has_place(mapping) || at + length > DEPOSIT_MOST)
    return 0;
  *next = at + length;
  return at;
}

bool
deposit_keeps(const struct process_image *process, uint32_t mapping)
{
  bool any = false;

  for (uint32_t i = process->first_run[mapping]; i < process->first_run[mapping + 1]; i++) {
    if (process->runs[i].offset == IMAGE_INHERITED)
      return false;
    any |= process->runs[i].offset != IMAGE_GUARD;
  }
  return any;
}

uint64_t
deposit_length(const struct image *image)
{
  uint64_t next = 0;

  for (uint32_t i = 1; i < image->process_count; i++)
    for (uint32_t m = 0; m < image->processes[i].mapping_count; m++)
      deposit_place(&image->processes[i].mappings[m], &next);
  return next;
}
