/* SPDX-License-Identifier: Apache-2.0
 * What a process is besides its memory and descriptors. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
struct ptrace_rseq_configuration {
  uint64_t rseq_abi_pointer;
  uint32_t rseq_abi_size, signature, flags, pad;
};
#endif
#ifndef ARCH_GET_XCOMP_PERM
#define ARCH_GET_XCOMP_PERM 0x1022 /* asm/prctl.h of Linux 5.16 */
#endif
#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

/* struct sigaction as the kernel has it; libc's is another. */
struct kernel_sigaction {
  uint64_t handler, flags, restorer, mask;
};

/* ---- questions to the process itself -------------------------------------------------------------------------- */

/* The answer is written into the page that the stack pointer is in, and the page's bytes are put back: below the
 * pointer may be another stack's data (runtimes with small stacks), above it is the program's own. */
int
capture_ask(struct capture *capture, struct tracee *thread, long number, const uint64_t args[6], int out_argument,
            void *out, size_t length, struct err *err)
{
  uint8_t saved[IMAGE_PAGE];
  uint64_t with[6], scratch = thread->registers.rsp & ~(uint64_t)(IMAGE_PAGE - 1);
  long result;

  memcpy(with, args, sizeof with);
  with[out_argument] = scratch;
  if (length > sizeof saved || pread(capture->memory, saved, length, (off_t)scratch) != (ssize_t)length)
    return capture_refuse(capture, err, "a thread has no stack to answer on");
  if (trace_syscall(thread, capture->syscall_address, number, with, &result, RAMET_STEP_INJECT, err) < 0)
    return -1;
  bool read_back = pread(capture->memory, out, length, (off_t)scratch) == (ssize_t)length;
  bool restored = pwrite(capture->memory, saved, length, (off_t)scratch) == (ssize_t)length;
  if (result < 0 || !read_back || !restored) {
    errno = result < 0 ? (int)-result : EIO;
    return err_step(err, RAMET_STEP_INJECT, "system call %ld in thread %d: %s", number, thread->tid,
                    strerror(errno));
  }
  return 0;
}

static int
ask_signal(struct capture *capture, uint32_t number, struct kernel_sigaction *action, struct err *err)
{
  const uint64_t args[6] = {number, 0, 0, 8};

  return capture_ask(capture, &capture->threads[0], SYS_rt_sigaction, args, 2, action, sizeof *action, err);
}

static int
ask_itimers(struct capture *capture, struct image_process *process, struct err *err)
{
  for (uint64_t which = 0; which < 3; which++) {
    const uint64_t args[6] = {which};
    if (capture_ask(capture, &capture->threads[0], SYS_getitimer, args, 1, process->itimers[which],
                    sizeof process->itimers[which], err) < 0)
      return -1;
  }
  return 0;
}

static int
ask_brk(struct capture *capture, struct image_process *process, struct err *err)
{
  const uint64_t args[6] = {0};
  long result;

  if (trace_syscall(&capture->threads[0], capture->syscall_address, SYS_brk, args, &result, RAMET_STEP_INJECT,
                    err) < 0)
    return -1;
  process->brk = (uint64_t)result;
  return 0;
}

/* Who it is to its parent and to its children's children. */
static int
ask_family(struct capture *capture, struct image_process *process, struct err *err)
{
  const uint64_t signal[6] = {PR_GET_PDEATHSIG}, subreaper[6] = {PR_GET_CHILD_SUBREAPER};

  if (capture_ask(capture, &capture->threads[0], SYS_prctl, signal, 1, &process->death_signal, 4, err) < 0 ||
      capture_ask(capture, &capture->threads[0], SYS_prctl, subreaper, 1, &process->subreaper, 4, err) < 0)
    return -1;
  capture->subreaper = process->subreaper;
  return 0;
}

int
capture_take_in(struct capture *capture, bool orphans, struct err *err)
{
  const uint64_t args[6] = {PR_SET_CHILD_SUBREAPER, orphans};
  long result;

  if (!capture->subreaper)
    return 0;
  if (trace_syscall(&capture->threads[0], capture->syscall_address, SYS_prctl, args, &result,
                    RAMET_STEP_FROZEN_TWIN, err) < 0)
    return -1;
  errno = (int)-result;
  return result < 0
             ? err_step(err, RAMET_STEP_FROZEN_TWIN, "prctl in process %d: %s", capture->pid, strerror(errno))
             : 0;
}

