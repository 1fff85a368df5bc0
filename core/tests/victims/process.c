/* SPDX-License-Identifier: Apache-2.0
 * What a process is besides memory, threads and descriptors. */
#include "victim.h"

#include <linux/limits.h>
#include <sched.h>
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

/* Of the first address in a line of /proc/self/maps. */
static bool
is_executable(const void *address)
{
  char line[512], begin[32];
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "r");

  snprintf(begin, sizeof begin, "%lx-", (unsigned long)address);
  while (fgets(line, sizeof line, maps))
    found = found || (strncmp(line, begin, strlen(begin)) == 0 && strchr(line, ' ')[3] == 'x');
  fclose(maps);
  return found;
}

/* The product's filter allows the second. */
VICTIM(personality, "its personality, which is not that of memory that was shared before")
{
  void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const unsigned both = READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE;

  NEED(shared != MAP_FAILED && (personality(both) != -1 || personality(ADDR_NO_RANDOMIZE) != -1));
  unsigned before = (unsigned)personality(0xffffffff);
  ready();
  await_go();
  CHECK((unsigned)personality(0xffffffff) == before, "%#x", (unsigned)personality(0xffffffff));
  CHECK(!is_executable(shared), "what was mapped before can be executed");
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

/* ---- POSIX timers --------------------------------------------------------------------------------------------- */

static timer_t
make_timer(clockid_t clock, int signal, int value, int tid)
{
  struct sigevent event = {.sigev_notify = signal ? SIGEV_SIGNAL : SIGEV_NONE, .sigev_signo = signal};
  timer_t timer;

  event.sigev_value.sival_int = value;
  if (tid) {
    event.sigev_notify = SIGEV_THREAD_ID;
    event._sigev_un._tid = tid;
  }
  NEED(timer_create(clock, &event, &timer) == 0);
  return timer;
}

static void
set_timer(timer_t timer, time_t seconds, long nanoseconds, time_t interval)
{
  const struct itimerspec spec = {{interval, 0}, {seconds, nanoseconds}};

  NEED(timer_settime(timer, 0, &spec, NULL) == 0);
}

static void
check_left(timer_t timer, time_t seconds, time_t interval, const char *name)
{
  struct itimerspec now;

  CHECK(timer_gettime(timer, &now) == 0, "the timer of %s: %s", name, strerror(errno));
  CHECK(now.it_interval.tv_sec == interval, "%s: interval %ld", name, (long)now.it_interval.tv_sec);
  CHECK(now.it_value.tv_sec <= seconds && now.it_value.tv_sec >= (seconds ? seconds - 120 : 0),
        "%s: %ld seconds are left", name, (long)now.it_value.tv_sec);
}

static int
take_signal(int number)
{
  const struct timespec patience = {30, 0};
  sigset_t set;
  siginfo_t info;

  sigemptyset(&set);
  sigaddset(&set, number);
  int result;
  do
    result = sigtimedwait(&set, &info, &patience);
  while (result < 0 && errno == EINTR);
  CHECK(result == number, "no signal %d came", number);
  return info.si_value.sival_int;
}

VICTIM(timers, "POSIX timers of six clocks, with their numbers; one was deleted, one is off")
{
  const clockid_t clocks[] = {CLOCK_REALTIME,           CLOCK_MONOTONIC,         CLOCK_BOOTTIME,
                              CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_TAI};
  timer_t timers[6], off;
  sigset_t set;

  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 2);
  sigprocmask(SIG_BLOCK, &set, NULL);
  timer_t deleted = make_timer(CLOCK_MONOTONIC, 0, 0, 0);
  for (int i = 0; i < 6; i++) {
    timers[i] = make_timer(clocks[i], i == 1 ? SIGRTMIN + 2 : 0, 4711, 0);
    set_timer(timers[i], 5000 + i * 1000, 0, i * 7);
  }
  off = make_timer(CLOCK_MONOTONIC, SIGRTMIN + 2, 4712, 0);
  timer_delete(deleted);
  ready();
  await_go();
  for (int i = 0; i < 6; i++)
    check_left(timers[i], 5000 + i * 1000, i * 7, "a clock");
  check_left(off, 0, 0, "the one that is off");
  set_timer(timers[1], 0, 1000000, 0);
  CHECK(take_signal(SIGRTMIN + 2) == 4711, "another value");
  set_timer(off, 0, 1000000, 0);
  CHECK(take_signal(SIGRTMIN + 2) == 4712, "another value");
  /* A new one gets a number of its own. */
  timer_t another = make_timer(CLOCK_MONOTONIC, SIGRTMIN + 2, 4713, 0);
  set_timer(another, 0, 1000000, 0);
  CHECK(take_signal(SIGRTMIN + 2) == 4713, "the new timer is another");
  for (int i = 0; i < 6; i++)
    CHECK(timer_delete(timers[i]) == 0, "timer %d is gone", i);
}

