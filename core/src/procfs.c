/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "procfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

char *
procfs_read(const char *path, size_t *length)
{
  cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
  size_t capacity = 16384, used = 0;
  char *text = fd < 0 ? NULL : malloc(capacity);

  while (text) {
    /* Files of /proc have no size: read until there is nothing more. */
    ssize_t n = read(fd, text + used, capacity - used - 1);
    if (n < 0) {
      free(text);
      return NULL;
    }
    if (n == 0)
      break;
    used += (size_t)n;
    if (capacity - used < 4096) {
      char *grown = realloc(text, capacity *= 2);
      if (!grown)
        free(text);
      text = grown;
    }
  }
  if (!text)
    return NULL;
  text[used] = 0;
  if (length)
    *length = used;
  return text;
}

static uint64_t
hex(char **at)
{
  uint64_t value = 0;

  for (;; (*at)++) {
    char c = **at;
    if (c >= '0' && c <= '9')
      value = value * 16 + (uint64_t)(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + (uint64_t)(c - 'a') + 10;
    else
      return value;
  }
}

/* "START-END PERM OFFSET MAJOR:MINOR INODE   NAME"; sscanf takes three times as long, inside the pause. */
static void
parse_map(char *line, struct procmap *map)
{
  char *at = line;

  map->start = hex(&at);
  at++;
  map->end = hex(&at);
  at++;
  map->protection =
      (at[0] == 'r' ? PROT_READ : 0u) | (at[1] == 'w' ? PROT_WRITE : 0u) | (at[2] == 'x' ? PROT_EXEC : 0u);
  map->shared = at[3] == 's';
  at += 5;
  map->offset = hex(&at);
  at++;
  map->major = (uint32_t)hex(&at);
  at++;
  map->minor = (uint32_t)hex(&at);
  map->inode = strtoull(at, &at, 10);
  map->name = at + strspn(at, " ");
}

int
procfs_maps(int pid, struct procmaps *maps, enum ramet_step step, struct err *err)
{
  char path[48];
  size_t lines = 0;

  memset(maps, 0, sizeof *maps);
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  maps->text = procfs_read(path, NULL);
  if (!maps->text)
    return err_step(err, step, "read %s: %s", path, strerror(errno));
  for (char *c = maps->text; *c; c++)
    lines += *c == '\n';
  maps->items = calloc(lines + 1, sizeof *maps->items);
  if (!maps->items) {
    free(maps->text);
    return err_code(err, "internal", "no memory for %zu mappings", lines);
  }
  for (char *line = maps->text; *line;) {
    char *end = strchr(line, '\n');
    if (!end)
      break;
    *end = 0;
    parse_map(line, &maps->items[maps->count++]);
    line = end + 1;
  }
  return 0;
}

void
procfs_maps_free(struct procmaps *maps)
{
  free(maps->items);
  free(maps->text);
  memset(maps, 0, sizeof *maps);
}

const struct procmap *
procfs_find(const struct procmaps *maps, const char *name)
{
  for (uint32_t i = 0; i < maps->count; i++)
    if (strcmp(maps->items[i].name, name) == 0)
      return &maps->items[i];
  return NULL;
}

const char *
procfs_field(const char *text, const char *name)
{
  size_t length = strlen(name);

  for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (strncmp(line, name, length) == 0 && line[length] == ':')
      return line + length + 1 + strspn(line + length + 1, " \t");
  return NULL;
}

bool
procfs_gone(void)
{
  return errno == ENOENT || errno == ESRCH;
}

int
procfs_inside(const char *status, const char *name)
{
  const char *at = procfs_field(status, name);
  int number = 0;

  for (char *end; at && *at && *at != '\n'; at = end + strspn(end, "\t ")) {
    long next = strtol(at, &end, 10);
    if (end == at)
      break;
    number = (int)next;
  }
  return number;
}

void
procfs_copy_name(const char *status, char name[16])
{
  const char *text = procfs_field(status, "Name");
  size_t length = text ? strcspn(text, "\n") : 0;

  memset(name, 0, 16);
  memcpy(name, text, length < 15 ? length : 15);
}

static int
read_numbers(const char *path, int *out, int count, int most)
{
  char *text = procfs_read(path, NULL), *at = text;

  if (!text)
    return procfs_gone() ? count : -1;
  while (*at && count < most) {
    char *end;
    long number = strtol(at, &end, 10);
    if (end == at)
      break;
    out[count++] = (int)number;
    at = end;
  }
  free(text);
  return count;
}

/* Where threads come and go as fast as they can, some listings of a hundred are whole. */
#define LISTINGS_MAX 1000

/* One listing; whether it has all that there were at its end, of those that it names none having gone. */
static bool
list_threads(DIR *dir, int *out, int *count, int most)
{
  struct stat directory;

  *count = 0;
  rewinddir(dir);
  for (struct dirent *entry; (entry = readdir(dir)) && *count < most;)
    if (entry->d_name[0] != '.')
      out[(*count)++] = atoi(entry->d_name);
  return *count == most || fstat(dirfd(dir), &directory) < 0 || (nlink_t)*count + 2 == directory.st_nlink;
}

/* The kernel's listing goes from each thread to the next and ends early at one that has just gone, which it may not even
 * name (proc_task_readdir() of fs/proc/base.c). The links of the directory are its threads, and two. */
int
procfs_threads(int pid, int *out, int most)
{
  char path[48];
  int count = 0;

  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *dir = opendir(path);
  if (!dir)
    return -1;
  bool whole = false;
  for (int i = 0; i < LISTINGS_MAX && !whole; i++)
    whole = list_threads(dir, out, &count, most);
  closedir(dir);
  if (!whole)
    errno = EAGAIN;
  return whole ? count : -1;
}

int
procfs_children(int pid, int *out, int most)
{
  int threads[PROCFS_THREADS_MAX], count = 0;
  int thread_count = procfs_threads(pid, threads, PROCFS_THREADS_MAX);
  char path[64];

  if (thread_count < 0)
    return procfs_gone() ? 0 : -1;
  for (int i = 0; count >= 0 && i < thread_count; i++) {
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, threads[i]);
    count = read_numbers(path, out, count, most);
  }
  return count;
}

