/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "corefs.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "limit_views.h"
#include "mounts.h"
#include "proc_masks.h"
#include "syscalls.h"

static int host_namespace = -1;
static int core_namespace = -1;
static bool detached_layers, detached_targets;

static const char *const device_nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
#define DEVICE_COUNT (sizeof device_nodes / sizeof device_nodes[0])

static const struct {
  const char *target, *name;
} device_links[] = {
    {"/proc/self/fd", "fd"},       {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"},
    {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
};

static int
make_file(int dir, const char *name, enum ramet_step step, struct err *err)
{
  cleanup_fd int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);

  return fd < 0 ? err_step(err, step, "create %s: %s", name, strerror(errno)) : 0;
}

static int
make_dir(int dir, const char *name, enum ramet_step step, struct err *err)
{
  if (mkdirat(dir, name, 0755) < 0)
    return err_step(err, step, "mkdir %s: %s", name, strerror(errno));
  return 0;
}

/* M_host receives mounts that the host makes later, and gives none back. */
static int
private_mounts(struct err *err)
{
  if (fault_here(RAMET_STEP_PRIVATE_MOUNTS, err) < 0)
    return -1;
  if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
    return err_step(err, RAMET_STEP_PRIVATE_MOUNTS, "make / a slave: %s", strerror(errno));
  return 0;
}

static int
keep_host_mounts(struct err *err)
{
  if (fault_here(RAMET_STEP_KEEP_HOST_MOUNTS, err) < 0)
    return -1;
  host_namespace = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (host_namespace < 0)
    return err_step(err, RAMET_STEP_KEEP_HOST_MOUNTS, "open /proc/self/ns/mnt: %s", strerror(errno));
  if (unshare(CLONE_NEWNS) < 0)
    return err_step(err, RAMET_STEP_KEEP_HOST_MOUNTS, "unshare: %s", strerror(errno));
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
    return err_step(err, RAMET_STEP_KEEP_HOST_MOUNTS, "make / private: %s", strerror(errno));
  return 0;
}

static int
fill_dev(int dev, struct err *err)
{
  for (size_t i = 0; i < DEVICE_COUNT; i++)
    if (make_file(dev, device_nodes[i], RAMET_STEP_CORE_DEV, err) < 0)
      return -1;
  for (size_t i = 0; i < sizeof device_links / sizeof device_links[0]; i++)
    if (symlinkat(device_links[i].target, dev, device_links[i].name) < 0)
      return err_step(err, RAMET_STEP_CORE_DEV, "symlink %s: %s", device_links[i].name, strerror(errno));
  if (make_dir(dev, "pts", RAMET_STEP_CORE_DEV, err) < 0 || make_dir(dev, "shm", RAMET_STEP_CORE_DEV, err) < 0)
    return -1;
  return 0;
}

/* The nodes are the host's: whoever may write to a device may also set its times, unless the mount forbids it. The
 * device itself is written to all the same. */
static int
seal_node(int node, struct err *err)
{
  struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC};

  if (sys_mount_setattr(node, "", AT_EMPTY_PATH, &attr) < 0)
    return err_step(err, RAMET_STEP_CORE_DEV, "make a device's node read-only: %s", strerror(errno));
  return 0;
}

static int
open_host_devices(int nodes[DEVICE_COUNT], struct err *err)
{
  char path[32];

  if (fault_here(RAMET_STEP_CORE_DEV, err) < 0)
    return -1;
  for (size_t i = 0; i < DEVICE_COUNT; i++) {
    snprintf(path, sizeof path, "/dev/%s", device_nodes[i]);
    nodes[i] = tree_clone(AT_FDCWD, path, RAMET_STEP_CORE_DEV, err);
    if (nodes[i] < 0 || seal_node(nodes[i], err) < 0)
      return -1;
  }
  return 0;
}

/* The kernel lets a user namespace mount proc only where a proc is fully visible already: so a proc of core's own
 * pid namespace stays in this root, for init's mount to be allowed. */
