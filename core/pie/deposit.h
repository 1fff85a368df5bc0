/* SPDX-License-Identifier: Apache-2.0
 * What a stem keeps of the further processes' memory, until they take it in place. */
#ifndef RAMET_PIE_DEPOSIT_H
#define RAMET_PIE_DEPOSIT_H

#include "pages.h"

#include <fcntl.h>
#include <linux/prctl.h>
#include <sys/mman.h>

PIE_INLINE void
fill_part(struct pie_args *args, struct pie_args *of)
{
  struct pie_store *store = (struct pie_store *)of->stores;
  long frozen = -1;

  for (uint32_t i = 0; i < of->store_count; i++, store++) {
    if (store->path && frozen < 0)
      frozen = open_named(store->path, O_RDONLY | O_CLOEXEC);
    if (store->path && frozen < 0)
      pie_fail_memory(args, RAMET_STEP_STEM_FILL, frozen);
    if (store->offset == PIE_HUGE) {
      struct pie_fill huge;
      huge.address = store->address;
      huge.length = store->length;
      make_huge(&huge);
    } else {
      fill_pages(args, store->path ? (int)frozen : args->pages, store->address, store->length, store->offset);
    }
  }
  if (frozen >= 0)
    SYS1(SYS_close, frozen);
}

/* Of the stem, which has its own memory by then. */
PIE_CODE static __attribute__((noinline)) void
pie_fill_deposit(struct pie_args *args)
{
  struct pie_node *node = (struct pie_node *)args->nodes;

  if (!args->deposit_length)
    return;
  stem_step(args, RAMET_STEP_STEM_FILL);
  long at = SYS6(SYS_mmap, args->deposit, args->deposit_length, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if ((uint64_t)at != args->deposit)
    pie_fail_memory(args, RAMET_STEP_STEM_MAP, at);
  for (uint32_t i = 1; i < args->node_count; i++)
    if (node[i].args)
      fill_part(args, (struct pie_args *)node[i].args);
}

/* Behind its births, before which it was kept from its children. */
PIE_CODE static __attribute__((noinline)) void
pie_take_part(struct pie_args *args)
{
  struct pie_take *take = (struct pie_take *)args->takes;

  if (args->part_length)
    SYS3(SYS_madvise, args->part, args->part_length, MADV_DOFORK);
  for (uint32_t i = 0; i < args->take_count; i++, take++) {
    long at = SYS5(SYS_mremap, take->from, take->length, take->length, MREMAP_MAYMOVE | MREMAP_FIXED, take->to);
    if ((uint64_t)at != take->to)
      pie_fail_memory(args, RAMET_STEP_STEM_MAP, at);
  }
}

/* What is for a child that is about to be born, and for those that are born of that. */
PIE_INLINE void
pass_on(struct pie_args *args, struct pie_node *child, int away)
{
  struct pie_node *nodes = (struct pie_node *)args->nodes;
  uint32_t *heir = (uint32_t *)args->heirs + child->first_heir;

  for (uint32_t i = 0; i < child->heir_count; i++, heir++) {
    struct pie_args *own = (struct pie_args *)nodes[*heir].args;
    if (away)
      SYS2(SYS_munmap, own->part, own->part_length);
    else
      SYS3(SYS_madvise, own->part, own->part_length, MADV_DOFORK);
  }
}

PIE_INLINE long
advise(const struct pie_protect *protect)
{
  if (protect->advice == PIE_PROTECT)
    return SYS3(SYS_mprotect, protect->start, protect->length, protect->protection);
  if (protect->advice == PIE_LOCK)
    return SYS2(SYS_mlock, protect->start, protect->length);
  return SYS3(SYS_madvise, protect->start, protect->length, protect->advice);
}

PIE_CODE static __attribute__((noinline)) void
pie_protect_memory(struct pie_args *args)
{
  struct pie_protect *protect = (struct pie_protect *)args->protects;

  stem_step(args, RAMET_STEP_STEM_PROTECT);
  for (uint32_t i = 0; i < args->protect_count; i++, protect++) {
    long result = advise(protect);
    if (result < 0)
      pie_fail_memory(args, RAMET_STEP_STEM_PROTECT, result);
  }
}

/* Dispositions of who had this process's memory before. */
PIE_INLINE void
forget_signals(void)
{
  struct pie_signal none;

  none.handler = none.flags = none.restorer = none.mask = 0;
  for (int number = 1; number <= 64; number++)
    SYS4(SYS_rt_sigaction, number, &none.handler, 0, 8);
}

PIE_CODE static __attribute__((noinline)) void
pie_describe_memory(struct pie_args *args)
{
  stem_step(args, RAMET_STEP_STEM_MM);
  long result = SYS5(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &args->mm, sizeof args->mm, 0);
  if (result < 0)
    pie_fail_memory(args, RAMET_STEP_STEM_MM, result);
  if (args->node)
    forget_signals();
  struct pie_signal *signal = (struct pie_signal *)args->signals;
  for (uint32_t i = 0; i < args->signal_count; i++, signal++) {
    result = SYS4(SYS_rt_sigaction, signal->number, &signal->handler, 0, 8);
    if (result < 0)
      pie_fail_memory(args, RAMET_STEP_STEM_MM, result);
  }
  if (args->no_thp || args->node)
    SYS5(SYS_prctl, PR_SET_THP_DISABLE, args->no_thp, 0, 0, 0);
}

/* Numbers of descriptors that a twin keeps. */
#define TWIN_NURSERY 0
#define TWIN_PIDNS 1

/* Only the socket, the page file and the own pid namespace stay, right above every number of the guest's. */
PIE_INLINE void
keep_descriptors(struct pie_args *args)
{
  int32_t base = args->first_free;
  int32_t wanted[3];

  stem_step(args, RAMET_STEP_STEM_FILES);
  wanted[0] = args->control;
  wanted[1] = args->pages;
  wanted[2] = args->own_pidns;
  for (int i = 0; i < 3; i++) {
    long away = SYS3(SYS_fcntl, wanted[i], F_DUPFD_CLOEXEC, base + 3);
    if (away < 0)
      pie_fail(args->control, RAMET_STEP_STEM_FILES, away);
    wanted[i] = (int32_t)away;
  }
  for (int i = 0; i < 3; i++) {
    long there = SYS3(SYS_dup3, wanted[i], base + i, O_CLOEXEC);
    if (there < 0)
      pie_fail(wanted[0], RAMET_STEP_STEM_FILES, there);
  }
  if (base > 0)
    SYS3(SYS_close_range, 0, base - 1, 0);
  SYS3(SYS_close_range, base + 3, (uint32_t)-1, 0);
  args->control = base;
  args->pages = base + 1;
  args->own_pidns = base + 2;
}

#endif
