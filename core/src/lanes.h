/* SPDX-License-Identifier: Apache-2.0
 * Lanes: connections for runs and forks. The daemon gives one end to a client of its own user, which then needs no
 * daemon between itself and core: a process that slept costs more to wake up than everything that core does.
 *
 * A fork brings a socket of its own, its session: core answers over that, tells the end over it, and hears there what
 * its owner wants. The sandbox ends when its session closes. So does a snapshot that is taken for a live fork. */
#ifndef RAMET_LANES_H
#define RAMET_LANES_H

#include "wire.h"

struct lane;

/* LANE: takes the frame's one descriptor, core's end of a socket pair. */
int lane_open(struct frame *frame, struct err *err) MUST_CHECK;
void lane_reply(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer);
void lane_reply_fds(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer, const int *fds,
                    int fd_count);
void lane_refuse(struct lane *lane, uint64_t request, const struct err *err);
/* The sandbox or snapshot that came over it is no more: a session goes with it. */
void lane_over(struct lane *lane);
/* Without sessions. */
int lane_count(void);
/* Closes those without a run. Whoever has sent one meanwhile sees that it was not read. */
void lanes_close_idle(void);
/* The daemon went: what it lent ends with it, and so does what came over it. */
void lanes_close(void);

#endif
