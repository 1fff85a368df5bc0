/* SPDX-License-Identifier: Apache-2.0
 * Roots: what the daemon defined once and sandboxes are made of. A root is read-only layers (the topmost is a
 * skeleton that core writes into a tmpfs) and read-only binds; each sandbox adds a private writable layer. */
#ifndef RAMET_ROOTFS_H
#define RAMET_ROOTFS_H

#include "plan.h"

struct root;

int root_define(struct frame *frame, struct err *err) MUST_CHECK;
int root_drop(uint32_t id, struct err *err) MUST_CHECK;
/* The daemon that defined them is gone, and the next one cannot know their numbers. */
void root_drop_all(void);
struct root *root_find(uint32_t id);
/* The root of a snapshot: `upper`, the copy of a writable layer (directories "upper" and "shm"), on top of what the
 * source stood on. Takes the descriptor. Not found by number. */
struct root *root_derive(struct root *base, int upper, struct err *err) MUST_CHECK;
/* Whether snapshots of who stands on it should have one layer in place of the many that were writable once. */
bool root_is_deep(const struct root *root);
/* Its layers, topmost first, borrowed: how many, and how many of those were writable. */
int root_layers(const struct root *root, int fds[RAMET_LAYERS_MAX], int *writable);
/* Takes `layer`, which says the same as those of the root that were writable, unless it has one already. */
int root_flatten(struct root *root, int layer, struct err *err) MUST_CHECK;
/* On what to build: the same with fewer layers, where there is one. Held. */
struct root *root_hold_flat(struct root *root);
/* Its writable layers' copies, topmost first, borrowed. */
int root_uppers(const struct root *root, int fds[RAMET_LAYERS_MAX]);
/* Which root that the daemon defined is below everything: two that stand on the same one say the same. */
uint64_t root_base_serial(const struct root *root);
struct root *root_hold(struct root *root);
void root_release(struct root *root);
/* A file as a sandbox on this root finds it under an absolute path, from the layer or bind that holds it. */
int root_open_file(const struct root *root, const char *path, enum ramet_step step, struct err *err) MUST_CHECK;
int root_bind_count(const struct root *root);
int root_targets(const struct root *root, const char **targets);
int root_count(void);

#define ROOT_MOUNTS_FIXED 3
#define ROOT_MOUNT_UPPER 2

/* What a sandbox takes at hand-out, in the order in which init expects it: the overlay, the directory for
 * /dev/shm, the writable layer's tmpfs, one mount for each bind that does not stand in the overlay already. */
struct root_mounts {
  int fds[ROOT_MOUNTS_FIXED + RAMET_BINDS_MAX];
  int count;
  uint64_t bytes, inodes; /* which its writable layer may have */
  int attached; /* so many binds do, the first ones */
};
int root_hand_out(struct root *root, const struct plan *plan, struct root_mounts *mounts,
                  struct err *err) MUST_CHECK;
/* Hand-outs take what was made ahead for the root of the last one, when nothing else was to do. */
#define ROOT_STOCK_MAX 4
bool root_stock_low(void);
void root_stock_add(void);
void root_mounts_release(struct root_mounts *mounts);
/* Appends one BIND attribute (the target) for each bind that is init's to attach. */
void root_put_targets(const struct root *root, const struct root_mounts *mounts, struct writer *writer);

#endif
