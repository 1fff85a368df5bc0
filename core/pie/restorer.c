/* SPDX-License-Identifier: Apache-2.0
 * The restorer: makes a fork of core into a stem, and forks of the stem into children that run on where the
 * snapshot stood.
 *
 *   pie_stem    gives up core's memory, maps and fills the guest's, then waits for orders; never runs the guest
 *   order       the stem forks a twin
 *   twin        enters the sandbox's pid namespace and clones a passage that shares memory, which clones the child with
 *               its old pid and exits: so the child's parent is the sandbox's init, and its memory is the twin's. The
 *               twin stays behind, stopped by ptrace for ever: a live fork is a fork of it that copies no page
 *   spare       a twin made ahead, at leisure: it has the copy of the memory, warm, and waits for the order
 *   child       descriptors from init, namespaces, threads with their old tids; capabilities, no_new_privs, seccomp
 *               last; rt_sigreturn
 *   born        another process of the sandbox: forked by its parent, or by one that dies for it, while that is in here
 *               itself; gives up its parent's memory for its own, which the stem has kept for it, then as the child. None
 *               runs on before all are there
 *
 * No libc, no globals, no constants in memory, no stack protector, no vector registers: nothing of core's image is
 * mapped any more when this runs. scripts/check_elf.py reads the object and proves it. */
#define _GNU_SOURCE
#include "args.h"
#include "hot.h"
#include "sys.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <ramet/protocol.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MASK_ALL ((uint64_t)-1)
#define ADDRESS_END 0x7ffffffff000ul
#define ARCH_SET_GS 0x1001
#define ARCH_SET_FS 0x1002
#define ARCH_REQ_XCOMP_PERM 0x1023
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define PR_TIMER_RESTORE_IDS 77 /* Linux 6.15 */

/* ---- reports -------------------------------------------------------------------------------------------------- */

PIE_CODE static __attribute__((noinline)) void
pie_report(int socket, int step, long error, long value)
{
  struct pie_status status;

  status.step = step;
  status.error = (int32_t)-error;
  status.value = value;
  SYS6(SYS_sendto, socket, &status, sizeof status, MSG_NOSIGNAL, 0, 0);
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_fail(int socket, int step, long error)
{
  pie_report(socket, step, error, 0);
  for (;;)
    SYS1(SYS_exit_group, 111);
}

/* Where a test wants a step to fail, or to be held. */
PIE_CODE static __attribute__((noinline)) int
pie_faulted(struct pie_args *args, uint32_t step)
{
  if ((args->fault & ~(uint32_t)RAMET_FAULT_HOLD) != step)
    return 0;
  if (args->fault & RAMET_FAULT_HOLD) {
    volatile uint64_t name = 0x646c6568; /* "held" */
    SYS2(SYS_prctl, PR_SET_NAME, &name);
    for (;;)
      SYS0(SYS_pause);
  }
  return 1;
}

/* What a stem does with its memory another process of the sandbox does too, and tells its child's listener. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_fail_memory(struct pie_args *args, int step, long error)
{
  if (args->node)
    pie_fail(args->status, RAMET_STEP_CHILD_MEMORY, error);
  pie_fail(args->control, step, error);
}

PIE_INLINE void
stem_step(struct pie_args *args, uint32_t step)
{
  if (pie_faulted(args, args->node ? RAMET_STEP_CHILD_MEMORY : step))
    pie_fail_memory(args, (int)step, -5 /* EIO */);
}

PIE_INLINE void
child_step(struct pie_args *args, uint32_t step)
{
  if (pie_faulted(args, step))
    pie_fail(args->status, (int)step, -5 /* EIO */);
}

PIE_INLINE struct pie_args *
first_of(struct pie_args *args)
{
  return (struct pie_args *)args->first;
}

/* ---- the stem's memory ---------------------------------------------------------------------------------------- */

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

/* ---- the deposit ------------------------------------------------------------------------------------------------ */

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

/* ---- a child: descriptors ------------------------------------------------------------------------------------- */

struct pie_message {
  void *name;
  uint32_t name_length;
  void *iov;
  uint64_t iov_length;
  void *control;
  uint64_t control_length;
  int32_t flags;
};

/* Descriptors of the next message into `out`; their count, or an error. */
PIE_CODE static __attribute__((noinline)) long
pie_receive(int socket, void *data, uint64_t length, int32_t *out, int most)
{
  struct {
    void *base;
    uint64_t length;
  } iov;
  uint8_t control[CMSG_SPACE(sizeof(int) * PIE_FDS_AT_ONCE)] __attribute__((aligned(8)));
  struct pie_message message;
  int count = 0;

  iov.base = data;
  iov.length = length;
  message.name = 0;
  message.name_length = 0;
  message.iov = &iov;
  message.iov_length = 1;
  message.control = control;
  message.control_length = sizeof control;
  message.flags = 0;
  long got = SYS3(SYS_recvmsg, socket, &message, MSG_CMSG_CLOEXEC);
  if (got <= 0)
    return got ? got : -104;
  if (message.control_length >= 16) {
    uint64_t bytes = *(uint64_t *)(void *)control;
    int32_t *fds = (int32_t *)(void *)(control + 16);
    for (uint64_t at = 16; at + 4 <= bytes && count < most; at += 4)
      out[count++] = *fds++;
  }
  return count;
}

/* All that init made, each moved above the guest's numbers at once. */
PIE_INLINE void
receive_descriptors(struct pie_args *args, int socket)
{
  int32_t *received = (int32_t *)args->received;
  uint32_t have = 0;
  uint8_t byte;

  child_step(args, RAMET_STEP_CHILD_MAKE_FDS);
  while (have < args->description_count) {
    long got = pie_receive(socket, &byte, 1, &received[have], PIE_FDS_AT_ONCE);
    if (got <= 0)
      pie_fail(args->status, RAMET_STEP_CHILD_MAKE_FDS, got ? got : -104);
    for (uint32_t i = have; i < have + (uint32_t)got; i++) {
      int low = received[i];
      if (low >= args->first_free)
        continue;
      long high = SYS3(SYS_fcntl, low, F_DUPFD_CLOEXEC, args->first_free);
      if (high < 0)
        pie_fail(args->status, RAMET_STEP_CHILD_FDS, high);
      SYS1(SYS_close, low);
      received[i] = (int32_t)high;
    }
    have += (uint32_t)got;
  }
}

