/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "capture_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sysmacros.h>

#include "filewatch.h"
#include "kept.h"
#include "mounts.h"
#include "treemerge.h"

/* As much is copied in the pause in less time than it takes to look who has files open. */
#define AT_ONCE_BYTES (512u << 10)
#define AT_ONCE_FILES 64

static int
no_memory(struct err *err)
{
  return err_code(err, "internal", "no memory to copy files");
}

/* ---- which files may change without a sign -------------------------------------------------------------------- */

/* "upper/home/x" of "/home/x", "shm/x" of "/dev/shm/x". */
static void
path_in_layer(const char *name, char out[PATH_MAX + 8])
{
  static const char shm[] = "/dev/shm/";
  bool shared = strncmp(name, shm, sizeof shm - 1) == 0;

  snprintf(out, PATH_MAX + 8, "%s%s", shared ? "shm/" : "upper", shared ? name + sizeof shm - 1 : name);
}

/* The number that is seen through the overlay is that of the layer, but for what was copied up from one below. */
static int
note_unseen(struct capture_files *files, const char *name, uint64_t inode, struct err *err)
{
  char path[PATH_MAX + 8];
  uint64_t in_layer;

  path_in_layer(name, path);
  in_layer = inodes_in_layer(files->tree->source->upper, path);
  if (inode_map_put(&files->unseen, inode, 1) < 0 || (in_layer && inode_map_put(&files->unseen, in_layer, 1) < 0))
    return no_memory(err);
  return 0;
}

/* One that was mapped for reading from a file that was opened for writing can become writable. */
static bool
may_be_written(int pid, const struct procmap *map)
{
  char path[96];
  struct stat st;

  if (!map->shared || !map->inode || map->name[0] != '/')
    return false;
  if (map->protection & PROT_WRITE)
    return true;
  snprintf(path, sizeof path, "/proc/%d/map_files/%llx-%llx", pid, (unsigned long long)map->start,
           (unsigned long long)map->end);
  return lstat(path, &st) < 0 || st.st_mode & S_IWUSR;
}

static int
note_maps(struct capture_files *files, int pid, const struct procmaps *maps, struct err *err)
{
  for (uint32_t i = 0; i < maps->count; i++)
    if (may_be_written(pid, &maps->items[i]) &&
        note_unseen(files, maps->items[i].name, maps->items[i].inode, err) < 0)
      return -1;
  return 0;
}

static int
add_wish(struct capture_tree *tree, const char *name, uint64_t number, bool writable, struct err *err)
{
  struct inode_wish *grown = realloc(tree->wishes, sizeof *grown * (size_t)(tree->wish_count + 1));
  char path[PATH_MAX + 8];

  if (!grown)
    return no_memory(err);
  tree->wishes = grown;
  path_in_layer(name, path);
  grown[tree->wish_count] = (struct inode_wish){.path = strdup(path), .number = number, .writable = writable};
  return grown[tree->wish_count++].path ? 0 : no_memory(err);
}

/* The link's own mode tells how the file is open. Whatever cannot be told is told in the pause. */
static int
note_descriptor(struct capture_files *files, int dir, const char *number, struct err *err)
{
  char name[PATH_MAX];
  struct stat link, st;
  ssize_t length = readlinkat(dir, number, name, sizeof name - 1);

  if (length <= 0 || name[0] != '/' || fstatat(dir, number, &link, AT_SYMLINK_NOFOLLOW) < 0 ||
      fstatat(dir, number, &st, 0) < 0 || !S_ISREG(st.st_mode) || st.st_nlink == 0)
    return 0;
  name[length] = 0;
  bool writable = link.st_mode & S_IWUSR;
  if (writable && note_unseen(files, name, st.st_ino, err) < 0)
    return -1;
  /* With more open files it is refused in the pause. */
  if (files->tree->wish_count >= IMAGE_DESCRIPTORS_MAX)
    return 0;
  return add_wish(files->tree, name, st.st_ino, writable, err);
}

static int
note_descriptors(struct capture_files *files, int pid, struct err *err)
{
  char path[48];
  int result = 0;

  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR *dir = opendir(path);
  if (!dir)
    return 0; /* it is gone */
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));)
    if (entry->d_name[0] != '.')
      result = note_descriptor(files, dirfd(dir), entry->d_name, err);
  closedir(dir);
  return result;
}

