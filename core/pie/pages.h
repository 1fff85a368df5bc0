/* SPDX-License-Identifier: Apache-2.0
 * A stem's memory, or that of a further process: the guest's mappings in place of core's, filled from the frozen copy or
 * the image. */
#ifndef RAMET_PIE_PAGES_H
#define RAMET_PIE_PAGES_H

#include "report.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mman.h>

#define ADDRESS_END 0x7ffffffff000ul
#ifndef SYS_openat2
#define SYS_openat2 437
#endif

/* As the open files of the child's own root are named: past no link, since a child may open more than the guest may. */
PIE_INLINE long
open_named(uint64_t path, uint64_t flags)
{
  struct open_how how = {flags, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};

  return SYS4(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

/* All but what is kept. */
PIE_INLINE long
unmap_between(struct pie_args *args, uint64_t from, uint64_t to)
{
  struct pie_range *kept = (struct pie_range *)args->kept;
  long result = 0;

  for (uint32_t i = 0; i < args->kept_count && result >= 0; i++, kept++) {
    if (kept->start < from || kept->start >= to)
      continue;
    if (kept->start > from)
      result = SYS2(SYS_munmap, from, kept->start - from);
    from = kept->start + kept->length;
  }
  return result < 0 || from >= to ? result : SYS2(SYS_munmap, from, to - from);
}

/* The kernel's own pages are moved out of the way of what is unmapped, and from there to their places. */
PIE_CODE static __attribute__((noinline)) void
pie_leave_old_memory(struct pie_args *args)
{
  stem_step(args, RAMET_STEP_STEM_UNMAP);
  /* The kernel writes into these at exit and at every return from it: they go before their memory does. */
  if (args->own_rseq)
    SYS4(SYS_rseq, args->own_rseq, args->own_rseq_length, 1, args->own_rseq_signature);
  SYS2(SYS_set_robust_list, 0, 24);
  SYS1(SYS_set_tid_address, 0);
  for (uint32_t i = 0; i < args->move_count; i++) {
    struct pie_move *move = &args->moves[i];
    long at = SYS5(SYS_mremap, move->from, move->length, move->length, MREMAP_MAYMOVE | MREMAP_FIXED, move->park);
    if (at < 0 && at > -4096)
      pie_fail_memory(args, RAMET_STEP_STEM_UNMAP, at);
  }
  uint64_t end = args->deposit + args->deposit_length;
  long low = unmap_between(args, 0x10000, args->region);
  long high = unmap_between(args, end, ADDRESS_END);
  if (low < 0 || high < 0)
    pie_fail_memory(args, RAMET_STEP_STEM_UNMAP, low < 0 ? low : high);
  for (uint32_t i = 0; i < args->move_count; i++) {
    struct pie_move *move = &args->moves[i];
    long at = SYS5(SYS_mremap, move->park, move->length, move->length, MREMAP_MAYMOVE | MREMAP_FIXED, move->to);
    if (at < 0 && at > -4096)
      pie_fail_memory(args, RAMET_STEP_STEM_UNMAP, at);
  }
}

/* The same file backs several mappings in a row. */
PIE_CODE static __attribute__((noinline)) void
pie_map_memory(struct pie_args *args)
{
  struct pie_map *map = (struct pie_map *)args->maps;
  uint64_t path = 0;
  long file = -1;

  stem_step(args, RAMET_STEP_STEM_MAP);
  for (uint32_t i = 0; i < args->map_count; i++, map++) {
    if (map->path && map->path != path) {
      if (file >= 0)
        SYS1(SYS_close, file);
      file = open_named(map->path, O_RDONLY | O_CLOEXEC);
      if (file < 0)
        pie_fail_memory(args, RAMET_STEP_STEM_MAP, file);
      path = map->path;
    }
    long at = SYS6(SYS_mmap, map->start, map->length, map->protection, map->flags, map->path ? file : map->fd,
                   map->offset);
    if ((uint64_t)at != map->start)
      pie_fail_memory(args, RAMET_STEP_STEM_MAP, at);
  }
  if (file >= 0)
    SYS1(SYS_close, file);
}

/* Nearly empty ranges, so that next to nothing is copied for it. What cannot be collapsed stays as it is. */
PIE_INLINE void
make_huge(struct pie_fill *fill)
{
  for (uint64_t at = 0; at < fill->length; at += (uint64_t)2 << 20)
    *(volatile uint8_t *)(fill->address + at) = 0;
  SYS3(SYS_madvise, fill->address, fill->length, 25 /* MADV_COLLAPSE */);
}

/* In pieces that a processor's cache holds: the kernel clears pages, then they are written. */
#define PIECE ((uint64_t)512 << 10)

PIE_INLINE void
fill_pages(struct pie_args *args, int fd, uint64_t address, uint64_t length, uint64_t offset)
{
  while (length) {
    uint64_t piece = length < PIECE ? length : PIECE;
    /* One call instead of a fault a page. Refused where the kernel is older than 5.14: then faults do it. */
    SYS3(SYS_madvise, address, piece, 23 /* MADV_POPULATE_WRITE */);
    for (uint64_t done = 0; done < piece;) {
      long got = SYS4(SYS_pread64, fd, address + done, piece - done, offset + done);
      if (got <= 0)
        pie_fail_memory(args, RAMET_STEP_STEM_FILL, got ? got : -5);
      done += (uint64_t)got;
    }
    address += piece;
    offset += piece;
    length -= piece;
  }
}

PIE_CODE static __attribute__((noinline)) void
pie_fill_memory(struct pie_args *args)
{
  struct pie_fill *fill = (struct pie_fill *)args->fills;
  long result;

  stem_step(args, RAMET_STEP_STEM_FILL);
  for (uint32_t i = 0; i < args->fill_count; i++, fill++)
    switch (fill->offset) {
    case PIE_GUARD:
      result = SYS3(SYS_madvise, fill->address, fill->length, 102 /* MADV_GUARD_INSTALL */);
      if (result < 0)
        pie_fail_memory(args, RAMET_STEP_STEM_FILL, result);
      break;
    case PIE_HUGE:
      make_huge(fill);
      break;
    case PIE_CLEAR:
      /* Refused before Linux 6.13: then there are no guards. */
      SYS3(SYS_madvise, fill->address, fill->length, 103 /* MADV_GUARD_REMOVE */);
      result = SYS3(SYS_madvise, fill->address, fill->length, MADV_DONTNEED);
      if (result < 0)
        pie_fail_memory(args, RAMET_STEP_STEM_FILL, result);
      break;
    case PIE_OPEN:
      result = SYS3(SYS_mprotect, fill->address, fill->length, PROT_READ | PROT_WRITE);
      if (result < 0)
        pie_fail_memory(args, RAMET_STEP_STEM_FILL, result);
      break;
    case PIE_FROZEN:
      /* Not process_vm_readv(2): that pins pages, and first gives the frozen copy its own of each. */
      fill_pages(args, args->frozen, fill->address, fill->length, fill->address);
      break;
    default:
      fill_pages(args, first_of(args)->pages, fill->address, fill->length, fill->offset);
    }
}

#endif