PIE_INLINE void
place_descriptors(struct pie_args *args)
{
  struct pie_fd *fd = (struct pie_fd *)args->fds;

  child_step(args, RAMET_STEP_CHILD_FDS);
  for (uint32_t i = 0; i < args->fd_count; i++, fd++) {
    long result =
        SYS3(SYS_dup3, ((int32_t *)args->received)[fd->description], fd->number, fd->close_on_exec ? O_CLOEXEC : 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
  struct pie_epoll *item = (struct pie_epoll *)args->epolls;
  for (uint32_t i = 0; i < args->epoll_count; i++, item++) {
    struct epoll_event event;
    event.events = item->events;
    event.data.u64 = item->data;
    long result = SYS4(SYS_epoll_ctl, item->epoll, EPOLL_CTL_ADD, item->target, &event);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
}

/* A process loses its locks of a file with the first of its descriptors that is closed: behind the last that is. */
PIE_INLINE void
take_locks(struct pie_args *args)
{
  struct pie_lock *lock = (struct pie_lock *)args->locks;

  for (uint32_t i = 0; i < args->lock_count; i++, lock++) {
    struct {
      int16_t type, whence;
      int32_t zero;
      uint64_t start, length;
      int64_t pid;
    } range;
    range.type = lock->exclusive ? F_WRLCK : F_RDLCK;
    range.whence = SEEK_SET;
    range.zero = 0;
    range.start = lock->start;
    range.length = lock->length;
    range.pid = 0;
    long result = SYS3(SYS_fcntl, lock->number, F_SETLK, &range);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
}

/* ---- a child: memory that a stem cannot hold ------------------------------------------------------------------- */

/* The same file anew, for writing too. */
PIE_INLINE long
open_again(struct pie_args *args, int fd, uint32_t flags)
{
  int length = 1, at = PIE_FD_PATH_NUMBER;

  for (int rest = fd; rest >= 10; rest /= 10)
    length++;
  args->fd_path[at + length] = 0;
  for (; length > 0; fd /= 10)
    args->fd_path[at + --length] = (char)('0' + fd % 10);
  return SYS4(SYS_openat, AT_FDCWD, args->fd_path, flags, 0);
}

PIE_INLINE void
map_shared(struct pie_args *args)
{
  struct pie_late *late = (struct pie_late *)args->late_table;

  child_step(args, RAMET_STEP_CHILD_SHARED_MEMORY);
  for (uint32_t i = 0; i < args->late_count; i++, late++) {
    long fd = late->path ? open_named(late->path, (uint64_t)late->open_flags)
                         : open_again(args, ((int32_t *)args->received)[late->description], late->open_flags);
    if (fd < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, fd);
    long at = SYS6(SYS_mmap, late->start, late->length, late->protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                   fd, late->offset);
    if ((uint64_t)at != late->start)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, at);
    SYS1(SYS_close, fd);
  }
}

/* Behind the limits: how much memory may be locked is one of them. */
PIE_INLINE void
advise_late(struct pie_args *args)
{
  struct pie_protect *advice = (struct pie_protect *)args->advice_table;

  for (uint32_t i = 0; i < args->advice_count; i++, advice++) {
    long result = advise(advice);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, result);
  }
}

/* ---- a child: state ------------------------------------------------------------------------------------------- */

PIE_INLINE void
enter_namespaces(struct pie_args *args, int init, uint32_t namespaces)
{
  child_step(args, RAMET_STEP_CHILD_NAMESPACES);
  long result = SYS2(SYS_setns, init, namespaces);
  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_NAMESPACES, result);
}

PIE_INLINE void
restore_limit(struct pie_args *args, int resource)
{
  long result = SYS4(SYS_prlimit64, 0, resource, args->rlimits[resource], 0);

  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_STATE, result);
}

/* Those of its plan, where they are lower than what it had when it was captured. All that it has is there already: threads,
 * descriptors and memory above a limit stay. */
PIE_INLINE void
lower_limits(struct pie_args *args)
{
  for (int resource = 0; resource < PIE_RESOURCES; resource++) {
    uint64_t *limit = args->rlimits[resource], most = args->most[resource];
    if (limit[1] <= most)
      continue;
    limit[0] = limit[0] < most ? limit[0] : most;
    limit[1] = most;
    restore_limit(args, resource);
  }
}

/* Received descriptors have numbers above the guest's. A guest may have lowered the limits of its memory to what it has,
 * or below: shared memory is to be mapped yet, and prctl(PR_SET_MM_MAP) compares with that of data. Processes that are
 * forked from each other would inherit them all, and could not raise them. */
PIE_INLINE int
hinders_restoring(const struct pie_args *args, int resource)
{
  return args->node_count > 1 || resource == RLIMIT_NOFILE || resource == RLIMIT_AS || resource == RLIMIT_DATA;
}

/* The personality as late as its limits: with READ_IMPLIES_EXEC shared memory would be mapped executable. */
PIE_INLINE void
restore_process(struct pie_args *args)
{
  child_step(args, RAMET_STEP_CHILD_DIRECTORY);
  long cwd = open_named(args->cwd, O_PATH | O_DIRECTORY | O_CLOEXEC);
  long result = cwd < 0 ? cwd : SYS1(SYS_fchdir, cwd);
  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_DIRECTORY, result);
  SYS1(SYS_close, cwd);
  /* /proc/self/exe is to name the program in the child's own root. The kernel refuses a change while the old file is
   * mapped, and the stem's was opened over a mount of its own for that. */
  long exe = open_named(args->exe, O_RDONLY | O_CLOEXEC);
  if (exe >= 0) {
    args->mm.exe = (int32_t)exe;
    SYS5(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &args->mm, sizeof args->mm, 0);
    SYS1(SYS_close, exe);
  }
  for (int i = 0; i < 3; i++)
    if (args->itimers[i][2] || args->itimers[i][3])
      SYS3(SYS_setitimer, i, args->itimers[i], 0);
  if (args->personality)
    SYS1(SYS_personality, args->personality);
  for (int resource = 0; resource < 16; resource++)
    if (hinders_restoring(args, resource))
      restore_limit(args, resource);
}

/* What needs neither the sandbox's root nor its namespaces, while init makes those ready, and hinders nothing of what
 * comes behind. */
PIE_INLINE void
restore_early(struct pie_args *args)
{
  child_step(args, RAMET_STEP_CHILD_STATE);
  /* Out of the stem's session, which is core's, unless it was born in one of its own. */
  long result = args->passage_leads ? 0 : SYS0(SYS_setsid);

  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_STATE, result);
  for (int feature = 0; feature < 63; feature++)
    if (args->asked_features >> feature & 1)
      SYS2(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, feature);
  SYS1(SYS_umask, args->umask);
  for (int resource = 0; resource < 16; resource++)
    if (!hinders_restoring(args, resource))
      restore_limit(args, resource);
}

