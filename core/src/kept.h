/* SPDX-License-Identifier: Apache-2.0
 * What a snapshot has copied of a sandbox's files, kept for the next one of the same sandbox: that copies what has
 * changed since, and shares the rest as a layer. */
#ifndef RAMET_KEPT_H
#define RAMET_KEPT_H

#include "capture.h"
#include "sandbox.h"

struct upper_use {
  uint64_t bytes, files;
};

/* What a tmpfs holds; what cannot be told counts as much. */
struct upper_use upper_use(int upper);

/* A snapshot of `sandbox` begins: fills in where its tracer can begin. The root that the copy is a layer of, which the
 * snapshot's root is to be derived from, or NULL: it begins with nothing. */
struct root *kept_begin(struct sandbox *sandbox, struct capture_source *source);
/* It was taken: `bytes` are new. `index`: what the copy on top of `root` holds, if it is worth keeping; taken. */
void kept_captured(struct sandbox *sandbox, struct root *root, int index, uint64_t bytes);
/* It failed, or the sandbox ends: what has changed since is not known any more. */
void kept_forget(struct sandbox *sandbox);
/* The machine is short of memory. */
void kept_forget_all(void);

#endif
