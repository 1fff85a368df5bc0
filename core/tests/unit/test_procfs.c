/* SPDX-License-Identifier: Apache-2.0
 * What /proc does not tell is not taken for an end: where no file can be opened, and of who is no more. */
#define _GNU_SOURCE
#include "procfs.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "tap.h"

/* Runs it where every descriptor below the limit is taken. */
static void
without_descriptors(void (*look)(pid_t self))
{
  const struct rlimit none = {0, 0};
  int status;
  pid_t pid = fork();

  NEED(pid >= 0);
  if (pid == 0) {
    NEED(setrlimit(RLIMIT_NOFILE, &none) == 0);
    look(getpid());
    fflush(stdout);
    _exit(tap_failed_checks != 0);
  }
  NEED(waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
}

static void
look_blindly(pid_t self)
{
  int one;

  errno = 0;
  CHECK(!procfs_exiting(self) && errno == EMFILE);
  errno = 0;
  CHECK(procfs_state(self) == PROCFS_UNTOLD && errno == EMFILE);
  errno = 0;
  CHECK(procfs_tracer(self) == -2 && errno == EMFILE);
  errno = 0;
  CHECK(procfs_children(self, &one, 1) == -1 && errno == EMFILE);
}

static void
a_process_that_cannot_be_looked_at_is_not_taken_for_one_that_ends(void)
{
  without_descriptors(look_blindly);
}

static void
a_process_that_is_gone_is_told_as_such(void)
{
  int one;
  pid_t pid = fork();

  NEED(pid >= 0);
  if (pid == 0)
    _exit(0);
  NEED(waitpid(pid, NULL, 0) == pid);
  CHECK(procfs_exiting(pid));
  CHECK(procfs_state(pid) == 0);
  CHECK(procfs_tracer(pid) == -1);
  CHECK(procfs_children(pid, &one, 1) == 0);
}

static void
a_process_that_lives_is_told_as_it_is(void)
{
  int found = 0, end[2];
  char byte;

  NEED(pipe(end) == 0);
  pid_t child = fork();
  NEED(child >= 0);
  if (child == 0) {
    close(end[1]);
    _exit(read(end[0], &byte, 1) != 0);
  }
  CHECK(!procfs_exiting(getpid()));
  CHECK(procfs_state(getpid()) == 'R');
  CHECK(procfs_tracer(child) == 0);
  CHECK(procfs_children(getpid(), &found, 1) == 1 && found == child);
  close(end[0]);
  close(end[1]);
  NEED(waitpid(child, NULL, 0) == child);
}

int
main(void)
{
  RUN(a_process_that_cannot_be_looked_at_is_not_taken_for_one_that_ends);
  RUN(a_process_that_is_gone_is_told_as_such);
  RUN(a_process_that_lives_is_told_as_it_is);
  return tap_end();
}