/* Every thread its own: the kernel takes signals that look as if they came from the kernel or from tgkill(2) only
 * from the thread that gets them. The first also those of the process. */
PIE_INLINE void
restore_pending(struct pie_args *args, struct pie_thread *thread)
{
  struct pie_pending *pending = (struct pie_pending *)args->pending;
  struct pie_thread *threads = (struct pie_thread *)args->threads;

  for (uint32_t i = 0; i < args->pending_count; i++, pending++) {
    int signal = *(int32_t *)(void *)pending->info;
    if (pending->shared && thread == threads)
      SYS3(SYS_rt_sigqueueinfo, threads->tid, signal, pending->info);
    else if (!pending->shared && thread == &threads[pending->thread])
      SYS4(SYS_rt_tgsigqueueinfo, threads->tid, thread->tid, signal, pending->info);
  }
}

/* The kernel makes room for tiles at their first use, and takes no frame back that is larger than a thread's room.
 * The instructions: ldtilecfg of a configuration with one tile, tilezero, tilerelease. */
PIE_INLINE void
make_room_for_tiles(void)
{
  uint64_t config[8];

  for (int i = 0; i < 8; i++)
    ((volatile uint64_t *)config)[i] = 0;
  ((volatile uint64_t *)config)[0] = 1; /* palette */
  ((volatile uint64_t *)config)[2] = 64; /* bytes a row */
  ((volatile uint64_t *)config)[6] = 16; /* rows */
  __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00\n\t"
                   ".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc0\n\t"
                   ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" ::"a"(config)
                   : "memory");
}

/* What the kernel refuses (processors of another machine) stays as it is for everybody. */
PIE_INLINE void
schedule_thread(struct pie_args *args, struct pie_thread *thread)
{
  struct pie_scheduling *scheduling = (struct pie_scheduling *)args->schedulings;
  struct pie_thread *threads = (struct pie_thread *)args->threads;

  for (uint32_t i = 0; i < args->scheduling_count; i++, scheduling++) {
    int32_t priority = 0;
    if (thread != &threads[scheduling->thread])
      continue;
    SYS3(SYS_sched_setscheduler, 0, scheduling->policy, &priority);
    SYS3(SYS_setpriority, PRIO_PROCESS, 0, scheduling->nice);
    SYS3(SYS_sched_setaffinity, 0, sizeof scheduling->processors, scheduling->processors);
  }
}

PIE_INLINE void
restore_thread(struct pie_args *args, struct pie_thread *thread)
{
  SYS2(SYS_arch_prctl, ARCH_SET_FS, thread->fs_base);
  if (thread->gs_base)
    SYS2(SYS_arch_prctl, ARCH_SET_GS, thread->gs_base);
  SYS2(SYS_set_robust_list, thread->robust_list, 24);
  SYS1(SYS_set_tid_address, thread->tid_address);
  if (thread->stack_size) {
    struct {
      uint64_t address;
      int32_t flags, zero;
      uint64_t size;
    } stack;
    stack.address = thread->stack_address;
    stack.flags = (int32_t)(thread->stack_flags & ~1u); /* SS_ONSTACK is told by the stack pointer */
    stack.zero = 0;
    stack.size = thread->stack_size;
    long result = SYS2(SYS_sigaltstack, &stack, 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_STATE, result);
  }
  if (thread->rseq) {
    long result = SYS4(SYS_rseq, thread->rseq, thread->rseq_length, 0, thread->rseq_signature);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_STATE, result);
  }
  SYS2(SYS_prctl, PR_SET_NAME, thread->name);
  schedule_thread(args, thread);
  if (thread->holds_tiles)
    make_room_for_tiles();
}

/* With the number of old: asked for, or else by making and deleting those before it, which older kernels count up. */
PIE_INLINE long
make_timer(struct pie_timer *timer, int restores)
{
  struct {
    uint64_t value;
    int32_t signal, notify, thread;
    int32_t rest[11];
  } event;

  event.value = timer->value;
  event.signal = (int32_t)timer->signal;
  event.notify = (int32_t)timer->notify;
  event.thread = timer->thread;
  for (int i = 0; i < 11; i++)
    ((volatile int32_t *)event.rest)[i] = 0;
  for (;;) {
    int32_t id = timer->id;
    long result = SYS3(SYS_timer_create, timer->clock, &event, &id);
    if (result < 0 || id == timer->id)
      return result;
    SYS1(SYS_timer_delete, id);
    if (restores || id > timer->id)
      return -17; /* EEXIST */
  }
}

/* Behind all threads, which they may wake; their signals wait until a thread has left here. */
PIE_INLINE void
restore_timers(struct pie_args *args)
{
  struct pie_timer *timer = (struct pie_timer *)args->timers;

  if (args->timer_count == 0)
    return;
  int restores = SYS5(SYS_prctl, PR_TIMER_RESTORE_IDS, 1, 0, 0, 0) == 0;
  for (uint32_t i = 0; i < args->timer_count; i++, timer++) {
    long result = make_timer(timer, restores);
    if (result == 0 && (timer->left[0] || timer->left[1]))
      result = SYS4(SYS_timer_settime, timer->id, 0, timer->interval, 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_STATE, result);
  }
  if (restores)
    SYS5(SYS_prctl, PR_TIMER_RESTORE_IDS, 0, 0, 0, 0);
}

/* Credentials are each thread's own. */
PIE_INLINE void
bound_capabilities(struct pie_args *args)
{
  child_step(args, RAMET_STEP_CHILD_CAPABILITIES);
  for (int cap = 0; cap <= 63; cap++)
    if (SYS2(SYS_prctl, PR_CAPBSET_DROP, cap) < 0)
      break;
  long bits = SYS2(SYS_prctl, PR_SET_SECUREBITS,
                   SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
                       SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED);
  if (bits < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_CAPABILITIES, bits);
}

PIE_INLINE void
confine_thread(struct pie_args *args)
{
  struct __user_cap_header_struct header;
  struct __user_cap_data_struct none[2];

  header.version = _LINUX_CAPABILITY_VERSION_3;
  header.pid = 0;
  for (int i = 0; i < 2; i++)
    none[i].effective = none[i].permitted = none[i].inheritable = 0;
  long result = SYS2(SYS_capset, &header, none);
  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_CAPABILITIES, result);
  result = SYS5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_SECCOMP, result);
}

