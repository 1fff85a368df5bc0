/* SPDX-License-Identifier: Apache-2.0
 * Sockets: of the internet what they are bound to, of unix pairs also what is unread. */
#define _GNU_SOURCE
#include "capture_fds.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "socket_options.h"

#define MESSAGE_MAX (4u << 20)
#define CONTROL_BYTES 4096 /* SCM_MAX_FD descriptors take 1 KiB */
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

static int
int_option(int socket, int name, int *out)
{
  socklen_t length = sizeof *out;

  return getsockopt(socket, SOL_SOCKET, name, out, &length);
}

static int
failed(const struct writing *w, struct err *err)
{
  return err_step(err, RAMET_STEP_DESCRIPTORS, "socket of fd %d: %s", w->fd->number, strerror(errno));
}

/* A connection that was reset, which nobody has been told yet. SO_ERROR would tell, and take the error away. */
static bool
has_error(int socket)
{
  struct pollfd polled = {socket, 0, 0};

  return poll(&polled, 1, 0) == 1 && polled.revents & POLLERR;
}

/* One that a socket of this kind has not cannot be asked for. */
static uint64_t
inet_options(int socket, bool listening)
{
  uint64_t options = IMAGE_OPTIONS_KNOWN;
  struct tcp_info info;
  socklen_t length = sizeof info;

  for (size_t i = 0; i < SOCKET_OPTION_COUNT; i++) {
    int value = 0;
    socklen_t size = sizeof value;
    if (getsockopt(socket, socket_options[i].level, socket_options[i].name, &value, &size) == 0 && value)
      options |= socket_options[i].flag;
  }
  /* Of a listening one this is its backlog. */
  if (listening && getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
    options |= ((uint64_t)info.tcpi_sacked + 1) << 32;
  return options;
}

static int
write_inet(struct writing *w, int socket, int type, struct err *err)
{
  struct sockaddr_storage address = {0};
  socklen_t length = sizeof address;
  int listening = 0;

  if (int_option(socket, SO_ACCEPTCONN, &listening) < 0 ||
      getsockname(socket, (struct sockaddr *)&address, &length) < 0)
    return failed(w, err);
  w->out.value[0] = inet_options(socket, listening);
  w->out.value[1] = address.ss_family;
  w->out.value[2] = (uint64_t)type;
  memcpy(w->path, &address, length);
  w->path_length = length;
  if (listening) {
    w->out.kind = IMAGE_TCP_LISTEN;
    return 0;
  }
  w->out.kind = type == SOCK_STREAM ? IMAGE_TCP_RESET : IMAGE_UDP;
  struct sockaddr_storage peer;
  socklen_t peer_length = sizeof peer;
  w->out.value[3] = getpeername(socket, (struct sockaddr *)&peer, &peer_length) == 0 || has_error(socket);
  return 0;
}

/* ---- unix ----------------------------------------------------------------------------------------------------- */

struct unix_facts {
  uint32_t peer; /* inode of the other end; 0: it is closed */
  uint8_t shut;  /* 1: for reading, 2: for writing */
};

static int
open_diag(const struct writing *w)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/ns/net", w->capture->pid);
  cleanup_fd int theirs = open(path, O_RDONLY | O_CLOEXEC), ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (theirs < 0 || ours < 0 || setns(theirs, CLONE_NEWNET) < 0)
    return -1;
  int diag = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  int saved = errno;
  if (setns(ours, CLONE_NEWNET) < 0)
    close_fd(&diag);
  errno = saved;
  return diag;
}

static void
read_attributes(const struct nlmsghdr *header, struct unix_facts *facts)
{
  size_t at = NLMSG_LENGTH(sizeof(struct unix_diag_msg));

  while (at + sizeof(struct nlattr) <= header->nlmsg_len) {
    const struct nlattr *attribute = (const void *)((const uint8_t *)header + at);
    const void *value = attribute + 1;
    if (attribute->nla_len < sizeof *attribute || attribute->nla_len > header->nlmsg_len - at)
      return;
    if (attribute->nla_type == UNIX_DIAG_PEER && attribute->nla_len >= NLA_HDRLEN + sizeof facts->peer)
      memcpy(&facts->peer, value, sizeof facts->peer);
    if (attribute->nla_type == UNIX_DIAG_SHUTDOWN && attribute->nla_len > NLA_HDRLEN)
      facts->shut = *(const uint8_t *)value;
    at += NLA_ALIGN(attribute->nla_len);
  }
}

