/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rootfs_parts.h"

#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "corefs.h"
#include "mounts.h"
#include "syscalls.h"
#include "treecopy.h"

/* Of so many the fork of a fork is made of one: a name that is in none of them costs 1.2 us for each. */
#define UPPERS_DEEP 10

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

static void
root_free(struct root *root)
{
  root_forget_stock(root);
  for (int i = 0; i < root->layer_count; i++) {
    close_fd(&root->layers[i]);
    if (root->layer_slots[i] >= 0 && !root->layer_shared[i])
      corefs_unstore(root->layer_slots[i]);
  }
  for (int i = 0; i < root->bind_count; i++) {
    corefs_unstore(root->binds[i]);
    free(root->targets[i]);
  }
  close_fd(&root->shm);
  if (root->flat)
    root_release(root->flat);
  if (root->base)
    root_release(root->base);
  free(root);
}

struct root *
root_hold(struct root *root)
{
  root->holders++;
  return root;
}

/* Sandboxes have their own copies of the mounts: only snapshots and the list hold a root. */
void
root_release(struct root *root)
{
  if (--root->holders == 0)
    root_free(root);
}

int
root_drop(uint32_t id, struct err *err)
{
  for (struct root **at = &roots; *at; at = &(*at)->next)
    if ((*at)->id == id) {
      struct root *root = *at;
      *at = root->next;
      root_release(root);
      return 0;
    }
  return err_code(err, "unknown_root", "root %u is not defined", id);
}

