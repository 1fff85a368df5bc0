/* SPDX-License-Identifier: Apache-2.0
 * Lanes: connections for RUN, and for commands in sandboxes that stand. The daemon gives one end to a client of its own user, which then needs no daemon
 * between itself and core: a process that slept costs a run more to wake up than everything that core does. */
#ifndef RAMET_LANES_H
#define RAMET_LANES_H

#include "wire.h"

struct lane;

/* LANE: takes the frame's one descriptor, core's end of a socket pair. */
int lane_open(struct frame *frame, struct err *err) MUST_CHECK;
void lane_reply(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer, const int *fds,
                int count);
void lane_refuse(struct lane *lane, uint64_t request, const struct err *err);
int lane_count(void);
/* Closes those without a run. Whoever has sent one meanwhile sees that it was not read. */
void lanes_close_idle(void);
/* The daemon went: what it lent ends with it, and so do the runs. */
void lanes_close(void);

#endif
