/* SPDX-License-Identifier: Apache-2.0
 * Hot pages: what a child of the stem touched, touched ahead for the next ones. A page fault costs two or three
 * microseconds, more on a virtual machine, and a Python that answers has a hundred and eighty of them.
 *
 * The stem learns once, from the page tables of a living child: pages that are the child's alone it has written; of
 * files it has what it mapped. A spare then has copies of the former and maps the latter before it is needed. */
#ifndef RAMET_PIE_HOT_H
#define RAMET_PIE_HOT_H

#include "args.h"
#include "sys.h"

#include <linux/fs.h>
#include <sys/mman.h>

#define HOT_WRITTEN 1u /* in the low bits of an address */
/* How much is looked at: a child that is large has lived for long, and tells nothing of what others begin with. */
#define HOT_SCANNED_PAGES 65536u
/* Most that is copied ahead for a child. */
#define HOT_WRITTEN_PAGES 2048u
#define HOT_REGIONS 512
#define HOT_ENTRIES 256
#define PAGE_BYTES 4096u
#define PAGE_EXCLUSIVE ((uint64_t)1 << 56)
#define PAGE_PRESENT ((uint64_t)1 << 63)

/* linux/fs.h of Linux 6.7 */
struct hot_scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_length, max_pages, inverted, mask, anyof, returned;
};
struct hot_region {
  uint64_t start, end, categories;
};
#define HOT_SCAN 0xc0606610u /* PAGEMAP_SCAN */
#define HOT_IS_FILE 4u
#define HOT_IS_PRESENT 8u

PIE_INLINE int
add_hot(struct pie_args *args, uint64_t address, uint64_t length, uint32_t written)
{
  struct pie_range *hot = (struct pie_range *)args->hot;

  if (args->hot_count && written &&
      hot[args->hot_count - 1].start + hot[args->hot_count - 1].length == (address | written)) {
    hot[args->hot_count - 1].length += length;
    return 0;
  }
  if (args->hot_count == PIE_HOT_MAX)
    return -1;
  hot[args->hot_count].start = address | written;
  hot[args->hot_count++].length = length;
  return 0;
}

PIE_INLINE int
add_written(struct pie_args *args, int pagemap, uint64_t start, uint64_t end, uint64_t *written)
{
  uint64_t entries[HOT_ENTRIES];

  while (start < end) {
    uint64_t pages = (end - start) / PAGE_BYTES < HOT_ENTRIES ? (end - start) / PAGE_BYTES : HOT_ENTRIES;
    if (SYS4(SYS_pread64, pagemap, entries, pages * 8, start / PAGE_BYTES * 8) != (long)(pages * 8))
      return -1;
    for (uint64_t i = 0; i < pages; i++)
      if ((entries[i] & PAGE_EXCLUSIVE) && (entries[i] & PAGE_PRESENT) &&
          (++*written > HOT_WRITTEN_PAGES || add_hot(args, start + i * PAGE_BYTES, PAGE_BYTES, HOT_WRITTEN) < 0))
        return -1;
    start += pages * PAGE_BYTES;
  }
  return 0;
}

/* More than the table holds is nothing that all children have in common. */
PIE_CODE static __attribute__((noinline)) void
pie_learn(struct pie_args *args, int pagemap)
{
  struct hot_region regions[HOT_REGIONS];
  struct hot_scan scan;
  uint64_t scanned = 0, written = 0;

  args->hot_count = 0;
  for (uint32_t i = 0; i < sizeof scan / 8; i++)
    ((volatile uint64_t *)(void *)&scan)[i] = 0;
  scan.size = sizeof scan;
  scan.end = 0x7ffffffff000;
  scan.vec = (uint64_t)regions;
  scan.vec_length = HOT_REGIONS;
  scan.mask = HOT_IS_PRESENT;
  scan.returned = HOT_IS_FILE;
  for (;;) {
    long count = SYS3(SYS_ioctl, pagemap, HOT_SCAN, &scan);
    if (count <= 0)
      return;
    for (long i = 0; i < count; i++) {
      struct hot_region *region = &regions[i];
      if (region->end > args->region && region->start < args->region + args->region_length)
        continue;
      scanned += (region->end - region->start) / PAGE_BYTES;
      int result = scanned > HOT_SCANNED_PAGES ? -1
                   : region->categories & HOT_IS_FILE
                       ? add_hot(args, region->start, region->end - region->start, 0)
                       : add_written(args, pagemap, region->start, region->end, &written);
      if (result < 0) {
        args->hot_count = 0;
        return;
      }
    }
    if (count < HOT_REGIONS)
      return;
    scan.start = regions[count - 1].end;
  }
}

/* Failure only means that the child has its page faults itself. A page is written with what it holds: by the same
 * way as a child would, so that this processor's tables have it too. */
PIE_CODE static __attribute__((noinline)) void
pie_warm(struct pie_args *args)
{
  struct pie_range *hot = (struct pie_range *)args->hot;

  for (uint32_t i = 0; i < args->hot_count; i++, hot++) {
    uint64_t start = hot->start & ~(uint64_t)(PAGE_BYTES - 1);
    if (!(hot->start & HOT_WRITTEN)) {
      SYS3(SYS_madvise, start, hot->length, 22 /* MADV_POPULATE_READ */);
      continue;
    }
    if (SYS3(SYS_madvise, start, hot->length, 23 /* MADV_POPULATE_WRITE */) < 0)
      continue;
    for (uint64_t at = start; at < start + hot->length; at += PAGE_BYTES)
      *(volatile uint8_t *)at = *(volatile uint8_t *)at;
  }
}

#endif
