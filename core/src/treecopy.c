/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treecopy_parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "overdue.h"

#define ATTRIBUTES_MAX 65536

/* Files with more than one name: the first copy is linked to by the others. */
struct linked {
  struct linked *next;
  ino_t inode;
  int dir; /* the copy's directory, by descriptor */
  char name[NAME_MAX + 1];
};

struct job {
  struct copying copying;
  struct linked *linked;
  struct inodes *inodes;
  int depth;
};

int
copying_failed(struct copying *job, const char *what, const char *name)
{
  return err_step(job->err, job->step, "%s %s: %s", what, name, strerror(errno));
}

static int
failed(struct job *job, const char *what, const char *name)
{
  return copying_failed(&job->copying, what, name);
}

static int
copy_attribute(struct copying *job, int from, int to, const char *attribute, const char *name)
{
  ssize_t length = fgetxattr(from, attribute, job->chunk, COPYING_CHUNK);

  if (length < 0 && errno == ENODATA && job->moving)
    return 0; /* taken away meanwhile, of which its times will tell */
  if (length < 0 || fsetxattr(to, attribute, job->chunk, (size_t)length, 0) < 0)
    return copying_failed(job, attribute, name);
  return 0;
}

int
copying_attributes(struct copying *job, int from, int to, const char *without, const char *name)
{
  ssize_t length = flistxattr(from, NULL, 0);

  if (length == 0 || (length < 0 && errno == EOPNOTSUPP))
    return 0;
  cleanup_free char *list = length < 0 || length > ATTRIBUTES_MAX ? NULL : malloc((size_t)length);
  if (list && (length = flistxattr(from, list, (size_t)length)) < 0 && errno == ERANGE && job->moving)
    return 0; /* more have come, of which its times will tell */
  if (!list || length < 0)
    return copying_failed(job, "attributes of", name);
  for (char *at = list; at < list + length; at += strlen(at) + 1)
    if ((!without || strcmp(at, without) != 0) && copy_attribute(job, from, to, at, name) < 0)
      return -1;
  return 0;
}

/* Owner before mode: chown clears set-id bits. */
int
copying_metadata(struct copying *job, int to, const struct stat *st, const char *name)
{
  struct timespec times[2] = {st->st_atim, st->st_mtim};

  if ((st->st_uid != 0 || st->st_gid != 0) && fchown(to, st->st_uid, st->st_gid) < 0)
    return copying_failed(job, "owner of", name);
  if (fchmod(to, st->st_mode & 07777) < 0 || futimens(to, times) < 0)
    return copying_failed(job, "mode of", name);
  return 0;
}

static int
copy_range(struct copying *job, int from, int to, off_t at, off_t end, const char *name)
{
  while (at < end) {
    if (overdue_check(job->step, job->err) < 0)
      return -1;
    size_t want = end - at < COPYING_CHUNK ? (size_t)(end - at) : COPYING_CHUNK;
    ssize_t got = pread(from, job->chunk, want, at);
    /* One that is being changed has become shorter, of which its times will tell. */
    if (got == 0 && job->moving)
      return 0;
    if (got <= 0 || pwrite(to, job->chunk, (size_t)got, at) != got)
      return copying_failed(job, "content of", name);
    at += got;
    job->count->bytes += (uint64_t)got;
  }
  return 0;
}

/* A large piece of memory may begin before what is written first to it, and then fills that hole. */
static int
keep_hole(struct copying *job, int to, off_t at, off_t end, const char *name)
{
  off_t filled = at < end ? lseek(to, at, SEEK_DATA) : -1;

  if (filled < 0 || filled >= end ||
      fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, filled, end - filled) == 0)
    return 0;
  return errno == EOPNOTSUPP ? 0 : copying_failed(job, "holes of", name);
}

