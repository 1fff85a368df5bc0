/* SPDX-License-Identifier: Apache-2.0
 * What a sandbox takes of a root: a writable layer of its own under the root's layers, and copies of its binds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "corefs.h"
#include "loop.h"
#include "mounts.h"
#include "rootfs_parts.h"
#include "syscalls.h"
#include "treecopy.h"

/* Of the writable layer, and of /dev/shm where that is no part of it. */
struct sizes {
  uint64_t bytes, inodes, shm;
};

static struct root *hot;    /* the root of the last hand-out that could have taken from stock */
static struct root *before; /* the one before it, whose stock goes unless it is hot again soon */
static struct deadline cooling;

/* Two roots in turns keep what they have; one that is left for good does not hold mounts and memory for nothing. */
#define COOLING_NS 1000000000u

static void
empty_stock(struct root *root)
{
  while (root->stock_count > 0)
    root_mounts_release(&root->stock[--root->stock_count]);
}

void
root_forget_stock(struct root *root)
{
  if (hot == root)
    hot = NULL;
  if (before == root)
    before = NULL;
  empty_stock(root);
}

static void
cooled(struct deadline *deadline)
{
  (void)deadline;
  if (before)
    empty_stock(before);
  before = NULL;
}

static void
heat(struct root *root)
{
  if (hot == root)
    return;
  if (before && before != root)
    empty_stock(before);
  before = hot;
  hot = root;
  cooling.fire = cooled;
  deadline_set(&cooling, loop_now() + COOLING_NS);
}

/* What a snapshot had in /dev/shm, into the directory `name` of `place`. */
static int
copy_shm(const struct root *root, int place, const char *name, struct err *err)
{
  struct treecopy_count count = {0};

  if (root->shm < 0)
    return 0;
  cleanup_fd int to = openat(place, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (to < 0)
    return err_step(err, RAMET_STEP_UPPER, "open shm: %s", strerror(errno));
  return treecopy(root->shm, to, NULL, &count, RAMET_STEP_UPPER, err);
}

static int
make_upper(const struct root *root, const struct sizes *sizes, struct err *err)
{
  struct tmpfs_options options = {.bytes = sizes->bytes, .inodes = sizes->inodes, .mode = "0700", .large = true};

  if (fault_here(RAMET_STEP_UPPER, err) < 0)
    return -1;
  cleanup_fd int upper = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_UPPER, err);
  if (upper < 0 || overlay_fill_upper(upper, err) < 0)
    return -1;
  if (mkdirat(upper, "shm", 0700) < 0 || fchmodat(upper, "shm", 01777, 0) < 0)
    return err_step(err, RAMET_STEP_UPPER, "fill the writable layer: %s", strerror(errno));
  if (!sizes->shm && copy_shm(root, upper, "shm", err) < 0)
    return -1;
  return steal_fd(&upper);
}

/* In place of the directory of the writable layer. */
static int
make_own_shm(const struct root *root, const struct sizes *sizes, struct err *err)
{
  struct tmpfs_options options = {.bytes = sizes->shm, .inodes = sizes->inodes, .mode = "1777"};
  cleanup_fd int shm = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_UPPER, err);

  return shm < 0 || copy_shm(root, shm, ".", err) < 0 ? -1 : steal_fd(&shm);
}

/* "PREFIX/NUMBER" of each layer, joined by ':'. */
static void
join_layers(char *out, size_t size, const char *prefix, const struct root *root, const int *numbers)
{
  size_t used = 0;

  out[0] = 0;
  for (int i = 0; i < root->layer_count && used < size; i++)
    used += (size_t)snprintf(out + used, size - used, "%s%s/%d%s", i ? ":" : "", prefix, numbers[i],
                             root->layer_is_upper[i] ? "/upper" : "");
}

/* Linux 6.15 and later: layers and upper are attached nowhere. */
static int
make_overlay_detached(const struct root *root, int upper, int out[ROOT_MOUNTS_FIXED], struct err *err)
{
  char lower[RAMET_LAYERS_MAX * 32], upper_path[24];

  join_layers(lower, sizeof lower, "/proc/self/fd", root, root->layers);
  snprintf(upper_path, sizeof upper_path, "/proc/self/fd/%d", upper);
  out[0] = overlay_make(lower, upper_path, err);
  if (out[0] < 0)
    return -1;
  out[1] = tree_clone(upper, "shm", RAMET_STEP_UPPER, err);
  if (out[1] < 0)
    return -1;
  out[ROOT_MOUNT_UPPER] = fcntl(upper, F_DUPFD_CLOEXEC, 3);
  return out[ROOT_MOUNT_UPPER] < 0 ? err_step(err, RAMET_STEP_UPPER, "dup: %s", strerror(errno)) : 0;
}

static int
make_from_store(const struct root *root, int slot, int out[ROOT_MOUNTS_FIXED], struct err *err)
{
  char lower[RAMET_LAYERS_MAX * 32], path[32], shm[40];

  join_layers(lower, sizeof lower, COREFS_STORE, root, root->layer_slots);
  snprintf(path, sizeof path, COREFS_STORE "/%d", slot);
  snprintf(shm, sizeof shm, COREFS_STORE "/%d/shm", slot);
  if (corefs_visit_host(RAMET_STEP_OVERLAY, err) < 0)
    return -1;
  out[0] = overlay_make(lower, path, err);
  if (out[0] >= 0)
    out[1] = tree_clone(AT_FDCWD, shm, RAMET_STEP_UPPER, err);
  if (out[1] >= 0)
    out[ROOT_MOUNT_UPPER] = tree_clone(AT_FDCWD, path, RAMET_STEP_UPPER, err);
  corefs_return_home();
  return out[ROOT_MOUNT_UPPER] < 0 ? -1 : 0;
}

