/* SPDX-License-Identifier: Apache-2.0
 * Frozen inside a system call that waits, of each kind that the kernel restarts in its own way (signal(7)). */
#include "victim.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HOUR 3600
#define MOMENT_NS 300000000

static int pair[2]; /* a pipe */
static volatile sig_atomic_t caught;

static void
on_signal(int number)
{
  (void)number;
  caught++;
}

static void
catch_signals(void)
{
  struct sigaction action = {.sa_handler = on_signal};

  NEED(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* The call runs in a thread of its own; `end` ends it after the word. */
static void
wait_in(void *(*body)(void *), void (*end)(pthread_t))
{
  pthread_t thread;

  NEED(pipe(pair) == 0);
  catch_signals();
  start(&thread, body, NULL);
  ready();
  await_go();
  end(thread);
  pthread_join(thread, NULL);
}

static void
end_by_byte(pthread_t thread)
{
  (void)thread;
  NEED(write(pair[1], "x", 1) == 1);
}

static void
end_by_signal(pthread_t thread)
{
  pthread_kill(thread, SIGUSR1);
}

/* ---- sleeping ------------------------------------------------------------------------------------------------- */

static void *
in_nanosleep(void *ignored)
{
  struct timespec hour = {HOUR, 0}, rest = {0, 0};

  (void)ignored;
  int result = nanosleep(&hour, &rest);
  CHECK(result == -1 && errno == EINTR && caught == 1, "nanosleep gave %d %s", result, strerror(errno));
  CHECK(rest.tv_sec > HOUR - 60 && rest.tv_sec <= HOUR, "%ld seconds are left", (long)rest.tv_sec);
  return NULL;
}

VICTIM(nanosleep, "a sleep goes on, and tells what is left when a signal ends it")
{
  wait_in(in_nanosleep, end_by_signal);
}

VICTIM(nanosleep_whole, "a sleep lasts as long as asked and is no error")
{
  struct timespec moment = {0, MOMENT_NS};
  uint64_t begin = now_ns();

  ready();
  int result = nanosleep(&moment, NULL);
  CHECK(result == 0, "nanosleep: %s", strerror(errno));
  CHECK(now_ns() - begin >= MOMENT_NS, "it slept %lu ns", now_ns() - begin);
  await_go();
}

VICTIM(clock_nanosleep_absolute, "a sleep until a time ends at that time")
{
  uint64_t until = now_ns() + MOMENT_NS;
  struct timespec at = {(time_t)(until / 1000000000), (long)(until % 1000000000)};

  ready();
  int result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
  CHECK(result == 0, "clock_nanosleep: %s", strerror(result));
  CHECK(now_ns() >= until, "too early");
  await_go();
}

/* ---- polling -------------------------------------------------------------------------------------------------- */

static void *
in_poll(void *timeout)
{
  struct pollfd polled = {pair[0], POLLIN, 0};
  int result = poll(&polled, 1, timeout ? HOUR * 1000 : -1);

  CHECK(result == 1 && polled.revents == POLLIN, "poll gave %d", result);
  return NULL;
}

VICTIM(poll, "poll without a timeout")
{
  wait_in(in_poll, end_by_byte);
}

static void *
in_poll_for_an_hour(void *ignored)
{
  (void)ignored;
  return in_poll(&pair);
}

VICTIM(poll_timeout, "poll with a timeout that is far away")
{
  wait_in(in_poll_for_an_hour, end_by_byte);
}

VICTIM(poll_expires, "poll with a timeout that comes")
{
  uint64_t begin = now_ns();

  ready();
  int result = poll(NULL, 0, MOMENT_NS / 1000000);
  CHECK(result == 0, "poll gave %d", result);
  CHECK(now_ns() - begin >= MOMENT_NS, "too early");
  await_go();
}

static void *
in_ppoll(void *ignored)
{
  struct pollfd polled = {pair[0], POLLIN, 0};
  struct timespec hour = {HOUR, 0};
  sigset_t empty;

  (void)ignored;
  sigemptyset(&empty);
  int result = ppoll(&polled, 1, &hour, &empty);
  CHECK(result == 1 && polled.revents == POLLIN, "ppoll gave %d", result);
  return NULL;
}

VICTIM(ppoll, "ppoll with a timeout and a mask")
{
  wait_in(in_ppoll, end_by_byte);
}

static void *
in_select(void *ignored)
{
  fd_set set;
  struct timeval hour = {HOUR, 0};

  (void)ignored;
  FD_ZERO(&set);
  FD_SET(pair[0], &set);
  int result = select(pair[0] + 1, &set, NULL, NULL, &hour);
  CHECK(result == 1 && FD_ISSET(pair[0], &set), "select gave %d", result);
  return NULL;
}

VICTIM(select, "select with a timeout")
{
  wait_in(in_select, end_by_byte);
}

static void *
in_pselect(void *ignored)
{
  fd_set set;
  sigset_t empty;

  (void)ignored;
  FD_ZERO(&set);
  FD_SET(pair[0], &set);
  sigemptyset(&empty);
  int result = pselect(pair[0] + 1, &set, NULL, NULL, NULL, &empty);
  CHECK(result == 1 && FD_ISSET(pair[0], &set), "pselect gave %d", result);
  return NULL;
}

VICTIM(pselect, "pselect without a timeout")
{
  wait_in(in_pselect, end_by_byte);
}

/* A stop makes epoll_wait fail with EINTR on Linux, whoever asks for it: programs call it again. */
static void
wait_epoll(int timeout)
{
  int epoll = epoll_create1(EPOLL_CLOEXEC), result;
  struct epoll_event item = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef}, got;

  NEED(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &item) == 0);
  do
    result = epoll_wait(epoll, &got, 1, timeout);
  while (result < 0 && errno == EINTR);
  CHECK(result == 1 && got.data.u64 == item.data.u64, "epoll_wait gave %d", result);
}

