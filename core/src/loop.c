/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "loop.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#define EVENTS_AT_ONCE 64
#define POLLED_AT_ONCE 256

static int epoll = -1;
static int timer = -1;
static bool stopping;
static struct deadline **heap;
static int heap_count, heap_capacity;
static uint64_t armed_at;
static bool armed_ahead; /* it was armed for a moment to come: how late it fires tells of the machine */
static bool near; /* an exact deadline is so near that sleeping would miss it */
static uint64_t awake_until;

/* A processor that idles wakes up late, by 50 us on bare metal and by some milliseconds in a virtual machine. So the
 * timer for an exact deadline is set ahead by what wakeups were late of late, and the rest is polled away. */
#define AHEAD_MAX_NS 4000000u
static uint64_t ahead_ns = 1000000u;

static uint64_t
read_clock(clockid_t clock)
{
  struct timespec now;

  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t
loop_now(void)
{
  return read_clock(CLOCK_MONOTONIC);
}

uint64_t
loop_spent(void)
{
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* ---- deadlines: a binary heap, earliest first ----------------------------------------------------------------- */

static void
heap_put(int i, struct deadline *deadline)
{
  heap[i] = deadline;
  deadline->index = i + 1;
}

static void
heap_up(int i)
{
  struct deadline *moving = heap[i];

  while (i > 0 && heap[(i - 1) / 2]->at > moving->at) {
    heap_put(i, heap[(i - 1) / 2]);
    i = (i - 1) / 2;
  }
  heap_put(i, moving);
}

static void
heap_down(int i)
{
  struct deadline *moving = heap[i];

  for (;;) {
    int child = 2 * i + 1;
    if (child >= heap_count)
      break;
    if (child + 1 < heap_count && heap[child + 1]->at < heap[child]->at)
      child++;
    if (heap[child]->at >= moving->at)
      break;
    heap_put(i, heap[child]);
    i = child;
  }
  heap_put(i, moving);
}

static uint64_t
next_wakeup(void)
{
  if (!heap_count)
    return 0;
  uint64_t at = heap[0]->at;
  if (!heap[0]->exact)
    return at;
  return at > ahead_ns ? at - ahead_ns : 1;
}

/* Not while the loop looks at the deadlines at each turn: a moment that has passed would wake it for that again. */
static void
arm(void)
{
  uint64_t at = next_wakeup();
  struct itimerspec spec = {.it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};

  if (near || at == armed_at)
    return;
  armed_at = at;
  armed_ahead = at > loop_now();
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

void
deadline_clear(struct deadline *deadline)
{
  int i = deadline->index - 1;

  if (i < 0)
    return;
  deadline->index = 0;
  heap_count--;
  if (i < heap_count) {
    heap_put(i, heap[heap_count]);
    heap_up(i);
    heap_down(heap[i]->index - 1);
  }
  arm();
}

void
deadline_set(struct deadline *deadline, uint64_t at)
{
  deadline_clear(deadline);
  if (heap_count == heap_capacity) {
    int capacity = heap_capacity ? heap_capacity * 2 : 64;
    struct deadline **grown = realloc(heap, sizeof *heap * (size_t)capacity);
    /* A deadline that cannot be kept is a sandbox without a limit: end everything rather than go on. */
    if (!grown)
      _exit(EXIT_DEFECT);
    heap = grown;
    heap_capacity = capacity;
  }
  deadline->at = at ? at : 1;
  heap_put(heap_count, deadline);
  heap_count++;
  heap_up(heap_count - 1);
  arm();
}

/* The slowest of the last wakeups, and half of that again, forgotten slowly. */
static void
learn_lateness(uint64_t late)
{
  uint64_t wanted = late + late / 2;

  ahead_ns = wanted > ahead_ns ? wanted : ahead_ns - (ahead_ns - wanted) / 16;
  if (ahead_ns > AHEAD_MAX_NS)
    ahead_ns = AHEAD_MAX_NS;
}

static void
fire_due(void)
{
  uint64_t now = loop_now();

  while (heap_count && heap[0]->at <= now) {
    struct deadline *due = heap[0];
    /* What follows of an exact one is as urgent: the answer of those who were told. */
    if (due->exact)
      awake_until = now + ahead_ns;
    deadline_clear(due);
    due->fire(due);
  }
  if (now >= awake_until)
    awake_until = 0;
  near = awake_until || (heap_count && heap[0]->exact && heap[0]->at - now <= ahead_ns);
  arm();
}

static void
timer_ready(struct watch *watch, uint32_t events)
{
  uint64_t expirations, now = loop_now();

  (void)watch;
  (void)events;
  if (read(timer, &expirations, sizeof expirations) < 0)
    return;
  if (armed_at && armed_ahead && armed_at < now)
    learn_lateness(now - armed_at);
  armed_at = 0;
  near = true; /* what is due fires at the end of this turn */
}

static struct watch timer_watch = {timer_ready};

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

int
loop_setup(struct err *err)
{
  epoll = epoll_create1(EPOLL_CLOEXEC);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (epoll < 0 || timer < 0 || loop_add(timer, &timer_watch, EPOLLIN) < 0)
    return err_code(err, "internal", "epoll or timerfd: %s", strerror(errno));
  return 0;
}

/* What epoll had no room for: its watches are counted for the user outside (fs.epoll.max_user_watches), so one guest
 * can take all. These are polled, and moved to epoll as soon as it takes them. */
static struct polled {
  int fd;
  struct watch *watch;
  uint32_t events;
} *polled;
static struct pollfd *polled_fds; /* one more: epoll's own */
static int polled_count, polled_capacity;

static struct epoll_event pending[EVENTS_AT_ONCE + POLLED_AT_ONCE];
static int pending_count, pending_at;

static int
grow_polled(void)
{
  int capacity = polled_capacity ? polled_capacity * 2 : 16;
  struct polled *grown = realloc(polled, sizeof *polled * (size_t)capacity);

  if (!grown)
    return -1;
  polled = grown;
  struct pollfd *fds = realloc(polled_fds, sizeof *fds * (size_t)(capacity + 1));
  if (!fds)
    return -1;
  polled_fds = fds;
  polled_capacity = capacity;
  return 0;
}

static int
take_polled(int fd, struct watch *watch, uint32_t events)
{
  if (polled_count == polled_capacity && grow_polled() < 0)
    return -1;
  polled[polled_count++] = (struct polled){fd, watch, events};
  return 0;
}

static struct polled *
find_polled(int fd)
{
  for (int i = 0; i < polled_count; i++)
    if (polled[i].fd == fd)
      return &polled[i];
  return NULL;
}

static int
add_to_epoll(int fd, struct watch *watch, uint32_t events)
{
  struct epoll_event event = {.events = events, .data.ptr = watch};

  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void
move_polled(void)
{
  while (polled_count > 0) {
    const struct polled *last = &polled[polled_count - 1];
    if (add_to_epoll(last->fd, last->watch, last->events) < 0)
      return;
    polled_count--;
  }
}

/* Adds those that are ready to what epoll told; waits for both if neither has anything. */
static void
poll_both(int timeout)
{
  static int first; /* where more are ready than fit, others go first each time */
  int taken = 0;

  polled_fds[polled_count] = (struct pollfd){.fd = epoll, .events = POLLIN};
  for (int i = 0; i < polled_count; i++)
    polled_fds[i] = (struct pollfd){.fd = polled[i].fd, .events = (short)polled[i].events};
  if (poll(polled_fds, (nfds_t)polled_count + 1, pending_count > 0 ? 0 : timeout) <= 0)
    return;
  if (polled_fds[polled_count].revents && pending_count == 0)
    pending_count = epoll_wait(epoll, pending, EVENTS_AT_ONCE, 0);
  pending_count = pending_count < 0 ? 0 : pending_count;
  for (int i = 0; i < polled_count && taken < POLLED_AT_ONCE; i++) {
    int next = (first + i) % polled_count;
    if (!polled_fds[next].revents)
      continue;
    pending[pending_count++] =
        (struct epoll_event){.events = (uint16_t)polled_fds[next].revents, .data.ptr = polled[next].watch};
    taken++;
  }
  first = (first + taken) % polled_count;
}

int
loop_add(int fd, struct watch *watch, uint32_t events)
{
  int result = add_to_epoll(fd, watch, events);

  return result < 0 && errno == ENOSPC ? take_polled(fd, watch, events) : result;
}

void
loop_change(int fd, struct watch *watch, uint32_t events)
{
  struct epoll_event event = {.events = events, .data.ptr = watch};
  struct polled *one = find_polled(fd);

  if (one)
    one->events = events;
  else
    epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

void
loop_remove(int fd, struct watch *watch)
{
  struct polled *one = find_polled(fd);

  if (one)
    *one = polled[--polled_count];
  else
    epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
  for (int i = pending_at; i < pending_count; i++)
    if (pending[i].data.ptr == watch)
      pending[i].data.ptr = NULL;
}

void
loop_stop(void)
{
  stopping = true;
}

void
loop_run(bool (*idle)(void))
{
  bool busy = true;

  while (!stopping) {
    int timeout = busy || near ? 0 : -1;
    pending_count = epoll_wait(epoll, pending, EVENTS_AT_ONCE, polled_count ? 0 : timeout);
    if (pending_count < 0 && errno != EINTR)
      _exit(EXIT_DEFECT);
    move_polled();
    if (polled_count)
      poll_both(timeout);
    for (pending_at = 0; pending_at < pending_count; pending_at++) {
      struct watch *watch = pending[pending_at].data.ptr;
      if (watch)
        watch->ready(watch, pending[pending_at].events);
    }
    if (near)
      fire_due();
    /* Who was told is perhaps to run on this processor, or to end there. */
    if (near && awake_until)
      sched_yield();
    busy = pending_count > 0 || idle();
  }
}
