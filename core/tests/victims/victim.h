/* SPDX-License-Identifier: Apache-2.0
 * A victim is a tiny program that is frozen and forked at a known point and then proves that it is still right.
 *
 *   VICTIM(name, "what it proves")
 *   {
 *     ... make the state ...
 *     ready();       says READY; the runner freezes it now, any number of times
 *     await_go();    returns in the source and in every child, when the runner says so to each
 *     ... compare ...
 *   }                returning says OK; CHECK() and fail() say what differs
 *
 * `PROGRAM NAME` runs one. tests/system/engine finds the names by reading the sources. */
#ifndef VICTIM_H
#define VICTIM_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct victim {
  const char *name, *proves;
  void (*run)(void);
};

#define VICTIM(name, proves)                                                                                       \
  static void victim_##name(void);                                                                                 \
  static const struct victim entry_##name = {#name, proves, victim_##name};                                        \
  static const struct victim *const listed_##name __attribute__((section("victims"), used)) = &entry_##name;       \
  static void victim_##name(void)

extern const struct victim *const __start_victims[], *const __stop_victims[];

/* Whole lines by one write(2): the runner reads a pipe, and stdio's buffer would be copied into children. */
static inline void
say(const char *format, ...)
{
  char line[512];
  va_list args;

  va_start(args, format);
  int length = vsnprintf(line, sizeof line - 1, format, args);
  va_end(args);
  if (length > (int)sizeof line - 2)
    length = (int)sizeof line - 2;
  line[length++] = '\n';
  if (write(1, line, (size_t)length) != length)
    _exit(3);
}

static inline void
ready(void)
{
  say("READY");
}

#define fail(...) (say("differs: " __VA_ARGS__), _exit(1))
#define CHECK(condition, ...)                                                                                      \
  do {                                                                                                             \
    if (!(condition))                                                                                              \
      fail(__VA_ARGS__);                                                                                           \
  } while (0)
/* What the victim needs before it is frozen. */
#define NEED(condition)                                                                                            \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      say("cannot: " #condition ": %s", strerror(errno));                                                          \
      _exit(2);                                                                                                    \
    }                                                                                                              \
  } while (0)
/* Not on this machine: the runner skips the test and tells why. */
#define MISSING(what) (say("missing: " what), _exit(0))

static inline void
await_go(void)
{
  char c = 0;

  while (c != '\n') {
    ssize_t n = read(0, &c, 1);
    if (n == 0)
      _exit(4); /* nobody asks any more */
    if (n < 0)
      fail("read of the word to go on: %s", strerror(errno));
  }
}

static inline uint64_t
now_ns(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void *
anonymous(size_t length)
{
  void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  NEED(at != MAP_FAILED);
  return at;
}

static inline void
start(pthread_t *thread, void *(*body)(void *), void *argument)
{
  errno = pthread_create(thread, NULL, body, argument);
  NEED(errno == 0);
}

int
main(int count, char **arguments)
{
  for (const struct victim *const *victim = __start_victims; victim < __stop_victims; victim++)
    if (count > 1 && strcmp((*victim)->name, arguments[1]) == 0) {
      (*victim)->run();
      say("OK");
      return 0;
    }
  for (const struct victim *const *victim = __start_victims; victim < __stop_victims; victim++)
    say("%s: %s", (*victim)->name, (*victim)->proves);
  return 2;
}

#endif
