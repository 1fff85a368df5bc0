/* SPDX-License-Identifier: Apache-2.0
 * The other processes of a child: forked by their parents or by who dies for them, with their sessions, groups, terminal,
 * and those that had stopped or ended. */
#ifndef RAMET_PIE_BIRTHS_H
#define RAMET_PIE_BIRTHS_H

#include "deposit.h"
#include "descriptors.h"
#include "state.h"

#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

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

#endif
