/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "snapshot_parts.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../pie/args.h"
#include "control.h"
#include "filters.h"
#include "lanes.h"
#include "stem.h"
#include "swap.h"
#include "twin.h"

static struct snapshot *snapshots;
/* The one that was ready last, if it has a spare for its first child: that is asked for next, as a rule, and until then
 * there is time. */
static struct snapshot *fresh;

/* ---- the list ------------------------------------------------------------------------------------------------- */

struct snapshot *
snapshot_by_id(uint64_t id)
{
  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->id == id)
      return s;
  return NULL;
}

struct snapshot *
snapshot_find(uint32_t id)
{
  struct snapshot *s = snapshot_by_id(id);

  return s && s->state != SNAPSHOT_CAPTURING ? s : NULL;
}

bool
snapshot_capturing(uint64_t sandbox)
{
  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->source == sandbox && s->state == SNAPSHOT_CAPTURING)
      return true;
  return false;
}

void
snapshot_swap(const uint64_t pair[2])
{
  for (struct snapshot *s = snapshots; s; s = s->next)
    swap_number(&s->source, pair);
}

struct snapshot *
snapshot_next(struct snapshot *previous)
{
  return previous ? previous->next : snapshots;
}

int
snapshot_count(void)
{
  int count = 0;

  for (struct snapshot *s = snapshots; s; s = s->next)
    count++;
  return count;
}

struct root *
snapshot_root(const struct snapshot *s)
{
  return s->root;
}

uint32_t
snapshot_filter(const struct snapshot *s)
{
  return s->filter;
}

uint32_t
snapshot_number(const struct snapshot *s)
{
  return s->id;
}

int
snapshot_description(const struct snapshot *s)
{
  return s->description;
}

int
snapshot_pages(const struct snapshot *s)
{
  return s->pages;
}

void
snapshot_region(const struct snapshot *s, uint64_t *start, uint64_t *end)
{
  *start = s->region_start;
  *end = s->region_start + s->region_length;
}

void
snapshot_close_watched(int *fd, struct watch *watch)
{
  if (*fd >= 0)
    loop_remove(*fd, watch);
  close_fd(fd);
}

