/* SPDX-License-Identifier: Apache-2.0
 * Of processes of this test's, which stand for sandboxes: one below another that stands for its init. */
#define _GNU_SOURCE
#include "census.h"

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

#include "rights.h"

#define SENT SENT_MAX

static int ready[2];
static struct census_report *report;

static void
stay(void)
{
  NEED(write(ready[1], "x", 1) == 1);
  for (;;)
    pause();
}

static int
socket_with_descriptors(int kind)
{
  int ends[2];

  NEED(socketpair(AF_UNIX, kind, 0, ends) == 0);
  send_copies(ends[0], 0, SENT);
  return ends[1];
}

static void
hold_a_few(void)
{
  int ends[2];

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  send_copies(ends[0], 0, 3);
  stay();
}

static void
hold_them(void)
{
  socket_with_descriptors(SOCK_STREAM);
  stay();
}

/* Both have the same socket. */
static void
hold_them_twice(void)
{
  socket_with_descriptors(SOCK_DGRAM);
  if (fork() == 0)
    stay();
  stay();
}

/* In a socket that nobody has open, behind what hides it. */
static void
hold_them_hidden(void)
{
  int full = socket_with_descriptors(SOCK_STREAM);

  for (int i = 0; i < 3; i++) {
    int ends[2];
    NEED(socketpair(AF_UNIX, i % 2 ? SOCK_STREAM : SOCK_SEQPACKET, 0, ends) == 0);
    NEED(write(ends[0], "plain", 5) == 5);
    send_copies(ends[0], full, 1);
    close(full);
    full = ends[1];
  }
  stay();
}

static int
with_own_table(void *nothing)
{
  (void)nothing;
  socket_with_descriptors(SOCK_STREAM);
  stay();
  return 0;
}

static void
hold_them_in_a_thread(void)
{
  static char stack[65536] __attribute__((aligned(16)));

  NEED(clone(with_own_table, stack + sizeof stack, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD, NULL) > 0);
  for (;;)
    pause();
}

/* Two that look the same, of which one is had twice. */
static void
watch(void)
{
  struct epoll_event event = {.events = EPOLLIN};

  for (int i = 0; i < 2; i++) {
    int epoll = epoll_create1(0);
    for (int k = 0; k < 50; k++)
      NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, k ? dup(ready[0]) : ready[0], &event) == 0);
    if (i == 0)
      dup(epoll);
  }
  if (fork() == 0)
    stay();
  stay();
}

/* Its number stands for the sandbox's. */
static struct census_one
sandbox_with(void (*process)(void), int processes)
{
  char bytes[2];
  int init = fork();

  NEED(init >= 0);
  if (init == 0) {
    NEED(setpgid(0, 0) == 0);
    if (fork() == 0)
      process();
    for (;;)
      pause();
  }
  for (int i = 0; i < processes; i++)
    NEED(read(ready[0], bytes, 1) == 1);
  return (struct census_one){(uint64_t)init, init};
}

static void
end(const struct census_one *one)
{
  NEED(kill(-one->init, SIGKILL) == 0);
  NEED(waitpid(one->init, NULL, 0) == one->init);
}

static void
take(const struct census_one *all, int count, enum ramet_limit limit, uint64_t whole)
{
  int pid;

  memset(report, 0, sizeof *report);
  fflush(stdout);
  pid = fork();
  NEED(pid >= 0);
  if (pid == 0)
    census_main(all, count, limit, whole, report);
  NEED(waitpid(pid, NULL, 0) == pid);
  CHECK(report->complete);
}

/* Beside one who has little, and is left alone. */
static void
is_found(void (*process)(void), int processes, uint64_t amount, int holders)
{
  const struct census_one all[] = {sandbox_with(hold_a_few, 1), sandbox_with(process, processes)};

  take(all, 2, RAMET_LIMIT_IN_FLIGHT, 2 * SENT - 2);
  CHECK(report->found_count == 1);
  CHECK(report->found[0].sandbox == all[1].sandbox);
  CHECK(report->found[0].amount == amount);
  CHECK(report->found[0].pid_count == holders);
  CHECK(report->amount == amount + 3);
  end(&all[0]);
  end(&all[1]);
}

static void
who_has_descriptors_in_flight_is_found(void)
{
  is_found(hold_them, 1, SENT, 1);
}

static void
a_socket_of_two_processes_counts_once_and_both_hold_it(void)
{
  is_found(hold_them_twice, 2, SENT, 2);
}

static void
a_thread_with_a_table_of_its_own_is_looked_at(void)
{
  is_found(hold_them_in_a_thread, 1, SENT, 1);
}

static void
what_is_hidden_in_sockets_in_flight_is_found(void)
{
  is_found(hold_them_hidden, 1, SENT + 3, 1);
  CHECK(report->hidden == SENT + 2);
}

static void
nobody_is_found_where_there_is_enough(void)
{
  const struct census_one all[] = {sandbox_with(hold_them, 1)};

  take(all, 1, RAMET_LIMIT_IN_FLIGHT, 2 * SENT);
  CHECK(report->found_count == 0 && report->amount == SENT);
  end(&all[0]);
}

static void
watches_of_each_epoll_count_once_also_of_those_that_look_alike(void)
{
  const struct census_one all[] = {sandbox_with(watch, 2), sandbox_with(hold_them, 1)};

  take(all, 2, RAMET_LIMIT_EPOLL_WATCHES, 200);
  CHECK(report->found_count == 0 && report->amount == 100);
  take(all, 2, RAMET_LIMIT_EPOLL_WATCHES, 199);
  CHECK(report->found_count == 1 && report->found[0].sandbox == all[0].sandbox);
  CHECK(report->found[0].amount == 100 && report->found[0].pid_count > 0);
  end(&all[0]);
  end(&all[1]);
}

static void
sandboxes_that_are_gone_have_nothing(void)
{
  const struct census_one all[] = {sandbox_with(hold_them, 1)};

  end(&all[0]);
  take(all, 1, RAMET_LIMIT_IN_FLIGHT, 2);
  CHECK(report->found_count == 0 && report->amount == 0);
}

int
main(void)
{
  void *page = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

  NEED(page != MAP_FAILED && pipe(ready) == 0);
  report = page;
  RUN(who_has_descriptors_in_flight_is_found);
  RUN(a_socket_of_two_processes_counts_once_and_both_hold_it);
  RUN(a_thread_with_a_table_of_its_own_is_looked_at);
  RUN(what_is_hidden_in_sockets_in_flight_is_found);
  RUN(nobody_is_found_where_there_is_enough);
  RUN(watches_of_each_epoll_count_once_also_of_those_that_look_alike);
  RUN(sandboxes_that_are_gone_have_nothing);
  return tap_end();
}
