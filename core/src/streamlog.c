/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "streamlog.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "loop.h"
#include "mirror.h"

/* A guest may enlarge its pipe to this (/proc/sys/fs/pipe-max-size): no more can be in it when the command ends. */
#define PIPE_MOST (1u << 20)

struct stream {
  struct watch watch; /* first */
  struct streamlog *log;
  int number;
  int fd; /* near end of the pipe; -1 at its end */
  struct mirror *mirror; /* what else gets all of it, or NULL */
  bool paused;           /* until that has room */
};

struct reader {
  struct watch watch; /* first */
  struct reader *next;
  struct streamlog *log;
  int fd; /* near end of its wakeup */
  bool changes;
};

struct streamlog {
  int file;
  struct ramet_log *header; /* mapped until the end */
  uint64_t head, ring, total[2];
  bool finished, is_terminal;
  struct stream streams[2];
  struct reader *readers;
  void (*quiet)(void *owner);
  void *owner;
};

static uint8_t buffer[RAMET_LOG_CHUNK];

_Static_assert(sizeof(struct ramet_log) <= RAMET_LOG_HEADER, "the header has room");

/* ---- readers -------------------------------------------------------------------------------------------------- */

static void
reader_close(struct reader *reader)
{
  struct reader **at = &reader->log->readers;

  while (*at != reader)
    at = &(*at)->next;
  *at = reader->next;
  loop_remove(reader->fd, &reader->watch);
  close(reader->fd);
  free(reader);
}

/* EPOLLERR, which needs no asking: its other end is closed. */
static void
reader_gone(struct watch *watch, uint32_t events)
{
  (void)events;
  reader_close((struct reader *)(void *)watch);
}

static void
wake_readers(const struct streamlog *log)
{
  for (const struct reader *reader = log->readers; reader; reader = reader->next)
    /* A full pipe holds a wakeup already. */
    if (reader->changes && write(reader->fd, "", 1) < 0)
      continue;
}

static int
add_reader(struct streamlog *log, bool changes, struct err *err)
{
  struct reader *reader = calloc(1, sizeof *reader);
  int ends[2];

  if (!reader || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
    free(reader);
    return err_code(err, "busy", "no wakeup can be made for a reader: %s", strerror(errno));
  }
  *reader = (struct reader){{reader_gone}, log->readers, log, ends[1], changes};
  if (loop_add(reader->fd, &reader->watch, 0) < 0) {
    close(ends[0]);
    close(ends[1]);
    free(reader);
    return err_code(err, "internal", "a reader cannot be watched: %s", strerror(errno));
  }
  log->readers = reader;
  return ends[0];
}

int
streamlog_open(struct streamlog *log, bool changes, int fds[2], struct err *err)
{
  char path[32];

  /* Opened anew: a duplicate could be written to. */
  snprintf(path, sizeof path, "/proc/self/fd/%d", log->file);
  fds[1] = -1;
  fds[0] = open(path, O_RDONLY | O_CLOEXEC);
  if (fds[0] < 0)
    return err_code(err, "busy", "the log cannot be opened for a reader: %s", strerror(errno));
  if (log->finished)
    return 0;
  fds[1] = add_reader(log, changes, err);
  if (fds[1] < 0)
    close_fd(&fds[0]);
  return fds[1] < 0 ? -1 : 0;
}

/* ---- draining ------------------------------------------------------------------------------------------------- */

static uint64_t
start_of(const struct streamlog *log, int stream)
{
  return RAMET_LOG_HEADER + (uint64_t)stream * (log->head + log->ring);
}

/* Up to the next border: the end of the head, or that of the ring. */
static int
put_piece(struct streamlog *log, int stream, const uint8_t *data, size_t length, size_t *taken)
{
  uint64_t at = log->total[stream], place, room;

  if (at < log->head) {
    place = at;
    room = log->head - at;
  } else {
    uint64_t inside = (at - log->head) % log->ring;
    place = log->head + inside;
    room = log->ring - inside;
  }
  *taken = length < room ? length : (size_t)room;
  ssize_t n = pwrite(log->file, data, *taken, (off_t)(start_of(log, stream) + place));
  log->total[stream] += *taken;
  return n == (ssize_t)*taken ? 0 : -1;
}

static void
keep(struct streamlog *log, int stream, const uint8_t *data, size_t length)
{
  size_t taken;

  while (length) {
    if (put_piece(log, stream, data, length, &taken) < 0)
      log->header->failed[stream] = errno ? (uint32_t)errno : EIO;
    data += taken;
    length -= taken;
  }
  __atomic_store_n(&log->header->total[stream], log->total[stream], __ATOMIC_RELEASE);
}

static void
close_stream(struct stream *stream)
{
  if (stream->fd >= 0)
    loop_remove(stream->fd, &stream->watch);
  close_fd(&stream->fd);
  if (stream->mirror)
    mirror_end(stream->mirror);
  stream->mirror = NULL;
}

