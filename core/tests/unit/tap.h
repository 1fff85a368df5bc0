/* SPDX-License-Identifier: Apache-2.0
 * Tests as functions whose names are sentences, reported in the Test Anything Protocol. A failed check names its
 * place and lets the test go on; the test then counts as failed once. */
#ifndef RAMET_TESTS_TAP_H
#define RAMET_TESTS_TAP_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_tests, tap_failed_tests, tap_failed_checks;

static inline void
tap_check(bool holds, const char *file, int line, const char *what)
{
  if (holds)
    return;
  tap_failed_checks++;
  printf("# %s:%d: does not hold: %s\n", file, line, what);
}

static inline void
tap_run(void (*test)(void), const char *name)
{
  char sentence[160];
  size_t i = 0;

  for (; name[i] && i + 1 < sizeof sentence; i++)
    sentence[i] = name[i] == '_' ? ' ' : name[i];
  sentence[i] = 0;
  tap_failed_checks = 0;
  test();
  printf("%sok %d - %s\n", tap_failed_checks ? "not " : "", ++tap_tests, sentence);
  fflush(stdout);
  tap_failed_tests += tap_failed_checks != 0;
}

static inline int
tap_end(void)
{
  printf("1..%d\n", tap_tests);
  return tap_failed_tests != 0;
}

/* A test that cannot be set up proves nothing: the whole program ends as a failed one. */
static inline void
tap_need(bool holds, const char *file, int line, const char *what)
{
  if (holds)
    return;
  printf("Bail out! %s:%d: cannot go on without: %s\n", file, line, what);
  exit(1);
}

#define CHECK(condition) tap_check((condition), __FILE__, __LINE__, #condition)
#define CHECK_TEXT(actual, expected) CHECK(strcmp((actual), (expected)) == 0)
#define NEED(condition) tap_need((condition), __FILE__, __LINE__, #condition)
#define RUN(test) tap_run((test), #test)

/* How many descriptors are open, that of the count not included. */
static inline int
tap_open_descriptors(void)
{
  DIR *directory = opendir("/proc/self/fd");
  int count = -3; /* ".", ".." and the directory's own */

  NEED(directory != NULL);
  while (readdir(directory))
    count++;
  closedir(directory);
  return count;
}

#endif
