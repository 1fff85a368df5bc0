/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "descriptors.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "../pie/args.h"
#include "socket_options.h"
#include "syscalls.h"
#include "terminals.h"

#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t) /* linux/timerfd.h, which does not go with <sys/timerfd.h> */
#endif
#define STEP RAMET_STEP_CHILD_MAKE_FDS

struct maker {
  const struct image *image;
  int pages;
  const struct command *command;
  const int *streams;
  int *made; /* by index of the description; -1: not yet */
  struct terminals terminals;
  struct err *err;
};

static int
failed(struct maker *m, const char *what)
{
  return err_step(m->err, STEP, "%s: %s", what, strerror(errno));
}

static int
index_of(const struct image *image, uint32_t id)
{
  for (uint32_t i = 0; i < image->description_count; i++)
    if (image->descriptions[i].id == id)
      return (int)i;
  return -1;
}

static int
copy_content(struct maker *m, const struct image_description *d, int to)
{
  uint8_t chunk[16384];

  for (uint64_t at = 0; at < d->content_length;) {
    uint64_t left = d->content_length - at;
    ssize_t got =
        pread(m->pages, chunk, left < sizeof chunk ? left : sizeof chunk, (off_t)(d->content_offset + at));
    if (got <= 0 || write(to, chunk, (size_t)got) != got)
      return failed(m, "write a file's content");
    at += (uint64_t)got;
  }
  return 0;
}

/* A child that nobody speaks to: its kernel finds the end of the conversation. */
static int
closed_socket(void)
{
  int ends[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
    return -1;
  close(ends[1]);
  return ends[0];
}

/* As the process had set it: what the streams are else is their giver's. A file's flags and a terminal's may be
 * another's too; of a pipe or a socket this end is the child's alone. */
static int
settle_stream(struct maker *m, const struct image_description *d, int fd)
{
  const int kept = O_NONBLOCK | O_APPEND;
  struct stat st;
  int flags = fcntl(fd, F_GETFL);

  if (flags < 0 || fstat(fd, &st) < 0)
    return failed(m, "a stream");
  int wanted = (flags & ~kept) | ((int)d->flags & kept);
  if ((S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) && wanted != flags && fcntl(fd, F_SETFL, wanted) < 0)
    return failed(m, "the flags of a stream");
  return 0;
}

static int
make_stream(struct maker *m, const struct image_description *d)
{
  uint32_t index = m->command->streams[d->value[0]];
  cleanup_fd int fd = -1;

  if (index != RAMET_FD_NONE)
    fd = fcntl(m->streams[index], F_DUPFD_CLOEXEC, STREAM_COUNT);
  else
    fd = d->value[0] == STREAM_CHANNEL ? closed_socket() : open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return failed(m, "a stream");
  return settle_stream(m, d, fd) < 0 ? -1 : steal_fd(&fd);
}

/* A path of the guest's, by a process that may open more than it: it leads to a file of the kind that was captured,
 * past no link, or nowhere. The look ahead opens nothing; nobody changes the root in between, since nobody runs. */
static int
open_named(struct maker *m, struct span path, uint64_t type, uint64_t device, int flags)
{
  char name[4096];
  struct stat st;

  memcpy(name, path.data, path.length);
  name[path.length] = 0;
  cleanup_fd int look = sys_openat2(AT_FDCWD, name, O_PATH | O_NOFOLLOW, 0, RESOLVE_AS_NAMED);
  if (look < 0 || fstat(look, &st) < 0)
    return failed(m, name);
  if ((st.st_mode & S_IFMT) != type || (type == S_IFCHR && st.st_rdev != device)) {
    errno = ESTALE;
    return failed(m, name);
  }
  /* Unlike open(2), this takes with O_PATH only what goes with it. */
  flags = flags & O_PATH ? flags & (O_PATH | O_DIRECTORY) : flags | O_NOCTTY;
  int fd = sys_openat2(AT_FDCWD, name, (uint64_t)(flags | O_NOFOLLOW), 0, RESOLVE_AS_NAMED);
  return fd < 0 ? failed(m, name) : fd;
}

static int
make_reopened(struct maker *m, const struct image_description *d, struct span path)
{
  const int once = O_CREAT | O_EXCL | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);
  cleanup_fd int fd = open_named(m, path, d->value[0], d->value[1], (int)d->flags & ~once);

  if (fd < 0)
    return -1;
  if (d->offset && lseek(fd, (off_t)d->offset, SEEK_SET) < 0)
    return failed(m, "a place in a file");
  return steal_fd(&fd);
}

