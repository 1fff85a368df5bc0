/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cgroups.h"
#include "files.h"
#include "filters.h"
#include "lanes.h"
#include "log.h"
#include "offers.h"
#include "ports.h"
#include "rootfs.h"
#include "sandbox.h"
#include "snapshot.h"
#include "started.h"
#include "swap.h"

/* Frames for a daemon that is not there, or does not read. More than this and core ends: it may not grow for ever. */
#define QUEUE_MAX 65536
/* So many, and no event of a command comes into the queue any more: there are as many as clients like. */
#define QUEUE_COMMANDS 8192

struct queued {
  struct queued *next;
  uint16_t kind;
  uint64_t request;
  struct writer writer;
};

static struct watch connection_watch, listener_watch;
static int connection = -1;
static int listener = -1;
static int runtime_dir = -1;
static uid_t peer_uid;
static bool greeted; /* false on a connection that has not said HELLO yet */
static uint64_t core_id, grace_ns;
static ino_t socket_inode;
static char program[64];
static uint32_t pool_size;
static struct deadline grace;
static struct queued *queue_head, **queue_tail = &queue_head;
static int queue_length;
static struct queued *later_head, **later_tail = &later_head;
static int later_length;
static struct deadline later;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

/* ---- sending -------------------------------------------------------------------------------------------------- */

static void
enqueue(uint16_t kind, uint64_t request, struct writer *writer)
{
  struct queued *item = malloc(sizeof *item);

  if (!item || ++queue_length > QUEUE_MAX)
    _exit(EXIT_DEFECT);
  *item = (struct queued){NULL, kind, request, *writer};
  memset(writer, 0, sizeof *writer);
  *queue_tail = item;
  queue_tail = &item->next;
  if (connection >= 0)
    loop_change(connection, &connection_watch, EPOLLIN | EPOLLOUT);
}

static void
flush(void)
{
  while (queue_head && connection >= 0 && greeted) {
    struct queued *item = queue_head;
    if (frame_send(connection, item->kind, item->request, &item->writer, NULL, 0) < 0)
      return; /* EAGAIN: EPOLLOUT comes; EPIPE: the close comes */
    queue_head = item->next;
    if (!queue_head)
      queue_tail = &queue_head;
    queue_length--;
    writer_free(&item->writer);
    free(item);
  }
  if (connection >= 0)
    loop_change(connection, &connection_watch, EPOLLIN);
}

static void
send_or_enqueue(uint16_t kind, uint64_t request, struct writer *writer)
{
  /* Replies to requests of a daemon that is gone have no reader; events wait for the next one. */
  if (connection < 0 && request != 0)
    return;
  if (connection >= 0 && greeted && !queue_head && frame_send(connection, kind, request, writer, NULL, 0) == 0)
    return;
  enqueue(kind, request, writer);
}

/* What has happened before comes first. */
void
control_reply(uint16_t kind, uint64_t request, struct writer *writer)
{
  if (later_head)
    control_tell_events();
  send_or_enqueue(kind, request, writer);
}

/* ---- events that can wait ------------------------------------------------------------------------------------- */

/* The daemon only keeps count of what clients make past it. To wake it for each would take a processor from the first
 * answer of what was made, and its caches are cold each time: it hears when nothing has happened for a while, or it has
 * been long enough, and sooner where it has something to do or somebody waits. Whatever it asks, it has heard of all that
 * was before. */
static const struct pace {
  uint64_t later_ns, latest_ns;
  int together;
} at_leisure = {20000000, 100000000, 128}, in_haste = {5000000, 30000000, 32};
#define COMMAND_EVENTS_TOGETHER 256

static uint64_t later_first, later_last; /* when the first and the last of them happened */
static int later_commands;       /* of those that wait */
static const struct pace *pace = &at_leisure; /* of those that wait */
static bool events_awaited;      /* somebody waits for events of sandboxes */
static bool commands_awaited;    /* and for those of commands */
static uint64_t commands_missed; /* events of commands that there was no room for */

