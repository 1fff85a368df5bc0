/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "trace.h"

#include <linux/ptrace.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "procfs.h"

#define THREADS_AT_ONCE 1024
#define SYSCALL_STOP (SIGTRAP | 0x80)

static struct timespec patience_ends;

static void
on_alarm(int number)
{
  (void)number; /* only to interrupt waitpid */
}

int
trace_setup(unsigned milliseconds, struct err *err)
{
  struct sigaction action = {.sa_handler = on_alarm};
  struct itimerval every = {{0, 50000}, {0, 50000}};
  sigset_t set;

  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  clock_gettime(CLOCK_MONOTONIC, &patience_ends);
  patience_ends.tv_sec += milliseconds / 1000;
  patience_ends.tv_nsec += (long)(milliseconds % 1000) * 1000000;
  if (sigaction(SIGALRM, &action, NULL) < 0 || sigprocmask(SIG_UNBLOCK, &set, NULL) < 0 ||
      setitimer(ITIMER_REAL, &every, NULL) < 0)
    return err_code(err, "internal", "alarm: %s", strerror(errno));
  return 0;
}

bool
trace_patience_over(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec > patience_ends.tv_sec ||
         (now.tv_sec == patience_ends.tv_sec && now.tv_nsec > patience_ends.tv_nsec);
}