static int
copy_extents(struct maker *m, uint32_t i, int to)
{
  static uint8_t chunk[65536];

  if (ftruncate(to, (off_t)m->image->descriptions[i].value[2]) < 0)
    return failed(m, "size of a file without a name");
  for (uint32_t e = m->image->first_extent[i]; e < m->image->first_extent[i + 1]; e++) {
    const struct image_extent *extent = &m->image->extents[e];
    for (uint64_t at = 0; at < extent->length;) {
      uint64_t left = extent->length - at;
      ssize_t got =
          pread(m->pages, chunk, left < sizeof chunk ? left : sizeof chunk, (off_t)(extent->page_offset + at));
      if (got <= 0 || pwrite(to, chunk, (size_t)got, (off_t)(extent->offset + at)) != got)
        return failed(m, "write a file's content");
      at += (uint64_t)got;
    }
  }
  return 0;
}

/* "/memfd:NAME (deleted)"; shared memory had none. */
static int
make_memory_file(struct span link)
{
  static const char front[] = "/memfd:", back[] = " (deleted)";
  char name[250] = "";
  size_t around = sizeof front - 1 + sizeof back - 1;

  if (link.length > around && link.length - around < sizeof name) {
    memcpy(name, link.data + sizeof front - 1, link.length - around);
    name[link.length - around] = 0;
  }
  return memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* In the writable layer. /tmp is the guest's: where it is no directory of that, or another mount, the root is one. */
static int
make_file(void)
{
  int fd = sys_openat2(AT_FDCWD, "/tmp", O_TMPFILE | O_RDWR, 0600, RESOLVE_IN_OWN_LAYER);

  return fd >= 0 ? fd : open("/", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

static int
make_unlinked(struct maker *m, uint32_t i)
{
  const struct image_description *d = &m->image->descriptions[i];
  char path[32];
  cleanup_fd int fd = d->value[0] ? make_memory_file(m->image->contents[i]) : make_file();

  if (fd < 0 || (d->value[3] && fchmod(fd, (mode_t)d->value[3]) < 0))
    return failed(m, "a file without a name");
  if (copy_extents(m, i, fd) < 0)
    return -1;
  if (d->value[1] && fcntl(fd, F_ADD_SEALS, (int)d->value[1]) < 0)
    return failed(m, "seals of a memory file");
  if ((d->flags & (O_ACCMODE | O_APPEND)) == O_RDWR && d->offset == 0)
    return steal_fd(&fd);
  /* The status flags of old: access mode and O_APPEND can only be given by opening. */
  const uint32_t by_name = O_CREAT | O_EXCL | O_TRUNC | O_TMPFILE | O_NOFOLLOW | O_NOCTTY;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, (int)(d->flags & ~by_name) | O_CLOEXEC);
  if (again < 0 || lseek(again, (off_t)d->offset, SEEK_SET) < 0)
    return failed(m, "a file without a name");
  return again;
}

/* ---- pipes ----------------------------------------------------------------------------------------------------- */

static bool
is_same_pipe(const struct image_description *a, const struct image_description *b)
{
  return a->kind == IMAGE_PIPE && b->kind == IMAGE_PIPE && a->value[0] == b->value[0] && a->value[2] == b->value[2];
}

/* Both ends, whatever they are: opened for reading and writing a named pipe waits for nobody. */
static int
open_pipe(struct maker *m, struct span path, int pair[2])
{
  if (path.length == 0)
    return pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0 ? failed(m, "a pipe") : 0;
  pair[0] = open_named(m, path, S_IFIFO, 0, O_RDWR | O_NONBLOCK);
  if (pair[0] < 0)
    return -1;
  pair[1] = fcntl(pair[0], F_DUPFD_CLOEXEC, 3);
  return pair[1] < 0 ? failed(m, "a named pipe") : 0;
}

/* An open file of its own, with the flags of old. Opening never waits: the pipe is open for both already. */
static int
open_end(struct maker *m, const struct image_description *d, int pipe, struct span path)
{
  const int kept = O_NONBLOCK | O_DIRECT, flags = (int)(d->flags & O_ACCMODE) | O_NONBLOCK | O_CLOEXEC;
  char name[32];

  snprintf(name, sizeof name, "/proc/self/fd/%d", pipe);
  /* By its own path, so that /proc tells the child what it told the source. */
  cleanup_fd int fd = path.length ? open_named(m, path, S_IFIFO, 0, flags) : open(name, flags);
  if (fd < 0)
    return path.length ? -1 : failed(m, "an end of a pipe");
  if (fcntl(fd, F_SETFL, (int)d->flags & kept) < 0)
    return failed(m, "an end of a pipe");
  return steal_fd(&fd);
}

/* All ends at once; those that nobody has are closed, so readers see the end of file. */
static int
make_pipe(struct maker *m, uint32_t first)
{
  const struct image *image = m->image;
  const struct image_description *d = &image->descriptions[first];
  int pair[2] = {-1, -1}, result = open_pipe(m, image->contents[first], pair);
  cleanup_fd int reader = pair[0], writer = pair[1];

  for (uint32_t i = first; result == 0 && i < image->description_count; i++) {
    const struct image_description *end = &image->descriptions[i];
    if (!is_same_pipe(d, end) || m->made[i] >= 0)
      continue;
    /* Where the sandbox's user has too many pages in pipes, one without content is what a new one would be there. */
    if (end->value[1] && fcntl(writer, F_SETPIPE_SZ, (int)end->value[1]) < 0 && end->content_length)
      return failed(m, "room in a pipe for what is unread");
    if (copy_content(m, end, writer) < 0)
      return -1;
    m->made[i] = open_end(m, end, (end->flags & O_ACCMODE) == O_WRONLY ? writer : reader, image->contents[i]);
    if (m->made[i] < 0)
      return -1;
  }
  return result;
}

/* ---- socket pairs ---------------------------------------------------------------------------------------------- */

static int
send_messages(struct maker *m, const struct image_description *d, int to)
{
  for (uint64_t at = 0; at < d->content_length;) {
    uint32_t length;
    if (d->content_length - at < sizeof length ||
        pread(m->pages, &length, sizeof length, (off_t)(d->content_offset + at)) != sizeof length ||
        length > d->content_length - at - sizeof length)
      return err_field(m->err, "image", "messages of open file %u", d->id);
    cleanup_free uint8_t *bytes = malloc(length ? length : 1);
    at += sizeof length;
    if (!bytes || pread(m->pages, bytes, length, (off_t)(d->content_offset + at)) != (ssize_t)length ||
        send(to, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)length)
      return failed(m, "messages of a socket pair");
    at += length;
  }
  return 0;
}

static int
settle_end(struct maker *m, const struct image_description *d, int fd)
{
  const int room = (int)d->value[0], on = 1;

  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) < 0 ||
      (d->value[3] & IMAGE_PASSES_CREDENTIALS && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0) ||
      (d->flags & O_NONBLOCK && fcntl(fd, F_SETFL, O_NONBLOCK) < 0))
    return failed(m, "a socket pair");
  /* Of a closed peer's doing: shutdown(2) would refuse nothing, and change nothing. */
  if ((d->value[1] & 1 && shutdown(fd, SHUT_RD) < 0) || (d->value[1] & 2 && shutdown(fd, SHUT_WR) < 0))
    return failed(m, "a socket pair");
  return 0;
}

