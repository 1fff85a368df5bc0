/* SPDX-License-Identifier: Apache-2.0
 * Pseudo terminals whose both ends are inside. */
#include "victim.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>

static int
open_master(void)
{
  int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);

  NEED(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  return master;
}

static int
open_slave(int master, int flags)
{
  int slave = open(ptsname(master), O_RDWR | O_NOCTTY | flags);

  NEED(slave >= 0);
  return slave;
}

static void
change_flags(int slave, tcflag_t input, tcflag_t output, tcflag_t local)
{
  struct termios settings;

  NEED(tcgetattr(slave, &settings) == 0);
  settings.c_iflag ^= input;
  settings.c_oflag ^= output;
  settings.c_lflag ^= local;
  NEED(tcsetattr(slave, TCSANOW, &settings) == 0);
}

static void
put(int fd, const char *text)
{
  CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "write to fd %d: %s", fd, strerror(errno));
}

static bool
has(int fd, short event, int patience_ms)
{
  struct pollfd polled = {fd, event, 0};

  return poll(&polled, 1, patience_ms) == 1 && polled.revents & event;
}

/* One read(2), of which all is to come. */
static void
check_read(int fd, const char *wanted, size_t length)
{
  char got[256] = "";

  CHECK(length == 0 || has(fd, POLLIN, 10000), "nothing to read from fd %d", fd);
  ssize_t n = read(fd, got, sizeof got - 1);
  CHECK(n == (ssize_t)length && memcmp(got, wanted, length) == 0, "fd %d gave %zd: \"%s\", not \"%s\"", fd, n, got,
        wanted);
}

#define CHECK_READ(fd, text) check_read(fd, text, sizeof text - 1)

/* The kernel moves it in the background: until it shows. */
static void
await_bytes(int fd, int count)
{
  int waiting = 0;

  while (has(fd, POLLIN, -1) && ioctl(fd, FIONREAD, &waiting) == 0 && waiting < count)
    sched_yield();
}

static void
check_empty(int fd)
{
  CHECK(!has(fd, POLLIN, 0), "fd %d has something to read", fd);
}

VICTIM(settings, "its number, settings, size, permissions, and the flags of its open files")
{
  int first = open_master(), master = open_master(), slave = open_slave(master, 0);
  int second = open_slave(master, O_NONBLOCK);
  const struct winsize size = {33, 101, 7, 9};
  struct termios before = {0}, after = {0};
  struct winsize found;
  struct stat st;
  char name[64] = "", wanted[64];

  /* A number in between is free. */
  close(first);
  change_flags(slave, ICRNL | IUTF8, ONLCR, ECHO | NOFLSH);
  NEED(tcgetattr(slave, &before) == 0 && ioctl(slave, TIOCSWINSZ, &size) == 0 && fchmod(slave, 0622) == 0);
  snprintf(wanted, sizeof wanted, "%s", ptsname(master));
  ready();
  await_go();
  CHECK(strcmp(ptsname(master), wanted) == 0, "it is %s, not %s", ptsname(master), wanted);
  CHECK(ttyname_r(slave, name, sizeof name) == 0 && strcmp(name, wanted) == 0, "the slave is %s", name);
  CHECK(tcgetattr(slave, &after) == 0 && memcmp(&before, &after, sizeof after) == 0, "its settings differ");
  CHECK(ioctl(master, TIOCGWINSZ, &found) == 0 && memcmp(&size, &found, sizeof size) == 0, "its size differs");
  CHECK(fstat(slave, &st) == 0 && (st.st_mode & 07777) == 0622, "its mode is %o", st.st_mode);
  CHECK((fcntl(second, F_GETFL) & O_NONBLOCK) && !(fcntl(slave, F_GETFL) & O_NONBLOCK), "flags");
  put(master, "a\r");
  CHECK(has(slave, POLLIN, 0) == false, "a return ends a line");
  put(master, "\n");
  CHECK_READ(slave, "a\r\n");
  put(slave, "b\n");
  CHECK_READ(master, "b\n");
  first = open_master();
  CHECK(strcmp(ptsname(first), wanted) < 0, "the new one is %s", ptsname(first));
}

VICTIM(lines, "lines that are not read yet, one with a quoted end, one that was cut, one that is not ended, and "
              "output with its echo")
{
  int master = open_master(), slave = open_slave(master, 0);

  put(slave, "prompt\n");
  put(master, "one\ntw\177wo\nquo\026\nted\ncut\004\004part");
  await_bytes(slave, 19);
  await_bytes(master, 8 + 5 + 9 + 12 + 7);
  ready();
  await_go();
  put(master, "s\n");
  CHECK_READ(slave, "one\n");
  CHECK_READ(slave, "two\n");
  CHECK_READ(slave, "quo\nted\n");
  CHECK_READ(slave, "cut");
  CHECK_READ(slave, "");
  CHECK_READ(slave, "parts\n");
  check_empty(slave);
  await_bytes(master, 8 + 5 + 9 + 12 + 7 + 3);
  CHECK_READ(master, "prompt\r\none\r\ntw\b \bwo\r\nquo^\b^Jted\r\ncutparts\r\n");
  check_empty(master);
}

