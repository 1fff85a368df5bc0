/* SPDX-License-Identifier: Apache-2.0
 * The new mount interface in steps that report themselves. All results are detached mounts: descriptors that
 * vanish with their last copy unless attached. */
#ifndef RAMET_MOUNTS_H
#define RAMET_MOUNTS_H

#include "err.h"

struct tmpfs_options {
  uint64_t bytes, inodes; /* 0: the kernel's default */
  const char *mode;
  bool large; /* files in large pieces of memory, where they are long enough and there are any */
};

int tmpfs_make(const struct tmpfs_options *options, unsigned attributes, enum ramet_step step,
               struct err *err) MUST_CHECK;
/* Bounds one that is there anew, both bounds not 0. */
int tmpfs_resize(int tmpfs, uint64_t bytes, uint64_t inodes, enum ramet_step step, struct err *err) MUST_CHECK;
/* proc, devpts: a file system without a source. `options`: key, value, key, value, NULL. */
int filesystem_make(const char *type, const char *const *options, unsigned attributes, enum ramet_step step,
                    struct err *err) MUST_CHECK;

/* An overlay of the directories `lower` (paths joined by ':', topmost first) under `upper`, a path that holds the
 * directories "upper" and "work". */
int overlay_make(const char *lower, const char *upper, struct err *err) MUST_CHECK;
/* Whether the kernel builds overlays of mounts that are attached nowhere. */
bool overlay_takes_detached(struct err *err);
/* Whether it mounts on such ones. */
bool mounts_on_detached(struct err *err);
/* The two directories that an upper needs. */
int overlay_fill_upper(int tmpfs, struct err *err) MUST_CHECK;

/* A detached copy of the tree at `path`, submounts included. */
int tree_clone(int dir, const char *path, enum ramet_step step, struct err *err) MUST_CHECK;
int tree_set_read_only(int mount, enum ramet_step step, struct err *err) MUST_CHECK;
int tree_attach(int mount, int dir, const char *path, enum ramet_step step, struct err *err) MUST_CHECK;

#endif