static void *
in_epoll(void *ignored)
{
  (void)ignored;
  wait_epoll(-1);
  return NULL;
}

VICTIM(epoll_wait, "epoll_wait without a timeout")
{
  wait_in(in_epoll, end_by_byte);
}

static void *
in_epoll_for_an_hour(void *ignored)
{
  (void)ignored;
  wait_epoll(HOUR * 1000);
  return NULL;
}

VICTIM(epoll_wait_timeout, "epoll_wait with a timeout")
{
  wait_in(in_epoll_for_an_hour, end_by_byte);
}

/* ---- futexes -------------------------------------------------------------------------------------------------- */

static uint32_t word;

static void
wait_futex(int operation, const struct timespec *timeout)
{
  while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 0) {
    long result = syscall(SYS_futex, &word, operation, 0, timeout, NULL, -1);
    CHECK(result == 0 || errno == EAGAIN || errno == EINTR, "futex: %s", strerror(errno));
  }
}

static void
end_by_wake(pthread_t thread)
{
  (void)thread;
  __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *
in_futex(void *ignored)
{
  (void)ignored;
  wait_futex(FUTEX_WAIT_PRIVATE, NULL);
  return NULL;
}

VICTIM(futex, "a futex without a timeout")
{
  wait_in(in_futex, end_by_wake);
}

static void *
in_futex_for_an_hour(void *ignored)
{
  (void)ignored;
  wait_futex(FUTEX_WAIT_PRIVATE, &(struct timespec){HOUR, 0});
  return NULL;
}

VICTIM(futex_timeout, "a futex with a relative timeout")
{
  wait_in(in_futex_for_an_hour, end_by_wake);
}

static void *
in_futex_until(void *ignored)
{
  struct timespec until;

  (void)ignored;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += HOUR;
  wait_futex(FUTEX_WAIT_BITSET_PRIVATE, &until);
  return NULL;
}

VICTIM(futex_until, "a futex with an absolute timeout")
{
  wait_in(in_futex_until, end_by_wake);
}

VICTIM(futex_expires, "a futex whose timeout comes")
{
  uint64_t begin = now_ns();
  struct timespec moment = {0, MOMENT_NS};

  ready();
  long result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &moment, NULL, 0);
  CHECK(result == -1 && errno == ETIMEDOUT, "futex gave %ld %s", result, strerror(errno));
  CHECK(now_ns() - begin >= MOMENT_NS, "too early");
  await_go();
}

