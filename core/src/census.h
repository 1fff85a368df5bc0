/* SPDX-License-Identifier: Apache-2.0
 * Who has how much of what no namespace counts, by a fork of core that may take its time: it goes through the open files of all
 * processes of all sandboxes. A file that several have counts once for their sandbox. What /proc does not show it does not see:
 * what is in a socket that is in flight itself, of who cannot be traced (it executed what its user may not read). */
#ifndef RAMET_CENSUS_H
#define RAMET_CENSUS_H

#include "err.h"

#define CENSUS_FOUND_MAX 8
/* Further ones are found by the next. */
#define CENSUS_PIDS_MAX 512

struct census_one {
  uint64_t sandbox;
  int init;
};

/* A sandbox that is to give. `pids` are the processes that have most of it, by their numbers inside. */
struct census_found {
  uint64_t sandbox, amount;
  uint32_t pids[CENSUS_PIDS_MAX];
  int pid_count;
};

/* In memory that core and its fork share. */
struct census_report {
  uint64_t amount; /* that all have, as far as it sees: more than half of the whole is not counted of one */
  uint64_t hidden; /* of it: found in sockets that are in flight themselves */
  struct census_found found[CENSUS_FOUND_MAX];
  int found_count;
  bool complete; /* it came to its end */
};

/* In the fork: counts descriptors in flight or watches of epoll, and ends. `whole`: what there is for all sandboxes. */
_Noreturn void census_main(const struct census_one *all, int count, enum ramet_limit limit, uint64_t whole,
                           struct census_report *report);

#endif