/* `name` of /proc/TID/status as a text, or NULL with errno. */
static const char *
status_field(int tid, const char *name, char **text)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/status", tid);
  *text = procfs_read(path, NULL);
  if (*text)
    errno = EINVAL; /* of a status that lacks the field */
  return *text ? procfs_field(*text, name) : NULL;
}

char
procfs_state(int tid)
{
  cleanup_free char *text = NULL;
  const char *state = status_field(tid, "State", &text);

  return state ? *state : procfs_gone() ? 0 : PROCFS_UNTOLD;
}

/* The name in field 2 may hold anything, so count behind it. */
uint64_t
procfs_stat_field(const char *stat, int number)
{
  const char *at = strrchr(stat, ')');

  for (int field = 2; at && field < number; field++)
    at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

#define FLAGS_FIELD 9
#define FLAG_EXITING 4 /* PF_EXITING of linux/sched.h */

static bool
thread_exits(int tid)
{
  cleanup_free char *text = NULL;
  char path[48];
  const char *pending = status_field(tid, "SigPnd", &text);

  if (!pending)
    return procfs_gone();
  if (strtoull(pending, NULL, 16) & (1u << (SIGKILL - 1)))
    return true;
  snprintf(path, sizeof path, "/proc/%d/stat", tid);
  cleanup_free char *stat = procfs_read(path, NULL);
  return stat ? procfs_stat_field(stat, FLAGS_FIELD) & FLAG_EXITING : procfs_gone();
}

bool
procfs_exiting(int pid)
{
  int threads[PROCFS_THREADS_MAX], count = procfs_threads(pid, threads, PROCFS_THREADS_MAX);

  if (count < 0)
    return procfs_gone();
  for (int i = 0; i < count; i++)
    if (!thread_exits(threads[i]))
      return false;
  return true;
}

int
procfs_tracer(int tid)
{
  cleanup_free char *text = NULL;
  const char *tracer = status_field(tid, "TracerPid", &text);

  return tracer ? atoi(tracer) : procfs_gone() ? -1 : -2;
}

int
procfs_parent(int pid)
{
  cleanup_free char *text = NULL;
  const char *parent = status_field(pid, "PPid", &text);

  return parent ? atoi(parent) : -1;
}

void
procfs_name(int pid, char out[32])
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, out, 31);
  out[n > 0 ? n : 0] = 0;
  out[strcspn(out, "\n")] = 0;
}
