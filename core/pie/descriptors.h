/* SPDX-License-Identifier: Apache-2.0
 * A child's descriptors, which init has made and sends: each to its number; and locks on files. */
#ifndef RAMET_PIE_DESCRIPTORS_H
#define RAMET_PIE_DESCRIPTORS_H

#include "report.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct pie_message {
  void *name;
  uint32_t name_length;
  void *iov;
  uint64_t iov_length;
  void *control;
  uint64_t control_length;
  int32_t flags;
};

/* Descriptors of the next message into `out`; their count, or an error. */
PIE_CODE static __attribute__((noinline)) long
pie_receive(int socket, void *data, uint64_t length, int32_t *out, int most)
{
  struct {
    void *base;
    uint64_t length;
  } iov;
  uint8_t control[CMSG_SPACE(sizeof(int) * PIE_FDS_AT_ONCE)] __attribute__((aligned(8)));
  struct pie_message message;
  int count = 0;

  iov.base = data;
  iov.length = length;
  message.name = 0;
  message.name_length = 0;
  message.iov = &iov;
  message.iov_length = 1;
  message.control = control;
  message.control_length = sizeof control;
  message.flags = 0;
  long got = SYS3(SYS_recvmsg, socket, &message, MSG_CMSG_CLOEXEC);
  if (got <= 0)
    return got ? got : -104;
  if (message.control_length >= 16) {
    uint64_t bytes = *(uint64_t *)(void *)control;
    int32_t *fds = (int32_t *)(void *)(control + 16);
    for (uint64_t at = 16; at + 4 <= bytes && count < most; at += 4)
      out[count++] = *fds++;
  }
  return count;
}

/* All that init made, each moved above the guest's numbers at once. */
PIE_INLINE void
receive_descriptors(struct pie_args *args, int socket)
{
  int32_t *received = (int32_t *)args->received;
  uint32_t have = 0;
  uint8_t byte;

  child_step(args, RAMET_STEP_CHILD_MAKE_FDS);
  while (have < args->description_count) {
    long got = pie_receive(socket, &byte, 1, &received[have], PIE_FDS_AT_ONCE);
    if (got <= 0)
      pie_fail(args->status, RAMET_STEP_CHILD_MAKE_FDS, got ? got : -104);
    for (uint32_t i = have; i < have + (uint32_t)got; i++) {
      int low = received[i];
      if (low >= args->first_free)
        continue;
      long high = SYS3(SYS_fcntl, low, F_DUPFD_CLOEXEC, args->first_free);
      if (high < 0)
        pie_fail(args->status, RAMET_STEP_CHILD_FDS, high);
      SYS1(SYS_close, low);
      received[i] = (int32_t)high;
    }
    have += (uint32_t)got;
  }
}

PIE_INLINE void
place_descriptors(struct pie_args *args)
{
  struct pie_fd *fd = (struct pie_fd *)args->fds;

  child_step(args, RAMET_STEP_CHILD_FDS);
  for (uint32_t i = 0; i < args->fd_count; i++, fd++) {
    long result =
        SYS3(SYS_dup3, ((int32_t *)args->received)[fd->description], fd->number, fd->close_on_exec ? O_CLOEXEC : 0);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
  struct pie_epoll *item = (struct pie_epoll *)args->epolls;
  for (uint32_t i = 0; i < args->epoll_count; i++, item++) {
    struct epoll_event event;
    event.events = item->events;
    event.data.u64 = item->data;
    long result = SYS4(SYS_epoll_ctl, item->epoll, EPOLL_CTL_ADD, item->target, &event);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
}

/* A process loses its locks of a file with the first of its descriptors that is closed: behind the last that is. */
PIE_INLINE void
take_locks(struct pie_args *args)
{
  struct pie_lock *lock = (struct pie_lock *)args->locks;

  for (uint32_t i = 0; i < args->lock_count; i++, lock++) {
    struct {
      int16_t type, whence;
      int32_t zero;
      uint64_t start, length;
      int64_t pid;
    } range;
    range.type = lock->exclusive ? F_WRLCK : F_RDLCK;
    range.whence = SEEK_SET;
    range.zero = 0;
    range.start = lock->start;
    range.length = lock->length;
    range.pid = 0;
    long result = SYS3(SYS_fcntl, lock->number, F_SETLK, &range);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_FDS, result);
  }
}

#endif
