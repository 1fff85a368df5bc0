/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treesync.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>

#include "overdue.h"
#include "syscalls.h"
#include "treecopy_parts.h"

#define OPAQUE "user.overlay.opaque"

struct pass {
  struct treesync *sync;
  struct tree_index *index;
  struct copying copying;
  bool strict, linked_below; /* a file of several names is in the layer below only */
  int64_t since;
  struct inode_map linked; /* files of several names: the first that the copy has */
  uint32_t *touched, touched_count, touched_room;
  int depth;
};

/* A directory that is walked through. */
struct place {
  uint32_t number;
  int from;
  int to; /* -1: not opened yet */
};

static struct tree_node *
node_of(const struct pass *p, uint32_t number)
{
  return tree_node(p->index, number);
}

static int
failed(struct pass *p, const char *what, uint32_t number)
{
  return copying_failed(&p->copying, what, tree_name(p->index, number));
}

/* What goes away, or becomes something else, between two looks: the next pass sees it as it is then. */
static int
missed(struct pass *p, const char *what, uint32_t number)
{
  bool gone = errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENXIO || errno == EINVAL;

  if (p->strict || !gone)
    return failed(p, what, number);
  node_of(p, number)->flags |= TREE_AGAIN | TREE_MISSED;
  return 0;
}

/* ---- the copy ------------------------------------------------------------------------------------------------- */

static int
touch(struct pass *p, uint32_t number)
{
  struct tree_node *node = node_of(p, number);

  if (node->flags & TREE_TOUCHED)
    return 0;
  if (p->touched_count == p->touched_room) {
    uint32_t room = p->touched_room ? p->touched_room * 2 : 64;
    uint32_t *grown = realloc(p->touched, room * sizeof *grown);
    if (!grown)
      return failed(p, "remember", number);
    p->touched = grown;
    p->touched_room = room;
  }
  node->flags |= TREE_TOUCHED;
  p->touched[p->touched_count++] = number;
  return 0;
}

static int
make_dir(struct pass *p, int parent, uint32_t number)
{
  struct tree_node *node = node_of(p, number);

  if (mkdirat(parent, tree_name(p->index, number), 0700) < 0)
    return failed(p, "directory", number);
  node->flags |= TREE_HERE;
  return touch(p, number) < 0 || touch(p, node->parent) < 0 ? -1 : 0;
}

/* From the top down to a directory: its numbers, the last first. */
static int
chain_to(struct pass *p, uint32_t number, uint32_t chain[COPYING_DEPTH])
{
  int depth = 0;

  for (uint32_t at = number; at; at = node_of(p, at)->parent) {
    if (depth == COPYING_DEPTH) {
      errno = ELOOP;
      return failed(p, "depth of", number);
    }
    chain[depth++] = at;
  }
  return depth;
}

/* A directory of the copy. What of the way to it is in the layer below only is made: whoever opens it puts something
 * there. */