static int
make_core_root(int *root, int *proc, struct err *err)
{
  struct tmpfs_options small = {.bytes = 256 << 20, .inodes = 1 << 16, .mode = "0755"};

  if (fault_here(RAMET_STEP_CORE_PROC, err) < 0)
    return -1;
  *proc = filesystem_make("proc", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
                          RAMET_STEP_CORE_PROC, err);
  if (*proc < 0)
    return -1;
  if (proc_masks_learn(*proc, err) < 0 || fault_here(RAMET_STEP_CORE_ROOT, err) < 0)
    return -1;
  *root = tmpfs_make(&small, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_CORE_ROOT, err);
  if (*root < 0)
    return -1;
  static const char *const dirs[] = {"proc", "dev", "n", "e", "r", "r/p", "r/d", "r/u", "r/v", "r/c"};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
    if (make_dir(*root, dirs[i], RAMET_STEP_CORE_ROOT, err) < 0)
      return -1;
  return 0;
}

static int
populate_core_root(int proc, int nodes[DEVICE_COUNT], struct err *err)
{
  char path[32];
  struct tmpfs_options small = {.bytes = 1 << 16, .inodes = 32, .mode = "0755"};
  cleanup_fd int dev = tmpfs_make(&small, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, RAMET_STEP_CORE_DEV, err);

  if (dev < 0 || fill_dev(dev, err) < 0 || tree_attach(dev, AT_FDCWD, "/dev", RAMET_STEP_CORE_DEV, err) < 0)
    return -1;
  for (size_t i = 0; i < DEVICE_COUNT; i++) {
    snprintf(path, sizeof path, "/dev/%s", device_nodes[i]);
    if (tree_attach(nodes[i], AT_FDCWD, path, RAMET_STEP_CORE_DEV, err) < 0)
      return -1;
  }
  return tree_attach(proc, AT_FDCWD, "/proc", RAMET_STEP_CORE_PROC, err);
}

/* Attributes of the mount itself, not of what is mounted below it. */
static int
seal_mount(const char *path, enum ramet_step step, struct err *err)
{
  struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};

  if (sys_mount_setattr(AT_FDCWD, path, 0, &attr) < 0)
    return err_step(err, step, "make %s read-only: %s", path, strerror(errno));
  return 0;
}

/* Before this root is made read-only: of all that are copied from it later, this mount alone is not. */
static int
open_limit_views(struct err *err)
{
  int views = tree_clone(AT_FDCWD, COREFS_ENTRY COREFS_LIMIT_VIEWS, RAMET_STEP_CORE_ROOT, err);

  limit_views_setup(views);
  return views < 0 ? -1 : 0;
}

static int
leave_host_root(int root, struct err *err)
{
  if (fault_here(RAMET_STEP_LEAVE_HOST_ROOT, err) < 0)
    return -1;
  /* Any directory serves as the place to stand on; /proc is one that the steps before proved to exist. */
  if (tree_attach(root, AT_FDCWD, "/proc", RAMET_STEP_LEAVE_HOST_ROOT, err) < 0)
    return -1;
  if (fchdir(root) < 0 || sys_pivot_root(".", ".") < 0)
    return err_step(err, RAMET_STEP_LEAVE_HOST_ROOT, "pivot_root: %s", strerror(errno));
  if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
    return err_step(err, RAMET_STEP_LEAVE_HOST_ROOT, "detach the host's root: %s", strerror(errno));
  return 0;
}

int
corefs_visit_host(enum ramet_step step, struct err *err)
{
  if (setns(host_namespace, CLONE_NEWNS) < 0)
    return err_step(err, step, "enter the host's mounts: %s", strerror(errno));
  return 0;
}

/* Going on in the host's mounts would hand them to the next pool entry. */
void
corefs_return_home(void)
{
  if (setns(core_namespace, CLONE_NEWNS) < 0)
    _exit(EXIT_DEFECT);
}

