/* SPDX-License-Identifier: Apache-2.0
 * Descriptors: what each open file is, and what has to be kept of it. */
#define _GNU_SOURCE
#include "capture_fds.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/un.h>

/* ---- reading the table ---------------------------------------------------------------------------------------- */

static int
read_one(struct found_fd *fd, struct err *err)
{
  char path[64];

  snprintf(path, sizeof path, "/proc/%d/fd/%d", fd->owner->pid, fd->number);
  ssize_t length = readlink(path, fd->link, sizeof fd->link - 1);
  if (length < 0 || stat(path, &fd->st) < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "%s: %s", path, strerror(errno));
  fd->link[length] = 0;
  snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", fd->owner->pid, fd->number);
  fd->info = procfs_read(path, NULL);
  const char *flags = fd->info ? procfs_field(fd->info, "flags") : NULL;
  if (!flags)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "%s: %s", path, strerror(errno));
  fd->open_flags = (int)strtol(flags, NULL, 8);
  return 0;
}

static int
compare_numbers(const void *a, const void *b)
{
  return ((const struct found_fd *)a)->number - ((const struct found_fd *)b)->number;
}

static struct found_fd *
add_fd(struct fd_table *table, struct capture *owner, int number)
{
  if (table->count == table->capacity) {
    int capacity = table->capacity ? 2 * table->capacity : 64;
    struct found_fd *grown = realloc(table->items, (size_t)capacity * sizeof *grown);
    if (!grown)
      return NULL;
    table->items = grown;
    table->capacity = capacity;
  }
  struct found_fd *fd = &table->items[table->count++];
  *fd = (struct found_fd){.owner = owner, .number = number, .next = -1};
  return fd;
}

static int
read_table(struct capture *capture, struct fd_table *table, struct err *err)
{
  char path[48];
  int result = 0, first = table->count;

  snprintf(path, sizeof path, "/proc/%d/fd", capture->pid);
  DIR *dir = opendir(path);
  if (!dir)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "open %s: %s", path, strerror(errno));
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));) {
    if (entry->d_name[0] == '.')
      continue;
    if (table->count - first == IMAGE_DESCRIPTORS_MAX) {
      result = capture_refuse(capture, err, "has more than %d descriptors", IMAGE_DESCRIPTORS_MAX);
      break;
    }
    struct found_fd *fd = add_fd(table, capture, atoi(entry->d_name));
    result = fd ? read_one(fd, err) : err_code(err, "internal", "no memory for descriptors");
  }
  closedir(dir);
  if (table->count > first)
    qsort(table->items + first, (size_t)(table->count - first), sizeof *table->items, compare_numbers);
  return result;
}

static int
read_tables(struct capture_tree *tree, struct fd_table *table, struct err *err)
{
  for (int p = 0; p < tree->count; p++) {
    struct capture *capture = tree->processes[p];
    capture->pidfd = (int)syscall(SYS_pidfd_open, capture->pid, 0);
    if (capture->pidfd < 0)
      return err_step(err, RAMET_STEP_DESCRIPTORS, "pidfd_open: %s", strerror(errno));
    if (read_table(capture, table, err) < 0)
      return -1;
  }
  return 0;
}

static void
free_table(struct fd_table *table)
{
  for (int i = 0; i < table->count; i++)
    free(table->items[i].info);
  free(table->items);
  close_fd(&table->diag);
}

static int
compare_files(const struct found_fd *a, const struct found_fd *b, struct err *err)
{
  long order = syscall(SYS_kcmp, a->owner->pid, b->owner->pid, KCMP_FILE, a->number, b->number);

  return order < 0 ? err_step(err, RAMET_STEP_DESCRIPTORS, "kcmp: %s", strerror(errno)) : order == 0;
}

/* Descriptors of one open file description, in whatever process, share offset and status flags: the first gives it
 * its number. */
