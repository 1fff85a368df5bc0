/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

#define DEADLINES 400
#define ROUNDS 20

/* xorshift64: the same course in every run. */
static uint64_t
random_number(void)
{
  static uint64_t state = 88172645463325252u;

  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

/* ---- deadlines ------------------------------------------------------------------------------------------------ */

struct timed {
  struct deadline deadline; /* first */
  bool expected, fired;
};

static struct timed timed[DEADLINES];
static uint64_t last_fired;
static int waiting_for;
static bool in_order;

static void
note(struct deadline *deadline)
{
  struct timed *one = (struct timed *)(void *)deadline;

  in_order &= deadline->at >= last_fired && deadline->index == 0 && !one->fired;
  last_fired = deadline->at;
  one->fired = true;
  if (--waiting_for == 0)
    loop_stop();
}

/* The loop stays stopped once it was: every round runs in a process of its own. */
static bool
in_child(void (*round)(void))
{
  int status;

  fflush(stdout);
  pid_t pid = fork();
  NEED(pid >= 0);
  if (pid == 0) {
    struct err err = {0};
    NEED(loop_setup(&err) == 0);
    tap_failed_checks = 0;
    round();
    fflush(stdout);
    _exit(tap_failed_checks != 0);
  }
  NEED(waitpid(pid, &status, 0) == pid);
  return status == 0;
}

static bool
never(void)
{
  return false;
}

static void
random_round(void)
{
  uint64_t now = loop_now();

  in_order = true;
  for (size_t i = 0; i < DEADLINES; i++)
    timed[i].deadline.fire = note;
  /* Sets, sets again and clears; many share an instant, all of them past or within 5 ms. */
  for (int step = 0; step < 4 * DEADLINES; step++) {
    struct timed *one = &timed[random_number() % DEADLINES];
    if (random_number() % 4 == 0) {
      deadline_clear(&one->deadline);
      one->expected = false;
    } else {
      deadline_set(&one->deadline, now - 2000000 + random_number() % 256 * 27000);
      one->expected = true;
    }
  }
  for (size_t i = 0; i < DEADLINES; i++)
    waiting_for += timed[i].expected;
  loop_run(never);
  CHECK(in_order);
  for (size_t i = 0; i < DEADLINES; i++)
    CHECK(timed[i].fired == timed[i].expected);
}

static void
deadlines_set_and_cleared_in_any_order_fire_in_the_order_of_time(void)
{
  for (int i = 0; i < ROUNDS; i++) {
    random_number();
    CHECK(in_child(random_round));
  }
}

static uint64_t fired_at;

static void
note_time(struct deadline *deadline)
{
  (void)deadline;
  fired_at = loop_now();
  loop_stop();
}

static void
early_round(void)
{
  struct deadline one = {.fire = note_time};

  deadline_set(&one, loop_now() + 3600000000000); /* an hour: longer than any test may take */
  deadline_set(&one, loop_now() + 2000000);
  loop_run(never);
  CHECK(fired_at >= one.at);
}

static void
a_deadline_is_never_early_and_one_brought_forward_counts(void)
{
  CHECK(in_child(early_round));
}

static int times_set;

/* In the place of libc's. */
int
timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
  times_set++;
  return (int)syscall(SYS_timerfd_settime, fd, flags, new, old);
}

static struct deadline exact = {.exact = true, .fire = note_time};

/* Other deadlines come and go while the loop waits for the exact one. */
static bool
set_another(void)
{
  static struct deadline other;

  deadline_set(&other, exact.at + 3600000000000);
  return false;
}

static void
exact_round(void)
{
  deadline_set(&exact, loop_now() + 900000); /* nearer than the timer is set ahead at first */
  loop_run(set_another);
  CHECK(fired_at >= exact.at);
  CHECK(times_set == 1);
}

static void
an_exact_deadline_is_polled_for_without_setting_the_timer_at_each_turn(void)
{
  CHECK(in_child(exact_round));
}

static struct deadline victim;

static void
clear_victim(struct deadline *deadline)
{
  (void)deadline;
  deadline_clear(&victim);
}

static void
clearing_round(void)
{
  struct deadline first = {.fire = clear_victim}, last = {.fire = note_time};
  uint64_t now = loop_now();

  victim.fire = NULL; /* would crash */
  deadline_set(&first, now - 3);
  deadline_set(&victim, now - 2);
  deadline_set(&last, now - 1);
  loop_run(never);
  CHECK(victim.index == 0);
}

static void
a_deadline_cleared_by_one_that_fires_does_not_fire(void)
{
  CHECK(in_child(clearing_round));
}

static void
set_again(struct deadline *deadline)
{
  if (--waiting_for > 0)
    deadline_set(deadline, 0);
  else
    loop_stop();
}

static void
repeating_round(void)
{
  struct deadline one = {.fire = set_again};

  waiting_for = 1000;
  deadline_set(&one, 0);
  loop_run(never);
  CHECK(waiting_for == 0 && one.index == 0);
}

static void
a_deadline_may_set_itself_again_and_zero_is_at_once(void)
{
  CHECK(in_child(repeating_round));
}

static void
clearing_what_is_not_set_is_harmless(void)
{
  struct deadline one = {.fire = note};

  deadline_clear(&one);
  deadline_clear(&one);
  CHECK(one.index == 0);
}

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

