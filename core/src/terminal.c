/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "terminal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <termios.h>
#include <unistd.h>

#include "cleanup.h"
#include "syscalls.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* Core opens it, and not init: who makes an open file description can make it block, and core reads from this one. By
 * way of init's root, so that the other end is of a mount that the guest has, and ttyname(3) finds its name. */
static int
open_multiplexer(int init, struct err *err)
{
  char path[32];
  struct statfs fs;

  snprintf(path, sizeof path, "/proc/%d/root", init);
  cleanup_fd int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  cleanup_fd int fd =
      root < 0 ? -1 : sys_openat2(root, "dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0, RESOLVE_AS_NAMED);
  if (fd < 0)
    return err_code(err, "busy", "no terminal can be made: %s", strerror(errno));
  if (fstatfs(fd, &fs) < 0 || fs.f_type != DEVPTS_SUPER_MAGIC)
    return err_code(err, "no_terminals", "the sandbox's /dev/pts has no terminals");
  return steal_fd(&fd);
}

/* The kernel erases whole characters of UTF-8 only where it is told so. */
static int
set_up(int far, uint32_t uid, uint32_t gid)
{
  struct termios modes;

  if (tcgetattr(far, &modes) < 0)
    return -1;
  modes.c_iflag |= IUTF8;
  return tcsetattr(far, TCSANOW, &modes) < 0 || fchown(far, uid, gid) < 0 ? -1 : 0;
}

int
terminal_make(int init, uint32_t window, uint32_t uid, uint32_t gid, int *far, struct err *err)
{
  int unlocked = 0;

  cleanup_fd int near = open_multiplexer(init, err);
  if (near < 0)
    return -1;
  cleanup_fd int other =
      ioctl(near, TIOCSPTLCK, &unlocked) < 0 ? -1 : ioctl(near, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (other < 0 || set_up(other, uid, gid) < 0)
    return err_code(err, "busy", "no terminal can be made: %s", strerror(errno));
  if (terminal_resize(near, window, err) < 0)
    return -1;
  *far = steal_fd(&other);
  return steal_fd(&near);
}

int
terminal_resize(int near, uint32_t window, struct err *err)
{
  struct winsize size = {.ws_row = (unsigned short)(window >> 16), .ws_col = (unsigned short)window};

  if (ioctl(near, TIOCSWINSZ, &size) < 0)
    return err_code(err, "internal", "a terminal cannot be resized: %s", strerror(errno));
  return 0;
}
