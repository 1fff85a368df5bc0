/* SPDX-License-Identifier: Apache-2.0
 * Pipes and named pipes: one key for all open ends of one pipe, its unread bytes with the first of them. */
#define _GNU_SOURCE
#include "capture_fds.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "streamlog.h"

static bool
is_same_pipe(const struct found_fd *a, const struct found_fd *b)
{
  return S_ISFIFO(a->st.st_mode) && S_ISFIFO(b->st.st_mode) && a->st.st_ino == b->st.st_ino &&
         a->st.st_dev == b->st.st_dev;
}

/* Of all open files of this pipe, with any access, the first of the table. */
static bool
is_first(const struct writing *w)
{
  for (int i = 0; i < w->table->count; i++)
    if (is_same_pipe(&w->table->items[i], w->fd))
      return &w->table->items[i] == w->fd;
  return true;
}

static bool
has_packets(const struct writing *w)
{
  for (int i = 0; i < w->table->count; i++)
    if (is_same_pipe(&w->table->items[i], w->fd) && w->table->items[i].open_flags & O_DIRECT)
      return true;
  return false;
}

static int
failed(const struct writing *w, struct err *err)
{
  return err_step(err, RAMET_STEP_DESCRIPTORS, "content of fd %d: %s", w->fd->number, strerror(errno));
}

/* tee(2) copies what is unread and leaves it there, as far as the other pipe has room. That one is core's: it does not
 * get the size of the guest's where core's user has too many pages in pipes (fs.pipe-user-pages-soft). */
static int
copy_unread(struct writing *w, int pipe, int unread, struct err *err)
{
  int pair[2];

  if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
    return failed(w, err);
  cleanup_fd int read_end = pair[0], write_end = pair[1];
  fcntl(write_end, F_SETPIPE_SZ, (int)w->out.value[1]);
  ssize_t length = tee(pipe, write_end, (size_t)unread, SPLICE_F_NONBLOCK);
  if (length < 0 && errno != EAGAIN)
    return failed(w, err);
  if (length != unread)
    return fd_refuse(w, err, "a pipe with more unread data than can be copied");
  cleanup_free uint8_t *content = malloc((size_t)length);
  cleanup_fd int file = memfd_create("ramet-pipe", MFD_CLOEXEC);
  ssize_t got = content ? read(read_end, content, (size_t)length) : -1;
  if (got != length || file < 0 || write(file, content, (size_t)got) != got)
    return failed(w, err);
  return fd_keep_content(w, file, (uint64_t)got, err);
}

static int
keep_unread(struct writing *w, int pipe, struct err *err)
{
  int unread;

  if (ioctl(pipe, FIONREAD, &unread) < 0)
    return failed(w, err);
  if (unread == 0)
    return 0;
  if (has_packets(w))
    return fd_refuse(w, err, "a pipe of packets with unread data");
  return copy_unread(w, pipe, unread, err);
}

/* What core has not read of a command's output comes into the child's log: at the instant at which the count and the
 * pipe go together. The guest stands still, so that comes when core has done with one read. */
static int
keep_of_command(struct writing *w, int pipe, struct capture_command *command, int stream, struct err *err)
{
  uint64_t *begin = &command->command.begin[stream - 1], after;

  for (;;) {
    if (streamlog_settled(command->log, stream - 1, begin)) {
      w->out.content_length = 0;
      if (keep_unread(w, pipe, err) < 0)
        return -1;
      if (streamlog_settled(command->log, stream - 1, &after) && after == *begin)
        return 0;
    }
    sched_yield();
  }
}

int
fd_write_pipe(struct writing *w, struct err *err)
{
  size_t length = strlen(w->fd->link);
  char path[64];
  int stream = 0;

  w->out.kind = IMAGE_PIPE;
  w->out.value[0] = w->fd->st.st_ino;
  w->out.value[2] = w->fd->st.st_dev;
  if (w->fd->link[0] == '/') {
    if (!fd_has_name(w))
      return fd_refuse(w, err,
                       capture_ends_deleted(w->fd->link) ? "a named pipe that was removed"
                                                         : "a named pipe of another mount");
    memcpy(w->path, w->fd->link, length);
    w->path_length = length;
  }
  if (!is_first(w))
    return 0;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", w->capture->pid, w->fd->number);
  cleanup_fd int pipe = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (pipe < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "pipe of fd %d: %s", w->fd->number, strerror(errno));
  int size = fcntl(pipe, F_GETPIPE_SZ);
  if (size < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "pipe of fd %d: %s", w->fd->number, strerror(errno));
  w->out.value[1] = (uint64_t)size;
  struct capture_command *command = capture_command_of(w->capture->source, &w->fd->st, &stream);
  return command && stream > 0 ? keep_of_command(w, pipe, command, stream, err) : keep_unread(w, pipe, err);
}