struct end {
  struct watch watch; /* first */
  int reader, writer;
  int calls;
};

static struct end ends[2];

static void
open_end(struct end *end, void (*ready)(struct watch *, uint32_t))
{
  int fds[2];

  NEED(pipe2(fds, O_CLOEXEC) == 0);
  *end = (struct end){{ready}, fds[0], fds[1], 0};
  NEED(loop_add(end->reader, &end->watch, EPOLLIN) == 0);
  NEED(write(end->writer, "x", 1) == 1);
}

static void
remove_both(struct watch *watch, uint32_t events)
{
  (void)events;
  ((struct end *)(void *)watch)->calls++;
  for (size_t i = 0; i < 2; i++)
    loop_remove(ends[i].reader, &ends[i].watch);
  loop_stop();
}

static void
removing_round(void)
{
  open_end(&ends[0], remove_both);
  open_end(&ends[1], remove_both);
  loop_run(never);
  CHECK(ends[0].calls + ends[1].calls == 1);
}

static void
a_removed_watch_gets_no_event_that_was_read_already(void)
{
  CHECK(in_child(removing_round));
}

static bool epoll_is_full;

/* In the place of libc's. */
int
epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
  if (epoll_is_full && op == EPOLL_CTL_ADD) {
    errno = ENOSPC;
    return -1;
  }
  return (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

#define MANY 300

static struct end many[MANY];
static int reads_left;

static void
read_one(struct watch *watch, uint32_t events)
{
  struct end *end = (struct end *)(void *)watch;
  char byte;

  CHECK(events & EPOLLIN);
  CHECK(read(end->reader, &byte, 1) == 1);
  end->calls++;
  if (--reads_left == 0)
    loop_stop();
}

static void
full_round(void)
{
  struct end before;

  reads_left = MANY + 1;
  open_end(&before, read_one);
  epoll_is_full = true;
  for (size_t i = 0; i < MANY; i++)
    open_end(&many[i], read_one);
  loop_run(never);
  CHECK(before.calls == 1);
  for (size_t i = 0; i < MANY; i++)
    CHECK(many[i].calls == 1);
}

static void
where_epoll_is_full_what_is_added_is_heard_of_all_the_same(void)
{
  CHECK(in_child(full_round));
}

static void
write_to_the_second(struct watch *watch, uint32_t events)
{
  read_one(watch, events);
  epoll_is_full = false;
  NEED(write(ends[1].writer, "x", 1) == 1);
}

/* Added to epoll while it is full, removed, changed; then epoll has room again. */
static void
room_again_round(void)
{
  struct end removed;

  reads_left = 3;
  epoll_is_full = true;
  open_end(&removed, read_one);
  open_end(&ends[0], write_to_the_second);
  open_end(&ends[1], read_one);
  loop_remove(removed.reader, &removed.watch);
  loop_change(ends[1].reader, &ends[1].watch, 0);
  loop_change(ends[1].reader, &ends[1].watch, EPOLLIN);
  loop_run(never);
  CHECK(removed.calls == 0 && ends[0].calls == 1 && ends[1].calls == 2);
}

static void
what_epoll_had_no_room_for_can_be_changed_and_removed_and_goes_there_later(void)
{
  CHECK(in_child(room_again_round));
}

static void
waiting_round(void)
{
  struct deadline end = {.fire = note_time};

  epoll_is_full = true;
  open_end(&ends[0], read_one);
  reads_left = 2;
  deadline_set(&end, loop_now() + 2000000);
  loop_run(never);
  CHECK(reads_left == 1 && fired_at >= end.at);
}

static void
deadlines_fire_while_it_waits_for_what_epoll_had_no_room_for(void)
{
  CHECK(in_child(waiting_round));
}

static int idle_left;
static struct deadline end_of_idling = {.fire = note_time};

static bool
idle_some(void)
{
  if (idle_left == 0)
    deadline_set(&end_of_idling, loop_now() + 2000000);
  return idle_left-- > 0;
}

static void
idle_round(void)
{
  idle_left = 3;
  loop_run(idle_some);
  /* Called until it had nothing to do, and not while the loop waited. */
  CHECK(idle_left == -1);
}

static void
idle_work_is_done_while_there_is_some_and_then_the_loop_sleeps(void)
{
  CHECK(in_child(idle_round));
}

int
main(void)
{
  RUN(deadlines_set_and_cleared_in_any_order_fire_in_the_order_of_time);
  RUN(a_deadline_is_never_early_and_one_brought_forward_counts);
  RUN(an_exact_deadline_is_polled_for_without_setting_the_timer_at_each_turn);
  RUN(a_deadline_cleared_by_one_that_fires_does_not_fire);
  RUN(a_deadline_may_set_itself_again_and_zero_is_at_once);
  RUN(clearing_what_is_not_set_is_harmless);
  RUN(a_removed_watch_gets_no_event_that_was_read_already);
  RUN(where_epoll_is_full_what_is_added_is_heard_of_all_the_same);
  RUN(what_epoll_had_no_room_for_can_be_changed_and_removed_and_goes_there_later);
  RUN(deadlines_fire_while_it_waits_for_what_epoll_had_no_room_for);
  RUN(idle_work_is_done_while_there_is_some_and_then_the_loop_sleeps);
  return tap_end();
}
