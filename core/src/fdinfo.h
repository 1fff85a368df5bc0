/* SPDX-License-Identifier: Apache-2.0
 * What /proc/PID/fdinfo tells of an open file, proc_pid_fdinfo(5): lines of "NAME: VALUE". Of an epoll(7) descriptor it is
 * a line for each watch, millions of them if a guest wants it: so they are counted as they come, and kept nowhere. */
#ifndef RAMET_FDINFO_H
#define RAMET_FDINFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many lines of a text have this name; the text comes in pieces, that begin and end anywhere. */
struct fdinfo_lines {
  const char *name;
  size_t matched; /* characters of the name and its colon, as far as this line has them */
  bool other;     /* this line has another name */
  uint64_t count;
};

void fdinfo_count(struct fdinfo_lines *lines, const char *text, size_t length);
/* The number in the line of this name, decimal; 0: there is none. `text` ends with NUL. */
uint64_t fdinfo_number(const char *text, const char *name);

/* Of the open file number `fd` of thread `tid`. 0 also where it cannot be told. */
uint64_t fdinfo_in_flight(int tid, int fd);
uint64_t fdinfo_watches(int tid, int fd);

#endif