static int
make_pair(struct maker *m, uint32_t i)
{
  const struct image_description *d = &m->image->descriptions[i];
  int pair[2], at = d->peer ? index_of(m->image, d->peer - 1) : -1;
  const struct image_description *other = at >= 0 ? &m->image->descriptions[at] : NULL;
  /* As much as the kernel allows: one end that is closed had room that nobody knows. */
  const int plenty = 1 << 24;

  if (socketpair(AF_UNIX, (int)d->value[2] | SOCK_CLOEXEC, 0, pair) < 0)
    return failed(m, "a socket pair");
  cleanup_fd int mine = pair[0], theirs = pair[1];
  setsockopt(mine, SOL_SOCKET, SO_SNDBUF, &plenty, sizeof plenty);
  setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &plenty, sizeof plenty);
  if (send_messages(m, d, theirs) < 0 || (other && send_messages(m, other, mine) < 0))
    return -1;
  if (!other)
    close_fd(&theirs);
  if (settle_end(m, d, mine) < 0 || (other && settle_end(m, other, theirs) < 0))
    return -1;
  if (other)
    m->made[at] = steal_fd(&theirs);
  return steal_fd(&mine);
}

/* eventfd(2) takes 32 bits of the 64 that a counter has. */
static int
make_eventfd(struct maker *m, const struct image_description *d)
{
  int flags = EFD_CLOEXEC | (d->flags & O_NONBLOCK ? EFD_NONBLOCK : 0) | (d->value[1] ? EFD_SEMAPHORE : 0);
  cleanup_fd int fd = eventfd(0, flags);

  if (fd < 0 || (d->value[0] && write(fd, &d->value[0], sizeof d->value[0]) != sizeof d->value[0]))
    return failed(m, "an event counter");
  return steal_fd(&fd);
}

