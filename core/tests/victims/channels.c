/* SPDX-License-Identifier: Apache-2.0
 * What a process says to itself: pipes with many ends, named pipes, socket pairs. */
#include "victim.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void
check_read(int fd, const char *expected)
{
  char text[64] = "";
  ssize_t length = read(fd, text, sizeof text - 1);

  CHECK(length == (ssize_t)strlen(expected) && strcmp(text, expected) == 0, "read %zd bytes, %s, not %s", length,
        text, expected);
}

static void
check_empty(int fd)
{
  struct pollfd polled = {fd, POLLIN, 0};

  CHECK(poll(&polled, 1, 0) == 0, "there is more: %#x", (unsigned)polled.revents);
}

static void
check_end(int fd)
{
  char byte;

  CHECK(read(fd, &byte, 1) == 0, "the end: %s", strerror(errno));
}

static int
reopen(int fd, int flags)
{
  char path[64];

  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, flags);
  NEED(again >= 0);
  return again;
}

/* ---- pipes ---------------------------------------------------------------------------------------------------- */

VICTIM(many_ends, "a pipe with two readers and two writers that are opened apart, and one that is both")
{
  int pair[2];

  NEED(pipe(pair) == 0);
  int reader = reopen(pair[0], O_RDONLY | O_NONBLOCK), writer = reopen(pair[1], O_WRONLY),
      both = reopen(pair[0], O_RDWR);
  NEED(write(writer, "unread", 6) == 6);
  ready();
  await_go();
  CHECK(fcntl(reader, F_GETFL) & O_NONBLOCK && !(fcntl(pair[0], F_GETFL) & O_NONBLOCK), "flags are shared");
  check_read(reader, "unread");
  close(pair[1]);
  close(both);
  NEED(write(writer, "x", 1) == 1);
  check_read(pair[0], "x");
  close(writer);
  check_end(reader);
  check_end(pair[0]);
}

VICTIM(only_both, "a pipe that is open only for both at once")
{
  int pair[2];

  NEED(pipe(pair) == 0);
  int both = reopen(pair[0], O_RDWR);
  close(pair[0]);
  close(pair[1]);
  NEED(write(both, "unread", 6) == 6);
  ready();
  await_go();
  check_read(both, "unread");
  CHECK(write(both, "again", 5) == 5, "write: %s", strerror(errno));
  check_read(both, "again");
}

VICTIM(packets, "an empty pipe of packets")
{
  int pair[2];

  NEED(pipe2(pair, O_DIRECT) == 0);
  ready();
  await_go();
  CHECK(write(pair[1], "one", 3) == 3 && write(pair[1], "two", 3) == 3, "write: %s", strerror(errno));
  check_read(pair[0], "one");
  check_read(pair[0], "two");
}

VICTIM(fifo, "named pipes: with both ends and unread bytes, with one end, and with none")
{
  int idle;

  NEED(mkfifo("named", 0640) == 0 && mkfifo("half", 0600) == 0 && mkfifo("unused", 0600) == 0);
  int reader = open("named", O_RDONLY | O_NONBLOCK), writer = open("named", O_WRONLY);
  NEED(fcntl(reader, F_SETFL, 0) == 0 && write(writer, "unread", 6) == 6);
  NEED((idle = open("half", O_RDONLY | O_NONBLOCK)) >= 0);
  ready();
  await_go();
  check_read(reader, "unread");
  int late = open("named", O_WRONLY | O_NONBLOCK);
  CHECK(late >= 0 && write(late, "late", 4) == 4, "a writer by its name: %s", strerror(errno));
  check_read(reader, "late");
  close(late);
  close(writer);
  check_end(reader);
  check_end(idle);
  CHECK(open("unused", O_WRONLY | O_NONBLOCK) == -1 && errno == ENXIO, "somebody reads the unused one");
}

/* ---- socket pairs --------------------------------------------------------------------------------------------- */

static void
pair_of(int type, int pair[2])
{
  NEED(socketpair(AF_UNIX, type, 0, pair) == 0);
}

VICTIM(stream_pair, "a pair of streams with unread data both ways, its flags")
{
  int pair[2];

  pair_of(SOCK_STREAM, pair);
  NEED(fcntl(pair[1], F_SETFL, O_NONBLOCK) == 0);
  NEED(write(pair[0], "to", 2) == 2 && write(pair[0], "gether", 6) == 6 && write(pair[1], "back", 4) == 4);
  ready();
  await_go();
  check_read(pair[1], "together");
  check_read(pair[0], "back");
  char byte;
  CHECK(read(pair[1], &byte, 1) == -1 && errno == EAGAIN, "it would wait");
  CHECK(write(pair[0], "new", 3) == 3, "write: %s", strerror(errno));
  check_read(pair[1], "new");
  close(pair[0]);
  check_end(pair[1]);
}

