/* SPDX-License-Identifier: Apache-2.0
 * A child from its twin to the return to the guest. */
#ifndef RAMET_PIE_CHILD_H
#define RAMET_PIE_CHILD_H

#include "births.h"

#include <linux/prctl.h>
#include <linux/sched.h>
#include <signal.h>

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

#endif