static int
group(struct fd_table *table, struct err *err)
{
  for (int i = 0; i < FD_HASHES; i++)
    table->first[i] = -1;
  for (int i = 0; i < table->count; i++) {
    struct found_fd *fd = &table->items[i];
    int *chain = &table->first[(fd->st.st_ino ^ fd->st.st_dev) % FD_HASHES], same = 0;
    fd->description = (uint32_t)i;
    for (int j = *chain; same == 0 && j >= 0; j = table->items[j].next) {
      const struct found_fd *earlier = &table->items[j];
      if (earlier->st.st_ino != fd->st.st_ino || earlier->st.st_dev != fd->st.st_dev ||
          strcmp(earlier->link, fd->link) != 0)
        continue;
      same = compare_files(earlier, fd, err);
      if (same > 0)
        fd->description = (uint32_t)j;
    }
    if (same < 0)
      return -1;
    if (same == 0) {
      fd->next = *chain;
      *chain = i;
    }
  }
  return 0;
}

int
fd_take_copy(const struct writing *w)
{
  return (int)syscall(SYS_pidfd_getfd, w->capture->pidfd, w->fd->number, 0);
}

int
fd_keep_content(struct writing *w, int file, uint64_t length, struct err *err)
{
  w->out.content_length = length;
  return length ? capture_content(w->capture, file, 0, length, &w->out.content_offset, err) : 0;
}

/* ---- kinds ---------------------------------------------------------------------------------------------------- */

int
fd_refuse(struct writing *w, struct err *err, const char *what)
{
  return capture_refuse(w->capture, err, "fd %d is %s", w->fd->number, what);
}

static uint64_t
info_number(const struct found_fd *fd, const char *name, int base)
{
  const char *text = procfs_field(fd->info, name);

  return text ? strtoull(text, NULL, base) : 0;
}

static int
open_again(const struct writing *w)
{
  char path[64];

  snprintf(path, sizeof path, "/proc/%d/fd/%d", w->capture->pid, w->fd->number);
  return open(path, O_RDONLY | O_CLOEXEC);
}

/* Seals can be asked of the guest's own descriptor alone: opened again, a memory file may be read-only. */
static uint64_t
seals_of(const struct writing *w)
{
  cleanup_fd int copy = fd_take_copy(w);
  int seals = copy < 0 ? -1 : fcntl(copy, F_GET_SEALS);

  return seals < 0 ? 0 : (uint64_t)seals;
}

