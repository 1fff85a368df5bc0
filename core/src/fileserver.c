/* SPDX-License-Identifier: Apache-2.0
 * Serves one conversation about the files of a sandbox. The guest changes the tree meanwhile, and is hostile: a
 * directory is opened first and used by descriptor then, names have no slash, no link is followed but by openat2()
 * below the root, and only regular files are opened for their content. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "files.h"
#include "processes.h"
#include "syscalls.h"
#include "usage.h"

#define DEPTH_MAX 256
#define LIST_BYTES 60000
#define COPY_BYTES (1u << 20)
#define TRIES 16

struct asked {
  uint64_t request;
  const char *path, *other; /* "" when absent */
  char path_text[PATH_MAX], other_text[PATH_MAX];
  uint32_t flags, mode, tree, depth, uid, gid;
  uint64_t mtime_ns;
  bool has_mode, has_owner, has_mtime;
};

static struct file_trees trees;
static int watcher = -1;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void
answer(uint16_t kind, uint64_t request, struct writer *writer, int fd)
{
  if (frame_send_waiting(trees.socket, kind, request, writer, &fd, fd >= 0) < 0)
    _exit(0); /* whoever asked has gone */
  writer_free(writer);
}

static int
failed(struct err *err, const char *what)
{
  int number = errno;

  err_code(err, "file_error", "%s: %s", what, strerror(number));
  err->number = number;
  return -1;
}

static int
fail_with(struct err *err, int number, const char *what)
{
  errno = number;
  return failed(err, what);
}

/* ---- paths ---------------------------------------------------------------------------------------------------- */

static int
tree_of(const struct asked *asked)
{
  if (asked->tree >= RAMET_TREE_INHERITED) {
    uint32_t layer = asked->tree - RAMET_TREE_INHERITED;
    return layer < (uint32_t)trees.inherited_count ? trees.inherited[layer] : -1;
  }
  return asked->tree == RAMET_TREE_ORIGIN    ? trees.origin
         : asked->tree == RAMET_TREE_WRITTEN ? trees.written
                                             : trees.sandbox;
}

/* Below the tree, whatever links and ".." say. EAGAIN: something was renamed while ".." was looked at. */
static int
open_below(int tree, const char *path, uint64_t flags)
{
  int fd = -1;

  if (tree < 0) {
    errno = ENOENT;
    return -1;
  }
  for (int i = 0; i < TRIES; i++) {
    fd = sys_openat2(tree, path, flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
    if (fd >= 0 || errno != EAGAIN)
      break;
  }
  return fd;
}

static uint64_t
following(const struct asked *asked)
{
  return asked->flags & RAMET_FILE_AS_NAMED ? O_NOFOLLOW : 0;
}

/* A path in two: the last name, which is never "." or "..", and the directory that holds it. */
struct place {
  char directory[PATH_MAX];
  char name[NAME_MAX + 1];
};

static int
open_parent(int tree, const char *path, struct place *place, struct err *err)
{
  char *directory = place->directory;
  size_t length = strlen(path);

  while (length > 1 && path[length - 1] == '/')
    length--;
  memcpy(directory, path, length);
  directory[length] = 0;
  char *slash = strrchr(directory, '/');
  const char *last = slash ? slash + 1 : directory;
  if (!slash || !*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
    return fail_with(err, EINVAL, "the path names no entry of a directory");
  if (strlen(last) > NAME_MAX)
    return fail_with(err, ENAMETOOLONG, "path");
  strcpy(place->name, last);
  slash[slash == directory] = 0;
  int fd = open_below(tree, directory, O_RDONLY | O_DIRECTORY);
  return fd < 0 ? failed(err, "the directory") : fd;
}

/* mkdir -p; the directory itself, which has `mode` where it is new. */
static int
make_parents(int tree, const char *path, mode_t mode, struct err *err)
{
  char part[PATH_MAX];
  const char *at = path;

  for (;;) {
    at += strspn(at, "/");
    at += strcspn(at, "/");
    bool last = !at[strspn(at, "/")];
    size_t length = (size_t)(at - path);
    memcpy(part, path, length);
    part[length] = 0;
    int fd = open_below(tree, length ? part : "/", O_RDONLY | O_DIRECTORY);
    if (fd < 0 && errno == ENOENT) {
      struct place place;
      cleanup_fd int parent = open_parent(tree, part, &place, err);
      if (parent < 0)
        return -1;
      if (mkdirat(parent, place.name, last ? mode : 0755) < 0 && errno != EEXIST)
        return failed(err, "make a directory");
      fd = open_below(tree, part, O_RDONLY | O_DIRECTORY);
    }
    if (fd < 0)
      return failed(err, "the directory");
    if (last)
      return fd;
    close(fd);
  }
}

#define LEASE_PATIENCE_MS 200

/* The content of a regular file that was found already. */
static int
open_found(int found, int flags)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/self/fd/%d", found);
  /* One with a lease is to be had as soon as its holder has given that up: init, for what it shows of limits, does so at
   * once (guest_view.c). */
  for (int i = 0; i < LEASE_PATIENCE_MS; i++) {
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 || errno != EAGAIN)
      return fd;
    poll(NULL, 0, 1);
  }
  errno = EAGAIN;
  return -1;
}