void
control_tell_events(void)
{
  struct queued *item = later_head;

  deadline_clear(&later);
  later_head = NULL;
  later_tail = &later_head;
  later_length = later_commands = 0;
  pace = &at_leisure;
  while (item) {
    struct queued *next = item->next;
    send_or_enqueue(item->kind, 0, &item->writer);
    writer_free(&item->writer);
    free(item);
    item = next;
  }
}

/* While more happens. */
static void
events_due(struct deadline *deadline)
{
  uint64_t quiet = later_last + pace->later_ns, latest = later_first + pace->latest_ns;
  uint64_t due = quiet < latest ? quiet : latest;

  if (due > loop_now())
    deadline_set(deadline, due);
  else
    control_tell_events();
}

static void
drop_events(void)
{
  deadline_clear(&later);
  while (later_head) {
    struct queued *item = later_head;
    later_head = item->next;
    writer_free(&item->writer);
    free(item);
  }
  later_tail = &later_head;
  later_length = later_commands = 0;
  pace = &at_leisure;
  events_awaited = commands_awaited = false;
  commands_missed = 0; /* the next one has told of none */
}

static void
add_event(uint16_t kind, struct writer *writer)
{
  struct queued *item = malloc(sizeof *item);

  if (!item)
    _exit(EXIT_DEFECT);
  *item = (struct queued){NULL, kind, 0, *writer};
  memset(writer, 0, sizeof *writer);
  *later_tail = item;
  later_tail = &item->next;
}

static void
tell_soon(void)
{
  later_last = loop_now();
  if (++later_length >= pace->together) {
    control_tell_events();
  } else if (!later.index) {
    later_first = later_last;
    deadline_set(&later, later_last + pace->later_ns);
  }
}

void
control_hurry(void)
{
  if (!later.index || pace == &in_haste)
    return;
  pace = &in_haste;
  deadline_set(&later, later_last + pace->later_ns);
}

void
control_event(uint16_t kind, struct writer *writer)
{
  if (connection < 0 || !greeted)
    return; /* what it is about ends with the daemon */
  add_event(kind, writer);
  tell_soon();
  if (events_awaited)
    control_hurry();
}

void
control_command_event(uint16_t kind, struct writer *writer)
{
  if (connection < 0 || !greeted)
    return; /* the next daemon begins to tell anew */
  if (queue_length + later_commands > QUEUE_COMMANDS) {
    commands_missed++;
    return;
  }
  put_u64(writer, RAMET_TAG_MISSED, commands_missed);
  commands_missed = 0;
  add_event(kind, writer);
  later_commands++;
  if (commands_awaited) {
    tell_soon();
    control_hurry();
  } else if (later_commands == COMMAND_EVENTS_TOGETHER)
    control_tell_events();
}

/* To a peer that may not have greeted yet, past the queue. An empty socket takes a small frame. */
static void
send_now(uint16_t kind, uint64_t request, const struct writer *writer)
{
  if (frame_send(connection, kind, request, writer, NULL, 0) < 0)
    log_text("peer_lost", "it does not take the first answer");
}

void
control_reply_fds(uint64_t request, struct writer *writer, const int *fds, int count)
{
  struct err err;

  if (connection < 0)
    return;
  if (!queue_head && frame_send(connection, RAMET_OK, request, writer, fds, count) == 0)
    return;
  err_code(&err, "busy", "the connection is full: %s", strerror(errno));
  control_refuse(request, &err);
}