/* false: no such socket there, or a kernel that does not tell. */
static bool
ask_facts(const struct writing *w, struct unix_facts *facts)
{
  struct {
    struct nlmsghdr header;
    struct unix_diag_req request;
  } question = {
      .header = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
      .request = {.sdiag_family = AF_UNIX,
                  .udiag_states = (uint32_t)-1,
                  .udiag_ino = (uint32_t)w->fd->st.st_ino,
                  .udiag_show = UDIAG_SHOW_PEER,
                  .udiag_cookie = {(uint32_t)-1, (uint32_t)-1}}};
  uint8_t answer[1024] __attribute__((aligned(8)));
  const struct nlmsghdr *header = (const void *)answer;

  *facts = (struct unix_facts){0};
  if (w->table->diag < 0)
    w->table->diag = open_diag(w);
  int diag = w->table->diag;
  if (diag < 0 || send(diag, &question, sizeof question, 0) < 0)
    return false;
  ssize_t got = recv(diag, answer, sizeof answer, 0);
  if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct unix_diag_msg)) || header->nlmsg_len > (size_t)got ||
      header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return false;
  read_attributes(header, facts);
  return true;
}

/* Descriptors that came along are copies; any forbids a fork. */
static bool
drop_descriptors(struct msghdr *message)
{
  bool any = false;

  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type == SCM_CREDENTIALS)
      continue;
    for (size_t at = 0; c->cmsg_type == SCM_RIGHTS && at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0);
         at += sizeof(int)) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      close(fd);
    }
    any = true;
  }
  return any;
}

struct unread {
  struct writing *w;
  int socket, file;
  uint64_t length;
  uint8_t *buffer;
  bool ends; /* nothing is the end, not a message */
  struct err *err;
};

