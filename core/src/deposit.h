/* SPDX-License-Identifier: Apache-2.0
 * The deposit: memory of the processes beside the first, which a stem keeps for them at other addresses. A child's
 * processes are forked from its first, so they are born with it, and move what is theirs to its place: no page is copied.
 *
 * Only memory without a file is kept so, and only what has nothing of the first process's. The rest they fill. */
#ifndef RAMET_DEPOSIT_H
#define RAMET_DEPOSIT_H

#include "image.h"

/* Behind the region, where a huge page begins. */
uint64_t deposit_start(uint64_t region, uint64_t region_length);
uint64_t deposit_length(const struct image *image);
/* Where the mapping has its place, counted from the start, or 0: none. It is to be asked for each mapping of each process
 * but the first, in order; `next` begins with 0. */
uint64_t deposit_place(const struct image_mapping *mapping, uint64_t *next);
/* Whether it may have one: it does as long as all together are within `DEPOSIT_MOST`. */
bool deposit_has_place(const struct image_mapping *mapping);
#define DEPOSIT_MOST ((uint64_t)1 << 40)
/* More than its place can take of that. */
uint64_t deposit_takes(uint64_t length);
/* Whether that is kept there which has a place: there are pages, and none of the first's. */
bool deposit_keeps(const struct process_image *process, uint32_t mapping);

#endif