/* A message, since others that core forked meanwhile may hold copies of its end. */
void
snapshot_end_tracer(struct snapshot *s)
{
  if (s->tracer >= 0 && send(s->tracer, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    shutdown(s->tracer, SHUT_RDWR);
  snapshot_close_watched(&s->tracer, &s->tracer_watch);
  free(s->frozen);
  s->frozen = NULL;
}

void
snapshot_end_spare(struct snapshot *s)
{
  if (fresh == s)
    fresh = NULL;
  close_fd(&s->spare);
  s->spare_bytes = 0;
  s->spare_pid = 0;
}

void
snapshot_end_stem(struct snapshot *s)
{
  snapshot_close_watched(&s->stem, &s->stem_watch);
  snapshot_end_spare(s);
  s->stem_bytes = 0;
  if (s->stem_pid > 0)
    kill(s->stem_pid, SIGKILL);
  s->stem_pid = 0;
}

static void
close_ends(struct order *order)
{
  close_fd(&order->init_pidfd);
  spawn_ends_close(&order->ends);
}

static void
drop_order(struct order **at)
{
  struct order *order = *at;

  *at = order->next;
  close_ends(order);
  free(order);
}

/* `all`: also those that wait for a stem. */
static void
refuse_orders(struct snapshot *s, bool all, int step, int error)
{
  while (s->orders && (all || s->orders->sent)) {
    uint64_t sandbox = s->orders->sandbox;
    drop_order(&s->orders);
    sandbox_fork_failed(sandbox, step, error);
  }
}

static void
dismiss_teacher(struct snapshot *s)
{
  deadline_clear(&s->teacher_leaves);
  twin_kill(s->teacher);
  s->teacher = 0;
}

void
snapshot_retire(struct snapshot *s)
{
  for (struct snapshot **at = &snapshots; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  if (s->session)
    lane_over(s->session);
  s->session = NULL;
  refuse_orders(s, true, RAMET_STEP_STEM_FORK, ECANCELED);
  dismiss_teacher(s);
  snapshot_end_tracer(s);
  snapshot_forget_tracer(s);
  snapshot_end_stem(s);
  twin_kill(s->copy);
  s->copy = 0;
  close_fd(&s->pages);
  if (s->root)
    root_release(s->root);
  s->root = NULL;
  if (s->below)
    root_release(s->below);
  s->below = NULL;
  snapshot_release(s);
}

struct snapshot *
snapshot_hold(struct snapshot *s)
{
  s->holders++;
  return s;
}

void
snapshot_release(struct snapshot *s)
{
  if (--s->holders)
    return;
  image_free(&s->image);
  writer_free(&s->dropped);
  writer_free(&s->ways);
  if (s->mapping)
    munmap(s->mapping, s->mapping_length);
  close_fd(&s->description);
  if (s->base)
    root_release(s->base);
  if (s->parent)
    snapshot_release(s->parent);
  free(s);
}

const struct image *
snapshot_image(const struct snapshot *s)
{
  return &s->image;
}

int
snapshot_drop(uint64_t id, struct err *err)
{
  struct snapshot *s = snapshot_by_id(id);

  if (!s)
    return err_code(err, "unknown_snapshot", "snapshot %llu is not there", (unsigned long long)id);
  /* A tracer that is ended in the middle would leave the source with registers that are not its own. */
  if (s->state == SNAPSHOT_CAPTURING)
    return err_code(err, "busy", "snapshot %u is being taken", s->id);
  snapshot_retire(s);
  return 0;
}

void
snapshot_drop_all(void)
{
  struct snapshot *next;

  for (struct snapshot *s = snapshots; s; s = next) {
    next = s->next;
    s->orphaned = true;
    s->request = s->export_request = 0;
    if (s->state != SNAPSHOT_CAPTURING)
      snapshot_retire(s);
  }
}

void
snapshot_session_gone(const struct lane *session)
{
  for (struct snapshot *s = snapshots; s; s = s->next) {
    if (s->session != session)
      continue;
    s->session = NULL;
    s->orphaned = true;
    s->request = 0;
    if (s->state != SNAPSHOT_CAPTURING)
      snapshot_retire(s);
    return;
  }
}

void
snapshot_fail(struct snapshot *s, const struct err *err)
{
  if (s->request && s->session)
    lane_refuse(s->session, s->request, err);
  else if (s->request)
    control_refuse(s->request, err);
  snapshot_retire(s);
}

/* ---- the stem ------------------------------------------------------------------------------------------------- */

static int
send_orders(struct snapshot *s)
{
  for (struct order *order = s->orders; order; order = order->next) {
    if (order->sent)
      continue;
    if (stem_order(s->stem, order->init_pidfd, &order->ends) < 0)
      return -1;
    order->sent = true;
    close_ends(order);
  }
  return 0;
}

static int
watch_stem(struct snapshot *s, struct err *err)
{
  if (loop_add(s->stem, &s->stem_watch, EPOLLIN) == 0) {
    s->state = SNAPSHOT_BUILDING;
    return 0;
  }
  err_step(err, RAMET_STEP_STEM_FORK, "watch the stem: %s", strerror(errno));
  snapshot_end_stem(s);
  return -1;
}

static struct stem_plan
plan_of_stem(struct snapshot *s)
{
  return (struct stem_plan){.image = &s->image,
                            .pages = s->pages,
                            .root = s->root,
                            .filter = filter_find(s->filter),
                            .frozen = s->frozen,
                            .fault = s->fault};
}

int
snapshot_adopt_copy(struct snapshot *s, struct err *err)
{
  struct sandbox *source = sandbox_find(s->source);
  struct stem_plan plan = plan_of_stem(s);
  struct stem_adoption adoption = {.pid = s->copy,
                                   .nursery = source ? source->nursery : -1,
                                   .syscall_address = s->syscall_address,
                                   .old_start = s->old_start,
                                   .old_end = s->old_end};

  fault_arm(s->fault);
  int result = stem_adopt(&plan, &adoption, s->region_start, s->region_length, &s->stem, err);
  fault_arm(RAMET_STEP_NONE);
  if (result < 0)
    return -1;
  s->stem_pid = s->copy;
  s->copy = 0;
  return watch_stem(s, err);
}

int
snapshot_build_stem(struct snapshot *s, struct err *err)
{
  if (s->in_stem && !s->frozen)
    return err_code(err, "stem_lost", "the snapshot's stem is gone, and its memory was nowhere else");
  /* Again, from an image that has pages by now, and more of them than before. */
  if (!s->request && stem_find_region(&s->image, 0, 0, &s->region_start, &s->region_length, err) < 0)
    return -1;
  struct stem_plan plan = plan_of_stem(s);

  if (stem_fork(&plan, s->region_start, s->region_length, &s->stem_pid, &s->stem, err) < 0)
    return -1;
  return watch_stem(s, err);
}

/* ---- spares --------------------------------------------------------------------------------------------------- */

/* Each costs a copy of page tables, and what was learned. */
#define SPARES_MAX 4
/* Children after which it is worth to have one at any time: a live fork's snapshot has one, as a rule. */
#define SPARE_AFTER 2
/* A child that is younger may not have done yet what it was made for. */
#define LEARN_AFTER_NS 10000000u
/* Number of the child that teaches for the second time. */
#define TEACHES_AGAIN 8
/* For the stem to have read what the teacher has: ten times what that takes on a machine with much to do. */
#define TEACHER_NS 200000000u

/* The one that can do without, once there are as many as there may be. */
static struct snapshot *
coldest_spare(void)
{
  struct snapshot *coldest = NULL;
  int count = 0;

  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->spare >= 0 && s != fresh) {
      count++;
      if (!coldest || s->used_at < coldest->used_at)
        coldest = s;
    }
  return count < SPARES_MAX ? NULL : coldest;
}

static struct snapshot *
wants_spare(void)
{
  const struct snapshot *coldest = coldest_spare();
  struct snapshot *hottest = NULL;

  if (!snapshot_memory_fits_spare())
    return NULL;
  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->state == SNAPSHOT_READY && s->stem >= 0 && s->spare < 0 && s->spawned >= SPARE_AFTER && !s->orders &&
        (!hottest || s->used_at > hottest->used_at))
      hottest = s;
  return hottest && coldest && coldest->used_at >= hottest->used_at ? NULL : hottest;
}

bool
snapshot_spare_low(void)
{
  return wants_spare() != NULL;
}

/* The page map of a child's twin, which has the child's memory. */
static int
open_child(const struct snapshot *s)
{
  char path[48];

  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox))
    if (sandbox->origin == s && sandbox->twin > 0 && sandbox->state == SANDBOX_STANDING &&
        loop_now() - sandbox->arrived > LEARN_AFTER_NS) {
      snprintf(path, sizeof path, "/proc/%d/pagemap", sandbox->twin);
      return open(path, O_RDONLY | O_CLOEXEC);
    }
  return -1;
}