static int
wait_for(int tid, int *status)
{
  for (;;) {
    if (waitpid(tid, status, __WALL) == tid)
      return 0;
    if (errno != EINTR)
      return -1;
    if (trace_patience_over()) {
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

/* Until PTRACE_EVENT_STOP. A signal that is just being delivered is handed on: the handler's frame is set up, and
 * the stop, which is pending, comes before its first instruction. 1: the thread has ended. */
static int
wait_event_stop(struct tracee *tracee, struct err *err)
{
  int status;

  for (;;) {
    if (wait_for(tracee->tid, &status) < 0)
      return err_step(err, RAMET_STEP_SEIZE, "thread %d does not stop: %s", tracee->tid, strerror(errno));
    if (!WIFSTOPPED(status))
      return 1;
    if (status >> 16 == PTRACE_EVENT_STOP) {
      tracee->stopped = WSTOPSIG(status) != SIGTRAP;
      return 0;
    }
    int hand_on = status >> 16 == 0 && WSTOPSIG(status) != SYSCALL_STOP ? WSTOPSIG(status) : 0;
    if (sys_ptrace(PTRACE_CONT, tracee->tid, 0, hand_on) < 0)
      return err_step(err, RAMET_STEP_SEIZE, "continue thread %d: %s", tracee->tid, strerror(errno));
  }
}

static int
read_thread(struct tracee *tracee, struct err *err)
{
  if (sys_ptrace(PTRACE_GETREGS, tracee->tid, 0, (uintptr_t)&tracee->registers) < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "registers of thread %d: %s", tracee->tid, strerror(errno));
  if (sys_ptrace(PTRACE_GETSIGMASK, tracee->tid, 8, (uintptr_t)&tracee->signal_mask) < 0)
    return err_step(err, RAMET_STEP_REGISTERS, "signal mask of thread %d: %s", tracee->tid, strerror(errno));
  return 0;
}

static bool
known(const struct tracee *tracees, int count, int tid)
{
  for (int i = 0; i < count; i++)
    if (tracees[i].tid == tid)
      return true;
  return false;
}

/* Attaches to the threads that are not attached yet; all are interrupted before any is waited for. */
static int
seize_new(int pid, struct tracee *tracees, int *count, struct err *err)
{
  int tids[THREADS_AT_ONCE], first = *count;
  int found = procfs_threads(pid, tids, THREADS_AT_ONCE);

  if (found < 0 || found == THREADS_AT_ONCE)
    return err_step(err, RAMET_STEP_SEIZE, "threads of %d: %s", pid, found < 0 ? strerror(errno) : "too many");
  for (int i = 0; i < found; i++) {
    if (known(tracees, *count, tids[i]))
      continue;
    if (sys_ptrace(PTRACE_SEIZE, tids[i], 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE) < 0) {
      if (errno == ESRCH)
        continue; /* ended since */
      return err_step(err, RAMET_STEP_SEIZE, "attach to thread %d: %s", tids[i], strerror(errno));
    }
    if (sys_ptrace(PTRACE_INTERRUPT, tids[i], 0, 0) < 0 && errno != ESRCH)
      return err_step(err, RAMET_STEP_SEIZE, "interrupt thread %d: %s", tids[i], strerror(errno));
    tracees[(*count)++] = (struct tracee){.tid = tids[i]};
  }
  for (int i = first; i < *count; i++) {
    int stopped = wait_event_stop(&tracees[i], err);
    if (stopped < 0)
      return -1;
    if (stopped == 1) {
      tracees[i--] = tracees[--*count];
      continue;
    }
    if (read_thread(&tracees[i], err) < 0)
      return -1;
  }
  return *count - first;
}

int
trace_stop_process(int pid, struct tracee **out, int *count, struct err *err)
{
  struct tracee *tracees = calloc(THREADS_AT_ONCE, sizeof *tracees);
  int new_ones;

  if (!tracees)
    return err_code(err, "internal", "no memory for threads");
  *out = tracees;
  *count = 0;
  if (fault_here(RAMET_STEP_SEIZE, err) < 0)
    return -1;
  /* A thread that runs may start another until it is stopped itself: until a round finds none. */
  do
    new_ones = seize_new(pid, tracees, count, err);
  while (new_ones > 0);
  if (new_ones < 0)
    return -1;
  for (int i = 1; i < *count; i++)
    if (tracees[i].tid == pid) {
      struct tracee leader = tracees[i];
      tracees[i] = tracees[0];
      tracees[0] = leader;
    }
  if (*count == 0 || tracees[0].tid != pid) {
    errno = ESRCH;
    return err_step(err, RAMET_STEP_SEIZE, "process %d is exiting", pid);
  }
  return 0;
}

int
trace_adopt(int tid, struct tracee *tracee, struct err *err)
{
  *tracee = (struct tracee){.tid = tid};
  return wait_event_stop(tracee, err) != 0 ? err_step(err, RAMET_STEP_FROZEN_TWIN, "process %d is gone", tid)
                                           : read_thread(tracee, err);
}

static int
continue_to_syscall_stop(struct tracee *tracee, enum ramet_step step, struct err *err)
{
  int status;

  if (sys_ptrace(PTRACE_SYSCALL, tracee->tid, 0, 0) < 0 || wait_for(tracee->tid, &status) < 0)
    return err_step(err, step, "system call in thread %d: %s", tracee->tid, strerror(errno));
  if (WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_CLONE)
    return 1;
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SYSCALL_STOP) {
    errno = ESRCH;
    return err_step(err, step, "thread %d stopped with status %#x", tracee->tid, (unsigned)status);
  }
  return 0;
}

/* To the stop at the entry of the call. Signals stay away until the mask is given back. */
static int
start_syscall(struct tracee *tracee, uint64_t address, long number, const uint64_t args[6], enum ramet_step step,
              struct err *err)
{
  arch_registers registers = arch_prepare_syscall(&tracee->registers, address, number, args);
  uint64_t all = ~(uint64_t)0;

  if (!tracee->injected && sys_ptrace(PTRACE_SETSIGMASK, tracee->tid, 8, (uintptr_t)&all) < 0)
    return err_step(err, step, "mask signals of thread %d: %s", tracee->tid, strerror(errno));
  tracee->injected = true;
  if (sys_ptrace(PTRACE_SETREGS, tracee->tid, 0, (uintptr_t)&registers) < 0)
    return err_step(err, step, "set registers of thread %d: %s", tracee->tid, strerror(errno));
  return continue_to_syscall_stop(tracee, step, err) != 0 ? -1 : 0;
}

static int
read_result(struct tracee *tracee, long *result, enum ramet_step step, struct err *err)
{
  arch_registers registers;

  if (sys_ptrace(PTRACE_GETREGS, tracee->tid, 0, (uintptr_t)&registers) < 0)
    return err_step(err, step, "result of thread %d: %s", tracee->tid, strerror(errno));
  *result = arch_syscall_result(&registers);
  return 0;
}

int
trace_syscall(struct tracee *tracee, uint64_t address, long number, const uint64_t args[6], long *result,
              enum ramet_step step, struct err *err)
{
  if (start_syscall(tracee, address, number, args, step, err) < 0 ||
      continue_to_syscall_stop(tracee, step, err) != 0)
    return -1;
  return read_result(tracee, result, step, err);
}

int
trace_clone(struct tracee *tracee, uint64_t address, uint64_t flags, int *tid, long *inside, enum ramet_step step,
            struct err *err)
{
  const uint64_t args[6] = {flags};
  unsigned long message = 0;

  if (start_syscall(tracee, address, SYS_clone, args, step, err) < 0)
    return -1;
  int stop = continue_to_syscall_stop(tracee, step, err);
  if (stop < 0 || (stop == 0 && read_result(tracee, inside, step, err) < 0))
    return -1;
  if (stop == 0) {
    errno = (int)-*inside;
    return err_step(err, step, "clone in thread %d: %s", tracee->tid, strerror(errno));
  }
  if (sys_ptrace(PTRACE_GETEVENTMSG, tracee->tid, 0, (uintptr_t)&message) < 0)
    return err_step(err, step, "the clone's number: %s", strerror(errno));
  *tid = (int)message;
  if (continue_to_syscall_stop(tracee, step, err) != 0)
    return -1;
  return read_result(tracee, inside, step, err);
}

/* Back to a stop inside the kernel's signal delivery, with the registers of old: there the kernel itself decides
 * whether an interrupted system call is restarted, as it would have without us, also when a signal came meanwhile. */
static int
give_back(struct tracee *tracee, struct err *err)
{
  struct tracee again = *tracee;

  if (sys_ptrace(PTRACE_SETREGS, tracee->tid, 0, (uintptr_t)&tracee->registers) < 0 ||
      sys_ptrace(PTRACE_SETSIGMASK, tracee->tid, 8, (uintptr_t)&tracee->signal_mask) < 0 ||
      sys_ptrace(PTRACE_INTERRUPT, tracee->tid, 0, 0) < 0 || sys_ptrace(PTRACE_CONT, tracee->tid, 0, 0) < 0)
    return err_step(err, RAMET_STEP_RESUME, "give registers back to thread %d: %s", tracee->tid, strerror(errno));
  return wait_event_stop(&again, err) < 0 ? -1 : 0;
}

int
trace_release(struct tracee *tracees, int count, struct err *err)
{
  int result = 0;

  for (int i = 0; i < count; i++)
    if (tracees[i].injected && give_back(&tracees[i], err) < 0)
      result = -1;
  for (int i = 0; i < count; i++)
    if (sys_ptrace(PTRACE_DETACH, tracees[i].tid, 0, 0) < 0 && errno != ESRCH) {
      err_step(err, RAMET_STEP_RESUME, "detach from thread %d: %s", tracees[i].tid, strerror(errno));
      result = -1;
    }
  return result;
}

void
trace_kill(int tid)
{
  int status;

  kill(tid, SIGKILL);
  while (wait_for(tid, &status) == 0 && WIFSTOPPED(status))
    continue;
}