static int
note_running(struct capture_files *files, int pid, struct err *err)
{
  struct procmaps maps;
  struct err ignored = {0};
  int result = 0;

  /* The kernel tells when such a mapping goes. */
  if (files->tree->source->file_watch < 0 && procfs_maps(pid, &maps, RAMET_STEP_COPY_UPPER, &ignored) == 0) {
    result = note_maps(files, pid, &maps, err);
    procfs_maps_free(&maps);
  }
  return result < 0 ? -1 : note_descriptors(files, pid, err);
}

/* Everybody below init, while they come and go. */
static int
note_all_running(struct capture_files *files, struct err *err)
{
  cleanup_free int *found = malloc(sizeof(int) * (2 * IMAGE_PROCESSES_MAX + 1));

  if (!found)
    return no_memory(err);
  found[0] = files->tree->source->init_pid;
  for (int count = 1, i = 0; i < count; i++) {
    int most = 2 * IMAGE_PROCESSES_MAX + 1 - count;
    int more = most > 0 ? procfs_children(found[i], found + count, most) : 0;
    count += more > 0 ? more : 0;
    if (i > 0 && note_running(files, found[i], err) < 0)
      return -1;
  }
  return 0;
}

static int
add_all(struct inode_map *to, const struct inode_map *from, struct err *err)
{
  for (uint32_t i = 0; i < from->size; i++)
    if (from->slots[i].value && inode_map_put(to, from->slots[i].inode, 1) < 0)
      return no_memory(err);
  return 0;
}

