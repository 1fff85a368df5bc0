/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "snapshot_parts.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "capture.h"
#include "control.h"
#include "filters.h"
#include "kept.h"
#include "log.h"
#include "overdue.h"
#include "started.h"
#include "stem.h"
#include "syscalls.h"
#include "twin.h"

/* How long a process may take to stop: one in uninterruptible sleep never does. */
#define PATIENCE_MS 5000

/* For all of a snapshot, unless it is told otherwise: what a client waits is twice as long. */
#define ALLOWED_MS 60000
/* A tracer looks at its time between two pieces of work. One that does not come to it is killed so much later. */
#define GRACE_MS(allowed) ((allowed) / 4 + 500)

static uint8_t receive_buffer[RAMET_FRAME_BYTES];
static unsigned allowed_ms = ALLOWED_MS;

void
snapshot_allow(unsigned milliseconds)
{
  allowed_ms = milliseconds;
}

/* ---- the tracer ----------------------------------------------------------------------------------------------- */

int
snapshot_map_description(struct snapshot *s, struct err *err)
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
  snapshot_memory_charge_pages(s);
  return image_decode((struct span){s->mapping, (uint32_t)st.st_size}, (uint64_t)pages.st_size, &s->image, err);
}

static int
stand_on_flat(struct snapshot *s, int layer, struct err *err)
{
  if (root_flatten(s->base, layer, err) < 0)
    return -1;
  struct root *flat = root_hold_flat(s->base);
  root_release(s->base);
  s->base = flat;
  return 0;
}

static int
note_frozen(struct snapshot *s, struct span pids, struct err *err)
{
  if (pids.length == 0)
    return 0;
  if (pids.length != s->image.process_count * sizeof *s->frozen)
    return err_code(err, "internal", "the tracer's answer is malformed");
  s->frozen = malloc(pids.length);
  if (!s->frozen)
    return err_code(err, "internal", "no memory for the frozen copies");
  memcpy(s->frozen, pids.data, pids.length);
  return 0;
}

static int
read_captured(struct snapshot *s, struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint32_t by_twin = 0, flat = RAMET_FD_NONE;
  struct span frozen = {0};
  uint16_t tag;

  while (attr_next(&walk, &tag, &value, err) > 0) {
    if (tag == RAMET_TAG_DROPPED)
      put_raw(&s->dropped, value);
    if (tag == RAMET_TAG_WAYS)
      put_raw(&s->ways, value);
    if (tag == RAMET_TAG_PID)
      frozen = value;
    uint32_t *number = tag == RAMET_TAG_BY_TWIN ? &by_twin : tag == RAMET_TAG_LAYER ? &flat : NULL;
    if (number && span_u32(value, number) < 0)
      return err_code(err, "internal", "the tracer's answer is malformed");
    uint64_t *out = tag == RAMET_TAG_PAUSE_NS       ? &s->pause_ns
                    : tag == RAMET_TAG_MEMORY_BYTES ? &s->memory_bytes
                    : tag == RAMET_TAG_FILE_BYTES   ? &s->file_bytes
                                                    : NULL;
    if (out && span_u64(value, out) < 0)
      return err_code(err, "internal", "the tracer's answer is malformed");
  }
  /* The tracer found the copy to be less than the source. */
  if (s->by_twin && !by_twin) {
    s->by_twin = false;
    twin_kill(s->copy);
    s->copy = 0;
  }
  s->in_stem = true;
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  cleanup_fd int upper = frame_steal_fd(frame, 2);
  cleanup_fd int layer = flat == RAMET_FD_NONE ? -1 : frame_steal_fd(frame, flat);
  if (upper < 0)
    return err_code(err, "internal", "the tracer's answer lacks its files");
  if (snapshot_map_description(s, err) < 0 || note_frozen(s, frozen, err) < 0 ||
      (layer >= 0 && stand_on_flat(s, steal_fd(&layer), err) < 0))
    return -1;
  s->root = root_derive(s->below ? s->below : s->base, steal_fd(&upper), err);
  if (s->below)
    root_release(s->below);
  s->below = NULL;
  return s->root ? stem_find_region(&s->image, s->old_start, s->old_end, &s->region_start, &s->region_length, err)
                 : -1;
}

void
snapshot_read_refusal(const struct frame *frame, struct err *err)
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

/* Memory for it may fail: then a sleep in a later fork ends with EINTR. */
static void
note_restarted(struct snapshot *s, const struct frame *frame)
{
  struct sandbox *source = sandbox_find(s->source);
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint16_t tag;

  while (source && attr_next(&walk, &tag, &value, &ignored) > 0)
    if (tag == RAMET_TAG_RESTARTED) {
      free(source->restarted);
      source->restarted = value.length ? malloc(value.length) : NULL;
      source->restarted_length = source->restarted ? value.length : 0;
      if (source->restarted)
        memcpy(source->restarted, value.data, value.length);
    }
}

