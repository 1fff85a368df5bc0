/* SPDX-License-Identifier: Apache-2.0
 * An image decoded from any bytes, with a page file of four pages. What was accepted must hold together: everything
 * that is built from it later trusts it. */
#include "fuzz.h"
#include "image.h"

#define PAGE_BYTES (4 * IMAGE_PAGE)

static void
check_process(const struct image *image, const struct process_image *p)
{
  uint64_t after = 0;

  EXPECT(p->thread_count > 0 && p->mapping_count > 0 && p->first_run[p->mapping_count] == p->run_count);
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    const struct image_mapping *mapping = &p->mappings[i];
    EXPECT(mapping->start >= after && mapping->end > mapping->start);
    after = mapping->end;
    EXPECT(p->first_run[i] <= p->first_run[i + 1]);
    for (uint32_t r = p->first_run[i]; r < p->first_run[i + 1]; r++) {
      const struct image_run *run = &p->runs[r];
      EXPECT(run->address >= mapping->start && run->length <= mapping->end - run->address);
      EXPECT(run->offset == IMAGE_GUARD || run->length <= PAGE_BYTES - run->offset);
    }
  }
  for (uint32_t i = 0; i < p->fd_count; i++) {
    bool found = false;
    for (uint32_t d = 0; d < image->description_count; d++)
      found |= image->descriptions[d].id == p->fds[i].description;
    EXPECT(found && p->fds[i].number >= 0);
  }
  for (uint32_t i = 0; i < p->pending_count; i++)
    EXPECT(p->pending[i].shared || p->pending[i].thread < p->thread_count);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct image image;
  struct err err = {0};

  if (image_decode((struct span){data, (uint32_t)size}, PAGE_BYTES, &image, &err) < 0) {
    EXPECT(err.text[0] && err.code[0]);
    return 0;
  }
  EXPECT(image.process_count == image.header.process_count);
  for (uint32_t i = 0; i < image.process_count; i++)
    check_process(&image, &image.processes[i]);
  for (uint32_t d = 0; d < image.description_count; d++)
    for (uint32_t e = image.first_extent[d]; e < image.first_extent[d + 1]; e++) {
      const struct image_extent *extent = &image.extents[e];
      EXPECT(extent->length <= image.descriptions[d].value[2] - extent->offset);
      EXPECT(extent->length <= PAGE_BYTES - extent->page_offset);
    }
  image_free(&image);
  return 0;
}
