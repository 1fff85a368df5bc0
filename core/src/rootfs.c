/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rootfs.h"

#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "corefs.h"
#include "mounts.h"
#include "syscalls.h"

struct root {
  struct root *next;
  uint32_t id;
  int layers[RAMET_LAYERS_MAX];      /* descriptors */
  int layer_slots[RAMET_LAYERS_MAX]; /* slots of the store; used where the kernel wants layers attached */
  int layer_count;
  int binds[RAMET_BINDS_MAX]; /* slots of the store */
  char *targets[RAMET_BINDS_MAX];
  int bind_count;
};

static struct root *roots;

struct root *
root_find(uint32_t id)
{
  for (struct root *root = roots; root; root = root->next)
    if (root->id == id)
      return root;
  return NULL;
}

int
root_count(void)
{
  int count = 0;

  for (struct root *root = roots; root; root = root->next)
    count++;
  return count;
}

/* Running sandboxes keep their own copies of the mounts, so nothing is counted here. */
static void
root_free(struct root *root)
{
  for (int i = 0; i < root->layer_count; i++) {
    close_fd(&root->layers[i]);
    if (root->layer_slots[i] >= 0)
      corefs_unstore(root->layer_slots[i]);
  }
  for (int i = 0; i < root->bind_count; i++) {
    corefs_unstore(root->binds[i]);
    free(root->targets[i]);
  }
  free(root);
}

int
root_drop(uint32_t id, struct err *err)
{
  for (struct root **at = &roots; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      struct root *root = *at;
      *at = root->next;
      root_free(root);
      return 0;
    }
  return err_code(err, "unknown_root", "root %u is not defined", id);
}

/* A path inside the skeleton, relative to it. */
static int
inner_path(struct span path, char out[PATH_MAX], struct err *err)
{
  if (!path_is_clean(path) || path.length < 2)
    return err_field(err, "root", "a path of the skeleton is not clean and absolute");
  memcpy(out, path.data + 1, path.length - 1);
  out[path.length - 1] = 0;
  return 0;
}

/* The skeleton is ours alone and holds only what this message wrote; RESOLVE_BENEATH and NO_SYMLINKS keep a later
 * entry from following an earlier symlink out of it. */
static int
open_parent(int skeleton, char *path, char **name, struct err *err)
{
  struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                         .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
  char *slash = strrchr(path, '/');
  const char *parent = ".";

  *name = path;
  if (slash) {
    *slash = 0;
    *name = slash + 1;
    parent = path;
  }
  int dir = (int)syscall(SYS_openat2, skeleton, parent, &how, sizeof how);
  if (dir < 0)
    return err_step(err, RAMET_STEP_ROOT_SKELETON, "open %s: %s", parent, strerror(errno));
  return dir;
}

static int
add_dir(int skeleton, struct span value, struct err *err)
{
  char path[PATH_MAX], *name;
  uint32_t mode;

  if (value.length < 4)
    return err_field(err, "root", "a directory entry is too short");
  memcpy(&mode, value.data, 4);
  if (value.length == 5 && value.data[4] == '/')
    return fchmod(skeleton, mode & 07777) < 0
               ? err_step(err, RAMET_STEP_ROOT_SKELETON, "mode of /: %s", strerror(errno))
               : 0;
  if (inner_path((struct span){value.data + 4, value.length - 4}, path, err) < 0)
    return -1;
  cleanup_fd int dir = open_parent(skeleton, path, &name, err);
  if (dir < 0)
    return -1;
  if (mkdirat(dir, name, 0700) < 0 || fchmodat(dir, name, mode & 07777, 0) < 0)
    return err_step(err, RAMET_STEP_ROOT_SKELETON, "directory %s: %s", name, strerror(errno));
  return 0;
}