VICTIM(raw, "bytes of a terminal without lines, all 256 of them")
{
  int master = open_master(), slave = open_slave(master, 0);
  struct termios settings;
  unsigned char all[256], got[300];

  NEED(tcgetattr(slave, &settings) == 0);
  cfmakeraw(&settings);
  settings.c_cc[VMIN] = 4;
  settings.c_cc[VTIME] = 1;
  NEED(tcsetattr(slave, TCSANOW, &settings) == 0);
  for (int i = 0; i < 256; i++)
    all[i] = (unsigned char)i;
  NEED(write(slave, all, 256) == 256 && write(master, all, 256) == 256);
  await_bytes(slave, 256);
  await_bytes(master, 256);
  ready();
  await_go();
  CHECK(read(slave, got, 300) == 256 && memcmp(got, all, 256) == 0, "its input differs");
  CHECK(read(master, got, 300) == 256 && memcmp(got, all, 256) == 0, "its output differs");
  check_empty(master);
}

VICTIM(every, "lines that have every byte, quoted, and one of them that was cut")
{
  int master = open_master(), slave = open_slave(master, 0);
  unsigned char typed[600], line[300], got[600];
  size_t length = 0;

  for (int i = 0; i < 256; i++) {
    typed[length++] = 026;
    typed[length++] = line[i] = (unsigned char)i;
  }
  for (int turn = 0; turn < 2; turn++) {
    typed[length] = turn ? 4 : '\n';
    NEED(write(master, typed, length + 1) == (ssize_t)length + 1);
    await_bytes(slave, turn ? 513 : 257);
  }
  line[256] = '\n';
  ready();
  await_go();
  CHECK(read(slave, got, sizeof got) == 257 && memcmp(got, line, 257) == 0, "its line differs");
  CHECK(read(slave, got, sizeof got) == 256 && memcmp(got, line, 256) == 0, "what was cut differs");
  check_empty(slave);
}

/* Lines of 99 bytes and their ends, and one that is not ended. */
VICTIM(much, "as much unread input as the kernel edits: of lines, and of a terminal without")
{
  int with = open_master(), lines = open_slave(with, 0), without = open_master(), bytes = open_slave(without, 0);
  unsigned char typed[4090], got[4096];
  struct termios settings;

  for (size_t i = 0; i < sizeof typed; i++)
    typed[i] = i % 100 == 99 ? '\n' : (unsigned char)('a' + i / 100 % 26);
  NEED(tcgetattr(bytes, &settings) == 0);
  cfmakeraw(&settings);
  NEED(tcsetattr(bytes, TCSANOW, &settings) == 0);
  NEED(write(with, typed, sizeof typed) == sizeof typed && write(without, typed, sizeof typed) == sizeof typed);
  await_bytes(lines, 4000);
  await_bytes(bytes, 4090);
  ready();
  await_go();
  for (size_t at = 0; at < 4000; at += 100)
    CHECK(read(lines, got, sizeof got) == 100 && memcmp(got, typed + at, 100) == 0, "line at %zu differs", at);
  put(with, "\n");
  CHECK(read(lines, got, sizeof got) == 91 && memcmp(got, typed + 4000, 90) == 0, "the open line differs");
  for (size_t at = 0; at < sizeof typed;) {
    ssize_t count = read(bytes, got, sizeof got);
    CHECK(count > 0 && memcmp(got, typed + at, (size_t)count) == 0, "bytes at %zu differ", at);
    at += (size_t)count;
  }
}

VICTIM(packets, "the packets of a terminal whose master asked for such")
{
  int master = open_master(), slave = open_slave(master, 0), on = 1;

  NEED(ioctl(master, TIOCPKT, &on) == 0);
  put(slave, "text");
  await_bytes(master, 4);
  ready();
  await_go();
  CHECK_READ(master, "\0text");
  CHECK(tcflush(slave, TCIFLUSH) == 0, "flush: %s", strerror(errno));
  CHECK_READ(master, "\1");
}

