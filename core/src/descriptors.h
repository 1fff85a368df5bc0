/* SPDX-License-Identifier: Apache-2.0
 * Init's part of a fork: makes the open files of an image anew inside the sandbox's own root and network. */
#ifndef RAMET_DESCRIPTORS_H
#define RAMET_DESCRIPTORS_H

#include "image.h"
#include "plan.h"

/* In the order of the image's descriptions. */
struct descriptors {
  int *fds;
  uint32_t count;
};

/* `streams`: of the command, as its plan numbers them. Whatever comes of it, it is to be freed. */
int descriptors_make(const struct image *image, int pages, const struct command *command, const int *streams,
                     struct descriptors *made, struct err *err) MUST_CHECK;
/* One for each description, to the child. */
int descriptors_send(const struct descriptors *made, int socket, struct err *err) MUST_CHECK;
void descriptors_free(struct descriptors *made);

#endif