static int
add_link(int skeleton, struct span value, struct err *err)
{
  char path[PATH_MAX], target[PATH_MAX], *name;
  uint32_t length;

  if (value.length < 4)
    return err_field(err, "root", "a link entry is too short");
  memcpy(&length, value.data, 4);
  if (length == 0 || length >= PATH_MAX || length > value.length - 4)
    return err_field(err, "root", "a link's target has a wrong length");
  memcpy(target, value.data + 4, length);
  target[length] = 0;
  if (inner_path((struct span){value.data + 4 + length, value.length - 4 - length}, path, err) < 0)
    return -1;
  cleanup_fd int dir = open_parent(skeleton, path, &name, err);
  if (dir < 0)
    return -1;
  if (symlinkat(target, dir, name) < 0)
    return err_step(err, RAMET_STEP_ROOT_SKELETON, "link %s: %s", name, strerror(errno));
  return 0;
}

static int
write_all(int fd, const uint8_t *data, size_t length)
{
  while (length) {
    ssize_t n = write(fd, data, length);
    if (n < 0)
      return -1;
    data += n;
    length -= (size_t)n;
  }
  return 0;
}

static int
add_file(int skeleton, struct span value, struct err *err)
{
  char path[PATH_MAX], *name;
  uint32_t mode, length;

  if (value.length < 8)
    return err_field(err, "root", "a file entry is too short");
  memcpy(&mode, value.data, 4);
  memcpy(&length, value.data + 4, 4);
  if (length > value.length - 8)
    return err_field(err, "root", "a file's path has a wrong length");
  if (inner_path((struct span){value.data + 8, length}, path, err) < 0)
    return -1;
  cleanup_fd int dir = open_parent(skeleton, path, &name, err);
  if (dir < 0)
    return -1;
  cleanup_fd int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 || write_all(fd, value.data + 8 + length, value.length - 8 - length) < 0 ||
      fchmod(fd, mode & 07777) < 0)
    return err_step(err, RAMET_STEP_ROOT_SKELETON, "file %s: %s", name, strerror(errno));
  return 0;
}

/* A mount that the daemon lent, or a path that core opens itself among the host's mounts. */
static int
source_mount(struct frame *frame, uint32_t index, struct span source, enum ramet_step step, struct err *err)
{
  char path[PATH_MAX];

  if (index != RAMET_FD_NONE) {
    cleanup_fd int lent = frame_steal_fd(frame, index);
    return lent < 0 ? err_field(err, "root", "names descriptor %u, which did not come along", index)
                    : corefs_adopt(lent, step, err);
  }
  if (!path_is_clean(source))
    return err_field(err, "root", "a source is no clean absolute path");
  memcpy(path, source.data, source.length);
  path[source.length] = 0;
  return corefs_open_host_tree(path, step, err);
}

static int
add_bind(struct root *root, struct frame *frame, struct span value, struct err *err)
{
  uint32_t flags, index, length;

  if (value.length < 12)
    return err_field(err, "root", "a bind entry is too short");
  memcpy(&flags, value.data, 4);
  memcpy(&index, value.data + 4, 4);
  memcpy(&length, value.data + 8, 4);
  if (length > value.length - 12)
    return err_field(err, "root", "a bind's source has a wrong length");
  struct span source = {value.data + 12, length};
  struct span target = {value.data + 12 + length, value.length - 12 - length};
  if (!path_is_clean(target) || target.length < 2 || (flags & ~RAMET_BIND_READ_ONLY))
    return err_field(err, "root", "a bind's target or flags are wrong");
  if (root->bind_count == RAMET_BINDS_MAX)
    return err_field(err, "root", "more than %d binds", RAMET_BINDS_MAX);
  if (fault_here(RAMET_STEP_ROOT_BIND, err) < 0)
    return -1;
  cleanup_fd int mount = source_mount(frame, index, source, RAMET_STEP_ROOT_BIND, err);
  if (mount < 0)
    return -1;
  if ((flags & RAMET_BIND_READ_ONLY) && tree_set_read_only(mount, RAMET_STEP_ROOT_BIND, err) < 0)
    return -1;
  cleanup_free char *copy = strndup((const char *)target.data, target.length);
  if (!copy)
    return err_code(err, "internal", "no memory for a bind");
  int slot = corefs_store(mount, RAMET_STEP_ROOT_BIND, err);
  if (slot < 0)
    return -1;
  root->binds[root->bind_count] = slot;
  root->targets[root->bind_count++] = copy;
  copy = NULL;
  return 0;
}