/* ---- what is told of a file ----------------------------------------------------------------------------------- */

static void
describe(const struct stat *st, struct ramet_file_info *info)
{
  *info = (struct ramet_file_info){
      .size = (uint64_t)st->st_size,
      .inode = st->st_ino,
      .mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec,
      .blocks = (uint64_t)st->st_blocks,
      .mode = st->st_mode,
      .uid = st->st_uid,
      .gid = st->st_gid,
      .links = (uint32_t)st->st_nlink,
      .device = (uint32_t)st->st_rdev,
  };
}

static bool
is_opaque(int directory)
{
  char value[4];

  return fgetxattr(directory, "user.overlay.opaque", value, sizeof value) > 0 && value[0] == 'y';
}

/* `name` of `directory` is told as `shown`. */
static int
put_info(struct writer *writer, int directory, const char *name, const char *shown, bool opaque)
{
  uint8_t packed[sizeof(struct ramet_file_info) + 2 * PATH_MAX];
  char target[PATH_MAX];
  struct ramet_file_info info;
  struct stat st;
  ssize_t length = 0;

  if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
    return -1;
  describe(&st, &info);
  if (S_ISLNK(st.st_mode))
    length = readlinkat(directory, name, target, sizeof target);
  info.opaque = opaque;
  info.name_length = (uint32_t)strlen(shown);
  info.target_length = length < 0 ? 0 : (uint32_t)length;
  memcpy(packed, &info, sizeof info);
  memcpy(packed + sizeof info, shown, info.name_length);
  memcpy(packed + sizeof info + info.name_length, target, info.target_length);
  put_bytes(writer, RAMET_TAG_FILE_INFO, packed, sizeof info + info.name_length + info.target_length);
  return 0;
}

static int
file_stat(struct asked *asked, struct writer *writer, struct err *err)
{
  cleanup_fd int found = open_below(tree_of(asked), asked->path, O_PATH | following(asked));

  if (found < 0 || put_info(writer, found, "", "", false) < 0)
    return failed(err, "stat");
  return 0;
}

/* ---- LIST ----------------------------------------------------------------------------------------------------- */

struct listing {
  struct asked *asked;
  struct writer writer;
  char path[PATH_MAX]; /* below the directory that was asked for */
};

static void
send_part(uint64_t request, struct writer *writer)
{
  put_u32(writer, RAMET_TAG_MORE, 1);
  answer(RAMET_OK, request, writer, -1);
}

