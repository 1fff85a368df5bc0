/* SPDX-License-Identifier: Apache-2.0
 * Which files of a sandbox were closed after they had been open for writing, by fanotify(7) on its tmpfs: memory that is
 * mapped shared may change a file without a sign, but it cannot go away without this one. What an overlay opens counts.
 * Linux 6.18 allows it in a user namespace. */
#ifndef RAMET_FILEWATCH_H
#define RAMET_FILEWATCH_H

#include "inodemap.h"

#include "err.h"

/* `layer`: the tmpfs. -1: the kernel does not allow it, or tells numbers in a way that is not known. */
int filewatch_open(int layer);
/* From here on all changes are told, but those of times of access and of mapped memory: it costs whoever makes them
 * some time, so it is for moments. */
int filewatch_all(int watch, int layer);
void filewatch_less(int watch, int layer);
/* Adds what has been closed since it was read last, and `changed`, files and directories, whatever was told of;
 * `lost`: the kernel had more to tell than it kept. */
int filewatch_read(int watch, struct inode_map *closed, struct inode_map *changed, bool *lost,
                   struct err *err) MUST_CHECK;

#endif