/* What is not a hole. */
static int
put_extents(struct writing *w, struct err *err)
{
  cleanup_fd int file = open_again(w);
  off_t size = (off_t)w->out.value[2];

  if (file < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "open fd %d: %s", w->fd->number, strerror(errno));
  for (off_t at = 0; at < size;) {
    struct image_extent extent;
    off_t data = lseek(file, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
      return 0; /* a hole up to the end */
    off_t hole = data < 0 ? -1 : lseek(file, data, SEEK_HOLE);
    if (hole < 0)
      return err_step(err, RAMET_STEP_DESCRIPTORS, "holes of fd %d: %s", w->fd->number, strerror(errno));
    extent.offset = (uint64_t)data;
    extent.length = (uint64_t)((hole < size ? hole : size) - data);
    if (capture_content(w->capture, file, extent.offset, extent.length, &extent.page_offset, err) < 0)
      return -1;
    put_bytes(&w->capture->tree->files, IMAGE_TAG_EXTENT, &extent, sizeof extent);
    at = hole;
  }
  return 0;
}

static int
write_unlinked(struct writing *w, struct err *err)
{
  struct stat st;

  cleanup_fd int file = open_again(w);
  if (file < 0 || fstat(file, &st) < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "open fd %d: %s", w->fd->number, strerror(errno));
  w->out.kind = IMAGE_UNLINKED;
  w->out.offset = info_number(w->fd, "pos", 10);
  w->out.value[0] = strncmp(w->fd->link, "/memfd:", 7) == 0;
  w->out.value[1] = w->out.value[0] ? seals_of(w) : 0;
  w->out.value[2] = (uint64_t)st.st_size;
  w->out.value[3] = st.st_mode & 07777;
  size_t length = strlen(w->fd->link);
  memcpy(w->path, w->fd->link, length);
  w->path_length = length;
  return capture_note_object(w->capture->tree, w->fd->link, w->fd->st.st_ino, w->out.id, err);
}

bool
fd_has_name(const struct writing *w)
{
  return capture_leads(w->capture, w->fd->link, &w->fd->st, w->fd->info);
}

/* What a name cannot be trusted with is seen here, and not by a child's init. */
static int
refuse_special(struct writing *w, struct err *err)
{
  mode_t mode = w->fd->st.st_mode;
  char path[64];

  snprintf(path, sizeof path, "/proc/%d/fd/%d", w->capture->pid, w->fd->number);
  const char *kernel = capture_kernel_file(path, w->fd->link);
  if (kernel)
    return fd_refuse(w, err, kernel);
  if (S_ISCHR(mode) && major(w->fd->st.st_rdev) != 1 /* null, zero, full, random, urandom */)
    return fd_refuse(w, err,
                     major(w->fd->st.st_rdev) == 5 || major(w->fd->st.st_rdev) == UNIX98_SLAVES ? "a terminal"
                                                                                                : "a device");
  if (!S_ISREG(mode) && !S_ISDIR(mode) && !S_ISCHR(mode))
    return fd_refuse(w, err, "a special file");
  return 0;
}

/* Nothing leads to it by the name that /proc tells. A file of a layer below that was removed counts its names there,
 * and can be open for reading only. */
static int
write_nameless(struct writing *w, struct err *err)
{
  bool removed = capture_ends_deleted(w->fd->link);

  if (S_ISREG(w->fd->st.st_mode) &&
      (w->fd->st.st_nlink == 0 || (removed && (w->fd->open_flags & O_ACCMODE) == O_RDONLY)))
    return write_unlinked(w, err);
  if (S_ISDIR(w->fd->st.st_mode) && removed)
    return fd_refuse(w, err, "a directory that was removed");
  return fd_refuse(w, err,
                   removed ? "a file that has another name than it was opened by" : "a file of another mount");
}

static int
wish_number(const struct writing *w, struct err *err)
{
  static const char shm[] = "/dev/shm/";
  struct capture_tree *tree = w->capture->tree;
  struct inode_wish *grown = realloc(tree->wishes, sizeof *grown * (size_t)(tree->wish_count + 1));
  char path[4096 + 8];

  if (!grown)
    return err_code(err, "internal", "no memory for numbers of files");
  tree->wishes = grown;
  bool shared = strncmp(w->fd->link, shm, sizeof shm - 1) == 0;
  snprintf(path, sizeof path, "%s%s", shared ? "shm/" : "upper", w->fd->link + (shared ? sizeof shm - 1 : 0));
  grown[tree->wish_count++] = (struct inode_wish){
      .path = strdup(path), .number = w->fd->st.st_ino, .writable = (w->fd->open_flags & O_ACCMODE) != O_RDONLY};
  return grown[tree->wish_count - 1].path ? 0 : err_code(err, "internal", "no memory for numbers of files");
}

static int
write_named(struct writing *w, struct err *err)
{
  size_t length = strlen(w->fd->link);

  if (refuse_special(w, err) < 0)
    return -1;
  if ((S_ISREG(w->fd->st.st_mode) && w->fd->st.st_nlink == 0) || !fd_has_name(w))
    return write_nameless(w, err);
  w->out.kind = IMAGE_REOPEN;
  w->out.offset = S_ISREG(w->fd->st.st_mode) ? info_number(w->fd, "pos", 10) : 0;
  w->out.value[0] = w->fd->st.st_mode & S_IFMT;
  w->out.value[1] = w->fd->st.st_rdev;
  memcpy(w->path, w->fd->link, length);
  w->path_length = length;
  return S_ISREG(w->fd->st.st_mode) ? wish_number(w, err) : 0;
}

/* A periodic timer that has expired stands still until somebody looks at it: only then its ticks are counted, and it
 * is set again. /proc does not look: there it may show no time left, as one that is off, at any moment. */
static int
write_timerfd(struct writing *w, struct err *err)
{
  cleanup_fd int copy = fd_take_copy(w);
  struct itimerspec spec;
  char path[64];

  if (copy < 0 || timerfd_gettime(copy, &spec) < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "timer of fd %d: %s", w->fd->number, strerror(errno));
  snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", w->capture->pid, w->fd->number);
  free(w->fd->info);
  w->fd->info = procfs_read(path, NULL);
  if (!w->fd->info)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "%s: %s", path, strerror(errno));
  if (!procfs_field(w->fd->info, "clockid") || !procfs_field(w->fd->info, "ticks"))
    return fd_refuse(w, err, "a timer that /proc does not describe");
  w->out.kind = IMAGE_TIMERFD;
  w->out.value[0] = info_number(w->fd, "clockid", 10);
  w->out.value[1] = info_number(w->fd, "ticks", 10);
  w->out.value[2] = (uint64_t)spec.it_value.tv_sec * 1000000000u + (uint64_t)spec.it_value.tv_nsec;
  w->out.value[3] = (uint64_t)spec.it_interval.tv_sec * 1000000000u + (uint64_t)spec.it_interval.tv_nsec;
  /* It has expired once more since: one that is off has no ticks. */
  if (w->out.value[1] && !w->out.value[2])
    w->out.value[2] = w->out.value[3];
  return 0;
}

