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
 * Here are the orders; what they lead to is included once each: pages.h and deposit.h (a stem's memory, and what it keeps
 * for others), descriptors.h, late.h, state.h (a child), births.h (its other processes), child.h (their order), hot.h.
 *
 * No libc, no globals, no constants in memory, no stack protector, no vector registers: nothing of core's image is
 * mapped any more when this runs. scripts/check_elf.py reads the object and proves it. */
#define _GNU_SOURCE
#include "child.h"
#include "hot.h"

#include <linux/prctl.h>
#include <linux/sched.h>
#include <signal.h>

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
