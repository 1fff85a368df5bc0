/* SPDX-License-Identifier: Apache-2.0
 * What is met in the middle of something only by chance: frozen a hundred times. */
#include "victim.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MANY 64

static void *
stay(void *ignored)
{
  for (;;)
    pause();
  return ignored;
}

VICTIM(exits, "ends, with 64 threads")
{
  pthread_t thread;

  for (int i = 0; i < MANY; i++)
    start(&thread, stay, NULL);
  ready();
  await_go();
  _exit(0);
}

/* ---- never at rest: wrong for ever once one instant was not the same everywhere --------------------------------- */

static volatile int over;

static void *
await_end(void *ignored)
{
  (void)ignored;
  await_go();
  over = 1;
  return NULL;
}

static void
until_told(void (*turn)(void))
{
  pthread_t thread;

  start(&thread, await_end, NULL);
  ready();
  while (!over)
    turn();
  pthread_join(thread, NULL);
}

#define RECORDS 16384

static int log_fd;
static uint64_t written, *mapped;

/* In this order, and none is ever ahead of the one before it by more than one. */
static void
write_everywhere(void)
{
  struct stat st;

  CHECK(fstat(log_fd, &st) == 0 && (uint64_t)st.st_size == written * sizeof written, "%lld bytes, not %llu",
        (long long)st.st_size, (unsigned long long)(written * sizeof written));
  CHECK(*mapped == written, "mapped: %llu, not %llu", (unsigned long long)*mapped, (unsigned long long)written);
  if (written == RECORDS) {
    written = 0;
    CHECK(ftruncate(log_fd, 0) == 0, "truncate: %s", strerror(errno));
  } else {
    written++;
    CHECK(write(log_fd, &written, sizeof written) == sizeof written, "write: %s", strerror(errno));
  }
  *mapped = written;
}

VICTIM(instant, "what it has in memory, in a file and in a mapped file is of one instant")
{
  log_fd = open("log", O_RDWR | O_CREAT | O_APPEND, 0600);
  int fd = open("mapped", O_RDWR | O_CREAT, 0600);
  NEED(log_fd >= 0 && fd >= 0 && ftruncate(fd, 4096) == 0);
  mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  NEED(mapped != MAP_FAILED);
  until_told(write_everywhere);
}

/* Memory that two processes share, their pipes and their file: wrong as soon as one of them is of another instant. */
struct common {
  uint64_t told, heard;
};

static struct common *common;
static int to_other[2], from_other[2];
static uint64_t said;

static void
other_process(void)
{
  uint64_t n, last = 0, filed;

  while (read(to_other[0], &n, sizeof n) == sizeof n) {
    CHECK(n == last + 1 && common->told == n, "after %llu came %llu, and %llu is told", (unsigned long long)last,
          (unsigned long long)n, (unsigned long long)common->told);
    CHECK(pread(log_fd, &filed, sizeof filed, 0) == sizeof filed && filed == n, "the file has %llu for %llu",
          (unsigned long long)filed, (unsigned long long)n);
    last = n;
    common->heard = n;
    if (write(from_other[1], &n, sizeof n) != sizeof n)
      break;
  }
  _exit(0);
}

static void
tell_other(void)
{
  uint64_t n;

  said++;
  common->told = said;
  CHECK(pwrite(log_fd, &said, sizeof said, 0) == sizeof said, "write: %s", strerror(errno));
  CHECK(write(to_other[1], &said, sizeof said) == sizeof said, "tell: %s", strerror(errno));
  CHECK(read(from_other[0], &n, sizeof n) == sizeof n && n == said && common->heard == said,
        "%llu is heard for %llu", (unsigned long long)common->heard, (unsigned long long)said);
}

VICTIM(together, "two processes have in memory, in a file and in pipes what is of one instant")
{
  log_fd = open("log", O_RDWR | O_CREAT, 0600);
  common = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(log_fd >= 0 && common != MAP_FAILED && pipe(to_other) == 0 && pipe(from_other) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    close(to_other[1]);
    other_process();
  }
  close(to_other[0]);
  close(from_other[1]);
  until_told(tell_other);
  close(to_other[1]);
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the other's end: %#x", status);
}

static void *
nothing(void *argument)
{
  return argument;
}

static void
make_thread(void)
{
  pthread_t thread;
  void *result;

  start(&thread, nothing, &thread);
  CHECK(pthread_join(thread, &result) == 0 && result == &thread, "a thread returned %p", result);
}

VICTIM(threads, "makes threads as fast as it can")
{
  until_told(make_thread);
}

static int there[2], back[2];
static uint64_t turns;

static void *
answer(void *ignored)
{
  uint64_t n;

  (void)ignored;
  while (read(there[0], &n, sizeof n) == sizeof n && n) {
    n++;
    CHECK(write(back[1], &n, sizeof n) == sizeof n, "answer: %s", strerror(errno));
  }
  return NULL;
}

static void
ask(void)
{
  uint64_t n;

  turns++;
  CHECK(write(there[1], &turns, sizeof turns) == sizeof turns, "ask: %s", strerror(errno));
  CHECK(read(back[0], &n, sizeof n) == sizeof n && n == turns + 1, "the answer is %llu", (unsigned long long)n);
}

VICTIM(pipes, "two threads ask each other by pipes")
{
  pthread_t thread;
  const uint64_t end = 0;

  NEED(pipe(there) == 0 && pipe(back) == 0);
  start(&thread, answer, NULL);
  until_told(ask);
  CHECK(write(there[1], &end, sizeof end) == sizeof end, "the end: %s", strerror(errno));
  pthread_join(thread, NULL);
}

VICTIM(pairs, "two threads ask each other by socket pairs of packets")
{
  pthread_t thread;
  const uint64_t end = 0;
  int first[2], second[2];

  NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, first) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, second) == 0);
  there[0] = first[0];
  there[1] = first[1];
  back[0] = second[0];
  back[1] = second[1];
  start(&thread, answer, NULL);
  until_told(ask);
  CHECK(write(there[1], &end, sizeof end) == sizeof end, "the end: %s", strerror(errno));
  pthread_join(thread, NULL);
}

static volatile uint64_t wrong, seen, rounds;

static void
on_timer(int number, siginfo_t *info, void *context)
{
  (void)number;
  (void)context;
  wrong += info->si_value.sival_int != 4711;
  seen++;
}

static void
compute(void)
{
  volatile double x = 1.0;

  for (int i = 0; i < 1000; i++)
    x = x * 1.000001 + (double)(rounds & 1);
  rounds++;
  CHECK(wrong == 0, "%llu of %llu alarms were not its own", (unsigned long long)wrong, (unsigned long long)seen);
}

VICTIM(timer, "a POSIX timer of 200 microseconds interrupts it")
{
  struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 4711};
  const struct itimerspec often = {{0, 200000}, {0, 200000}};
  timer_t timer;

  NEED(sigaction(SIGRTMIN, &action, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  NEED(timer_settime(timer, 0, &often, NULL) == 0);
  until_told(compute);
  uint64_t before = seen;
  while (seen < before + 3)
    compute();
}
