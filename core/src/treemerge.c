/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treemerge.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "inodemap.h"
#include "plan.h"
#include "treecopy_parts.h"

/* Overlays of ours have `userxattr`, with which there are neither redirects nor files of metadata alone. */
#define OPAQUE "user.overlay.opaque"
/* Files with several names are made here, aside of what guests name, and linked to each of their names. */
#define STAGING ".linked"
/* Numbers of files are below: a tmpfs counts from 1. */
#define LAYER_SHIFT 48

struct job {
  struct copying copying;
  const struct treemerge *merge;
  struct inode_map linked; /* key of a file -> its name in the staging directory */
  int staging, depth;
};

/* A directory in each layer that shows something of it. `hidden`: one of those that become one ends it, so none of
 * those that stay below does. */
struct stack {
  int dirs[RAMET_LAYERS_MAX];
  bool hidden;
};

static int
failed(struct job *job, const char *what, const char *name)
{
  return copying_failed(&job->copying, what, name);
}

static bool
is_whiteout(const struct stat *st)
{
  return S_ISCHR(st->st_mode) && st->st_rdev == 0;
}

static bool
is_opaque(int dir)
{
  char value;

  return fgetxattr(dir, OPAQUE, &value, sizeof value) == sizeof value && value == 'y';
}

static uint64_t
key_of(int layer, ino_t inode)
{
  return (uint64_t)layer << LAYER_SHIFT | inode;
}

/* ---- what is seen --------------------------------------------------------------------------------------------- */

static int
open_dir(int dir, const char *name)
{
  return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void
close_stack(const struct job *job, struct stack *stack)
{
  for (int i = 0; i < job->merge->count; i++)
    close_fd(&stack->dirs[i]);
}

/* Whether the directory of one layer says something of this name: 1. */
static int
look(struct job *job, int dir, const char *name, struct stat *st)
{
  if (dir < 0)
    return 0;
  if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) == 0)
    return 1;
  return errno == ENOENT ? 0 : failed(job, "stat", name);
}

/* The same of the topmost that does, from `first` on and below `end`. */
static int
look_from(struct job *job, const struct stack *stack, int first, int end, const char *name, struct stat *st)
{
  int found = 0;

  for (int i = first; i < end && found == 0; i++)
    found = look(job, stack->dirs[i], name, st);
  return found;
}

