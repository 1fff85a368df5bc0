/* SPDX-License-Identifier: Apache-2.0
 * What is not carried: a snapshot is refused by name, and the source goes on as if nothing had been. */
#include "victim.h"

#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static void *
outlive(void *ignored)
{
  char path[64], line[256] = "";

  (void)ignored;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
  while (!strstr(line, ") Z ")) {
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0 && read(fd, line, sizeof line - 1) > 0);
    close(fd);
    sched_yield();
  }
  ready();
  await_go();
  say("OK");
  _exit(0);
}

VICTIM(leader_gone, "lives on without its first thread")
{
  pthread_t thread;

  start(&thread, outlive, NULL);
  syscall(SYS_exit, 0);
}

VICTIM(own_filter, "has installed a seccomp filter of its own")
{
  struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {1, code};

  NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  ready();
  await_go();
}

VICTIM(netlink, "fd 3 is a netlink socket")
{
  NEED(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) == 3);
  ready();
  await_go();
}

VICTIM(inotify, "fd 3 is inotify")
{
  NEED(inotify_init() == 3 && inotify_add_watch(3, ".", IN_CREATE) >= 0);
  ready();
  await_go();
}

VICTIM(terminal_unopened, "fd 3 is a terminal that nobody has opened yet")
{
  NEED(open("/dev/ptmx", O_RDWR | O_NOCTTY) == 3);
  ready();
  await_go();
}

VICTIM(terminal_exclusive, "fd 3 is a terminal in exclusive use")
{
  NEED(open("/dev/ptmx", O_RDWR | O_NOCTTY) == 3 && unlockpt(3) == 0 && open(ptsname(3), O_RDWR | O_NOCTTY) == 4);
  NEED(ioctl(4, TIOCEXCL) == 0);
  ready();
  await_go();
}

VICTIM(unix_named, "fd 3 is a unix socket with a name")
{
  struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};

  NEED(socket(AF_UNIX, SOCK_STREAM, 0) == 3 && bind(3, (struct sockaddr *)&name, sizeof name) == 0);
  ready();
  await_go();
}

static void *
stay(void *ignored)
{
  for (;;)
    pause();
  return ignored;
}

VICTIM(thread_clock, "timer 0 is of the processor time of one of several threads")
{
  timer_t timer;
  pthread_t thread;
  struct sigevent event = {.sigev_notify = SIGEV_NONE};

  start(&thread, stay, NULL);
  NEED(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0);
  ready();
  await_go();
}

VICTIM(descriptors_on_their_way, "fd 3 is a unix socket with descriptors on their way")
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control = {.align = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
  char text[1] = "x";
  struct iovec iov = {text, 1};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  int pair[2], fd = 0;
  char c;

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == 3);
  memcpy(CMSG_DATA(&control.align), &fd, sizeof fd);
  NEED(sendmsg(pair[1], &message, 0) == 1);
  ready();
  await_go();
  CHECK(recvmsg(pair[0], &message, 0) == 1 && message.msg_controllen >= CMSG_LEN(sizeof(int)), "the message");
  memcpy(&fd, CMSG_DATA(&control.align), sizeof fd);
  CHECK(fd > 0 && fcntl(fd, F_GETFD) == 0 && recv(pair[0], &c, 1, MSG_DONTWAIT) < 0, "the descriptor is %d", fd);
}

VICTIM(out_of_band, "fd 3 is a unix socket with a byte out of band")
{
  int pair[2];
  char text[8];

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == 3);
  NEED(write(pair[1], "in", 2) == 2);
  if (send(pair[1], "!", 1, MSG_OOB) != 1)
    MISSING("bytes out of band of unix sockets");
  ready();
  await_go();
  CHECK(recv(pair[0], text, 1, MSG_OOB) == 1 && text[0] == '!', "the byte out of band");
  CHECK(read(pair[0], text, sizeof text) == 2 && memcmp(text, "in", 2) == 0, "the bytes");
}

VICTIM(own_peek_offset, "fd 3 is a unix socket with a place from which it is looked at")
{
  int pair[2], place = 1;
  socklen_t length = sizeof place;
  char text[8];

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == 3 && write(pair[1], "abc", 3) == 3);
  NEED(setsockopt(pair[0], SOL_SOCKET, SO_PEEK_OFF, &place, sizeof place) == 0);
  ready();
  await_go();
  CHECK(getsockopt(pair[0], SOL_SOCKET, SO_PEEK_OFF, &place, &length) == 0 && place == 1, "its place: %d", place);
  CHECK(recv(pair[0], text, sizeof text, MSG_PEEK) == 2 && memcmp(text, "bc", 2) == 0, "a look");
}