/* A tracer that looks at pipe and count meanwhile sees that they do not go together. */
static ssize_t
take(struct stream *stream)
{
  struct streamlog *log = stream->log;

  if (!log->finished)
    __atomic_store_n(&log->header->filling[stream->number], 1, __ATOMIC_SEQ_CST);
  ssize_t n = stream->fd < 0 ? 0 : read(stream->fd, buffer, sizeof buffer);
  int error = errno;
  if (n > 0 && !log->finished)
    keep(log, stream->number, buffer, (size_t)n);
  if (!log->finished)
    __atomic_store_n(&log->header->filling[stream->number], 0, __ATOMIC_SEQ_CST);
  /* A watch that waits for nothing hears of a hang-up all the same, again and again: so there is none meanwhile. */
  if (n > 0 && stream->mirror && !mirror_put(stream->mirror, buffer, (size_t)n) && !stream->paused) {
    loop_remove(stream->fd, &stream->watch);
    stream->paused = true;
  }
  errno = error;
  return n;
}

static void
mirror_has_room(void *owner)
{
  struct stream *stream = owner;

  if (!stream->paused)
    return;
  stream->paused = false;
  if (loop_add(stream->fd, &stream->watch, EPOLLIN) < 0)
    close_stream(stream);
}

/* One read; false when there is nothing now, or nothing more. */
static bool
drain(struct stream *stream)
{
  struct streamlog *log = stream->log;
  ssize_t n = take(stream);

  /* A terminal that nobody has open any more says EIO. */
  if (n < 0 && !(log->is_terminal && errno == EIO))
    return errno == EINTR;
  if (n <= 0)
    close_stream(stream);
  return n > 0;
}

static void
stream_ready(struct watch *watch, uint32_t events)
{
  struct stream *stream = (struct stream *)(void *)watch;

  (void)events;
  struct streamlog *log = stream->log;
  if (drain(stream))
    wake_readers(log);
  else if (log->quiet && log->finished && !streamlog_written(log))
    log->quiet(log->owner); /* may free it */
}

/* ---- birth and end -------------------------------------------------------------------------------------------- */

