/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fdinfo.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tap.h"

#include "rights.h"

#define TEXT                                                                                                       \
  "pos:\t0\nflags:\t02\ntfd:        4 events: 1\ntfd:        5 events: 1\ntfdx: 6\nxtfd: 7\ntfd 8\n tfd: "         \
  "9\ntfd:\n"

static void
lines_of_a_name_are_counted_wherever_the_text_is_cut(void)
{
  for (size_t piece = 1; piece <= strlen(TEXT); piece++) {
    struct fdinfo_lines lines = {.name = "tfd"};
    for (size_t at = 0; at < strlen(TEXT); at += piece)
      fdinfo_count(&lines, TEXT + at, strlen(TEXT) - at < piece ? strlen(TEXT) - at : piece);
    CHECK(lines.count == 3);
  }
}

static void
a_line_that_does_not_end_counts_once(void)
{
  struct fdinfo_lines lines = {.name = "tfd"};

  fdinfo_count(&lines, "tfd", 3);
  CHECK(lines.count == 0);
  fdinfo_count(&lines, ": tfd: tfd:", 11);
  CHECK(lines.count == 1);
}

static void
bytes_of_any_kind_are_no_line(void)
{
  struct fdinfo_lines lines = {.name = "tfd"};
  char bytes[256];

  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (char)i;
  fdinfo_count(&lines, bytes, sizeof bytes);
  CHECK(lines.count == 0);
}

static void
what_is_no_number_is_none(void)
{
  CHECK(fdinfo_number("scm_fds: 253\n", "scm_fds") == 253);
  CHECK(fdinfo_number("ino:\t1\nscm_fds: 7", "scm_fds") == 7);
  CHECK(fdinfo_number("scm_fds: -1\n", "scm_fds") == 0);
  CHECK(fdinfo_number("scm_fds:\n", "scm_fds") == 0);
  CHECK(fdinfo_number("scm_fdsx: 4\n", "scm_fds") == 0);
  CHECK(fdinfo_number("", "scm_fds") == 0);
  CHECK(fdinfo_number("scm_fds: 99999999999999999999999\n", "scm_fds") == UINT64_MAX);
}

static void
the_kernel_tells_of_descriptors_that_wait_in_a_socket(void)
{
  int ends[2];

  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  CHECK(fdinfo_in_flight(getpid(), ends[1]) == 0);
  send_copies(ends[0], 0, 3);
  send_copies(ends[0], 0, 2);
  CHECK(fdinfo_in_flight(getpid(), ends[1]) == 5);
  CHECK(fdinfo_in_flight(getpid(), ends[0]) == 0);
  close(ends[0]);
  CHECK(fdinfo_in_flight(getpid(), ends[1]) == 5);
  close(ends[1]);
  CHECK(fdinfo_in_flight(getpid(), ends[1]) == 0);
}

static void
the_kernel_tells_of_each_watch(void)
{
  struct epoll_event event = {.events = EPOLLIN};
  int ends[2], epoll = epoll_create1(0);

  NEED(epoll >= 0 && pipe(ends) == 0);
  CHECK(fdinfo_watches(getpid(), epoll) == 0);
  for (int i = 0; i < 200; i++)
    NEED(epoll_ctl(epoll, EPOLL_CTL_ADD, dup(ends[0]), &event) == 0);
  CHECK(fdinfo_watches(getpid(), epoll) == 200);
}

int
main(void)
{
  RUN(lines_of_a_name_are_counted_wherever_the_text_is_cut);
  RUN(a_line_that_does_not_end_counts_once);
  RUN(bytes_of_any_kind_are_no_line);
  RUN(what_is_no_number_is_none);
  RUN(the_kernel_tells_of_descriptors_that_wait_in_a_socket);
  RUN(the_kernel_tells_of_each_watch);
  return tap_end();
}
