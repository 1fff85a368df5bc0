/* SPDX-License-Identifier: Apache-2.0
 * Several processes: what each is to the others, and what they have in common. */
#include "trees.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void
be(const char *name)
{
  prctl(PR_SET_NAME, name);
}

/* One that is to end before the fork, and is not waited for. */
static void
await_signal(void)
{
  for (;;)
    pause();
}

/* A process that waits to be ended. */
static void
wait_for_end(void)
{
  arrive();
  await_signal();
}

/* Everybody but the victim itself ends. */
static void
end_all(void)
{
  int status;

  kill(-1, SIGKILL);
  while (waitpid(-1, &status, 0) > 0)
    continue;
}

/* ---- relations ------------------------------------------------------------------------------------------------ */

static void
compare_after_go(int others)
{
  settle(others);
  view(before);
  ready();
  await_go();
  compare_views();
  end_all();
}

VICTIM(family, "children and grandchildren, with their names")
{
  meet();
  for (int i = 0; i < 3; i++)
    if (fork() == 0) {
      char name[16];
      snprintf(name, sizeof name, "child %d", i);
      be(name);
      for (int j = 0; j < i; j++)
        if (fork() == 0) {
          be("grandchild");
          wait_for_end();
        }
      wait_for_end();
    }
  compare_after_go(6);
}

VICTIM(many, "a hundred children")
{
  meet();
  for (int i = 0; i < 100; i++)
    if (fork() == 0)
      wait_for_end();
  compare_after_go(100);
}

VICTIM(groups, "process groups, also those whose leader has ended")
{
  meet();
  pid_t leader = fork();

  if (leader == 0) {
    setpgid(0, 0);
    wait_for_end();
  }
  NEED(setpgid(leader, leader) == 0 || errno == EACCES);
  for (int i = 0; i < 2; i++) {
    pid_t member = fork();
    if (member == 0)
      wait_for_end();
    NEED(setpgid(member, leader) == 0);
  }
  pid_t gone = fork();
  if (gone == 0)
    await_signal();
  NEED(setpgid(gone, gone) == 0);
  pid_t left = fork();
  if (left == 0)
    wait_for_end();
  NEED(setpgid(left, gone) == 0 && kill(gone, SIGKILL) == 0 && waitpid(gone, NULL, 0) == gone);
  pid_t zombie = fork();
  if (zombie == 0)
    await_signal();
  NEED(setpgid(zombie, zombie) == 0);
  pid_t behind = fork();
  if (behind == 0)
    wait_for_end();
  NEED(setpgid(behind, zombie) == 0 && kill(zombie, SIGTERM) == 0);
  compare_after_go(5);
}

VICTIM(sessions, "sessions: of their own, of a leader that has ended, of a parent that has left")
{
  meet();
  if (fork() == 0) {
    be("leader");
    setsid();
    if (fork() == 0)
      wait_for_end();
    wait_for_end();
  }
  if (fork() == 0) {
    be("leaves");
    if (fork() == 0) {
      be("stays");
      wait_for_end();
    }
    setsid();
    wait_for_end();
  }
  pid_t daemon = fork();
  if (daemon == 0) {
    setsid();
    if (fork() == 0) {
      be("daemon");
      if (fork() == 0) {
        be("its child");
        wait_for_end();
      }
      wait_for_end();
    }
    _exit(0);
  }
  NEED(waitpid(daemon, NULL, 0) == daemon);
  pid_t dies = fork();
  if (dies == 0) {
    if (fork() == 0) {
      be("orphan");
      wait_for_end();
    }
    _exit(0);
  }
  NEED(waitpid(dies, NULL, 0) == dies);
  compare_after_go(7);
}

VICTIM(zombies, "ended children, and how they ended, told once")
{
  meet();
  pid_t exits = fork();
  if (exits == 0) {
    be("exits");
    _exit(7);
  }
  pid_t killed = fork();
  if (killed == 0) {
    be("killed");
    await_signal();
  }
  pid_t below = fork();
  if (below == 0) {
    be("parent");
    if (fork() == 0)
      _exit(9);
    wait_for_end();
  }
  siginfo_t info;
  sigset_t set, pending;
  kill(killed, SIGKILL);
  NEED(waitid(P_PID, (id_t)exits, &info, WEXITED | WNOWAIT) == 0 &&
       waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT) == 0);
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, NULL);
  settle(1);
  view(before);
  ready();
  await_go();
  compare_views();
  int status;
  sigpending(&pending);
  CHECK(!sigismember(&pending, SIGCHLD), "an end was told again");
  CHECK(waitpid(exits, &status, WNOHANG) == exits && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the exit");
  CHECK(waitpid(killed, &status, WNOHANG) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
        "the signal");
  CHECK(waitpid(-1, &status, WNOHANG) == 0, "somebody else has ended");
  kill(below, SIGTERM);
  CHECK(waitpid(below, &status, 0) == below && WTERMSIG(status) == SIGTERM, "the end of a child that lived");
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGCHLD), "an end was not told");
}

