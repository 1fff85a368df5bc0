/* SPDX-License-Identifier: Apache-2.0
 * A cgroup for each sandbox, below one that core was given: cgroups(7). Version 1 has a hierarchy for each controller,
 * version 2 one for all; the rest is names of files. */
#ifndef RAMET_CGROUPS_H
#define RAMET_CGROUPS_H

#include <stdint.h>

#include "err.h"

/* What a sandbox's cgroup bounds. 0: no bound. */
struct cgroup_limits {
  uint64_t memory, processes;
  uint64_t quota; /* microseconds of processor time in each CGROUP_PERIOD_US */
  uint64_t io;    /* bytes a second that are read from each disk, and written to it */
};

#define CGROUP_PERIOD_US 100000
/* Descriptors that core keeps for them. */
#define CGROUP_DIRECTORIES_MAX 5
#define CGROUP_DISKS_MAX 64

/* How a process of a stem gets into a sandbox's cgroups: files to which it writes, or in version 2 a directory in which
 * it is born. */
struct cgroup_entrances {
  int fds[CGROUP_DIRECTORIES_MAX], count;
  bool born_inside;
};

/* "1 memory=FD cpu=FD pids=FD blkio=FD cpuacct=FD" or "2 dir=FD memory cpu pids io": directories that belong to core's user, and what
 * core may have its sandboxes' cgroups control. -1 when it is no such text. */
int cgroups_take(const char *text);
/* The descriptors that were taken, each once, to be kept. */
int cgroups_descriptors(int out[CGROUP_DIRECTORIES_MAX]);
/* Version and controllers, "" when there are none. */
const char *cgroups_told(void);
/* 0: none. */
int cgroups_version(void);
bool cgroups_control_memory(void);
bool cgroups_control_cpu(void);
/* False also when there is no disk. */
bool cgroups_control_io(void);
/* "MAJOR:MINOR,MAJOR:MINOR": the disks that the limit on io is for. -1 when it is no such text. */
int cgroups_take_disks(const char *text);

/* The launcher, before it makes core: into the cgroup, which becomes the root of core's cgroup namespace. */
int cgroups_enter(struct err *err) MUST_CHECK;
/* The launcher, afterwards: in version 2 a cgroup with children that are controlled has no processes of its own. */
int cgroups_settle(long core, struct err *err) MUST_CHECK;

/* The caller, into a cgroup of its own with this number and these limits. `had`: those that it has; NULL: it is made. */
int cgroups_join(uint64_t number, const struct cgroup_limits *limits, const struct cgroup_limits *had,
                 struct err *err) MUST_CHECK;
/* `had`: what it has already. */
int cgroups_limit(uint64_t number, const struct cgroup_limits *limits, const struct cgroup_limits *had,
                  struct err *err) MUST_CHECK;
/* The caller closes them. */
int cgroups_open_entrances(uint64_t number, struct cgroup_entrances *entrances, struct err *err) MUST_CHECK;
void cgroups_close_entrances(struct cgroup_entrances *entrances);
/* The directory that bounds the memory, for cgroups_memory_used(); -1 when there is none. The caller's. */
int cgroups_open_memory(uint64_t number);
/* The one that counts time, for cgroups_time_used(); -1 when none does. The caller's. */
int cgroups_open_time(uint64_t number);
/* What could not be had back at once: without files that are only kept because there is room. */
uint64_t cgroups_memory_used(int directory);
/* Nanoseconds that those have run that are or were in it. */
uint64_t cgroups_time_used(int directory);
/* The most memory that was taken, and how many processes were killed for it. */
/* What poll(2) says is ready whenever the kernel has killed somebody in this cgroup for its memory, or is about to; -1: it
 * does not tell. */
int cgroups_open_kills(int memory);
/* Whether it has since it was asked last; `*seen` begins as 0, and is its own. */
bool cgroups_kills_told(int memory, int kills, uint64_t *seen);
void cgroups_read(uint64_t number, uint64_t *peak, uint64_t *kills);
/* Whether it is as good as new, but for the processor time that it has counted and the limits that it has: nobody is in
 * it, and hardly any memory is charged to it. Version 1 only: in version 2 the peak cannot be reset. */
bool cgroups_renew(uint64_t number);
/* When no process is left in it. One that is busy still is tried again with the next. */
void cgroups_remove(uint64_t number);

#endif
