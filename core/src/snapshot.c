/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "snapshot.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "../pie/args.h"
#include "capture.h"
#include "control.h"
#include "filters.h"
#include "log.h"
#include "mounts.h"
#include "stem.h"
#include "syscalls.h"
#include "treecopy.h"
#include "twin.h"

/* How long a process may take to stop: one in uninterruptible sleep never does. */
#define PATIENCE_MS 2000

enum snapshot_state {
  SNAPSHOT_CAPTURING, /* the tracer works */
  SNAPSHOT_BUILDING,  /* the image is there, the stem not yet */
  SNAPSHOT_READY,
};

/* A child that is ordered: sent to the stem, or waiting for one. */
struct order {
  struct order *next;
  uint64_t sandbox;
  int init_pidfd;
  struct spawn_ends ends;
  bool sent;
};

struct snapshot {
  struct watch tracer_watch, stem_watch;
  struct snapshot *next;
  enum snapshot_state state;
  int holders; /* the list of named ones, and sandboxes forked from it */
  uint32_t id, filter;
  uint64_t request, source, export_request;
  enum ramet_step fault;
  int tracer_pid, tracer;
  int stem_pid, stem;
  int description, pages;
  void *mapping;
  size_t mapping_length;
  struct image image;
  struct root *base, *root;
  struct snapshot *parent; /* of the source */
  uint64_t region_start, region_length;
  /* the way of the parked twin */
  bool by_twin;
  pid_t copy; /* a fork of it, not a stem yet */
  uint64_t syscall_address, old_start, old_end;
  struct order *orders;
  uint64_t asked_at, captured_at;
  uint64_t pause_ns, memory_bytes, file_bytes;
};

static struct snapshot *snapshots;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

/* ---- the list ------------------------------------------------------------------------------------------------- */

static struct snapshot *
find(uint64_t id)
{
  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->id == id)
      return s;
  return NULL;
}

