/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fdinfo.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "procfs.h"

#define PIECE 65536

void
fdinfo_count(struct fdinfo_lines *lines, const char *text, size_t length)
{
  size_t whole = strlen(lines->name);

  for (const char *at = text, *end = text + length; at < end; at++) {
    if (*at == '\n') {
      lines->matched = 0;
      lines->other = false;
    } else if (lines->other) {
      continue;
    } else if (*at == (lines->matched < whole ? lines->name[lines->matched] : ':')) {
      lines->count += lines->matched == whole;
      lines->other = lines->matched++ == whole;
    } else {
      lines->other = true;
    }
  }
}

uint64_t
fdinfo_number(const char *text, const char *name)
{
  const char *value = procfs_field(text, name);

  return value && *value >= '0' && *value <= '9' ? strtoull(value, NULL, 10) : 0;
}

static int
open_it(int tid, int fd)
{
  char path[64];

  snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", tid, fd);
  return open(path, O_RDONLY | O_CLOEXEC);
}

uint64_t
fdinfo_in_flight(int tid, int fd)
{
  char text[1024];
  cleanup_fd int file = open_it(tid, fd);
  ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);

  text[length > 0 ? length : 0] = 0;
  return fdinfo_number(text, "scm_fds");
}

uint64_t
fdinfo_watches(int tid, int fd)
{
  static char piece[PIECE];
  struct fdinfo_lines lines = {.name = "tfd"};
  cleanup_fd int file = open_it(tid, fd);
  ssize_t length;

  while (file >= 0 && (length = read(file, piece, sizeof piece)) > 0)
    fdinfo_count(&lines, piece, (size_t)length);
  return lines.count;
}
