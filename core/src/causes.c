/* SPDX-License-Identifier: Apache-2.0
 * Nobody but its parent hears how a process ended. What would tell init too needs privileges of the host (the connector of
 * processes, taskstats, acct(2)), or is the guest's own (ptrace(2)). siginfo_t would not tell either: the kernel sends
 * SIGXFSZ in the name of who writes. */
#define _GNU_SOURCE
#include "causes.h"

#include <fcntl.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cgroups.h"
#include "loop.h"
#include "memory_watch.h"
#include "procfs.h"
#include "time_watch.h"

/* A shell that has nothing else to do ends so soon after what it waited for was killed, also when that had much memory to
 * give back. */
#define ECHO_NS 2000000000u

#define TAKEN_KEPT 512

/* A command's count of what was written. Its process opens that itself: it may end before init could, and /proc/PID/io of
 * who has no memory any more is the host's root's (task_dump_owner() of fs/proc/base.c). */
struct watched {
  struct watched *next;
  int pid, io;
};

static struct watched *watched;
static int introduction[2] = {-1, -1};
static int memory_group = -1, kill_events = -1;
static uint64_t file_size, kills_seen, killed_at; /* killed_at, 0: nobody was */
static uint64_t taken_at;
static enum ramet_limit taken;
/* The last of them: with a million watches a process takes seconds to end. */
static uint32_t taken_pids[TAKEN_KEPT];
static unsigned taken_next;

int
causes_open(int memory)
{
  return memory < 0 ? -1 : cgroups_open_kills(memory);
}

void
causes_start(int memory, int kills, uint64_t largest)
{
  memory_group = memory;
  kill_events = kills;
  file_size = largest;
}

void
causes_note(void)
{
  if (kill_events >= 0 && cgroups_kills_told(memory_group, kill_events, &kills_seen))
    killed_at = loop_now();
}

/* Where any of this fails a limit that was reached is not told, no more. */
void
causes_expect(void)
{
  if (file_size && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, introduction) < 0)
    introduction[0] = introduction[1] = -1;
}

/* A message of one byte and one descriptor. */
struct envelope {
  char byte;
  struct iovec part;
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct msghdr message;
};

static void
address(struct envelope *envelope)
{
  *envelope = (struct envelope){.part = {&envelope->byte, 1}};
  envelope->message = (struct msghdr){.msg_iov = &envelope->part,
                                      .msg_iovlen = 1,
                                      .msg_control = envelope->control,
                                      .msg_controllen = sizeof envelope->control};
}

void
causes_introduce(void)
{
  struct envelope envelope;
  cleanup_fd int io = introduction[1] >= 0 ? open("/proc/self/io", O_RDONLY | O_CLOEXEC) : -1;

  if (io < 0)
    return;
  address(&envelope);
  struct cmsghdr *rights = CMSG_FIRSTHDR(&envelope.message);
  *rights = (struct cmsghdr){CMSG_LEN(sizeof io), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(rights), &io, sizeof io);
  if (sendmsg(introduction[1], &envelope.message, MSG_NOSIGNAL) < 0)
    return;
}

void
causes_watch(int pid)
{
  struct envelope envelope;
  int io = -1;

  address(&envelope);
  ssize_t length = introduction[0] >= 0 ? recvmsg(introduction[0], &envelope.message, MSG_CMSG_CLOEXEC) : -1;
  const struct cmsghdr *rights = length == 1 ? CMSG_FIRSTHDR(&envelope.message) : NULL;
  if (rights)
    memcpy(&io, CMSG_DATA(rights), sizeof io);
  close_fd(&introduction[0]);
  close_fd(&introduction[1]);
  struct watched *one = io >= 0 && pid > 0 ? malloc(sizeof *one) : NULL;
  if (one)
    watched = memcpy(one, &(struct watched){watched, pid, io}, sizeof *one);
  else
    close_fd(&io);
}