static void
nothing(int number)
{
  (void)number;
}

VICTIM(told, "a child's end interrupts its parent, and a parent's death signal comes to its child")
{
  int news[2];
  char byte;

  meet();
  NEED(pipe(news) == 0);
  pid_t middle = fork();
  if (middle == 0) {
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGUSR1);
      struct sigaction action = {.sa_handler = nothing};
      sigaction(SIGUSR1, &action, NULL);
      close(news[0]);
      arrive();
      pause();
      _exit(write(news[1], "d", 1) != 1);
    }
    close(news[1]);
    wait_for_end();
  }
  close(news[1]);
  signal(SIGCHLD, nothing);
  settle(2);
  view(before);
  ready();
  await_go();
  compare_views();
  kill(middle, SIGKILL);
  CHECK(read(news[0], &byte, 1) == 1 && byte == 'd', "no signal of a parent's death");
  int status;
  CHECK(waitpid(middle, &status, 0) == middle, "the child's end");
}

VICTIM(subreaper, "a process that takes in the orphans among its descendants")
{
  meet();
  NEED(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  pid_t dies = fork();
  if (dies == 0) {
    if (fork() == 0)
      wait_for_end();
    _exit(0);
  }
  NEED(waitpid(dies, NULL, 0) == dies);
  pid_t later = fork();
  if (later == 0) {
    if (fork() == 0)
      wait_for_end();
    wait_for_end();
  }
  settle(3);
  view(before);
  ready();
  await_go();
  compare_views();
  kill(later, SIGKILL);
  int status;
  CHECK(waitpid(later, &status, 0) == later, "the child's end");
  end_all();
}

/* ---- what each has -------------------------------------------------------------------------------------------- */

static void *
add(void *at)
{
  for (;;) {
    __atomic_add_fetch((int *)at, 1, __ATOMIC_SEQ_CST);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  return NULL;
}

VICTIM(own, "each has its own memory, directory, limits, mask, handlers, timers and threads")
{
  struct told_child child;
  meet();
  char *bytes = anonymous(3 << 20);

  memset(bytes, 'p', 3 << 20);
  umask(027);
  NEED(mkdir("child", 0755) == 0);
  CHILD(child);
  if (child.pid == 0) {
    const struct rlimit files = {200, 300};
    static int count;
    pthread_t thread;
    memset(bytes + 4096, 'c', 1 << 20);
    char *more = mmap(NULL, 5 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(more, 'm', 5 << 20);
    munmap(bytes + (2 << 20), 4096);
    umask(077);
    if (chdir("child") < 0 || setrlimit(RLIMIT_NOFILE, &files) < 0)
      _exit(10);
    signal(SIGUSR1, nothing);
    signal(SIGUSR2, SIG_IGN);
    alarm(1000);
    nice(3);
    start(&thread, add, &count);
    await_parent(&child);
    struct rlimit now;
    char where[256];
    struct sigaction action;
    int counted = __atomic_load_n(&count, __ATOMIC_SEQ_CST);
    for (int turn = 0; turn < 5000 && counted == __atomic_load_n(&count, __ATOMIC_SEQ_CST); turn++)
      nanosleep(&(struct timespec){0, 1000000}, NULL);
    _exit(bytes[0] != 'p' || bytes[4096] != 'c' || bytes[(1 << 20) + 8192] != 'p' || more[(5 << 20) - 1] != 'm' ? 1
          : mincore(bytes + (2 << 20), 4096, (unsigned char[1]){0}) == 0                                        ? 2
          : umask(0) != 077                                                                                     ? 3
          : !getcwd(where, sizeof where) || strcmp(strrchr(where, '/'), "/child") != 0                          ? 4
          : getrlimit(RLIMIT_NOFILE, &now) < 0 || now.rlim_cur != 200 || now.rlim_max != 300                    ? 5
          : sigaction(SIGUSR1, NULL, &action) < 0 || action.sa_handler != nothing                               ? 6
          : sigaction(SIGUSR2, NULL, &action) < 0 || action.sa_handler != SIG_IGN                               ? 7
          : alarm(0) < 900                                                                                      ? 8
          : getpriority(PRIO_PROCESS, 0) != 3                                                                   ? 9
          : counted == __atomic_load_n(&count, __ATOMIC_SEQ_CST) ? 11
                                                                 : 0);
  }
  settle(1);
  ready();
  await_go();
  struct sigaction action;
  struct rlimit now;
  CHECK(bytes[4096] == 'p' && bytes[2 << 20] == 'p', "the parent's memory");
  CHECK(umask(0) == 027, "the parent's mask");
  CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == SIG_DFL, "the parent's handlers");
  CHECK(alarm(0) == 0, "the parent's alarm");
  CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_max != 300, "the parent's limits");
  check_child(&child, "the child");
  rmdir("child");
}

/* ---- what they have in common --------------------------------------------------------------------------------- */

VICTIM(pipes, "pipes between processes, with what is unread, and their ends")
{
  struct told_child child;
  meet();
  int down[2], up[2];
  char text[16] = {0};

  NEED(pipe(down) == 0 && pipe(up) == 0);
  CHILD(child);
  if (child.pid == 0) {
    close(down[1]);
    close(up[0]);
    if (write(up[1], "unread", 6) != 6)
      _exit(1);
    await_parent(&child);
    ssize_t got = read(down[0], text, sizeof text);
    if (got != 4 || memcmp(text, "sent", 4) != 0)
      _exit(2);
    if (write(up[1], " more", 5) != 5)
      _exit(3);
    _exit(read(down[0], text, 1) != 0); /* the other end is closed */
  }
  close(down[0]);
  close(up[1]);
  NEED(write(down[1], "sent", 4) == 4);
  settle(1);
  ready();
  await_go();
  CHECK(read(up[0], text, 6) == 6 && memcmp(text, "unread", 6) == 0, "what was unread: %.6s", text);
  CHECK(write(child.go, "g", 1) == 1 && read(up[0], text, 5) == 5 && memcmp(text, " more", 5) == 0,
        "what came then");
  close(down[1]);
  int status;
  CHECK(waitpid(child.pid, &status, 0) == child.pid && status == 0, "the child: %#x", status);
  CHECK(read(up[0], text, 1) == 0, "the end");
}

VICTIM(offsets, "open files and their offsets")
{
  struct told_child child;
  meet();
  int shared = open("shared", O_RDWR | O_CREAT | O_TRUNC, 0600), nameless = memfd_create("nameless", 0);

  NEED(shared >= 0 && write(shared, "0123456789", 10) == 10 && lseek(shared, 2, SEEK_SET) == 2);
  NEED(nameless >= 0 && write(nameless, "abcdef", 6) == 6);
  CHILD(child);
  if (child.pid == 0) {
    int own = open("shared", O_RDONLY);
    lseek(own, 7, SEEK_SET);
    await_parent(&child);
    char a, b;
    _exit(read(shared, &a, 1) != 1 || a != '3'                                ? 1
          : read(own, &b, 1) != 1 || b != '7'                                 ? 2
          : lseek(nameless, 0, SEEK_CUR) != 4 || write(nameless, "E", 1) != 1 ? 3
                                                                              : 0);
  }
  settle(1);
  ready();
  await_go();
  char a;
  CHECK(read(shared, &a, 1) == 1 && a == '2', "its offset");
  CHECK(lseek(nameless, 4, SEEK_SET) == 4, "the nameless one's offset");
  check_child(&child, "the child");
  CHECK(read(shared, &a, 1) == 1 && a == '4', "the offset is not shared");
  CHECK(lseek(nameless, 0, SEEK_CUR) == 5 && pread(nameless, &a, 1, 4) == 1 && a == 'E', "the nameless one");
}

struct common {
  uint32_t turn;
  int count;
};

static void
take_turn(struct common *common, uint32_t mine)
{
  for (uint32_t now; (now = __atomic_load_n(&common->turn, __ATOMIC_SEQ_CST)) != mine;)
    syscall(SYS_futex, &common->turn, FUTEX_WAIT, now, NULL, NULL, 0);
}

static void
give_turn(struct common *common, uint32_t to)
{
  __atomic_store_n(&common->turn, to, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &common->turn, FUTEX_WAKE, 100, NULL, NULL, 0);
}

VICTIM(shared_memory, "memory that they share, with and without a name, and who waits there")
{
  meet();
  struct common *common = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int fd = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);

  NEED(common != MAP_FAILED && fd >= 0 && ftruncate(fd, 4096) == 0);
  int *named = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  NEED(named != MAP_FAILED);
  common->count = 40;
  *named = 50;
  pid_t child = fork();
  if (child == 0) {
    int *part = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *part = 7;
    arrive();
    take_turn(common, 1);
    common->count++;
    ++*named;
    give_turn(common, 2);
    _exit(*part != 7);
  }
  settle(1);
  ready();
  await_go();
  CHECK(common->count == 40 && *named == 50, "%d, %d", common->count, *named);
  give_turn(common, 1);
  take_turn(common, 2);
  CHECK(common->count == 41, "the memory is not shared: %d", common->count);
  CHECK(*named == 51, "the file's memory is not shared: %d", *named);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
}