static struct timespec
from_nanoseconds(uint64_t nanoseconds)
{
  return (struct timespec){(time_t)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u)};
}

static int
make_timerfd(struct maker *m, const struct image_description *d)
{
  struct itimerspec spec = {from_nanoseconds(d->value[3]), from_nanoseconds(d->value[2])};
  uint64_t ticks = d->value[1];
  cleanup_fd int fd = timerfd_create((int)d->value[0], TFD_CLOEXEC | (d->flags & O_NONBLOCK ? TFD_NONBLOCK : 0));

  if (fd < 0 || timerfd_settime(fd, 0, &spec, NULL) < 0)
    return failed(m, "a timer");
  if (ticks && ioctl(fd, TFD_IOC_SET_TICKS, &ticks) < 0)
    return failed(m, "a timer's ticks");
  return steal_fd(&fd);
}

static int
make_signalfd(struct maker *m, const struct image_description *d)
{
  sigset_t set;

  sigemptyset(&set);
  for (int number = 1; number <= 64; number++)
    if (d->value[0] & ((uint64_t)1 << (number - 1)))
      sigaddset(&set, number);
  int fd = signalfd(-1, &set, SFD_CLOEXEC | (d->flags & O_NONBLOCK ? SFD_NONBLOCK : 0));
  return fd < 0 ? failed(m, "a signal descriptor") : fd;
}

static int
set_options(struct maker *m, const struct image_description *d, int fd, uint32_t which)
{
  for (size_t i = 0; i < SOCKET_OPTION_COUNT && d->value[0] & IMAGE_OPTIONS_KNOWN; i++) {
    const struct socket_option *option = &socket_options[i];
    int value = (d->value[0] & option->flag) != 0, now = 0;
    socklen_t length = sizeof now;
    /* What it is already may not be settable: of a bound socket, of one of another kind. */
    if (!(option->flag & which) || getsockopt(fd, option->level, option->name, &now, &length) < 0 ||
        (now != 0) == value)
      continue;
    if (setsockopt(fd, option->level, option->name, &value, sizeof value) < 0)
      return failed(m, "an option of a socket");
  }
  return 0;
}