/* ---- reading and writing -------------------------------------------------------------------------------------- */

static void *
in_read(void *ignored)
{
  char byte = 0;

  (void)ignored;
  ssize_t got = read(pair[0], &byte, 1);
  CHECK(got == 1 && byte == 'x', "read gave %zd", got);
  return NULL;
}

VICTIM(read, "read from an empty pipe")
{
  wait_in(in_read, end_by_byte);
}

static void *
in_write(void *ignored)
{
  static char page[4096];

  (void)ignored;
  for (int i = 0; i < 16; i++)
    NEED(write(pair[1], page, sizeof page) == sizeof page);
  ssize_t put = write(pair[1], "end", 3);
  CHECK(put == 3, "write gave %zd", put);
  return NULL;
}

static void
end_by_reading(pthread_t thread)
{
  static char page[4096];
  char end[3];

  (void)thread;
  for (int i = 0; i < 16; i++)
    CHECK(read(pair[0], page, sizeof page) == sizeof page, "page %d", i);
  CHECK(read(pair[0], end, 3) == 3 && memcmp(end, "end", 3) == 0, "the end is wrong");
}

VICTIM(write, "write to a full pipe")
{
  wait_in(in_write, end_by_reading);
}

static struct sockaddr_in where = {.sin_family = AF_INET};
static int listener;

static void
listen_somewhere(void)
{
  socklen_t length = sizeof where;

  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = socket(AF_INET, SOCK_STREAM, 0);
  NEED(listener >= 0 && bind(listener, (struct sockaddr *)&where, sizeof where) == 0 && listen(listener, 4) == 0 &&
       getsockname(listener, (struct sockaddr *)&where, &length) == 0);
}

static void *
in_accept(void *ignored)
{
  (void)ignored;
  int connection = accept(listener, NULL, NULL);
  CHECK(connection >= 0, "accept: %s", strerror(errno));
  CHECK(write(connection, "hello", 5) == 5, "write to the connection: %s", strerror(errno));
  return NULL;
}

static void
end_by_connecting(pthread_t thread)
{
  char text[5];
  int fd = socket(AF_INET, SOCK_STREAM, 0);

  (void)thread;
  CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&where, sizeof where) == 0, "connect: %s", strerror(errno));
  CHECK(recv(fd, text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0, "no hello");
}

VICTIM(accept, "accept on a listening socket")
{
  listen_somewhere();
  wait_in(in_accept, end_by_connecting);
}

static void *
in_recvfrom(void *ignored)
{
  char text[5];

  (void)ignored;
  ssize_t got = recv(listener, text, sizeof text, 0);
  CHECK(got == 5 && memcmp(text, "hello", 5) == 0, "recv gave %zd: %s", got, strerror(errno));
  return NULL;
}

static void
end_by_datagram(pthread_t thread)
{
  int fd = socket(AF_INET, SOCK_DGRAM, 0);

  (void)thread;
  CHECK(sendto(fd, "hello", 5, 0, (struct sockaddr *)&where, sizeof where) == 5, "sendto: %s", strerror(errno));
}

VICTIM(recvfrom, "recv on a bound UDP socket")
{
  socklen_t length = sizeof where;

  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = socket(AF_INET, SOCK_DGRAM, 0);
  NEED(listener >= 0 && bind(listener, (struct sockaddr *)&where, sizeof where) == 0 &&
       getsockname(listener, (struct sockaddr *)&where, &length) == 0);
  wait_in(in_recvfrom, end_by_datagram);
}

