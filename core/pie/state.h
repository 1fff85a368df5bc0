/* SPDX-License-Identifier: Apache-2.0
 * A child's namespaces, limits, threads' states, timers and confinement, each step of which stands where it does for what
 * it would hinder or allow elsewhere. */
#ifndef RAMET_PIE_STATE_H
#define RAMET_PIE_STATE_H

#include "late.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/resource.h>

#define ARCH_SET_GS 0x1001
#define ARCH_SET_FS 0x1002
#define ARCH_REQ_XCOMP_PERM 0x1023
#define PR_TIMER_RESTORE_IDS 77 /* Linux 6.15 */

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

#endif
