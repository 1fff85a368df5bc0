/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "overuse.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "census.h"
#include "log.h"
#include "loop.h"
#include "sandbox.h"
#include "shares.h"
#include "syscalls.h"

#define LOOK_NS 500000000u
/* Descriptors that are only on their way have arrived by then. */
#define AGAIN_NS 150000000u
#define CENSUS_NS 60000000000u
/* Of which user it is that a command runs as: the kernel counts for each. More are not watched. */
#define USERS_MAX 16
/* What most programs may have open (RLIMIT_NOFILE): with more in flight sendmsg(2) of those fails with ETOOMANYREFS. */
#define COMMON_FILES 1024
/* Of a watch, for 64 bits: EP_ITEM_COST of fs/eventpoll.c. */
#define WATCH_BYTES 192
/* One of whose processes so many were killed within that time, and that goes on, loses all of them. */
#define PATIENCE 2
#define PATIENCE_NS 10000000000u

/* What is counted, by whom. */
struct count {
  enum ramet_limit limit;
  const char *name;
  uint64_t whole; /* for all sandboxes */
  struct census_report *report;
  int pid; /* of the census, or 0 */
  uint64_t begun;
  bool told; /* that it found nobody */
};

static struct count in_flight = {.limit = RAMET_LIMIT_IN_FLIGHT, .name = "descriptors in flight"};
static struct count watches = {.limit = RAMET_LIMIT_EPOLL_WATCHES, .name = "epoll watches"};
static uint32_t users[USERS_MAX];
static int user_count;
static int ends[2] = {-1, -1}, event = -1, meminfo = -1;
static struct deadline next_look;
static uint64_t kernel_memory; /* since the last census the least */
static bool suspected;

/* ---- probes --------------------------------------------------------------------------------------------------- */

/* `probe` as this user: for its real id the kernel counts, and the capabilities stay with the effective one. Core has one
 * thread. */
static bool
as_user(uint32_t uid, bool (*probe)(void))
{
  if (uid && setresuid(uid, (uid_t)-1, (uid_t)-1) < 0)
    return false;
  bool result = probe();
  if (uid && setresuid(0, (uid_t)-1, (uid_t)-1) < 0)
    _exit(EXIT_DEFECT);
  return result;
}

static bool
send_one(void)
{
  char byte = 0;
  struct iovec iov = {&byte, 1};
  char control[CMSG_SPACE(sizeof event)] __attribute__((aligned(8))) = {0};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

  *rights = (struct cmsghdr){CMSG_LEN(sizeof event), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(rights), &event, sizeof event);
  if (sendmsg(ends[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    return errno != ETOOMANYREFS;
  /* Without room for it the descriptor is gone. */
  return recv(ends[1], &byte, 1, MSG_DONTWAIT) == 1;
}

/* The kernel compares what the user has in flight with the sender's soft limit. */
static bool
has_much_in_flight(void)
{
  struct rlimit usual, less;

  if (getrlimit(RLIMIT_NOFILE, &usual) < 0)
    return false;
  less = (struct rlimit){SHARES_ALL(in_flight.whole), usual.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &less) < 0)
    return false;
  bool passed = send_one();
  if (setrlimit(RLIMIT_NOFILE, &usual) < 0)
    _exit(EXIT_DEFECT);
  return !passed;
}

/* Watches are counted for who made their epoll. */
static bool
has_no_watch_left(void)
{
  struct epoll_event nothing = {0};
  cleanup_fd int epoll = epoll_create1(EPOLL_CLOEXEC);

  return epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, event, &nothing) < 0 && errno == ENOSPC;
}

/* Nothing tells how many watches there are, but they take memory of the kernel's: whether that has grown by what half
 * as many as all may have take. What else takes it costs a census. */
static bool
has_grown(void)
{
  char text[2048];
  ssize_t length = pread(meminfo, text, sizeof text - 1, 0);

  text[length > 0 ? length : 0] = 0;
  const char *value = strstr(text, "SUnreclaim:");
  uint64_t bytes = value ? strtoull(value + strlen("SUnreclaim:"), NULL, 10) * 1024 : 0;
  if (!kernel_memory || bytes < kernel_memory)
    kernel_memory = bytes;
  return bytes - kernel_memory > SHARES_ALL(watches.whole) / 2 * WATCH_BYTES;
}

/* ---- the census ----------------------------------------------------------------------------------------------- */

static bool
is_at_work(const struct sandbox *sandbox)
{
  return sandbox->state == SANDBOX_RUNNING || sandbox->state == SANDBOX_STANDING;
}

static int
living(void)
{
  return sandbox_count(SANDBOX_STARTING) + sandbox_count(SANDBOX_RUNNING) + sandbox_count(SANDBOX_STANDING);
}

static void
begin_census(struct count *kind)
{
  cleanup_free struct census_one *all = calloc((size_t)living() + 1, sizeof *all);
  int count = 0;

  if (!all)
    return;
  for (const struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox))
    if (is_at_work(sandbox) && !sandbox->overdue)
      all[count++] = (struct census_one){sandbox->id, sandbox->pid};
  memset(kind->report, 0, sizeof *kind->report);
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    census_main(all, count, kind->limit, kind->whole, kind->report);
  if (pid < 0) {
    log_text("census_failed", strerror(errno));
    return;
  }
  kind->pid = (int)pid;
  kind->begun = loop_now();
}