static void *
in_open(void *ignored)
{
  (void)ignored;
  int fd = open("fifo", O_RDONLY);
  char byte = 0;
  CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && byte == 'f', "the fifo gave %d: %s", byte, strerror(errno));
  return NULL;
}

static void
end_by_opening(pthread_t thread)
{
  int fd = open("fifo", O_WRONLY);

  (void)thread;
  CHECK(fd >= 0 && write(fd, "f", 1) == 1, "open the fifo: %s", strerror(errno));
}

VICTIM(open_fifo, "open of a fifo that nobody writes")
{
  NEED(mkfifo("fifo", 0600) == 0);
  wait_in(in_open, end_by_opening);
}

/* ---- signals -------------------------------------------------------------------------------------------------- */

static void *
in_pause(void *ignored)
{
  (void)ignored;
  int result = pause();
  CHECK(result == -1 && errno == EINTR && caught == 1, "pause gave %d, %d signals", result, caught);
  return NULL;
}

VICTIM(pause, "pause")
{
  wait_in(in_pause, end_by_signal);
}

static void *
in_sigsuspend(void *ignored)
{
  sigset_t all, one, after;

  (void)ignored;
  sigfillset(&all);
  one = all;
  sigdelset(&one, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
  int result = sigsuspend(&one);
  pthread_sigmask(SIG_BLOCK, NULL, &after);
  CHECK(result == -1 && errno == EINTR && caught == 1, "sigsuspend gave %d, %d signals", result, caught);
  CHECK(sigismember(&after, SIGUSR1) == 1, "the mask is not as before");
  return NULL;
}

VICTIM(sigsuspend, "sigsuspend, and the mask after it")
{
  wait_in(in_sigsuspend, end_by_signal);
}

/* Like epoll_wait: EINTR after a stop. */
static void *
in_sigtimedwait(void *ignored)
{
  sigset_t set;
  siginfo_t info = {0};
  int result;

  (void)ignored;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  do
    result = sigtimedwait(&set, &info, &(struct timespec){HOUR, 0});
  while (result < 0 && errno == EINTR);
  CHECK(result == SIGRTMIN + 3 && info.si_value.sival_int == 77, "sigtimedwait gave %d, value %d", result,
        info.si_value.sival_int);
  return NULL;
}

static void
end_by_queued(pthread_t thread)
{
  pthread_sigqueue(thread, SIGRTMIN + 3, (union sigval){.sival_int = 77});
}

VICTIM(sigtimedwait, "sigtimedwait")
{
  wait_in(in_sigtimedwait, end_by_queued);
}

static void *
in_ppoll_unblocked(void *ignored)
{
  sigset_t block, none, after;

  (void)ignored;
  sigemptyset(&none);
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &block, NULL);
  int result = ppoll(NULL, 0, NULL, &none);
  pthread_sigmask(SIG_BLOCK, NULL, &after);
  CHECK(result == -1 && errno == EINTR && caught == 1, "ppoll gave %d, %d signals", result, caught);
  CHECK(sigismember(&after, SIGUSR1) == 1, "the mask is not as before");
  return NULL;
}

VICTIM(ppoll_mask, "a signal that only the mask of ppoll lets through")
{
  wait_in(in_ppoll_unblocked, end_by_signal);
}

VICTIM(no_children, "wait without children, after the fork as before")
{
  CHECK(wait4(-1, NULL, __WALL, NULL) == -1 && errno == ECHILD, "wait4: %s", strerror(errno));
  ready();
  await_go();
  CHECK(wait4(-1, NULL, __WALL, NULL) == -1 && errno == ECHILD, "wait4: %s", strerror(errno));
  pid_t child = fork();
  if (child == 0)
    _exit(17);
  int status;
  CHECK(waitpid(-1, &status, 0) == child && WEXITSTATUS(status) == 17, "the child's exit: %s", strerror(errno));
}
