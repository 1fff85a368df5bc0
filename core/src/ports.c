/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ports.h"

#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "asked.h"
#include "sandbox.h"

/* A loopback connection stands at once, unless the server's queue is full: init waits no longer for anybody. */
#define PATIENCE_MS 100

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
  put_u32(&writer, RAMET_TAG_PORT, port);
  return asked_send(sandbox, RAMET_INIT_CONNECT, &writer, frame, lane, err);
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
