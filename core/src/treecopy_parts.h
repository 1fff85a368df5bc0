/* SPDX-License-Identifier: Apache-2.0
 * Copies of single files, for what copies trees: treecopy.c (one that stands still), treesync.c (one that changes).
 * Nobody else includes this. All functions name what failed, and its step. */
#ifndef RAMET_TREECOPY_PARTS_H
#define RAMET_TREECOPY_PARTS_H

#include <sys/stat.h>

#include "treecopy.h"

#define COPYING_CHUNK 65536
#define COPYING_DEPTH 512

struct copying {
  struct treecopy_count *count;
  enum ramet_step step;
  struct err *err;
  uint8_t *chunk;
  bool moving; /* the source is being changed */
};

int copying_failed(struct copying *job, const char *what, const char *name) MUST_CHECK;
int copying_content(struct copying *job, int from, int to, off_t size, const char *name) MUST_CHECK;
/* All but `without`, if there is one. */
int copying_attributes(struct copying *job, int from, int to, const char *without, const char *name) MUST_CHECK;
int copying_metadata(struct copying *job, int to, const struct stat *st, const char *name) MUST_CHECK;
int copying_symlink(struct copying *job, int from_dir, int to_dir, const char *name) MUST_CHECK;
int copying_node(struct copying *job, int to_dir, const char *name, const struct stat *st) MUST_CHECK;
int copying_name_metadata(struct copying *job, int to_dir, const char *name, const struct stat *st) MUST_CHECK;

#endif
