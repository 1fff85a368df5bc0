/* SPDX-License-Identifier: Apache-2.0
 * Which part of a fork's memory is its snapshot's and which its own, from what /proc tells of its processes. What others
 * do, who have the same pages, must not change what is the fork's own: a page that was shared and is so no longer was
 * written to by this tree only if this tree had a page fault. In doubt memory is the snapshot's, which bounds the error. */
#ifndef RAMET_INHERITANCE_H
#define RAMET_INHERITANCE_H

#include <stdint.h>

/* Bytes of anonymous memory, swapped or not, of all processes of a tree. */
struct anonymous {
  uint64_t resident;     /* each process's pages, those that they share too */
  uint64_t proportional; /* a page that n processes have, inside or outside, is a page / n for each */
  uint64_t shared;       /* of `resident`, what others have as well */
  uint64_t largest;      /* of the process that has most */
  uint64_t faults;       /* the number of them, of who lives */
  int processes;
};

/* As of the last time it was looked at. */
struct inheritance {
  uint64_t bytes; /* of the snapshot's memory, what the tree has still, as far as that can be told */
  uint64_t shared, resident, faults;
  int processes;
};

void inheritance_begin(struct inheritance *inheritance, uint64_t bytes);
/* By how much less it may be now; of `now` only `resident`, `faults` and `processes` are looked at. */
uint64_t inheritance_lost_at_most(const struct inheritance *inheritance, const struct anonymous *now);
void inheritance_update(struct inheritance *inheritance, const struct anonymous *now);
/* What the tree has by itself: never more than is true, and of one process exactly that. */
uint64_t inheritance_own(const struct inheritance *inheritance, const struct anonymous *now);

#endif
