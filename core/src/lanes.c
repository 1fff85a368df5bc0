/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lanes.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "asked.h"
#include "files.h"
#include "loop.h"
#include "offers.h"
#include "ports.h"
#include "sandbox.h"
#include "snapshot.h"
#include "started.h"

struct lane {
  struct watch watch; /* first */
  struct lane *next, *previous;
  int fd;
  bool is_session; /* of one sandbox, or one snapshot */
};

static struct lane *all;
static int count;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

static void lane_ready(struct watch *watch, uint32_t events);
static void session_ready(struct watch *watch, uint32_t events);

static void
drop(struct lane *lane)
{
  loop_remove(lane->fd, &lane->watch);
  close_fd(&lane->fd);
  if (lane->next)
    lane->next->previous = lane->previous;
  if (lane->previous)
    lane->previous->next = lane->next;
  else
    all = lane->next;
  count -= !lane->is_session;
  free(lane);
}

static void
lane_close(struct lane *lane)
{
  sandbox_lane_gone(lane);
  snapshot_session_gone(lane);
  started_forget(lane);
  asked_forget(lane);
  drop(lane);
}

static bool
is_seqpacket(int fd)
{
  int type = 0;
  socklen_t length = sizeof type;

  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

/* Of the frame's last descriptor, which is taken. */
static struct lane *
lane_make(struct frame *frame, bool is_session, struct err *err)
{
  const char *name = is_session ? "session" : "lane";

  if (frame->fd_count < 1) {
    err_field(err, name, "comes without a descriptor");
    return NULL;
  }
  cleanup_fd int fd = frame_steal_fd(frame, (uint32_t)frame->fd_count - 1);
  frame->fd_count--;
  if (!is_seqpacket(fd) || fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
    err_field(err, name, "the descriptor is no SEQPACKET socket");
    return NULL;
  }
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) {
    err_code(err, "internal", "no memory for a %s", name);
    return NULL;
  }
  lane->watch.ready = is_session ? session_ready : lane_ready;
  lane->is_session = is_session;
  if (loop_add(fd, &lane->watch, EPOLLIN) < 0) {
    free(lane);
    err_code(err, "internal", "a %s cannot be watched: %s", name, strerror(errno));
    return NULL;
  }
  lane->fd = steal_fd(&fd);
  lane->next = all;
  if (all)
    all->previous = lane;
  all = lane;
  count += !is_session;
  return lane;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

void
lane_reply_fds(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer, const int *fds,
               int fd_count)
{
  /* Who asks and does not read is cut off; the loop hears of the end, and closes. A lane in use may not be freed
   * here. */
  if (frame_send(lane->fd, kind, request, writer, fds, fd_count) < 0)
    shutdown(lane->fd, SHUT_RDWR);
}

void
lane_reply(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer)
{
  lane_reply_fds(lane, kind, request, writer, NULL, 0);
}

void
lane_refuse(struct lane *lane, uint64_t request, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  lane_reply(lane, RAMET_ERROR, request, &writer);
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

/* The answer comes over the session, from its first word on: who gives up waiting closes that, and nothing is left. */
static int
start_session(struct frame *frame, struct err *err)
{
  struct lane *session = lane_make(frame, true, err);
  struct err refusal = {0};

  if (!session)
    return -1;
  int result = frame->kind == RAMET_CLAIM      ? offer_claim(frame, session, &refusal)
               : frame->kind == RAMET_SNAPSHOT ? snapshot_take(frame, session, &refusal)
                                               : sandbox_start(frame, session, &refusal);
  if (result < 0) {
    lane_refuse(session, frame->request, &refusal);
    lane_close(session);
  }
  return 0;
}

static int
do_files(struct frame *frame, struct lane *lane, struct err *err)
{
  struct writer nothing = {0};

  if (files_open(frame, err) < 0)
    return -1;
  lane_reply(lane, RAMET_OK, frame->request, &nothing);
  return 0;
}

static int
handle(struct frame *frame, struct lane *lane, struct err *err)
{
  if (started_takes(frame->kind))
    return started_request(frame, lane, err);
  switch (frame->kind) {
  case RAMET_CONNECT:
    return ports_request(frame, lane, err);
  case RAMET_SIGNAL:
    return sandbox_signal(frame, lane, 0, err);
  case RAMET_FILES:
    return do_files(frame, lane, err);
  case RAMET_RUN:
    return sandbox_start(frame, lane, err);
  case RAMET_CREATE:
  case RAMET_CLAIM:
  case RAMET_SNAPSHOT:
    return start_session(frame, err);
  default:
    return err_field(err, "kind", "a lane carries no request %u", frame->kind);
  }
}

static int
handle_session(struct frame *frame, struct lane *session, struct err *err)
{
  switch (frame->kind) {
  case RAMET_KILL:
    return frame->payload.length ? err_field(err, "payload", "a session has one sandbox to end")
                                 : sandbox_kill(sandbox_of_session(session), err);
  case RAMET_SIGNAL:
    return sandbox_signal(frame, session, sandbox_of_session(session), err);
  case RAMET_HOLD:
    return offer_deposit(frame, sandbox_of_session(session), err);
  default:
    return err_field(err, "kind", "a session carries no request %u", frame->kind);
  }
}

/* False when there was none. */
static bool
lane_receive(struct lane *lane, struct frame *frame)
{
  struct err err = {0};

  switch (frame_receive(lane->fd, receive_buffer, frame, &err)) {
  case FRAME_GOT:
    return true;
  case FRAME_CLOSED:
    lane_close(lane);
    return false;
  case FRAME_MALFORMED:
    lane_refuse(lane, frame->request, &err);
    return false;
  case FRAME_NONE:
    break;
  }
  return false;
}

static void
lane_ready(struct watch *watch, uint32_t events)
{
  struct lane *lane = (struct lane *)(void *)watch;
  struct frame frame;
  struct err err = {0};

  (void)events;
  if (!lane_receive(lane, &frame))
    return;
  if (handle(&frame, lane, &err) < 0)
    lane_refuse(lane, frame.request, &err);
  frame_release(&frame);
}

static void
session_ready(struct watch *watch, uint32_t events)
{
  struct lane *session = (struct lane *)(void *)watch;
  struct frame frame;
  struct err err = {0};

  (void)events;
  if (!lane_receive(session, &frame))
    return;
  /* What cannot be answered otherwise than by an end has no answer: the end comes as an event. */
  if (handle_session(&frame, session, &err) < 0)
    lane_refuse(session, frame.request, &err);
  frame_release(&frame);
}

/* ---- beginnings and ends -------------------------------------------------------------------------------------- */

int
lane_open(struct frame *frame, struct err *err)
{
  if (frame->fd_count != 1 || frame->payload.length)
    return err_field(err, "lane", "takes one descriptor and nothing else");
  if (count >= RAMET_LANES_MAX)
    return err_code(err, "too_many_lanes", "%d lanes are open", count);
  return lane_make(frame, false, err) ? 0 : -1;
}

void
lane_over(struct lane *lane)
{
  if (lane->is_session)
    drop(lane);
}

int
lane_count(void)
{
  return count;
}

void
lanes_close_idle(void)
{
  struct lane *next;

  for (struct lane *lane = all; lane; lane = next) {
    next = lane->next;
    if (!lane->is_session && !sandbox_lane_busy(lane) && !started_lane_busy(lane) && !asked_lane_busy(lane))
      lane_close(lane);
  }
}

void
lanes_close(void)
{
  while (all)
    lane_close(all);
}
