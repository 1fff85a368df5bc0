/* SPDX-License-Identifier: Apache-2.0
 * Stands for the rest of core around sandbox.c: what core would tell the daemon is noted in told[], roots and
 * filters are there, snapshots are not. To be included behind the header that defines NEED(). */
#ifndef RAMET_TESTS_ALONE_H
#define RAMET_TESTS_ALONE_H

#include "../../src/sandbox.c"

/* Of ports.c, which sandbox.c does not need, others here do. */
#include "../../src/ports.h"

struct told {
  uint16_t kind;
  uint64_t request;
  struct err err; /* of control_refuse() */
  uint8_t payload[4096];
  size_t length;
};

static struct told told[64];
static int told_count;

void
control_reply(uint16_t kind, uint64_t request, struct writer *writer)
{
  NEED(told_count < 64);
  struct told *one = &told[told_count++];
  *one = (struct told){.kind = kind, .request = request};
  one->length = writer->length < sizeof one->payload ? writer->length : sizeof one->payload;
  if (one->length)
    memcpy(one->payload, writer->data, one->length);
}

void
control_event(uint16_t kind, struct writer *writer)
{
  control_reply(kind, 0, writer);
}

void
control_hurry(void)
{
}

void
control_tell_events(void)
{
}

void
control_reply_fds(uint64_t request, struct writer *writer, const int *fds, int count)
{
  (void)fds;
  (void)count;
  control_reply(RAMET_OK, request, writer);
}

void
control_refuse(uint64_t request, const struct err *err)
{
  NEED(told_count < 64);
  told[told_count++] = (struct told){.kind = RAMET_ERROR, .request = request, .err = *err};
}

int
files_open(struct frame *frame, struct err *err)
{
  (void)frame;
  return err_field(err, "kind", "no files here");
}

void
files_sandbox_gone(uint64_t sandbox)
{
  (void)sandbox;
}

bool
files_reaped(int pid)
{
  (void)pid;
  return false;
}

int
ports_request(struct frame *frame, struct lane *lane, struct err *err)
{
  (void)frame;
  (void)lane;
  return err_field(err, "kind", "no ports here");
}

int
asked_send(struct sandbox *sandbox, uint16_t kind, const struct writer *writer, const struct frame *frame,
           struct lane *lane, struct err *err)
{
  (void)sandbox;
  (void)kind;
  (void)writer;
  (void)frame;
  (void)lane;
  return err_field(err, "kind", "nobody asks here");
}

bool
asked_answered(uint64_t sandbox, struct frame *frame)
{
  (void)sandbox;
  (void)frame;
  return false;
}

bool
asked_failed(uint64_t sandbox, uint64_t request, const struct err *err)
{
  (void)sandbox;
  (void)request;
  (void)err;
  return false;
}

void
asked_sandbox_gone(uint64_t sandbox)
{
  (void)sandbox;
}

void
asked_forget(const struct lane *lane)
{
  (void)lane;
}

bool
asked_lane_busy(const struct lane *lane)
{
  (void)lane;
  return false;
}

int
ports_connect(uint32_t port, struct err *err)
{
  (void)port;
  return err_field(err, "port", "no ports here");
}

/* Commands with logs are not: they have tests of their own in tests/system/core. */
int
started_first(struct frame *frame, const struct plan *plan, struct err *err)
{
  (void)frame;
  (void)plan;
  (void)err;
  return 0;
}

void
started_first_runs(uint64_t sandbox, uint32_t number, const struct image *image)
{
  (void)sandbox;
  (void)number;
  (void)image;
}

bool
started_spawned(uint64_t sandbox, uint32_t number, uint32_t pid)
{
  (void)sandbox;
  (void)number;
  (void)pid;
  return false;
}

bool
started_failed(uint64_t sandbox, uint64_t request, const struct err *err)
{
  (void)sandbox;
  (void)request;
  (void)err;
  return false;
}

bool
started_exited(uint64_t sandbox, const struct exit_record *record)
{
  (void)sandbox;
  (void)record;
  return false;
}

void
started_sandbox_gone(uint64_t sandbox, enum ramet_reason reason, uint64_t wall_ns)
{
  (void)sandbox;
  (void)reason;
  (void)wall_ns;
}

bool
started_takes(uint16_t kind)
{
  (void)kind;
  return false;
}

int
started_missing(uint64_t sandbox, uint32_t number, struct err *err)
{
  (void)sandbox;
  return err_code(err, "unknown_command", "no command %u here", number);
}

int
started_request(struct frame *frame, struct lane *lane, struct err *err)
{
  (void)frame;
  (void)lane;
  return err_field(err, "kind", "no commands with logs here");
}

bool
started_lane_busy(const struct lane *lane)
{
  (void)lane;
  return false;
}

void
started_forget(const struct lane *lane)
{
  (void)lane;
}

