/* SPDX-License-Identifier: Apache-2.0
 * Init's part of a fork: makes the open files of an image anew inside the sandbox's own root and network. */
#ifndef RAMET_DESCRIPTORS_H
#define RAMET_DESCRIPTORS_H

#include "image.h"
#include "plan.h"

/* `streams`: of the command, as its plan numbers them. Sends one descriptor for each description of the image, in
 * order, over `socket`. */
int descriptors_send(const struct image *image, int pages, const struct command *command, const int *streams,
                     int socket, struct err *err) MUST_CHECK;

#endif
