/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "inodes.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "syscalls.h"

#define STAGING ".numbered"
/* Each takes a microsecond or two, in the pause. */
#define SKIPPED_MAX 20000

struct inode_kept {
  uint64_t source;
  char name[16]; /* in the staging directory; "": it has its place */
};

static int
by_number(const void *a, const void *b)
{
  uint64_t one = ((const struct inode_wish *)a)->number, other = ((const struct inode_wish *)b)->number;

  return one < other ? -1 : one > other;
}

uint64_t
inodes_in_layer(int layer, const char *path)
{
  struct stat st;
  cleanup_fd int fd = sys_openat2(layer, path, O_PATH | O_NOFOLLOW, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);

  return fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ? 0 : st.st_ino;
}

/* Files without a name take the numbers in between. The last that was given, or 0. */
static ino_t
skip_to(int to, ino_t last, uint64_t wanted, int *left)
{
  struct stat st;

  while (last + 1 < wanted && (*left)-- > 0) {
    cleanup_fd int fd = openat(to, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
      return 0;
    last = st.st_ino;
  }
  return last;
}

static int
keep(struct inodes *inodes, uint64_t source, ino_t *last)
{
  struct inode_kept *kept = &inodes->items[inodes->count];
  struct stat st;

  *kept = (struct inode_kept){.source = source};
  snprintf(kept->name, sizeof kept->name, "%d", inodes->count);
  cleanup_fd int fd = openat(inodes->staging, kept->name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 || fstat(fd, &st) < 0)
    return -1;
  *last = st.st_ino;
  inodes->count++;
  return 0;
}

static int
reserve(int to, const struct inode_wish *wishes, int count, struct inodes *inodes)
{
  int left = SKIPPED_MAX;
  struct stat st;

  if (mkdirat(to, STAGING, 0700) < 0)
    return -1;
  inodes->staging = openat(to, STAGING, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (inodes->staging < 0 || fstat(inodes->staging, &st) < 0)
    return -1;
  ino_t last = st.st_ino;
  for (int i = 0; i < count && left > 0; i++) {
    const struct inode_wish *wish = &wishes[i];
    if (!wish->source || wish->number <= last || wish->number - last > (uint64_t)left)
      continue;
    last = skip_to(to, last, wish->number, &left);
    if (last == 0 || (last + 1 == wish->number && keep(inodes, wish->source, &last) < 0))
      return -1;
  }
  return 0;
}

int
inodes_reserve(int to, struct inode_wish *wishes, int count, struct inodes *inodes, enum ramet_step step,
               struct err *err)
{
  *inodes = (struct inodes){.staging = -1};
  if (count == 0)
    return 0;
  inodes->items = calloc((size_t)count, sizeof *inodes->items);
  if (!inodes->items)
    return err_code(err, "internal", "no memory for numbers of files");
  qsort(wishes, (size_t)count, sizeof *wishes, by_number);
  return reserve(to, wishes, count, inodes) < 0 ? err_step(err, step, "numbers of files: %s", strerror(errno)) : 0;
}

int
inodes_place(struct inodes *inodes, uint64_t source, int dir, const char *name)
{
  for (int i = 0; i < inodes->count; i++) {
    struct inode_kept *kept = &inodes->items[i];
    if (kept->source != source || !kept->name[0])
      continue;
    if (renameat(inodes->staging, kept->name, dir, name) < 0)
      return -1;
    kept->name[0] = 0;
    return 1;
  }
  return 0;
}

uint64_t
inodes_source(const struct inodes *inodes, int place)
{
  return inodes->items[place].source;
}

bool
inodes_have(const struct inodes *inodes, uint64_t source)
{
  for (int i = 0; i < inodes->count; i++)
    if (inodes->items[i].source == source && inodes->items[i].name[0])
      return true;
  return false;
}

int
inodes_end(struct inodes *inodes, int to, enum ramet_step step, struct err *err)
{
  int result = 0;

  for (int i = 0; i < inodes->count; i++)
    if (inodes->items[i].name[0] && unlinkat(inodes->staging, inodes->items[i].name, 0) < 0)
      result = -1;
  if (inodes->staging >= 0 && unlinkat(to, STAGING, AT_REMOVEDIR) < 0)
    result = -1;
  close_fd(&inodes->staging);
  free(inodes->items);
  inodes->items = NULL;
  inodes->count = 0;
  return result < 0 ? err_step(err, step, "numbers of files: %s", strerror(errno)) : 0;
}
