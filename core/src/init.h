/* SPDX-License-Identifier: Apache-2.0
 * Pid 1 of a sandbox. */
#ifndef RAMET_INIT_H
#define RAMET_INIT_H

#include "cgroups.h"
#include "plan.h"

/* What an entry is born with. */
struct birth {
  uint64_t number;             /* by which the answer is known */
  uint64_t cgroup;             /* the number of its own; 0: none */
  struct cgroup_limits limits; /* that the cgroup is to have */
  struct cgroup_limits before; /* that it has, where it is there */
  bool cgroup_is_there;        /* otherwise init makes it */
  bool has_network;            /* it is in a network namespace of its own, with lo up */
  int network;                 /* to be born in; or -1 */
  enum ramet_step fault;
};

/* Never returns. `channel` is the only descriptor of core's that it keeps. */
void init_main(int channel, const struct birth *birth) __attribute__((noreturn));

#endif