static int
keep_layer(struct root *root, int mount, enum ramet_step step, struct err *err)
{
  int slot = corefs_detached_layers() ? -1 : corefs_store(mount, step, err);

  if (slot < 0 && !corefs_detached_layers()) {
    close(mount);
    return -1;
  }
  root->layers[root->layer_count] = mount;
  root->layer_slots[root->layer_count++] = slot;
  return 0;
}

static int
add_layer(struct root *root, struct frame *frame, struct span value, struct err *err)
{
  uint32_t index;

  if (value.length < 4)
    return err_field(err, "root", "a layer entry is too short");
  memcpy(&index, value.data, 4);
  if (root->layer_count == RAMET_LAYERS_MAX)
    return err_field(err, "root", "more than %d layers", RAMET_LAYERS_MAX);
  if (fault_here(RAMET_STEP_ROOT_LAYER, err) < 0)
    return -1;
  int mount =
      source_mount(frame, index, (struct span){value.data + 4, value.length - 4}, RAMET_STEP_ROOT_LAYER, err);
  return mount < 0 ? -1 : keep_layer(root, mount, RAMET_STEP_ROOT_LAYER, err);
}

static int
add_entry(struct root *root, struct frame *frame, uint16_t tag, struct span value, struct err *err)
{
  int skeleton = root->layers[0];

  switch (tag) {
  case RAMET_TAG_ROOT:
    return span_u32(value, &root->id) < 0 || root->id == 0 ? err_field(err, "root", "needs a number above 0") : 0;
  case RAMET_TAG_DIR:
    return add_dir(skeleton, value, err);
  case RAMET_TAG_LINK:
    return add_link(skeleton, value, err);
  case RAMET_TAG_FILE:
    return add_file(skeleton, value, err);
  case RAMET_TAG_BIND:
    return add_bind(root, frame, value, err);
  case RAMET_TAG_LAYER:
    return add_layer(root, frame, value, err);
  case RAMET_TAG_FAULT:
    return 0;
  default:
    return err_field(err, "payload", "tag %u does not belong into a root", tag);
  }
}

static int
root_fill(struct root *root, struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct tmpfs_options options = {.bytes = 64 << 20, .inodes = 16384, .mode = "0755"};
  uint16_t tag;
  struct span value;
  int more;

  if (fault_here(RAMET_STEP_ROOT_SKELETON, err) < 0)
    return -1;
  int skeleton = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_ROOT_SKELETON, err);
  if (skeleton < 0 || keep_layer(root, skeleton, RAMET_STEP_ROOT_SKELETON, err) < 0)
    return -1;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0)
    if (add_entry(root, frame, tag, value, err) < 0)
      return -1;
  if (more < 0)
    return -1;
  if (root->id == 0 || root_find(root->id))
    return err_field(err, "root", root->id ? "this number is taken" : "is missing");
  return 0;
}

int
root_define(struct frame *frame, struct err *err)
{
  struct root *root = calloc(1, sizeof *root);

  if (!root)
    return err_code(err, "internal", "no memory for a root");
  if (root_fill(root, frame, err) < 0) {
    root_free(root);
    return -1;
  }
  root->next = roots;
  roots = root;
  return 0;
}

static int
make_upper(const struct plan *plan, struct err *err)
{
  struct tmpfs_options options = {.bytes = plan->disk_bytes, .inodes = plan->disk_inodes, .mode = "0700"};

  if (fault_here(RAMET_STEP_UPPER, err) < 0)
    return -1;
  cleanup_fd int upper = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_UPPER, err);
  if (upper < 0 || overlay_fill_upper(upper, err) < 0)
    return -1;
  if (mkdirat(upper, "shm", 0700) < 0 || fchmodat(upper, "shm", 01777, 0) < 0)
    return err_step(err, RAMET_STEP_UPPER, "fill the writable layer: %s", strerror(errno));
  return steal_fd(&upper);
}

