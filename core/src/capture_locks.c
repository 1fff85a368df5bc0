/* SPDX-License-Identifier: Apache-2.0
 * Locks of files, as fdinfo tells them with the descriptor that they were taken by: fcntl(2) for a process or for an
 * open file, flock(2). Who waits for one waits again. */
#define _GNU_SOURCE
#include "capture_fds.h"

#include <stdio.h>
#include <string.h>

/* "lock:\t1: POSIX  ADVISORY  WRITE 57 00:2f:5678 0 EOF"; OFDLCK, FLOCK. The number is of who reads. */
static int
parse_lock(const char *line, struct image_lock *lock)
{
  char kind[8], how[8], end[24];
  unsigned long long start, last;

  if (sscanf(line, "lock: %*d: %7s %*s %7s %*d %*s %llu %23s", kind, how, &start, end) != 4)
    return -1;
  lock->kind = strcmp(kind, "POSIX") == 0    ? IMAGE_LOCK_OF_PROCESS
               : strcmp(kind, "OFDLCK") == 0 ? IMAGE_LOCK_OF_FILE
               : strcmp(kind, "FLOCK") == 0  ? IMAGE_LOCK_WHOLE
                                             : 0;
  lock->exclusive = strcmp(how, "WRITE") == 0;
  lock->start = start;
  if (strcmp(end, "EOF") != 0) {
    if (sscanf(end, "%llu", &last) != 1)
      return -1;
    lock->length = last - start + 1;
  }
  return lock->kind ? 0 : -1;
}

/* Those of an open file are told with each of its descriptors, in every process. */
int
fd_put_locks(const struct fd_table *table, const struct found_fd *fd, struct err *err)
{
  bool first = &table->items[fd->description] == fd;

  for (const char *line = strstr(fd->info, "lock:"); line; line = strstr(line + 1, "\nlock:")) {
    struct image_lock lock = {.description = fd->description};
    if (parse_lock(line + (*line == '\n'), &lock) < 0)
      return capture_refuse(fd->owner, err, "fd %d is a file with a lease", fd->number);
    if (lock.kind == IMAGE_LOCK_OF_PROCESS) {
      lock.number = fd->number;
      put_bytes(&fd->owner->description, IMAGE_TAG_PROCESS_LOCK, &lock, sizeof lock);
    } else if (first) {
      put_bytes(&fd->owner->tree->files, IMAGE_TAG_LOCK, &lock, sizeof lock);
    }
  }
  return 0;
}
