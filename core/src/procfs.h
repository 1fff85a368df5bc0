/* SPDX-License-Identifier: Apache-2.0
 * What /proc tells of a process, parsed: proc(5). */
#ifndef RAMET_PROCFS_H
#define RAMET_PROCFS_H

#include <stdint.h>

#include "err.h"

/* More are never looked at. */
#define PROCFS_THREADS_MAX 2048

struct procmap {
  uint64_t start, end, offset, inode;
  uint32_t protection; /* PROT_* */
  bool shared;
  uint32_t major, minor;
  char *name; /* "" when there is none */
};

struct procmaps {
  struct procmap *items;
  uint32_t count;
  char *text;
};

/* Reads a whole file of /proc; the caller frees it. NULL with errno. */
char *procfs_read(const char *path, size_t *length);
int procfs_maps(int pid, struct procmaps *maps, enum ramet_step step, struct err *err) MUST_CHECK;
void procfs_maps_free(struct procmaps *maps);
const struct procmap *procfs_find(const struct procmaps *maps, const char *name);

/* The value behind "NAME:" in a text of such lines, or NULL. */
const char *procfs_field(const char *text, const char *name);

/* Of a text of /proc/PID/status: the last number of one of its lists that have a number for each nested pid namespace,
 * which is the one that the process itself sees; 0: none. */
int procfs_inside(const char *status, const char *name);
/* Its "Name", padded with zeros. */
void procfs_copy_name(const char *status, char name[16]);

/* Whether what has just failed, by errno, did so because the process is no more. */
bool procfs_gone(void);
/* Direct children of a process, all its threads' together; -1 with errno: they cannot be told. One that is gone has
 * none. */
int procfs_children(int pid, int *out, int most);
/* -1 with errno: they cannot be told; EAGAIN: they come and go too fast. */
int procfs_threads(int pid, int *out, int most);
/* One letter, proc(5); 0 when it is gone, PROCFS_UNTOLD with errno when it cannot be told. */
#define PROCFS_UNTOLD '?'
char procfs_state(int tid);
/* Fields of /proc/PID/stat by their number in proc(5). */
uint64_t procfs_stat_field(const char *stat, int number);
/* Whether all its threads have ended, or are about to: exit_group(2) and fatal signals give each a SIGKILL. */
bool procfs_exiting(int pid);
/* Who traces it: 0 nobody, -1 it is gone, -2 with errno: it cannot be told. */
int procfs_tracer(int tid);
int procfs_parent(int pid);
/* The command's name, for messages. */
void procfs_name(int pid, char out[32]);

#endif
