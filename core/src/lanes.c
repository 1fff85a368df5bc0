/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lanes.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "files.h"
#include "loop.h"
#include "ports.h"
#include "sandbox.h"
#include "started.h"

struct lane {
  struct watch watch; /* first */
  struct lane *next, *previous;
  int fd;
};

static struct lane *all;
static int count;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

static void
lane_close(struct lane *lane)
{
  loop_remove(lane->fd, &lane->watch);
  close_fd(&lane->fd);
  sandbox_lane_gone(lane);
  started_forget(lane);
  ports_forget(lane);
  if (lane->next)
    lane->next->previous = lane->previous;
  if (lane->previous)
    lane->previous->next = lane->next;
  else
    all = lane->next;
  count--;
  free(lane);
}

void
lane_reply(struct lane *lane, uint16_t kind, uint64_t request, struct writer *writer, const int *fds, int fd_count)
{
  /* Who asks and does not read is cut off; the loop hears of the end, and closes. A lane in use may not be freed
   * here. */
  if (frame_send(lane->fd, kind, request, writer, fds, fd_count) < 0)
    shutdown(lane->fd, SHUT_RDWR);
}

void
lane_refuse(struct lane *lane, uint64_t request, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  lane_reply(lane, RAMET_ERROR, request, &writer, NULL, 0);
}

static int
carry(struct lane *lane, struct frame *frame, struct err *err)
{
  struct writer nothing = {0};

  if (frame->kind == RAMET_RUN)
    return sandbox_start(frame, lane, err);
  if (started_takes(frame->kind))
    return started_request(frame, lane, err);
  if (frame->kind == RAMET_CONNECT)
    return ports_request(frame, lane, err);
  if (frame->kind != RAMET_SIGNAL && frame->kind != RAMET_FILES)
    return err_field(err, "kind", "a lane carries no request %u", frame->kind);
  if ((frame->kind == RAMET_SIGNAL ? sandbox_signal(frame, err) : files_open(frame, err)) < 0)
    return -1;
  lane_reply(lane, RAMET_OK, frame->request, &nothing, NULL, 0);
  return 0;
}

static void
lane_ready(struct watch *watch, uint32_t events)
{
  struct lane *lane = (struct lane *)(void *)watch;
  struct frame frame;
  struct err err = {0};

  (void)events;
  switch (frame_receive(lane->fd, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return;
  case FRAME_CLOSED:
    lane_close(lane);
    return;
  case FRAME_MALFORMED:
    lane_refuse(lane, frame.request, &err);
    return;
  case FRAME_GOT:
    break;
  }
  if (carry(lane, &frame, &err) < 0)
    lane_refuse(lane, frame.request, &err);
  frame_release(&frame);
}

static bool
is_seqpacket(int fd)
{
  int type = 0;
  socklen_t length = sizeof type;

  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

int
lane_open(struct frame *frame, struct err *err)
{
  if (frame->fd_count != 1 || frame->payload.length)
    return err_field(err, "lane", "takes one descriptor and nothing else");
  if (count >= RAMET_LANES_MAX)
    return err_code(err, "too_many_lanes", "%d lanes are open", count);
  if (!is_seqpacket(frame->fds[0]) || fcntl(frame->fds[0], F_SETFL, O_NONBLOCK) < 0)
    return err_field(err, "lane", "the descriptor is no SEQPACKET socket");
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane)
    return err_code(err, "internal", "no memory for a lane");
  lane->watch.ready = lane_ready;
  lane->fd = frame->fds[0];
  if (loop_add(lane->fd, &lane->watch, EPOLLIN) < 0) {
    free(lane);
    return err_code(err, "internal", "a lane cannot be watched: %s", strerror(errno));
  }
  lane->fd = frame_steal_fd(frame, 0);
  lane->next = all;
  if (all)
    all->previous = lane;
  all = lane;
  count++;
  return 0;
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
    if (!sandbox_lane_busy(lane) && !started_lane_busy(lane) && !ports_lane_busy(lane))
      lane_close(lane);
  }
}

void
lanes_close(void)
{
  while (all)
    lane_close(all);
}
