/* SPDX-License-Identifier: Apache-2.0
 * Pid 1 of a sandbox. */
#ifndef RAMET_INIT_H
#define RAMET_INIT_H

#include "plan.h"

struct cgroup_limits;

/* Never returns. `channel` is the only descriptor of core's that it keeps. `cgroup`: the number of its own, which it
 * makes, with these limits; 0: none. */
void init_main(int channel, uint64_t cgroup, const struct cgroup_limits *limits) __attribute__((noreturn));

#endif