/* The next message behind the peek offset: 1, or 0 at the end. */
static int
keep_message(struct unread *u)
{
  uint8_t control[CONTROL_BYTES] __attribute__((aligned(8)));
  struct iovec iov = {u->buffer, MESSAGE_MAX};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t got = recvmsg(u->socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

  if (got < 0)
    return errno == EAGAIN ? 0 : failed(u->w, u->err);
  if (drop_descriptors(&message))
    return fd_refuse(u->w, u->err, "a unix socket with descriptors on their way");
  if (message.msg_flags & MSG_TRUNC)
    return fd_refuse(u->w, u->err, "a unix socket with a message that is too long");
  if (got == 0)
    return u->ends ? 0 : fd_refuse(u->w, u->err, "a unix socket with an empty message");
  uint32_t length = (uint32_t)got;
  if (write(u->file, &length, sizeof length) != sizeof length || write(u->file, u->buffer, length) != got)
    return failed(u->w, u->err);
  u->length += sizeof length + length;
  return 1;
}

/* With a peek offset each look begins where the one before ended. A guest's own stands for what its next look shows. */
static int
keep_messages(struct unread *u)
{
  const int none = -1, start = 0;
  int result;

  if (!u->buffer || u->file < 0 || setsockopt(u->socket, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) < 0)
    return failed(u->w, u->err);
  while ((result = keep_message(u)) > 0)
    continue;
  if (setsockopt(u->socket, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none) < 0 && result == 0)
    result = failed(u->w, u->err);
  return result;
}

/* `readable`: there is something to read, which may be the end. */
static int
keep_unread(struct writing *w, int socket, bool readable, struct err *err)
{
  bool stream = w->out.value[2] == SOCK_STREAM, shut = w->out.value[1] & 1;
  int own;

  if (int_option(socket, SO_PEEK_OFF, &own) < 0)
    return failed(w, err);
  if (own >= 0)
    return fd_refuse(w, err, "a unix socket with a place from which it is looked at");
  if (!readable)
    return 0;
  cleanup_free uint8_t *buffer = malloc(MESSAGE_MAX);
  cleanup_fd int file = memfd_create("ramet-messages", MFD_CLOEXEC);
  struct unread u = {.w = w, .socket = socket, .file = file, .buffer = buffer, .ends = stream || shut, .err = err};
  if (keep_messages(&u) < 0)
    return -1;
  /* There was something to read, and it does not show. */
  if (u.length == 0 && (stream || !shut))
    return fd_refuse(w, err, "a unix socket with data that cannot be looked at");
  return fd_keep_content(w, file, u.length, err);
}

static const struct found_fd *
find_peer(const struct writing *w, uint32_t inode)
{
  for (int i = 0; i < w->table->count; i++) {
    const struct found_fd *other = &w->table->items[i];
    if (S_ISSOCK(other->st.st_mode) && (uint32_t)other->st.st_ino == inode && other->description == (uint32_t)i &&
        !other->dropped)
      return other;
  }
  return NULL;
}

static int
write_pair(struct writing *w, int socket, int type, struct err *err)
{
  struct pollfd polled = {socket, POLLIN | POLLPRI, 0};
  struct unix_facts facts;
  int room = 0, credentials = 0, pidfds = 0;

  if (!ask_facts(w, &facts))
    return fd_refuse(w, err, "a connected unix socket");
  const struct found_fd *other = facts.peer ? find_peer(w, facts.peer) : NULL;
  if (facts.peer && !other)
    return fd_refuse(w, err, "a unix socket that is connected to another process");
  if (has_error(socket))
    return fd_refuse(w, err, "a unix socket whose connection was reset");
  if (int_option(socket, SO_SNDBUF, &room) < 0 || int_option(socket, SO_PASSCRED, &credentials) < 0)
    return failed(w, err);
  if (int_option(socket, SO_PASSPIDFD, &pidfds) == 0 && pidfds)
    return fd_refuse(w, err, "a unix socket that asks for process descriptors");
  /* Of messages FIONREAD tells the length of the first, which may be none. */
  if (poll(&polled, 1, 0) < 0)
    return failed(w, err);
  if (polled.revents & POLLPRI)
    return fd_refuse(w, err, "a unix socket with a byte out of band");
  bool readable = polled.revents & POLLIN;
  int waiting = 0;
  if (type == SOCK_STREAM && ioctl(socket, FIONREAD, &waiting) == 0)
    readable = waiting > 0;
  w->out.kind = IMAGE_SOCKETPAIR;
  w->out.peer = other ? other->description + 1 : 0;
  w->out.value[0] = (uint64_t)room / 2; /* the kernel tells the double of what it was given */
  w->out.value[1] = facts.shut;
  w->out.value[2] = (uint64_t)type;
  w->out.value[3] = credentials ? IMAGE_PASSES_CREDENTIALS : 0;
  if (keep_unread(w, socket, readable, err) < 0)
    return -1;
  if (credentials && w->out.content_length)
    return fd_refuse(w, err, "a unix socket with unread data that tells who sent it");
  return 0;
}

static int
write_unix(struct writing *w, int socket, int type, struct err *err)
{
  struct sockaddr_un peer;
  socklen_t length = sizeof peer;
  int unread = 0;

  if (getsockname(socket, (struct sockaddr *)&peer, &length) == 0 && length > sizeof(sa_family_t))
    return fd_refuse(w, err, "a unix socket with a name");
  length = sizeof peer;
  if (getpeername(socket, (struct sockaddr *)&peer, &length) == 0)
    return write_pair(w, socket, type, err);
  if (ioctl(socket, FIONREAD, &unread) == 0 && unread)
    return fd_refuse(w, err, "a unix socket with unread data");
  w->out.kind = IMAGE_UNIX_UNBOUND;
  w->out.value[2] = (uint64_t)type;
  return 0;
}

/* ---- all ------------------------------------------------------------------------------------------------------ */

int
fd_write_socket(struct writing *w, struct err *err)
{
  cleanup_fd int socket = fd_take_copy(w);
  int domain, type;

  if (socket < 0 || int_option(socket, SO_DOMAIN, &domain) < 0 || int_option(socket, SO_TYPE, &type) < 0)
    return failed(w, err);
  switch (domain) {
  case AF_INET:
  case AF_INET6:
    return write_inet(w, socket, type, err);
  case AF_UNIX:
    return write_unix(w, socket, type, err);
  case AF_NETLINK:
    return fd_refuse(w, err, "a netlink socket");
  default:
    return fd_refuse(w, err, "a socket of a kind that is not carried");
  }
}
