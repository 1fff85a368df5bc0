/* SPDX-License-Identifier: Apache-2.0
 * Open files of every kind that is carried. */
#include "victim.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

/* ---- files ---------------------------------------------------------------------------------------------------- */

static int
text_file(const char *name, const char *text, int flags)
{
  int fd = open(name, O_RDWR | O_CREAT | flags, 0644);

  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  return fd;
}

static void
check_read(int fd, const char *text)
{
  char got[64] = "";
  ssize_t length = read(fd, got, sizeof got - 1);

  CHECK(length == (ssize_t)strlen(text) && memcmp(got, text, strlen(text)) == 0, "fd %d gave \"%s\", not \"%s\"",
        fd, got, text);
}

VICTIM(offset, "where it stands in a file")
{
  int fd = text_file("file", "0123456789", 0);

  NEED(lseek(fd, 4, SEEK_SET) == 4);
  ready();
  await_go();
  check_read(fd, "456789");
}

/* ---- files whose names are special ---------------------------------------------------------------------------- */

static void
check_place(int fd, const char *rest)
{
  check_read(fd, rest);
  CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, "new", 3) == 3, "write: %s", strerror(errno));
}

VICTIM(temporary, "files made without a name, as tempfile.TemporaryFile() does, and with none any more")
{
  int made = open(".", O_TMPFILE | O_RDWR | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  int removed = open("removed", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

  NEED(made >= 0 && removed >= 0 && write(made, "01234", 5) == 5 && write(removed, "56789", 5) == 5);
  NEED(unlink("removed") == 0 && lseek(made, 2, SEEK_SET) == 2 && lseek(removed, 3, SEEK_SET) == 3);
  ready();
  await_go();
  check_place(made, "234");
  check_place(removed, "89");
}

VICTIM(stream_flags, "standard streams that do not wait, or are appended to")
{
  NEED(fcntl(0, F_SETFL, O_NONBLOCK) == 0 && fcntl(1, F_SETFL, O_APPEND) == 0);
  ready();
  char c = 0;
  struct pollfd input = {0, POLLIN, 0};
  while (c != '\n') {
    NEED(poll(&input, 1, -1) == 1);
    if (read(0, &c, 1) == 0)
      _exit(4);
  }
  int in = fcntl(0, F_GETFL), out = fcntl(1, F_GETFL);
  CHECK((in & (O_ACCMODE | O_NONBLOCK | O_APPEND)) == (O_RDONLY | O_NONBLOCK), "standard input has %#o", in);
  CHECK((out & (O_ACCMODE | O_NONBLOCK | O_APPEND)) == (O_WRONLY | O_APPEND), "standard output has %#o", out);
  CHECK(read(0, &c, 1) == -1 && errno == EAGAIN, "reading waited, or: %s", strerror(errno));
}

VICTIM(no_links, "a file and a directory that were opened so that no link was followed")
{
  int fd = text_file("file", "0123", O_NOFOLLOW), dir = open(".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

  NEED(dir >= 0 && lseek(fd, 1, SEEK_SET) == 1);
  ready();
  await_go();
  check_place(fd, "123");
  CHECK(faccessat(dir, "file", F_OK, 0) == 0, "the directory: %s", strerror(errno));
}

VICTIM(called_deleted, "a file whose name ends as that of a deleted one")
{
  int fd = text_file("file (deleted)", "0123", 0), other;
  char text[8] = "";

  NEED(lseek(fd, 1, SEEK_SET) == 1);
  ready();
  await_go();
  check_place(fd, "123");
  other = open("file (deleted)", O_RDONLY);
  CHECK(read(other, text, 3) == 3 && memcmp(text, "new", 3) == 0, "the name leads to another file");
}

VICTIM(shared_proc, "a file of /proc that tells of no process")
{
  int fd = open("/proc/meminfo", O_RDONLY);
  char text[9] = "";

  NEED(fd >= 0);
  ready();
  await_go();
  CHECK(read(fd, text, 8) == 8 && memcmp(text, "MemTotal", 8) == 0, "it says %s", text);
}

VICTIM(append, "a file that is appended to")
{
  int fd = text_file("file", "one", O_APPEND);

  NEED(lseek(fd, 0, SEEK_SET) == 0);
  ready();
  await_go();
  CHECK(write(fd, "two", 3) == 3 && lseek(fd, 0, SEEK_SET) == 0, "write: %s", strerror(errno));
  check_read(fd, "onetwo");
}

VICTIM(shared_offset, "copies of a descriptor share their place, another opening does not")
{
  int fd = text_file("file", "0123456789", 0);
  int copy = dup(fd), other = open("file", O_RDONLY);

  NEED(copy >= 0 && other >= 0 && lseek(fd, 2, SEEK_SET) == 2 && lseek(other, 7, SEEK_SET) == 7);
  ready();
  await_go();
  CHECK(lseek(copy, 0, SEEK_CUR) == 2 && lseek(other, 0, SEEK_CUR) == 7, "places differ");
  CHECK(lseek(copy, 5, SEEK_SET) == 5 && lseek(fd, 0, SEEK_CUR) == 5, "the place is not shared any more");
  CHECK(lseek(other, 0, SEEK_CUR) == 7, "the other moved too");
}

VICTIM(numbers, "numbers with gaps, above a thousand too, and close-on-exec")
{
  int fd = text_file("file", "x", 0);
  struct rlimit files;

  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  NEED(setrlimit(RLIMIT_NOFILE, &files) == 0);
  NEED(dup2(fd, 50) == 50 && dup3(fd, 1500, O_CLOEXEC) == 1500 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
  ready();
  await_go();
  CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(50, F_GETFD) == 0 && fcntl(1500, F_GETFD) == FD_CLOEXEC,
        "close-on-exec");
  for (int number = 4; number < 1600; number++)
    CHECK(number == 50 || number == 1500 || fcntl(number, F_GETFD) == -1, "fd %d is open", number);
}

VICTIM(unlinked, "a file without a name, and one that never had one")
{
  int fd = text_file("gone", "content", 0), never = open(".", O_TMPFILE | O_RDWR, 0600);

  NEED(never >= 0 && write(never, "never", 5) == 5 && unlink("gone") == 0);
  NEED(lseek(fd, 3, SEEK_SET) == 3 && lseek(never, 0, SEEK_SET) == 0);
  ready();
  await_go();
  check_read(fd, "tent");
  check_read(never, "never");
  CHECK(pwrite(fd, "C", 1, 0) == 1, "write: %s", strerror(errno));
}

VICTIM(sparse_unlinked, "a file without a name that is mostly holes")
{
  int fd = text_file("gone", "start", 0);

  NEED(ftruncate(fd, (off_t)1 << 40) == 0 && pwrite(fd, "middle", 6, (off_t)1 << 35) == 6 && unlink("gone") == 0);
  ready();
  await_go();
  char text[6];
  struct stat st;
  CHECK(fstat(fd, &st) == 0 && st.st_size == (off_t)1 << 40, "its size is %ld", (long)st.st_size);
  CHECK(pread(fd, text, 6, (off_t)1 << 35) == 6 && memcmp(text, "middle", 6) == 0, "the middle");
  CHECK(pread(fd, text, 5, 0) == 5 && memcmp(text, "start", 5) == 0, "the start");
}

VICTIM(memory_file, "a memory file with seals")
{
  int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
  char link[64] = "", path[32];

  NEED(fd >= 0 && write(fd, "sealed", 6) == 6 && lseek(fd, 1, SEEK_SET) == 1);
  NEED(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
  ready();
  await_go();
  check_read(fd, "ealed");
  CHECK(fcntl(fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), "seals %#x",
        (unsigned)fcntl(fd, F_GET_SEALS));
  CHECK(write(fd, "x", 1) == -1 && errno == EPERM, "it can be written");
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  CHECK(readlink(path, link, 63) > 0 && strcmp(link, "/memfd:sealed (deleted)") == 0, "it is called %s", link);
}

VICTIM(devices, "null, zero and urandom")
{
  int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
  char byte = 1;

  NEED(null >= 0 && zero >= 0 && random >= 0);
  ready();
  await_go();
  CHECK(write(null, "x", 1) == 1 && read(null, &byte, 1) == 0, "null");
  CHECK(read(zero, &byte, 1) == 1 && byte == 0, "zero");
  CHECK(read(random, &byte, 1) == 1, "urandom");
}

VICTIM(directory, "a directory, to open files in")
{
  int fd = open(".", O_RDONLY | O_DIRECTORY), path_only = open("/tmp", O_PATH);

  NEED(fd >= 0 && path_only >= 0);
  close(text_file("inside", "inside", 0));
  ready();
  await_go();
  check_read(openat(fd, "inside", O_RDONLY), "inside");
  CHECK(faccessat(path_only, ".", F_OK, 0) == 0, "O_PATH: %s", strerror(errno));
  CHECK(fcntl(path_only, F_GETFL) & O_PATH, "O_PATH is lost");
}

/* ---- pipes and events ----------------------------------------------------------------------------------------- */

VICTIM(pipe, "a pipe with unread bytes, its size and flags")
{
  int pair[2];

  NEED(pipe2(pair, O_NONBLOCK) == 0 && fcntl(pair[1], F_SETPIPE_SZ, 262144) == 262144);
  NEED(write(pair[1], "unread", 6) == 6 && write(pair[1], "more", 4) == 4);
  ready();
  await_go();
  check_read(pair[0], "unreadmore");
  char byte;
  CHECK(read(pair[0], &byte, 1) == -1 && errno == EAGAIN, "there is more, or it would wait");
  CHECK(fcntl(pair[1], F_GETPIPE_SZ) == 262144, "size %d", fcntl(pair[1], F_GETPIPE_SZ));
  CHECK(write(pair[1], "new", 3) == 3, "write: %s", strerror(errno));
  check_read(pair[0], "new");
}

VICTIM(closed_ends, "pipes of which one end is closed")
{
  int reader[2], writer[2];
  char byte;

  NEED(pipe(reader) == 0 && pipe(writer) == 0 && write(reader[1], "last", 4) == 4);
  close(reader[1]);
  close(writer[0]);
  signal(SIGPIPE, SIG_IGN);
  ready();
  await_go();
  check_read(reader[0], "last");
  CHECK(read(reader[0], &byte, 1) == 0, "no end of file");
  CHECK(write(writer[1], "x", 1) == -1 && errno == EPIPE, "write: %s", strerror(errno));
}

VICTIM(event_counters, "counters of events: plain, as a semaphore, and large")
{
  int plain = eventfd(5, 0), semaphore = eventfd(3, EFD_SEMAPHORE), large = eventfd(0, EFD_NONBLOCK);
  uint64_t value = (uint64_t)1 << 40;

  NEED(plain >= 0 && semaphore >= 0 && write(large, &value, 8) == 8);
  ready();
  await_go();
  CHECK(read(plain, &value, 8) == 8 && value == 5, "plain: %lu", value);
  CHECK(read(semaphore, &value, 8) == 8 && value == 1, "semaphore: %lu", value);
  CHECK(read(large, &value, 8) == 8 && value == (uint64_t)1 << 40, "large: %lu", value);
  CHECK(read(large, &value, 8) == -1 && errno == EAGAIN, "it would wait");
}

VICTIM(timer, "a timer that has expired unread, and goes on; and one that is far away")
{
  int periodic = timerfd_create(CLOCK_MONOTONIC, 0), far = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  int rapid = timerfd_create(CLOCK_MONOTONIC, 0); /* it has expired again before anybody can look twice */
  const struct itimerspec often = {{0, 20000000}, {0, 1000000}}, hour = {{0, 0}, {3600, 0}};
  const struct itimerspec always = {{0, 1000}, {0, 1000}};
  struct itimerspec left;
  uint64_t ticks;

  NEED(timerfd_settime(periodic, 0, &often, NULL) == 0 && timerfd_settime(far, 0, &hour, NULL) == 0);
  NEED(timerfd_settime(rapid, 0, &always, NULL) == 0);
  struct timespec moment = {0, 50000000};
  nanosleep(&moment, NULL);
  ready();
  await_go();
  CHECK(read(periodic, &ticks, 8) == 8 && ticks >= 2, "%lu ticks", ticks);
  CHECK(read(periodic, &ticks, 8) == 8 && ticks >= 1, "it ticks no more");
  for (int i = 0; i < 2; i++)
    CHECK(read(rapid, &ticks, 8) == 8 && ticks >= 1, "the rapid one ticks no more");
  timerfd_gettime(far, &left);
  CHECK(left.it_value.tv_sec > 3000 && left.it_value.tv_sec <= 3600, "%ld seconds are left",
        (long)left.it_value.tv_sec);
}

VICTIM(signal_descriptor, "signals read from a descriptor")
{
  sigset_t set;
  struct signalfd_siginfo info;

  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int fd = signalfd(-1, &set, SFD_NONBLOCK);
  NEED(fd >= 0 && sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 5}) == 0);
  ready();
  await_go();
  CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_int == 5, "the pending one");
  kill(getpid(), SIGUSR1);
  CHECK(read(fd, &info, sizeof info) == sizeof info && (int)info.ssi_signo == SIGUSR1, "a new one");
}

VICTIM(epoll, "an epoll with data, edges, and another epoll in it")
{
  int pair[2], inner = epoll_create1(0), outer = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event item = {.events = EPOLLIN | EPOLLET, .data.u64 = 0x1122334455667788}, got;

  NEED(pipe(pair) == 0 && epoll_ctl(inner, EPOLL_CTL_ADD, pair[0], &item) == 0);
  item = (struct epoll_event){.events = EPOLLIN, .data.u64 = 42};
  NEED(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &item) == 0);
  ready();
  await_go();
  CHECK(epoll_wait(outer, &got, 1, 0) == 0, "there is something already");
  CHECK(write(pair[1], "x", 1) == 1, "write: %s", strerror(errno));
  CHECK(epoll_wait(outer, &got, 1, 1000) == 1 && got.data.u64 == 42, "the outer one");
  CHECK(epoll_wait(inner, &got, 1, 1000) == 1 && got.data.u64 == 0x1122334455667788, "the inner one");
  CHECK(epoll_wait(inner, &got, 1, 0) == 0, "an edge is told twice");
}