void
control_refuse(uint64_t request, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  control_reply(RAMET_ERROR, request, &writer);
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

static void
describe_core(struct writer *writer)
{
  put_u32(writer, RAMET_TAG_VERSION, RAMET_PROTOCOL_VERSION);
  put_u64(writer, RAMET_TAG_CORE_ID, core_id);
  put_u64(writer, RAMET_TAG_GRACE_NS, grace_ns);
  put_u32(writer, RAMET_TAG_SINGLE_UID, sandbox_single_uid());
  put_text(writer, RAMET_TAG_PROGRAM, program);
  put_text(writer, RAMET_TAG_CGROUPS, cgroups_told());
}

static void
describe_state(struct writer *writer)
{
  describe_core(writer);
  put_u32(writer, RAMET_TAG_POOL_SIZE, pool_size);
  put_u32(writer, RAMET_TAG_POOL_READY, (uint32_t)sandbox_count(SANDBOX_POOLED));
  put_u32(writer, RAMET_TAG_SANDBOXES,
          (uint32_t)(sandbox_count(SANDBOX_STARTING) + sandbox_count(SANDBOX_RUNNING) +
                     sandbox_count(SANDBOX_STANDING)));
  put_u32(writer, RAMET_TAG_ROOTS, (uint32_t)root_count());
  put_u64(writer, RAMET_TAG_RUNS, sandbox_ended_count());
  put_u32(writer, RAMET_TAG_LANES, (uint32_t)lane_count());
  put_u64(writer, RAMET_TAG_IDLE_NS, loop_now() - sandbox_last_activity());
  put_u64(writer, RAMET_TAG_SNAPSHOT_MEMORY, snapshot_memory_used());
  put_u64(writer, RAMET_TAG_SNAPSHOT_BUDGET, snapshot_memory_budget());
}

static void
reply_ok(uint64_t request)
{
  struct writer nothing = {0};

  control_reply(RAMET_OK, request, &nothing);
}

static void
list(uint64_t request)
{
  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox)) {
    cleanup_writer struct writer writer = {0};
    if (sandbox->id == 0 || sandbox->told)
      continue;
    put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
    put_u32(&writer, RAMET_TAG_OWNED, sandbox->owned);
    put_bytes(&writer, RAMET_TAG_RECORD, sandbox->record, sandbox->record_length);
    put_u64(&writer, RAMET_TAG_WATCH, sandbox->watched);
    control_reply(RAMET_OK, request, &writer);
  }
  reply_ok(request);
}

static const char *
number_name(uint16_t tag)
{
  return tag == RAMET_TAG_SANDBOX     ? "sandbox"
         : tag == RAMET_TAG_ROOT      ? "root"
         : tag == RAMET_TAG_SNAPSHOT  ? "snapshot"
         : tag == RAMET_TAG_POOL_SIZE ? "pool_size"
                                      : "payload";
}

/* The number that a small request must carry, and the record that it may. */
static int
one_number(const struct frame *frame, uint16_t wanted, uint64_t *out, struct span *record, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag, seen = 0;
  bool found = false;
  int more;

  *out = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    uint32_t small = 0;
    if (tag == seen)
      return err_field(err, "payload", "tag %u occurs twice", tag);
    seen = tag;
    if (tag == RAMET_TAG_RECORD && record) {
      *record = value;
      continue;
    }
    if (tag == RAMET_TAG_FAULT && wanted == RAMET_TAG_SNAPSHOT)
      continue;
    if (tag != wanted || (span_u64(value, out) < 0 && span_u32(value, &small) < 0))
      return err_field(err, "payload", "tag %u of %u bytes does not belong here", tag, value.length);
    if (value.length == sizeof small)
      *out = small;
    found = true;
  }
  return more == 0 && !found ? err_field(err, number_name(wanted), "is missing") : more;
}

static enum ramet_step
requested_fault(const struct frame *frame)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint32_t step = 0;
  uint16_t tag;

  while (attr_next(&walk, &tag, &value, &ignored) > 0)
    if (tag == RAMET_TAG_FAULT && span_u32(value, &step) == 0)
      break;
  return (enum ramet_step)step;
}

static int
handle_define_root(struct frame *frame, struct err *err)
{
  fault_arm(requested_fault(frame));
  int result = root_define(frame, err);
  fault_arm(RAMET_STEP_NONE);
  return result;
}