/* Which optional processor state it may use: only asked where there is such. */
static int
ask_features(struct capture *capture, struct image_process *process, struct err *err)
{
  const uint64_t args[6] = {ARCH_GET_XCOMP_PERM};

  if (arch_features_to_ask() == 0)
    return 0;
  if (capture_ask(capture, &capture->threads[0], SYS_arch_prctl, args, 1, &process->asked_features, 8, err) < 0)
    return -1;
  process->asked_features &= arch_features_to_ask();
  return 0;
}

static int
ask_thread(struct capture *capture, struct tracee *thread, struct image_thread *out, struct err *err)
{
  const uint64_t tid_args[6] = {PR_GET_TID_ADDRESS};
  const uint64_t stack_args[6] = {0};
  stack_t stack;

  if (capture_ask(capture, thread, SYS_prctl, tid_args, 1, &out->tid_address, 8, err) < 0 ||
      capture_ask(capture, thread, SYS_sigaltstack, stack_args, 1, &stack, sizeof stack, err) < 0)
    return -1;
  out->stack_address = (uint64_t)(uintptr_t)stack.ss_sp;
  out->stack_size = stack.ss_size;
  out->stack_flags = (uint32_t)stack.ss_flags;
  return 0;
}

/* ---- threads -------------------------------------------------------------------------------------------------- */

int
capture_tid_inside(int tid, char name[16])
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/status", tid);
  cleanup_free char *text = procfs_read(path, NULL);
  if (!text)
    return -1;
  procfs_copy_name(text, name);
  return procfs_inside(text, "NSpid");
}

static int
read_rseq(int tid, struct image_thread *out, struct err *err)
{
  struct ptrace_rseq_configuration rseq = {0};
  size_t length;
  uint64_t head = 0;

  if (sys_ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof rseq, (uintptr_t)&rseq) < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "rseq of thread %d: %s", tid, strerror(errno));
  if (syscall(SYS_get_robust_list, tid, &head, &length) < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "robust list of thread %d: %s", tid, strerror(errno));
  out->rseq = rseq.rseq_abi_pointer;
  out->rseq_length = rseq.rseq_abi_size;
  out->rseq_signature = rseq.signature;
  out->robust_list = head;
  return 0;
}

static int
put_pending(struct capture *capture, int index, bool shared, struct err *err)
{
  int tid = capture->threads[index].tid;
  struct ptrace_peeksiginfo_args args = {.flags = shared ? PTRACE_PEEKSIGINFO_SHARED : 0, .nr = 1};
  struct image_pending pending = {.thread = (uint32_t)index, .shared = shared};

  for (;; args.off++) {
    siginfo_t info;
    _Static_assert(sizeof info == sizeof pending.info, "siginfo_t has 128 bytes");
    long got = sys_ptrace(PTRACE_PEEKSIGINFO, tid, (uintptr_t)&args, (uintptr_t)&info);
    if (got < 0)
      return err_step(err, RAMET_STEP_REGISTERS, "pending signals of thread %d: %s", tid, strerror(errno));
    if (got == 0)
      return 0;
    /* It could not wait until the child runs: capture_stopped(). */
    if (info.si_signo == SIGSTOP)
      continue;
    memcpy(pending.info, &info, sizeof info);
    put_bytes(&capture->description, IMAGE_TAG_PENDING, &pending, sizeof pending);
  }
}

/* Registers of a thread in the image: of a call that it is in, it will be before it. */
static void
rewind_thread(struct capture *capture, const struct tracee *thread, arch_registers *registers)
{
  struct span known = capture->source->restarted;
  struct restarted now = {.tid = thread->tid};

  for (uint32_t at = 0; at + sizeof(struct restarted) <= known.length; at += sizeof(struct restarted)) {
    struct restarted before;
    memcpy(&before, known.data + at, sizeof before);
    if (before.tid == thread->tid)
      arch_recall(registers, &before.call);
  }
  if (arch_restarted_call(registers, &now.call))
    put_raw(&capture->tree->restarted, (struct span){(const uint8_t *)&now, sizeof now});
  arch_rewind_interrupted(registers);
}