/* The kernel translates the program anew for each call, which takes longer than anything else here. */
PIE_INLINE void
filter_threads(struct pie_args *args)
{
  struct sock_fprog filter;

  child_step(args, RAMET_STEP_CHILD_SECCOMP);
  SYS2(SYS_prctl, PR_SET_DUMPABLE, 1);
  filter.len = (unsigned short)args->filter_length;
  filter.filter = (struct sock_filter *)args->filter;
  long result =
      SYS3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, args->thread_count > 1 ? SECCOMP_FILTER_FLAG_TSYNC : 0, &filter);
  if (result != 0)
    pie_fail(args->status, RAMET_STEP_CHILD_SECCOMP, result < 0 ? result : -3);
}

PIE_INLINE void
open_gate(volatile uint32_t *gate)
{
  __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
  SYS3(SYS_futex, gate, FUTEX_WAKE, 0x7fffffff);
}

PIE_INLINE void
await_gate(volatile uint32_t *gate)
{
  while (!__atomic_load_n(gate, __ATOMIC_SEQ_CST))
    SYS4(SYS_futex, gate, FUTEX_WAIT, 0, 0);
}

/* Until all threads are here. */
PIE_INLINE void
meet(volatile uint32_t *left, volatile uint32_t *gate)
{
  if (__atomic_sub_fetch(left, 1, __ATOMIC_SEQ_CST) == 0)
    open_gate(gate);
  await_gate(gate);
}

/* ---- a child: the other processes ------------------------------------------------------------------------------- */

PIE_INLINE struct pie_node *
node_at(const struct pie_args *args, uint32_t i)
{
  return &((struct pie_node *)args->nodes)[i];
}

PIE_INLINE struct pie_shared *
shared_of(const struct pie_args *args)
{
  return (struct pie_shared *)args->shared;
}

#define P_PID 1
#define WNOWAIT_EXITED 0x01000004 /* WNOWAIT | WEXITED */

/* Whether a process that others wait for has died: of its own children each process sees it, of orphans only the first,
 * as they vanish. */
PIE_CODE static __attribute__((noinline)) void
pie_check_alive(struct pie_args *args, uint32_t self)
{
  int32_t info[32];

  for (uint32_t i = 1; i < args->node_count; i++) {
    struct pie_node *node = node_at(args, i);
    if (node->kind != PIE_PROCESS)
      continue;
    info[0] = 0;
    if ((uint32_t)node->parent == self &&
        SYS5(SYS_waitid, P_PID, node->pid, info, WNOWAIT_EXITED | WNOHANG | __WALL, 0) == 0 && info[0])
      pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, -10 /* ECHILD */);
    if (self == 0 && SYS2(SYS_kill, node->pid, 0) == -3 /* ESRCH */)
      pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, -10);
  }
}

PIE_CODE static __attribute__((noinline)) void
pie_await(struct pie_args *args, uint32_t self, volatile uint32_t *word, uint32_t wanted)
{
  struct {
    int64_t seconds, nanoseconds;
  } patience;

  for (uint32_t now; (now = __atomic_load_n(word, __ATOMIC_SEQ_CST)) != wanted;) {
    patience.seconds = 0;
    patience.nanoseconds = 250000000;
    if (SYS4(SYS_futex, word, FUTEX_WAIT, now, &patience) == -110 /* ETIMEDOUT */)
      pie_check_alive(args, self);
  }
}

/* One that has come there; the last opens the gate. */
PIE_INLINE void
arrive(struct pie_gate *gate)
{
  if (__atomic_sub_fetch(&gate->left, 1, __ATOMIC_SEQ_CST) == 0)
    open_gate(&gate->open);
}

PIE_CODE static __attribute__((noinline, noreturn)) void pie_born(struct pie_args *args, uint32_t self);

/* As children of this one: those that are born before it opens its session, or behind. */
PIE_CODE static __attribute__((noinline)) void
pie_give_birth(struct pie_args *args, uint32_t self, uint32_t early)
{
  for (uint32_t i = 1; i < args->node_count; i++) {
    struct pie_node *node = node_at(args, i);
    struct clone_args clone;
    int32_t tid = node->pid;
    if ((uint32_t)node->parent != self || node->early != early)
      continue;
    for (uint32_t word = 0; word < sizeof clone / 8; word++)
      ((volatile uint64_t *)(void *)&clone)[word] = 0;
    clone.exit_signal = node->exit_signal;
    clone.set_tid = (uint64_t)&tid;
    clone.set_tid_size = 1;
    pass_on(args, node, 0);
    long result = SYS2(SYS_clone3, &clone, sizeof clone);
    if (result == 0)
      pie_born(args, i);
    pass_on(args, node, 1);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_CLONE, result);
  }
}

#define TIOCSCTTY 0x540e
#define TIOCSPGRP 0x5410
#define TIOCNOTTY 0x5422

PIE_INLINE void
ask_terminal(struct pie_args *args, uint64_t request, uint64_t argument)
{
  long result = SYS3(SYS_ioctl, ((int32_t *)args->received)[args->terminal], request, argument);

  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, result);
}

/* Behind setsid(2), before those are born that inherit it. */
PIE_INLINE void
take_terminal(struct pie_args *args)
{
  if (args->control_kind == PIE_TAKES)
    ask_terminal(args, TIOCSCTTY, 0);
}

/* When all groups are there. */
PIE_INLINE void
settle_terminal(struct pie_args *args)
{
  if (args->control_kind == PIE_GIVES_UP)
    ask_terminal(args, TIOCNOTTY, 0);
  else if (args->control_kind == PIE_TAKES && args->foreground)
    ask_terminal(args, TIOCSPGRP, (uint64_t)&args->foreground);
}

/* Sessions and groups are opened as soon as who opens them is born; who only joins a group waits until all are. */
PIE_INLINE void
lead(struct pie_args *args, uint32_t self)
{
  struct pie_node *node = node_at(args, self);
  long result = 0;

  /* Nobody is born with what is another's: to copy its tables of pages would take longer than all else. */
  if (args->deposit_length)
    SYS3(SYS_madvise, args->deposit, args->deposit_length, MADV_DONTFORK);
  pie_give_birth(args, self, 1);
  /* The first has done it. */
  if (node->session == node->pid)
    result = self ? SYS0(SYS_setsid) : 0;
  else if (node->group == node->pid)
    result = SYS2(SYS_setpgid, 0, 0);
  if (result < 0)
    pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, result);
  /* A helper has the part of who it was forked from. */
  if (args->node == self)
    take_terminal(args);
  pie_give_birth(args, self, 0);
  arrive(&shared_of(args)->born);
}

