/* SPDX-License-Identifier: Apache-2.0
 * Files of /proc that tell programs of the machine: in a sandbox they tell of its own limits. They stand in a file system of
 * init's that is seen nowhere else, and are mounted read-only where programs look; and so is what core has made for
 * /sys/fs/cgroup (limit_views.h). */
#ifndef RAMET_GUEST_VIEW_H
#define RAMET_GUEST_VIEW_H

#include "plan.h"

/* Before hand-out, in the entry's root: /proc is at "p" there. `memory`: the directory of the own cgroup of memory,
 * borrowed, or -1. */
int guest_view_prepare(int root, int memory, struct err *err) MUST_CHECK;
/* At hand-out, before anything of the prepared root is moved to `root`. */
int guest_view_show(const struct plan *plan, int root, struct err *err) MUST_CHECK;
/* From now on whoever opens a file waits until init has written it. Not before init has opened for a fork what that
 * had open: it would wait for itself. For a command it is so from hand-out on. */
void guest_view_start(void);
/* Writes what somebody waits for. */
void guest_view_serve(void);
/* How long poll(2) may wait until guest_view_serve() is needed, -1: for ever. */
int guest_view_timeout(void);

#endif
