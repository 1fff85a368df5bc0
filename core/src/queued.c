/* SPDX-License-Identifier: Apache-2.0
 * With a peek offset (unix(7), SO_PEEK_OFF) each look begins where the one before ended. It is the socket's, so a guest that
 * looks at its messages itself in that moment sees them twice or not: this is done only while more is in flight than all
 * sockets show. */
#define _GNU_SOURCE
#include "queued.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "fdinfo.h"
#include "syscalls.h"

/* SCM_MAX_FD of the kernel. */
#define DESCRIPTORS_MAX 253
#define DEPTH_MAX 64
#define MESSAGES_MAX 65536
/* A message without a byte looks as the end does. */
#define EMPTY_MAX 1024
/* A thread with a table of its own, from Linux 6.9 on. */
#define OF_THREAD O_EXCL

struct search {
  struct inode_map *sockets;
  uint64_t found;
  unsigned messages;
};

static void look_into(struct search *search, int socket, int depth);

static void
weigh(struct search *search, int fd, int depth)
{
  struct stat st;

  if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode) || inode_map_get(search->sockets, st.st_ino) ||
      inode_map_put(search->sockets, st.st_ino, 1) < 0)
    return;
  uint64_t in_flight = fdinfo_in_flight(getpid(), fd);
  search->found += in_flight;
  if (in_flight && depth < DEPTH_MAX)
    look_into(search, fd, depth + 1);
}

/* Copies of the descriptors come, and are closed again. */
static void
weigh_message(struct search *search, struct msghdr *message, int depth)
{
  for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
      continue;
    size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
      weigh(search, fd, depth);
      close(fd);
    }
  }
}

static void
look_into(struct search *search, int socket, int depth)
{
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX) + 128];
  const int start = 0;
  int own = -1;
  socklen_t length = sizeof own;

  if (getsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &own, &length) < 0 ||
      setsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) < 0)
    return;
  for (int empty = 0; empty < EMPTY_MAX && search->messages < MESSAGES_MAX; search->messages++) {
    static char bytes[65536];
    struct iovec iov = {bytes, sizeof bytes};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
      break;
    empty += got == 0 && message.msg_controllen == 0;
    weigh_message(search, &message, depth);
  }
  if (setsockopt(socket, SOL_SOCKET, SO_PEEK_OFF, &own, sizeof own) < 0)
    search->messages = MESSAGES_MAX;
}

static int
copy_of(int tid, int fd)
{
  cleanup_fd int thread = (int)syscall(SYS_pidfd_open, tid, OF_THREAD);

  if (thread < 0)
    thread = (int)syscall(SYS_pidfd_open, tid, 0);
  return thread < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, thread, fd, 0);
}

uint64_t
queued_below(int tid, int fd, struct inode_map *sockets)
{
  struct search search = {.sockets = sockets};
  cleanup_fd int socket = copy_of(tid, fd);

  if (socket >= 0)
    look_into(&search, socket, 0);
  return search.found;
}
