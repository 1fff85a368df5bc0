/* SPDX-License-Identifier: Apache-2.0
 * The steps between fork and exec of a guest's process. */
#ifndef RAMET_CONFINE_H
#define RAMET_CONFINE_H

#include "plan.h"

/* Once, in init: what is outside the bounding set no exec inside can ever regain. */
int confine_bounding_set(struct err *err) MUST_CHECK;

/* Starts the command and returns its pid once it runs its own program (or failed to: 126, 127). `streams` are the
 * command's descriptors. */
int confine_spawn(const struct plan *plan, const int *streams, struct err *err) MUST_CHECK;

#endif
