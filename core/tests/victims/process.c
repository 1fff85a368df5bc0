/* SPDX-License-Identifier: Apache-2.0
 * What a process is besides memory, threads and descriptors. */
#include "victim.h"

#include <linux/limits.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

VICTIM(numbers, "its numbers, its parent, its session")
{
  pid_t pid = getpid(), tid = gettid();

  ready();
  await_go();
  CHECK(getpid() == pid && gettid() == tid, "%d was %d", getpid(), pid);
  CHECK(getppid() == 1, "its parent is %d", getppid());
  CHECK(getsid(0) == pid && getpgrp() == pid, "session %d, group %d", getsid(0), getpgrp());
  CHECK(getuid() == 0 && geteuid() == 0, "it is user %u", getuid());
}

VICTIM(name, "its name, its arguments and its environment")
{
  char now[16], before[512], after[512];
  int fd = open("/proc/self/cmdline", O_RDONLY);
  ssize_t length = read(fd, before, sizeof before);

  close(fd);
  NEED(length > 0 && prctl(PR_SET_NAME, "called so") == 0 && setenv("ADDED", "later", 1) == 0);
  ready();
  await_go();
  prctl(PR_GET_NAME, now);
  CHECK(strcmp(now, "called so") == 0, "it is called %s", now);
  fd = open("/proc/self/cmdline", O_RDONLY);
  CHECK(read(fd, after, sizeof after) == length && memcmp(before, after, (size_t)length) == 0, "its arguments");
  CHECK(getenv("ADDED") && strcmp(getenv("ADDED"), "later") == 0, "its environment");
}

VICTIM(limits, "its resource limits")
{
  const struct rlimit files = {300, 400}, core = {0, 1 << 20}, stack = {4 << 20, 8 << 20};
  struct rlimit now;

  NEED(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_CORE, &core) == 0 &&
       setrlimit(RLIMIT_STACK, &stack) == 0);
  ready();
  await_go();
  getrlimit(RLIMIT_NOFILE, &now);
  CHECK(now.rlim_cur == 300 && now.rlim_max == 400, "files: %lu of %lu", now.rlim_cur, now.rlim_max);
  getrlimit(RLIMIT_CORE, &now);
  CHECK(now.rlim_cur == 0 && now.rlim_max == 1 << 20, "core: %lu of %lu", now.rlim_cur, now.rlim_max);
  getrlimit(RLIMIT_STACK, &now);
  CHECK(now.rlim_cur == 4 << 20, "stack: %lu", now.rlim_cur);
}

VICTIM(umask, "its mask for new files")
{
  umask(027);
  ready();
  await_go();
  CHECK(umask(0) == 027, "another mask");
}

VICTIM(directory, "its working directory, made in the sandbox")
{
  char before[PATH_MAX], after[PATH_MAX];

  NEED(mkdir("made", 0755) == 0 && mkdir("made/with blank", 0755) == 0 && chdir("made/with blank") == 0);
  NEED(getcwd(before, sizeof before));
  ready();
  await_go();
  CHECK(getcwd(after, sizeof after) && strcmp(before, after) == 0, "it is in %s", after);
  int fd = open("new", O_WRONLY | O_CREAT | O_EXCL, 0644);
  CHECK(fd >= 0, "a new file: %s", strerror(errno));
  CHECK(access("../with blank/new", F_OK) == 0, "the file is elsewhere");
}

static void
check_timer(int which, const struct itimerval *set, const char *name)
{
  struct itimerval now;

  getitimer(which, &now);
  CHECK(now.it_interval.tv_sec == set->it_interval.tv_sec, "%s: interval %ld", name, (long)now.it_interval.tv_sec);
  CHECK(now.it_value.tv_sec <= set->it_value.tv_sec && now.it_value.tv_sec > set->it_value.tv_sec - 120,
        "%s: %ld seconds are left", name, (long)now.it_value.tv_sec);
}

VICTIM(interval_timers, "its interval timers, of all three kinds")
{
  const struct itimerval real = {{7, 0}, {5000, 0}}, virtual = {{8, 0}, {6000, 0}}, profiling = {{9, 0}, {7000, 0}};

  NEED(setitimer(ITIMER_REAL, &real, NULL) == 0 && setitimer(ITIMER_VIRTUAL, &virtual, NULL) == 0 &&
       setitimer(ITIMER_PROF, &profiling, NULL) == 0);
  ready();
  await_go();
  check_timer(ITIMER_REAL, &real, "real");
  check_timer(ITIMER_VIRTUAL, &virtual, "virtual");
  check_timer(ITIMER_PROF, &profiling, "profiling");
}

VICTIM(alarm, "an alarm that comes after the fork")
{
  const struct itimerval soon = {{0, 0}, {0, 300000}};
  sigset_t set;
  siginfo_t info;
  int result;

  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  NEED(setitimer(ITIMER_REAL, &soon, NULL) == 0);
  ready();
  do
    result = sigtimedwait(&set, &info, &(struct timespec){30, 0});
  while (result < 0 && errno == EINTR);
  CHECK(result == SIGALRM, "no alarm came: %s", strerror(errno));
  await_go();
}

VICTIM(personality, "its personality")
{
  NEED(personality(ADDR_NO_RANDOMIZE) != -1);
  ready();
  await_go();
  CHECK(personality(0xffffffff) == ADDR_NO_RANDOMIZE, "%#x", (unsigned)personality(0xffffffff));
}

VICTIM(nice, "its priority")
{
  NEED(setpriority(PRIO_PROCESS, 0, 5) == 0);
  ready();
  await_go();
  CHECK(getpriority(PRIO_PROCESS, 0) == 5, "nice %d", getpriority(PRIO_PROCESS, 0));
}

VICTIM(privileges, "it gains no privileges")
{
  ready();
  await_go();
  CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1, "no_new_privs is off");
  CHECK(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2, "there is no filter");
  for (int cap = 0; cap < 41; cap++)
    CHECK(prctl(PR_CAPBSET_READ, cap, 0, 0, 0) != 1, "capability %d is in the bounding set", cap);
}
