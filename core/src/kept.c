/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kept.h"

#include <sys/statvfs.h>

#include "filewatch.h"
#include "rootfs.h"

/* Less is copied again sooner than a further layer is looked into by every child. */
#define WORTH_BYTES (4u << 20)
#define WORTH_FILES 500
/* Of all sandboxes together, and how long after the last snapshot. */
#define KEPT_BYTES_MAX (1ull << 30)
#define KEPT_NS 60000000000u

struct kept {
  struct deadline leaves; /* first */
  struct sandbox *sandbox;
  struct root *root; /* on top of which the copy is; NULL: there is none yet */
  int index, watch;
  uint64_t bytes;
};

static uint64_t all_bytes;

struct upper_use
upper_use(int upper)
{
  struct statvfs st;

  if (fstatvfs(upper, &st) < 0)
    return (struct upper_use){UINT64_MAX, UINT64_MAX};
  return (struct upper_use){(st.f_blocks - st.f_bfree) * st.f_bsize, st.f_files - st.f_ffree};
}

void
kept_forget(struct sandbox *sandbox)
{
  struct kept *kept = sandbox->kept;

  if (!kept)
    return;
  deadline_clear(&kept->leaves);
  all_bytes -= kept->bytes;
  if (kept->root)
    root_release(kept->root);
  close_fd(&kept->index);
  close_fd(&kept->watch);
  free(kept);
  sandbox->kept = NULL;
}

static void
unused(struct deadline *deadline)
{
  kept_forget(((struct kept *)(void *)deadline)->sandbox);
}

void
kept_forget_all(void)
{
  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox))
    kept_forget(sandbox);
}

/* Without memory for it, or a kernel that tells, or with a second file system that nobody watches, the next snapshot
 * copies all again. */
static struct kept *
make(struct sandbox *sandbox)
{
  struct upper_use use = upper_use(sandbox->upper);
  bool worth = use.bytes >= WORTH_BYTES || use.files >= WORTH_FILES;
  struct kept *kept = worth && !sandbox->own_shm ? calloc(1, sizeof *kept) : NULL;

  if (!kept)
    return NULL;
  *kept = (struct kept){
      .leaves.fire = unused, .sandbox = sandbox, .index = -1, .watch = filewatch_open(sandbox->upper)};
  sandbox->kept = kept;
  if (kept->watch < 0)
    kept_forget(sandbox);
  return sandbox->kept;
}

struct root *
kept_begin(struct sandbox *sandbox, struct capture_source *source)
{
  struct kept *kept = sandbox->kept ? sandbox->kept : make(sandbox);
  int uppers[RAMET_LAYERS_MAX];

  source->below = source->file_index = source->file_watch = -1;
  if (!kept)
    return NULL;
  /* Not while it is being used. */
  deadline_clear(&kept->leaves);
  source->file_watch = kept->watch;
  if (!kept->root)
    return NULL;
  source->file_index = kept->index;
  if (root_uppers(kept->root, uppers) > 0)
    source->below = uppers[0];
  return root_hold(kept->root);
}

void
kept_captured(struct sandbox *sandbox, struct root *root, int index, uint64_t bytes)
{
  struct kept *kept = sandbox->kept;
  cleanup_fd int taken = index;

  if (!kept)
    return;
  if (!kept->root && (taken < 0 || all_bytes + bytes > KEPT_BYTES_MAX)) {
    kept_forget(sandbox);
    return;
  }
  if (!kept->root) {
    kept->root = root_hold(root);
    kept->index = steal_fd(&taken);
    kept->bytes = bytes;
    all_bytes += bytes;
  } else if (bytes > kept->bytes / 2) {
    /* Too little of it is left: the next one is the new beginning. */
    kept_forget(sandbox);
    return;
  }
  deadline_set(&kept->leaves, loop_now() + KEPT_NS);
}
