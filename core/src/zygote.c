/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "zygote.h"

#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "cgroups.h"
#include "commands.h"
#include "log.h"
#include "loop.h"
#include "networks.h"
#include "sandbox.h"
#include "syscalls.h"
#include "title.h"
#include "wire.h"

#define STEP RAMET_STEP_CLONE_INIT

/* ---- inside --------------------------------------------------------------------------------------------------- */

static uint8_t order_buffer[RAMET_FRAME_BYTES];

static int
compare(const void *one, const void *other)
{
  int a = *(const int *)one, b = *(const int *)other;

  return (a > b) - (a < b);
}

/* What an init needs at its birth stays open. */
static int
close_others(int orders)
{
  int kept[CGROUP_DIRECTORIES_MAX + 2], count = cgroups_descriptors(kept);
  unsigned from = 0;

  kept[count++] = orders;
  kept[count++] = networks_home();
  qsort(kept, (size_t)count, sizeof kept[0], compare);
  for (int i = 0; i < count; i++) {
    if (kept[i] < 0)
      continue;
    if ((unsigned)kept[i] > from && sys_close_range(from, (unsigned)kept[i] - 1, 0) < 0)
      return -1;
    from = (unsigned)kept[i] + 1;
  }
  return (int)sys_close_range(from, UINT_MAX, 0);
}

static void
answer(int orders, uint16_t kind, uint64_t number, const struct writer *writer, const int *fds, int fd_count)
{
  if (frame_send_waiting(orders, kind, number, writer, fds, fd_count) < 0)
    _exit(EXIT_DEFECT);
}

static void
carry_out(int orders, struct frame *order)
{
  cleanup_writer struct writer writer = {0};
  struct birth birth;
  struct err err = {0};
  int fds[2] = {-1, -1};

  if (order->payload.length != sizeof birth)
    _exit(EXIT_DEFECT);
  memcpy(&birth, order->payload.data, sizeof birth);
  birth.network = order->fd_count ? order->fds[0] : -1;
  int pid = entry_clone(&birth, fds, &err);
  if (pid < 0) {
    put_err(&writer, &err);
    answer(orders, RAMET_INIT_FAILED, birth.number, &writer, NULL, 0);
    return;
  }
  put_u32(&writer, RAMET_TAG_PID, (uint32_t)pid);
  answer(orders, RAMET_INIT_PREPARED, birth.number, &writer, fds, 2);
  close_fd(&fds[0]);
  close_fd(&fds[1]);
}

static void __attribute__((noreturn))
zygote_main(int orders)
{
  struct pollfd polled = {orders, POLLIN, 0};
  struct frame order;
  struct err err;

  title_set("ramet-zygote");
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (close_others(orders) < 0)
    _exit(EXIT_SYSTEM);
  for (;;) {
    if (poll(&polled, 1, -1) < 0 && errno != EINTR)
      _exit(EXIT_SYSTEM);
    switch (frame_receive(orders, order_buffer, &order, &err)) {
    case FRAME_NONE:
      break;
    case FRAME_CLOSED:
      _exit(0);
    case FRAME_MALFORMED:
      _exit(EXIT_DEFECT);
    case FRAME_GOT:
      carry_out(orders, &order);
      frame_release(&order);
    }
  }
}

/* ---- core's side ---------------------------------------------------------------------------------------------- */

static uint8_t answer_buffer[RAMET_FRAME_BYTES];
static int zygote_pid;
static int orders_socket = -1;

static void
answer_ready(struct watch *watch, uint32_t events)
{
  (void)watch;
  (void)events;
  zygote_hear();
}

static struct watch answers = {answer_ready};

static int
start(struct err *err)
{
  int pair[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, STEP, "socketpair: %s", strerror(errno));
  long pid = loop_add(pair[0], &answers, EPOLLIN) < 0 ? -1 : sys_clone(0, NULL);
  if (pid == 0)
    zygote_main(pair[1]);
  int saved = errno;
  close(pair[1]);
  if (pid < 0) {
    loop_remove(pair[0], &answers);
    close(pair[0]);
    errno = saved;
    return err_step(err, STEP, "fork the process that entries come from: %s", strerror(errno));
  }
  zygote_pid = (int)pid;
  orders_socket = pair[0];
  return 0;
}

/* What was ordered and not answered never will be. */
static void
lost(void)
{
  struct err err;

  if (orders_socket < 0)
    return;
  loop_remove(orders_socket, &answers);
  close_fd(&orders_socket);
  errno = EPIPE;
  err_step(&err, STEP, "the process that entries come from has ended");
  log_err("zygote_lost", &err);
  sandbox_entries_lost(&err);
}

static void
take_answer(struct frame *frame)
{
  struct err err;
  uint32_t pid;

  if (frame->kind == RAMET_INIT_FAILED) {
    failure_read(frame, &err);
    sandbox_entry_failed(frame->request, &err);
  } else if (frame->kind == RAMET_INIT_PREPARED && frame->fd_count == 2 && pid_read(frame, &pid) == 0) {
    sandbox_entry_made(frame->request, (int)pid, frame_steal_fd(frame, 0), frame_steal_fd(frame, 1));
  } else {
    _exit(EXIT_DEFECT);
  }
}

void
zygote_hear(void)
{
  struct frame frame;
  struct err err;

  while (orders_socket >= 0) {
    switch (frame_receive(orders_socket, answer_buffer, &frame, &err)) {
    case FRAME_NONE:
      return;
    case FRAME_GOT:
      take_answer(&frame);
      frame_release(&frame);
      break;
    case FRAME_MALFORMED: /* core had no room for its descriptors: init, whose channel is closed, goes by itself */
      sandbox_entry_failed(frame.request, &err);
      break;
    case FRAME_CLOSED:
      lost();
      return;
    }
  }
}

static int
send_order(const struct birth *birth)
{
  cleanup_writer struct writer writer = {0};

  put_raw(&writer, (struct span){(const uint8_t *)birth, sizeof *birth});
  return frame_send(orders_socket, RAMET_INIT_PREPARE, birth->number, &writer, &birth->network,
                    birth->network >= 0);
}

int
zygote_order(const struct birth *birth, struct err *err)
{
  if (orders_socket < 0 && start(err) < 0)
    return -1;
  /* Where it has died, that is about to be read, and told of this order as of the others. */
  if (send_order(birth) < 0 && errno != EPIPE && errno != ECONNRESET)
    return err_step(err, STEP, "order an entry: %s", strerror(errno));
  return 0;
}

bool
zygote_reaped(int pid)
{
  if (pid != zygote_pid)
    return false;
  zygote_pid = 0;
  zygote_hear();
  lost();
  return true;
}