static int
write_anonymous(struct writing *w, struct err *err)
{
  const char *kind = w->fd->link + strlen("anon_inode:");

  if (strcmp(kind, "[eventfd]") == 0) {
    w->out.kind = IMAGE_EVENTFD;
    w->out.value[0] = info_number(w->fd, "eventfd-count", 16);
    w->out.value[1] = info_number(w->fd, "eventfd-semaphore", 10);
    return 0;
  }
  if (strcmp(kind, "[timerfd]") == 0)
    return write_timerfd(w, err);
  if (strcmp(kind, "[signalfd]") == 0) {
    w->out.kind = IMAGE_SIGNALFD;
    w->out.value[0] = info_number(w->fd, "sigmask", 16);
    return 0;
  }
  if (strcmp(kind, "[eventpoll]") == 0) {
    w->out.kind = IMAGE_EPOLL;
    return 0;
  }
  char what[64];
  snprintf(what, sizeof what, "%.40s", kind);
  return fd_refuse(w, err, what);
}

/* ---- epoll ---------------------------------------------------------------------------------------------------- */

static bool
holds(const struct fd_table *table, const struct capture *process, uint32_t description)
{
  for (int i = 0; i < table->count; i++)
    if (table->items[i].owner == process && table->items[i].description == description)
      return true;
  return false;
}

/* A process in which the item's number still is the file that was registered under it; or NULL. A process that
 * inherited the epoll may have another file there. */
static const struct capture *
find_registrar(const struct writing *w, int target, bool *dropped)
{
  struct kcmp_epoll_slot slot = {.efd = (uint32_t)w->fd->number, .tfd = (uint32_t)target};

  for (int i = 0; i < w->table->count; i++) {
    const struct found_fd *fd = &w->table->items[i];
    if (fd->number == target &&
        syscall(SYS_kcmp, fd->owner->pid, w->capture->pid, KCMP_EPOLL_TFD, target, &slot) == 0 &&
        holds(w->table, fd->owner, w->fd->description)) {
      *dropped = w->table->items[fd->description].dropped;
      return fd->owner;
    }
  }
  return NULL;
}

/* "tfd:        5 events:       19 data: ffffffffffffffff  pos:0 ino:60 sdev:9", a line for each item. */
static int
put_epoll_items(struct writing *w, struct err *err)
{
  for (const char *line = strstr(w->fd->info, "tfd:"); line; line = strstr(line + 1, "tfd:")) {
    struct image_epoll item = {0};
    unsigned long long data;
    if (sscanf(line, "tfd: %d events: %x data: %llx", &item.target, &item.events, &data) != 3)
      return fd_refuse(w, err, "an epoll that /proc does not describe");
    bool dropped = false;
    const struct capture *registrar = find_registrar(w, item.target, &dropped);
    if (dropped)
      continue;
    if (!registrar)
      return fd_refuse(w, err, "an epoll that watches a file whose number is another's now");
    item.process = registrar->relations.pid;
    item.data = data;
    put_bytes(&w->capture->tree->files, IMAGE_TAG_EPOLL, &item, sizeof item);
  }
  return 0;
}

/* ---- all ------------------------------------------------------------------------------------------------------ */

