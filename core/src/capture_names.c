/* SPDX-License-Identifier: Apache-2.0
 * Names of files: whether a path that /proc tells leads to what it was told for. A guest may put anything where its
 * open file only seems to be: a file of a mount that its root does not have is told by a path all the same. */
#define _GNU_SOURCE
#include "capture.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "syscalls.h"

#define MQUEUE_MAGIC 0x19800202 /* in no header of the kernel's */

int
capture_look(const struct capture *capture, const char *name)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/root", capture->pid);
  cleanup_fd int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return root < 0 ? -1
                  : sys_openat2(root, name, O_PATH | O_NOFOLLOW, 0,
                                RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS);
}

static long
mount_of(const char *info)
{
  const char *mount = info ? procfs_field(info, "mnt_id") : NULL;

  return mount ? strtol(mount, NULL, 10) : -1;
}

bool
capture_leads(const struct capture *capture, const char *name, const struct stat *to, const char *info)
{
  cleanup_fd int fd = capture_look(capture, name);
  struct stat st;
  char path[48];

  if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != to->st_dev || st.st_ino != to->st_ino ||
      (st.st_mode & S_IFMT) != (to->st_mode & S_IFMT))
    return false;
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  cleanup_free char *own = procfs_read(path, NULL);
  return mount_of(own) >= 0 && mount_of(own) == mount_of(info);
}

bool
capture_ends_deleted(const char *name)
{
  static const char deleted[] = " (deleted)";
  size_t length = strlen(name), end = sizeof deleted - 1;

  return length > end && memcmp(name + length - end, deleted, end) == 0;
}

const char *
capture_kernel_file(const char *path, const char *name)
{
  struct statfs fs;

  if (statfs(path, &fs) < 0)
    return "a file that cannot be looked at";
  if (fs.f_type == MQUEUE_MAGIC)
    return "a message queue";
  /* Of a process, whose number another one may have in a child; /proc/self and /proc/net lead to such. */
  bool shared =
      strncmp(name, "/proc", 5) == 0 && (name[5] == 0 || (name[5] == '/' && (name[6] < '0' || name[6] > '9')));
  return fs.f_type == PROC_SUPER_MAGIC && !shared ? "a file of /proc" : NULL;
}
