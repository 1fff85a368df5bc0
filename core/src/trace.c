/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "trace.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/ptrace.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "procfs.h"

#define SYSCALL_STOP (SIGTRAP | 0x80)
/* How often one looks whether what is waited for will ever come. A parent in vfork(2) is found by this. */
#define TICK_US 5000

static volatile bool *touched; /* NULL: nobody asks */
static unsigned patience_ms;
static struct timespec patience_ends;

static volatile sig_atomic_t attaching; /* to a thread of this process; 0: to none */

/* Stops of a tracee are told of whatever is asked for, so this looks first. */
static void
take_exit(int tid)
{
  siginfo_t told = {0};

  if (waitid(P_PID, (id_t)tid, &told, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 && told.si_pid &&
      (told.si_code == CLD_EXITED || told.si_code == CLD_KILLED || told.si_code == CLD_DUMPED))
    waitid(P_PID, (id_t)tid, &told, WEXITED | WNOHANG | __WALL);
}

/* A thread in execve(2) waits until the others of its process have ended: of those that are attached, or were started
 * by such, that is when their tracer has taken their exits, of which nobody needs to know more. Without memory of its
 * own: it is called by a signal. */
static void
take_exits(int tid)
{
  _Alignas(struct dirent) char buffer[2048];
  char path[32];
  long length;

  snprintf(path, sizeof path, "/proc/%d/task", tid);
  int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  while (dir >= 0 && (length = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) > 0)
    for (long at = 0; at < length; at += ((const struct dirent *)(const void *)(buffer + at))->d_reclen)
      take_exit(atoi(((const struct dirent *)(const void *)(buffer + at))->d_name));
  if (dir >= 0)
    close(dir);
}

/* It interrupts waitpid. And PTRACE_SEIZE, which sleeps for as long as a thread of the process is in execve(2), and is
 * called again by the kernel. */
static void
on_alarm(int number)
{
  int before = errno;

  (void)number;
  if (attaching)
    take_exits(attaching);
  errno = before;
}

/* The alarm is for what would wait without end; whatever else may sleep (terminals do) is not to be interrupted by it. */
static void
heed_alarm(bool heeds)
{
  sigset_t set;

  if (!patience_ms)
    return; /* core itself has none */
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  sigprocmask(heeds ? SIG_UNBLOCK : SIG_BLOCK, &set, NULL);
}

static void
renew_patience(void)
{
  clock_gettime(CLOCK_MONOTONIC, &patience_ends);
  patience_ends.tv_sec += patience_ms / 1000;
  patience_ends.tv_nsec += (long)(patience_ms % 1000) * 1000000;
}

int
trace_setup(unsigned milliseconds, volatile bool *touched_, struct err *err)
{
  struct sigaction action = {.sa_handler = on_alarm};
  struct itimerval every = {{0, TICK_US}, {0, TICK_US}};

  touched = touched_;
  patience_ms = milliseconds;
  renew_patience();
  heed_alarm(false);
  if (sigaction(SIGALRM, &action, NULL) < 0 || setitimer(ITIMER_REAL, &every, NULL) < 0)
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

/* 0: `status` is there. 1: none will come, the thread is gone. */
static int
wait_for(int tid, int *status)
{
  int child;

  for (;;) {
    heed_alarm(true);
    int waited = waitpid(tid, status, __WALL), number = errno;
    heed_alarm(false);
    errno = number;
    if (waited == tid)
      return 0;
    if (errno == ECHILD)
      return 1; /* another thread has called exec */
    if (errno != EINTR)
      return -1;
    take_exits(tid);
    char state = procfs_state(tid);
    /* The first thread, when others live on: a zombie that nobody can wait for. */
    if (state == 'Z')
      return 1;
    /* In vfork(2) it waits for its child, before it stops for anybody. */
    bool in_vfork = state == 'D' && procfs_children(tid, &child, 1) > 0;
    if (in_vfork || trace_patience_over()) {
      errno = in_vfork ? EBUSY : ETIMEDOUT;
      return -1;
    }
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

/* ---- stopping ------------------------------------------------------------------------------------------------- */

/* Of a wait: the thread has ended; it waits for its child, which may stand still itself. */
#define ENDED 1
#define IN_VFORK 2

struct stopping {
  struct tracee *tracees;
  int count;
  bool passing; /* of the last listing one has ended since: it may lack others */
  struct err *err;
};

/* The caller puts the process's name in front. */
static int
refuse(struct stopping *s, const char *why)
{
  return err_code(s->err, "unforkable", "%s", why);
}

static bool
is_known(const struct stopping *s, int tid)
{
  for (int i = 0; i < s->count; i++)
    if (s->tracees[i].tid == tid)
      return true;
  return false;
}

static int
add_tracee(struct stopping *s, int tid)
{
  if (is_known(s, tid))
    return 0;
  if (s->count == TRACE_THREADS_MAX)
    return refuse(s, "has too many threads");
  s->tracees[s->count++] = (struct tracee){.tid = tid, .running = true};
  return 0;
}

/* What a traced thread starts is traced from the start, and stops before its first instruction. */
static int
add_cloned(struct stopping *s, int tid)
{
  unsigned long cloned = 0;

  if (sys_ptrace(PTRACE_GETEVENTMSG, tid, 0, (uintptr_t)&cloned) < 0)
    return err_step(s->err, RAMET_STEP_SEIZE, "the number of a new thread: %s", strerror(errno));
  return add_tracee(s, (int)cloned);
}

/* Until PTRACE_EVENT_STOP. Every other stop takes the place of the one that was asked for (ptrace_stop() of the kernel:
 * "any trap clears pending STOP trap"), so it is asked for again, or a thread that starts others would never stop. A
 * signal that is just being delivered is handed on: the handler's frame is set up, and the stop comes before its first
 * instruction. Or ENDED, or IN_VFORK. */
static int
wait_event_stop(struct stopping *s, struct tracee *tracee)
{
  int status, tid = tracee->tid;

  for (;;) {
    int waited = wait_for(tid, &status);
    if (waited < 0 && errno == EBUSY)
      return IN_VFORK;
    if (waited < 0)
      return err_step(s->err, RAMET_STEP_SEIZE, "thread %d does not stop: %s", tid, strerror(errno));
    if (waited == 1 || !WIFSTOPPED(status))
      return ENDED;
    int event = status >> 16;
    if (event == PTRACE_EVENT_STOP) {
      tracee->stopped = WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0;
      tracee->running = false;
      if (read_thread(tracee, s->err) == 0)
        return 0;
      if (s->err->number != ESRCH)
        return -1;
      tracee->running = true; /* killed since: the next that is heard of it is that */
      continue;
    }
    if (event == PTRACE_EVENT_CLONE && add_cloned(s, tid) < 0)
      return -1;
    int hand_on = event == 0 && WSTOPSIG(status) != SYSCALL_STOP ? WSTOPSIG(status) : 0;
    if ((sys_ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 || sys_ptrace(PTRACE_CONT, tid, 0, (uintptr_t)hand_on) < 0) &&
        errno != ESRCH)
      return err_step(s->err, RAMET_STEP_SEIZE, "continue thread %d: %s", tid, strerror(errno));
  }
}

/* 0: another thread is the first now, by execve(2). */
static int
refuse_without_leader(struct stopping *s, int pid)
{
  /* A thread that has taken its SIGKILL off the list and not begun to exit shows neither for a moment. */
  for (int i = 0; i < 5; i++) {
    if (procfs_exiting(pid))
      return err_code(s->err, "exiting", "is exiting");
    if (procfs_state(pid) != 'Z')
      return 0;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  return refuse(s, "lives on without its first thread");
}

static long
attach(int pid, int tid)
{
  attaching = pid;
  heed_alarm(true);
  long result = sys_ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE);
  int number = errno;
  heed_alarm(false);
  attaching = 0;
  errno = number;
  return result;
}

/* Of threads that execve(2) is replacing: a thread that has ended already, or whose number another has taken since. */
#define SEIZE_TURNS 50

/* 1: it passes, and the listing with it. */
static int
seize_thread(struct stopping *s, int pid, int tid, int turn)
{
  if (attach(pid, tid) == 0) {
    if (sys_ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 && errno != ESRCH)
      return err_step(s->err, RAMET_STEP_SEIZE, "interrupt thread %d: %s", tid, strerror(errno));
    return add_tracee(s, tid);
  }
  int number = errno, tracer = procfs_tracer(tid);
  /* By execve(2) one of ours has become the first, and goes by another number than it was known by. */
  if (tracer == getpid() && tid == pid && procfs_state(tid) != 'Z') {
    if (sys_ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 && errno != ESRCH)
      return err_step(s->err, RAMET_STEP_SEIZE, "interrupt thread %d: %s", tid, strerror(errno));
    return add_tracee(s, tid);
  }
  /* One of ours has just started it, and will tell: by execve(2) it may be the first now, who is looked at later. Or it
   * has ended, and stays in the listing until its exit is taken. */
  if (tracer == getpid())
    return 0;
  if (number == ESRCH || tracer == -1)
    return 1;
  if (tracer > 0)
    return refuse(s, "is traced by another process");
  char state = procfs_state(tid);
  if (state == 'Z' && tid == pid)
    return refuse_without_leader(s, pid) < 0 ? -1 : 1;
  /* Between its end and its disappearance. */
  if (state == 'Z' || state == 'X' || state == 0)
    return 1;
  if (number == EPERM && turn < SEIZE_TURNS) {
    nanosleep(&(struct timespec){0, 100000}, NULL);
    return seize_thread(s, pid, tid, turn + 1);
  }
  errno = number;
  return err_step(s->err, RAMET_STEP_SEIZE, "attach to thread %d: %s", tid, strerror(number));
}

/* Attaches to the threads that are not attached yet; all are interrupted before any is waited for. The kernel's listing
 * goes from each thread to the next, and ends early at one that has ended meanwhile (next_tid() of fs/proc/base.c). */
static int
seize_new(struct stopping *s, int pid)
{
  int tids[TRACE_THREADS_MAX + 1], first = s->count;
  int found = procfs_threads(pid, tids, TRACE_THREADS_MAX + 1);

  if (found < 0 && procfs_gone())
    return err_code(s->err, "exiting", "is exiting");
  if (found < 0)
    return err_step(s->err, RAMET_STEP_SEIZE, "threads of %d: %s", pid, strerror(errno));
  s->passing = false;
  for (int i = 0; i < found; i++) {
    int passes = is_known(s, tids[i]) ? 0 : seize_thread(s, pid, tids[i], 0);
    if (passes < 0)
      return -1;
    s->passing |= passes > 0;
  }
  return s->count - first;
}

static int
wait_for_all(struct stopping *s)
{
  for (int i = 0; i < s->count; i++) {
    if (!s->tracees[i].running)
      continue;
    int waited = wait_event_stop(s, &s->tracees[i]);
    if (waited < 0 || waited == IN_VFORK)
      return waited;
    if (waited == ENDED)
      s->tracees[i--] = s->tracees[--s->count];
  }
  return 0;
}

/* A thread that runs may start another until it is stopped itself, which is not traced if it was attached to amid that:
 * until all that are known stand still, and a listing has nobody else. 0 also when the first thread is not there. */
static int
stop_rounds(struct stopping *s, int pid)
{
  for (;;) {
    int waited = wait_for_all(s);
    if (waited)
      return waited;
    int new_ones = seize_new(s, pid);
    if (new_ones < 0)
      return -1;
    if (new_ones == 0 && !s->passing)
      return 0;
    if (trace_patience_over())
      return refuse(s, "has threads that end and do not go");
    if (new_ones == 0)
      nanosleep(&(struct timespec){0, 50000}, NULL);
  }
}

static bool
put_leader_first(struct stopping *s, int pid)
{
  for (int i = 0; i < s->count; i++)
    if (s->tracees[i].tid == pid) {
      struct tracee leader = s->tracees[i];
      s->tracees[i] = s->tracees[0];
      s->tracees[0] = leader;
      return true;
    }
  return false;
}

static bool
stands(int tid)
{
  arch_registers registers;

  return sys_ptrace(PTRACE_GETREGS, tid, 0, (uintptr_t)&registers) == 0;
}

/* execve(2) of another thread kills one that stands still, and gives that thread its number; it is waited for anew, and
 * so are the others that it has killed. */
static bool
was_replaced(struct stopping *s)
{
  siginfo_t stop = {0};
  int tid = s->tracees[0].tid;

  if (stands(tid) &&
      (waitid(P_PID, (id_t)tid, &stop, WSTOPPED | WNOHANG | WNOWAIT | __WALL) < 0 || stop.si_pid == 0))
    return false;
  s->tracees[0].running = true;
  for (int i = 1; i < s->count; i++)
    s->tracees[i].running |= !stands(s->tracees[i].tid);
  return true;
}

static int
stop_all(struct stopping *s, int pid)
{
  for (;;) {
    int waited = stop_rounds(s, pid);
    if (waited)
      return waited;
    bool there = put_leader_first(s, pid);
    if (there && !was_replaced(s))
      return 0;
    if (!there && refuse_without_leader(s, pid) < 0)
      return -1;
    if (trace_patience_over())
      return refuse(s, "calls exec faster than it stops");
  }
}

int
trace_seize_process(int pid, struct tracee **out, int *count, struct err *err)
{
  struct stopping s = {.tracees = calloc(TRACE_THREADS_MAX, sizeof *s.tracees), .err = err};

  if (!s.tracees)
    return err_code(err, "internal", "no memory for threads");
  int result = fault_here(RAMET_STEP_SEIZE, err) < 0 ? -1 : seize_new(&s, pid);
  *out = s.tracees;
  *count = s.count;
  return result < 0 ? -1 : 0;
}

int
trace_stop_process(int pid, struct tracee *tracees, int *count, struct err *err)
{
  struct stopping s = {.tracees = tracees, .count = *count, .err = err};
  int result = stop_all(&s, pid);

  *count = s.count;
  return result;
}

int
trace_run_on(struct tracee *tracee, struct err *err)
{
  if (sys_ptrace(PTRACE_CONT, tracee->tid, 0, 0) < 0)
    return err_step(err, RAMET_STEP_SEIZE, "continue thread %d: %s", tracee->tid, strerror(errno));
  tracee->running = tracee->let_go = true;
  return 0;
}

int
trace_interrupt(struct tracee *tracees, int count, struct err *err)
{
  for (int i = 0; i < count; i++) {
    if (!tracees[i].let_go)
      continue;
    tracees[i].let_go = false;
    if (sys_ptrace(PTRACE_INTERRUPT, tracees[i].tid, 0, 0) < 0 && errno != ESRCH)
      return err_step(err, RAMET_STEP_SEIZE, "interrupt thread %d: %s", tracees[i].tid, strerror(errno));
  }
  return 0;
}

int
trace_stop_again(int pid, struct tracee *tracees, int *count, struct err *err)
{
  struct stopping s = {.tracees = tracees, .count = *count, .err = err};
  int result = trace_interrupt(tracees, *count, err);

  if (result == 0)
    result = wait_for_all(&s);
  if (result == 0)
    result = stop_all(&s, pid);
  *count = s.count;
  return result;
}

/* SIGCONT has the threads of a traced process stop once more when they are let go (JOBCTL_TRAP_NOTIFY), before anything else.
 * The stop that is asked for as well is the same one: each trap clears both. */
int
trace_thaw(int pid, struct tracee *tracees, int *count, struct err *err)
{
  struct stopping s = {.tracees = tracees, .count = *count, .err = err};

  if (kill(pid, SIGCONT) < 0 && errno != ESRCH)
    return err_step(err, RAMET_STEP_SEIZE, "thaw process %d: %s", pid, strerror(errno));
  for (int i = 0; i < *count; i++) {
    int tid = tracees[i].tid;
    if ((sys_ptrace(PTRACE_INTERRUPT, tid, 0, 0) < 0 || sys_ptrace(PTRACE_CONT, tid, 0, 0) < 0) && errno != ESRCH)
      return err_step(err, RAMET_STEP_SEIZE, "continue thread %d: %s", tid, strerror(errno));
    tracees[i].running = true;
  }
  int result = wait_for_all(&s);
  *count = s.count;
  return result;
}

int
trace_adopt(int tid, struct tracee *tracee, struct err *err)
{
  struct stopping s = {.tracees = tracee, .count = 1, .err = err};

  *tracee = (struct tracee){.tid = tid, .running = true};
  int waited = wait_event_stop(&s, tracee);
  return waited > 0 ? err_step(err, RAMET_STEP_FROZEN_TWIN, "process %d is gone", tid) : waited;
}

int
trace_look_again(struct tracee *tracee, struct err *err)
{
  struct stopping s = {.tracees = tracee, .count = 1, .err = err};

  if (sys_ptrace(PTRACE_INTERRUPT, tracee->tid, 0, 0) < 0 || sys_ptrace(PTRACE_CONT, tracee->tid, 0, 0) < 0)
    return err_step(err, RAMET_STEP_SEIZE, "look at thread %d again: %s", tracee->tid, strerror(errno));
  int waited = wait_event_stop(&s, tracee);
  return waited > 0 ? err_code(err, "exiting", "is exiting") : waited;
}

/* ---- processors ------------------------------------------------------------------------------------------------ */

static void
only_here(int tid)
{
  cpu_set_t here;
  int processor = sched_getcpu();

  CPU_ZERO(&here);
  if (processor >= 0 && processor < CPU_SETSIZE) {
    CPU_SET(processor, &here);
    sched_setaffinity(tid, sizeof here, &here);
  }
}

void
trace_stay_here(cpu_set_t *before)
{
  if (sched_getaffinity(0, sizeof *before, before) == 0)
    only_here(0);
}

void
trace_move_here(int tid)
{
  only_here(tid);
}

/* ---- system calls --------------------------------------------------------------------------------------------- */

static int
continue_to_syscall_stop(struct tracee *tracee, enum ramet_step step, struct err *err)
{
  int status;

  do
    if (sys_ptrace(PTRACE_SYSCALL, tracee->tid, 0, 0) < 0 || wait_for(tracee->tid, &status) != 0)
      return err_step(err, step, "system call in thread %d: %s", tracee->tid, strerror(errno));
  while (WIFSTOPPED(status) && status >> 16 == PTRACE_EVENT_STOP); /* it was asked more often than it had to be */
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

  /* What is asked for here does not wait: only the machine may be busy. */
  renew_patience();
  if (touched)
    *touched = true;

  if (!tracee->injected && sched_getaffinity(tracee->tid, sizeof tracee->processors, &tracee->processors) == 0) {
    tracee->moved = true;
    only_here(tracee->tid);
  }
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
trace_step_call(struct tracee *tracee, struct err *err)
{
  return continue_to_syscall_stop(tracee, RAMET_STEP_SEIZE, err) != 0 ? -1 : read_thread(tracee, err);
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
  struct stopping s = {.tracees = &again, .count = 1, .err = err};

  if (sys_ptrace(PTRACE_SETREGS, tracee->tid, 0, (uintptr_t)&tracee->registers) < 0 ||
      sys_ptrace(PTRACE_SETSIGMASK, tracee->tid, 8, (uintptr_t)&tracee->signal_mask) < 0 ||
      sys_ptrace(PTRACE_INTERRUPT, tracee->tid, 0, 0) < 0 || sys_ptrace(PTRACE_CONT, tracee->tid, 0, 0) < 0)
    return err_step(err, RAMET_STEP_RESUME, "give registers back to thread %d: %s", tracee->tid, strerror(errno));
  return wait_event_stop(&s, &again) < 0 ? -1 : 0;
}

int
trace_release(struct tracee *tracees, int count, struct err *err)
{
  int result = 0;

  for (int i = 0; i < count; i++)
    if (tracees[i].injected && give_back(&tracees[i], err) < 0)
      result = -1;
  for (int i = 0; i < count; i++) {
    if (tracees[i].moved)
      sched_setaffinity(tracees[i].tid, sizeof tracees[i].processors, &tracees[i].processors);
    if (sys_ptrace(PTRACE_DETACH, tracees[i].tid, 0, 0) < 0 && errno != ESRCH) {
      err_step(err, RAMET_STEP_RESUME, "detach from thread %d: %s", tracees[i].tid, strerror(errno));
      result = -1;
    }
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