/* What differs from that of a thread which nobody has told anything. */
static void
put_scheduling(struct capture *capture, int index)
{
  const struct tracee *thread = &capture->threads[index];
  struct image_scheduling scheduling = {.thread = (uint32_t)index};
  int policy = sched_getscheduler(thread->tid);

  errno = 0;
  int nice = getpriority(PRIO_PROCESS, (id_t)thread->tid);
  if (policy < 0 || errno || !thread->moved)
    return;
  _Static_assert(sizeof thread->processors == sizeof scheduling.processors, "1024 processors");
  scheduling.policy = (uint32_t)policy;
  scheduling.nice = nice;
  memcpy(scheduling.processors, &thread->processors, sizeof scheduling.processors);
  if (policy != SCHED_OTHER || nice || !CPU_EQUAL(&thread->processors, &capture->tree->everywhere))
    put_bytes(&capture->description, IMAGE_TAG_SCHEDULING, &scheduling, sizeof scheduling);
}

static int
put_thread(struct capture *capture, int index, struct err *err)
{
  struct tracee *thread = &capture->threads[index];
  struct {
    struct image_thread thread;
    uint8_t xstate[ARCH_XSTATE_MAX];
  } record = {.thread.registers = thread->registers};
  struct image_thread *out = &record.thread;
  struct iovec iov = {record.xstate, sizeof record.xstate};

  if (sys_ptrace(PTRACE_GETREGSET, thread->tid, NT_X86_XSTATE, (uintptr_t)&iov) < 0 ||
      iov.iov_len == sizeof record.xstate)
    return err_step(err, RAMET_STEP_REGISTERS, "extended state of thread %d: %s", thread->tid, strerror(errno));
  out->xstate_length = arch_trim_xstate(record.xstate, (uint32_t)iov.iov_len);
  rewind_thread(capture, thread, &out->registers);
  out->signal_mask = thread->signal_mask;
  out->fs_base = thread->registers.fs_base;
  out->gs_base = thread->registers.gs_base;
  out->tid = capture_tid_inside(thread->tid, out->name);
  if (out->tid <= 0)
    return err_step(err, RAMET_STEP_REGISTERS, "thread %d has no number inside", thread->tid);
  if (read_rseq(thread->tid, out, err) < 0 || ask_thread(capture, thread, out, err) < 0)
    return -1;
  put_bytes(&capture->description, IMAGE_TAG_THREAD, &record, sizeof record.thread + out->xstate_length);
  put_scheduling(capture, index);
  return put_pending(capture, index, false, err);
}

int
capture_threads(struct capture *capture, struct err *err)
{
  if (fault_here(RAMET_STEP_REGISTERS, err) < 0)
    return -1;
  for (int i = 0; i < capture->thread_count; i++)
    if (put_thread(capture, i, err) < 0)
      return -1;
  return put_pending(capture, 0, true, err);
}

/* ---- the process ---------------------------------------------------------------------------------------------- */

static uint64_t
signal_set(const struct capture *capture, const char *name)
{
  const char *text = procfs_field(capture->status, name);

  return text ? strtoull(text, NULL, 16) : 0;
}

static int
put_signals(struct capture *capture, struct err *err)
{
  uint64_t caught = signal_set(capture, "SigCgt"), ignored = signal_set(capture, "SigIgn");

  for (uint32_t number = 1; number <= 64; number++) {
    uint64_t bit = (uint64_t)1 << (number - 1);
    struct image_signal signal = {.number = number, .handler = (uint64_t)(uintptr_t)SIG_IGN};
    struct kernel_sigaction action;
    if (!((caught | ignored) & bit))
      continue;
    if (caught & bit) {
      if (ask_signal(capture, number, &action, err) < 0)
        return -1;
      signal.handler = action.handler;
      signal.flags = action.flags;
      signal.restorer = action.restorer;
      signal.mask = action.mask;
    }
    put_bytes(&capture->description, IMAGE_TAG_SIGNAL, &signal, sizeof signal);
  }
  return 0;
}

static void
read_layout(const char *stat, struct image_process *process)
{
  process->start_code = procfs_stat_field(stat, 26);
  process->end_code = procfs_stat_field(stat, 27);
  process->start_stack = procfs_stat_field(stat, 28);
  process->start_data = procfs_stat_field(stat, 45);
  process->end_data = procfs_stat_field(stat, 46);
  process->start_brk = procfs_stat_field(stat, 47);
  process->arg_start = procfs_stat_field(stat, 48);
  process->arg_end = procfs_stat_field(stat, 49);
  process->env_start = procfs_stat_field(stat, 50);
  process->env_end = procfs_stat_field(stat, 51);
}

/* tty_nr: whether that terminal is one of the sandbox's own tells the session that it has. */
static uint32_t
terminal_of(const char *stat)
{
  dev_t device = (dev_t)procfs_stat_field(stat, 7);

  return major(device) == UNIX98_SLAVES ? minor(device) + 1 : 0;
}

