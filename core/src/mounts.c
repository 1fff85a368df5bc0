/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "mounts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "syscalls.h"

/* The kernel explains a refused option in the context's log; the last line is worth more than errno. */
static int
context_error(int fs, const char *what, enum ramet_step step, struct err *err)
{
  char line[128];
  int saved = errno;
  ssize_t n = read(fs, line, sizeof line - 1);

  while (n > 0 && (line[n - 1] == '\n'))
    n--;
  line[n > 0 ? n : 0] = 0;
  errno = saved;
  return err_step(err, step, "%s: %s%s%s", what, strerror(saved), line[0] ? ": " : "", line);
}

static int
context_string(int fs, const char *key, const char *value, enum ramet_step step, struct err *err)
{
  if (sys_fsconfig(fs, FSCONFIG_SET_STRING, key, value, 0) < 0)
    return context_error(fs, key, step, err);
  return 0;
}

static int
context_number(int fs, const char *key, uint64_t number, enum ramet_step step, struct err *err)
{
  char text[24];

  snprintf(text, sizeof text, "%" PRIu64, number);
  return context_string(fs, key, text, step, err);
}

static int
context_mount(int fs, const char *type, unsigned attributes, enum ramet_step step, struct err *err)
{
  if (sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
    return context_error(fs, type, step, err);
  int mount = sys_fsmount(fs, FSMOUNT_CLOEXEC, attributes);
  return mount < 0 ? context_error(fs, "fsmount", step, err) : mount;
}

int
filesystem_make(const char *type, const char *const *options, unsigned attributes, enum ramet_step step,
                struct err *err)
{
  cleanup_fd int fs = sys_fsopen(type, FSOPEN_CLOEXEC);

  if (fs < 0)
    return err_step(err, step, "fsopen %s: %s", type, strerror(errno));
  for (; options && options[0]; options += 2)
    if (context_string(fs, options[0], options[1], step, err) < 0)
      return -1;
  return context_mount(fs, type, attributes, step, err);
}

int
tmpfs_make(const struct tmpfs_options *options, unsigned attributes, enum ramet_step step, struct err *err)
{
  cleanup_fd int fs = sys_fsopen("tmpfs", FSOPEN_CLOEXEC);

  if (fs < 0)
    return err_step(err, step, "fsopen tmpfs: %s", strerror(errno));
  if (context_string(fs, "mode", options->mode, step, err) < 0 ||
      (options->bytes && context_number(fs, "size", options->bytes, step, err) < 0) ||
      (options->inodes && context_number(fs, "nr_inodes", options->inodes, step, err) < 0))
    return -1;
  /* A megabyte is written in a third of the time, and given back in a twentieth. From Linux 6.14 on pieces are as large
   * as what is written; before, and for a file that was made long first, 2 MiB at once, so that one with holes fills
   * them. "always" was rejected: it takes 2 MiB for any byte. A kernel without huge pages refuses the option. */
  if (options->large && sys_fsconfig(fs, FSCONFIG_SET_STRING, "huge", "within_size", 0) < 0 && errno != EINVAL)
    return context_error(fs, "huge", step, err);
  return context_mount(fs, "tmpfs", attributes, step, err);
}

int
tmpfs_resize(int tmpfs, uint64_t bytes, uint64_t inodes, enum ramet_step step, struct err *err)
{
  cleanup_fd int fs = sys_fspick(tmpfs, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);

  if (fs < 0)
    return err_step(err, step, "fspick: %s", strerror(errno));
  if (context_number(fs, "size", bytes, step, err) < 0 || context_number(fs, "nr_inodes", inodes, step, err) < 0)
    return -1;
  if (sys_fsconfig(fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
    return context_error(fs, "resize", step, err);
  return 0;
}

/* "lowerdir+" needs Linux 6.8; "lowerdir" is understood by all, up to 256 bytes in one call. */
static int
add_lower(int fs, const char *lower, struct err *err)
{
  char one[256];

  if (strlen(lower) < sizeof one - 1)
    return context_string(fs, "lowerdir", lower, RAMET_STEP_OVERLAY, err);
  while (*lower) {
    size_t length = strcspn(lower, ":");
    snprintf(one, sizeof one, "%.*s", (int)length, lower);
    if (context_string(fs, "lowerdir+", one, RAMET_STEP_OVERLAY, err) < 0)
      return -1;
    lower += length + (lower[length] == ':');
  }
  return 0;
}

int
overlay_make(const char *lower, const char *upper, struct err *err)
{
  char path[64];
  cleanup_fd int fs = sys_fsopen("overlay", FSOPEN_CLOEXEC);

  if (fs < 0)
    return err_step(err, RAMET_STEP_OVERLAY, "fsopen overlay: %s", strerror(errno));
  if (add_lower(fs, lower, err) < 0)
    return -1;
  snprintf(path, sizeof path, "%s/upper", upper);
  if (context_string(fs, "upperdir", path, RAMET_STEP_OVERLAY, err) < 0)
    return -1;
  snprintf(path, sizeof path, "%s/work", upper);
  if (context_string(fs, "workdir", path, RAMET_STEP_OVERLAY, err) < 0)
    return -1;
  /* trusted.* attributes need the host's CAP_SYS_ADMIN; in a user namespace overlayfs keeps its marks in user.*. */
  if (sys_fsconfig(fs, FSCONFIG_SET_FLAG, "userxattr", NULL, 0) < 0)
    return context_error(fs, "userxattr", RAMET_STEP_OVERLAY, err);
  return context_mount(fs, "overlay", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_OVERLAY, err);
}

int
overlay_fill_upper(int tmpfs, struct err *err)
{
  if (mkdirat(tmpfs, "upper", 0755) < 0 || mkdirat(tmpfs, "work", 0700) < 0)
    return err_step(err, RAMET_STEP_UPPER, "fill the writable layer: %s", strerror(errno));
  return 0;
}

bool
overlay_takes_detached(struct err *err)
{
  struct tmpfs_options small = {.bytes = 1 << 16, .inodes = 16, .mode = "0755"};
  char lower_path[40], upper_path[40];
  cleanup_fd int lower = tmpfs_make(&small, 0, RAMET_STEP_OVERLAY, err);
  cleanup_fd int upper = lower < 0 ? -1 : tmpfs_make(&small, 0, RAMET_STEP_OVERLAY, err);

  if (upper < 0 || overlay_fill_upper(upper, err) < 0)
    return false;
  snprintf(lower_path, sizeof lower_path, "/proc/self/fd/%d", lower);
  snprintf(upper_path, sizeof upper_path, "/proc/self/fd/%d", upper);
  cleanup_fd int overlay = overlay_make(lower_path, upper_path, err);
  return overlay >= 0;
}

bool
mounts_on_detached(struct err *err)
{
  struct tmpfs_options small = {.bytes = 1 << 16, .inodes = 16, .mode = "0755"};
  cleanup_fd int below = tmpfs_make(&small, 0, RAMET_STEP_OVERLAY, err);
  cleanup_fd int above = below < 0 ? -1 : tmpfs_make(&small, 0, RAMET_STEP_OVERLAY, err);

  return above >= 0 && tree_attach(above, below, "", RAMET_STEP_OVERLAY, err) == 0;
}

int
tree_clone(int dir, const char *path, enum ramet_step step, struct err *err)
{
  unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | (path[0] ? 0 : AT_EMPTY_PATH);
  int tree = sys_open_tree(dir, path, flags);

  return tree < 0 ? err_step(err, step, "open_tree %s: %s", path, strerror(errno)) : tree;
}

int
tree_set_read_only(int mount, enum ramet_step step, struct err *err)
{
  struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};

  if (sys_mount_setattr(mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0)
    return err_step(err, step, "mount_setattr: %s", strerror(errno));
  return 0;
}

int
tree_attach(int mount, int dir, const char *path, enum ramet_step step, struct err *err)
{
  unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | (path[0] ? 0 : MOVE_MOUNT_T_EMPTY_PATH);

  if (sys_move_mount(mount, "", dir, path, flags) < 0)
    return err_step(err, step, "move_mount to %s: %s", path, strerror(errno));
  return 0;
}
