/* SPDX-License-Identifier: Apache-2.0
 * Core's one thread: descriptors by epoll, deadlines by one timer. */
#ifndef RAMET_LOOP_H
#define RAMET_LOOP_H

#include "err.h"

/* Embedded first in whatever owns the descriptor. */
struct watch {
  void (*ready)(struct watch *watch, uint32_t events);
};

struct deadline {
  uint64_t at; /* CLOCK_MONOTONIC nanoseconds */
  int index;   /* place in the heap + 1; 0: not set */
  bool exact;  /* never late, for the price of some polling right before it */
  void (*fire)(struct deadline *deadline);
};

int loop_setup(struct err *err) MUST_CHECK;
int loop_add(int fd, struct watch *watch, uint32_t events) MUST_CHECK;
void loop_change(int fd, struct watch *watch, uint32_t events);
/* The watch gets no event any more, not even one that is already read: it may be freed. */
void loop_remove(int fd, struct watch *watch);

uint64_t loop_now(void);
/* What this thread has run, in nanoseconds. */
uint64_t loop_spent(void);
void deadline_set(struct deadline *deadline, uint64_t at);
void deadline_clear(struct deadline *deadline);

/* Runs until loop_stop(). `idle` is called when nothing is ready; it returns true when it did something and there
 * may be more to do. */
void loop_run(bool (*idle)(void));
void loop_stop(void);

#endif
