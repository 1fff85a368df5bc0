/* SPDX-License-Identifier: Apache-2.0
 * Init sees to two limits of its sandbox that no single process has: the processor time of all of them together, and
 * for how long nothing in it may run. */
#ifndef RAMET_TIME_WATCH_H
#define RAMET_TIME_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* In nanoseconds; 0: nobody looks. `own`: each process has the same limit on its own time, as a resource limit. `cgroup`:
 * the directory of the one that counts the time of all of them, or -1. */
void time_watch_start(uint64_t cpu, uint64_t idle, bool own, int cgroup);
/* How long poll(2) may wait before the next look, -1: for ever. */
int time_watch_timeout(void);
/* Looks, if it is time. True: nothing has run for as long as may be. */
bool time_watch_look(void);
/* Something was asked of the sandbox. */
void time_watch_touch(void);
/* Whether all that ran was killed for its time. */
bool time_watch_killed(void);
/* Whether the time is over: of all together, or of one that has used this. */
bool time_watch_reached(const struct rusage *usage);
/* What all have used, as far as that is known. */
uint64_t time_watch_used(void);

#endif
