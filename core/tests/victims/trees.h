/* SPDX-License-Identifier: Apache-2.0
 * What several processes need to compare themselves: a place to meet, and what /proc tells of all of them. */
#ifndef TREES_H
#define TREES_H

#include "victim.h"

#include <dirent.h>
#include <sys/wait.h>

#define VIEW_BYTES 16384

static inline char
state_of(pid_t pid, char line[256])
{
  char path[64], text[1024];

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY);
  ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  if (length <= 0)
    return 0;
  text[length] = 0;
  char *name = strchr(text, '('), *end = strrchr(text, ')');
  char state;
  int parent, group, session;
  *end = 0;
  if (sscanf(end + 2, "%c %d %d %d", &state, &parent, &group, &session) != 4)
    return 0;
  snprintf(line, 256, "%d %s%s below %d, group %d, session %d\n", pid, name + 1, state == 'Z' ? " (ended)" : "",
           parent, group, session);
  return state;
}

static inline int
by_number(const void *a, const void *b)
{
  return *(const int *)a - *(const int *)b;
}

/* Numbers, names, parents, groups and sessions of all processes. */
static inline void
view(char out[VIEW_BYTES])
{
  int pids[512], count = 0;
  DIR *dir = opendir("/proc");
  size_t used = 0;

  NEED(dir);
  for (struct dirent *entry; (entry = readdir(dir)) && count < 512;)
    if (atoi(entry->d_name) > 1)
      pids[count++] = atoi(entry->d_name);
  closedir(dir);
  qsort(pids, (size_t)count, sizeof *pids, by_number);
  out[0] = 0;
  for (int i = 0; i < count; i++) {
    char line[256];
    if (state_of(pids[i], line) && used + strlen(line) < VIEW_BYTES)
      used += (size_t)sprintf(out + used, "%s", line);
  }
}

/* Where those that have come to their place are counted. */
static int *arrived;

static inline void
meet(void)
{
  arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(arrived != MAP_FAILED);
}

static inline void
arrive(void)
{
  __atomic_add_fetch(arrived, 1, __ATOMIC_SEQ_CST);
}

/* Until so many have come, and every process but this one sleeps or has ended. */
static inline void
settle(int others)
{
  char line[256];

  for (bool rests = false; !rests;) {
    DIR *dir = opendir("/proc");
    rests = __atomic_load_n(arrived, __ATOMIC_SEQ_CST) == others;
    for (struct dirent *entry; (entry = readdir(dir));) {
      pid_t pid = atoi(entry->d_name);
      char state = pid > 1 && pid != getpid() ? state_of(pid, line) : 'S';
      /* What init has yet to wait for is about to go. */
      rests &= state == 'S' || (state == 'Z' && !strstr(line, "(ended) below 1,"));
    }
    closedir(dir);
    if (!rests)
      nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
}

static char before[VIEW_BYTES], after[VIEW_BYTES];

static inline void
compare_views(void)
{
  view(after);
  for (char *a = before, *b = after; *a || *b;) {
    size_t m = strcspn(a, "\n"), n = strcspn(b, "\n");
    CHECK(m == n && memcmp(a, b, m) == 0, "\"%.*s\" was \"%.*s\"", (int)n, b, (int)m, a);
    a += m + (a[m] != 0);
    b += n + (b[n] != 0);
  }
}

/* A child that reports by its exit: 0 is right. It waits for a byte. */
struct told_child {
  pid_t pid;
  int go;
};

#define CHILD(child)                                                                                               \
  do {                                                                                                             \
    int ends_[2];                                                                                                  \
    NEED(pipe(ends_) == 0);                                                                                        \
    (child).pid = fork();                                                                                          \
    (child).go = ends_[(child).pid != 0];                                                                          \
    close(ends_[(child).pid == 0]);                                                                                \
  } while (0)

static inline void
await_parent(const struct told_child *child)
{
  char byte;

  arrive();
  if (read(child->go, &byte, 1) != 1)
    _exit(99);
}

static inline void
check_child(const struct told_child *child, const char *what)
{
  int status;

  CHECK(write(child->go, "g", 1) == 1, "%s is not there", what);
  CHECK(waitpid(child->pid, &status, 0) == child->pid, "%s cannot be waited for", what);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %#x", what, status);
}

#endif
