/* SPDX-License-Identifier: Apache-2.0
 * An exact copy of a directory tree: contents with their holes, modes, owners, times, extended attributes, hard
 * links, symlinks, fifos, sockets' nodes, and overlayfs's whiteouts and opaque marks. */
#ifndef RAMET_TREECOPY_H
#define RAMET_TREECOPY_H

#include <stdint.h>

#include "err.h"
#include "inodes.h"

struct treecopy_count {
  uint64_t files, bytes;
};

/* From one open directory into another, empty one. Nothing may change the source meanwhile. `inodes`: files that were
 * made already; or NULL. */
int treecopy(int from, int to, struct inodes *inodes, struct treecopy_count *count, enum ramet_step step,
             struct err *err) MUST_CHECK;

#endif