VICTIM(sockets, "socket pairs between processes, and a listening socket that both have")
{
  struct told_child child;
  meet();
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0);
  char text[8] = {0};

  NEED(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
  NEED(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 5) == 0 &&
       getsockname(listener, (struct sockaddr *)&address, &length) == 0);
  CHILD(child);
  if (child.pid == 0) {
    close(pair[0]);
    if (write(pair[1], "one", 3) != 3 || write(pair[1], "three", 5) != 5)
      _exit(1);
    await_parent(&child);
    int client = accept(listener, NULL, NULL);
    _exit(client < 0 || write(client, "served", 6) != 6);
  }
  close(pair[1]);
  settle(1);
  ready();
  await_go();
  CHECK(read(pair[0], text, sizeof text) == 3 && read(pair[0], text, sizeof text) == 5, "unread messages");
  int client = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0, "connect: %s", strerror(errno));
  CHECK(write(child.go, "g", 1) == 1 && read(client, text, 6) == 6 && memcmp(text, "served", 6) == 0, "the answer");
  int status;
  CHECK(waitpid(child.pid, &status, 0) == child.pid && status == 0, "the child: %#x", status);
  CHECK(read(pair[0], text, 1) == 0, "the other end is closed");
}

VICTIM(polled, "an epoll and an event counter that both have")
{
  struct told_child child;
  meet();
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
  int counter = eventfd(0, 0), epoll = epoll_create1(0);

  NEED(counter >= 0 && epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &event) == 0);
  CHILD(child);
  if (child.pid == 0) {
    /* The number of what is watched is another file's here. */
    int moved = dup(counter);
    if (moved < 0 || dup2(open("/dev/null", O_RDONLY), counter) < 0)
      _exit(1);
    await_parent(&child);
    uint64_t one = 1;
    struct epoll_event got = {0};
    _exit(write(moved, &one, 8) != 8 || epoll_wait(epoll, &got, 1, 1000) != 1 || got.data.u64 != 77);
  }
  settle(1);
  ready();
  await_go();
  check_child(&child, "the child");
  CHECK(epoll_wait(epoll, &event, 1, 1000) == 1 && event.data.u64 == 77, "the parent's epoll");
}

