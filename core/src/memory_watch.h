/* SPDX-License-Identifier: Apache-2.0
 * Where no cgroup bounds the memory of a sandbox, its init does: it looks now and then at what the tree takes, and
 * when that is above the limit it freezes all of it, kills the process that takes most, and lets the others go on. */
#ifndef RAMET_MEMORY_WATCH_H
#define RAMET_MEMORY_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* `limit` in bytes; 0: nobody watches. `own_shm`: /dev/shm is a file system of its own. */
void memory_watch_start(uint64_t limit, bool own_shm);
/* How long poll(2) may wait before the next look, -1: for ever. */
int memory_watch_timeout(void);
/* Looks, if it is time. */
void memory_watch_look(void);
/* What it is now. */
uint64_t memory_watch_now(void);
/* The most that was seen, 0 when nobody looked yet; and how many processes were killed. */
uint64_t memory_watch_peak(void);
uint64_t memory_watch_kills(void);

#endif