static int
open_here(struct pass *p, uint32_t number)
{
  uint32_t chain[COPYING_DEPTH];
  int depth = chain_to(p, number, chain);
  int at = depth < 0 ? -1 : openat(p->sync->to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

  while (at >= 0 && depth > 0) {
    uint32_t next = chain[--depth];
    cleanup_fd int parent = at;
    if (!(node_of(p, next)->flags & TREE_HERE) && make_dir(p, parent, next) < 0)
      return -1;
    at = openat(parent, tree_name(p->index, next), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }
  return at < 0 ? failed(p, "open the copy of", number) : at;
}

/* Where the copies of what is in `place` are put: about to be changed. */
static int
here(struct pass *p, struct place *place)
{
  if (place->to < 0)
    place->to = open_here(p, place->number);
  return place->to < 0 || touch(p, place->number) < 0 ? -1 : place->to;
}

static int
remove_tree(int dir, const char *name)
{
  cleanup_fd int listing = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *entries = listing < 0 ? NULL : fdopendir(listing);
  int result = 0, inside = listing;

  if (!entries)
    return -1;
  listing = -1;
  for (struct dirent *entry; result == 0 && (entry = readdir(entries));) {
    struct stat st;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    if (fstatat(inside, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
      result = -1;
    else
      result = S_ISDIR(st.st_mode) ? remove_tree(inside, entry->d_name) : unlinkat(inside, entry->d_name, 0);
  }
  closedir(entries);
  return result < 0 ? -1 : unlinkat(dir, name, AT_REMOVEDIR);
}

static void
forget_below(struct pass *p, uint32_t number)
{
  for (uint32_t child = node_of(p, number)->first; child; child = node_of(p, child)->next) {
    struct tree_node *node = node_of(p, child);
    node->flags &= TREE_TOUCHED;
    node->sign = (struct tree_sign){0};
    node->stored = 0;
    forget_below(p, child);
  }
}

/* The copy has nothing under this name after it. */
static int
clear(struct pass *p, struct place *place, uint32_t number)
{
  struct tree_node *node = node_of(p, number);
  bool directory = S_ISDIR(node->mode) && !(node->flags & TREE_WHITE);

  if (node->flags & TREE_HERE) {
    int to = here(p, place);
    const char *name = tree_name(p->index, number);
    if (to < 0 || (directory ? remove_tree(to, name) : unlinkat(to, name, 0)) < 0)
      return to < 0 ? -1 : failed(p, "remove the copy of", number);
  }
  forget_below(p, number);
  node->flags &= TREE_BELOW | TREE_TOUCHED;
  node->sign = (struct tree_sign){0};
  node->stored = 0;
  return 0;
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

static void
note(struct pass *p, uint32_t number, const struct stat *st)
{
  struct tree_node *node = node_of(p, number);

  node->sign = tree_sign_of(st);
  node->mode = st->st_mode;
  node->links = (uint32_t)st->st_nlink;
  node->flags &= ~(uint32_t)(TREE_AGAIN | TREE_MISSED);
  if (node->sign.changed >= p->since)
    node->flags |= TREE_AGAIN;
}

/* O_NOATIME is for owners, and core has the capability; where it has not, the look itself may show. */
static int
open_quietly(int dir, const char *name, int flags)
{
  int fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NOATIME);

  return fd < 0 && errno == EPERM ? openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC) : fd;
}

static int
drop_attributes(struct pass *p, int fd, uint32_t number)
{
  char list[65536];
  ssize_t length = flistxattr(fd, list, sizeof list);

  if (length < 0 && errno != EOPNOTSUPP)
    return failed(p, "attributes of", number);
  for (char *at = list; at < list + (length < 0 ? 0 : length); at += strlen(at) + 1)
    /* A label cannot be removed, only be another. */
    if (fremovexattr(fd, at) < 0 && strcmp(at, "security.selinux") != 0)
      return failed(p, "attributes of", number);
  return 0;
}

/* The copy keeps its inode number where it is written again. */
static int
open_copy(struct pass *p, int to, uint32_t number, const struct stat *st, bool again)
{
  const char *name = tree_name(p->index, number);
  int made = again || !p->sync->inodes ? 0 : inodes_place(p->sync->inodes, st->st_ino, to, name);
  int flags = again || made == 1 ? O_RDWR : O_CREAT | O_EXCL | O_RDWR;
  int fd = made < 0 ? -1 : openat(to, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);

  if (fd < 0 || (again && ftruncate(fd, 0) < 0)) {
    close_fd(&fd);
    return failed(p, "copy", number);
  }
  node_of(p, number)->flags |= TREE_HERE;
  return again && drop_attributes(p, fd, number) < 0 ? (close_fd(&fd), -1) : fd;
}

static int
copy_regular(struct pass *p, struct place *place, uint32_t number)
{
  struct tree_node *node = node_of(p, number);
  const char *name = tree_name(p->index, number);
  struct stat st;
  cleanup_fd int from = open_quietly(place->from, name, O_RDONLY | O_NONBLOCK);

  if (from < 0)
    return missed(p, "open", number);
  /* Waits for who is writing. */
  if (lseek(from, 0, SEEK_DATA) < 0 && errno != ENXIO && errno != EINVAL && errno != ESPIPE)
    return failed(p, "look into", number);
  if (fstat(from, &st) < 0)
    return failed(p, "stat", number);
  if (!S_ISREG(st.st_mode)) {
    errno = ENOENT;
    return missed(p, "copy", number);
  }
  bool again = node->flags & TREE_HERE && S_ISREG(node->mode) && node->sign.inode == st.st_ino &&
               !(p->sync->inodes && inodes_have(p->sync->inodes, st.st_ino));
  if (!again && clear(p, place, number) < 0)
    return -1;
  int dir = here(p, place);
  cleanup_fd int to = dir < 0 ? -1 : open_copy(p, dir, number, &st, again);
  if (to < 0)
    return -1;
  note(p, number, &st);
  uint64_t before = p->sync->count.bytes;
  if (copying_content(&p->copying, from, to, st.st_size, name) < 0 ||
      copying_attributes(&p->copying, from, to, NULL, name) < 0)
    return -1;
  node->stored = p->sync->count.bytes - before;
  return copying_metadata(&p->copying, to, &st, name);
}

static int
copy_special(struct pass *p, struct place *place, uint32_t number, const struct stat *st)
{
  const char *name = tree_name(p->index, number);
  struct err second = {0};

  if (clear(p, place, number) < 0)
    return -1;
  int to = here(p, place);
  if (to < 0)
    return -1;
  struct err *err = p->copying.err;
  p->copying.err = p->strict ? err : &second;
  int result = S_ISLNK(st->st_mode) ? copying_symlink(&p->copying, place->from, to, name)
                                    : copying_node(&p->copying, to, name, st);
  p->copying.err = err;
  if (result < 0)
    return p->strict ? -1 : missed(p, "copy", number);
  node_of(p, number)->flags |= TREE_HERE;
  note(p, number, st);
  return copying_name_metadata(&p->copying, to, name, st);
}

static int
copy_entry(struct pass *p, struct place *place, uint32_t number, const struct stat *st)
{
  return S_ISREG(st->st_mode) ? copy_regular(p, place, number) : copy_special(p, place, number, st);
}

/* ---- files of several names ----------------------------------------------------------------------------------- */

/* Another name for the copy of `first`. */
static int
relink(struct pass *p, struct place *place, uint32_t number, uint32_t first, const struct stat *st)
{
  if (clear(p, place, number) < 0)
    return -1;
  int to = here(p, place);
  cleanup_fd int dir = to < 0 ? -1 : open_here(p, node_of(p, first)->parent);
  if (dir < 0)
    return -1;
  if (linkat(dir, tree_name(p->index, first), to, tree_name(p->index, number), 0) < 0)
    return failed(p, "link", number);
  node_of(p, number)->flags |= TREE_HERE;
  note(p, number, st);
  return 0;
}

static bool
are_linked(struct pass *p, struct place *place, uint32_t number, uint32_t first)
{
  cleanup_fd int dir = open_here(p, node_of(p, first)->parent);
  struct stat one, other;

  if (place->to < 0)
    place->to = open_here(p, place->number);
  return dir >= 0 && place->to >= 0 && fstatat(dir, tree_name(p->index, first), &one, AT_SYMLINK_NOFOLLOW) == 0 &&
         fstatat(place->to, tree_name(p->index, number), &other, AT_SYMLINK_NOFOLLOW) == 0 &&
         one.st_ino == other.st_ino;
}

/* What was met first of an inode, unless another file has taken its name since. */
static uint32_t
first_of(struct pass *p, uint64_t inode, uint32_t number)
{
  uint32_t first = inode_map_get(&p->linked, inode);

  if (!first || first == number)
    return 0;
  const struct tree_node *node = node_of(p, first);
  return node->flags & TREE_HERE && node->sign.inode == inode ? first : 0;
}

static int
sync_linked(struct pass *p, struct place *place, uint32_t number, const struct stat *st, bool same)
{
  uint32_t first = first_of(p, st->st_ino, number);

  if (first)
    return same && node_of(p, number)->flags & TREE_HERE && are_linked(p, place, number, first)
               ? 0
               : relink(p, place, number, first, st);
  if (same && !(node_of(p, number)->flags & TREE_HERE)) {
    p->linked_below = true;
    return 0;
  }
  if (!same && copy_entry(p, place, number, st) < 0)
    return -1;
  /* Another file may have taken the name before it was opened. */
  const struct tree_node *node = node_of(p, number);
  if (node->flags & TREE_HERE && node->sign.inode == st->st_ino &&
      inode_map_put(&p->linked, st->st_ino, number) < 0)
    return failed(p, "remember", number);
  return 0;
}

static int
join(struct pass *p, uint32_t number, uint32_t first)
{
  struct tree_node *node = node_of(p, number), before = *node;
  struct place place = {.number = node->parent, .from = -1, .to = -1};
  struct stat st = {.st_mode = node->mode, .st_nlink = node->links};
  bool linked = node->flags & TREE_HERE && are_linked(p, &place, number, first);
  int result = linked ? 0 : relink(p, &place, number, first, &st);

  close_fd(&place.to);
  node->sign = before.sign;
  node->flags |= before.flags & TREE_AGAIN;
  return result;
}

/* A name whose directory was renamed is new, and nothing has happened to the others of the file. */
static int
join_linked(struct pass *p)
{
  for (uint32_t i = 1; i < p->index->count; i++) {
    const struct tree_node *node = node_of(p, i);
    /* Where all were looked at, those that are here were joined then. */
    bool joined = node->flags & TREE_HERE && !p->sync->dirty;
    if (node->links < 2 || !node->sign.inode || joined || S_ISDIR(node->mode))
      continue;
    uint32_t first = first_of(p, node->sign.inode, i);
    if (first && join(p, i, first) < 0)
      return -1;
  }
  return 0;
}

/* ---- directories ---------------------------------------------------------------------------------------------- */

static int sync_dir(struct pass *p, struct place *place);

static int
begin_dir(struct pass *p, struct place *place, uint32_t number)
{
  if (clear(p, place, number) < 0)
    return -1;
  int to = here(p, place);
  if (to < 0 || make_dir(p, to, number) < 0)
    return -1;
  struct tree_node *node = node_of(p, number);
  node->flags |= TREE_VISIT | (node->flags & TREE_BELOW ? TREE_OPAQUE : 0);
  return 0;
}

static int
sync_subdir(struct pass *p, struct place *place, uint32_t number, const struct stat *st, bool same)
{
  const struct tree_node *node = node_of(p, number);
  bool known = S_ISDIR(node->mode) && node->sign.inode == st->st_ino && node->flags & (TREE_HERE | TREE_MERGED);
  struct stat own;
  cleanup_fd int from = open_quietly(place->from, tree_name(p->index, number), O_RDONLY | O_DIRECTORY);

  if (from < 0)
    return missed(p, "directory", number);
  if (fstat(from, &own) < 0)
    return failed(p, "stat", number);
  if (own.st_ino != st->st_ino) {
    errno = ENOENT;
    return missed(p, "directory", number);
  }
  if (known ? !same && touch(p, number) < 0 : begin_dir(p, place, number) < 0)
    return -1;
  note(p, number, &own);
  struct place inside = {.number = number, .from = from, .to = -1};
  int result = sync_dir(p, &inside);
  close_fd(&inside.to);
  return result;
}

static int
sync_entry(struct pass *p, struct place *place, const char *name)
{
  struct stat st;
  uint32_t number = tree_find(p->index, place->number, name);

  if (overdue_check(p->copying.step, p->copying.err) < 0)
    return -1;
  if (!number)
    number = tree_add(p->index, place->number, name);
  if (!number)
    return failed(p, "remember", place->number);
  if (fstatat(place->from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return missed(p, "stat", number);
  struct tree_node *node = node_of(p, number);
  struct tree_sign sign = tree_sign_of(&st);
  bool same = tree_sign_equal(&node->sign, &sign) && !(node->flags & TREE_AGAIN) &&
              !(p->sync->unseen && inode_map_get(p->sync->unseen, st.st_ino));
  node->pass = p->sync->pass;
  p->sync->count.files++;
  if (S_ISDIR(st.st_mode))
    return sync_subdir(p, place, number, &st, same);
  if (st.st_nlink > 1)
    return sync_linked(p, place, number, &st, same);
  return same ? 0 : copy_entry(p, place, number, &st);
}

/* It was there, and is no more. */
static int
vanish(struct pass *p, struct place *place, uint32_t number)
{
  const char *name = tree_name(p->index, number);

  if (clear(p, place, number) < 0)
    return -1;
  if (!(node_of(p, number)->flags & TREE_BELOW))
    return 0;
  int to = here(p, place);
  if (to < 0 || mknodat(to, name, S_IFCHR, 0) < 0)
    return to < 0 ? -1 : failed(p, "whiteout", number);
  node_of(p, number)->flags |= TREE_HERE | TREE_WHITE;
  return 0;
}

static int
vanish_unseen(struct pass *p, struct place *place)
{
  for (uint32_t child = node_of(p, place->number)->first; child; child = node_of(p, child)->next) {
    const struct tree_node *node = node_of(p, child);
    if (node->pass != p->sync->pass && node->flags & (TREE_HERE | TREE_BELOW) && !(node->flags & TREE_WHITE) &&
        vanish(p, place, child) < 0)
      return -1;
  }
  return 0;
}

/* Nothing was done to the directory itself. */
static int
go_through(struct pass *p, struct place *place)
{
  for (uint32_t child = node_of(p, place->number)->first; child; child = node_of(p, child)->next)
    if (node_of(p, child)->flags & (TREE_VISIT | TREE_WAY) && sync_entry(p, place, tree_name(p->index, child)) < 0)
      return -1;
  return 0;
}

/* The same file has the name, and nothing was done to it. */
static bool
is_clean(struct pass *p, const struct place *place, const struct dirent *entry)
{
  uint32_t number = p->sync->dirty ? tree_find(p->index, place->number, entry->d_name) : 0;
  struct tree_node *node = node_of(p, number);

  if (!number || node->flags & (TREE_VISIT | TREE_WAY) || node->sign.inode != entry->d_ino)
    return false;
  node->pass = p->sync->pass;
  return true;
}

static int
list_dir(struct pass *p, struct place *place)
{
  int listing = open_quietly(place->from, ".", O_RDONLY | O_DIRECTORY), result = 0;
  DIR *dir = listing < 0 ? NULL : fdopendir(listing);

  if (!dir) {
    close_fd(&listing);
    return failed(p, "list", place->number);
  }
  if (++p->depth > COPYING_DEPTH) {
    errno = ELOOP;
    result = failed(p, "depth of", place->number);
  }
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && !is_clean(p, place, entry))
      result = sync_entry(p, place, entry->d_name);
  p->depth--;
  closedir(dir);
  return result < 0 ? -1 : vanish_unseen(p, place);
}

static int
sync_dir(struct pass *p, struct place *place)
{
  bool listed = !p->sync->dirty || node_of(p, place->number)->flags & TREE_VISIT;

  return listed ? list_dir(p, place) : go_through(p, place);
}

/* ---- the ends of a pass --------------------------------------------------------------------------------------- */

/* A directory of the source. */
static int
open_there(struct pass *p, uint32_t number)
{
  uint32_t chain[COPYING_DEPTH];
  int depth = chain_to(p, number, chain);
  int at = depth < 0 ? -1 : open_quietly(p->sync->from, ".", O_RDONLY | O_DIRECTORY);

  while (at >= 0 && depth > 0) {
    cleanup_fd int parent = at;
    at = open_quietly(parent, tree_name(p->index, chain[--depth]), O_RDONLY | O_DIRECTORY);
  }
  return at;
}

/* A mark of opaqueness belongs to the layer that first had the directory: in one above it would hide that one. */
static int
set_directory(struct pass *p, uint32_t number, int from, int to)
{
  const char *name = tree_name(p->index, number);
  uint32_t flags = node_of(p, number)->flags;
  const char *without = flags & (TREE_MERGED | TREE_OPAQUE) ? OPAQUE : NULL;
  struct stat st;

  if (drop_attributes(p, to, number) < 0 || copying_attributes(&p->copying, from, to, without, name) < 0)
    return -1;
  if (flags & TREE_OPAQUE && fsetxattr(to, OPAQUE, "y", 1, 0) < 0)
    return failed(p, "opaque", number);
  if (fstat(from, &st) < 0)
    return failed(p, "stat", number);
  struct tree_sign sign = tree_sign_of(&st);
  if (!tree_sign_equal(&sign, &node_of(p, number)->sign))
    node_of(p, number)->flags |= TREE_AGAIN;
  return copying_metadata(&p->copying, to, &st, name);
}

/* Last, since whatever is done in a directory changes its times. Opening one may make others on the way. */
static int
set_directories(struct pass *p)
{
  for (uint32_t i = 0; i < p->touched_count; i++) {
    uint32_t number = p->touched[i];
    struct tree_node *node = node_of(p, number);
    node->flags &= ~(uint32_t)TREE_TOUCHED;
    bool lives =
        number == 0 || (node->sign.inode && S_ISDIR(node->mode) && node->flags & (TREE_HERE | TREE_MERGED));
    if (!lives)
      continue;
    cleanup_fd int to = open_here(p, number);
    cleanup_fd int from = to < 0 ? -1 : open_there(p, number);
    if (to < 0 || (from < 0 && missed(p, "directory", number) < 0) ||
        (from >= 0 && set_directory(p, number, from, to) < 0))
      return -1;
  }
  return 0;
}

static bool
is_dirty(const struct treesync *sync, const struct tree_node *node)
{
  return node->flags & TREE_MISSED || inode_map_get(sync->dirty, node->sign.inode) ||
         (sync->unseen && inode_map_get(sync->unseen, node->sign.inode));
}

/* What is to be looked at, and the ways to it. */
static void
mark_dirty(struct pass *p)
{
  const uint32_t marks = TREE_VISIT | TREE_WAY;

  for (uint32_t i = 0; i < p->index->count; i++)
    node_of(p, i)->flags &= ~marks;
  for (uint32_t i = 0; p->sync->dirty && i < p->index->count; i++) {
    if (!node_of(p, i)->sign.inode || !is_dirty(p->sync, node_of(p, i)))
      continue;
    node_of(p, i)->flags |= TREE_VISIT;
    for (uint32_t at = node_of(p, i)->parent; !(node_of(p, at)->flags & TREE_WAY); at = node_of(p, at)->parent)
      node_of(p, at)->flags |= TREE_WAY;
  }
}

static int64_t
tick(void)
{
  struct timespec now;

  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int
run(struct pass *p)
{
  struct place top = {.number = 0, .from = p->sync->from, .to = -1};
  struct stat st;

  if (fstat(p->sync->from, &st) < 0)
    return failed(p, "stat", 0);
  struct tree_sign sign = tree_sign_of(&st);
  bool same = tree_sign_equal(&node_of(p, 0)->sign, &sign) && !(node_of(p, 0)->flags & TREE_AGAIN);
  /* Of the copy itself nothing is below. */
  if ((!same || p->sync->pass == 1) && touch(p, 0) < 0)
    return -1;
  note(p, 0, &st);
  mark_dirty(p);
  int result = sync_dir(p, &top);
  close_fd(&top.to);
  if (result == 0 && (p->linked_below || p->sync->dirty) && p->linked.count)
    result = join_linked(p);
  return result < 0 ? -1 : set_directories(p);
}

int
treesync_pass(struct treesync *sync, bool strict, enum ramet_step step, struct err *err)
{
  struct pass p = {.sync = sync, .index = &sync->index, .strict = strict, .since = tick()};

  sync->pass++;
  sync->count.files = 0;
  p.copying = (struct copying){
      .count = &sync->count, .step = step, .err = err, .chunk = malloc(COPYING_CHUNK), .moving = !strict};
  int result = p.copying.chunk ? run(&p) : err_code(err, "internal", "no memory to copy files");
  for (uint32_t i = 0; i < p.touched_count; i++)
    tree_node(&sync->index, p.touched[i])->flags &= ~(uint32_t)TREE_TOUCHED;
  inode_map_free(&p.linked);
  free(p.touched);
  free(p.copying.chunk);
  return result;
}

uint64_t
treesync_stored(const struct treesync *sync)
{
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < sync->index.count; i++)
    if (tree_node(&sync->index, i)->flags & TREE_HERE)
      bytes += tree_node(&sync->index, i)->stored;
  return bytes;
}
