/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "census.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "fdinfo.h"
#include "inodemap.h"
#include "procfs.h"
#include "queued.h"
#include "shares.h"
#include "syscalls.h"
#include "title.h"

#define PROCESSES_MAX 65536
/* Threads with a table of their own. */
#define TABLES_MAX 256

struct epoll {
  int tid, fd;
};

/* Of one sandbox. */
struct walk {
  enum ramet_limit limit;
  uint64_t enough; /* more need not be counted: a look at a watch takes microseconds */
  bool deep;       /* into the messages too */
  struct inode_map sockets;
  struct epoll *epolls; /* in the order of kcmp(2) */
  int epoll_count, epoll_capacity;
  uint64_t amount;
};

struct census {
  const struct census_one *all;
  int count;
  enum ramet_limit limit;
  uint64_t whole;
  uint64_t *amounts;
  struct census_found **founds; /* of those who have so much that they may have to give */
};

static int pids[PROCESSES_MAX];
static uint64_t each[PROCESSES_MAX]; /* what that process has, others or not */

static void
need(bool there)
{
  if (!there)
    _exit(EXIT_SYSTEM);
}

/* Each thread's table that is no other's. */
static int
tables_of(int pid, int tables[TABLES_MAX])
{
  int threads[PROCFS_THREADS_MAX], thread_count = procfs_threads(pid, threads, PROCFS_THREADS_MAX), count = 0;

  for (int i = 0; i < thread_count && count < TABLES_MAX; i++) {
    bool known = false;
    for (int k = 0; k < count && !known; k++)
      known = syscall(SYS_kcmp, tables[k], threads[i], KCMP_FILES, 0, 0) == 0;
    if (!known)
      tables[count++] = threads[i];
  }
  return count;
}