VICTIM(stopped, "output that was stopped by a character, and by the program")
{
  int master[2], slave[2];

  for (int i = 0; i < 2; i++) {
    master[i] = open_master();
    slave[i] = open_slave(master[i], O_NONBLOCK);
    put(slave[i], "before");
  }
  put(master[0], "\023");
  NEED(tcflow(slave[1], TCOOFF) == 0);
  while (has(slave[0], POLLOUT, 0))
    sched_yield();
  ready();
  await_go();
  for (int i = 0; i < 2; i++) {
    CHECK(write(slave[i], "x", 1) == -1 && errno == EAGAIN, "number %d takes output", i);
    CHECK_READ(master[i], "before");
  }
  put(master[0], "\021");
  CHECK(tcflow(slave[1], TCOON) == 0, "tcflow: %s", strerror(errno));
  for (int i = 0; i < 2; i++) {
    CHECK(has(slave[i], POLLOUT, 10000), "number %d does not go on", i);
    put(slave[i], "after");
    CHECK_READ(master[i], "after");
  }
}

VICTIM(hung_up, "a master whose slave is closed, with output unread, and a slave whose master is")
{
  int master = open_master(), slave = open_slave(master, 0), other = open_master(), left = open_slave(other, 0);

  put(slave, "last words");
  close(slave);
  close(other);
  ready();
  await_go();
  CHECK_READ(master, "last words");
  char byte;
  CHECK(read(master, &byte, 1) == -1 && errno == EIO, "the master reads on");
  CHECK(read(left, &byte, 1) == 0, "the slave reads on");
  CHECK(write(left, "x", 1) == -1 && errno == EIO, "the slave writes");
  slave = open_slave(master, 0);
  put(slave, "again");
  CHECK_READ(master, "again");
}

/* ---- sessions ------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t resized;

static void
on_resize(int number)
{
  (void)number;
  resized++;
}

/* In the foreground: says its size at each change, until it is interrupted. */
static void
watch_size(void)
{
  struct sigaction action = {.sa_handler = on_resize};
  struct winsize size;

  setpgid(0, 0);
  signal(SIGTTOU, SIG_IGN);
  sigaction(SIGWINCH, &action, NULL);
  NEED(tcsetpgrp(0, getpid()) == 0);
  put(1, "watching\n");
  for (;;) {
    for (sig_atomic_t seen = resized; seen == resized;)
      poll(NULL, 0, 50);
    if (ioctl(0, TIOCGWINSZ, &size) == 0)
      dprintf(1, "%d\n", size.ws_row);
  }
}

/* Has given up the terminal of its session. */
static void
be_without(void)
{
  if (ioctl(0, TIOCNOTTY) < 0)
    _exit(9);
  put(1, "without\n");
  char byte;
  while (read(3, &byte, 1) == 1)
    dprintf(1, "%s\n", open("/dev/tty", O_RDWR) < 0 && errno == ENXIO ? "has none" : "has one");
}

static void
lead(int words)
{
  int status, all;

  NEED(dup2(words, 3) == 3);
  pid_t foreground = fork();
  if (foreground == 0)
    watch_size();
  pid_t without = fork();
  if (without == 0)
    be_without();
  waitpid(foreground, &status, 0);
  signal(SIGTTOU, SIG_IGN);
  NEED((all = open("/dev/tty", O_RDWR)) >= 0);
  dprintf(all, "%d ended by %d\n", foreground == tcgetpgrp(all), WTERMSIG(status));
  tcsetpgrp(0, getpgrp());
  dprintf(all, "%d %d\n", tcgetsid(all) == getpid(), tcgetpgrp(all) == getpid());
  pause();
}

VICTIM(session, "who leads its session, who is in the foreground, who has given it up; what goes to whom")
{
  int master = open_master(), slave = open_slave(master, 0), words[2];
  const struct winsize size = {44, 80, 0, 0};

  change_flags(slave, 0, OPOST, ECHO);
  NEED(pipe(words) == 0);
  if (fork() == 0) {
    setsid();
    NEED(ioctl(slave, TIOCSCTTY, 0) == 0);
    for (int i = 0; i < 3; i++)
      dup2(slave, i);
    close(master);
    close(words[1]);
    lead(words[0]);
  }
  close(slave);
  close(words[0]);
  await_bytes(master, 17);
  char both[32] = "";
  NEED(read(master, both, sizeof both - 1) == 17 && strstr(both, "watching\n") && strstr(both, "without\n"));
  ready();
  await_go();
  CHECK(ioctl(master, TIOCSWINSZ, &size) == 0, "resize: %s", strerror(errno));
  CHECK_READ(master, "44\n");
  put(words[1], "?");
  CHECK_READ(master, "has none\n");
  put(master, "\003");
  await_bytes(master, 17);
  CHECK_READ(master, "1 ended by 2\n1 1\n");
}
