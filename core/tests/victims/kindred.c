/* SPDX-License-Identifier: Apache-2.0
 * Memory of processes beside the first, which is as it was and where it was, and in as many pieces. */
#include "trees.h"

#define PAGE 4096u
#define MIB ((size_t)1 << 20)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

struct piece {
  unsigned char *at;
  size_t length, step;
};

static void
put(const struct piece *piece, uint64_t seed)
{
  for (size_t offset = 0; offset < piece->length; offset += piece->step)
    for (size_t in = 0; in < PAGE; in += 1360)
      *(uint64_t *)(void *)(piece->at + offset + in) = (offset + in) * 2654435761u + seed;
}

static bool
has(const struct piece *piece, uint64_t seed)
{
  for (size_t offset = 0; offset < piece->length; offset += piece->step)
    for (size_t in = 0; in < PAGE; in += 1360)
      if (*(uint64_t *)(void *)(piece->at + offset + in) != (offset + in) * 2654435761u + seed)
        return false;
  return true;
}

static struct piece
make(size_t length, size_t step, uint64_t seed)
{
  struct piece piece = {
      mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), length, step};

  NEED(piece.at != MAP_FAILED);
  put(&piece, seed);
  return piece;
}

/* KiB of address space: nothing of what others have is left in it. */
static long
size(void)
{
  char text[4096];
  int fd = open("/proc/self/status", O_RDONLY);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

  if (fd >= 0)
    close(fd);
  text[length > 0 ? length : 0] = 0;
  char *at = strstr(text, "VmSize:");
  return at ? strtol(at + 7, NULL, 10) : -1;
}

struct holdings {
  struct piece large, read_only, closed, sparse, huge, guarded;
  bool has_guard;
  long size;
};

static void
hold(struct holdings *own, uint64_t seed)
{
  own->large = make(9 * MIB, PAGE, seed);
  own->read_only = make(2 * MIB, PAGE, seed + 1);
  own->closed = make(MIB, PAGE, seed + 2);
  own->sparse = make((size_t)16 << 30, (size_t)3 << 30, seed + 3);
  own->huge = make(6 * MIB, PAGE, seed + 4);
  own->guarded = make(MIB, 2 * PAGE, seed + 5);
  own->has_guard = madvise(own->guarded.at + PAGE, PAGE, MADV_GUARD_INSTALL) == 0;
  NEED(mprotect(own->read_only.at, own->read_only.length, PROT_READ) == 0 &&
       mprotect(own->closed.at, own->closed.length, PROT_NONE) == 0);
  madvise(own->huge.at, own->huge.length, MADV_HUGEPAGE);
  own->size = size();
}

/* 0: all is right. */
static int
compare(struct holdings *own, uint64_t seed)
{
  int pair[2];
  long now = size();

  if (now > own->size + 4096 || now < own->size)
    return 1;
  if (!has(&own->large, seed) || !has(&own->read_only, seed + 1) || !has(&own->sparse, seed + 3) ||
      !has(&own->huge, seed + 4) || !has(&own->guarded, seed + 5))
    return 2;
  if (pipe(pair) < 0 || write(pair[1], "x", 1) != 1 || read(pair[0], own->read_only.at, 1) != -1 ||
      errno != EFAULT || read(pair[0], own->closed.at, 1) != -1 || errno != EFAULT)
    return 3;
  if (own->has_guard && (read(pair[0], own->guarded.at + PAGE, 1) != -1 || errno != EFAULT))
    return 4;
  if (mprotect(own->closed.at, own->closed.length, PROT_READ | PROT_WRITE) < 0 || !has(&own->closed, seed + 2))
    return 5;
  if (own->sparse.at[PAGE] || own->sparse.at[own->sparse.length - 1])
    return 6;
  /* One mapping each, which can be moved as a whole. */
  own->large.at = mremap(own->large.at, own->large.length, own->large.length + 3 * MIB, MREMAP_MAYMOVE);
  if (own->large.at == MAP_FAILED || !has(&own->large, seed) || own->large.at[own->large.length])
    return 7;
  if (madvise(own->huge.at, MIB, MADV_DONTNEED) < 0 || own->huge.at[0] || own->huge.at[MIB - 1] ||
      own->huge.at[MIB] == 0)
    return 8;
  put(&own->large, seed + 77);
  put(&own->huge, seed + 78);
  return has(&own->large, seed + 77) && has(&own->huge, seed + 78) ? 0 : 9;
}

VICTIM(holdings, "what a child and its child have of their own, some of it at the same addresses")
{
  static struct holdings own;
  struct told_child child, grandchild;

  meet();
  CHILD(child);
  if (child.pid == 0) {
    hold(&own, 100);
    CHILD(grandchild);
    if (grandchild.pid == 0) {
      /* In the place of its parent's. */
      struct piece other = own.large;
      NEED(mmap(other.at, other.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
           other.at);
      put(&other, 5000);
      hold(&own, 200);
      await_parent(&grandchild);
      int wrong = has(&other, 5000) ? compare(&own, 200) : 20;
      _exit(wrong);
    }
    own.size = size();
    await_parent(&child);
    int status, wrong = compare(&own, 100);
    if (write(grandchild.go, "g", 1) != 1 || waitpid(grandchild.pid, &status, 0) != grandchild.pid)
      _exit(30);
    _exit(wrong ? wrong : WEXITSTATUS(status));
  }
  settle(2);
  long before_fork = size();
  ready();
  await_go();
  CHECK(size() <= before_fork + 4096, "the first has %ld KiB more", size() - before_fork);
  check_child(&child, "the child");
}

VICTIM(reserved, "more address space reserved by a child than a stem has room for")
{
  struct told_child child;

  meet();
  CHILD(child);
  if (child.pid == 0) {
    struct piece pieces[48];
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
      pieces[i] = make((size_t)40 << 30, (size_t)13 << 30, i);
    await_parent(&child);
    int wrong = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
      wrong += !has(&pieces[i], i) || munmap(pieces[i].at, pieces[i].length) < 0;
    _exit(wrong);
  }
  settle(1);
  ready();
  await_go();
  check_child(&child, "the child");
}
