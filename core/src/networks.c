/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "networks.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "syscalls.h"

/* PIDFD_GET_NET_NAMESPACE of linux/pidfd.h, from Linux 6.11 on: _IO(0xFF, 4). */
#define GET_NETWORK _IO(0xFF, 4)
#define KEPT_MAX 64
/* Nobody makes sandboxes any more: what is kept goes. */
#define COOLING_NS 100000000u

/* What shows that somebody has used it: each packet that passed the loopback device, each that was not sent, flow labels
 * that outlive their sockets. */
static const char *const readings[] = {"dev", "snmp", "snmp6", "ip6_flowlabel"};
#define READINGS (sizeof readings / sizeof readings[0])
#define READING_BYTES 8192

static int kept[KEPT_MAX];
static int kept_count;
static int home = -1;
static char fresh[READINGS][READING_BYTES]; /* what a new one reads */
static enum { UNKNOWN, KNOWN, UNREADABLE } known;
static struct deadline cooling;

static bool
read_text(const char *name, char text[READING_BYTES])
{
  char path[48];
  size_t length = 0;

  /* Through the directory of core's first thread, which is the one that goes in and out. */
  snprintf(path, sizeof path, "/proc/self/net/%s", name);
  cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && length < READING_BYTES - 1) {
    ssize_t got = read(fd, text + length, READING_BYTES - 1 - length);
    if (got < 0)
      return false;
    if (got == 0) {
      text[length] = 0;
      return length > 0;
    }
    length += (size_t)got;
  }
  return false;
}

/* The other numbers of the file are those of the whole machine. */
static bool
no_socket(void)
{
  static const char none[] = "sockets: used 0\n";
  char text[READING_BYTES];

  return read_text("sockstat", text) && strncmp(text, none, sizeof none - 1) == 0;
}

static bool
reads_as_new(void)
{
  char text[READING_BYTES];

  if (!no_socket())
    return false;
  for (size_t i = 0; i < READINGS; i++)
    if (!read_text(readings[i], text) || strcmp(text, fresh[i]) != 0)
      return false;
  return true;
}

int
networks_setup(struct err *err)
{
  home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  return home < 0 ? err_code(err, "internal", "open /proc/self/ns/net: %s", strerror(errno)) : 0;
}

int
networks_home(void)
{
  return home;
}

int
network_enter(int network)
{
  return home < 0 ? -1 : setns(network, CLONE_NEWNET);
}

void
network_leave(void)
{
  if (setns(home, CLONE_NEWNET) == 0)
    return;
  /* It would work on in the network of a guest. */
  log_text("network_left_behind", "there is no way back to core's own network namespace");
  _exit(EXIT_DEFECT);
}

/* Once: one is made to be read. */
static bool
know_fresh(void)
{
  if (known != UNKNOWN)
    return known == KNOWN;
  known = UNREADABLE;
  if (home < 0 || unshare(CLONE_NEWNET) < 0)
    return false;
  bool whole = no_socket();
  for (size_t i = 0; i < READINGS; i++)
    whole = whole && read_text(readings[i], fresh[i]);
  network_leave();
  if (whole)
    known = KNOWN;
  return whole;
}

static void
cooled(struct deadline *deadline)
{
  (void)deadline;
  while (kept_count > 0)
    close_fd(&kept[--kept_count]);
}

int
network_of(int pidfd)
{
  return kept_count < KEPT_MAX && know_fresh() ? ioctl(pidfd, GET_NETWORK, 0) : -1;
}

void
network_keep(int network)
{
  bool good = false;

  if (kept_count < KEPT_MAX && network_enter(network) == 0) {
    good = reads_as_new();
    network_leave();
  }
  if (!good) {
    close(network);
    return;
  }
  kept[kept_count++] = network;
  cooling.fire = cooled;
  deadline_set(&cooling, loop_now() + COOLING_NS);
}

int
network_take(void)
{
  return kept_count > 0 ? kept[--kept_count] : -1;
}
