/* SPDX-License-Identifier: Apache-2.0
 * A pipe that gets a copy of what a log keeps: the owner's end of a stream of its sandbox's first command. Nothing is
 * ever left out of it, so while it is full no more is taken from the command. */
#ifndef RAMET_MIRROR_H
#define RAMET_MIRROR_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

struct mirror;

/* `fd`, a pipe's end to write to, is taken in any case. `room` is called with `owner` when there is room again. */
struct mirror *mirror_make(int fd, void (*room)(void *owner), void *owner, struct err *err) MUST_CHECK;
/* False: it is full now. What was given is kept in any case. */
bool mirror_put(struct mirror *mirror, const uint8_t *data, size_t length);
bool mirror_full(const struct mirror *mirror);
/* Nothing follows. It goes when all that it has was written, or nobody reads. */
void mirror_end(struct mirror *mirror);

#endif
