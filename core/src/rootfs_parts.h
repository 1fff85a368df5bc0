/* SPDX-License-Identifier: Apache-2.0
 * Inside of a root, for the files that make it: rootfs.c (definition), rootmounts.c (what sandboxes take of it). */
#ifndef RAMET_ROOTFS_PARTS_H
#define RAMET_ROOTFS_PARTS_H

#include "rootfs.h"

struct root {
  struct root *next;
  uint32_t id;
  uint64_t serial; /* never given twice, as numbers of daemons' are */
  int holders;
  struct root *base; /* of a derived root: whose binds it has */
  struct root *flat; /* the same with one layer in place of those that were writable; or NULL */
  int shm;           /* of a derived root: what stood in /dev/shm, or -1 */
  int layers[RAMET_LAYERS_MAX];      /* descriptors */
  int layer_slots[RAMET_LAYERS_MAX]; /* slots of the store; used where the kernel wants layers attached */
  bool layer_shared[RAMET_LAYERS_MAX]; /* the slot belongs to the base */
  bool layer_is_upper[RAMET_LAYERS_MAX];
  int layer_count;
  int binds[RAMET_BINDS_MAX]; /* slots of the store */
  char *targets[RAMET_BINDS_MAX];
  int bind_count;
  struct root_mounts stock[ROOT_STOCK_MAX]; /* made ahead */
  int stock_count;
  uint64_t usual_bytes,
      usual_inodes; /* of the last plan that took from stock: what is made for the next one has them */
  bool handed_out; /* before */
};

/* The binds of a derived root are those of the root that the daemon defined. */
const struct root *root_bind_holder(const struct root *root);
/* rootmounts.c: the root goes. */
void root_forget_stock(struct root *root);

#endif