static int
make_listen(const struct image_description *d, int fd)
{
  uint64_t backlog = d->value[0] >> 32;

  return listen(fd, backlog ? (int)(backlog - 1) : SOMAXCONN);
}

/* Bound as if the address may be used again: nobody else is in the child's network, but sockets of its own. */
static int
make_socket(struct maker *m, const struct image_description *d, int domain, struct span address)
{
  const int on = 1;
  struct sockaddr_storage name = {0};
  int type = (int)d->value[2] | SOCK_CLOEXEC | (d->flags & O_NONBLOCK ? SOCK_NONBLOCK : 0);
  cleanup_fd int fd = socket(domain, type, 0);

  if (fd < 0)
    return failed(m, "a socket");
  if (domain == AF_UNIX)
    return steal_fd(&fd);
  if (set_options(m, d, fd, UINT32_MAX) < 0)
    return -1;
  if (address.length > sizeof name || address.length < sizeof(sa_family_t))
    return steal_fd(&fd);
  memcpy(&name, address.data, address.length);
  in_port_t port =
      domain == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port : ((struct sockaddr_in *)&name)->sin_port;
  if (d->kind != IMAGE_TCP_LISTEN && port == 0)
    return steal_fd(&fd);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
      bind(fd, (struct sockaddr *)&name, address.length) < 0 ||
      (d->kind == IMAGE_TCP_LISTEN && make_listen(d, fd) < 0))
    return failed(m, "bind a socket");
  return set_options(m, d, fd, IMAGE_REUSES) < 0 ? -1 : steal_fd(&fd);
}

/* A connection whose other end is gone: made over a listener of our own, closed with linger 0, so that the child
 * reads ECONNRESET and not a clean end. */
static int
make_reset(struct maker *m, const struct image_description *d)
{
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  bool is_six = d->value[1] == AF_INET6;
  struct sockaddr *address = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
  socklen_t length = is_six ? sizeof six : sizeof four;
  const struct linger abort_it = {1, 0};
  cleanup_fd int listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cleanup_fd int fd = listener < 0 ? -1 : socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

  if (fd < 0 || bind(listener, address, length) < 0 || listen(listener, 1) < 0 ||
      getsockname(listener, address, &length) < 0 || connect(fd, address, length) < 0)
    return failed(m, "a connection to be reset");
  cleanup_fd int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (peer < 0 || setsockopt(peer, SOL_SOCKET, SO_LINGER, &abort_it, sizeof abort_it) < 0)
    return failed(m, "a connection to be reset");
  if (d->flags & O_NONBLOCK)
    fcntl(fd, F_SETFL, O_NONBLOCK);
  /* Of a connection that is no more the rest says nothing. */
  return set_options(m, d, fd, ~(uint32_t)IMAGE_ONLY_SIX) < 0 ? -1 : steal_fd(&fd);
}

