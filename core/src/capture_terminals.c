/* SPDX-License-Identifier: Apache-2.0
 * Pseudo terminals whose master is a process's of the sandbox. Everybody who could use one stands still, so its bytes
 * are taken out, and put back before anybody runs. */
#define _GNU_SOURCE
#include "capture_fds.h"

#include <asm/termbits.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "terminal_content.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static int
failed(const struct writing *w, struct err *err)
{
  return err_step(err, RAMET_STEP_DESCRIPTORS, "terminal of fd %d: %s", w->fd->number, strerror(errno));
}

static bool
is_master(const struct found_fd *fd)
{
  return S_ISCHR(fd->st.st_mode) && fd->st.st_rdev == makedev(5, 2) && !(fd->open_flags & O_PATH);
}

/* By /dev/tty one opens the slave that controls the session. */
static bool
is_by_session(const struct found_fd *fd)
{
  return fd->st.st_rdev == makedev(5, 0);
}

bool
fd_is_terminal(const struct found_fd *fd)
{
  return is_master(fd) || (S_ISCHR(fd->st.st_mode) && !(fd->open_flags & O_PATH) &&
                           (major(fd->st.st_rdev) == UNIX98_SLAVES || is_by_session(fd)));
}

/* ---- who is whose --------------------------------------------------------------------------------------------- */

static int
index_of_master(const struct found_fd *fd)
{
  const char *text = procfs_field(fd->info, "tty-index");

  return text ? atoi(text) : -1;
}

/* Each instance of devpts counts its own. A name in /dev tells none, but whose session it is of. */
static bool
is_slave_of(const struct found_fd *slave, const struct found_fd *master, int index)
{
  if (!is_master(master) || master->dropped || index_of_master(master) != index)
    return false;
  return is_by_session(slave) || slave->st.st_dev == master->st.st_dev;
}

static const struct found_fd *
find_master(const struct fd_table *table, const struct found_fd *slave, int index)
{
  for (int i = 0; i < table->count; i++)
    if (table->items[i].description == (uint32_t)i && is_slave_of(slave, &table->items[i], index))
      return &table->items[i];
  return NULL;
}

static bool
has_slave(const struct writing *w, int index)
{
  for (int i = 0; i < w->table->count; i++) {
    const struct found_fd *fd = &w->table->items[i];
    if (fd_is_terminal(fd) && major(fd->st.st_rdev) == UNIX98_SLAVES && (int)minor(fd->st.st_rdev) == index &&
        fd->st.st_dev == w->fd->st.st_dev)
      return true;
  }
  return false;
}

/* Numbers inside, of what the tracer sees by others; 0: none of them is there any more. */
static int32_t
session_inside(const struct capture_tree *tree, int session)
{
  for (int i = 0; i < tree->count; i++)
    if (tree->processes[i]->pid == session)
      return tree->processes[i]->relations.pid;
  return 0;
}

static int32_t
group_inside(const struct capture_tree *tree, int group)
{
  for (int i = 0; i < tree->count; i++)
    if (getpgid(tree->processes[i]->pid) == group)
      return tree->processes[i]->relations.group;
  return 0;
}

static void
read_session(const struct writing *w, int master, struct image_terminal *terminal)
{
  int session, group;

  if (ioctl(master, TIOCGSID, &session) < 0)
    return; /* it controls none */
  terminal->session = session_inside(w->capture->tree, session);
  if (terminal->session && ioctl(master, TIOCGPGRP, &group) == 0)
    terminal->foreground = group_inside(w->capture->tree, group);
}

/* ---- a master ------------------------------------------------------------------------------------------------- */

/* What would be lost, or could not be looked at unnoticed. */
static int
refuse_master(struct writing *w, int master, const struct image_terminal *terminal, struct err *err)
{
  struct pollfd polled = {master, POLLIN | POLLPRI | POLLOUT, 0};
  int discipline = 0, session;

  if (poll(&polled, 1, 0) < 0 || ioctl(master, TIOCGETD, &discipline) < 0)
    return failed(w, err);
  if (terminal->index >= IMAGE_TERMINALS_MAX)
    return fd_refuse(w, err, "a terminal with too high a number");
  if (discipline || terminal->line || terminal->local_flags & EXTPROC)
    return fd_refuse(w, err, "a terminal whose lines are edited elsewhere");
  if (polled.revents & POLLPRI && terminal->flags & IMAGE_TERMINAL_PACKETS)
    return fd_refuse(w, err, "a terminal with a packet that tells of its state");
  if (!(polled.revents & POLLOUT))
    return fd_refuse(w, err, "a terminal that takes no input");
  /* Opened by us it would look as if it had been hung up since. */
  if (!(polled.revents & POLLHUP) && !has_slave(w, (int)terminal->index) && ioctl(master, TIOCGSID, &session) < 0)
    return fd_refuse(w, err, "a terminal that nobody has opened yet");
  return 0;
}

