/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "asked.h"

#include <string.h>
#include <sys/socket.h>

#include "commands.h"
#include "control.h"
#include "lanes.h"
#include "sandbox.h"
#include "swap.h"

#define WAITING_MAX 1024

struct waiting {
  struct waiting *next;
  uint64_t sandbox, own_request, request;
  struct lane *lane; /* NULL: the daemon */
  uint16_t answer;
  bool forgotten;
};

static struct waiting *all;
static int count;
/* Apart from those of commands, which count up from COMMAND_OWN_REQUESTS. */
static uint64_t last_request = COMMAND_OWN_REQUESTS + (1ull << 62);

static void
refuse(const struct waiting *one, const struct err *err)
{
  if (one->forgotten)
    return;
  if (one->lane)
    lane_refuse(one->lane, one->request, err);
  else
    control_refuse(one->request, err);
}

int
asked_send(struct sandbox *sandbox, uint16_t kind, const struct writer *writer, const struct frame *frame,
           struct lane *lane, struct err *err)
{
  struct waiting *one = count < WAITING_MAX ? malloc(sizeof *one) : NULL;

  if (!one)
    return err_code(err, "busy", "%d requests wait for an init", count);
  uint16_t answer = kind == RAMET_INIT_CONNECT ? RAMET_INIT_CONNECTED : RAMET_INIT_SIGNALLED;
  *one = (struct waiting){all, sandbox->id, ++last_request, frame->request, lane, answer, false};
  if (frame_send(sandbox->channel, kind, one->own_request, writer, NULL, 0) < 0) {
    free(one);
    return err_code(err, "busy", "init does not take the request: %s", strerror(errno));
  }
  all = one;
  count++;
  return 0;
}

static struct waiting **
find(uint64_t sandbox, uint64_t request)
{
  for (struct waiting **at = &all; *at; at = &(*at)->next)
    if ((*at)->sandbox == sandbox && (*at)->own_request == request)
      return at;
  return NULL;
}

static void
drop(struct waiting **at)
{
  struct waiting *one = *at;

  *at = one->next;
  count--;
  free(one);
}

static bool
is_connection(int fd)
{
  int domain = 0, type = 0;
  socklen_t length = sizeof domain, other = sizeof type;

  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
         getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &other) == 0 && (domain == AF_INET || domain == AF_INET6) &&
         type == SOCK_STREAM;
}

/* Init stands between the guest and core: what it says is looked at as a stranger's. */
static bool
answers(const struct waiting *one, const struct frame *frame)
{
  if (one->answer != frame->kind || frame->payload.length)
    return false;
  return frame->kind == RAMET_INIT_CONNECTED ? frame->fd_count == 1 && is_connection(frame->fds[0])
                                             : frame->fd_count == 0;
}

bool
asked_answered(uint64_t sandbox, struct frame *frame)
{
  struct writer nothing = {0};
  struct waiting **at = find(sandbox, frame->request);

  if (!at || !answers(*at, frame))
    return false;
  const struct waiting *one = *at;
  if (!one->forgotten && one->lane)
    lane_reply_fds(one->lane, RAMET_OK, one->request, &nothing, frame->fds, frame->fd_count);
  else if (!one->forgotten)
    control_reply_fds(one->request, &nothing, frame->fds, frame->fd_count);
  drop(at);
  return true;
}

bool
asked_failed(uint64_t sandbox, uint64_t request, const struct err *err)
{
  struct waiting **at = find(sandbox, request);

  if (!at)
    return false;
  refuse(*at, err);
  drop(at);
  return true;
}

void
asked_swap(const uint64_t pair[2])
{
  for (struct waiting *one = all; one; one = one->next)
    swap_number(&one->sandbox, pair);
}

void
asked_sandbox_gone(uint64_t sandbox)
{
  struct err err;

  err_code(&err, "sandbox_ended", "the sandbox ended before its init had answered");
  for (struct waiting **at = &all; *at;)
    if ((*at)->sandbox == sandbox) {
      refuse(*at, &err);
      drop(at);
    } else {
      at = &(*at)->next;
    }
}

void
asked_forget(const struct lane *lane)
{
  for (struct waiting *one = all; one; one = one->next)
    if (one->lane == lane)
      one->forgotten = true;
}

bool
asked_lane_busy(const struct lane *lane)
{
  for (const struct waiting *one = all; one; one = one->next)
    if (one->lane == lane && !one->forgotten)
      return true;
  return false;
}