/* Device nodes are opened anew in the child like any other: /dev/null is no stream of anybody. */
static bool
is_stream(struct writing *w)
{
  for (int i = 0; i < STREAM_COUNT && !S_ISCHR(w->fd->st.st_mode); i++) {
    const struct stream_identity *stream = &w->capture->source->streams[i];
    if (stream->inode && stream->inode == w->fd->st.st_ino && stream->device == w->fd->st.st_dev) {
      w->out.kind = IMAGE_STREAM;
      w->out.value[0] = (uint64_t)i;
      return true;
    }
  }
  return false;
}

static int
classify(struct writing *w, struct err *err)
{
  if (is_stream(w))
    return 0;
  if (S_ISFIFO(w->fd->st.st_mode))
    return fd_write_pipe(w, err);
  if (S_ISSOCK(w->fd->st.st_mode))
    return fd_write_socket(w, err);
  if (strncmp(w->fd->link, "anon_inode:", 11) == 0)
    return write_anonymous(w, err);
  if (fd_is_terminal(w->fd))
    return fd_write_terminal(w, err);
  if (w->fd->link[0] == '/')
    return write_named(w, err);
  return fd_refuse(w, err, w->fd->link);
}

static int
put_description(struct fd_table *table, struct found_fd *fd, struct err *err)
{
  struct writing w = {.capture = fd->owner, .table = table, .fd = fd};
  struct capture_tree *tree = fd->owner->tree;

  if (tree->open_files == IMAGE_DESCRIPTORS_MAX)
    return capture_refuse(fd->owner, err, "is one of those with more than %d open files", IMAGE_DESCRIPTORS_MAX);
  w.out.id = fd->description;
  w.out.flags = (uint32_t)fd->open_flags & ~(uint32_t)O_CLOEXEC;
  if (fd->dropped) {
    w.out.kind = IMAGE_DROPPED;
  } else if (classify(&w, err) < 0) {
    if (!capture_drops(tree, err))
      return -1;
    fd->dropped = table->again = true;
    return 0;
  }
  struct {
    struct image_description description;
    char path[sizeof w.path];
  } record = {.description = w.out};
  memcpy(record.path, w.path, w.path_length);
  tree->open_files++;
  put_bytes(&tree->files, IMAGE_TAG_DESCRIPTION, &record, sizeof record.description + w.path_length);
  if (w.out.kind == IMAGE_UNLINKED)
    return put_extents(&w, err);
  if (w.out.kind != IMAGE_EPOLL || put_epoll_items(&w, err) == 0)
    return 0;
  if (!capture_drops(tree, err))
    return -1;
  fd->dropped = table->again = true;
  return 0;
}

static void
forget_descriptions(struct capture_tree *tree)
{
  writer_free(&tree->files);
  tree->files = (struct writer){0};
  tree->open_files = tree->object_count = 0;
  tree->wish_count = 0;
}

/* The other end of what is dropped leads nowhere: until a round drops nothing. */
static int
put_descriptions(struct capture_tree *tree, struct fd_table *table, struct err *err)
{
  do {
    forget_descriptions(tree);
    table->again = false;
    for (int i = 0; i < table->count; i++)
      if (table->items[i].description == (uint32_t)i && put_description(table, &table->items[i], err) < 0)
        return -1;
  } while (table->again);
  return 0;
}

static int
put_table(struct capture_tree *tree, struct fd_table *table, struct err *err)
{
  if (put_descriptions(tree, table, err) < 0)
    return -1;
  for (int i = 0; i < table->count; i++) {
    struct found_fd *fd = &table->items[i];
    struct image_fd out = {
        .number = fd->number, .description = fd->description, .close_on_exec = (fd->open_flags & O_CLOEXEC) != 0};
    put_bytes(&fd->owner->description, IMAGE_TAG_FD, &out, sizeof out);
    if (!table->items[fd->description].dropped && fd_put_locks(table, fd, err) < 0 && !capture_drops(tree, err))
      return -1;
  }
  return 0;
}

int
capture_descriptors(struct capture_tree *tree, struct err *err)
{
  struct fd_table table = {.diag = -1};

  if (fault_here(RAMET_STEP_DESCRIPTORS, err) < 0)
    return -1;
  int result = read_tables(tree, &table, err);
  if (result == 0)
    result = group(&table, err);
  if (result == 0)
    result = put_table(tree, &table, err);
  free_table(&table);
  return result;
}
