/* SPDX-License-Identifier: Apache-2.0
 * ptrace(2), for the time of a snapshot: stop threads where they are, read them, let them execute a system call,
 * let them run on as if nothing had been. Only the tracer process uses it: it blocks. */
#ifndef RAMET_TRACE_H
#define RAMET_TRACE_H

#include <linux/ptrace.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arch/x86_64/registers.h"
#include "err.h"

/* libc's <sys/ptrace.h> does not go with <linux/ptrace.h>, and has not all requests. */
static inline long
sys_ptrace(long request, int tid, uintptr_t address, uintptr_t data)
{
  return syscall(SYS_ptrace, request, tid, address, data);
}

#define TRACE_THREADS_MAX 1024

struct tracee {
  int tid; /* as the tracer sees it */
  bool running; /* attached, but not stopped */
  bool let_go;  /* and not asked to stop since it runs */
  arch_registers registers;
  uint64_t signal_mask;
  bool injected; /* its registers were replaced */
  int stopped;   /* the signal that has stopped its process; 0: none */
  bool moved;    /* to the tracer's processor; `processors` are its own */
  cpu_set_t processors;
};

/* `touched` is set before registers of a thread are replaced for the first time. Bounds the time until a process stands still, and the time of each system call in it: ETIMEDOUT. */
int trace_setup(unsigned milliseconds, volatile bool *touched, struct err *err) MUST_CHECK;
bool trace_patience_over(void);

/* Asks all threads of a process to stop, and waits for none. Code "unforkable": the text is what the process does that
 * forbids it; "exiting": it ends. */
int trace_seize_process(int pid, struct tracee **tracees, int *count, struct err *err) MUST_CHECK;
/* Waits for them, and for those that appear meanwhile; the first is the leader then. 1 or more: a thread waits in
 * vfork(2) for a child, which may be one that stands still; to be called again. */
int trace_stop_process(int pid, struct tracee *tracees, int *count, struct err *err) MUST_CHECK;
/* Asks those that were let go. One that stops already is not asked twice: it would stop again when it is to run. */
int trace_interrupt(struct tracee *tracees, int count, struct err *err) MUST_CHECK;
/* Lets one run on for a while, until all that run are stopped again. */
int trace_run_on(struct tracee *tracee, struct err *err) MUST_CHECK;
/* Of a process that stop signals hold: takes those back. All its threads stand still as those do that ran. */
int trace_thaw(int pid, struct tracee *tracees, int *count, struct err *err) MUST_CHECK;
int trace_stop_again(int pid, struct tracee *tracees, int *count, struct err *err) MUST_CHECK;
/* `stopped` as it is now: SIGCONT may have come since. */
int trace_look_again(struct tracee *tracee, struct err *err) MUST_CHECK;
/* From inside a system call of a process that is stopped, to the end of that or the next one and no further. */
int trace_step_call(struct tracee *tracee, struct err *err) MUST_CHECK;
/* Attached by the kernel (PTRACE_O_TRACECLONE): waits for its first stop. */
int trace_adopt(int tid, struct tracee *tracee, struct err *err) MUST_CHECK;

/* `result` gets the kernel's return value, negative for an error. */
int trace_syscall(struct tracee *tracee, uint64_t address, long number, const uint64_t args[6], long *result,
                  enum ramet_step step, struct err *err) MUST_CHECK;
/* The same for a clone: `tid` gets the new thread or process, attached and stopped; `inside` its number as the
 * tracee sees it. */
int trace_clone(struct tracee *tracee, uint64_t address, uint64_t flags, int *tid, long *inside,
                enum ramet_step step, struct err *err) MUST_CHECK;

/* A stop and what follows it cost ten times as much when tracer and tracee run on two processors that wake each other.
 * Failure only means that. */
void trace_stay_here(cpu_set_t *before);
void trace_move_here(int tid);

int trace_release(struct tracee *tracees, int count, struct err *err) MUST_CHECK;
/* Kills a traced process that never ran and takes its exit. */
void trace_kill(int tid);

#endif