static int
keep_content(struct writing *w, struct image_terminal *terminal, const struct terminal_content *content,
             struct err *err)
{
  if (content->input_length + content->output_length == 0)
    return 0;
  cleanup_fd int file = memfd_create("ramet-terminal", MFD_CLOEXEC);
  if (file < 0 || write(file, content->input, content->input_length) != (ssize_t)content->input_length ||
      write(file, content->output, content->output_length) != (ssize_t)content->output_length)
    return failed(w, err);
  terminal->input_length = content->input_length;
  terminal->output_length = content->output_length;
  return capture_content(w->capture, file, 0, content->input_length + content->output_length, &terminal->offset,
                         err);
}

/* Whatever is refused then, what was taken out is put back first. */
static int
copy_content(struct writing *w, int master, int slave, struct image_terminal *terminal, struct err *err)
{
  struct terminal_content content;
  int unread = 0;

  /* With a full queue there is no room for the characters by which it is put back. */
  if (ioctl(slave, FIONREAD, &unread) < 0)
    return failed(w, err);
  if (unread > TERMINAL_UNREAD_MAX)
    return fd_refuse(w, err, "a terminal with too much unread input");
  int taken = terminal_drain(master, slave, terminal, &content), number = errno;
  int filled = terminal_fill(master, slave, terminal, &content);
  int result = taken < 0 || filled < 0 ? -1 : 0;

  if (taken < 0)
    errno = number;
  if (result < 0)
    failed(w, err);
  const char *why = terminal_unfillable(&content);
  if (result == 0 && why)
    result = fd_refuse(w, err, why);
  if (result == 0)
    result = keep_content(w, terminal, &content, err);
  terminal_free(&content);
  return result;
}

/* A description that has no descriptor: the leader of the session takes the terminal by it, and it is closed. */
static int
put_control(struct writing *w, const struct image_terminal *terminal, struct err *err)
{
  struct capture_tree *tree = w->capture->tree;
  const struct image_description out = {.id = IMAGE_TERMINAL_IDS + terminal->index,
                                        .kind = IMAGE_TERMINAL,
                                        .flags = O_RDWR,
                                        .value = {terminal->index, IMAGE_SLAVE}};

  if (tree->open_files == IMAGE_DESCRIPTORS_MAX)
    return capture_refuse(w->capture, err, "is one of those with more than %d open files", IMAGE_DESCRIPTORS_MAX);
  tree->open_files++;
  put_bytes(&tree->files, IMAGE_TAG_DESCRIPTION, &out, sizeof out);
  return 0;
}

static int
write_master(struct writing *w, struct err *err)
{
  struct image_terminal terminal = {0};
  struct stat st;

  cleanup_fd int master = fd_take_copy(w);
  if (master < 0 || terminal_read_settings(master, &terminal) < 0)
    return failed(w, err);
  if (refuse_master(w, master, &terminal, err) < 0)
    return -1;
  cleanup_fd int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (slave < 0 && errno == EBUSY)
    return fd_refuse(w, err, "a terminal in exclusive use");
  if (slave < 0 || fstat(slave, &st) < 0)
    return failed(w, err);
  terminal.mode = st.st_mode & 0777;
  read_session(w, master, &terminal);
  if (copy_content(w, master, slave, &terminal, err) < 0)
    return -1;
  w->out.kind = IMAGE_TERMINAL;
  w->out.value[0] = terminal.index;
  w->out.value[1] = IMAGE_MASTER;
  put_bytes(&w->capture->tree->files, IMAGE_TAG_TERMINAL, &terminal, sizeof terminal);
  return terminal.session ? put_control(w, &terminal, err) : 0;
}

/* ---- a slave -------------------------------------------------------------------------------------------------- */

/* Whether the master's terminal controls the session of the descriptor's owner. */
static bool
controls_owner(const struct writing *w, const struct found_fd *master)
{
  struct writing of_master = {.capture = master->owner, .fd = (struct found_fd *)(uintptr_t)master};
  cleanup_fd int copy = fd_take_copy(&of_master);
  int session;

  return copy >= 0 && ioctl(copy, TIOCGSID, &session) == 0 && session == getsid(w->capture->pid);
}

static int
write_slave(struct writing *w, struct err *err)
{
  cleanup_fd int slave = fd_take_copy(w);
  unsigned device;

  if (slave < 0)
    return failed(w, err);
  w->out.kind = IMAGE_TERMINAL;
  if (ioctl(slave, TIOCGDEV, &device) < 0) {
    if (errno != EIO)
      return failed(w, err);
    w->out.value[1] = IMAGE_HUNG_UP;
    return 0;
  }
  int index = major(device) == UNIX98_SLAVES ? (int)minor(device) : -1;
  const struct found_fd *master = find_master(w->table, w->fd, index);
  if (!master)
    return fd_refuse(w, err, "a terminal whose other end is outside");
  /* Of the slave of that number elsewhere it says the same, but a session has one. */
  if (is_by_session(w->fd) && !controls_owner(w, master))
    return fd_refuse(w, err, "a terminal that was opened as that of another session");
  w->out.value[0] = (uint64_t)index;
  w->out.value[1] = IMAGE_SLAVE;
  return 0;
}

int
fd_write_terminal(struct writing *w, struct err *err)
{
  return is_master(w->fd) ? write_master(w, err) : write_slave(w, err);
}
