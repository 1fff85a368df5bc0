/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "twin.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "trace.h"

#define STEP RAMET_STEP_PARKED_TWIN

int
twin_take(pid_t twin, struct err *err)
{
  if (sys_ptrace(PTRACE_SETOPTIONS, twin, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) < 0)
    return err_step(err, STEP, "take the twin: %s", strerror(errno));
  return 0;
}

void
twin_kill(pid_t process)
{
  if (process > 0)
    kill(process, SIGKILL);
}

/* `injected`: a twin blocks all signals for ever, so its mask needs no saving. */
static int
as_tracee(pid_t pid, struct tracee *tracee, struct err *err)
{
  *tracee = (struct tracee){.tid = pid, .injected = true};
  if (sys_ptrace(PTRACE_GETREGS, pid, 0, (uintptr_t)&tracee->registers) < 0)
    return err_step(err, STEP, "registers of the twin: %s", strerror(errno));
  return 0;
}

int
twin_fork(pid_t twin, uint64_t syscall_address, pid_t *copy, struct err *err)
{
  struct tracee tracee;
  long inside = 0;
  int status, made = 0;

  if (fault_here(STEP, err) < 0 || as_tracee(twin, &tracee, err) < 0)
    return -1;
  trace_move_here(twin);
  /* CLONE_PARENT: the copy is core's child, as the twin is, and core reaps it. */
  if (trace_clone(&tracee, syscall_address, CLONE_PARENT, &made, &inside, STEP, err) < 0)
    return -1;
  if (waitpid(made, &status, __WALL) != made || !WIFSTOPPED(status)) {
    twin_kill(made);
    return err_step(err, STEP, "the copy does not stand still");
  }
  *copy = made;
  return 0;
}

static int
call(struct tracee *tracee, uint64_t address, long number, const uint64_t args[6], uint64_t wanted, struct err *err)
{
  long result;

  if (trace_syscall(tracee, address, number, args, &result, STEP, err) < 0)
    return -1;
  if ((uint64_t)result != wanted) {
    errno = result < 0 && result > -4096 ? (int)-result : EINVAL;
    return err_step(err, STEP, "system call %ld in the copy: %s", number, strerror(errno));
  }
  return 0;
}

int
twin_launch(pid_t copy, uint64_t syscall_address, const struct twin_region *region, struct err *err)
{
  const uint64_t map[6] = {region->start,          region->length,
                           PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                           (uint64_t)-1,           0};
  const uint64_t seal[6] = {region->start, region->code_length, PROT_READ | PROT_EXEC};
  struct iovec bytes = {(void *)(uintptr_t)region->start, region->written_length};
  struct tracee tracee;

  cpu_set_t all;
  bool known = sched_getaffinity(0, sizeof all, &all) == 0;

  trace_move_here(copy);
  if (as_tracee(copy, &tracee, err) < 0 || call(&tracee, syscall_address, SYS_mmap, map, region->start, err) < 0)
    return -1;
  /* Written from core's own mapping of the region, which lies at the same address. */
  if (process_vm_writev(copy, &bytes, 1, &bytes, 1, 0) != (ssize_t)region->written_length)
    return err_step(err, STEP, "write the region: %s", strerror(errno));
  if (call(&tracee, syscall_address, SYS_mprotect, seal, 0, err) < 0)
    return -1;
  arch_registers registers = arch_prepare_entry(&tracee.registers, region->entry, region->argument, region->stack);
  /* Its children inherit what it may run on. */
  if (known)
    sched_setaffinity(copy, sizeof all, &all);
  if (sys_ptrace(PTRACE_SETREGS, copy, 0, (uintptr_t)&registers) < 0 || sys_ptrace(PTRACE_DETACH, copy, 0, 0) < 0)
    return err_step(err, STEP, "let the copy run: %s", strerror(errno));
  return 0;
}
