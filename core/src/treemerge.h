/* SPDX-License-Identifier: Apache-2.0
 * Several layers of an overlay as one: on top of the same layers below it shows the same tree as they do. */
#ifndef RAMET_TREEMERGE_H
#define RAMET_TREEMERGE_H

#include "treecopy.h"

struct treemerge {
  const int
      *layers; /* directories, the topmost first: those that become one, and behind them those that stay below */
  int merged, count;
  int to;    /* empty */
  int aside; /* a directory of the same file system, for what is removed again */
  struct inodes *inodes; /* files that were made already, for what treemerge_source() tells; or NULL */
};

/* Of the topmost file of this path in the merged layers: what the merge asks inodes_place() for; 0: there is none. */
uint64_t treemerge_source(const int *layers, int merged, const char *path);
/* Nothing may change the layers meanwhile. */
int treemerge(const struct treemerge *merge, struct treecopy_count *count, enum ramet_step step,
              struct err *err) MUST_CHECK;

#endif