static int
handle_set_pool(struct frame *frame, struct err *err)
{
  uint64_t number;

  if (one_number(frame, RAMET_TAG_POOL_SIZE, &number, NULL, err) < 0)
    return -1;
  if (number > RAMET_POOL_MAX)
    return err_field(err, "pool_size", "is above %d", RAMET_POOL_MAX);
  pool_size = (uint32_t)number;
  return 0;
}

static int
handle_await_events(struct frame *frame, struct err *err)
{
  uint64_t wanted;

  if (one_number(frame, RAMET_TAG_FLAGS, &wanted, NULL, err) < 0)
    return -1;
  if (wanted > RAMET_AWAIT_SANDBOXES)
    return err_field(err, "flags", "is unknown");
  events_awaited = wanted != RAMET_AWAIT_NOTHING;
  commands_awaited = wanted == RAMET_AWAIT_EVERYTHING;
  return 0;
}

static int
handle_simple(struct frame *frame, struct err *err)
{
  uint64_t number;
  struct span record = {0};

  switch (frame->kind) {
  case RAMET_DEFINE_ROOT:
    return handle_define_root(frame, err);
  case RAMET_DROP_ROOT:
    return one_number(frame, RAMET_TAG_ROOT, &number, NULL, err) < 0
               ? -1
               : root_drop(number > UINT32_MAX ? 0 : (uint32_t)number, err);
  case RAMET_DEFINE_FILTER:
    return filter_define(frame, err);
  case RAMET_KILL:
    return one_number(frame, RAMET_TAG_SANDBOX, &number, NULL, err) < 0 ? -1 : sandbox_kill(number, err);
  case RAMET_RECORD:
    return one_number(frame, RAMET_TAG_SANDBOX, &number, &record, err) < 0
               ? -1
               : sandbox_set_record(number, record, err);
  case RAMET_SWAP:
    return sandbox_swap(frame, err);
  case RAMET_DROP_SNAPSHOT:
    return one_number(frame, RAMET_TAG_SNAPSHOT, &number, NULL, err) < 0 ? -1 : snapshot_drop(number, err);
  case RAMET_AWAIT_EVENTS:
    return handle_await_events(frame, err);
  case RAMET_SET_POOL:
    return handle_set_pool(frame, err);
  case RAMET_OFFER:
    return offer_make(frame, err);
  case RAMET_HOLD:
    return offer_hold(frame, err);
  case RAMET_WITHDRAW:
    return one_number(frame, RAMET_TAG_SANDBOX, &number, NULL, err) < 0 ? -1 : offer_withdraw(number, err);
  case RAMET_LANE:
    return lane_open(frame, err);
  case RAMET_FILES:
    return files_open(frame, err);
  case RAMET_SHUTDOWN:
    loop_stop();
    return 0;
  default:
    return err_field(err, "kind", "core knows no request %u", frame->kind);
  }
}

static int
export_or_load(struct frame *frame, struct err *err)
{
  uint64_t number;

  if (frame->kind == RAMET_LOAD_SNAPSHOT)
    return snapshot_load(frame, err);
  return one_number(frame, RAMET_TAG_SNAPSHOT, &number, NULL, err) < 0
             ? -1
             : snapshot_export(number, frame->request, err);
}

static int
tell_held(const struct frame *frame, struct err *err)
{
  uint64_t number;

  return one_number(frame, RAMET_TAG_SANDBOX, &number, NULL, err) < 0 ? -1
                                                                      : offer_held(number, frame->request, err);
}

static int
start_snapshot_work(struct frame *frame, struct err *err)
{
  if (frame->kind == RAMET_SNAPSHOT)
    return snapshot_take(frame, NULL, err);
  fault_arm(requested_fault(frame));
  int result = export_or_load(frame, err);
  fault_arm(RAMET_STEP_NONE);
  return result;
}

static void refuse_frame(uint64_t request, const struct err *err);

static bool
takes_nothing(uint16_t kind)
{
  return kind == RAMET_HELLO || kind == RAMET_STATUS || kind == RAMET_LIST || kind == RAMET_SHUTDOWN ||
         kind == RAMET_CLOSE_LANES;
}