static void
note(const struct count *kind, const struct census_found *found, const char *what)
{
  char text[160];

  snprintf(text, sizeof text, "sandbox %" PRIu64 " has %" PRIu64 " %s: %s", found->sandbox, found->amount,
           kind->name, what);
  log_text("overuse", text);
}

static bool
is_out_of_patience(struct sandbox *sandbox)
{
  uint64_t now = loop_now();

  if (now - sandbox->overuse_at > PATIENCE_NS)
    sandbox->overuses = 0;
  sandbox->overuse_at = now;
  return sandbox->overuses++ >= PATIENCE;
}

/* Told to init, which knows their parents and what to say of them. A number may be another's by then, of the same sandbox. */
static void
take_back(struct sandbox *sandbox, const struct count *kind, const struct census_found *found)
{
  cleanup_writer struct writer writer = {0};
  bool all = is_out_of_patience(sandbox);

  put_u32(&writer, RAMET_TAG_LIMIT, (uint32_t)kind->limit);
  for (int i = 0; i < found->pid_count && !all; i++)
    put_u32(&writer, RAMET_TAG_PID, found->pids[i]);
  note(kind, found,
       all                ? "all its processes are killed"
       : found->pid_count ? "who holds most is killed"
                          : "who held them is gone");
  /* Who forks away from each look is gone each time. */
  if (!all && !found->pid_count)
    return;
  if (frame_send(sandbox->channel, RAMET_INIT_TAKE_BACK, 0, &writer, NULL, 0) < 0)
    log_text("overuse", strerror(errno));
}

/* What nobody of ours is found to have is the user's own programs', or hidden: that is told, and nobody killed for it. */
static void
tell_of_nobody(struct count *kind)
{
  char text[160];

  snprintf(text, sizeof text, "most %s are taken, and sandboxes are found to have %" PRIu64, kind->name,
           kind->report->amount);
  if (!kind->told)
    log_text("overuse", text);
  kind->told = true;
}

static void
conclude(struct count *kind)
{
  const struct census_report *report = kind->report;

  if (!report->complete) {
    log_text("census_failed", "it did not come to its end");
    return;
  }
  for (int i = 0; i < report->found_count; i++) {
    struct sandbox *sandbox = sandbox_find(report->found[i].sandbox);
    if (sandbox && is_at_work(sandbox) && !sandbox->overdue)
      take_back(sandbox, kind, &report->found[i]);
  }
  if (report->found_count)
    kind->told = false;
  else if (kind == &in_flight)
    tell_of_nobody(kind);
}

bool
overuse_reaped(int pid)
{
  struct count *kind = pid == in_flight.pid ? &in_flight : pid == watches.pid ? &watches : NULL;

  if (!kind)
    return false;
  kind->pid = 0;
  conclude(kind);
  if (kind == &in_flight)
    suspected = false;
  else if (kind->report->complete) /* else what has grown is still to be counted */
    kernel_memory = 0;
  return true;
}

/* ---- the pace ------------------------------------------------------------------------------------------------- */

static bool
any_user(bool (*probe)(void))
{
  for (int i = 0; i < user_count; i++)
    if (as_user(users[i], probe))
      return true;
  return false;
}

/* Still at work, and not for longer than it may. */
static bool
is_counting(const struct count *kind)
{
  if (kind->pid && loop_now() - kind->begun > CENSUS_NS)
    kill(kind->pid, SIGKILL);
  return kind->pid != 0;
}

static void
look(void)
{
  if (!is_counting(&in_flight)) {
    bool much = any_user(has_much_in_flight);
    if (much && suspected)
      begin_census(&in_flight);
    suspected = much;
    in_flight.told = in_flight.told && much;
  }
  if (!is_counting(&watches) && (has_grown() || any_user(has_no_watch_left)))
    begin_census(&watches);
}

static void
look_now(struct deadline *deadline)
{
  if (living() == 0)
    return;
  look();
  deadline_set(deadline, loop_now() + (suspected && !in_flight.pid ? AGAIN_NS : LOOK_NS));
}

static uint64_t
watches_allowed(void)
{
  char text[24];
  cleanup_fd int file = open("/proc/sys/fs/epoll/max_user_watches", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);

  text[length > 0 ? length : 0] = 0;
  return strtoull(text, NULL, 10);
}

static struct census_report *
shared_report(void)
{
  void *page = mmap(NULL, sizeof(struct census_report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

  return page == MAP_FAILED ? NULL : page;
}

void
overuse_setup(void)
{
  struct rlimit files;

  in_flight.report = shared_report();
  watches.report = shared_report();
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (!in_flight.report || !watches.report || event < 0 || meminfo < 0 || getrlimit(RLIMIT_NOFILE, &files) < 0 ||
      socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
    log_text("overuse_unwatched", strerror(errno));
    return;
  }
  /* Guests may have half of core's open. */
  in_flight.whole = files.rlim_max / 2 < COMMON_FILES ? files.rlim_max / 2 : COMMON_FILES;
  watches.whole = watches_allowed() / 2;
  next_look.fire = look_now;
}

void
overuse_expect(uint32_t uid)
{
  int i = 0;

  if (!next_look.fire)
    return;
  while (i < user_count && users[i] != uid)
    i++;
  if (i == user_count && user_count < USERS_MAX)
    users[user_count++] = uid;
  if (!next_look.index)
    deadline_set(&next_look, loop_now() + LOOK_NS);
}
