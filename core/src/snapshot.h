/* SPDX-License-Identifier: Apache-2.0
 * Snapshots as core keeps them: image, page file, root, stem; and the forks that wait for a stem. */
#ifndef RAMET_SNAPSHOT_H
#define RAMET_SNAPSHOT_H

#include "image.h"
#include "loop.h"
#include "rootfs.h"
#include "sandbox.h"
#include "stem.h"

struct snapshot;

struct lane;

/* SNAPSHOT: the answer comes later. One with a session is answered over that, has a number of core's choice, and is
 * dropped when the session closes. */
int snapshot_take(const struct frame *frame, struct lane *session, struct err *err) MUST_CHECK;
void snapshot_session_gone(const struct lane *session);
/* EXPORT_SNAPSHOT: the answer, with descriptors, comes at once or later. */
int snapshot_export(uint64_t id, uint64_t request, struct err *err) MUST_CHECK;
/* LOAD_SNAPSHOT: the answer comes when its stem stands. */
int snapshot_load(struct frame *frame, struct err *err) MUST_CHECK;
int snapshot_drop(uint64_t id, struct err *err) MUST_CHECK;
/* Their daemon is gone. One that is being taken is dropped when it is ready. */
void snapshot_drop_all(void);
struct snapshot *snapshot_find(uint32_t id);
/* Whether a sandbox is being captured. */
bool snapshot_capturing(uint64_t sandbox);
/* Two sandboxes change numbers: swap.h. */
void snapshot_swap(const uint64_t pair[2]);
int snapshot_count(void);

const struct image *snapshot_image(const struct snapshot *snapshot);
struct root *snapshot_root(const struct snapshot *snapshot);
uint32_t snapshot_filter(const struct snapshot *snapshot);
/* What init needs of it. */
int snapshot_description(const struct snapshot *snapshot);
uint32_t snapshot_number(const struct snapshot *snapshot);
int snapshot_pages(const struct snapshot *snapshot);
/* A sandbox that was forked from it needs its image for as long as it lives. */
struct snapshot *snapshot_hold(struct snapshot *snapshot);
void snapshot_release(struct snapshot *snapshot);
void snapshot_region(const struct snapshot *snapshot, uint64_t *start, uint64_t *end);

/* Orders the child of a sandbox; takes the ends. When the stem refuses, sandbox_fork_failed(). */
int snapshot_spawn(struct snapshot *snapshot, uint64_t sandbox, int init_pidfd, struct spawn_ends *ends,
                   struct err *err) MUST_CHECK;

/* Memory that a child has from it. */
uint64_t snapshot_inheritance(const struct snapshot *snapshot);
/* A child has ended, whose twin has its memory still: what it touched the next spares will touch ahead. True when the
 * twin was taken. */
bool snapshot_learn(struct snapshot *snapshot, int twin);
/* Whether a snapshot that children are forked from has no spare; makes one, when nothing else is to do. */
bool snapshot_spare_low(void);
void snapshot_spare_add(void);
/* Memory for stems and spares: bytes, 0 for as much as there is; and a directory for what is given up, or -1. */
/* How long one may take: milliseconds. */
void snapshot_allow(unsigned milliseconds);
void snapshot_memory_setup(uint64_t budget, int directory);
uint64_t snapshot_memory_budget(void);
uint64_t snapshot_memory_used(void);
/* The machine is short of memory: gives up one spare, or when there is none one stem; what that gave is seen later. */
void snapshot_memory_shrink(void);
/* SIGCHLD: true when the process was a tracer or a stem. */
bool snapshot_reaped(int pid);

#endif