struct snapshot *
snapshot_find(uint32_t id)
{
  struct snapshot *s = find(id);

  return s && s->state != SNAPSHOT_CAPTURING ? s : NULL;
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

static void
close_watched(int *fd, struct watch *watch)
{
  if (*fd >= 0)
    loop_remove(*fd, watch);
  close_fd(fd);
}

static void
end_stem(struct snapshot *s)
{
  close_watched(&s->stem, &s->stem_watch);
  if (s->stem_pid > 0)
    kill(s->stem_pid, SIGKILL);
  s->stem_pid = 0;
}

static void
close_ends(struct order *order)
{
  close_fd(&order->init_pidfd);
  close_fd(&order->ends.status);
  close_fd(&order->ends.descriptors);
  close_fd(&order->ends.nursery);
}

static void
drop_order(struct snapshot *s)
{
  struct order *order = s->orders;

  s->orders = order->next;
  close_ends(order);
  free(order);
}

static void
refuse_orders(struct snapshot *s, int step, int error)
{
  while (s->orders) {
    uint64_t sandbox = s->orders->sandbox;
    drop_order(s);
    sandbox_fork_failed(sandbox, step, error);
  }
}

/* Off the list: nothing is forked from it any more. */
static void
retire(struct snapshot *s)
{
  for (struct snapshot **at = &snapshots; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  refuse_orders(s, RAMET_STEP_STEM_FORK, ECANCELED);
  close_watched(&s->tracer, &s->tracer_watch);
  end_stem(s);
  twin_kill(s->copy);
  s->copy = 0;
  close_fd(&s->pages);
  if (s->root)
    root_release(s->root);
  s->root = NULL;
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
  struct snapshot *s = find(id);

  if (!s)
    return err_code(err, "unknown_snapshot", "snapshot %llu is not there", (unsigned long long)id);
  /* A tracer that is ended in the middle would leave the source with registers that are not its own. */
  if (s->state == SNAPSHOT_CAPTURING)
    return err_code(err, "busy", "snapshot %u is being taken", s->id);
  retire(s);
  return 0;
}

static void
fail(struct snapshot *s, const struct err *err)
{
  control_refuse(s->request, err);
  retire(s);
}

/* ---- the stem ------------------------------------------------------------------------------------------------- */

static int
send_orders(struct snapshot *s)
{
  for (struct order *order = s->orders; order; order = order->next) {
    if (order->sent)
      continue;
    if (stem_order(s->stem, order->init_pidfd, order->ends.status, order->ends.descriptors, order->ends.nursery) <
        0)
      return -1;
    order->sent = true;
    close_ends(order);
  }
  return 0;
}

static int
watch_stem(struct snapshot *s, struct err *err)
{
  s->state = SNAPSHOT_BUILDING;
  if (loop_add(s->stem, &s->stem_watch, EPOLLIN) < 0)
    return err_step(err, RAMET_STEP_STEM_FORK, "watch the stem: %s", strerror(errno));
  return 0;
}

/* The fork of the source's parked twin has the memory already. */
static int
adopt_copy(struct snapshot *s, struct err *err)
{
  struct sandbox *source = sandbox_find(s->source);
  struct stem_plan plan = {
      .image = &s->image, .root = s->root, .filter = filter_find(s->filter), .fault = s->fault};
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

static int
build_stem(struct snapshot *s, struct err *err)
{
  if (s->by_twin)
    return err_code(err, "stem_lost", "the snapshot's stem is gone, and its memory was nowhere else");
  struct stem_plan plan = {.image = &s->image,
                           .pages = s->pages,
                           .root = s->root,
                           .filter = filter_find(s->filter),
                           .huge = s->memory_bytes >= ((uint64_t)64 << 20),
                           .fault = s->fault};

  if (stem_fork(&plan, s->region_start, s->region_length, &s->stem_pid, &s->stem, err) < 0)
    return -1;
  return watch_stem(s, err);
}

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
  control_reply(RAMET_OK, s->request, &writer);
  s->request = 0;
}

static void
stem_lost(struct snapshot *s, int step, int error)
{
  struct err err;

  end_stem(s);
  if (s->request) {
    errno = error;
    err_step(&err, (enum ramet_step)step, "the stem: %s", strerror(error));
    fail(s, &err);
    return;
  }
  refuse_orders(s, step, error);
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
    s->state = SNAPSHOT_READY;
    if (s->request)
      tell_ready(s);
    if (send_orders(s) < 0)
      stem_lost(s, RAMET_STEP_CHILD_CLONE, errno);
    return;
  }
  if (!s->orders)
    return;
  uint64_t sandbox = s->orders->sandbox;
  drop_order(s);
  if (status.step != 0)
    sandbox_fork_failed(sandbox, status.step, status.error);
}

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

int
snapshot_spawn(struct snapshot *s, uint64_t sandbox, int init_pidfd, const struct spawn_ends *ends, struct err *err)
{
  struct order *order = add_order(s, sandbox, init_pidfd, ends);

  if (!order) {
    close(ends->status);
    close(ends->descriptors);
    close(ends->nursery);
    return err_code(err, "internal", "no memory for a fork");
  }
  /* A stem that was given up, or died: the image makes another. */
  if (s->stem < 0 && build_stem(s, err) < 0)
    return -1;
  if (s->state == SNAPSHOT_READY && send_orders(s) < 0)
    return err_step(err, RAMET_STEP_CHILD_CLONE, "order the child: %s", strerror(errno));
  return 0;
}

static void tracer_ready(struct watch *watch, uint32_t events);
static void exported(struct snapshot *s, struct frame *frame);

static struct snapshot *
snapshot_alloc(uint32_t id, uint64_t request, struct err *err)
{
  struct snapshot *s = calloc(1, sizeof *s);

  if (!s) {
    err_code(err, "internal", "no memory for a snapshot");
    return NULL;
  }
  s->tracer_watch.ready = tracer_ready;
  s->stem_watch.ready = stem_ready;
  s->id = id;
  s->request = request;
  s->tracer = s->stem = s->description = s->pages = -1;
  s->holders = 1;
  s->asked_at = loop_now();
  s->next = snapshots;
  snapshots = s;
  return s;
}

/* ---- the tracer ----------------------------------------------------------------------------------------------- */

static int
map_description(struct snapshot *s, struct err *err)
{
  struct stat st, pages;

  if (fstat(s->description, &st) < 0 || fstat(s->pages, &pages) < 0 || st.st_size > RAMET_PAYLOAD_MAX)
    return err_step(err, RAMET_STEP_IMAGE, "the image's files: %s", strerror(errno));
  s->mapping_length = (size_t)st.st_size;
  s->mapping = mmap(NULL, s->mapping_length, PROT_READ, MAP_PRIVATE, s->description, 0);
  if (s->mapping == MAP_FAILED) {
    s->mapping = NULL;
    return err_step(err, RAMET_STEP_IMAGE, "map the image: %s", strerror(errno));
  }
  return image_decode((struct span){s->mapping, (uint32_t)st.st_size}, (uint64_t)pages.st_size, &s->image, err);
}

static int
read_captured(struct snapshot *s, struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;

  while (attr_next(&walk, &tag, &value, err) > 0) {
    uint64_t *out = tag == RAMET_TAG_PAUSE_NS       ? &s->pause_ns
                    : tag == RAMET_TAG_MEMORY_BYTES ? &s->memory_bytes
                    : tag == RAMET_TAG_FILE_BYTES   ? &s->file_bytes
                                                    : NULL;
    if (out && span_u64(value, out) < 0)
      return err_code(err, "internal", "the tracer's answer is malformed");
  }
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  cleanup_fd int upper = frame_steal_fd(frame, 2);
  if (upper < 0)
    return err_code(err, "internal", "the tracer's answer lacks its files");
  if (map_description(s, err) < 0)
    return -1;
  s->root = root_derive(s->base, steal_fd(&upper), err);
  return s->root ? stem_find_region(&s->image, s->old_start, s->old_end, &s->region_start, &s->region_length, err)
                 : -1;
}

static void
read_refusal(const struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint32_t number;
  uint16_t tag;

  err_code(err, "internal", "the tracer failed");
  while (attr_next(&walk, &tag, &value, &ignored) > 0) {
    if (tag == RAMET_TAG_STEP && span_u32(value, &number) == 0)
      err->step = (enum ramet_step)number;
    else if (tag == RAMET_TAG_ERRNO && span_u32(value, &number) == 0)
      err->number = (int)number;
    else if (tag == RAMET_TAG_CODE && value.length < sizeof err->code)
      memcpy(err->code, value.data, value.length), err->code[value.length] = 0;
    else if (tag == RAMET_TAG_TEXT && value.length < sizeof err->text)
      memcpy(err->text, value.data, value.length), err->text[value.length] = 0;
  }
}

static void
captured(struct snapshot *s, struct frame *frame)
{
  struct err err = {0};

  close_watched(&s->tracer, &s->tracer_watch);
  s->captured_at = loop_now();
  s->state = SNAPSHOT_BUILDING;
  if (frame->kind != RAMET_OK) {
    read_refusal(frame, &err);
    fail(s, &err);
    return;
  }
  if (read_captured(s, frame, &err) < 0 || (s->by_twin ? adopt_copy(s, &err) : build_stem(s, &err)) < 0)
    fail(s, &err);
}

/* The tracer holds the source still and asks for this. */
static void
fork_source_twin(struct snapshot *s, struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  struct sandbox *source = sandbox_find(s->source);
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err err = {0};
  uint16_t tag;

  fault_arm(s->fault);
  int result = source && source->twin && attr_next(&walk, &tag, &value, &err) == 1 &&
                       span_u64(value, &s->syscall_address) == 0
                   ? twin_fork(source->twin, s->syscall_address, &s->copy, &err)
                   : err_code(&err, "internal", "there is no twin");
  fault_arm(RAMET_STEP_NONE);
  s->by_twin = result == 0;
  if (result == 0) {
    put_u32(&writer, RAMET_TAG_PID, (uint32_t)s->copy);
  } else {
    put_err(&writer, &err);
    if (source)
      sandbox_lose_twin(source);
  }
  if (frame_send(s->tracer, result == 0 ? RAMET_OK : RAMET_ERROR, 0, &writer, NULL, 0) < 0)
    log_text("tracer_lost", "no answer could be sent");
}

static void
tracer_ready(struct watch *watch, uint32_t events)
{
  struct snapshot *s = (struct snapshot *)(void *)((char *)watch - offsetof(struct snapshot, tracer_watch));
  struct frame frame;
  struct err err = {0};

  (void)events;
  switch (frame_receive(s->tracer, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return;
  case FRAME_GOT:
    if (s->export_request)
      exported(s, &frame);
    else if (frame.kind == RAMET_TRACER_TWIN)
      fork_source_twin(s, &frame);
    else
      captured(s, &frame);
    frame_release(&frame);
    return;
  case FRAME_MALFORMED:
  case FRAME_CLOSED:
    break;
  }
  if (s->export_request) {
    err_code(&err, "exporter_lost", "the exporter ended without a word");
    control_refuse(s->export_request, &err);
    s->export_request = 0;
    close_watched(&s->tracer, &s->tracer_watch);
    return;
  }
  /* It died in the pause: what it left in the source's registers nobody knows. */
  sandbox_damaged(s->source);
  err_code(&err, "tracer_lost", "the tracer ended without a word; the sandbox was ended");
  s->state = SNAPSHOT_BUILDING;
  fail(s, &err);
}

/* ---- export and load ------------------------------------------------------------------------------------------ */

static void
tell_exported(struct snapshot *s, uint64_t request)
{
  cleanup_writer struct writer writer = {0};
  int fds[2 + RAMET_LAYERS_MAX] = {s->description, s->pages};
  int count = 2 + root_uppers(s->root, fds + 2);

  put_u32(&writer, RAMET_TAG_SNAPSHOT, s->id);
  put_u64(&writer, RAMET_TAG_MEMORY_BYTES, s->memory_bytes);
  put_u64(&writer, RAMET_TAG_FILE_BYTES, s->file_bytes);
  /* Mounts are held by O_PATH descriptors, which no reader can list. */
  for (int i = 2; i < count; i++)
    fds[i] = openat(fds[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  control_reply_fds(request, &writer, fds, count);
  for (int i = 2; i < count; i++)
    close_fd(&fds[i]);
}

static void
exported(struct snapshot *s, struct frame *frame)
{
  uint64_t request = s->export_request;
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err err = {0};
  uint16_t tag;

  s->export_request = 0;
  close_watched(&s->tracer, &s->tracer_watch);
  if (frame->kind != RAMET_OK || frame->fd_count != 2) {
    read_refusal(frame, &err);
    control_refuse(request, &err);
    return;
  }
  while (attr_next(&walk, &tag, &value, &err) > 0)
    if (tag == RAMET_TAG_MEMORY_BYTES && span_u64(value, &s->memory_bytes) < 0)
      s->memory_bytes = 0;
  image_free(&s->image);
  munmap(s->mapping, s->mapping_length);
  close_fd(&s->description);
  close_fd(&s->pages);
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  s->by_twin = false;
  if (map_description(s, &err) < 0) {
    control_refuse(request, &err);
    retire(s);
    return;
  }
  tell_exported(s, request);
}

static int
fork_exporter(struct snapshot *s, struct err *err)
{
  struct export_source source = {.stem_pid = s->stem_pid,
                                 .image = &s->image,
                                 .original = {s->mapping, (uint32_t)s->mapping_length},
                                 .region_start = s->region_start,
                                 .region_end = s->region_start + s->region_length,
                                 .pages = s->pages};
  int pair[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_EXPORT, "socketpair: %s", strerror(errno));
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    export_main(&source, pair[1]);
  int saved = errno;
  close(pair[1]);
  s->tracer = pair[0];
  errno = saved;
  if (pid < 0 || loop_add(s->tracer, &s->tracer_watch, EPOLLIN) < 0)
    return err_step(err, RAMET_STEP_EXPORT, "start the exporter: %s", strerror(errno));
  s->tracer_pid = (int)pid;
  return 0;
}

int
snapshot_export(uint64_t id, uint64_t request, struct err *err)
{
  struct snapshot *s = find(id);

  if (!s || s->state != SNAPSHOT_READY)
    return err_code(err, "unknown_snapshot", "snapshot %llu is not there", (unsigned long long)id);
  if (!s->by_twin) {
    tell_exported(s, request);
    return 0;
  }
  if (s->export_request)
    return err_code(err, "busy", "snapshot %u is being exported", s->id);
  if (fork_exporter(s, err) < 0)
    return -1;
  s->export_request = request;
  return 0;
}

/* Copies what lies in a directory of the caller's into a tmpfs of core's, and puts it on top of the root. */
static int
stack_upper(struct snapshot *s, int from, struct err *err)
{
  struct tmpfs_options options = {.mode = "0700"};
  struct treecopy_count count = {0};
  struct root *below = s->root ? s->root : s->base;

  cleanup_fd int to = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_LOAD, err);
  if (to < 0)
    return -1;
  cleanup_fd int source = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  cleanup_fd int target = openat(to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (source < 0 || target < 0)
    return err_step(err, RAMET_STEP_LOAD, "open a writable layer: %s", strerror(errno));
  if (treecopy(source, target, &count, RAMET_STEP_LOAD, err) < 0)
    return -1;
  s->file_bytes += count.bytes;
  struct root *derived = root_derive(below, steal_fd(&to), err);
  if (s->root)
    root_release(s->root);
  s->root = derived;
  return derived ? 0 : -1;
}

static int
read_load(const struct frame *frame, uint32_t *id, uint32_t *root, uint32_t *filter, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more;

  *id = *root = *filter = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    uint32_t *out = tag == RAMET_TAG_SNAPSHOT ? id
                    : tag == RAMET_TAG_ROOT   ? root
                    : tag == RAMET_TAG_FILTER ? filter
                                              : NULL;
    if (!out || span_u32(value, out) < 0)
      return err_field(err, "payload", "tag %u of %u bytes does not belong into a load", tag, value.length);
  }
  if (more < 0)
    return -1;
  if (*id == 0 || find(*id))
    return err_field(err, "snapshot", *id ? "this number is taken" : "is missing");
  if (frame->fd_count < 3)
    return err_field(err, "fds", "description, pages and at least one writable layer are needed");
  return 0;
}

static int
load(struct snapshot *s, struct frame *frame, uint32_t root, struct err *err)
{
  struct root *base = root_find(root);

  if (!base)
    return err_code(err, "unknown_root", "root %u is not defined", root);
  if (filter_find(s->filter).length == 0)
    return err_code(err, "unknown_filter", "filter %u is not defined", s->filter);
  s->base = root_hold(base);
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  if (map_description(s, err) < 0)
    return -1;
  for (int i = frame->fd_count - 1; i >= 2; i--)
    if (stack_upper(s, frame->fds[i], err) < 0)
      return -1;
  if (stem_find_region(&s->image, 0, 0, &s->region_start, &s->region_length, err) < 0)
    return -1;
  s->captured_at = loop_now();
  return build_stem(s, err);
}

int
snapshot_load(struct frame *frame, struct err *err)
{
  uint32_t id, root, filter;

  if (read_load(frame, &id, &root, &filter, err) < 0)
    return -1;
  struct snapshot *s = snapshot_alloc(id, frame->request, err);
  if (!s)
    return -1;
  s->filter = filter;
  if (load(s, frame, root, err) == 0)
    return 0;
  retire(s);
  return -1;
}

/* ---- taking one ----------------------------------------------------------------------------------------------- */

static int
fork_tracer(struct snapshot *s, const struct sandbox *sandbox, struct err *err)
{
  static const char *targets[RAMET_BINDS_MAX];
  struct capture_source source = {.init_pid = sandbox->pid,
                                  .upper = sandbox->upper,
                                  .bind_targets = targets,
                                  .bind_count = root_targets(sandbox->root, targets),
                                  .patience_ms = PATIENCE_MS,
                                  .parent = s->parent ? &s->parent->image : NULL,
                                  .twin = sandbox->twin,
                                  .region_start = sandbox->region_start,
                                  .region_end = sandbox->region_end};
  int pair[2];

  memcpy(source.streams, sandbox->streams, sizeof source.streams);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "socketpair: %s", strerror(errno));
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    capture_main(&source, s->fault, pair[1]);
  int saved = errno;
  close(pair[1]);
  s->tracer = pair[0];
  errno = saved;
  if (pid < 0 || loop_add(s->tracer, &s->tracer_watch, EPOLLIN) < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "start the tracer: %s", strerror(errno));
  s->tracer_pid = (int)pid;
  return 0;
}

static int
read_request(const struct frame *frame, uint64_t *sandbox, uint32_t *id, uint32_t *fault, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more;

  *sandbox = 0;
  *id = *fault = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    int bad = tag == RAMET_TAG_SANDBOX    ? span_u64(value, sandbox)
              : tag == RAMET_TAG_SNAPSHOT ? span_u32(value, id)
              : tag == RAMET_TAG_FAULT    ? span_u32(value, fault)
                                          : -1;
    if (bad < 0)
      return err_field(err, "payload", "tag %u of %u bytes does not belong into a snapshot", tag, value.length);
  }
  if (more < 0)
    return -1;
  if (*sandbox == 0)
    return err_field(err, "sandbox", "is missing");
  if (*id == 0 || find(*id))
    return err_field(err, "snapshot", *id ? "this number is taken" : "is missing");
  return 0;
}

int
snapshot_take(const struct frame *frame, struct err *err)
{
  uint64_t id;
  uint32_t number, fault;

  if (read_request(frame, &id, &number, &fault, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(id);
  if (!sandbox || sandbox->state != SANDBOX_STANDING)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands");
  for (struct snapshot *s = snapshots; s; s = s->next)
    if (s->source == id && s->state == SNAPSHOT_CAPTURING)
      return err_code(err, "busy", "a snapshot of this sandbox is being taken");
  struct snapshot *s = snapshot_alloc(number, frame->request, err);
  if (!s)
    return -1;
  s->fault = (enum ramet_step)fault;
  s->filter = sandbox->filter;
  s->source = id;
  s->base = root_hold(sandbox->root);
  s->parent = sandbox->origin ? snapshot_hold(sandbox->origin) : NULL;
  s->old_start = sandbox->region_start;
  s->old_end = sandbox->region_end;
  if (fork_tracer(s, sandbox, err) == 0)
    return 0;
  retire(s);
  return -1;
}

bool
snapshot_reaped(int pid)
{
  for (struct snapshot *s = snapshots; s; s = s->next) {
    if (s->tracer_pid == pid) {
      s->tracer_pid = 0;
      return true;
    }
    if (s->stem_pid == pid) {
      s->stem_pid = 0;
      return true;
    }
  }
  return false;
}