static uint64_t
written_by(int pid)
{
  char text[512];

  for (const struct watched *one = watched; one; one = one->next) {
    ssize_t length = one->pid == pid && one->io >= 0 ? pread(one->io, text, sizeof text - 1, 0) : -1;
    if (length < 0)
      continue;
    text[length] = 0;
    const char *value = procfs_field(text, "wchar");
    return value ? strtoull(value, NULL, 10) : 0;
  }
  return 0;
}

static void
forget(int pid)
{
  for (struct watched **at = &watched; *at; at = &(*at)->next)
    if ((*at)->pid == pid) {
      struct watched *one = *at;
      *at = one->next;
      close_fd(&one->io);
      free(one);
      return;
    }
}

/* The signal that ended it, or by a shell's exit code what it waited for; 0: none. */
static int
signal_of(int status)
{
  if (WIFSIGNALED(status))
    return WTERMSIG(status);
  return WIFEXITED(status) && WEXITSTATUS(status) > 128 ? WEXITSTATUS(status) - 128 : 0;
}

int
causes_reap(struct ended *ended)
{
  siginfo_t info = {.si_pid = 0};

  *ended = (struct ended){.pid = -1};
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 && info.si_pid) {
    int number = info.si_code == CLD_EXITED ? info.si_status - 128 : info.si_status;
    ended->wrote = number == SIGXFSZ ? written_by(info.si_pid) : 0;
    ended->pid = info.si_pid;
  }
  /* Who is traced by init is told of when it stops, too. */
  ended->pid = wait4(ended->pid, &ended->status, __WALL | WNOHANG, &ended->usage);
  if (ended->pid > 0 && !WIFSTOPPED(ended->status))
    forget(ended->pid);
  return ended->pid;
}

/* The watcher knows whom it killed; of the kernel it is only known that it has just killed somebody. */
static bool
died_of_memory(const struct ended *ended)
{
  uint64_t now = loop_now(), watcher = memory_watch_killed_at();

  causes_note();
  if (WIFSIGNALED(ended->status) && memory_watch_killed(ended->pid))
    return true;
  if (killed_at && now - killed_at < ECHO_NS)
    return true;
  return WIFEXITED(ended->status) && watcher && now - watcher < ECHO_NS;
}

void
causes_take_back(enum ramet_limit limit, const uint32_t *pids, int count)
{
  taken = limit;
  taken_at = loop_now();
  if (count == 0)
    kill(-1, SIGKILL);
  for (int i = 0; i < count; i++)
    if (pids[i] > 1 && kill((int)pids[i], SIGKILL) == 0)
      taken_pids[taken_next++ % TAKEN_KEPT] = pids[i];
}

/* Asked once of each: after it is reaped its number may be another's. */
static bool
forget_taken(uint32_t pid)
{
  for (int i = 0; i < TAKEN_KEPT; i++)
    if (taken_pids[i] == pid) {
      taken_pids[i] = 0;
      return true;
    }
  return false;
}

static uint32_t
was_taken_back(int pid)
{
  if (!taken_at || (!forget_taken((uint32_t)pid) && loop_now() - taken_at >= ECHO_NS))
    return 0;
  return taken == RAMET_LIMIT_IN_FLIGHT ? RAMET_REACHED_IN_FLIGHT : RAMET_REACHED_EPOLL_WATCHES;
}

static bool
is_full(const char *path)
{
  struct statfs fs;

  return statfs(path, &fs) == 0 && fs.f_bfree == 0;
}

uint32_t
causes_reached(const struct ended *ended)
{
  switch (signal_of(ended->status)) {
  case SIGKILL:
    return died_of_memory(ended) ? RAMET_REACHED_MEMORY : was_taken_back(ended->pid);
  case SIGXCPU:
    return time_watch_reached(&ended->usage) ? RAMET_REACHED_CPU : 0;
  case SIGXFSZ:
    return file_size && ended->wrote >= file_size ? RAMET_REACHED_FILE_SIZE : 0;
  case SIGBUS:
    return (is_full("/") ? RAMET_REACHED_DISK : 0) | (is_full("/dev/shm") ? RAMET_REACHED_SHM : 0);
  default:
    return 0;
  }
}
