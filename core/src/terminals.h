/* SPDX-License-Identifier: Apache-2.0
 * Init's part of a fork: pseudo terminals, in the sandbox's own devpts. */
#ifndef RAMET_TERMINALS_H
#define RAMET_TERMINALS_H

#include "image.h"

/* In the order of the image's terminals. A slave of each stays open until all open files are made: with the last of
 * them closed the master would tell that it was hung up. */
struct terminals {
  int *masters, *slaves;
  uint32_t count;
};

int terminals_make(const struct image *image, int pages, struct terminals *made, struct err *err) MUST_CHECK;
/* An open file of one, which is the caller's. */
int terminals_open(const struct image *image, struct terminals *made, const struct image_description *d,
                   struct err *err) MUST_CHECK;
void terminals_free(struct terminals *made);

#endif