static void *
be_woken(void *out)
{
  sigset_t set;

  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  __atomic_store_n((int *)out, gettid(), __ATOMIC_SEQ_CST);
  CHECK(take_signal(SIGRTMIN + 3) == 17, "another value");
  return NULL;
}

VICTIM(thread_timer, "a POSIX timer that wakes one thread, and one that ticks")
{
  pthread_t thread;
  sigset_t set;
  int tid = 0;

  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 4);
  sigprocmask(SIG_BLOCK, &set, NULL);
  start(&thread, be_woken, &tid);
  while (!__atomic_load_n(&tid, __ATOMIC_SEQ_CST))
    sched_yield();
  timer_t wakes = make_timer(CLOCK_MONOTONIC, SIGRTMIN + 3, 17, tid);
  timer_t ticks = make_timer(CLOCK_MONOTONIC, SIGRTMIN + 4, 18, 0);
  const struct itimerspec often = {{0, 20000000}, {0, 20000000}};
  NEED(timer_settime(ticks, 0, &often, NULL) == 0);
  set_timer(wakes, 9000, 0, 0);
  ready();
  await_go();
  check_left(wakes, 9000, 0, "the thread's");
  for (int i = 0; i < 3; i++)
    CHECK(take_signal(SIGRTMIN + 4) == 18, "another value");
  set_timer(wakes, 0, 1000000, 0);
  pthread_join(thread, NULL);
}

/* ---- scheduling ------------------------------------------------------------------------------------------------ */

static int
only_processor(void)
{
  cpu_set_t set;
  int found = -1;

  CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "its processors");
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set))
      found = found == -1 ? i : -2;
  return found;
}

static int scheduled, checked;

static void *
be_slow(void *ignored)
{
  const struct sched_param none = {0};

  (void)ignored;
  NEED(sched_setscheduler(0, SCHED_IDLE, &none) == 0 && setpriority(PRIO_PROCESS, (id_t)gettid(), 7) == 0);
  __atomic_store_n(&scheduled, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &checked, 0 /* FUTEX_WAIT */, 0, NULL, NULL, 0);
  while (!__atomic_load_n(&checked, __ATOMIC_SEQ_CST))
    sched_yield();
  CHECK(sched_getscheduler(0) == SCHED_IDLE, "policy %d", sched_getscheduler(0));
  CHECK(getpriority(PRIO_PROCESS, (id_t)gettid()) == 7, "nice %d", getpriority(PRIO_PROCESS, (id_t)gettid()));
  return NULL;
}

VICTIM(scheduling, "the processor that its first thread is bound to, the policy and priority of its second")
{
  pthread_t thread;
  cpu_set_t all, one;
  int last = 0;

  NEED(sched_getaffinity(0, sizeof all, &all) == 0);
  start(&thread, be_slow, NULL);
  while (!__atomic_load_n(&scheduled, __ATOMIC_SEQ_CST))
    sched_yield();
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &all))
      last = i;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  NEED(sched_setaffinity(0, sizeof one, &one) == 0);
  ready();
  await_go();
  CHECK(only_processor() == last, "it may run on %d, not on %d alone", only_processor(), last);
  CHECK(sched_getscheduler(0) == SCHED_OTHER && getpriority(PRIO_PROCESS, 0) == 0, "its policy or priority");
  __atomic_store_n(&checked, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &checked, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
  pthread_join(thread, NULL);
}
