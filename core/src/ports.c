/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ports.h"

#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "commands.h"
#include "control.h"
#include "lanes.h"
#include "sandbox.h"
#include "swap.h"

/* A loopback connection stands at once, unless the server's queue is full: init waits no longer for anybody. */
#define PATIENCE_MS 100
#define WAITING_MAX 1024

struct waiting {
  struct waiting *next;
  uint64_t sandbox, own_request, request;
  struct lane *lane; /* NULL: the daemon */
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

static int
decode(const struct frame *frame, uint64_t *sandbox, uint32_t *port, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more, bad = 0;

  *sandbox = 0;
  *port = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0)
    bad |= tag == RAMET_TAG_SANDBOX ? span_u64(value, sandbox) : tag == RAMET_TAG_PORT ? span_u32(value, port) : -1;
  if (more < 0)
    return -1;
  if (bad || !*sandbox || frame->fd_count)
    return err_field(err, "payload", "a connection takes a sandbox and a port");
  return *port >= 1 && *port <= 65535 ? 0 : err_field(err, "port", "%u is no port", *port);
}

int
ports_request(struct frame *frame, struct lane *lane, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  uint64_t id;
  uint32_t port;

  if (decode(frame, &id, &port, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(id);
  if (!sandbox || sandbox->state != SANDBOX_STANDING)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands");
  struct waiting *one = count < WAITING_MAX ? malloc(sizeof *one) : NULL;
  if (!one)
    return err_code(err, "busy", "%d connections are being made", count);
  *one = (struct waiting){all, id, ++last_request, frame->request, lane, false};
  put_u32(&writer, RAMET_TAG_PORT, port);
  if (frame_send(sandbox->channel, RAMET_INIT_CONNECT, one->own_request, &writer, NULL, 0) < 0) {
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

bool
ports_connected(uint64_t sandbox, struct frame *frame)
{
  struct writer nothing = {0};
  struct waiting **at = find(sandbox, frame->request);

  if (!at || frame->fd_count != 1 || frame->payload.length || !is_connection(frame->fds[0]))
    return false;
  const struct waiting *one = *at;
  if (!one->forgotten && one->lane)
    lane_reply_fds(one->lane, RAMET_OK, one->request, &nothing, frame->fds, 1);
  else if (!one->forgotten)
    control_reply_fds(one->request, &nothing, frame->fds, 1);
  drop(at);
  return true;
}

bool
ports_failed(uint64_t sandbox, uint64_t request, const struct err *err)
{
  struct waiting **at = find(sandbox, request);

  if (!at)
    return false;
  refuse(*at, err);
  drop(at);
  return true;
}

void
ports_swap(const uint64_t pair[2])
{
  for (struct waiting *one = all; one; one = one->next)
    swap_number(&one->sandbox, pair);
}

void
ports_sandbox_gone(uint64_t sandbox)
{
  struct err err;

  err_code(&err, "sandbox_ended", "the sandbox ended before the connection was made");
  for (struct waiting **at = &all; *at;)
    if ((*at)->sandbox == sandbox) {
      refuse(*at, &err);
      drop(at);
    } else {
      at = &(*at)->next;
    }
}

void
ports_forget(const struct lane *lane)
{
  for (struct waiting *one = all; one; one = one->next)
    if (one->lane == lane)
      one->forgotten = true;
}

bool
ports_lane_busy(const struct lane *lane)
{
  for (const struct waiting *one = all; one; one = one->next)
    if (one->lane == lane && !one->forgotten)
      return true;
  return false;
}

/* ---- in init -------------------------------------------------------------------------------------------------- */

static int
connect_to(const void *address, socklen_t length, int domain)
{
  cleanup_fd int fd = socket(domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct pollfd wait = {fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof error;

  if (fd < 0)
    return -1;
  if (connect(fd, address, length) == 0)
    return steal_fd(&fd);
  if (errno != EINPROGRESS)
    return -1;
  if (poll(&wait, 1, PATIENCE_MS) <= 0) {
    errno = ETIMEDOUT;
    return -1;
  }
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 || error) {
    errno = error ? error : errno;
    return -1;
  }
  return steal_fd(&fd);
}

int
ports_connect(uint32_t port, struct err *err)
{
  struct sockaddr_in four = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  struct sockaddr_in6 six = {
      .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = connect_to(&four, sizeof four, AF_INET);

  if (fd < 0 && errno == ECONNREFUSED) {
    fd = connect_to(&six, sizeof six, AF_INET6);
    if (fd < 0)
      errno = ECONNREFUSED;
  }
  if (fd >= 0)
    return fd;
  int number = errno;
  err_code(err, number == ECONNREFUSED ? "connection_refused" : "not_connected", "port %u: %s", port,
           strerror(number));
  err->number = number;
  return -1;
}