/* Before: overlayfs takes only what is attached in the caller's mount namespace, so all of it stands in the store
 * while the overlay is made. The overlay holds private copies. */
static int
make_overlay_attached(const struct root *root, int upper, int out[ROOT_MOUNTS_FIXED], struct err *err)
{
  int slot = corefs_store(upper, RAMET_STEP_UPPER, err);

  if (slot < 0)
    return -1;
  int result = make_from_store(root, slot, out, err);
  corefs_unstore(slot);
  return result;
}

/* Ahead, in the overlay that is attached nowhere yet (Linux 6.15): a first look-up of each directory on the way is slow in a
 * new overlay. What a fork's source has put a link in the way of is init's to attach, in the sandbox. */
static int
attach_ahead(const struct root *holder, struct root_mounts *mounts, struct err *err)
{
  int *binds = mounts->fds + mounts->count, result = 0;

  while (result == 0 && corefs_detached_targets() && mounts->attached < holder->bind_count) {
    int next = mounts->attached;
    cleanup_fd int target = sys_openat2(mounts->fds[0], holder->targets[next] + 1, O_PATH | O_CLOEXEC, 0,
                                        RESOLVE_AS_NAMED | RESOLVE_BENEATH);
    if (target < 0)
      break;
    result = tree_attach(binds[next], target, "", RAMET_STEP_CLONE_BINDS, err);
    mounts->attached += result == 0;
  }
  for (int i = 0; i < holder->bind_count; i++)
    if (i < mounts->attached)
      close_fd(&binds[i]);
    else
      binds[i - mounts->attached] = steal_fd(&binds[i]);
  return result;
}

static int
make_mounts(const struct root *root, const struct sizes *sizes, struct root_mounts *mounts, struct err *err)
{
  const struct root *holder = root_bind_holder(root);

  mounts->count = ROOT_MOUNTS_FIXED;
  mounts->bytes = sizes->bytes;
  mounts->inodes = sizes->inodes;
  mounts->attached = 0;
  for (int i = 0; i < ROOT_MOUNTS_FIXED; i++)
    mounts->fds[i] = -1;
  cleanup_fd int upper = make_upper(root, sizes, err);
  if (upper < 0 || fault_here(RAMET_STEP_OVERLAY, err) < 0)
    return -1;
  int made = corefs_detached_layers() ? make_overlay_detached(root, upper, mounts->fds, err)
                                      : make_overlay_attached(root, upper, mounts->fds, err);
  if (made == 0 && sizes->shm) {
    close_fd(&mounts->fds[1]);
    mounts->fds[1] = make_own_shm(root, sizes, err);
    made = mounts->fds[1] < 0 ? -1 : 0;
  }
  if (made < 0 || fault_here(RAMET_STEP_CLONE_BINDS, err) < 0)
    return -1;
  if (corefs_copy(holder->binds, holder->bind_count, mounts->fds + mounts->count, RAMET_STEP_CLONE_BINDS, err) < 0)
    return -1;
  int attached = attach_ahead(holder, mounts, err);
  mounts->count += holder->bind_count - mounts->attached;
  return attached;
}

/* ---- stock ---------------------------------------------------------------------------------------------------- */

bool
root_stock_low(void)
{
  return hot && hot->stock_count < ROOT_STOCK_MAX;
}

void
root_stock_add(void)
{
  struct root_mounts *mounts = &hot->stock[hot->stock_count];
  struct err err = {0};

  const struct sizes sizes = {hot->usual_bytes, hot->usual_inodes, 0};

  if (make_mounts(hot, &sizes, mounts, &err) == 0) {
    hot->stock_count++;
    return;
  }
  /* The next plan will meet it too, and tell. */
  root_mounts_release(mounts);
  hot = NULL;
}

int
root_hand_out(struct root *root, const struct plan *plan, struct root_mounts *mounts, struct err *err)
{
  const struct sizes sizes = {plan->disk_bytes, plan->disk_inodes, plan->shm_bytes};

  /* A snapshot's root holds files for /dev/shm, which are copied for each sandbox. A fault wants every step. */
  if (root->shm >= 0 || plan->shm_bytes || plan->fault != RAMET_STEP_NONE)
    return make_mounts(root, &sizes, mounts, err);
  root->usual_bytes = sizes.bytes;
  root->usual_inodes = sizes.inodes;
  /* Every fork of something that runs makes a root, of which most have one child. */
  if (!root->handed_out) {
    root->handed_out = true;
    return make_mounts(root, &sizes, mounts, err);
  }
  heat(root);
  if (root->stock_count == 0)
    return make_mounts(root, &sizes, mounts, err);
  *mounts = root->stock[--root->stock_count];
  /* An empty layer is bounded anew in 10 us, and made in 150. */
  if (mounts->bytes == sizes.bytes && mounts->inodes == sizes.inodes)
    return 0;
  mounts->bytes = sizes.bytes;
  mounts->inodes = sizes.inodes;
  return tmpfs_resize(mounts->fds[ROOT_MOUNT_UPPER], sizes.bytes, sizes.inodes, RAMET_STEP_UPPER, err);
}

void
root_mounts_release(struct root_mounts *mounts)
{
  for (int i = 0; i < mounts->count; i++)
    close_fd(&mounts->fds[i]);
  mounts->count = 0;
}
