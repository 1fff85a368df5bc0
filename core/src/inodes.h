/* SPDX-License-Identifier: Apache-2.0
 * Numbers of files in a copy. A process that has a file open may remember its number: SQLite does, and takes a database
 * whose number is another for one that was moved. A tmpfs numbers its files as they are made, so those that are to have
 * the number of old are made first, in the order of their numbers. */
#ifndef RAMET_INODES_H
#define RAMET_INODES_H

#include <stdint.h>
#include <sys/types.h>

#include "err.h"

struct inode_wish {
  char *path; /* in the writable layer, without a slash in front */
  uint64_t number;
  uint64_t source; /* what inodes_place() will be asked for; 0: nothing is copied that is to have the number */
  bool writable; /* it is open for writing */
};

struct inode_kept;

struct inodes {
  int staging; /* directory in the copy; -1: there are none */
  struct inode_kept *items;
  int count;
};

/* The number that the file at this path has in the layer itself; 0: it has no file there. */
uint64_t inodes_in_layer(int layer, const char *path);
/* In `to`, the root of a tmpfs: numbers above those that it has given already. A wish may remain one: for a file of a
 * layer below, whose number stays anyhow, or a number that is taken, or so high that to count up to it would take longer
 * than all the rest. */
int inodes_reserve(int to, struct inode_wish *wishes, int count, struct inodes *inodes, enum ramet_step step,
                   struct err *err) MUST_CHECK;
/* Puts the file that was made for this one in its place: 1. 0: there is none. */
int inodes_place(struct inodes *inodes, uint64_t source, int dir, const char *name) MUST_CHECK;
/* What the one at `place`, below `count`, was made for. */
uint64_t inodes_source(const struct inodes *inodes, int place);
/* Whether there is one that was made for this, and has no place yet. */
bool inodes_have(const struct inodes *inodes, uint64_t source) MUST_CHECK;
/* Those that found no place. Whatever came of it, it is to be called. */
int inodes_end(struct inodes *inodes, int to, enum ramet_step step, struct err *err) MUST_CHECK;

#endif