static bool
range(int fd, int command, short type, off_t start, off_t length, struct flock *out)
{
  *out = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  return fcntl(fd, command, out) == 0;
}

VICTIM(locks, "locks of files: of processes, of open files, whole")
{
  struct told_child child;
  struct flock lock;

  meet();
  int ranges = open("ranges", O_RDWR | O_CREAT, 0600), opened = open("ranges", O_RDWR),
      whole = open("whole", O_CREAT, 0600);
  int nameless = memfd_create("nameless", 0);
  NEED(ranges >= 0 && whole >= 0 && flock(whole, LOCK_EX) == 0 && range(ranges, F_SETLK, F_WRLCK, 10, 5, &lock) &&
       range(opened, F_OFD_SETLK, F_RDLCK, 100, 0, &lock) && range(nameless, F_SETLK, F_WRLCK, 0, 0, &lock));
  CHILD(child);
  if (child.pid == 0) {
    bool took = range(ranges, F_SETLK, F_WRLCK, 20, 1, &lock);
    await_parent(&child);
    int again = open("whole", O_RDONLY), other = open("ranges", O_RDWR);
    _exit(!took                                                                                             ? 1
          : !range(ranges, F_GETLK, F_WRLCK, 0, 20, &lock) || lock.l_pid != getppid() || lock.l_start != 10 ? 2
          : lock.l_len != 5 || lock.l_type != F_WRLCK                                                       ? 3
          : flock(whole, LOCK_EX | LOCK_NB) < 0                                                             ? 4
          : flock(again, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK                                    ? 5
          : range(other, F_OFD_SETLK, F_WRLCK, 200, 1, &lock)                                               ? 6
          : !range(nameless, F_GETLK, F_RDLCK, 0, 1, &lock) || lock.l_pid != getppid()                      ? 7
                                                                                                            : 0);
  }
  settle(1);
  ready();
  await_go();
  CHECK(range(ranges, F_GETLK, F_RDLCK, 15, 0, &lock) && lock.l_type == F_WRLCK && lock.l_pid == child.pid,
        "the child's lock: %d of %d", lock.l_type, lock.l_pid);
  check_child(&child, "the child");
}

/* ---- memory that forks have in common -------------------------------------------------------------------------- */

#define SHARED_PAGES 2048
#define PAGE 4096

/* What stands in a page, by who has written it last. */
static void
write_pages(unsigned char *memory, int from, int to, int step, int writer)
{
  for (int i = from; i < to; i += step)
    for (int j = 0; j < PAGE; j += 512)
      memset(memory + (size_t)i * PAGE + j, (i * 7 + j / 512 + writer * 31) % 251 + 1, 256);
}

/* The first page that differs, and one; or 0. */
static int
differs(const unsigned char *memory, const unsigned char *wanted, int from, int to)
{
  for (int i = from; i < to; i++)
    if (memcmp(memory + (size_t)i * PAGE, wanted + (size_t)i * PAGE, PAGE) != 0)
      return i + 1;
  return 0;
}

/* Both of the memory and of what it is to be, which nobody else changes. */
static void
change(unsigned char *memory, unsigned char *wanted, int from, int to, int step, int writer)
{
  write_pages(memory, from, to, step, writer);
  write_pages(wanted, from, to, step, writer);
}

static void
answer_for(int question, int answer, unsigned char *memory, const unsigned char *wanted)
{
  char byte;

  arrive();
  while (read(question, &byte, 1) == 1) {
    int wrong = differs(memory, wanted, 0, SHARED_PAGES);
    NEED(mprotect(memory, (size_t)SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE) == 0);
    memset(memory, getpid(), (size_t)SHARED_PAGES * PAGE);
    NEED(write(answer, &wrong, sizeof wrong) == sizeof wrong);
  }
  _exit(0);
}

VICTIM(heirs,
       "memory that forks have from their parents, and what each has changed, given up, protected and unmapped")
{
  size_t length = (size_t)SHARED_PAGES * PAGE;
  unsigned char *memory = anonymous(length),
                *wanted = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  unsigned char *of[3];
  int question[3][2], answer[3][2], wrong;

  NEED(wanted != MAP_FAILED);
  meet();
  change(memory, wanted, 0, SHARED_PAGES, 1, 0);
  for (int i = 0; i < 3; i++) {
    of[i] = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(of[i] != MAP_FAILED && pipe(question[i]) == 0 && pipe(answer[i]) == 0);
    memcpy(of[i], wanted, length);
  }
  if (fork() == 0) {
    change(memory, of[0], 3, SHARED_PAGES, 7, 1);
    change(memory, of[0], 600, 700, 1, 1);
    NEED(madvise(memory + 100 * PAGE, 200 * PAGE, MADV_DONTNEED) == 0);
    memset(of[0] + 100 * PAGE, 0, 200 * PAGE);
    NEED(mprotect(memory + 400 * PAGE, 250 * PAGE, PROT_READ) == 0);
    /* Its own child has what is between the two. */
    memcpy(of[1], of[0], length);
    if (fork() == 0) {
      NEED(mprotect(memory, length, PROT_READ | PROT_WRITE) == 0);
      change(memory, of[1], 50, 1500, 3, 2);
      answer_for(question[1][0], answer[1][1], memory, of[1]);
    }
    answer_for(question[0][0], answer[0][1], memory, of[0]);
  }
  if (fork() == 0) {
    change(memory, of[2], 5, 40, 1, 3);
    answer_for(question[2][0], answer[2][1], memory, of[2]);
  }
  /* Not before they have it. */
  settle(3);
  change(memory, wanted, 800, 900, 1, 4);
  change(memory, wanted, 1, SHARED_PAGES, 64, 4);
  NEED(munmap(memory + 1000 * PAGE, 100 * PAGE) == 0);
  ready();
  await_go();
  for (int i = 0; i < 3; i++) {
    NEED(write(question[i][1], "?", 1) == 1 && read(answer[i][0], &wrong, sizeof wrong) == sizeof wrong);
    CHECK(wrong == 0, "page %d of number %d differs", wrong - 1, i);
  }
  wrong = differs(memory, wanted, 0, 1000) + differs(memory, wanted, 1100, SHARED_PAGES);
  CHECK(wrong == 0, "page %d of the first differs", wrong - 1);
  end_all();
}