static int
read_rlimits(int pid, struct image_process *process, struct err *err)
{
  for (int resource = 0; resource < RLIM_NLIMITS && resource < 16; resource++)
    if (syscall(SYS_prlimit64, pid, resource, NULL, process->rlimits[resource]) < 0)
      return err_step(err, RAMET_STEP_REGISTERS, "limits of %d: %s", pid, strerror(errno));
  return 0;
}

static int
put_link(struct capture *capture, const char *name, uint16_t tag, char *copy, size_t size, struct err *err)
{
  char path[48], target[4096];

  snprintf(path, sizeof path, "/proc/%d/%s", capture->pid, name);
  ssize_t length = readlink(path, target, sizeof target - 1);
  if (length < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "read %s: %s", path, strerror(errno));
  target[length] = 0;
  if (copy)
    snprintf(copy, size, "%.*s", (int)(size - 1), target);
  if (tag)
    put_bytes(&capture->description, tag, target, (size_t)length);
  return 0;
}

static int
put_auxv(struct capture *capture, struct err *err)
{
  char path[48];
  size_t length;

  snprintf(path, sizeof path, "/proc/%d/auxv", capture->pid);
  cleanup_free char *auxv = procfs_read(path, &length);
  if (!auxv)
    return err_step(err, RAMET_STEP_REGISTERS, "read %s: %s", path, strerror(errno));
  put_bytes(&capture->description, IMAGE_TAG_AUXV, auxv, length);
  return 0;
}

static int
read_status(const struct capture *capture, struct image_process *process, struct err *err)
{
  const char *umask_text = procfs_field(capture->status, "Umask");
  const char *thp = procfs_field(capture->status, "THP_enabled");
  char path[48];

  process->umask = umask_text ? (uint32_t)strtoul(umask_text, NULL, 8) : 022;
  process->no_thp = thp && thp[0] == '0';
  snprintf(path, sizeof path, "/proc/%d/personality", capture->pid);
  cleanup_free char *personality = procfs_read(path, NULL);
  if (!personality)
    return err_step(err, RAMET_STEP_REGISTERS, "read %s: %s", path, strerror(errno));
  process->personality = (uint32_t)strtoul(personality, NULL, 16);
  return 0;
}

/* A child could not go where there is nothing, and is not to go where something else is. */
static int
refuse_gone_directory(struct capture *capture, struct err *err)
{
  char path[48], target[4096];
  struct stat st;

  snprintf(path, sizeof path, "/proc/%d/cwd", capture->pid);
  cleanup_fd int cwd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  ssize_t length = readlink(path, target, sizeof target - 1);
  if (length < 0 || cwd < 0 || fstat(cwd, &st) < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "%s: %s", path, strerror(errno));
  target[length] = 0;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", cwd);
  cleanup_free char *info = procfs_read(path, NULL);
  if (capture_leads(capture, target, &st, info))
    return 0;
  return capture_refuse(capture, err,
                        st.st_nlink == 0 || capture_ends_deleted(target) ? "its working directory was removed"
                                                                         : "its working directory has no path");
}

int
capture_process(struct capture *capture, struct err *err)
{
  struct image_process process = {.relations = capture->relations, .thread_count = (uint32_t)capture->thread_count};
  char path[48];

  if (fault_here(RAMET_STEP_INJECT, err) < 0)
    return -1;
  snprintf(path, sizeof path, "/proc/%d/stat", capture->pid);
  cleanup_free char *stat = procfs_read(path, NULL);
  if (!stat)
    return err_step(err, RAMET_STEP_REGISTERS, "read %s: %s", path, strerror(errno));
  read_layout(stat, &process);
  process.terminal = terminal_of(stat);
  process.stopped = capture->stopped;
  if (read_status(capture, &process, err) < 0 || refuse_gone_directory(capture, err) < 0 ||
      read_rlimits(capture->pid, &process, err) < 0 || ask_brk(capture, &process, err) < 0 ||
      ask_itimers(capture, &process, err) < 0 || ask_features(capture, &process, err) < 0 ||
      ask_family(capture, &process, err) < 0 ||
      put_link(capture, "exe", 0, process.exe, sizeof process.exe, err) < 0)
    return -1;
  put_bytes(&capture->description, IMAGE_TAG_PROCESS, &process, sizeof process);
  if (put_link(capture, "cwd", IMAGE_TAG_CWD, NULL, 0, err) < 0 || put_auxv(capture, err) < 0)
    return -1;
  return put_signals(capture, err);
}