/* `child`: a page map to learn from, or -1. */
static void
make_spare_like(struct snapshot *s, int child)
{
  int pair[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return;
  s->learned = s->learned || child >= 0;
  if (stem_order_spare(s->stem, pair[1], child) == 0)
    s->spare = steal_fd(&pair[0]);
  close_fd(&pair[0]);
  close_fd(&pair[1]);
  if (s->spare >= 0)
    snapshot_memory_charge_spare(s);
}

static void
make_spare(struct snapshot *s)
{
  cleanup_fd int child = s->learned ? -1 : open_child(s);

  make_spare_like(s, child);
}

static void
teacher_leaves(struct deadline *deadline)
{
  dismiss_teacher((struct snapshot *)(void *)((char *)deadline - offsetof(struct snapshot, teacher_leaves)));
}

/* What lives tells only what it touched so far, and may have done nothing yet. The first that has done something
 * teaches, and a later one, since the first of all is often not like the others. */
bool
snapshot_learn(struct snapshot *s, int twin)
{
  char path[48];
  bool teaches = s->state == SNAPSHOT_READY && s->stem >= 0 && !s->teacher && s->spawned >= SPARE_AFTER &&
                 (++s->ended == 1 || s->ended == TEACHES_AGAIN);

  if (!teaches || (s->spare < 0 && (!snapshot_memory_fits_spare() || coldest_spare())))
    return false;
  snprintf(path, sizeof path, "/proc/%d/pagemap", twin);
  cleanup_fd int pagemap = open(path, O_RDONLY | O_CLOEXEC);
  if (pagemap < 0)
    return false;
  snapshot_end_spare(s);
  make_spare_like(s, pagemap);
  s->teacher = twin;
  s->teacher_leaves.fire = teacher_leaves;
  deadline_set(&s->teacher_leaves, loop_now() + TEACHER_NS);
  return true;
}

void
snapshot_spare_add(void)
{
  struct snapshot *s = wants_spare(), *coldest = coldest_spare();

  if (!s)
    return;
  if (coldest)
    snapshot_end_spare(coldest);
  make_spare(s);
  if (s->spare < 0)
    s->spawned = 0; /* children come from the stem */
}

static void
make_first_spare(struct snapshot *s)
{
  if (fresh)
    snapshot_end_spare(fresh);
  if (!snapshot_memory_fits_spare())
    return;
  fresh = s;
  make_spare(s);
}

/* It may have died: a child that never comes loses its status socket. */
static bool
order_spare(struct snapshot *s, int init_pidfd, struct spawn_ends *ends)
{
  cleanup_fd int spare = steal_fd(&s->spare);

  snapshot_end_spare(s);
  if (spare < 0 || stem_order(spare, init_pidfd, ends) < 0)
    return false;
  spawn_ends_close(ends);
  return true;
}

/* ---- ready ---------------------------------------------------------------------------------------------------- */

static void
tell_ready(struct snapshot *s)
{
  cleanup_writer struct writer writer = {0};
  uint64_t now = loop_now();

  put_u32(&writer, RAMET_TAG_SNAPSHOT, s->id);
  put_u64(&writer, RAMET_TAG_PAUSE_NS, s->pause_ns);
  put_u64(&writer, RAMET_TAG_MEMORY_BYTES, s->memory_bytes);
  put_u64(&writer, RAMET_TAG_FILE_BYTES, s->file_bytes);
  put_u32(&writer, RAMET_TAG_PROCESS_COUNT, s->image.process_count);
  put_u64(&writer, RAMET_TAG_CAPTURE_NS, s->captured_at - s->asked_at);
  put_u64(&writer, RAMET_TAG_STEM_NS, now - s->captured_at);
  put_u32(&writer, RAMET_TAG_BY_TWIN, s->by_twin);
  if (s->dropped.length)
    put_bytes(&writer, RAMET_TAG_DROPPED, s->dropped.data, s->dropped.length);
  if (s->ways.length)
    put_bytes(&writer, RAMET_TAG_WAYS, s->ways.data, s->ways.length);
  if (s->session)
    lane_reply(s->session, RAMET_OK, s->request, &writer);
  else
    control_reply(RAMET_OK, s->request, &writer);
  s->request = 0;
}

static void
stem_lost(struct snapshot *s, int step, int error)
{
  struct err err;

  snapshot_end_stem(s);
  if (s->orphaned) {
    snapshot_retire(s);
    return;
  }
  if (s->request) {
    errno = error;
    err_step(&err, (enum ramet_step)step, "the stem: %s", strerror(error));
    snapshot_fail(s, &err);
    return;
  }
  /* The next child is made of another, if there is an image. */
  s->state = SNAPSHOT_READY;
  refuse_orders(s, true, step, error);
}

static void
built(struct snapshot *s)
{
  bool asked = s->request != 0;

  s->state = SNAPSHOT_READY;
  if (s->frozen)
    snapshot_end_tracer(s);
  if (s->orphaned) {
    snapshot_retire(s);
    return;
  }
  s->used_at = loop_now();
  snapshot_memory_charge(s);
  if (asked)
    tell_ready(s);
  if (send_orders(s) < 0)
    stem_lost(s, RAMET_STEP_CHILD_CLONE, errno);
  else if (asked && !s->orders)
    make_first_spare(s);
  snapshot_memory_relieve();
}

static void
stem_ready(struct watch *watch, uint32_t events)
{
  struct snapshot *s = (struct snapshot *)(void *)((char *)watch - offsetof(struct snapshot, stem_watch));
  struct pie_status status;
  ssize_t got = recv(s->stem, &status, sizeof status, MSG_DONTWAIT);

  (void)events;
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (got != sizeof status) {
    stem_lost(s, RAMET_STEP_STEM_FORK, ESRCH);
    return;
  }
  if (s->state == SNAPSHOT_BUILDING) {
    if (status.step != 0) {
      stem_lost(s, status.step, status.error);
      return;
    }
    built(s);
    return;
  }
  if (!s->orders)
    return;
  uint64_t sandbox = s->orders->sandbox;
  drop_order(&s->orders);
  if (status.step != 0)
    sandbox_fork_failed(sandbox, status.step, status.error);
  if (!s->orders)
    snapshot_memory_relieve();
}

/* ---- children ------------------------------------------------------------------------------------------------- */

static struct order *
add_order(struct snapshot *s, uint64_t sandbox, int init_pidfd, const struct spawn_ends *ends)
{
  struct order *order = calloc(1, sizeof *order), **at = &s->orders;

  if (!order)
    return NULL;
  *order = (struct order){.sandbox = sandbox, .ends = *ends};
  order->init_pidfd = fcntl(init_pidfd, F_DUPFD_CLOEXEC, 3);
  while (*at)
    at = &(*at)->next;
  *at = order;
  return order;
}

/* `fault` is of the request, and stays armed. */
static int
rebuild(struct snapshot *s, enum ramet_step fault, struct err *err)
{
  s->fault = fault;
  int result = snapshot_build_stem(s, err);
  s->fault = RAMET_STEP_NONE;
  fault_arm(fault);
  return result;
}

/* To the stem; one that was given up, or died, is made again of the image. */
static int
order_from_stem(struct snapshot *s, enum ramet_step fault, struct err *err)
{
  if (s->stem >= 0 && s->state == SNAPSHOT_READY && send_orders(s) < 0) {
    if (errno != EPIPE && errno != ECONNRESET)
      return err_step(err, RAMET_STEP_CHILD_CLONE, "order the child: %s", strerror(errno));
    snapshot_end_stem(s);
    refuse_orders(s, false, RAMET_STEP_STEM_FORK, ESRCH);
  }
  return s->stem < 0 ? rebuild(s, fault, err) : 0;
}

int
snapshot_spawn(struct snapshot *s, uint64_t sandbox, int init_pidfd, struct spawn_ends *ends, struct err *err)
{
  s->used_at = loop_now();
  if (s->spawned < SPARE_AFTER)
    s->spawned++;
  if (order_spare(s, init_pidfd, ends))
    return 0;
  struct order *order = add_order(s, sandbox, init_pidfd, ends);

  if (!order) {
    spawn_ends_close(ends);
    return err_code(err, "internal", "no memory for a fork");
  }
  if (order_from_stem(s, ends->fault, err) == 0)
    return 0;
  /* It is the last. */
  struct order **at = &s->orders;
  while (*at != order)
    at = &(*at)->next;
  drop_order(at);
  return -1;
}

struct snapshot *
snapshot_alloc(uint32_t id, uint64_t request, struct err *err)
{
  struct snapshot *s = calloc(1, sizeof *s);

  if (!s) {
    err_code(err, "internal", "no memory for a snapshot");
    return NULL;
  }
  s->tracer_watch.ready = snapshot_tracer_ready;
  s->stem_watch.ready = stem_ready;
  s->id = id;
  s->request = request;
  s->tracer = s->stem = s->spare = s->description = s->pages = -1;
  s->holders = 1;
  s->asked_at = loop_now();
  s->next = snapshots;
  snapshots = s;
  return s;
}

bool
snapshot_reaped(int pid)
{
  for (struct snapshot *s = snapshots; s; s = s->next) {
    if (s->tracer_pid == pid) {
      s->tracer_pid = 0;
      snapshot_tracer_ended(s);
      return true;
    }
    if (s->stem_pid == pid) {
      s->stem_pid = 0;
      return true;
    }
  }
  return false;
}
