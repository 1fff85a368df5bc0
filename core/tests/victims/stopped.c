/* SPDX-License-Identifier: Apache-2.0
 * Processes that a signal has stopped: they stay so, and their parents hear of it once. */
#include "victim.h"

#include <sys/wait.h>

struct counted {
  volatile uint64_t turns, of_thread;
};

static struct counted *counted;
static volatile int children_told;

static void
on_child(int number)
{
  (void)number;
  children_told++;
}

static void *
count_in_thread(void *at)
{
  for (;;)
    ((struct counted *)at)->of_thread++;
  return NULL;
}

/* Counts for as long as it is let, in two threads and in a group of its own: in one of orphans SIGTSTP does nothing. */
static pid_t
counting(struct counted *at)
{
  pid_t pid = fork();
  pthread_t thread;

  if (pid == 0) {
    setpgid(0, 0);
    start(&thread, count_in_thread, (void *)at);
    for (;;)
      at->turns++;
  }
  NEED(pid > 0);
  while (at->turns == 0 || at->of_thread == 0)
    sched_yield();
  return pid;
}

static void
stop(pid_t pid, int signal, int options)
{
  siginfo_t told;

  NEED(kill(pid, signal) == 0);
  NEED(waitid(P_PID, (id_t)pid, &told, WSTOPPED | options) == 0 && told.si_status == signal);
}

static void
stays(pid_t pid, const struct counted *at, struct counted then)
{
  char path[32], text[512] = "";

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s: %s", path, strerror(errno));
  close(fd);
  const char *state = strrchr(text, ')');
  CHECK(state && state[2] == 'T', "%d is not stopped: %s", pid, text);
  CHECK(at->turns == then.turns && at->of_thread == then.of_thread, "%d has run", pid);
}

static void
goes_on(pid_t pid, const struct counted *at, struct counted then)
{
  int status;

  CHECK(kill(pid, SIGCONT) == 0, "kill: %s", strerror(errno));
  CHECK(waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status), "status %#x", status);
  while (at->turns == then.turns || at->of_thread == then.of_thread)
    sched_yield();
  CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid && WTERMSIG(status) == SIGKILL, "status %#x",
        status);
}

VICTIM(told, "two children that are stopped: of one its parent has heard, of the other it has not asked yet")
{
  int status;

  counted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(counted != MAP_FAILED && signal(SIGCHLD, on_child) != SIG_ERR);
  pid_t first = counting(&counted[0]), second = counting(&counted[1]);
  stop(first, SIGSTOP, 0);
  stop(second, SIGTSTP, WNOWAIT);
  struct counted one = counted[0], other = counted[1];
  int heard = children_told;
  ready();
  await_go();
  CHECK(children_told == heard, "%d signals of children, not %d", children_told, heard);
  stays(first, &counted[0], one);
  stays(second, &counted[1], other);
  CHECK(waitpid(first, &status, WUNTRACED | WNOHANG) == 0, "told again: %#x", status);
  CHECK(waitpid(second, &status, WUNTRACED | WNOHANG) == second && WIFSTOPPED(status) &&
            WSTOPSIG(status) == SIGTSTP,
        "not told: %#x", status);
  CHECK(waitpid(second, &status, WUNTRACED | WNOHANG) == 0, "told twice: %#x", status);
  goes_on(first, &counted[0], one);
  goes_on(second, &counted[1], other);
}

VICTIM(orphan, "one that is stopped and whose parent has ended, in a session of its own")
{
  int status, ends[2];
  pid_t orphan;

  counted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(counted != MAP_FAILED && pipe(ends) == 0);
  pid_t parent = fork();
  if (parent == 0) {
    setsid();
    orphan = counting(&counted[0]);
    _exit(write(ends[1], &orphan, sizeof orphan) != sizeof orphan);
  }
  NEED(waitpid(parent, &status, 0) == parent && status == 0);
  NEED(read(ends[0], &orphan, sizeof orphan) == sizeof orphan);
  /* Not before: the end of its parent would have made its group an orphan, and the kernel hangs up such as are stopped. */
  NEED(kill(orphan, SIGSTOP) == 0);
  struct counted then;
  do {
    then = counted[0];
    nanosleep(&(struct timespec){0, 20000000}, NULL);
  } while (counted[0].turns != then.turns || counted[0].of_thread != then.of_thread);
  ready();
  await_go();
  stays(orphan, &counted[0], then);
  CHECK(kill(orphan, SIGCONT) == 0, "kill: %s", strerror(errno));
  while (counted[0].turns == then.turns || counted[0].of_thread == then.of_thread)
    sched_yield();
  CHECK(kill(orphan, SIGKILL) == 0, "kill: %s", strerror(errno));
}