static int
make_file(struct streamlog *log, uint64_t bytes, struct err *err)
{
  log->head = bytes - bytes / 2;
  log->ring = bytes / 2 + RAMET_LOG_CHUNK;
  log->file = memfd_create("ramet-log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  /* Core maps its beginning: a file that shrinks under that raises SIGBUS. */
  if (log->file < 0 || ftruncate(log->file, (off_t)start_of(log, 2)) < 0 || fchmod(log->file, 0444) < 0 ||
      fcntl(log->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
    return err_code(err, "busy", "a log cannot be made: %s", strerror(errno));
  void *at = mmap(NULL, RAMET_LOG_HEADER, PROT_READ | PROT_WRITE, MAP_SHARED, log->file, 0);
  if (at == MAP_FAILED)
    return err_code(err, "busy", "a log cannot be mapped: %s", strerror(errno));
  log->header = at;
  *log->header = (struct ramet_log){.magic = RAMET_LOG_MAGIC,
                                    .head = log->head,
                                    .ring = log->ring,
                                    .tail = bytes / 2,
                                    .terminal = log->is_terminal};
  return 0;
}

static int
make_pipe(struct streamlog *log, int number, bool shared, int *far, struct err *err)
{
  struct stream *stream = &log->streams[number];
  int ends[2];

  if (pipe2(ends, O_CLOEXEC) < 0)
    return err_code(err, "busy", "no pipe can be made: %s", strerror(errno));
  *far = ends[1];
  stream->fd = ends[0];
  if (fcntl(stream->fd, F_SETFL, O_NONBLOCK) < 0 || (shared && fchmod(*far, 0666) < 0) ||
      loop_add(stream->fd, &stream->watch, EPOLLIN) < 0)
    return err_code(err, "internal", "a pipe cannot be watched: %s", strerror(errno));
  return 0;
}

static struct streamlog *
make_empty(struct err *err)
{
  struct streamlog *log = calloc(1, sizeof *log);

  if (!log) {
    err_code(err, "internal", "no memory for a log");
    return NULL;
  }
  log->file = -1;
  for (int i = 0; i < 2; i++)
    log->streams[i] = (struct stream){{stream_ready}, log, i, -1, NULL, false};
  return log;
}

struct streamlog *
streamlog_of_terminal(uint64_t bytes, int near, struct err *err)
{
  cleanup_fd int fd = near;
  struct streamlog *log = make_empty(err);

  if (!log)
    return NULL;
  log->is_terminal = true;
  if (make_file(log, bytes, err) == 0) {
    log->streams[0].fd = steal_fd(&fd);
    if (loop_add(log->streams[0].fd, &log->streams[0].watch, EPOLLIN) == 0)
      return log;
    err_code(err, "internal", "a terminal cannot be watched: %s", strerror(errno));
  }
  streamlog_free(log);
  return NULL;
}

static int
adopt_pipe(struct stream *stream, int *near, struct err *err)
{
  if (*near < 0)
    return 0;
  stream->fd = steal_fd(near);
  return loop_add(stream->fd, &stream->watch, EPOLLIN) < 0
             ? err_code(err, "internal", "a pipe cannot be watched: %s", strerror(errno))
             : 0;
}

struct streamlog *
streamlog_carry(uint64_t bytes, const uint64_t begin[2], int near[2], struct err *err)
{
  cleanup_fd int out = near[0], error = near[1];
  struct streamlog *log = make_empty(err);

  near[0] = near[1] = -1;
  if (!log)
    return NULL;
  if (make_file(log, bytes, err) == 0) {
    for (int i = 0; i < 2; i++)
      log->header->begin[i] = log->header->total[i] = log->total[i] = begin[i];
    if (adopt_pipe(&log->streams[0], &out, err) == 0 && adopt_pipe(&log->streams[1], &error, err) == 0)
      return log;
  }
  streamlog_free(log);
  return NULL;
}

struct streamlog *
streamlog_make(uint64_t bytes, bool shared, int far[2], struct err *err)
{
  struct streamlog *log = make_empty(err);

  far[0] = far[1] = -1;
  if (!log)
    return NULL;
  if (make_file(log, bytes, err) == 0 && make_pipe(log, 0, shared, &far[0], err) == 0 &&
      make_pipe(log, 1, shared, &far[1], err) == 0)
    return log;
  close_fd(&far[0]);
  close_fd(&far[1]);
  streamlog_free(log);
  return NULL;
}

int
streamlog_mirror(struct streamlog *log, int stream, int fd, struct err *err)
{
  struct stream *of = &log->streams[stream];

  of->mirror = mirror_make(fd, mirror_has_room, of, err);
  return of->mirror ? 0 : -1;
}

void
streamlog_began(struct streamlog *log)
{
  if (!log->finished)
    __atomic_store_n(&log->header->state, RAMET_COMMAND_RUNNING, __ATOMIC_RELEASE);
}

void
streamlog_finish(struct streamlog *log, const struct log_end *end)
{
  if (log->finished)
    return;
  for (int i = 0; i < 2; i++)
    for (uint64_t from = log->total[i]; log->total[i] - from < PIPE_MOST && drain(&log->streams[i]);)
      continue;
  log->finished = true;
  if (log->is_terminal)
    close_stream(&log->streams[0]);
  struct ramet_log *header = log->header;
  header->reason = end->reason;
  header->status = end->status;
  header->user_ns = end->user_ns;
  header->system_ns = end->system_ns;
  header->peak_bytes = end->peak_bytes;
  header->disk_bytes = end->disk_bytes;
  header->elapsed_ns = end->elapsed_ns;
  header->setup_ns = end->setup_ns;
  header->memory_peak = end->memory_peak;
  header->oom_kills = end->oom_kills;
  header->lingering = end->lingering;
  header->limit = end->limit;
  header->cpu_peak_ns = end->cpu_peak_ns;
  header->shm_bytes = end->shm_bytes;
  header->wall_ns = end->wall_ns;
  __atomic_store_n(&header->state, RAMET_COMMAND_ENDED, __ATOMIC_RELEASE);
  munmap(log->header, RAMET_LOG_HEADER);
  log->header = NULL;
  while (log->readers)
    reader_close(log->readers);
}

void
streamlog_when_quiet(struct streamlog *log, void (*quiet)(void *owner), void *owner)
{
  log->quiet = quiet;
  log->owner = owner;
}

void
streamlog_free(struct streamlog *log)
{
  while (log->readers)
    reader_close(log->readers);
  for (int i = 0; i < 2; i++)
    close_stream(&log->streams[i]);
  if (log->header)
    munmap(log->header, RAMET_LOG_HEADER);
  close_fd(&log->file);
  free(log);
}

bool
streamlog_written(const struct streamlog *log)
{
  return log->streams[0].fd >= 0 || log->streams[1].fd >= 0;
}

uint64_t
streamlog_size(const struct streamlog *log)
{
  uint64_t size = RAMET_LOG_HEADER;

  for (int i = 0; i < 2; i++)
    size += log->total[i] < log->head + log->ring ? log->total[i] : log->head + log->ring;
  return size;
}

uint64_t
streamlog_total(const struct streamlog *log, int stream)
{
  return log->total[stream];
}

bool
streamlog_settled(const struct streamlog *log, int stream, uint64_t *total)
{
  const struct ramet_log *header = log->header;

  *total = __atomic_load_n(&header->total[stream], __ATOMIC_SEQ_CST);
  return __atomic_load_n(&header->filling[stream], __ATOMIC_SEQ_CST) == 0;
}

uint64_t
streamlog_bytes(const struct streamlog *log)
{
  return log->head + log->ring - RAMET_LOG_CHUNK;
}

uint64_t
streamlog_pipe(const struct streamlog *log, int stream, uint64_t *device)
{
  struct stat st;

  if (log->streams[stream].fd < 0 || fstat(log->streams[stream].fd, &st) < 0)
    return 0;
  *device = st.st_dev;
  return st.st_ino;
}