static int
start_in_sandbox(struct frame *frame, struct err *err)
{
  switch (frame->kind) {
  case RAMET_SPAWN:
    return sandbox_spawn(frame, err);
  case RAMET_CONNECT:
    return ports_request(frame, NULL, err);
  case RAMET_SIGNAL:
    return sandbox_signal(frame, NULL, 0, err);
  default:
    return sandbox_start(frame, NULL, err);
  }
}

static void
handle(struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  struct err err = {0};

  if (takes_nothing(frame->kind) && frame->payload.length) {
    err_field(&err, "payload", "request %u carries nothing", frame->kind);
    refuse_frame(frame->request, &err);
    return;
  }
  switch (frame->kind) {
  case RAMET_HELLO:
    describe_core(&writer);
    /* Before the events that wait for this daemon. */
    if (greeted)
      control_reply(RAMET_OK, frame->request, &writer);
    else
      send_now(RAMET_OK, frame->request, &writer);
    greeted = true;
    return;
  case RAMET_CLOSE_LANES:
    lanes_close_idle();
    put_u32(&writer, RAMET_TAG_LANES, (uint32_t)lane_count());
    control_reply(RAMET_OK, frame->request, &writer);
    return;
  case RAMET_STATUS:
    describe_state(&writer);
    control_reply(RAMET_OK, frame->request, &writer);
    return;
  case RAMET_LIST:
    list(frame->request);
    return;
  case RAMET_SNAPSHOT:
  case RAMET_EXPORT_SNAPSHOT:
  case RAMET_LOAD_SNAPSHOT:
    if (start_snapshot_work(frame, &err) < 0)
      control_refuse(frame->request, &err);
    return;
  case RAMET_CLAIM:
  case RAMET_HELD:
    if ((frame->kind == RAMET_HELD ? tell_held(frame, &err) : offer_claim(frame, NULL, &err)) < 0)
      control_refuse(frame->request, &err);
    return;
  case RAMET_RUN:
  case RAMET_CREATE:
  case RAMET_SPAWN:
  case RAMET_CONNECT:
  case RAMET_SIGNAL:
    /* Answered later, unless refused. */
    if (start_in_sandbox(frame, &err) < 0)
      control_refuse(frame->request, &err);
    return;
  default:
    if (started_takes(frame->kind)) {
      if (started_request(frame, NULL, &err) < 0)
        control_refuse(frame->request, &err);
      return;
    }
    if (handle_simple(frame, &err) < 0)
      control_refuse(frame->request, &err);
    else
      reply_ok(frame->request);
  }
}

/* ---- connections ---------------------------------------------------------------------------------------------- */

static void
grace_over(struct deadline *deadline)
{
  (void)deadline;
  log_text("grace_over", "no daemon came back");
  loop_stop();
}

/* Replies to the daemon that went are dropped, events are kept. */
static void
drop_replies(void)
{
  struct queued **at = &queue_head;

  while (*at) {
    struct queued *item = *at;
    if (item->request == 0) {
      at = &item->next;
      continue;
    }
    *at = item->next;
    queue_length--;
    writer_free(&item->writer);
    free(item);
  }
  queue_tail = at;
}

static void
connection_gone(void)
{
  loop_remove(connection, &connection_watch);
  close_fd(&connection);
  if (!greeted)
    return; /* a visitor that never was the control connection; the grace period runs on */
  greeted = false;
  drop_replies();
  drop_events();
  lanes_close();
  sandbox_owner_gone();
  snapshot_drop_all();
  root_drop_all();
  deadline_set(&grace, loop_now() + grace_ns);
}

/* A visitor is told why and shown out: it may speak another version. */
static void
refuse_frame(uint64_t request, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  if (greeted) {
    control_refuse(request, err);
    return;
  }
  put_err(&writer, err);
  send_now(RAMET_ERROR, request, &writer);
  connection_gone();
}