int
started_carried(struct sandbox *sandbox, const struct image *image, struct frame *frame, struct err *err)
{
  (void)sandbox;
  (void)image;
  (void)frame;
  return err_code(err, "internal", "no commands with logs here");
}

void
started_swap(const uint64_t pair[2])
{
  (void)pair;
}

void
files_swap(const uint64_t pair[2])
{
  (void)pair;
}

void
asked_swap(const uint64_t pair[2])
{
  (void)pair;
}

struct root *
root_find(uint32_t id)
{
  return id == 1 ? (struct root *)(uintptr_t)8 : NULL;
}

int
root_hand_out(struct root *root, const struct plan *plan, struct root_mounts *mounts, struct err *err)
{
  (void)root;
  (void)plan;
  (void)err;
  mounts->count = ROOT_MOUNTS_FIXED;
  for (int i = 0; i < ROOT_MOUNTS_FIXED; i++)
    mounts->fds[i] = dup(2);
  return 0;
}

struct root *
root_hold(struct root *root)
{
  return root;
}

void
root_release(struct root *root)
{
  (void)root;
}

int
root_uppers(const struct root *root, int fds[RAMET_LAYERS_MAX])
{
  (void)root;
  (void)fds;
  return 0;
}

/* No snapshots here: forks have tests of their own in tests/system/core. */
struct snapshot *
snapshot_find(uint32_t id)
{
  (void)id;
  return NULL;
}

bool
snapshot_capturing(uint64_t sandbox)
{
  (void)sandbox;
  return false;
}

void
snapshot_swap(const uint64_t pair[2])
{
  (void)pair;
}

const struct image *
snapshot_image(const struct snapshot *snapshot)
{
  (void)snapshot;
  return NULL;
}

struct root *
snapshot_root(const struct snapshot *snapshot)
{
  (void)snapshot;
  return NULL;
}

uint32_t
snapshot_filter(const struct snapshot *snapshot)
{
  (void)snapshot;
  return 0;
}

int
snapshot_description(const struct snapshot *snapshot)
{
  (void)snapshot;
  return -1;
}

int
snapshot_pages(const struct snapshot *snapshot)
{
  (void)snapshot;
  return -1;
}

void
snapshot_region(const struct snapshot *snapshot, uint64_t *start, uint64_t *end)
{
  (void)snapshot;
  *start = *end = 0;
}

int
snapshot_spawn(struct snapshot *snapshot, uint64_t sandbox, int init_pidfd, struct spawn_ends *ends,
               struct err *err)
{
  (void)snapshot;
  (void)sandbox;
  (void)init_pidfd;
  (void)ends;
  return err_code(err, "internal", "no snapshots here");
}

struct snapshot *
snapshot_hold(struct snapshot *snapshot)
{
  return snapshot;
}

void
snapshot_release(struct snapshot *snapshot)
{
  (void)snapshot;
}

bool
snapshot_reaped(int pid)
{
  (void)pid;
  return false;
}

void
root_mounts_release(struct root_mounts *mounts)
{
  while (mounts->count > 0)
    close_fd(&mounts->fds[--mounts->count]);
}

void
root_put_targets(const struct root *root, const struct root_mounts *mounts, struct writer *writer)
{
  (void)root;
  (void)mounts;
  (void)writer;
}

struct limit_view {
  int holders;
};

static struct limit_view limit_view;

struct limit_view *
limit_view_hold(const struct plan *plan, struct err *err)
{
  (void)plan;
  (void)err;
  limit_view.holders++;
  return &limit_view;
}

void
limit_view_release(struct limit_view *view)
{
  if (view)
    view->holders--;
}

void
limit_view_path(const struct plan *plan, char path[LIMIT_VIEW_PATH_MAX])
{
  (void)plan;
  path[0] = '\0';
}

void
limit_views_setup(int directory)
{
  close(directory);
}

struct span
filter_find(uint32_t id)
{
  return id == 1 ? (struct span){(const uint8_t *)"allallal", 8} : (struct span){NULL, 0};
}

void
snapshot_memory_shrink(void)
{
}

void
init_main(int fd, const struct birth *birth)
{
  (void)fd;
  (void)birth;
  _exit(EXIT_DEFECT);
}

int
snapshot_take(const struct frame *frame, struct lane *session, struct err *err)
{
  (void)frame;
  (void)session;
  return err_code(err, "internal", "no snapshots here");
}

void
snapshot_session_gone(const struct lane *session)
{
  (void)session;
}

uint32_t
snapshot_number(const struct snapshot *snapshot)
{
  (void)snapshot;
  return 0;
}

uint64_t
snapshot_inheritance(const struct snapshot *snapshot)
{
  (void)snapshot;
  return 0;
}

bool
snapshot_learn(struct snapshot *snapshot, int twin)
{
  (void)snapshot;
  (void)twin;
  return false;
}

#endif