/* ---- sockets -------------------------------------------------------------------------------------------------- */

static struct sockaddr_in where = {.sin_family = AF_INET};

static int
bound(int type)
{
  socklen_t length = sizeof where;
  int fd = socket(AF_INET, type, 0);

  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = 0;
  NEED(fd >= 0 && bind(fd, (struct sockaddr *)&where, sizeof where) == 0 &&
       getsockname(fd, (struct sockaddr *)&where, &length) == 0);
  return fd;
}

static int
connected(void)
{
  int fd = socket(AF_INET, SOCK_STREAM, 0);

  CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&where, sizeof where) == 0, "connect: %s", strerror(errno));
  return fd;
}

VICTIM(listening, "a listening socket takes connections")
{
  int listener = bound(SOCK_STREAM);

  NEED(listen(listener, 4) == 0);
  ready();
  await_go();
  int client = connected(), server = accept(listener, NULL, NULL);
  CHECK(server >= 0 && write(server, "hello", 5) == 5, "accept: %s", strerror(errno));
  check_read(client, "hello");
}

/* Which of the two it is, a victim knows by what happens to the connection: both are right, nothing between is. */
VICTIM(established, "a connection goes on in the source and is reset in a fork")
{
  int listener = bound(SOCK_STREAM);

  NEED(listen(listener, 4) == 0);
  int client = connected(), server = accept(listener, NULL, NULL);
  NEED(server >= 0 && write(server, "before", 6) == 6);
  ready();
  await_go();
  char text[8] = "";
  signal(SIGPIPE, SIG_IGN);
  ssize_t got = read(client, text, sizeof text);
  if (got == 6) {
    CHECK(write(client, "after", 5) == 5, "write: %s", strerror(errno));
    check_read(server, "after");
  } else {
    CHECK(got == -1 && errno == ECONNRESET, "read gave %zd: %s", got, strerror(errno));
    CHECK(read(server, text, sizeof text) == -1 && errno == ECONNRESET, "the server's end: %s", strerror(errno));
  }
  int another = connected();
  CHECK(accept(listener, NULL, NULL) >= 0 && another >= 0, "a new connection: %s", strerror(errno));
}