static void
connection_ready(struct watch *watch, uint32_t events)
{
  struct frame frame;
  struct err err = {0};

  (void)watch;
  if (events & EPOLLOUT)
    flush();
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
    return;
  switch (frame_receive(connection, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return;
  case FRAME_CLOSED:
    connection_gone();
    return;
  case FRAME_MALFORMED:
    refuse_frame(frame.request, &err);
    return;
  case FRAME_GOT:
    break;
  }
  if (!greeted && frame.kind != RAMET_HELLO) {
    frame_release(&frame);
    connection_gone();
    return;
  }
  bool first = !greeted;
  control_tell_events();
  handle(&frame);
  frame_release(&frame);
  if (first && greeted) {
    deadline_clear(&grace);
    flush();
  }
}

static int
peer_of(int fd, uid_t *uid)
{
  struct ucred credentials;
  socklen_t length = sizeof credentials;

  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0)
    return -1;
  *uid = credentials.uid;
  return 0;
}

static bool
is_hung_up(int fd)
{
  struct pollfd poll_fd = {fd, 0, 0};

  return poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP;
}

static void
listener_ready(struct watch *watch, uint32_t events)
{
  uid_t uid;

  (void)watch;
  (void)events;
  cleanup_fd int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return;
  if (peer_of(fd, &uid) < 0 || uid != peer_uid) {
    log_text("peer_refused", "another user connected to core.sock");
    return;
  }
  /* Of both that are ready the listener may come first. What a dead daemon has asked for still counts. */
  while (connection >= 0 && greeted && is_hung_up(connection))
    connection_ready(&connection_watch, EPOLLIN);
  if (connection >= 0 && greeted) {
    log_text("peer_refused", "a daemon is connected already");
    return;
  }
  /* A visitor that has said nothing gives way: it may be a daemon that was stopped at its start. */
  if (connection >= 0)
    connection_gone();
  if (loop_add(fd, &connection_watch, EPOLLIN) < 0)
    return;
  connection = steal_fd(&fd);
}

uint32_t
control_pool_size(void)
{
  return pool_size;
}

/* Another core may listen at core.sock by now: that of a later program. Then the daemon has given this one's socket
 * the core's own name. */
void
control_close(void)
{
  char name[32];
  struct stat now;

  flush();
  if (runtime_dir < 0)
    return;
  if (fstatat(runtime_dir, "core.sock", &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_ino == socket_inode)
    unlinkat(runtime_dir, "core.sock", 0);
  snprintf(name, sizeof name, "core-%016" PRIx64 ".sock", core_id);
  unlinkat(runtime_dir, name, 0);
}

int
control_setup(const struct control_options *options, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct stat here;

  connection = options->connection;
  listener = options->listener;
  runtime_dir = options->runtime_dir;
  if (runtime_dir >= 0 && fstatat(runtime_dir, "core.sock", &here, AT_SYMLINK_NOFOLLOW) == 0)
    socket_inode = here.st_ino;
  snprintf(program, sizeof program, "%s%s%s", RAMET_VERSION, options->build ? "+" : "",
           options->build ? options->build : "");
  grace_ns = options->grace_ns;
  pool_size = options->pool_size;
  grace.fire = grace_over;
  later.fire = events_due;
  connection_watch.ready = connection_ready;
  listener_watch.ready = listener_ready;
  if (getrandom(&core_id, sizeof core_id, 0) != sizeof core_id)
    return err_code(err, "internal", "getrandom: %s", strerror(errno));
  /* The maker of the first connection is whom later ones must equal. Host ids without a place in core's user
   * namespace all look alike here (65534): there the modes of core.sock and its directory are the check. */
  if (peer_of(connection, &peer_uid) < 0 || loop_add(connection, &connection_watch, EPOLLIN) < 0)
    return err_code(err, "internal", "the control connection: %s", strerror(errno));
  if (listener >= 0 && loop_add(listener, &listener_watch, EPOLLIN) < 0)
    return err_code(err, "internal", "core.sock: %s", strerror(errno));
  greeted = true;
  describe_core(&writer);
  control_reply(RAMET_READY, 0, &writer);
  return 0;
}
