/* SPDX-License-Identifier: Apache-2.0
 * Inside of the building of a stem, for the files that do it: stem.c (the region, its order, the fork), stem_memory.c
 * (what its memory is made of), stem_child.c (what a child restores). Nobody else includes this. */
#ifndef RAMET_STEM_PARTS_H
#define RAMET_STEM_PARTS_H

#include "stem.h"

#include <stdbool.h>
#include <stddef.h>

#include "../pie/args.h"
#include "births.h"

#define PARKING_BYTES (1u << 20)
#define FROZEN_PATH "/proc/2147483647/mem"
/* What a mapping may take of each: its protection and advice that a stem has; advice for children alone. */
#define STEM_ADVICE_KINDS 6
#define STEM_LATE_KINDS 2

struct builder {
  const struct stem_plan *plan;
  struct births births;
  const struct process_image *process;
  const struct process_image *born_in; /* whose memory the process is born with; NULL: the stem's own process */
  struct pie_args *args, *first; /* of the process, of the first */
  uint64_t next;          /* where the next process's part begins */
  uint8_t *at, *end; /* free part of the tables */
  uint64_t deposited; /* so far */
  uint64_t frozen_path; /* of the process's frozen copy, if there is one */
  bool *late;        /* which processes have the memory that they are born with when their children are */
  struct err *err;
};

static inline bool
stem_is_late(const struct image_mapping *mapping)
{
  return mapping->backing == IMAGE_SHARED || mapping->backing == IMAGE_SHARED_FILE;
}

static inline uint64_t
stem_page_up(uint64_t length)
{
  return (length + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
}

static inline uint32_t
stem_inherited_runs(const struct process_image *p)
{
  uint32_t count = 0;

  for (uint32_t i = 0; i < p->run_count; i++)
    count += p->runs[i].offset == IMAGE_INHERITED;
  return count;
}

static inline bool
stem_is_first(const struct builder *b)
{
  return b->process == &b->plan->image->processes[0];
}

/* stem.c: room in the tables, whose address for the restorer is `address`. */
void *stem_table(struct builder *b, size_t bytes, uint64_t *address);
void stem_copy_table(struct builder *b, const void *from, size_t bytes, uint64_t *address);

/* stem_memory.c */
void stem_add_protect(uint64_t table, uint32_t *count, const struct image_mapping *mapping, int32_t advice);
int stem_build_memory(struct builder *b) MUST_CHECK;
int stem_build_moves(struct builder *b) MUST_CHECK;
int stem_build_mm(struct builder *b) MUST_CHECK;

/* stem_child.c */
void stem_build_signals(struct builder *b);
int stem_build_threads(struct builder *b, uint64_t stacks) MUST_CHECK;
void stem_build_late(struct builder *b);
void stem_build_descriptors(struct builder *b);
void stem_build_locks(struct builder *b);
void stem_build_terminal(struct builder *b);
void stem_build_rest(struct builder *b);

#endif
