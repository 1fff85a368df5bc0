/* SPDX-License-Identifier: Apache-2.0
 * Stems: processes restored from an image that never run the guest. Children are forks of them. */
#ifndef RAMET_STEM_H
#define RAMET_STEM_H

#include "image.h"
#include "rootfs.h"

struct stem_plan {
  const struct image *image;
  int pages;
  const struct root *root; /* where mapped files are found */
  struct span filter;
  bool huge;
  enum ramet_step fault;
};

/* Where the restorer's region will lie: a hole of the guest's memory and of core's. It is the same for all children. */
int stem_find_region(const struct image *image, uint64_t *start, uint64_t *length, struct err *err) MUST_CHECK;

/* Forks. `control` gets core's end of the stem's socket; struct pie_status with the pid comes when it is ready. */
int stem_fork(const struct stem_plan *plan, uint64_t region, uint64_t region_length, int *pid, int *control,
              struct err *err) MUST_CHECK;

/* Orders a child; the stem answers with struct pie_status, in order. */
int stem_order(int control, int init_pidfd, int status, int descriptors) MUST_CHECK;

#endif