/* A directory goes on in the next layer, until one that is opaque, or what is none. */
static int
open_stack(struct job *job, const struct stack *above, const char *name, struct stack *out)
{
  struct stat st;

  memset(out->dirs, 0xff, sizeof out->dirs);
  out->hidden = false;
  for (int i = 0; i < job->merge->count; i++) {
    int found = look(job, above->dirs[i], name, &st);
    if (found < 0)
      return -1;
    if (!found)
      continue;
    if (S_ISDIR(st.st_mode)) {
      out->dirs[i] = open_dir(above->dirs[i], name);
      if (out->dirs[i] < 0)
        return failed(job, "directory", name);
      if (!is_opaque(out->dirs[i]))
        continue;
    }
    out->hidden = i < job->merge->merged;
    break;
  }
  return 0;
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

static int
copy_file(struct job *job, int from_dir, const char *name, int to_dir, const char *to_name, uint64_t key,
          const struct stat *st)
{
  struct inodes *inodes = job->merge->inodes;
  struct copying *copying = &job->copying;
  cleanup_fd int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int made = from < 0 ? -1 : inodes ? inodes_place(inodes, key, to_dir, to_name) : 0;
  int flags = made == 1 ? O_RDWR | O_CLOEXEC : O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  cleanup_fd int to = made < 0 ? -1 : openat(to_dir, to_name, flags, 0600);

  if (to < 0)
    return failed(job, "copy", name);
  if (copying_content(copying, from, to, st->st_size, name) < 0 ||
      copying_attributes(copying, from, to, NULL, name) < 0)
    return -1;
  return copying_metadata(copying, to, st, name);
}

/* What has no entries. */
static int
copy_leaf(struct job *job, int from_dir, const char *name, int to_dir, const char *to_name, uint64_t key,
          const struct stat *st)
{
  char target[PATH_MAX];

  if (S_ISREG(st->st_mode))
    return copy_file(job, from_dir, name, to_dir, to_name, key, st);
  if (S_ISLNK(st->st_mode)) {
    ssize_t length = readlinkat(from_dir, name, target, sizeof target - 1);
    if (length < 0)
      return failed(job, "read link", name);
    target[length] = 0;
    if (symlinkat(target, to_dir, to_name) < 0)
      return failed(job, "link", name);
  } else if (copying_node(&job->copying, to_dir, to_name, st) < 0) {
    return -1;
  }
  return copying_name_metadata(&job->copying, to_dir, to_name, st);
}

static int
link_leaf(struct job *job, int from_dir, const char *name, int to_dir, uint64_t key, const struct stat *st)
{
  char staged[16];
  uint32_t number = inode_map_get(&job->linked, key);
  bool first = number == 0;

  if (job->staging < 0 &&
      (mkdirat(job->merge->aside, STAGING, 0700) < 0 || (job->staging = open_dir(job->merge->aside, STAGING)) < 0))
    return failed(job, "directory", STAGING);
  number = first ? job->linked.count + 1 : number;
  snprintf(staged, sizeof staged, "%u", number);
  if (first && copy_leaf(job, from_dir, name, job->staging, staged, key, st) < 0)
    return -1;
  if (first && inode_map_put(&job->linked, key, number) < 0)
    return failed(job, "remember", name);
  return linkat(job->staging, staged, to_dir, name, 0) < 0 ? failed(job, "link", name) : 0;
}

static int
remove_staging(struct job *job)
{
  char staged[16];

  if (job->staging < 0)
    return 0;
  for (uint32_t i = 1; i <= job->linked.count; i++) {
    snprintf(staged, sizeof staged, "%u", i);
    if (unlinkat(job->staging, staged, 0) < 0)
      return failed(job, "remove", STAGING);
  }
  return unlinkat(job->merge->aside, STAGING, AT_REMOVEDIR) < 0 ? failed(job, "remove", STAGING) : 0;
}

/* ---- directories ---------------------------------------------------------------------------------------------- */

static int merge_dirs(struct job *job, struct stack *stack, int to);

/* The topmost says what the directory is like; whether it hides what is below, all of them together. */
static int
finish_dir(struct job *job, const struct stack *stack, int to, const char *name)
{
  struct stat st;
  int top = 0;

  while (stack->dirs[top] < 0)
    top++;
  if (copying_attributes(&job->copying, stack->dirs[top], to, OPAQUE, name) < 0)
    return -1;
  if (stack->hidden && fsetxattr(to, OPAQUE, "y", 1, 0) < 0)
    return failed(job, "opaque", name);
  return fstat(stack->dirs[top], &st) < 0 ? failed(job, "stat", name)
                                          : copying_metadata(&job->copying, to, &st, name);
}

static int
merge_subdir(struct job *job, const struct stack *above, int to_dir, const char *name)
{
  struct stack stack;
  int result = open_stack(job, above, name, &stack);

  if (result == 0 && mkdirat(to_dir, name, 0700) < 0)
    result = failed(job, "directory", name);
  cleanup_fd int to = result < 0 ? -1 : open_dir(to_dir, name);
  if (result == 0 && to < 0)
    result = failed(job, "directory", name);
  if (result == 0)
    result = merge_dirs(job, &stack, to);
  if (result == 0)
    result = finish_dir(job, &stack, to, name);
  close_stack(job, &stack);
  return result;
}

/* A whiteout of what only merged layers had would be seen as a device, where the kernel lists a directory that is in no
 * other layer: it stays where something below has to be hidden. */
static int
hides_something(struct job *job, const struct stack *stack, const char *name)
{
  struct stat st;
  int found = look_from(job, stack, job->merge->merged, job->merge->count, name, &st);

  return found > 0 ? !is_whiteout(&st) : found;
}

static int
merge_entry(struct job *job, const struct stack *stack, int layer, int to_dir, const char *name)
{
  struct stat st;
  int said = look_from(job, stack, 0, layer, name, &st);

  if (said != 0)
    return said < 0 ? -1 : 0; /* by a layer above */
  if (fstatat(stack->dirs[layer], name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return failed(job, "stat", name);
  int hides = is_whiteout(&st) ? hides_something(job, stack, name) : 1;
  if (hides <= 0)
    return hides;
  job->copying.count->files++;
  if (S_ISDIR(st.st_mode))
    return merge_subdir(job, stack, to_dir, name);
  uint64_t key = key_of(layer, st.st_ino);
  return st.st_nlink > 1 ? link_leaf(job, stack->dirs[layer], name, to_dir, key, &st)
                         : copy_leaf(job, stack->dirs[layer], name, to_dir, name, key, &st);
}

static int
merge_layer(struct job *job, const struct stack *stack, int layer, int to)
{
  int listing = openat(stack->dirs[layer], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
  DIR *dir = listing < 0 ? NULL : fdopendir(listing);

  if (!dir) {
    close_fd(&listing);
    return failed(job, "list", ".");
  }
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      result = merge_entry(job, stack, layer, to, entry->d_name);
  closedir(dir);
  return result;
}

static int
merge_dirs(struct job *job, struct stack *stack, int to)
{
  int result = 0;

  if (++job->depth > COPYING_DEPTH) {
    errno = ELOOP;
    result = failed(job, "depth of", ".");
  }
  for (int i = 0; result == 0 && i < job->merge->merged; i++)
    if (stack->dirs[i] >= 0)
      result = merge_layer(job, stack, i, to);
  job->depth--;
  return result;
}

/* ---- the whole ------------------------------------------------------------------------------------------------ */

uint64_t
treemerge_source(const int *layers, int merged, const char *path)
{
  for (int i = 0; i < merged; i++) {
    uint64_t number = inodes_in_layer(layers[i], path);
    if (number)
      return key_of(i, number);
  }
  return 0;
}

static int
open_tops(struct job *job, struct stack *stack)
{
  memset(stack->dirs, 0xff, sizeof stack->dirs);
  stack->hidden = false;
  for (int i = 0; i < job->merge->count; i++) {
    stack->dirs[i] = openat(job->merge->layers[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (stack->dirs[i] < 0)
      return failed(job, "directory", ".");
  }
  return 0;
}

int
treemerge(const struct treemerge *merge, struct treecopy_count *count, enum ramet_step step, struct err *err)
{
  struct job job = {.copying = {.count = count, .step = step, .err = err, .chunk = malloc(COPYING_CHUNK)},
                    .merge = merge,
                    .staging = -1};
  struct stack stack;

  if (!job.copying.chunk)
    return err_code(err, "internal", "no memory to merge layers");
  int result = open_tops(&job, &stack);
  if (result == 0)
    result = merge_dirs(&job, &stack, merge->to);
  if (result == 0)
    result = remove_staging(&job);
  if (result == 0)
    result = finish_dir(&job, &stack, merge->to, ".");
  close_stack(&job, &stack);
  close_fd(&job.staging);
  inode_map_free(&job.linked);
  free(job.copying.chunk);
  return result;
}