VICTIM(udp, "a bound UDP socket")
{
  int fd = bound(SOCK_DGRAM), sender = socket(AF_INET, SOCK_DGRAM, 0);

  NEED(sender >= 0);
  ready();
  await_go();
  CHECK(sendto(sender, "hello", 5, 0, (struct sockaddr *)&where, sizeof where) == 5, "sendto: %s", strerror(errno));
  check_read(fd, "hello");
}

static int
option_of(int fd, int level, int name)
{
  int value = -1;
  socklen_t length = sizeof value;

  CHECK(getsockopt(fd, level, name, &value, &length) == 0, "option %d: %s", name, strerror(errno));
  return value;
}

static void
turn(int fd, int level, int name, int value)
{
  NEED(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

static int
backlog_of(int fd)
{
  struct tcp_info info;
  socklen_t length = sizeof info;

  CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0, "TCP_INFO: %s", strerror(errno));
  return (int)info.tcpi_sacked;
}

VICTIM(socket_options, "options of sockets, and how many connections may wait")
{
  struct sockaddr_in6 any = {.sin6_family = AF_INET6};
  socklen_t length = sizeof any;
  int six = socket(AF_INET6, SOCK_STREAM, 0);

  if (six < 0) {
    say("missing: IPv6");
    _exit(0);
  }
  /* The same port twice, of which one may not take the other's connections. */
  turn(six, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  NEED(bind(six, (struct sockaddr *)&any, sizeof any) == 0 && listen(six, 7) == 0);
  NEED(getsockname(six, (struct sockaddr *)&any, &length) == 0);
  int four = socket(AF_INET, SOCK_STREAM, 0);
  where.sin_addr.s_addr = htonl(INADDR_ANY);
  where.sin_port = any.sin6_port;
  turn(four, SOL_SOCKET, SO_REUSEADDR, 1);
  turn(four, IPPROTO_TCP, TCP_NODELAY, 1);
  NEED(bind(four, (struct sockaddr *)&where, sizeof where) == 0 && listen(four, 1) == 0);
  int idle = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);
  turn(idle, SOL_SOCKET, SO_KEEPALIVE, 1);
  turn(udp, SOL_SOCKET, SO_BROADCAST, 1);
  turn(udp, SOL_SOCKET, SO_REUSEPORT, 1);
  where.sin_port = 0;
  NEED(bind(udp, (struct sockaddr *)&where, sizeof where) == 0);
  where.sin_port = any.sin6_port;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int client = connected();
  turn(client, SOL_SOCKET, SO_KEEPALIVE, 1);
  ready();
  await_go();
  CHECK(option_of(six, IPPROTO_IPV6, IPV6_V6ONLY) == 1 && option_of(six, SOL_SOCKET, SO_REUSEADDR) == 0 &&
            backlog_of(six) == 7,
        "the first: %d waiting", backlog_of(six));
  CHECK(option_of(four, SOL_SOCKET, SO_REUSEADDR) == 1 && option_of(four, IPPROTO_TCP, TCP_NODELAY) == 1 &&
            option_of(four, SOL_SOCKET, SO_KEEPALIVE) == 0 && backlog_of(four) == 1,
        "the second: %d waiting", backlog_of(four));
  CHECK(option_of(idle, SOL_SOCKET, SO_KEEPALIVE) == 1 && option_of(idle, IPPROTO_TCP, TCP_NODELAY) == 0, "idle");
  CHECK(option_of(udp, SOL_SOCKET, SO_BROADCAST) == 1 && option_of(udp, SOL_SOCKET, SO_REUSEPORT) == 1, "UDP");
  CHECK(option_of(client, SOL_SOCKET, SO_KEEPALIVE) == 1, "connected");
}