VICTIM(unix_reset, "fd 3 is a unix socket whose connection was reset")
{
  int pair[2];
  char c;

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && write(pair[0], "unread", 6) == 6 && close(pair[1]) == 0);
  ready();
  await_go();
  CHECK(read(pair[0], &c, 1) < 0 && errno == ECONNRESET, "the error: %s", strerror(errno));
}

/* Beyond fs.pipe-user-pages-soft new pipes of a user are small, and core's are the guest's user's. */
VICTIM(pipe_beyond_quota, "is a pipe with more unread data than can be copied")
{
  static char bytes[65536];
  int full[2], other[2], taken = 0;

  memset(bytes, 'x', sizeof bytes);
  NEED(pipe(full) == 0 && write(full[1], bytes, sizeof bytes) == sizeof bytes);
  do {
    if (taken++ == 256)
      MISSING("a quota of pages in pipes");
    NEED(pipe(other) == 0);
    fcntl(other[1], F_SETPIPE_SZ, 1 << 20);
  } while (fcntl(other[1], F_GETPIPE_SZ) >= (int)sizeof bytes);
  ready();
  await_go();
  memset(bytes, 0, sizeof bytes);
  CHECK(read(full[0], bytes, sizeof bytes) == sizeof bytes && bytes[0] == 'x' && bytes[65535] == 'x', "the bytes");
}

VICTIM(gone_fifo, "fd 3 is a named pipe that was removed")
{
  NEED(mkfifo("short-lived", 0600) == 0 && open("short-lived", O_RDWR) == 3 && unlink("short-lived") == 0);
  ready();
  await_go();
}

VICTIM(gone_directory, "its working directory was removed")
{
  NEED(mkdir("short-lived", 0700) == 0 && chdir("short-lived") == 0 && rmdir("../short-lived") == 0);
  ready();
  await_go();
}

static void
make_named_file(const char *name, const char *text)
{
  int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);

  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

VICTIM(message_queue, "fd 3 is a message queue")
{
  struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};
  char message[8];

  make_named_file("/queue", "a file of the same name");
  NEED(mq_open("/queue", O_RDWR | O_CREAT, 0600, &attributes) == 3 && mq_send(3, "message", 7, 0) == 0);
  ready();
  await_go();
  CHECK(mq_receive(3, message, sizeof message, NULL) == 7 && memcmp(message, "message", 7) == 0, "the message");
}

VICTIM(linked_queue, "fd 3 is a message queue")
{
  struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};

  NEED(symlink("/proc/1/mem", "/queue") == 0);
  NEED(mq_open("/queue", O_RDWR | O_CREAT, 0600, &attributes) == 3 && mq_unlink("/queue") == 0);
  ready();
  await_go();
}

VICTIM(file_of_a_process, "fd 3 is a file of /proc")
{
  NEED(open("/proc/self/status", O_RDONLY) == 3);
  ready();
  await_go();
}

VICTIM(network_file, "fd 3 is a file of /proc")
{
  NEED(open("/proc/net/tcp", O_RDONLY) == 3);
  ready();
  await_go();
}

VICTIM(another_name, "fd 3 is a file that has another name than it was opened by")
{
  char text[8] = "";

  NEED(open("first", O_RDWR | O_CREAT, 0600) == 3 && link("first", "second") == 0 && unlink("first") == 0);
  ready();
  await_go();
  int second = open("second", O_RDONLY);
  CHECK(write(3, "text", 4) == 4 && read(second, text, sizeof text) == 4, "they are not one file");
}

VICTIM(semaphores, "has System V semaphores")
{
  int set = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);

  NEED(set >= 0 && semctl(set, 1, SETVAL, 7) == 0);
  ready();
  await_go();
  CHECK(semctl(set, 1, GETVAL) == 7 && semctl(set, 0, IPC_RMID) == 0, "the semaphore");
}

VICTIM(system_v_queue, "has System V message queues")
{
  NEED(msgget(4711, IPC_CREAT | 0600) >= 0);
  ready();
  await_go();
}

VICTIM(unattached_memory, "has System V shared memory")
{
  NEED(shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) >= 0);
  ready();
  await_go();
}

VICTIM(attached_memory, "shares System V memory")
{
  int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);

  NEED(id >= 0 && shmat(id, NULL, 0) != (void *)-1);
  ready();
  await_go();
}

VICTIM(named_queue, "has a message queue (queue)")
{
  int fd = mq_open("/queue", O_RDWR | O_CREAT, 0600, NULL);

  NEED(fd >= 0 && close(fd) == 0);
  ready();
  await_go();
}

VICTIM(shared_pieces, "has more than 4096 open files and pieces of shared memory")
{
  uint8_t *last = NULL;

  for (int i = 0; i < 5000; i++) {
    last = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(last != MAP_FAILED);
    *last = (uint8_t)i;
  }
  ready();
  await_go();
  CHECK(*last == (uint8_t)4999, "the last is %d", *last);
}