static bool
is_dots(const char *name)
{
  return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Takes `directory`. What goes away meanwhile is left out. */
static int
list_directory(struct listing *listing, int directory, size_t length, uint32_t depth, int level, struct err *err)
{
  DIR *dir = fdopendir(directory);
  const struct dirent *entry;
  int result = 0;

  if (!dir || level > DEPTH_MAX) {
    dir ? closedir(dir) : close(directory);
    return dir ? fail_with(err, ELOOP, "directories in more levels than can be listed") : failed(err, "list");
  }
  while (result == 0 && (entry = readdir(dir))) {
    size_t name = strlen(entry->d_name);
    if (is_dots(entry->d_name) || length + name + 2 > sizeof listing->path)
      continue;
    memcpy(listing->path + length, entry->d_name, name + 1);
    int below = -1;
    if (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN)
      below = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (put_info(&listing->writer, directory, entry->d_name, listing->path, below >= 0 && is_opaque(below)) < 0) {
      close_fd(&below);
      continue;
    }
    if (listing->writer.length > LIST_BYTES - 2 * PATH_MAX)
      send_part(listing->asked->request, &listing->writer);
    if (below >= 0 && depth != 1) {
      listing->path[length + name] = '/';
      result = list_directory(listing, below, length + name + 1, depth ? depth - 1 : 0, level + 1, err);
    } else {
      close_fd(&below);
    }
  }
  closedir(dir);
  return result;
}

static int
file_list(struct asked *asked, struct writer *writer, struct err *err)
{
  static struct listing listing;
  int directory = open_below(tree_of(asked), asked->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | following(asked));

  if (directory < 0)
    return failed(err, "list");
  listing.asked = asked;
  memset(&listing.writer, 0, sizeof listing.writer);
  int result = list_directory(&listing, directory, 0, asked->depth, 0, err);
  *writer = listing.writer;
  return result;
}

/* ---- OPEN ----------------------------------------------------------------------------------------------------- */

static int
access_of(uint32_t flags)
{
  if ((flags & (RAMET_FILE_READ | RAMET_FILE_WRITE)) == (RAMET_FILE_READ | RAMET_FILE_WRITE))
    return O_RDWR;
  return flags & RAMET_FILE_WRITE ? O_WRONLY : O_RDONLY;
}

static int
open_existing(const struct asked *asked, struct err *err)
{
  cleanup_fd int found = open_below(tree_of(asked), asked->path, O_PATH | following(asked));
  struct stat st;

  if (found < 0 || fstat(found, &st) < 0)
    return failed(err, "open");
  if (S_ISDIR(st.st_mode))
    return fail_with(err, EISDIR, "open");
  if (!S_ISREG(st.st_mode))
    return fail_with(err, ENODEV, "this is no regular file");
  cleanup_fd int fd =
      open_found(found, access_of(asked->flags) | (asked->flags & RAMET_FILE_APPEND ? O_APPEND : 0));
  if (fd < 0)
    return failed(err, "open");
  if ((asked->flags & RAMET_FILE_TRUNCATE) && ftruncate(fd, 0) < 0)
    return failed(err, "truncate");
  return steal_fd(&fd);
}

static int
open_parent_of(const struct asked *asked, const char *path, struct place *place, struct err *err)
{
  int parent = open_parent(trees.sandbox, path, place, err);

  if (parent < 0 && err->number == ENOENT && (asked->flags & RAMET_FILE_PARENTS))
    parent = make_parents(trees.sandbox, place->directory, 0755, err);
  return parent;
}

static int
open_new(const struct asked *asked, struct err *err)
{
  struct place place;
  cleanup_fd int parent = open_parent_of(asked, asked->path, &place, err);

  if (parent < 0)
    return -1;
  int flags = access_of(asked->flags) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  int fd = openat(parent, place.name, flags | (asked->flags & RAMET_FILE_APPEND ? O_APPEND : 0),
                  asked->has_mode ? asked->mode & 07777 : 0644);
  return fd < 0 ? failed(err, "create") : fd;
}

static int
file_open(struct asked *asked, struct writer *writer, int *out, struct err *err)
{
  int fd = -1;

  for (int i = 0; i < TRIES && fd < 0; i++) {
    if (!(asked->flags & RAMET_FILE_EXCLUSIVE))
      fd = open_existing(asked, err);
    if (fd >= 0 || (!(asked->flags & RAMET_FILE_EXCLUSIVE) && err->number != ENOENT) ||
        !(asked->flags & RAMET_FILE_CREATE))
      break;
    fd = open_new(asked, err);
    /* It came into being meanwhile; or it is a link that leads nowhere, and stays one. */
    if (fd < 0 && (err->number != EEXIST || (asked->flags & RAMET_FILE_EXCLUSIVE)))
      break;
  }
  if (fd < 0)
    return -1;
  *out = fd;
  return put_info(writer, fd, "", "", false) < 0 ? failed(err, "stat") : 0;
}

/* ---- directories, names --------------------------------------------------------------------------------------- */

static int
file_make_dir(struct asked *asked, struct err *err)
{
  mode_t mode = asked->has_mode ? asked->mode & 07777 : 0755;
  struct place place;

  if (asked->flags & RAMET_FILE_PARENTS) {
    cleanup_fd int made = make_parents(trees.sandbox, asked->path, mode, err);
    return made < 0 ? -1 : 0;
  }
  cleanup_fd int parent = open_parent_of(asked, asked->path, &place, err);
  if (parent < 0)
    return -1;
  return mkdirat(parent, place.name, mode) < 0 ? failed(err, "make a directory") : 0;
}

/* Takes `directory`. */
static int
remove_below(int directory, int depth, struct err *err)
{
  DIR *dir = fdopendir(directory);
  const struct dirent *entry;
  int result = 0;

  if (!dir) {
    close(directory);
    return failed(err, "remove");
  }
  while (result == 0 && (entry = readdir(dir))) {
    if (is_dots(entry->d_name) || unlinkat(directory, entry->d_name, 0) == 0 || errno == ENOENT)
      continue;
    if (errno != EISDIR && errno != EPERM) {
      result = failed(err, entry->d_name);
      break;
    }
    int below = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (below < 0 && errno == ENOENT)
      continue;
    if (below < 0 || depth >= DEPTH_MAX) {
      close_fd(&below);
      result = failed(err, entry->d_name);
      break;
    }
    result = remove_below(below, depth + 1, err);
    if (result == 0 && unlinkat(directory, entry->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT)
      result = failed(err, entry->d_name);
  }
  closedir(dir);
  return result;
}

static int
remove_entry(int parent, const char *name, bool recursive, struct err *err)
{
  if (unlinkat(parent, name, 0) == 0)
    return 0;
  if (errno != EISDIR && errno != EPERM)
    return failed(err, "remove");
  for (int i = 0;; i++) {
    struct err one = {0};
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
      return 0;
    if (!recursive || errno != ENOTEMPTY || i == TRIES)
      return failed(err, "remove");
    int below = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (below < 0)
      return failed(err, "remove");
    /* ENOTEMPTY: somebody puts new files there meanwhile. */
    if (remove_below(below, 0, &one) < 0 && one.number != ENOTEMPTY) {
      *err = one;
      return -1;
    }
  }
}

static int
file_remove(struct asked *asked, struct err *err)
{
  struct place place;
  cleanup_fd int parent = open_parent(trees.sandbox, asked->path, &place, err);

  return parent < 0 ? -1 : remove_entry(parent, place.name, asked->flags & RAMET_FILE_RECURSIVE, err);
}

static bool
is_same(const struct stat *one, const struct stat *other)
{
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

static int
replace_entry(const struct asked *asked, int parent, const char *name, struct err *err)
{
  if ((asked->flags & RAMET_FILE_REPLACE) && unlinkat(parent, name, 0) < 0 && errno != ENOENT)
    return failed(err, "replace");
  return 0;
}

static int
link_hard(const struct asked *asked, int parent, const char *name, struct err *err)
{
  cleanup_fd int found = open_below(trees.sandbox, asked->other, O_PATH | O_NOFOLLOW);
  struct stat st, there;
  char path[32];

  if (found < 0 || fstat(found, &st) < 0)
    return failed(err, "make a link");
  if (asked->flags & RAMET_FILE_REPLACE && fstatat(parent, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
      is_same(&st, &there))
    return 0;
  if (replace_entry(asked, parent, name, err) < 0)
    return -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", found);
  return linkat(AT_FDCWD, path, parent, name, AT_SYMLINK_FOLLOW) < 0 ? failed(err, "make a link") : 0;
}

static int
file_link(struct asked *asked, struct err *err)
{
  struct place place;
  cleanup_fd int parent = open_parent_of(asked, asked->path, &place, err);

  if (parent < 0)
    return -1;
  if (asked->flags & RAMET_FILE_HARD)
    return link_hard(asked, parent, place.name, err);
  if (replace_entry(asked, parent, place.name, err) < 0)
    return -1;
  return symlinkat(asked->other, parent, place.name) < 0 ? failed(err, "make a link") : 0;
}

static int
file_set(struct asked *asked, struct err *err)
{
  cleanup_fd int found = open_below(trees.sandbox, asked->path, O_PATH | following(asked));
  struct timespec times[2] = {{0, UTIME_OMIT},
                              {(time_t)(asked->mtime_ns / 1000000000u), (long)(asked->mtime_ns % 1000000000u)}};
  char path[32];

  if (found < 0)
    return failed(err, "open");
  snprintf(path, sizeof path, "/proc/self/fd/%d", found);
  if (asked->has_owner && fchownat(found, "", asked->uid, asked->gid, AT_EMPTY_PATH) < 0)
    return failed(err, "change the owner");
  /* After the owner, whose change takes set-user-id bits away. A link has no mode. */
  if (asked->has_mode && chmod(path, asked->mode & 07777) < 0 && errno != EOPNOTSUPP)
    return failed(err, "change the mode");
  if (asked->has_mtime && utimensat(AT_FDCWD, path, times, 0) < 0)
    return failed(err, "change the time");
  return 0;
}

/* ---- COPY, RENAME --------------------------------------------------------------------------------------------- */

static int
copy_content(int from, int to, struct err *err)
{
  static uint8_t chunk[COPY_BYTES];
  ssize_t n;

  while ((n = copy_file_range(from, NULL, to, NULL, SSIZE_MAX / 2, 0)) > 0)
    continue;
  if (n == 0)
    return 0;
  /* Between file systems that know no such copy. */
  while ((n = read(from, chunk, sizeof chunk)) > 0)
    for (ssize_t done = 0, m; done < n; done += m)
      if ((m = write(to, chunk + done, (size_t)(n - done))) < 0)
        return failed(err, "copy");
  return n < 0 ? failed(err, "copy") : 0;
}

static int
copy_regular(int from_dir, const char *name, int to_dir, const char *as, struct err *err)
{
  cleanup_fd int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat st;

  if (from < 0 || fstat(from, &st) < 0)
    return failed(err, name);
  if (!S_ISREG(st.st_mode))
    return fail_with(err, ENODEV, name);
  cleanup_fd int to = openat(to_dir, as, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (to < 0)
    return failed(err, as);
  if (copy_content(from, to, err) < 0)
    return -1;
  struct timespec times[2] = {st.st_atim, st.st_mtim};
  if (fchown(to, st.st_uid, st.st_gid) < 0 && errno != EPERM && errno != EINVAL)
    return failed(err, "keep the owner");
  if (fchmod(to, st.st_mode & 07777) < 0 || futimens(to, times) < 0)
    return failed(err, "keep mode and time");
  return 0;
}

static int copy_entry(int from_dir, const char *name, int to_dir, const char *as, int depth, struct err *err);

static int
copy_directory(int from_dir, const char *name, const struct stat *st, int to_dir, const char *as, int depth,
               struct err *err)
{
  int from = openat(from_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  DIR *dir = from < 0 ? NULL : fdopendir(from);
  const struct dirent *entry;
  int result = 0;

  if (!dir) {
    close_fd(&from);
    return failed(err, name);
  }
  if (mkdirat(to_dir, as, 0700) < 0 || depth >= DEPTH_MAX) {
    closedir(dir);
    return depth >= DEPTH_MAX ? fail_with(err, ELOOP, "too deep") : failed(err, as);
  }
  cleanup_fd int to = openat(to_dir, as, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (to < 0)
    result = failed(err, as);
  while (result == 0 && (entry = readdir(dir)))
    if (!is_dots(entry->d_name))
      result = copy_entry(from, entry->d_name, to, entry->d_name, depth + 1, err);
  struct timespec times[2] = {st->st_atim, st->st_mtim};
  if (result == 0 && (fchmod(to, st->st_mode & 07777) < 0 || futimens(to, times) < 0))
    result = failed(err, as);
  closedir(dir);
  return result;
}

static int
copy_entry(int from_dir, const char *name, int to_dir, const char *as, int depth, struct err *err)
{
  char target[PATH_MAX];
  struct stat st;

  if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return failed(err, name);
  if (S_ISDIR(st.st_mode))
    return copy_directory(from_dir, name, &st, to_dir, as, depth, err);
  if (S_ISREG(st.st_mode))
    return copy_regular(from_dir, name, to_dir, as, err);
  if (S_ISLNK(st.st_mode)) {
    ssize_t length = readlinkat(from_dir, name, target, sizeof target - 1);
    if (length < 0)
      return failed(err, name);
    target[length] = 0;
    return symlinkat(target, to_dir, as) < 0 ? failed(err, as) : 0;
  }
  if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
    return mknodat(to_dir, as, st.st_mode, 0) < 0 ? failed(err, as) : 0;
  return fail_with(err, ENODEV, name);
}

/* Whether `directory` is the directory `above`, or somewhere below it. */
static bool
is_below(int directory, const struct stat *above)
{
  cleanup_fd int at = fcntl(directory, F_DUPFD_CLOEXEC, 0);
  struct stat here, up;

  for (int i = 0; i < PATH_MAX && at >= 0 && fstat(at, &here) == 0; i++) {
    if (is_same(&here, above))
      return true;
    int next = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    close_fd(&at);
    at = next;
    if (at < 0 || fstat(at, &up) < 0 || is_same(&here, &up))
      break;
  }
  return false;
}

/* A file replaced by itself would be gone, and a directory in itself has no end. */
static int
check_apart(const struct stat *from, int to, const char *to_name, struct err *err)
{
  struct stat there;

  if (fstatat(to, to_name, &there, AT_SYMLINK_NOFOLLOW) == 0 && is_same(from, &there))
    return fail_with(err, EINVAL, "both are the same file");
  if (S_ISDIR(from->st_mode) && is_below(to, from))
    return fail_with(err, EINVAL, "a directory cannot be copied into itself");
  return 0;
}

static int
copy_or_move(struct asked *asked, bool move, struct err *err)
{
  struct place source, target;
  const char *from_name = source.name, *to_name = target.name;
  struct stat st;
  cleanup_fd int from = open_parent(trees.sandbox, asked->path, &source, err);

  if (from < 0)
    return -1;
  cleanup_fd int to = open_parent_of(asked, asked->other, &target, err);
  if (to < 0)
    return -1;
  bool replace = asked->flags & RAMET_FILE_REPLACE;
  if (move) {
    if (sys_renameat2(from, from_name, to, to_name, replace ? 0 : RENAME_NOREPLACE) == 0)
      return 0;
    if (errno != EXDEV)
      return failed(err, "rename");
  }
  if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return failed(err, "copy");
  if (!move && S_ISDIR(st.st_mode) && !(asked->flags & RAMET_FILE_RECURSIVE))
    return fail_with(err, EISDIR, "copy");
  if (check_apart(&st, to, to_name, err) < 0)
    return -1;
  if (replace && unlinkat(to, to_name, 0) < 0 && errno != ENOENT)
    return failed(err, "replace");
  if (copy_entry(from, from_name, to, to_name, 0, err) < 0)
    return -1;
  return move ? remove_entry(from, from_name, true, err) : 0;
}

/* ---- WATCH ---------------------------------------------------------------------------------------------------- */

/* The inotify descriptor comes with the first; the client reads it, and asks for directories that are new. */
static int
file_watch(struct asked *asked, struct writer *writer, int *out, struct err *err)
{
  const uint32_t events = IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO |
                          IN_CLOSE_WRITE | IN_DELETE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK;
  cleanup_fd int found = open_below(trees.sandbox, asked->path, O_PATH | O_DIRECTORY | following(asked));
  char path[32];

  if (found < 0)
    return failed(err, "watch");
  if (watcher < 0) {
    watcher = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watcher < 0)
      return failed(err, "watch");
    *out = fcntl(watcher, F_DUPFD_CLOEXEC, 0);
  }
  snprintf(path, sizeof path, "/proc/self/fd/%d", found);
  int number = inotify_add_watch(watcher, path, events);
  if (number < 0)
    return failed(err, "watch");
  put_u32(writer, RAMET_TAG_COMMAND, (uint32_t)number);
  return 0;
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

static int
take_text(struct span value, char text[PATH_MAX], struct err *err)
{
  if (!span_is_text(value) || value.length >= PATH_MAX)
    return fail_with(err, value.length >= PATH_MAX ? ENAMETOOLONG : EINVAL, "path");
  memcpy(text, value.data, value.length);
  text[value.length] = 0;
  return 0;
}

static int
decode(const struct frame *frame, struct asked *asked, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more, bad = 0;

  memset(asked, 0, sizeof *asked);
  asked->request = frame->request;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0)
    if (tag == RAMET_TAG_PATH || tag == RAMET_TAG_OTHER) {
      if (take_text(value, tag == RAMET_TAG_PATH ? asked->path_text : asked->other_text, err) < 0)
        return -1;
    } else if (tag == RAMET_TAG_FLAGS) {
      bad |= span_u32(value, &asked->flags);
    } else if (tag == RAMET_TAG_MODE) {
      bad |= span_u32(value, &asked->mode);
      asked->has_mode = true;
    } else if (tag == RAMET_TAG_TREE) {
      bad |= span_u32(value, &asked->tree);
    } else if (tag == RAMET_TAG_DEPTH) {
      bad |= span_u32(value, &asked->depth);
    } else if (tag == RAMET_TAG_UID || tag == RAMET_TAG_GID) {
      bad |= span_u32(value, tag == RAMET_TAG_UID ? &asked->uid : &asked->gid);
      asked->has_owner = true;
    } else if (tag == RAMET_TAG_MTIME_NS) {
      bad |= span_u64(value, &asked->mtime_ns);
      asked->has_mtime = true;
    } else {
      return err_field(err, "payload", "tag %u does not belong here", tag);
    }
  asked->path = asked->path_text;
  asked->other = asked->other_text;
  if (more < 0)
    return -1;
  if (bad || asked->tree >= RAMET_TREE_INHERITED + RAMET_LAYERS_MAX || asked->path[0] != '/')
    return err_field(err, "payload", "a number is none, or the path not absolute");
  return 0;
}

/* ---- PROCESSES ------------------------------------------------------------------------------------------------ */

static uint64_t processes_asked;

static void
send_processes(struct writer *writer)
{
  if (writer->length > LIST_BYTES - PROCESSES_ONE_MAX)
    send_part(processes_asked, writer);
}

static int
perform(uint16_t kind, struct asked *asked, struct writer *writer, int *fd, struct err *err)
{
  switch (kind) {
  case RAMET_FILE_OPEN:
    if (asked->tree != RAMET_TREE_SANDBOX && (asked->flags & ~(uint32_t)(RAMET_FILE_READ | RAMET_FILE_AS_NAMED)))
      return fail_with(err, EROFS, "open");
    return file_open(asked, writer, fd, err);
  case RAMET_FILE_STAT:
    return file_stat(asked, writer, err);
  case RAMET_FILE_LIST:
    return file_list(asked, writer, err);
  case RAMET_FILE_MAKE_DIR:
    return file_make_dir(asked, err);
  case RAMET_FILE_RENAME:
    return copy_or_move(asked, true, err);
  case RAMET_FILE_REMOVE:
    return file_remove(asked, err);
  case RAMET_FILE_LINK:
    return file_link(asked, err);
  case RAMET_FILE_SET:
    return file_set(asked, err);
  case RAMET_FILE_COPY:
    return copy_or_move(asked, false, err);
  case RAMET_FILE_WATCH:
    return file_watch(asked, writer, fd, err);
  case RAMET_FILE_USAGE:
    return usage_put(trees.init, trees.sandbox, trees.own_shm, writer, err);
  case RAMET_FILE_PROCESSES:
    processes_asked = asked->request;
    return processes_put(trees.init, writer, send_processes, err);
  case RAMET_FILE_BASE:
    put_u64(writer, RAMET_TAG_BASE, trees.base);
    return 0;
  default:
    return err_field(err, "kind", "a file server knows no request %u", kind);
  }
}

static void
handle(const struct frame *frame)
{
  static struct asked asked;
  struct writer writer = {0};
  struct err err = {0};
  cleanup_fd int fd = -1;

  if (decode(frame, &asked, &err) < 0 || perform(frame->kind, &asked, &writer, &fd, &err) < 0) {
    writer_free(&writer);
    put_err(&writer, &err);
    answer(RAMET_ERROR, frame->request, &writer, -1);
    return;
  }
  answer(RAMET_OK, frame->request, &writer, fd);
}

void
files_serve(const struct file_trees *given)
{
  struct frame frame;
  struct err err;

  trees = *given;
  for (;;) {
    struct pollfd wait = {trees.socket, POLLIN, 0};
    if (poll(&wait, 1, -1) < 0 && errno != EINTR)
      _exit(EXIT_SYSTEM);
    switch (frame_receive(trees.socket, receive_buffer, &frame, &err)) {
    case FRAME_NONE:
      break;
    case FRAME_CLOSED:
      _exit(0);
    case FRAME_MALFORMED: {
      struct writer writer = {0};
      put_err(&writer, &err);
      answer(RAMET_ERROR, frame.request, &writer, -1);
      break;
    }
    case FRAME_GOT:
      handle(&frame);
      frame_release(&frame);
      break;
    }
  }
}