static int
copy_pieces(struct copying *job, int from, int to, off_t size, const char *name)
{
  off_t at = 0;

  while (at < size) {
    off_t data = lseek(from, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
      return 0; /* a hole up to the end */
    off_t hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
    if (hole < 0 && errno == ENXIO && job->moving)
      return 0; /* it has become shorter, of which its times will tell */
    if (hole < 0)
      return copying_failed(job, "holes of", name);
    if (copy_range(job, from, to, data, hole, name) < 0 || keep_hole(job, to, at, data, name) < 0)
      return -1;
    at = hole;
  }
  return 0;
}

int
copying_content(struct copying *job, int from, int to, off_t size, const char *name)
{
  if (size == 0)
    return 0;
  if (copy_pieces(job, from, to, size, name) < 0)
    return -1;
  /* Last: in a tmpfs with large pieces of memory a file that is long already has holes filled beside what is written. */
  return ftruncate(to, size) < 0 ? copying_failed(job, "size of", name) : 0;
}

static int
copy_file(struct job *job, int from_dir, int to_dir, const char *name, const struct stat *st)
{
  cleanup_fd int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int made = from < 0 ? -1 : job->inodes ? inodes_place(job->inodes, st->st_ino, to_dir, name) : 0;
  int flags = made == 1 ? O_RDWR | O_CLOEXEC : O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
  cleanup_fd int to = made < 0 ? -1 : openat(to_dir, name, flags, 0600);

  if (to < 0)
    return failed(job, "copy", name);
  struct copying *copying = &job->copying;
  if (copying_content(copying, from, to, st->st_size, name) < 0 ||
      copying_attributes(copying, from, to, NULL, name) < 0)
    return -1;
  return copying_metadata(copying, to, st, name);
}

int
copying_symlink(struct copying *job, int from_dir, int to_dir, const char *name)
{
  char target[PATH_MAX];
  ssize_t length = readlinkat(from_dir, name, target, sizeof target - 1);

  if (length < 0)
    return copying_failed(job, "read link", name);
  target[length] = 0;
  return symlinkat(target, to_dir, name) < 0 ? copying_failed(job, "link", name) : 0;
}

/* Whiteouts are character devices 0:0, which no capability is needed for; others exist in no upper of ours. */
int
copying_node(struct copying *job, int to_dir, const char *name, const struct stat *st)
{
  return mknodat(to_dir, name, st->st_mode & (S_IFMT | 07777), st->st_rdev) < 0 ? copying_failed(job, "node", name)
                                                                                : 0;
}

/* What copying_metadata() does for an open file, for what cannot be opened. */
int
copying_name_metadata(struct copying *job, int to_dir, const char *name, const struct stat *st)
{
  struct timespec times[2] = {st->st_atim, st->st_mtim};

  if ((st->st_uid != 0 || st->st_gid != 0) &&
      fchownat(to_dir, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
    return copying_failed(job, "owner of", name);
  if (!S_ISLNK(st->st_mode) && fchmodat(to_dir, name, st->st_mode & 07777, 0) < 0)
    return copying_failed(job, "mode of", name);
  if (utimensat(to_dir, name, times, AT_SYMLINK_NOFOLLOW) < 0)
    return copying_failed(job, "times of", name);
  return 0;
}

static int copy_dir(struct job *job, int from, int to);

static int
copy_subdir(struct job *job, int from_dir, int to_dir, const char *name, const struct stat *st)
{
  cleanup_fd int from = openat(from_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

  if (from < 0 || mkdirat(to_dir, name, 0700) < 0)
    return failed(job, "directory", name);
  cleanup_fd int to = openat(to_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (to < 0)
    return failed(job, "directory", name);
  if (copy_dir(job, from, to) < 0 || copying_attributes(&job->copying, from, to, NULL, name) < 0)
    return -1;
  return copying_metadata(&job->copying, to, st, name);
}

/* 1: it was made as a link to an earlier copy. */
static int
link_to_copy(struct job *job, int to_dir, const char *name, const struct stat *st)
{
  for (struct linked *first = job->linked; first; first = first->next)
    if (first->inode == st->st_ino)
      return linkat(first->dir, first->name, to_dir, name, 0) < 0 ? failed(job, "link", name) : 1;
  return 0;
}

static int
remember_copy(struct job *job, int to_dir, const char *name, const struct stat *st)
{
  struct linked *first = malloc(sizeof *first);

  if (!first)
    return failed(job, "remember", name);
  first->dir = fcntl(to_dir, F_DUPFD_CLOEXEC, 3);
  first->inode = st->st_ino;
  strncpy(first->name, name, sizeof first->name - 1);
  first->name[sizeof first->name - 1] = 0;
  first->next = job->linked;
  job->linked = first;
  return first->dir < 0 ? failed(job, "remember", name) : 0;
}

static int
copy_entry(struct job *job, int from_dir, int to_dir, const char *name)
{
  struct stat st;
  int made = 0;

  if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return failed(job, "stat", name);
  job->copying.count->files++;
  bool many = st.st_nlink > 1 && !S_ISDIR(st.st_mode);
  if (many && (made = link_to_copy(job, to_dir, name, &st)) != 0)
    return made < 0 ? -1 : 0;
  if (S_ISREG(st.st_mode))
    made = copy_file(job, from_dir, to_dir, name, &st);
  else if (S_ISDIR(st.st_mode))
    made = copy_subdir(job, from_dir, to_dir, name, &st);
  else if (S_ISLNK(st.st_mode))
    made = copying_symlink(&job->copying, from_dir, to_dir, name);
  else
    made = copying_node(&job->copying, to_dir, name, &st);
  if (made == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
    made = copying_name_metadata(&job->copying, to_dir, name, &st);
  if (made == 0 && many)
    made = remember_copy(job, to_dir, name, &st);
  return made;
}

static int
copy_dir(struct job *job, int from, int to)
{
  int listing = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
  DIR *dir = listing < 0 ? NULL : fdopendir(listing);

  if (!dir)
    return failed(job, "list", ".");
  if (++job->depth > COPYING_DEPTH) {
    errno = ELOOP;
    result = failed(job, "depth of", ".");
  }
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      result = copy_entry(job, from, to, entry->d_name);
  job->depth--;
  closedir(dir);
  return result;
}

static void
forget_linked(struct job *job)
{
  while (job->linked) {
    struct linked *first = job->linked;
    job->linked = first->next;
    close_fd(&first->dir);
    free(first);
  }
}

int
treecopy(int from, int to, struct inodes *inodes, struct treecopy_count *count, enum ramet_step step,
         struct err *err)
{
  struct job job = {.copying = {.count = count, .step = step, .err = err, .chunk = malloc(COPYING_CHUNK)},
                    .inodes = inodes};
  struct stat st;

  if (!job.copying.chunk)
    return err_code(err, "internal", "no memory to copy files");
  int result = fstat(from, &st) < 0 ? failed(&job, "stat", ".") : copy_dir(&job, from, to);
  if (result == 0)
    result = copying_attributes(&job.copying, from, to, NULL, ".");
  if (result == 0)
    result = copying_metadata(&job.copying, to, &st, ".");
  forget_linked(&job);
  free(job.copying.chunk);
  return result;
}