void
root_drop_all(void)
{
  while (roots) {
    struct root *root = roots;
    roots = root->next;
    root_forget_stock(root);
    root_release(root);
  }
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
    return fchmodat(skeleton, ".", mode & 07777, 0) < 0
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

static struct root *
root_alloc(struct err *err)
{
  static uint64_t last_serial;
  struct root *root = calloc(1, sizeof *root);

  if (!root) {
    err_code(err, "internal", "no memory for a root");
    return NULL;
  }
  root->serial = ++last_serial;
  root->holders = 1;
  root->shm = -1;
  return root;
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
  struct root *root = root_alloc(err);

  if (!root)
    return -1;
  if (root_fill(root, frame, err) < 0) {
    root_free(root);
    return -1;
  }
  root->next = roots;
  roots = root;
  return 0;
}

const struct root *
root_bind_holder(const struct root *root)
{
  while (root->base)
    root = root->base;
  return root;
}

uint64_t
root_base_serial(const struct root *root)
{
  return root_bind_holder(root)->serial;
}

int
root_bind_count(const struct root *root)
{
  return root_bind_holder(root)->bind_count;
}

static int
add_base_layers(struct root *root, const struct root *base, struct err *err)
{
  for (int i = 0; i < base->layer_count; i++) {
    if (root->layer_count == RAMET_LAYERS_MAX)
      return err_code(err, "too_many_layers", "a chain of more than %d forks that wrote files",
                      RAMET_LAYERS_MAX - 1);
    int copy = fcntl(base->layers[i], F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
      return err_step(err, RAMET_STEP_ROOT_LAYER, "copy a layer: %s", strerror(errno));
    int n = root->layer_count++;
    root->layers[n] = copy;
    root->layer_slots[n] = base->layer_slots[i];
    root->layer_shared[n] = true;
    root->layer_is_upper[n] = base->layer_is_upper[i];
  }
  return 0;
}

static bool
is_empty(int dir)
{
  char names[512];

  /* "." and ".." fit, and a tmpfs gives them first. */
  long got = syscall(SYS_getdents64, dir, names, sizeof names);
  return got == 48 && syscall(SYS_getdents64, dir, names, sizeof names) == 0;
}

/* A layer that says nothing: neither are there files, nor is /dev/shm another than the base's, of which an export tells
 * by the topmost layer. */
static bool
adds_nothing(const struct root *root, const struct root *base, int layer)
{
  cleanup_fd int upper = openat(layer, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

  return upper >= 0 && is_empty(upper) && root->shm < 0 && base->shm < 0 && base->base;
}

struct root *
root_derive(struct root *base, int upper, struct err *err)
{
  cleanup_fd int copy = upper;
  struct root *root = root_alloc(err);

  if (!root)
    return NULL;
  root->shm = openat(copy, "shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  root->base = root_hold(base);
  int result = root->shm < 0 ? err_step(err, RAMET_STEP_ROOT_LAYER, "open shm: %s", strerror(errno)) : 0;
  /* Nothing to copy for each child, and their mounts can be made ahead. */
  if (result == 0 && is_empty(root->shm))
    close_fd(&root->shm);
  if (result == 0 && !adds_nothing(root, base, copy)) {
    result = keep_layer(root, steal_fd(&copy), RAMET_STEP_ROOT_LAYER, err);
    root->layer_is_upper[0] = true;
  }
  if (result == 0)
    result = add_base_layers(root, base, err);
  if (result == 0)
    return root;
  root_release(root);
  return NULL;
}

int
root_uppers(const struct root *root, int fds[RAMET_LAYERS_MAX])
{
  int count = 0;

  for (int i = 0; i < root->layer_count; i++)
    if (root->layer_is_upper[i])
      fds[count++] = root->layers[i];
  return count;
}

int
root_layers(const struct root *root, int fds[RAMET_LAYERS_MAX], int *writable)
{
  *writable = 0;
  for (int i = 0; i < root->layer_count; i++) {
    fds[i] = root->layers[i];
    *writable += root->layer_is_upper[i];
  }
  return root->layer_count;
}

bool
root_is_deep(const struct root *root)
{
  int layers[RAMET_LAYERS_MAX], writable;
  int count = root_layers(root, layers, &writable);

  /* A snapshot adds two where it keeps one for the next. */
  return writable >= UPPERS_DEEP || (writable > 1 && count > RAMET_LAYERS_MAX - 2);
}

int
root_flatten(struct root *root, int layer, struct err *err)
{
  cleanup_fd int taken = layer;

  if (root->flat)
    return 0;
  /* On what the daemon defined, so that those that were forked in between may go. */
  struct root *holder = root;
  while (holder->base)
    holder = holder->base;
  root->flat = root_derive(holder, steal_fd(&taken), err);
  return root->flat ? 0 : -1;
}

struct root *
root_hold_flat(struct root *root)
{
  return root_hold(root->flat ? root->flat : root);
}

/* The bind with the longest target that the path lies under; NULL: none. */
static int
find_bind(const struct root *holder, const char *path, const char **rest)
{
  int best = -1;
  size_t longest = 0;

  for (int i = 0; i < holder->bind_count; i++) {
    size_t length = strlen(holder->targets[i]);
    if (length > longest && strncmp(path, holder->targets[i], length) == 0 &&
        (path[length] == '/' || path[length] == 0)) {
      best = i;
      longest = length;
      *rest = path[length] ? path + length + 1 : ".";
    }
  }
  return best;
}

static int
open_beneath(int dir, const char *path, uint64_t flags)
{
  struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};

  return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

int
root_open_file(const struct root *root, const char *path, enum ramet_step step, struct err *err)
{
  const struct root *holder = root_bind_holder(root);
  const char *rest = path;
  char upper_path[PATH_MAX];
  int bind = find_bind(holder, path, &rest);

  if (bind >= 0) {
    int mount = -1;
    if (corefs_copy(&holder->binds[bind], 1, &mount, step, err) < 0)
      return -1;
    cleanup_fd int dir = mount;
    int fd = open_beneath(dir, rest, O_RDONLY | O_NONBLOCK);
    return fd < 0 ? err_step(err, step, "open %s: %s", path, strerror(errno)) : fd;
  }
  for (int i = 0; i < root->layer_count; i++) {
    snprintf(upper_path, sizeof upper_path, "%s%s", root->layer_is_upper[i] ? "upper" : ".", path);
    int fd = open_beneath(root->layers[i], upper_path, O_RDONLY | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
      return fd;
    if (fd >= 0)
      close(fd);
    /* A whiteout: what lies below was removed. Opening one fails with ENXIO: no driver has number 0:0. */
    if (fd >= 0 || errno != ENOENT)
      break;
  }
  errno = ENOENT;
  return err_step(err, step, "no layer holds %s", path);
}

void
root_put_targets(const struct root *root, const struct root_mounts *mounts, struct writer *writer)
{
  const struct root *holder = root_bind_holder(root);

  for (int i = mounts->attached; i < holder->bind_count; i++)
    put_text(writer, RAMET_TAG_BIND, holder->targets[i]);
}

int
root_targets(const struct root *root, const char **targets)
{
  const struct root *holder = root_bind_holder(root);

  for (int i = 0; i < holder->bind_count; i++)
    targets[i] = holder->targets[i];
  return holder->bind_count;
}
