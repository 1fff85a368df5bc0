/* SPDX-License-Identifier: Apache-2.0
 * The files of a snapshot: the source's writable layer, copied before the pause and brought up to date in it. */
#ifndef RAMET_CAPTURE_FILES_H
#define RAMET_CAPTURE_FILES_H

#include "capture.h"
#include "treesync.h"

struct capture_files {
  struct capture_tree *tree;
  int copy;                 /* a tmpfs */
  int flat;                 /* one with what several layers had, or -1 */
  struct treesync upper, shm;
  struct inode_map unseen, changed;
  struct inode_map written; /* of what was kept, since the last snapshot */
  bool watched;             /* since the copy was begun, all changes are told */
  bool blind;               /* not all were: any file may have changed */
  uint64_t bytes;           /* of content that the copy has */
};

/* While the source runs. */
int capture_files_ahead(struct capture_files *files, struct capture_tree *tree, struct err *err) MUST_CHECK;
/* In the pause, behind the descriptors. */
int capture_files_now(struct capture_files *files, struct err *err) MUST_CHECK;
/* After it. `taken`: the copy is right. */
int capture_files_end(struct capture_files *files, bool taken, struct err *err) MUST_CHECK;
/* What another snapshot of the source needs to begin with this copy, or -1: it is not worth keeping. */
int capture_files_index(const struct capture_files *files, struct err *err) MUST_CHECK;

#endif