/* Its place among those that are known; `*known`: it is one of them. kcmp(2) orders open files. */
static int
place_of(const struct walk *walk, int tid, int fd, bool *known)
{
  int low = 0, high = walk->epoll_count;

  *known = false;
  while (low < high) {
    int middle = (low + high) / 2;
    const struct epoll *other = &walk->epolls[middle];
    long order = syscall(SYS_kcmp, tid, other->tid, KCMP_FILE, fd, other->fd);
    if (order == 0) {
      *known = true;
      return middle;
    }
    if (order == 1)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static bool
is_new_epoll(struct walk *walk, int tid, int fd)
{
  bool known;
  int at = place_of(walk, tid, fd, &known);

  if (known)
    return false;
  if (walk->epoll_count == walk->epoll_capacity) {
    walk->epoll_capacity = walk->epoll_capacity ? 2 * walk->epoll_capacity : 64;
    walk->epolls = realloc(walk->epolls, sizeof *walk->epolls * (size_t)walk->epoll_capacity);
    need(walk->epolls);
  }
  memmove(&walk->epolls[at + 1], &walk->epolls[at], sizeof *walk->epolls * (size_t)(walk->epoll_count - at));
  walk->epolls[at] = (struct epoll){tid, fd};
  walk->epoll_count++;
  return true;
}

static uint64_t
add_socket(struct walk *walk, int tid, int fd, uint64_t inode)
{
  bool known = inode_map_get(&walk->sockets, inode);

  need(known || inode_map_put(&walk->sockets, inode, 1) == 0);
  uint64_t in_flight = fdinfo_in_flight(tid, fd);
  if (in_flight && walk->deep)
    in_flight += queued_below(tid, fd, &walk->sockets);
  walk->amount += known ? 0 : in_flight;
  return in_flight;
}

static uint64_t
add_epoll(struct walk *walk, int tid, int fd)
{
  uint64_t watches = fdinfo_watches(tid, fd);

  walk->amount += watches && is_new_epoll(walk, tid, fd) ? watches : 0;
  return watches;
}

/* Of a file with a path the link begins with a slash: what is compared here no guest can name its file. */
static uint64_t
add_table(struct walk *walk, int tid)
{
  bool sockets = walk->limit == RAMET_LIMIT_IN_FLIGHT;
  char path[64], link[64];
  struct dirent *entry;
  uint64_t own = 0;

  snprintf(path, sizeof path, "/proc/%d/fd", tid);
  DIR *dir = opendir(path);
  while (dir && walk->amount <= walk->enough && (entry = readdir(dir))) {
    ssize_t length = readlinkat(dirfd(dir), entry->d_name, link, sizeof link - 1);
    link[length > 0 ? length : 0] = 0;
    int fd = atoi(entry->d_name);
    if (sockets && strncmp(link, "socket:[", 8) == 0)
      own += add_socket(walk, tid, fd, strtoull(link + 8, NULL, 10));
    else if (!sockets && strcmp(link, "anon_inode:[eventpoll]") == 0)
      own += add_epoll(walk, tid, fd);
  }
  if (dir)
    closedir(dir);
  return own;
}

static uint64_t
add_process(struct walk *walk, int pid)
{
  int tables[TABLES_MAX], count = tables_of(pid, tables);
  uint64_t own = 0;

  for (int i = 0; i < count; i++)
    own += add_table(walk, tables[i]);
  return own;
}

/* Those below init in `pids`. Whom nobody can list is left out: it is this census that is not whole then, not the sandbox. */
static int
list(int init)
{
  int count = 1;

  pids[0] = init;
  for (int at = 0; at < count; at++) {
    int found = procfs_children(pids[at], pids + count, PROCESSES_MAX - count);
    count += found > 0 ? found : 0;
  }
  return count;
}

/* Its processes are in `pids` and `each` from the second on. */
static uint64_t
count_sandbox(struct walk *walk, int init, int *count)
{
  *count = list(init);
  for (int i = 1; i < *count; i++)
    each[i] = walk->amount <= walk->enough ? add_process(walk, pids[i]) : 0;
  inode_map_free(&walk->sockets);
  free(walk->epolls);
  return walk->amount;
}

static int
number_inside(int pid)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/%d/status", pid);
  cleanup_free char *status = procfs_read(path, NULL);
  return status ? procfs_inside(status, "NSpid") : 0;
}

static struct census_found *
note_holders(const struct census_one *one, uint64_t amount, int count)
{
  struct census_found *found = calloc(1, sizeof *found);
  uint64_t largest = 0;

  need(found);
  *found = (struct census_found){.sandbox = one->sandbox, .amount = amount};
  for (int i = 1; i < count; i++)
    if (each[i] > largest)
      largest = each[i];
  for (int i = 1; i < count && found->pid_count < CENSUS_PIDS_MAX; i++) {
    int inside = shares_has_much(each[i], largest) ? number_inside(pids[i]) : 0;
    if (inside > 1)
      found->pids[found->pid_count++] = (uint32_t)inside;
  }
  return found;
}

static uint64_t
count_all(struct census *census, bool deep)
{
  uint64_t enough = census->limit == RAMET_LIMIT_IN_FLIGHT ? UINT64_MAX : SHARES_ALL(census->whole), sum = 0;
  int processes;

  for (int i = 0; i < census->count; i++) {
    struct walk walk = {.limit = census->limit, .enough = enough, .deep = deep};
    uint64_t amount = count_sandbox(&walk, census->all[i].init, &processes);
    free(census->founds[i]);
    census->founds[i] =
        amount > SHARES_LEAST(census->whole) ? note_holders(&census->all[i], amount, processes) : NULL;
    census->amounts[i] = amount;
    sum += amount;
  }
  return sum;
}

static void
judge(struct census *census, struct census_report *report)
{
  int places[CENSUS_FOUND_MAX];

  report->found_count = shares_exceeded(census->amounts, census->count, census->whole, places, CENSUS_FOUND_MAX);
  for (int i = 0; i < report->found_count; i++)
    report->found[i] = *census->founds[places[i]];
}

/* No signal but SIGKILL reaches it, as core. It holds nothing of core's open, which would outlive it there. */
static void
become_census(void)
{
  if (sys_close_range(0, UINT_MAX, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
    _exit(EXIT_SYSTEM);
  title_set("ramet-census");
}

_Noreturn void
census_main(const struct census_one *all, int count, enum ramet_limit limit, uint64_t whole,
            struct census_report *report)
{
  struct census census = {.all = all, .count = count, .limit = limit, .whole = whole};

  become_census();
  census.amounts = calloc((size_t)count + 1, sizeof *census.amounts);
  census.founds = calloc((size_t)count + 1, sizeof(struct census_found *));
  need(census.amounts && census.founds);
  report->amount = count_all(&census, false);
  judge(&census, report);
  /* There are more than are seen: somebody has sent sockets that have descriptors in them. */
  if (limit == RAMET_LIMIT_IN_FLIGHT && !report->found_count) {
    uint64_t seen = report->amount;
    report->amount = count_all(&census, true);
    report->hidden = report->amount > seen ? report->amount - seen : 0;
    judge(&census, report);
  }
  report->complete = true;
  _exit(0);
}
