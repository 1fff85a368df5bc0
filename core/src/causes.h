/* SPDX-License-Identifier: Apache-2.0
 * What init can tell of why a command ended beyond its wait status: which limits had been reached. A signal that a limit
 * is told by may be sent by anybody, and a shell ends with 128+n when signal n ended what it waited for, as anybody may:
 * so neither counts unless the limit was reached. */
#ifndef RAMET_CAUSES_H
#define RAMET_CAUSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "ramet/protocol.h"

struct ended {
  int pid, status; /* as wait(2) tells it */
  uint64_t wrote;  /* by it and what it waited for, if it was looked at */
  struct rusage usage;
};

/* `memory`: the directory of the cgroup that bounds the memory, or -1. Returns what poll(2) is to wait for, with POLLIN and
 * POLLPRI, for causes_note(); or -1. The caller's, and to be kept under a number of its choice. */
int causes_open(int memory);
/* `file_size`: the limit, or 0 where no file can become as large. */
void causes_start(int memory, int kills, uint64_t file_size);
/* Around the start of a command: before it, in its process before that gives up what it may, and afterwards. */
void causes_expect(void);
void causes_introduce(void);
void causes_watch(int pid);
/* Somebody was killed, perhaps. */
void causes_note(void);
/* Kills those who hold too much of a share; without any everybody, at once. */
void causes_take_back(enum ramet_limit limit, const uint32_t *pids, int count);
/* Reaps one child like wait4(-1, ..., __WALL | WNOHANG), and before that looks at what is gone with it. */
int causes_reap(struct ended *ended);
/* enum ramet_reached */
uint32_t causes_reached(const struct ended *ended);

#endif