PIE_INLINE void
join(struct pie_args *args, uint32_t self)
{
  struct pie_node *node = node_at(args, self);

  pie_await(args, self, &shared_of(args)->born.open, 1);
  if (node->group && node->group != node->pid && SYS1(SYS_getpgid, 0) != node->group) {
    long result = SYS2(SYS_setpgid, 0, node->group);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, result);
  }
  arrive(&shared_of(args)->joined);
  pie_await(args, self, &shared_of(args)->joined.open, 1);
}

/* Signals are blocked here, and SIGCHLD of a child that was waited for once would be told a second time: a disposition
 * by which it is ignored takes it back. */
PIE_CODE static __attribute__((noinline)) void
pie_gather(struct pie_args *args, uint32_t self)
{
  struct pie_signal none, own;
  int32_t info[32];

  none.handler = none.flags = none.restorer = none.mask = 0;
  SYS4(SYS_rt_sigaction, 17 /* SIGCHLD */, &none.handler, &own.handler, 8);
  for (uint32_t i = 1; i < args->node_count; i++) {
    struct pie_node *node = node_at(args, i);
    if ((uint32_t)node->parent != self || node->kind == PIE_PROCESS)
      continue;
    long result = node->kind == PIE_ZOMBIE ? SYS5(SYS_waitid, P_PID, node->pid, info, WNOWAIT_EXITED | __WALL, 0)
                                           : SYS4(SYS_wait4, node->pid, 0, __WALL, 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, result);
  }
  SYS4(SYS_rt_sigaction, 17, &none.handler, 0, 8);
  SYS4(SYS_rt_sigaction, 17, &own.handler, 0, 8);
}

/* As it ended once. What it would dump would be ours. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_end_again(struct pie_node *node)
{
  uint64_t none = 0, limit[2];
  struct pie_signal fatal;
  uint32_t signal = node->status & 0x7f;

  SYS2(SYS_prctl, PR_SET_NAME, node->name);
  limit[0] = limit[1] = 0;
  SYS4(SYS_prlimit64, 0, RLIMIT_CORE, limit, 0);
  if (signal) {
    fatal.handler = fatal.flags = fatal.restorer = fatal.mask = 0;
    SYS4(SYS_rt_sigaction, signal, &fatal.handler, 0, 8);
    SYS2(SYS_kill, SYS0(SYS_getpid), signal);
    SYS4(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &none, 0, 8);
  }
  for (;;)
    SYS1(SYS_exit_group, node->status >> 8 & 0xff);
}

PIE_CODE static __attribute__((noinline, noreturn)) void pie_restore_child(struct pie_args *args);

PIE_CODE static __attribute__((noinline, noreturn, used)) void
pie_become(struct pie_args *args)
{
  struct pie_args *first = first_of(args);

  args->status = first->status;
  args->fault = first->fault;
  for (int i = 0; i < PIE_RESOURCES; i++)
    args->most[i] = first->most[i];
  for (int i = 0; i < (int)sizeof args->fd_path; i++)
    args->fd_path[i] = first->fd_path[i];
  child_step(args, RAMET_STEP_CHILD_FAMILY);
  if (!args->leaves_late)
    pie_leave_old_memory(args);
  lead(args, args->node);
  if (args->leaves_late)
    pie_leave_old_memory(args);
  pie_map_memory(args);
  pie_take_part(args);
  pie_fill_memory(args);
  pie_protect_memory(args);
  pie_describe_memory(args);
  SYS1(SYS_umask, args->umask);
  pie_restore_child(args);
}

/* Nobody's memory, nobody's state: it is there for its number. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_stand_in(struct pie_args *args, uint32_t self)
{
  lead(args, self);
  join(args, self);
  /* Init would be told of what it has never seen. */
  pie_gather(args, self);
  pie_end_again(node_at(args, self));
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_born(struct pie_args *args, uint32_t self)
{
  struct pie_node *node = node_at(args, self);

  if (node->kind != PIE_PROCESS)
    pie_stand_in(args, self);
  struct pie_args *own = (struct pie_args *)node->args;
  uint64_t stack = ((struct pie_thread *)own->threads)->stack_top - 64;
  __asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tmov %1, %%rdi\n\tcall pie_become\n\thlt" ::"r"(stack),
                   "r"(own)
                   : "memory", "rdi");
  __builtin_unreachable();
}

/* The page that all of them see is this child's own, and not of the stem that it was forked from. */
PIE_INLINE void
found_family(struct pie_args *args)
{
  uint32_t processes = 0;

  child_step(args, RAMET_STEP_CHILD_FAMILY);
  long at =
      SYS6(SYS_mmap, args->shared, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if ((uint64_t)at != args->shared)
    pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, at);
  for (uint32_t i = 0; i < args->node_count; i++)
    processes += node_at(args, i)->kind == PIE_PROCESS;
  struct pie_shared *shared = shared_of(args);
  shared->born.left = shared->joined.left = args->node_count;
  shared->gathered.left = shared->ready.left = processes;
  lead(args, 0);
}

#define STOP_UNTOLD 0x100
#define STOPPED_CODE 5 /* CLD_STOPPED */
#define WSTOPPED 2
#define WAIT_STOP 0x01000006 /* WNOWAIT | WEXITED | WSTOPPED */

/* One that is stopped, and whose parent is there to hear of it. */
PIE_INLINE int
is_awaited(struct pie_args *args, struct pie_node *node)
{
  return node->kind == PIE_PROCESS && node->status && node->parent >= 0 &&
         node_at(args, (uint32_t)node->parent)->kind == PIE_PROCESS;
}

/* Before anybody runs, so that nobody's SIGCONT comes too early: a parent waits until its children are stopped, is
 * ready in their place, and hears of it again only where it had not asked. Helpers are gone by then: the end of the last
 * that makes a group no orphan would let those who are stopped in it go on, and hang them up. */
PIE_CODE static __attribute__((noinline)) void
pie_gather_stopped(struct pie_args *args)
{
  struct pie_signal none, own;
  int32_t info[32];

  none.handler = none.flags = none.restorer = none.mask = 0;
  arrive(&shared_of(args)->gathered);
  SYS4(SYS_rt_sigaction, 17 /* SIGCHLD */, &none.handler, &own.handler, 8);
  for (uint32_t i = 1; i < args->node_count; i++) {
    struct pie_node *node = node_at(args, i);
    if ((uint32_t)node->parent != args->node || !is_awaited(args, node))
      continue;
    long result = SYS5(SYS_waitid, P_PID, node->pid, info, WAIT_STOP | __WALL, 0);
    if (result == 0 && info[2] != STOPPED_CODE)
      result = -10 /* ECHILD */;
    if (result == 0 && !(node->status & STOP_UNTOLD))
      result = SYS5(SYS_waitid, P_PID, node->pid, info, WSTOPPED | __WALL, 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FAMILY, result);
    arrive(&shared_of(args)->ready);
  }
  SYS4(SYS_rt_sigaction, 17, &none.handler, 0, 8);
  SYS4(SYS_rt_sigaction, 17, &own.handler, 0, 8);
}

