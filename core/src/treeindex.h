/* SPDX-License-Identifier: Apache-2.0
 * What is known of the entries of a directory tree: under which name there is which file, and how it looked when it was
 * copied. Lives in a file between two snapshots of one sandbox. */
#ifndef RAMET_TREEINDEX_H
#define RAMET_TREEINDEX_H

#include <stdint.h>
#include <sys/stat.h>

#include "err.h"
#include "inodemap.h"

enum tree_flag {
  TREE_BELOW = 1,  /* the layer below the copy has something under this name */
  TREE_MERGED = 2, /* a directory that goes on from the one below */
  TREE_HERE = 4,   /* the copy has something under this name */
  TREE_WHITE = 8,  /* that is a whiteout, since the tree has nothing */
  TREE_OPAQUE = 16, /* a directory that hides what is below */
  TREE_AGAIN = 32, /* its next change may leave no sign: it is copied every time */
  TREE_TOUCHED = 64, /* a directory of the copy whose times are to be set again */
  TREE_MISSED = 128, /* it was being changed when it was to be copied */
  TREE_VISIT = 256,  /* this pass looks at it; at a directory's entries too */
  TREE_WAY = 512,    /* a directory that this pass goes through */
};

/* Two of a file that are equal: nothing was done to it in between that the kernel dates. */
struct tree_sign {
  uint64_t inode, size; /* inode 0: there is nothing */
  int64_t changed, modified, accessed;
};

struct tree_node {
  struct tree_sign sign;
  uint64_t stored; /* bytes of the copy */
  uint32_t parent, first, next; /* children; 0: none */
  uint32_t name, hash;
  uint32_t mode, links;
  uint32_t pass; /* the last that saw it */
  uint32_t flags;
};

/* Number 0 is the tree itself. */
struct tree_index {
  struct tree_node *nodes;
  uint32_t count, room;
  char *names;
  uint32_t names_length, names_room;
  uint32_t *slots, slot_mask;
  uint32_t seed;
};

int tree_index_make(struct tree_index *index, struct err *err) MUST_CHECK;
/* What another tracer saved: all of it is in the layer below. */
int tree_index_load(struct tree_index *index, int fd, struct err *err) MUST_CHECK;
/* A memory file, or -1. */
int tree_index_save(const struct tree_index *index, struct err *err) MUST_CHECK;
/* In what was saved, and loaded into `index`: files that are to be copied again although they may look as they did. */
int tree_index_distrust(const struct tree_index *index, int fd, const struct inode_map *files,
                        struct err *err) MUST_CHECK;
void tree_index_free(struct tree_index *index);

struct tree_node *tree_node(const struct tree_index *index, uint32_t number);
const char *tree_name(const struct tree_index *index, uint32_t number);
/* 0: there is none. */
uint32_t tree_find(const struct tree_index *index, uint32_t parent, const char *name);
/* 0: no memory. Pointers to nodes are void after it. */
uint32_t tree_add(struct tree_index *index, uint32_t parent, const char *name);
struct tree_sign tree_sign_of(const struct stat *st);
bool tree_sign_equal(const struct tree_sign *a, const struct tree_sign *b);

#endif
