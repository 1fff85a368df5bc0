/* SPDX-License-Identifier: Apache-2.0
 * An exact copy of a directory tree that is being changed meanwhile: made while it changes, and brought up to date when
 * it stands still, for the price of a look at each entry and of what has changed.
 *
 * The copy may be a layer of an overlay on top of an earlier copy: then it has what is different, and whiteouts for what
 * is gone.
 *
 * What was changed is seen by inode number, size and times. Three things leave no sign there. A write that had begun
 * before the file was looked at: so the copy waits for it first (SEEK_DATA takes the inode's lock). A change in the same
 * tick of the kernel's clock: so what changed since the pass began is copied again by the next one. A write to memory
 * that is mapped shared, where the page had been read before: so the caller names those files. */
#ifndef RAMET_TREESYNC_H
#define RAMET_TREESYNC_H

#include "inodemap.h"
#include "treecopy.h"
#include "treeindex.h"

struct treesync {
  int from, to; /* directories; `to` is empty at first */
  struct tree_index index;
  struct inodes *inodes;          /* files that were made already; or NULL */
  const struct inode_map *unseen; /* files of the source that may change without a sign */
  const struct inode_map *dirty;  /* all that were changed since the last pass began; NULL: nobody knows */
  struct treecopy_count count;    /* entries of the last pass; bytes copied by all */
  uint32_t pass;
};

/* `strict`: nothing changes the source. Else an entry that is being changed may be left out: the last pass is strict. */
int treesync_pass(struct treesync *sync, bool strict, enum ramet_step step, struct err *err) MUST_CHECK;

/* Bytes of content that the copy has. */
uint64_t treesync_stored(const struct treesync *sync);

#endif