static void
check_messages(int type)
{
  int pair[2];

  pair_of(type, pair);
  NEED(write(pair[0], "one", 3) == 3 && write(pair[0], "second", 6) == 6 && write(pair[1], "back", 4) == 4);
  ready();
  await_go();
  check_read(pair[1], "one");
  check_read(pair[1], "second");
  check_read(pair[0], "back");
  check_empty(pair[0]);
  check_empty(pair[1]);
  CHECK(write(pair[0], "a", 1) == 1 && write(pair[0], "b", 1) == 1, "write: %s", strerror(errno));
  check_read(pair[1], "a");
  check_read(pair[1], "b");
}

VICTIM(datagram_pair, "a pair of datagram sockets: each message is one")
{
  check_messages(SOCK_DGRAM);
}

VICTIM(packet_pair, "a pair of packet sockets: each message is one")
{
  check_messages(SOCK_SEQPACKET);
}

VICTIM(full_pair, "a pair of which one end can take no more")
{
  static char block[4096];
  uint64_t sent = 0, got = 0;
  int pair[2];

  pair_of(SOCK_STREAM | SOCK_NONBLOCK, pair);
  for (ssize_t n; (memset(block, (int)(sent / sizeof block) & 0xff, sizeof block),
                   n = write(pair[0], block, sizeof block)) > 0;)
    sent += (uint64_t)n;
  NEED(errno == EAGAIN && sent > sizeof block);
  ready();
  await_go();
  for (ssize_t n; (n = read(pair[1], block, sizeof block)) > 0; got += (uint64_t)n)
    for (ssize_t i = 0; i < n; i++)
      CHECK((uint8_t)block[i] == (((got + (uint64_t)i) / sizeof block) & 0xff), "byte %llu",
            (unsigned long long)(got + (uint64_t)i));
  CHECK(got == sent, "%llu of %llu bytes", (unsigned long long)got, (unsigned long long)sent);
}

VICTIM(closed_pair, "pairs of which one end is closed, or shut for one way")
{
  int stream[2], packets[2], shut[2];
  char byte;

  signal(SIGPIPE, SIG_IGN);
  pair_of(SOCK_STREAM, stream);
  pair_of(SOCK_SEQPACKET, packets);
  pair_of(SOCK_STREAM, shut);
  NEED(write(stream[1], "last", 4) == 4 && close(stream[1]) == 0 && close(packets[1]) == 0);
  NEED(write(shut[1], "words", 5) == 5 && shutdown(shut[1], SHUT_WR) == 0);
  ready();
  await_go();
  check_read(stream[0], "last");
  check_end(stream[0]);
  CHECK(write(stream[0], "x", 1) == -1 && errno == EPIPE, "somebody listens: %s", strerror(errno));
  check_end(packets[0]);
  check_read(shut[0], "words");
  check_end(shut[0]);
  CHECK(write(shut[1], "x", 1) == -1 && errno == EPIPE, "it is not shut: %s", strerror(errno));
  CHECK(write(shut[0], "y", 1) == 1 && read(shut[1], &byte, 1) == 1, "the other way: %s", strerror(errno));
}

VICTIM(shared_pair, "an end with two numbers, credentials that come along, a large buffer")
{
  int pair[2], on = 1, room = 65536, now;
  struct ucred *from;
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof *from)];
  } control;
  char text[8];
  struct iovec iov = {text, sizeof text};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  socklen_t length = sizeof now;

  pair_of(SOCK_STREAM, pair);
  NEED(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
  NEED(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
  int copy = dup(pair[0]);
  ready();
  await_go();
  CHECK(getsockopt(copy, SOL_SOCKET, SO_SNDBUF, &now, &length) == 0 && now == 2 * room, "its buffer: %d", now);
  close(pair[0]);
  CHECK(write(copy, "hello", 5) == 5, "write: %s", strerror(errno));
  CHECK(recvmsg(pair[1], &message, 0) == 5 && control.align.cmsg_type == SCM_CREDENTIALS, "no credentials");
  from = (struct ucred *)(void *)CMSG_DATA(&control.align);
  CHECK(from->pid == getpid() && from->uid == getuid(), "from process %d", from->pid);
}