/* What is kept is of the first snapshot, and this is told once: it is noted there for the next one. */
static int
note_closed(struct capture_files *files, struct err *err)
{
  int watch = files->tree->source->file_watch;
  struct inode_map closed = {0};

  if (watch < 0)
    return 0;
  int result = filewatch_read(watch, &closed, &files->changed, &files->blind, err);
  if (result == 0 && (add_all(&files->unseen, &closed, err) < 0 || add_all(&files->written, &closed, err) < 0))
    result = -1;
  inode_map_free(&closed);
  return result;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

static uint64_t
number_of(int layer, const char *path)
{
  return layer < 0 ? 0 : inodes_in_layer(layer, path);
}

/* Those whose copy has their number already are taken off the list. */
static int
unsatisfied(struct capture_files *files)
{
  struct capture_tree *tree = files->tree;
  int kept = 0;

  for (int i = 0; i < tree->wish_count; i++) {
    struct inode_wish wish = tree->wishes[i];
    uint64_t here = inodes_in_layer(files->copy, wish.path);
    if ((here ? here : number_of(tree->source->below, wish.path)) == wish.number)
      free(wish.path);
    else
      tree->wishes[kept++] = wish;
  }
  tree->wish_count = kept;
  return kept;
}

static void
forget_wishes(struct capture_tree *tree)
{
  for (int i = 0; i < tree->wish_count; i++)
    free(tree->wishes[i].path);
  tree->wish_count = 0;
}

static int
sync_both(struct capture_files *files, bool strict, struct err *err)
{
  const int upper = files->tree->source->upper;
  struct capture_tree *tree = files->tree;
  struct inodes inodes;
  struct err second;

  for (int i = 0; i < tree->wish_count; i++)
    tree->wishes[i].source = inodes_in_layer(upper, tree->wishes[i].path);
  int result = inodes_reserve(files->copy, tree->wishes, tree->wish_count, &inodes, RAMET_STEP_COPY_UPPER, err);
  files->upper.inodes = files->shm.inodes = &inodes;
  /* A file gets its number by being copied. */
  for (int i = 0; result == 0 && i < inodes.count; i++)
    if (inode_map_put(&files->unseen, inodes_source(&inodes, i), 1) < 0)
      result = no_memory(err);
  if (result == 0)
    result = treesync_pass(&files->upper, strict, RAMET_STEP_COPY_UPPER, err);
  if (result == 0)
    result = treesync_pass(&files->shm, strict, RAMET_STEP_COPY_UPPER, err);
  files->upper.inodes = files->shm.inodes = NULL;
  if (inodes_end(&inodes, files->copy, RAMET_STEP_COPY_UPPER, result < 0 ? &second : err) < 0)
    return -1;
  return result;
}

/* ---- the copy ------------------------------------------------------------------------------------------------- */

static int
open_pair(struct capture_files *files, const char *name, struct treesync *sync, struct err *err)
{
  sync->from = openat(files->tree->source->upper, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (sync->from < 0 || mkdirat(files->copy, name, 0700) < 0)
    return err_step(err, RAMET_STEP_COPY_UPPER, "%s: %s", name, strerror(errno));
  sync->to = openat(files->copy, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (sync->to < 0)
    return err_step(err, RAMET_STEP_COPY_UPPER, "%s: %s", name, strerror(errno));
  sync->unseen = &files->unseen;
  return 0;
}

static int
begin(struct capture_files *files, struct err *err)
{
  struct tmpfs_options options = {.mode = "0700", .large = true};
  const struct capture_source *source = files->tree->source;

  files->copy = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_COPY_UPPER, err);
  if (files->copy < 0 || open_pair(files, "upper", &files->upper, err) < 0 ||
      open_pair(files, "shm", &files->shm, err) < 0 || tree_index_make(&files->shm.index, err) < 0)
    return -1;
  return source->file_index < 0 ? tree_index_make(&files->upper.index, err)
                                : tree_index_load(&files->upper.index, source->file_index, err);
}

/* ---- layers --------------------------------------------------------------------------------------------------- */

/* Layers on disk are told apart by names, sizes and times: this one gets a name that no other has. */
static int
make_flat(int flat)
{
  char name[32];
  uint64_t number;

  if (getrandom(&number, sizeof number, 0) != sizeof number)
    return -1;
  snprintf(name, sizeof name, "flat-%016llx", (unsigned long long)number);
  /* What was in /dev/shm is not a layer's matter: each snapshot has all of it. */
  if (mkdirat(flat, name, 0700) < 0 || mkdirat(flat, "upper", 0700) < 0 || mkdirat(flat, "shm", 0700) < 0)
    return -1;
  return openat(flat, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Directories of the tree in each of the layers. */
static int
open_layers(const struct capture_source *source, int dirs[RAMET_LAYERS_MAX], struct err *err)
{
  memset(dirs, 0xff, RAMET_LAYERS_MAX * sizeof *dirs);
  for (int i = 0; i < source->layer_count; i++) {
    dirs[i] = openat(source->layers[i], i < source->merged ? "upper" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirs[i] < 0)
      return err_step(err, RAMET_STEP_FLATTEN, "open a layer: %s", strerror(errno));
  }
  return 0;
}

/* Files keep their numbers that somebody has open. Two of the same number, in two layers, cannot both, nor one that is
 * opened from now on: who opened it for writing has it in the writable layer, and that is copied with its number. */
static int
merge_layers(struct capture_files *files, const int dirs[RAMET_LAYERS_MAX], int upper, struct err *err)
{
  static const char prefix[] = "upper/";
  const struct capture_source *source = files->tree->source;
  struct capture_tree *tree = files->tree;
  struct treecopy_count count = {0};
  struct inodes inodes;
  struct err second;

  for (int i = 0; i < tree->wish_count; i++) {
    struct inode_wish *wish = &tree->wishes[i];
    wish->source = strncmp(wish->path, prefix, sizeof prefix - 1) == 0
                       ? treemerge_source(dirs, source->merged, wish->path + sizeof prefix - 1)
                       : 0;
  }
  struct treemerge merge = {.layers = dirs,
                            .merged = source->merged,
                            .count = source->layer_count,
                            .to = upper,
                            .aside = files->flat,
                            .inodes = &inodes};
  int result = inodes_reserve(files->flat, tree->wishes, tree->wish_count, &inodes, RAMET_STEP_FLATTEN, err);
  if (result == 0)
    result = treemerge(&merge, &count, RAMET_STEP_FLATTEN, err);
  if (inodes_end(&inodes, files->flat, RAMET_STEP_FLATTEN, result < 0 ? &second : err) < 0)
    return -1;
  return result;
}

/* What the source was forked from has become many layers, each of which every look-up goes through: the snapshot stands
 * on one that is the same. Only their own content is copied, before the pause; those who use them go on doing so. */
static int
flatten(struct capture_files *files, struct err *err)
{
  const struct capture_source *source = files->tree->source;
  struct tmpfs_options options = {.mode = "0700", .large = true};
  int dirs[RAMET_LAYERS_MAX];

  if (source->merged == 0)
    return 0;
  if (fault_here(RAMET_STEP_FLATTEN, err) < 0 || note_all_running(files, err) < 0)
    return -1;
  files->flat = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_FLATTEN, err);
  if (files->flat < 0)
    return -1;
  cleanup_fd int upper = make_flat(files->flat);
  int result = upper < 0 ? err_step(err, RAMET_STEP_FLATTEN, "a new layer: %s", strerror(errno))
                         : open_layers(source, dirs, err);
  if (result == 0)
    result = merge_layers(files, dirs, upper, err);
  for (int i = 0; upper >= 0 && i < RAMET_LAYERS_MAX; i++)
    close_fd(&dirs[i]);
  forget_wishes(files->tree);
  return result;
}

/* What was kept is of no use when nobody knows what was mapped since. */
static int
distrust_all(struct capture_files *files, struct err *err)
{
  const struct tree_index *indexes[] = {&files->upper.index, &files->shm.index};

  for (int n = 0; n < 2; n++)
    for (uint32_t i = 0; i < indexes[n]->count; i++) {
      const struct tree_node *node = tree_node(indexes[n], i);
      if (S_ISREG(node->mode) && node->sign.inode &&
          (inode_map_put(&files->unseen, node->sign.inode, 1) < 0 ||
           inode_map_put(&files->written, node->sign.inode, 1) < 0))
        return no_memory(err);
    }
  files->watched = files->blind = false;
  return 0;
}

int
capture_files_ahead(struct capture_files *files, struct capture_tree *tree, struct err *err)
{
  struct upper_use use;

  *files = (struct capture_files){.tree = tree, .copy = -1, .flat = -1};
  if (fault_here(RAMET_STEP_COPY_AHEAD, err) < 0 || begin(files, err) < 0 || note_closed(files, err) < 0 ||
      flatten(files, err) < 0)
    return -1;
  use = upper_use(tree->source->upper);
  if (use.bytes <= AT_ONCE_BYTES && use.files <= AT_ONCE_FILES)
    return 0;
  if (note_all_running(files, err) < 0)
    return -1;
  if (files->blind && distrust_all(files, err) < 0)
    return -1;
  files->watched =
      tree->source->file_watch >= 0 && filewatch_all(tree->source->file_watch, tree->source->upper) == 0;
  int result = sync_both(files, false, err);
  forget_wishes(tree);
  return result;
}

/* Whom the kernel tells of when it is closed needs no second look; without that, what was open before may have been
 * closed since. */
static int
note_stopped(struct capture_files *files, struct err *err)
{
  struct capture_tree *tree = files->tree;

  if (tree->source->file_watch >= 0)
    inode_map_free(&files->unseen);
  inode_map_free(&files->changed);
  if (note_closed(files, err) < 0)
    return -1;
  if (files->blind && distrust_all(files, err) < 0)
    return -1;
  if (files->watched)
    files->upper.dirty = files->shm.dirty = &files->changed;
  for (int i = 0; i < tree->count; i++)
    if (note_maps(files, tree->processes[i]->pid, &tree->processes[i]->maps, err) < 0)
      return -1;
  for (int i = 0; i < tree->wish_count; i++) {
    uint64_t inode = inodes_in_layer(tree->source->upper, tree->wishes[i].path);
    if (tree->wishes[i].writable && inode && inode_map_put(&files->unseen, inode, 1) < 0)
      return no_memory(err);
  }
  return 0;
}

int
capture_files_now(struct capture_files *files, struct err *err)
{
  if (fault_here(RAMET_STEP_COPY_UPPER, err) < 0 || note_stopped(files, err) < 0)
    return -1;
  unsatisfied(files);
  if (sync_both(files, true, err) < 0)
    return -1;
  return 0;
}

int
capture_files_end(struct capture_files *files, bool taken, struct err *err)
{
  const struct capture_source *source = files->tree->source;

  if (source->file_watch >= 0)
    filewatch_less(source->file_watch, source->upper);
  files->bytes = treesync_stored(&files->upper) + treesync_stored(&files->shm);
  return taken && source->file_index >= 0
             ? tree_index_distrust(&files->upper.index, source->file_index, &files->written, err)
             : 0;
}

int
capture_files_index(const struct capture_files *files, struct err *err)
{
  const struct capture_source *source = files->tree->source;

  if (source->file_watch < 0 || source->file_index >= 0)
    return -1;
  return tree_index_save(&files->upper.index, err);
}