/* Here, behind everything but the return to the guest, and with its other threads behind a gate: SIGSTOP cannot be
 * blocked, so it cannot wait until then. By the same signal as once, which parents are told; where that would be caught,
 * by the one that cannot be. */
PIE_INLINE void
stop_again(uint32_t signal)
{
  struct pie_signal now;
  uint64_t all = MASK_ALL, but;

  now.handler = 0;
  SYS4(SYS_rt_sigaction, signal, 0, &now.handler, 8);
  if (now.handler)
    signal = 19 /* SIGSTOP */;
  but = ~((uint64_t)1 << (signal - 1));
  SYS4(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &but, 0, 8);
  if (SYS2(SYS_kill, SYS0(SYS_getpid), signal) < 0)
    SYS1(SYS_exit_group, 111);
  SYS4(SYS_rt_sigprocmask, 2, &all, 0, 8);
}

/* Before the first process tells that the sandbox runs, all are ready; and the twin stands still: what shares its memory
 * may not run while it does. */
PIE_INLINE void
await_others(struct pie_args *args)
{
  struct pie_shared *shared = shared_of(args);
  int awaited = is_awaited(args, node_at(args, args->node));
  uint8_t byte;

  if (args->node_count > 1 && !awaited)
    arrive(&shared->ready);
  if (awaited) {
    pie_await(args, args->node, &shared->gathered.open, 1);
  } else if (args->node) {
    pie_await(args, args->node, &shared->release.open, 1);
  } else {
    if (args->node_count > 1)
      pie_await(args, 0, &shared->ready.open, 1);
    if (SYS6(SYS_recvfrom, args->status, &byte, 1, 0, 0, 0) != 1)
      SYS1(SYS_exit_group, 111);
    pie_report(args->status, 0, 0, 0);
    if (args->node_count > 1)
      open_gate(&shared->release.open);
  }
  /* Not while somebody dies to be replaced by init as a parent. */
  if (args->death_signal)
    SYS2(SYS_prctl, PR_SET_PDEATHSIG, args->death_signal);
  if (args->subreaper)
    SYS2(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1);
}

/* But the code, and its own part, on whose stacks and frames its threads still are. */
PIE_INLINE void
give_region_back(struct pie_args *args)
{
  uint64_t code_end = ((struct pie_args *)args->first)->own;

  if (args->node)
    SYS2(SYS_munmap, code_end, args->own - code_end);
  SYS2(SYS_munmap, args->own_end, args->deposit + args->deposit_length - args->own_end);
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_finish(struct pie_args *args, struct pie_thread *thread, int first)
{
  uint64_t frame = thread->frame + 8;

  restore_thread(args, thread);
  restore_pending(args, thread);
  /* No thread may lose its capabilities before all exist: set_tid needs them. */
  meet(&args->waiting, &args->go);
  if (first) {
    lower_limits(args);
    restore_timers(args);
  }
  confine_thread(args);
  meet(&args->confined, &args->whole);
  if (first)
    filter_threads(args);
  /* No thread runs the guest before the first has closed the status socket. */
  if (first) {
    await_others(args);
    SYS1(SYS_close, args->status);
    uint32_t stop = node_at(args, args->node)->status & 0xff;
    give_region_back(args);
    if (stop)
      stop_again(stop);
    open_gate(&args->leave);
  } else {
    await_gate(&args->leave);
  }
  __asm__ volatile("mov %0, %%rsp\n\tmov %1, %%eax\n\tsyscall\n\thlt" ::"r"(frame), "i"(SYS_rt_sigreturn)
                   : "memory");
  __builtin_unreachable();
}

PIE_CODE static __attribute__((noinline, noreturn, used)) void
pie_thread_entry(struct pie_args *args, struct pie_thread *thread)
{
  pie_finish(args, thread, 0);
}

PIE_INLINE long
clone_thread(struct pie_args *args, struct pie_thread *thread)
{
  struct clone_args clone;
  int32_t tid = thread->tid;
  long result;

  for (uint32_t i = 0; i < sizeof clone / 8; i++)
    ((volatile uint64_t *)(void *)&clone)[i] = 0;
  clone.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  clone.stack = thread->stack_top - PIE_STACK_BYTES;
  clone.stack_size = PIE_STACK_BYTES - 64;
  clone.set_tid = (uint64_t)&tid;
  clone.set_tid_size = 1;
  register struct pie_args *r12 __asm__("r12") = args;
  register struct pie_thread *r13 __asm__("r13") = thread;
  /* The new thread has no frame to return to: it calls on from here. */
  __asm__ volatile("syscall\n\t"
                   "test %%rax, %%rax\n\t"
                   "jnz 1f\n\t"
                   "xor %%ebp, %%ebp\n\t"
                   "mov %%r12, %%rdi\n\t"
                   "mov %%r13, %%rsi\n\t"
                   "call pie_thread_entry\n\t"
                   "hlt\n"
                   "1:"
                   : "=a"(result)
                   : "a"(SYS_clone3), "D"(&clone), "S"(sizeof clone), "r"(r12), "r"(r13)
                   : "rcx", "r11", "memory");
  return result;
}

/* In the sandbox's namespaces, with its own memory and all received descriptors. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_restore_child(struct pie_args *args)
{
  struct pie_thread *thread = (struct pie_thread *)args->threads;
  int32_t status = args->status;

  map_shared(args);
  place_descriptors(args);
  restore_process(args);
  advise_late(args);
  if (args->node_count > 1) {
    join(args, args->node);
    pie_gather(args, args->node);
  }
  settle_terminal(args);
  args->waiting = args->confined = args->thread_count;
  args->go = args->whole = args->leave = 0;
  bound_capabilities(args);
  child_step(args, RAMET_STEP_CHILD_THREADS);
  for (uint32_t i = 1; i < args->thread_count; i++) {
    long result = clone_thread(args, &thread[i]);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_THREADS, result);
  }
  /* Everything above the guest's numbers but the status socket. */
  if (status > args->first_free)
    SYS3(SYS_close_range, args->first_free, status - 1, 0);
  SYS3(SYS_close_range, status + 1, (uint32_t)-1, 0);
  take_locks(args);
  if (args->node_count > 1)
    pie_gather_stopped(args);
  pie_finish(args, &thread[0], 1);
}