static int
make(struct maker *m, uint32_t i)
{
  const struct image_description *d = &m->image->descriptions[i];
  struct span content = m->image->contents[i];

  switch ((enum image_description_kind)d->kind) {
  case IMAGE_STREAM:
    return make_stream(m, d);
  case IMAGE_REOPEN:
    return make_reopened(m, d, content);
  case IMAGE_UNLINKED:
    return make_unlinked(m, i);
  case IMAGE_PIPE:
    return make_pipe(m, i) < 0 ? -1 : m->made[i];
  case IMAGE_EVENTFD:
    return make_eventfd(m, d);
  case IMAGE_TIMERFD:
    return make_timerfd(m, d);
  case IMAGE_SIGNALFD:
    return make_signalfd(m, d);
  case IMAGE_EPOLL: {
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return fd < 0 ? failed(m, "an epoll") : fd;
  }
  case IMAGE_TCP_RESET:
    return d->value[3] ? make_reset(m, d) : make_socket(m, d, (int)d->value[1], content);
  case IMAGE_TCP_LISTEN:
  case IMAGE_UDP:
    return make_socket(m, d, (int)d->value[1], content);
  case IMAGE_UNIX_UNBOUND:
    return make_socket(m, d, AF_UNIX, (struct span){0});
  case IMAGE_SOCKETPAIR:
    return make_pair(m, i);
  case IMAGE_TERMINAL:
    return terminals_open(m->image, &m->terminals, d, m->err);
  case IMAGE_DROPPED: {
    /* Whatever is done with it fails as if it were closed, but no other file gets its number. */
    int fd = open("/dev/null", O_PATH | O_CLOEXEC);
    return fd < 0 ? failed(m, "a stand-in") : fd;
  }
  default:
    return err_field(m->err, "image", "open file %u is of no known kind", d->id);
  }
}

static int
send_batch(int socket, const int *fds, int count)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int) * PIE_FDS_AT_ONCE)];
  } space;
  size_t bytes = sizeof(int) * (size_t)count;
  struct iovec iov = {(void *)(uintptr_t)"", 1};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes};

  memset(&space, 0, sizeof space);
  message.msg_controllen = CMSG_SPACE(bytes);
  struct cmsghdr *c = &space.align;
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(c), fds, bytes);
  return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int
make_all(struct maker *m, uint32_t count)
{
  int result = terminals_make(m->image, m->pages, &m->terminals, m->err);

  for (uint32_t i = 0; result == 0 && i < count; i++)
    if (m->made[i] < 0 && (m->made[i] = make(m, i)) < 0)
      result = -1;
  terminals_free(&m->terminals);
  return result;
}

static int
take_lock(struct maker *m, const struct image_lock *lock)
{
  const struct flock range = {.l_type = lock->exclusive ? F_WRLCK : F_RDLCK,
                              .l_whence = SEEK_SET,
                              .l_start = (off_t)lock->start,
                              .l_len = (off_t)lock->length};
  int at = index_of(m->image, lock->description), fd = at < 0 ? -1 : m->made[at];
  int result = lock->kind == IMAGE_LOCK_WHOLE ? flock(fd, (lock->exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB)
                                              : fcntl(fd, F_OFD_SETLK, &range);

  return result < 0 ? failed(m, "a lock of a file") : 0;
}

int
descriptors_make(const struct image *image, int pages, const struct command *command, const int *streams,
                 struct descriptors *made, struct err *err)
{
  uint32_t count = image->description_count;
  struct maker m = {.image = image, .pages = pages, .command = command, .streams = streams, .err = err};

  *made = (struct descriptors){0};
  if (fault_here(STEP, err) < 0)
    return -1;
  made->fds = m.made = malloc(sizeof(int) * (count + 1));
  if (!m.made)
    return err_code(err, "internal", "no memory for descriptors");
  made->count = count;
  for (uint32_t i = 0; i < count; i++)
    m.made[i] = -1;
  if (make_all(&m, count) < 0)
    return -1;
  for (uint32_t i = 0; i < image->lock_count; i++)
    if (take_lock(&m, &image->locks[i]) < 0)
      return -1;
  return 0;
}

int
descriptors_send(const struct descriptors *made, int socket, struct err *err)
{
  for (uint32_t sent = 0; sent < made->count;) {
    uint32_t left = made->count - sent, batch = left < PIE_FDS_AT_ONCE ? left : PIE_FDS_AT_ONCE;
    if (send_batch(socket, made->fds + sent, (int)batch) < 0)
      return err_step(err, STEP, "hand descriptors to the child: %s", strerror(errno));
    sent += batch;
  }
  return 0;
}

void
descriptors_free(struct descriptors *made)
{
  for (uint32_t i = 0; i < made->count; i++)
    close_fd(&made->fds[i]);
  free(made->fds);
}