void
snapshot_forget_tracer(struct snapshot *s)
{
  deadline_clear(&s->overdue);
  free(s->refused);
  s->refused = NULL;
  if (s->touched)
    munmap((void *)(uintptr_t)s->touched, IMAGE_PAGE);
  s->touched = NULL;
}

/* A thread that did not stop stays attached until the tracer is gone; to the next snapshot it would be a stranger's. */
static void
refuse(struct snapshot *s, const struct err *err)
{
  s->refused = s->tracer_pid ? malloc(sizeof *err) : NULL;
  if (s->refused) {
    *s->refused = *err;
    return;
  }
  s->state = SNAPSHOT_BUILDING;
  snapshot_fail(s, err);
}

void
snapshot_tracer_ended(struct snapshot *s)
{
  struct err err;

  if (!s->refused)
    return;
  err = *s->refused;
  s->state = SNAPSHOT_BUILDING;
  snapshot_fail(s, &err);
}

static void
tracer_overdue(struct deadline *deadline)
{
  struct snapshot *s = (struct snapshot *)(void *)((char *)deadline - offsetof(struct snapshot, overdue));

  log_text("snapshot_overdue", "its tracer is killed");
  s->killed = true;
  if (s->tracer_pid > 0)
    kill(s->tracer_pid, SIGKILL);
}

/* What it left in the source's registers nobody knows, if it had come that far. */
static void
tracer_lost(struct snapshot *s)
{
  const char *outcome = *s->touched ? "was ended" : "runs on";
  struct err err = {0};

  if (s->killed && !*s->touched)
    overdue_refuse(allowed_ms, RAMET_STEP_NONE, &err);
  else if (s->killed)
    err_code(&err, "snapshot_timeout", "the snapshot took too long while threads stood still; the sandbox %s",
             outcome);
  else
    err_code(&err, "tracer_lost", "the tracer ended without a word; the sandbox %s", outcome);
  if (*s->touched)
    sandbox_damaged(s->source);
  else if (sandbox_find(s->source))
    kept_forget(sandbox_find(s->source));
  snapshot_close_watched(&s->tracer, &s->tracer_watch);
  refuse(s, &err);
}