static int
make_store(struct err *err)
{
  struct tmpfs_options small = {.bytes = 1 << 20, .inodes = 4096, .mode = "0700"};
  cleanup_fd int store = tmpfs_make(&small, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_KEEP_HOST_MOUNTS, err);

  if (store < 0 || corefs_visit_host(RAMET_STEP_KEEP_HOST_MOUNTS, err) < 0)
    return -1;
  int result = tree_attach(store, AT_FDCWD, COREFS_STORE, RAMET_STEP_KEEP_HOST_MOUNTS, err);
  corefs_return_home();
  return result;
}

int
corefs_setup(bool attach_layers, struct err *err)
{
  int nodes[DEVICE_COUNT], result = -1;
  cleanup_fd int root = -1, proc = -1;

  for (size_t i = 0; i < DEVICE_COUNT; i++)
    nodes[i] = -1;
  if (private_mounts(err) == 0 && keep_host_mounts(err) == 0 && open_host_devices(nodes, err) == 0 &&
      make_core_root(&root, &proc, err) == 0 && leave_host_root(root, err) == 0 &&
      populate_core_root(proc, nodes, err) == 0 && open_limit_views(err) == 0 &&
      seal_mount("/dev", RAMET_STEP_CORE_DEV, err) == 0 && seal_mount("/", RAMET_STEP_CORE_ROOT, err) == 0)
    result = 0;
  for (size_t i = 0; i < DEVICE_COUNT; i++)
    close_fd(&nodes[i]);
  if (result < 0)
    return -1;
  core_namespace = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (core_namespace < 0)
    return err_step(err, RAMET_STEP_CORE_ROOT, "open /proc/self/ns/mnt: %s", strerror(errno));
  if (make_store(err) < 0)
    return -1;
  struct err ignored = {0};
  detached_layers = !attach_layers && overlay_takes_detached(&ignored);
  detached_targets = detached_layers && mounts_on_detached(&ignored);
  return 0;
}

bool
corefs_detached_targets(void)
{
  return detached_targets;
}

bool
corefs_detached_layers(void)
{
  return detached_layers;
}

int
corefs_open_host_tree(const char *path, enum ramet_step step, struct err *err)
{
  if (corefs_visit_host(step, err) < 0)
    return -1;
  int tree = tree_clone(AT_FDCWD, path, step, err);
  corefs_return_home();
  return tree;
}

static void
store_path(int slot, char path[32])
{
  snprintf(path, 32, COREFS_STORE "/%d", slot);
}

int
corefs_store(int mount, enum ramet_step step, struct err *err)
{
  static int next_slot;
  char path[32];
  int slot = next_slot++, result = -1;

  store_path(slot, path);
  if (corefs_visit_host(step, err) < 0)
    return -1;
  if (mkdir(path, 0700) < 0)
    err_step(err, step, "mkdir %s: %s", path, strerror(errno));
  else if ((result = tree_attach(mount, AT_FDCWD, path, step, err)) < 0)
    rmdir(path);
  corefs_return_home();
  return result < 0 ? -1 : slot;
}

void
corefs_unstore(int slot)
{
  struct err ignored;
  char path[32];

  store_path(slot, path);
  if (corefs_visit_host(RAMET_STEP_NONE, &ignored) < 0)
    return;
  umount2(path, MNT_DETACH);
  rmdir(path);
  corefs_return_home();
}

int
corefs_copy(const int *slots, int count, int *fds, enum ramet_step step, struct err *err)
{
  char path[32];
  int done = 0;

  if (count == 0)
    return 0;
  if (corefs_visit_host(step, err) < 0)
    return -1;
  for (; done < count; done++) {
    store_path(slots[done], path);
    fds[done] = tree_clone(AT_FDCWD, path, step, err);
    if (fds[done] < 0)
      break;
  }
  corefs_return_home();
  if (done == count)
    return 0;
  while (done-- > 0)
    close_fd(&fds[done]);
  return -1;
}

int
corefs_adopt(int lent, enum ramet_step step, struct err *err)
{
  int slot = corefs_store(lent, step, err), own = -1;

  if (slot < 0)
    return -1;
  int result = corefs_copy(&slot, 1, &own, step, err);
  corefs_unstore(slot);
  return result < 0 ? -1 : own;
}