/* Before it has other threads, and before others are forked from it. */
PIE_INLINE void
enter_cgroups(struct pie_args *args, int32_t *order)
{
  child_step(args, RAMET_STEP_CHILD_CGROUP);
  for (int i = 0; i < order[PIE_ORDER_ENTRANCES]; i++) {
    int32_t entrance = order[PIE_ORDER_ENTRANCE + i];
    char self = '0';
    long result = order[PIE_ORDER_BORN_INSIDE] ? 0 : SYS3(SYS_write, entrance, &self, 1);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_CGROUP, result);
    SYS1(SYS_close, entrance);
  }
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_child(struct pie_args *args, int32_t *order)
{
  args->status = order[1];
  enter_cgroups(args, order);
  restore_early(args);
  receive_descriptors(args, order[2]);
  enter_namespaces(args, order[0], (uint32_t)order[PIE_ORDER_NAMESPACES]);
  if (args->node_count > 1)
    found_family(args);
  else
    take_terminal(args);
  pie_restore_child(args);
}

/* ---- orders --------------------------------------------------------------------------------------------------- */

PIE_INLINE void
clear_clone(struct clone_args *clone)
{
  for (uint32_t i = 0; i < sizeof *clone / 8; i++)
    ((volatile uint64_t *)(void *)clone)[i] = 0;
}

PIE_CODE static __attribute__((noinline, noreturn, used)) void
pie_child_entry(struct pie_args *args, int32_t *order)
{
  pie_child(args, order);
}

/* Runs in the passage, which shares the twin's memory while that sleeps (CLONE_VFORK). */
PIE_INLINE long
clone_child(struct pie_args *args, int32_t *fds)
{
  struct pie_thread *thread = (struct pie_thread *)args->threads;
  struct clone_args clone;
  int32_t tid = thread->tid;
  long pid;

  clear_clone(&clone);
  clone.exit_signal = 17; /* SIGCHLD */
  clone.set_tid = (uint64_t)&tid;
  clone.set_tid_size = 1;
  clone.flags = CLONE_VM;
  clone.stack = thread->stack_top - PIE_STACK_BYTES;
  clone.stack_size = PIE_STACK_BYTES - 64;
  if (fds[PIE_ORDER_BORN_INSIDE] && fds[PIE_ORDER_ENTRANCES]) {
    clone.flags |= CLONE_INTO_CGROUP;
    clone.cgroup = (uint64_t)fds[PIE_ORDER_ENTRANCE];
  }
  register struct pie_args *r12 __asm__("r12") = args;
  register int32_t *r13 __asm__("r13") = fds;
  __asm__ volatile("syscall\n\t"
                   "test %%rax, %%rax\n\t"
                   "jnz 1f\n\t"
                   "xor %%ebp, %%ebp\n\t"
                   "mov %%r12, %%rdi\n\t"
                   "mov %%r13, %%rsi\n\t"
                   "call pie_child_entry\n\t"
                   "hlt\n"
                   "1:"
                   : "=a"(pid)
                   : "a"(SYS_clone3), "D"(&clone), "S"(sizeof clone), "r"(r12), "r"(r13)
                   : "rcx", "r11", "memory");
  return pid;
}

/* The child as init's: made by a passage inside the pid namespace, which exits at once. Its number, or an error. */
PIE_CODE static __attribute__((noinline)) long
pie_place(struct pie_args *args, int32_t *fds, int *step)
{
  struct clone_args clone;
  int32_t tid = args->passage_tid;
  volatile long pid = 0;

  *step = RAMET_STEP_CHILD_PIDNS;
  if (pie_faulted(args, RAMET_STEP_CHILD_PIDNS))
    return -5; /* EIO */
  long result = SYS2(SYS_setns, fds[0], CLONE_NEWPID);
  if (result < 0)
    return result;
  *step = RAMET_STEP_CHILD_CLONE;
  if (pie_faulted(args, RAMET_STEP_CHILD_CLONE)) {
    SYS2(SYS_setns, args->own_pidns, CLONE_NEWPID);
    return -5; /* EIO */
  }
  clear_clone(&clone);
  clone.flags = CLONE_VM | CLONE_VFORK;
  clone.set_tid = (uint64_t)&tid;
  clone.set_tid_size = 1;
  long passage = SYS2(SYS_clone3, &clone, sizeof clone);
  if (passage == 0) {
    if (args->passage_leads)
      SYS0(SYS_setsid);
    pid = clone_child(args, fds);
    for (;;)
      SYS1(SYS_exit, 0);
  }
  if (passage > 0)
    SYS4(SYS_wait4, passage, 0, __WALL, 0);
  /* Else the twin would keep the sandbox's namespace alive, and its forks, stems to be, would come to be in there. */
  SYS2(SYS_setns, args->own_pidns, CLONE_NEWPID);
  return passage < 0 ? passage : pid;
}

/* The twin's whole life of its own: places the child, keeps two descriptors, asks to be traced, and stops. What it
 * ever executes afterwards core puts before it, while the child stands still. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_twin(struct pie_args *args, int32_t *fds)
{
  int step;

  SYS2(SYS_prctl, PR_SET_PDEATHSIG, 9 /* SIGKILL */);
  long pid = pie_place(args, fds, &step);
  /* Before init can notice that the socket to the child has closed. */
  if (pid < 0)
    pie_fail(fds[3], step, pid);
  long nursery = SYS3(SYS_fcntl, fds[3], F_DUPFD_CLOEXEC, args->first_free + 16);
  SYS3(SYS_dup3, args->own_pidns, TWIN_PIDNS, O_CLOEXEC);
  SYS3(SYS_dup3, nursery, TWIN_NURSERY, O_CLOEXEC);
  SYS3(SYS_close_range, 2, (uint32_t)-1, 0);
  pie_report(TWIN_NURSERY, 0, 0, SYS0(SYS_getpid));
  SYS4(SYS_ptrace, 0 /* PTRACE_TRACEME */, 0, 0, 0);
  for (;;)
    SYS2(SYS_kill, SYS0(SYS_getpid), 19 /* SIGSTOP */);
}

