/* SPDX-License-Identifier: Apache-2.0
 * Files of a standing sandbox, for its user: a server for each conversation, forked from core, outside of the
 * sandbox's processes. Its guests can neither see, signal nor trace it; what they do to the tree meanwhile can make a
 * request fail, and nothing else: every path is resolved below the sandbox's root, and nothing that blocks is opened. */
#ifndef RAMET_FILES_H
#define RAMET_FILES_H

#include "wire.h"

/* FILES: starts a server on the frame's one descriptor. */
int files_open(struct frame *frame, struct err *err) MUST_CHECK;
/* The sandbox ends: its servers hold its mounts, and go. */
void files_sandbox_gone(uint64_t sandbox);
/* Two sandboxes change numbers: swap.h. */
void files_swap(const uint64_t pair[2]);
/* Whether a process that was reaped was one of them. */
bool files_reaped(int pid);

/* The server itself (fileserver.c). All descriptors are its own; `origin` and `written` may be -1. */
struct file_trees {
  int socket, sandbox, origin, written;
  int inherited[RAMET_LAYERS_MAX]; /* writable layers of those that it was forked from, the topmost first */
  int inherited_count;
  uint64_t base; /* root_base_serial() */
  int init;      /* pid of the sandbox's init */
  bool own_shm;  /* /dev/shm is a file system of its own */
};
void files_serve(const struct file_trees *trees) __attribute__((noreturn));

#endif