/* "PREFIX/NUMBER" joined by ':'. */
static void
join_layers(char *out, size_t size, const char *prefix, const int *numbers, int count)
{
  size_t used = 0;

  out[0] = 0;
  for (int i = 0; i < count && used < size; i++)
    used += (size_t)snprintf(out + used, size - used, "%s%s/%d", i ? ":" : "", prefix, numbers[i]);
}

/* Linux 6.15 and later: layers and upper are attached nowhere. */
static int
make_overlay_detached(const struct root *root, int upper, struct root_mounts *mounts, struct err *err)
{
  char lower[RAMET_LAYERS_MAX * 24], upper_path[24];

  join_layers(lower, sizeof lower, "/proc/self/fd", root->layers, root->layer_count);
  snprintf(upper_path, sizeof upper_path, "/proc/self/fd/%d", upper);
  int overlay = overlay_make(lower, upper_path, err);
  if (overlay < 0)
    return -1;
  mounts->fds[mounts->count++] = overlay;
  int shm = tree_clone(upper, "shm", RAMET_STEP_UPPER, err);
  if (shm < 0)
    return -1;
  mounts->fds[mounts->count++] = shm;
  return 0;
}

/* Before: overlayfs takes only what is attached in the caller's mount namespace, so all of it stands in the store
 * while the overlay is made. The overlay holds private copies. */
static int
make_overlay_attached(const struct root *root, int upper, struct root_mounts *mounts, struct err *err)
{
  char lower[RAMET_LAYERS_MAX * 24], upper_path[32], shm_path[40];
  int slot = corefs_store(upper, RAMET_STEP_UPPER, err), overlay = -1, shm = -1;

  if (slot < 0)
    return -1;
  join_layers(lower, sizeof lower, COREFS_STORE, root->layer_slots, root->layer_count);
  snprintf(upper_path, sizeof upper_path, COREFS_STORE "/%d", slot);
  snprintf(shm_path, sizeof shm_path, COREFS_STORE "/%d/shm", slot);
  if (corefs_visit_host(RAMET_STEP_OVERLAY, err) == 0) {
    overlay = overlay_make(lower, upper_path, err);
    if (overlay >= 0)
      shm = tree_clone(AT_FDCWD, shm_path, RAMET_STEP_UPPER, err);
    corefs_return_home();
  }
  corefs_unstore(slot);
  if (overlay >= 0)
    mounts->fds[mounts->count++] = overlay;
  if (shm >= 0)
    mounts->fds[mounts->count++] = shm;
  return shm < 0 ? -1 : 0;
}

int
root_hand_out(const struct root *root, const struct plan *plan, struct root_mounts *mounts, struct err *err)
{
  mounts->count = 0;
  cleanup_fd int upper = make_upper(plan, err);
  if (upper < 0 || fault_here(RAMET_STEP_OVERLAY, err) < 0)
    return -1;
  int made = corefs_detached_layers() ? make_overlay_detached(root, upper, mounts, err)
                                      : make_overlay_attached(root, upper, mounts, err);
  if (made < 0)
    return -1;
  if (fault_here(RAMET_STEP_CLONE_BINDS, err) < 0)
    return -1;
  if (corefs_copy(root->binds, root->bind_count, mounts->fds + mounts->count, RAMET_STEP_CLONE_BINDS, err) < 0)
    return -1;
  mounts->count += root->bind_count;
  return 0;
}

void
root_mounts_release(struct root_mounts *mounts)
{
  for (int i = 0; i < mounts->count; i++)
    close_fd(&mounts->fds[i]);
  mounts->count = 0;
}

void
root_put_targets(const struct root *root, struct writer *writer)
{
  for (int i = 0; i < root->bind_count; i++)
    put_text(writer, RAMET_TAG_BIND, root->targets[i]);
}