static void
captured(struct snapshot *s, struct frame *frame)
{
  struct err err = {0};

  note_restarted(s, frame);
  s->captured_at = loop_now();
  struct sandbox *source = sandbox_find(s->source);
  if (frame->kind != RAMET_OK) {
    if (source)
      kept_forget(source);
    snapshot_read_refusal(frame, &err);
    refuse(s, &err);
    return;
  }
  snapshot_forget_tracer(s);
  s->state = SNAPSHOT_BUILDING;
  int result = read_captured(s, frame, &err);
  if (source && result == 0)
    kept_captured(source, s->root, frame_steal_fd(frame, 3), s->file_bytes);
  else if (source)
    kept_forget(source);
  if (result < 0 || (s->by_twin ? snapshot_adopt_copy(s, &err) : snapshot_build_stem(s, &err)) < 0)
    snapshot_fail(s, &err);
  else if (!s->frozen)
    snapshot_end_tracer(s);
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

void
snapshot_tracer_ready(struct watch *watch, uint32_t events)
{
  struct snapshot *s = (struct snapshot *)(void *)((char *)watch - offsetof(struct snapshot, tracer_watch));
  struct frame frame;
  struct err err = {0};

  (void)events;
  switch (frame_receive(s->tracer, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return;
  case FRAME_GOT:
    if (s->exporting)
      snapshot_exported(s, &frame);
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
  if (s->exporting) {
    snapshot_exporter_lost(s);
    return;
  }
  /* With it the frozen copy: the stem will tell. */
  if (s->state != SNAPSHOT_CAPTURING) {
    snapshot_end_tracer(s);
    return;
  }
  if (s->refused)
    snapshot_close_watched(&s->tracer, &s->tracer_watch);
  else
    tracer_lost(s);
}

int
snapshot_watch_tracer(struct snapshot *s, enum ramet_step step, int *theirs, struct err *err)
{
  int pair[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, step, "socketpair: %s", strerror(errno));
  s->tracer = pair[0];
  *theirs = pair[1];
  if (loop_add(s->tracer, &s->tracer_watch, EPOLLIN) == 0)
    return 0;
  err_step(err, step, "watch a process of core's: %s", strerror(errno));
  close_fd(&s->tracer);
  return -1;
}

/* ---- taking one ----------------------------------------------------------------------------------------------- */

static int
fork_tracer(struct snapshot *s, struct sandbox *sandbox, struct err *err)
{
  static const char *targets[RAMET_BINDS_MAX];
  struct capture_source source = {.init_pid = sandbox->pid,
                                  .upper = sandbox->upper,
                                  .bind_targets = targets,
                                  .bind_count = root_targets(sandbox->root, targets),
                                  .patience_ms = PATIENCE_MS,
                                  .allowed_ms = allowed_ms,
                                  .drop = s->drop,
                                  .frozen = sandbox->frozen,
                                  .parent = s->parent ? &s->parent->image : NULL,
                                  .twin = sandbox->twin,
                                  .region_start = sandbox->region_start,
                                  .region_end = sandbox->region_end,
                                  .restarted = {sandbox->restarted, sandbox->restarted_length}};
  cleanup_fd int theirs = -1;
  cleanup_free struct capture_command *commands = NULL;

  source.command_count = started_capture(sandbox->id, &commands, err);
  if (source.command_count < 0)
    return -1;
  source.commands = commands;
  void *page = mmap(NULL, IMAGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    return err_code(err, "internal", "no page to share with the tracer: %s", strerror(errno));
  source.touched = s->touched = page;
  memcpy(source.streams, sandbox->streams, sizeof source.streams);
  s->below = kept_begin(sandbox, &source);
  if (!s->below && root_is_deep(s->base))
    source.layer_count = root_layers(s->base, source.layers, &source.merged);
  if (snapshot_watch_tracer(s, RAMET_STEP_FIND_PROCESSES, &theirs, err) < 0)
    return -1;
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    capture_main(&source, s->fault, theirs);
  if (pid < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "start the tracer: %s", strerror(errno));
  s->tracer_pid = (int)pid;
  s->overdue.fire = tracer_overdue;
  deadline_set(&s->overdue, loop_now() + (uint64_t)(allowed_ms + GRACE_MS(allowed_ms)) * 1000000u);
  return 0;
}

static int
read_request(const struct frame *frame, uint64_t *sandbox, uint32_t *id, uint32_t *fault, uint32_t *drop,
             struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more;

  *sandbox = 0;
  *id = *fault = *drop = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    int bad = tag == RAMET_TAG_SANDBOX    ? span_u64(value, sandbox)
              : tag == RAMET_TAG_SNAPSHOT ? span_u32(value, id)
              : tag == RAMET_TAG_FAULT    ? span_u32(value, fault)
              : tag == RAMET_TAG_DROP     ? span_u32(value, drop)
                                          : -1;
    if (bad < 0)
      return err_field(err, "payload", "tag %u of %u bytes does not belong into a snapshot", tag, value.length);
  }
  if (more < 0)
    return -1;
  if (*sandbox == 0)
    return err_field(err, "sandbox", "is missing");
  return 0;
}

static int
choose_number(bool for_client, uint32_t *id, struct err *err)
{
  static uint32_t last;

  if (for_client && *id)
    return err_field(err, "snapshot", "over a lane the number is core's to choose");
  while (for_client && (*id == 0 || snapshot_by_id(*id)))
    *id = SNAPSHOT_FOR_CLIENTS | ++last;
  if (*id == 0 || snapshot_by_id(*id) || (!for_client && *id & SNAPSHOT_FOR_CLIENTS))
    return err_field(err, "snapshot", *id ? "this number is taken" : "is missing");
  return 0;
}

int
snapshot_take(const struct frame *frame, struct lane *session, struct err *err)
{
  uint64_t id;
  uint32_t number, fault, drop;

  if (read_request(frame, &id, &number, &fault, &drop, err) < 0 || choose_number(session, &number, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(id);
  if (!sandbox || sandbox->state != SANDBOX_STANDING || sandbox->overdue)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands");
  if (sandbox->stopped_before)
    return err_code(err, "unforkable", "pid %u inside: is stopped by a signal", sandbox->stopped_before);
  if (snapshot_capturing(id))
    return err_code(err, "capturing", "a snapshot of this sandbox is being taken");
  if (snapshot_memory_admit(err) < 0)
    return -1;
  struct snapshot *s = snapshot_alloc(number, frame->request, err);
  if (!s)
    return -1;
  s->session = session;
  s->fault = (enum ramet_step)fault;
  s->drop = drop != 0;
  s->filter = sandbox->filter;
  s->source = id;
  s->base = root_hold_flat(sandbox->root);
  s->parent = sandbox->origin ? snapshot_hold(sandbox->origin) : NULL;
  s->old_start = sandbox->region_start;
  s->old_end = sandbox->region_end;
  if (fork_tracer(s, sandbox, err) == 0)
    return 0;
  s->session = NULL; /* the caller's still */
  kept_forget(sandbox);
  snapshot_retire(s);
  return -1;
}
