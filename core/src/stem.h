/* SPDX-License-Identifier: Apache-2.0
 * Stems: processes restored from an image that never run the guest. Children are forks of them. */
#ifndef RAMET_STEM_H
#define RAMET_STEM_H

#include "cgroups.h"
#include "image.h"
#include "rootfs.h"

struct stem_plan {
  const struct image *image;
  int pages;
  const struct root *root; /* where mapped files are found */
  struct span filter;
  const pid_t *frozen; /* of each process: has the pages that are not in the page file; or 0. Or NULL: none has */
  enum ramet_step fault;
};

/* Where the restorer's region will lie: a hole of the guest's memory and of core's. It is the same for all children. */
int stem_find_region(const struct image *image, uint64_t avoid_start, uint64_t avoid_end, uint64_t *start,
                     uint64_t *length, struct err *err) MUST_CHECK;

/* The fork of a parked twin, traced and stopped, with the guest's memory in it, becomes a stem. `avoid`: where its
 * memory still has the region of the stem before. `control` gets core's end of the stem's socket. */
struct stem_adoption {
  int pid;
  int nursery; /* core's end */
  uint64_t syscall_address, old_start, old_end;
};
int stem_adopt(const struct stem_plan *plan, const struct stem_adoption *adoption, uint64_t region,
               uint64_t region_length, int *control, struct err *err) MUST_CHECK;

/* Forks. `control` gets core's end of the stem's socket; struct pie_status with the pid comes when it is ready. */
int stem_fork(const struct stem_plan *plan, uint64_t region, uint64_t region_length, int *pid, int *control,
              struct err *err) MUST_CHECK;

/* Orders a child and its parked twin, whose end `nursery` is; the stem answers with struct pie_status, in order. */
/* Ends of sockets that the stem hands to the child and its twin. */
struct spawn_ends {
  int status, descriptors, nursery;
  struct cgroup_entrances entrances; /* of the child's cgroups, where it has to be in them */
  enum ramet_step fault;
};
void spawn_ends_close(struct spawn_ends *ends);
int stem_order(int control, int init_pidfd, const struct spawn_ends *ends) MUST_CHECK;
/* Orders a spare, which takes one order of a child with a twin from the other end of `spare`, and answers nothing.
 * `pagemap`: of a child, to learn from what it has touched; or -1. */
int stem_order_spare(int control, int spare, int pagemap) MUST_CHECK;

#endif