/* That there is none is said where it would speak itself, before anybody can notice by closed sockets. */
PIE_INLINE long
fork_twin(struct pie_args *args, int32_t *fds)
{
  struct clone_args clone;

  clear_clone(&clone);
  clone.flags = CLONE_PARENT;
  long pid = SYS2(SYS_clone3, &clone, sizeof clone);
  if (pid == 0)
    pie_twin(args, fds);
  if (pid < 0)
    pie_report(fds[3], RAMET_STEP_CHILD_CLONE, pid, 0);
  return pid;
}

/* One order with its descriptors, above the guest's numbers. 0, or -1: nobody is there to order anything. */
PIE_CODE static __attribute__((noinline)) int
pie_receive_order(struct pie_args *args, int socket, uint32_t *spare, int32_t *fds)
{
  struct pie_spawn order;
  int32_t got[PIE_SPAWN_FDS + PIE_ENTRANCES_MAX];
  long count = pie_receive(socket, &order, sizeof order, got, PIE_SPAWN_FDS + PIE_ENTRANCES_MAX);

  if (count < PIE_SPAWN_FDS || (uint32_t)count != PIE_SPAWN_FDS + order.entrances)
    return -1;
  for (int i = 0; i < count; i++) {
    int32_t *place = i < PIE_SPAWN_FDS ? &fds[i] : &fds[PIE_ORDER_ENTRANCE + i - PIE_SPAWN_FDS];
    *place = got[i];
    if (got[i] >= args->first_free)
      continue;
    *place = (int32_t)SYS3(SYS_fcntl, got[i], F_DUPFD_CLOEXEC, args->first_free);
    SYS1(SYS_close, got[i]);
  }
  fds[PIE_ORDER_NAMESPACES] = (int32_t)order.namespaces;
  fds[PIE_ORDER_BORN_INSIDE] = (int32_t)order.born_inside;
  fds[PIE_ORDER_ENTRANCES] = (int32_t)order.entrances;
  *spare = order.spare;
  args->fault = order.fault;
  for (int i = 0; i < PIE_RESOURCES; i++)
    args->most[i] = order.most[i];
  return 0;
}

/* Holds nothing of the stem's that tells of its end. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_spare(struct pie_args *args, int32_t *fds)
{
  int32_t socket = fds[0];
  uint32_t spare;

  SYS2(SYS_prctl, PR_SET_PDEATHSIG, 9 /* SIGKILL */);
  SYS1(SYS_close, args->control);
  if (args->node_count == 1)
    SYS1(SYS_close, args->pages);
  for (int i = 1; i < PIE_SPAWN_FDS; i++)
    SYS1(SYS_close, fds[i]);
  pie_warm(args);
  pie_report(socket, 0, 0, SYS0(SYS_getpid)); /* what it takes is weighed */
  /* That core has closed its end without having read this is told first, and once; the order is still there. */
  if (pie_receive_order(args, socket, &spare, fds) < 0 && pie_receive_order(args, socket, &spare, fds) < 0)
    for (;;)
      SYS1(SYS_exit_group, 0);
  SYS1(SYS_close, socket);
  pie_twin(args, fds);
}

PIE_INLINE void
close_order(const int32_t *fds)
{
  for (int i = 0; i < PIE_SPAWN_FDS; i++)
    SYS1(SYS_close, fds[i]);
  for (int i = 0; i < fds[PIE_ORDER_ENTRANCES]; i++)
    SYS1(SYS_close, fds[PIE_ORDER_ENTRANCE + i]);
}

/* For a spare that could not be: its order may be there already, and no other can follow. */
PIE_CODE static __attribute__((noinline)) void
stand_in(struct pie_args *args, int socket)
{
  int32_t fds[PIE_ORDER_WORDS];
  uint32_t spare;

  SYS2(SYS_shutdown, socket, 0 /* SHUT_RD */);
  if (pie_receive_order(args, socket, &spare, fds) < 0)
    return;
  fork_twin(args, fds);
  close_order(fds);
}

PIE_INLINE void
make_spare(struct pie_args *args, int32_t *fds)
{
  struct clone_args clone;

  if (fds[PIE_ORDER_NAMESPACES])
    pie_learn(args, fds[1]);
  clear_clone(&clone);
  clone.flags = CLONE_PARENT;
  long pid = SYS2(SYS_clone3, &clone, sizeof clone);
  if (pid == 0)
    pie_spare(args, fds);
  if (pid < 0)
    stand_in(args, fds[0]);
}

PIE_CODE static __attribute__((noinline)) void
pie_order(struct pie_args *args, int32_t *fds)
{
  long pid = fork_twin(args, fds);

  if (pid < 0)
    pie_report(args->control, RAMET_STEP_CHILD_CLONE, pid, 0);
  else
    pie_report(args->control, 0, 0, pid);
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_serve(struct pie_args *args)
{
  args->fault = 0;
  pie_report(args->control, 0, 0, SYS0(SYS_getpid));
  for (;;) {
    int32_t fds[PIE_ORDER_WORDS];
    uint32_t spare;
    if (pie_receive_order(args, args->control, &spare, fds) < 0)
      for (;;)
        SYS1(SYS_exit_group, 0);
    if (spare)
      make_spare(args, fds);
    else
      pie_order(args, fds);
    args->fault = 0;
    close_order(fds);
  }
}

/* The nursery is shared with the twin and with its other forks: the first message on it is a socket for this one. */
PIE_CODE __attribute__((noreturn)) void
pie_adopted(struct pie_args *args)
{
  uint64_t all = MASK_ALL;
  uint8_t byte;
  int32_t files[2];

  SYS4(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &all, 0, 8);
  SYS2(SYS_munmap, args->old_region, args->old_length);
  forget_signals();
  struct pie_signal *signal = (struct pie_signal *)args->signals;
  for (uint32_t i = 0; i < args->signal_count; i++, signal++)
    SYS4(SYS_rt_sigaction, signal->number, &signal->handler, 0, 8);
  if (pie_receive(TWIN_NURSERY, &byte, 1, files, 2) != 2)
    for (;;)
      SYS1(SYS_exit_group, 111);
  args->control = files[0];
  args->pages = files[1];
  args->own_pidns = TWIN_PIDNS;
  keep_descriptors(args);
  stem_step(args, RAMET_STEP_STEM_ADOPT);
  pie_fill_deposit(args);
  pie_serve(args);
}

PIE_CODE __attribute__((noreturn)) void
pie_stem(struct pie_args *args)
{
  uint64_t all = MASK_ALL;

  SYS4(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &all, 0, 8);
  pie_leave_old_memory(args);
  pie_map_memory(args);
  pie_fill_memory(args);
  pie_protect_memory(args);
  pie_describe_memory(args);
  keep_descriptors(args);
  pie_fill_deposit(args);
  pie_serve(args);
}
