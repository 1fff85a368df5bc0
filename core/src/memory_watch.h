/* SPDX-License-Identifier: Apache-2.0
 * Where no cgroup bounds the memory of a sandbox, its init does: it looks now and then at what the tree takes, and
 * when that is above the limit it freezes all of it, kills the process that takes most, and lets the others go on. Or it
 * leaves all of it frozen, for the snapshot that is wanted before its end. */
#ifndef RAMET_MEMORY_WATCH_H
#define RAMET_MEMORY_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* `limit` in bytes; 0: nobody watches. `inherited`: what its snapshot has of memory, which is not its own. `own_shm`:
 * /dev/shm is a file system of its own. `keep`: freeze, and kill nobody. */
void memory_watch_start(uint64_t limit, uint64_t inherited, bool own_shm, bool keep);
/* How long poll(2) may wait before the next look, -1: for ever. */
int memory_watch_timeout(void);
/* Looks, if it is time; true when all has just been frozen for good. `*stopped_before`: the pid of one that was stopped
 * already, or 0. Whom nobody ends then it kills itself after a while. */
bool memory_watch_look(int *stopped_before);
/* What it is now. */
uint64_t memory_watch_now(void);
/* The most that was seen, 0 when nobody looked yet; and how many processes were killed. */
uint64_t memory_watch_peak(void);
uint64_t memory_watch_kills(void);
/* Whether it was this one, and when it was anybody; 0: nobody. */
bool memory_watch_killed(int pid);
uint64_t memory_watch_killed_at(void);

#endif
