/* SPDX-License-Identifier: Apache-2.0
 * Moments in which no snapshot can be taken: it is refused, or gives up in time, and the source goes on. */
#include "victim.h"

#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

VICTIM(in_vfork, "waits in vfork for its child")
{
  int status;
  pid_t child = vfork();

  if (child == 0) {
    ready();
    await_go();
    _exit(5);
  }
  CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5, "its child ended with %d", status);
}

/* As vfork(2), with a child that is not its own: nobody can see for whom it waits. */
VICTIM(uninterruptible, "does not stop")
{
  if (fork() == 0) {
    if (syscall(SYS_clone, CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0) {
      ready();
      await_go();
      _exit(5);
    }
    _exit(6);
  }
  for (int ended = 0, status; ended < 2; ended++)
    CHECK(wait(&status) > 0 && (WEXITSTATUS(status) == 5 || WEXITSTATUS(status) == 6), "one ended with %d", status);
}

VICTIM(traced, "is traced by another process")
{
  int status;
  pid_t child = fork();

  if (child == 0) {
    NEED(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 && raise(SIGSTOP) == 0);
    _exit(5);
  }
  NEED(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
  ready();
  await_go();
  CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0 && waitpid(child, &status, 0) == child, "the tracer: %s",
        strerror(errno));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5, "who is traced ended with %d", status);
}
