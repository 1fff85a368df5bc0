/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "mirror.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "loop.h"

struct mirror {
  struct watch watch; /* first */
  int fd;             /* -1: nobody reads */
  uint8_t *pending;   /* that the pipe has no room for */
  size_t at, length;
  void (*room)(void *owner);
  void *owner;
  bool ended;
};

static void
drop_pending(struct mirror *mirror)
{
  free(mirror->pending);
  mirror->pending = NULL;
  mirror->at = mirror->length = 0;
}

static void
close_mirror(struct mirror *mirror)
{
  if (mirror->fd >= 0)
    loop_remove(mirror->fd, &mirror->watch);
  close_fd(&mirror->fd);
  drop_pending(mirror);
}

/* How much of it was written; all of it when nobody reads. */
static size_t
push(struct mirror *mirror, const uint8_t *data, size_t length)
{
  size_t done = 0;

  while (mirror->fd >= 0 && done < length) {
    ssize_t n = write(mirror->fd, data + done, length - done);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return done;
    if (n < 0)
      close_mirror(mirror);
    else
      done += (size_t)n;
  }
  return length;
}

static void
mirror_ready(struct watch *watch, uint32_t events)
{
  struct mirror *mirror = (struct mirror *)(void *)watch;

  /* The last reader has gone. */
  if (events & EPOLLERR)
    close_mirror(mirror);
  if (mirror->length)
    mirror->at += push(mirror, mirror->pending + mirror->at, mirror->length - mirror->at);
  if (mirror->at < mirror->length)
    return;
  drop_pending(mirror);
  if (mirror->fd >= 0)
    loop_change(mirror->fd, &mirror->watch, 0);
  if (mirror->ended)
    mirror_end(mirror);
  else
    mirror->room(mirror->owner);
}

struct mirror *
mirror_make(int fd, void (*room)(void *owner), void *owner, struct err *err)
{
  cleanup_fd int end = fd;
  struct mirror *mirror = calloc(1, sizeof *mirror);
  struct stat st;

  if (!mirror) {
    err_code(err, "internal", "no memory for a stream");
    return NULL;
  }
  *mirror = (struct mirror){.watch = {mirror_ready}, .fd = -1, .room = room, .owner = owner};
  int flags = fcntl(end, F_GETFL);
  if (fstat(end, &st) < 0 || !S_ISFIFO(st.st_mode) || flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
    err_field(err, "fds", "a stream with a log is a pipe's end to write to");
  } else if (fcntl(end, F_SETFL, flags | O_NONBLOCK) < 0 || loop_add(end, &mirror->watch, 0) < 0) {
    err_code(err, "internal", "a stream cannot be watched: %s", strerror(errno));
  } else {
    mirror->fd = steal_fd(&end);
    return mirror;
  }
  free(mirror);
  return NULL;
}

bool
mirror_put(struct mirror *mirror, const uint8_t *data, size_t length)
{
  size_t done = mirror->length ? 0 : push(mirror, data, length);

  if (done == length || mirror->fd < 0)
    return true;
  size_t left = mirror->length - mirror->at;
  uint8_t *grown = malloc(left + length - done);
  if (!grown) {
    /* Its reader finds the end here, and not a gap that it does not know of. */
    close_mirror(mirror);
    return true;
  }
  if (left)
    memcpy(grown, mirror->pending + mirror->at, left);
  memcpy(grown + left, data + done, length - done);
  drop_pending(mirror);
  mirror->pending = grown;
  mirror->length = left + length - done;
  loop_change(mirror->fd, &mirror->watch, EPOLLOUT);
  return false;
}

bool
mirror_full(const struct mirror *mirror)
{
  return mirror->length != 0;
}

void
mirror_end(struct mirror *mirror)
{
  mirror->ended = true;
  mirror->owner = NULL;
  if (mirror->length)
    return;
  close_mirror(mirror);
  free(mirror);
}
