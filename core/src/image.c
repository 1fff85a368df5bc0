/* SPDX-License-Identifier: Apache-2.0
 * Decodes the description of a snapshot. It may come from disk or another machine: everything is checked here,
 * and what is built from it later trusts it. */
#include "image.h"

#include <string.h>
#include <sys/stat.h>

#include "plan.h"

const struct image_terminal *
image_terminal(const struct image *image, uint64_t index)
{
  for (uint32_t i = 0; i < image->terminal_count; i++)
    if (image->terminals[i].index == index)
      return &image->terminals[i];
  return NULL;
}

const struct image_mapping *
image_mapping_at(const struct process_image *process, uint64_t address)
{
  uint32_t low = 0, high = process->mapping_count;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (process->mappings[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low < process->mapping_count && process->mappings[low].start <= address ? &process->mappings[low] : NULL;
}

bool
image_can_inherit(const struct process_image *process, uint64_t start, uint64_t end)
{
  while (start < end) {
    const struct image_mapping *mapping = image_mapping_at(process, start);
    if (!mapping || mapping->backing != IMAGE_ANONYMOUS || mapping->flags & ~(uint32_t)IMAGE_INHERITABLE)
      return false;
    start = mapping->end;
  }
  return true;
}

struct decoder {
  struct image *image;
  struct process_image *process; /* the one that is open */
  uint64_t page_bytes;
  struct err *err;
};

static int
malformed(struct decoder *decoder, const char *what)
{
  return err_field(decoder->err, "image", "%s", what);
}

/* Room for one more of an array; its capacity is the next power of two. */
static void *
more(struct decoder *decoder, void *array, uint32_t count, size_t size, uint32_t most)
{
  void **items = array;

  if (count >= most) {
    malformed(decoder, "more records than an image may hold");
    return NULL;
  }
  if ((count & (count - 1)) == 0) {
    void *grown = realloc(*items, (count ? (size_t)count * 2 : 1) * size);
    if (!grown) {
      err_code(decoder->err, "internal", "no memory for an image");
      return NULL;
    }
    *items = grown;
  }
  return (uint8_t *)*items + (size_t)count * size;
}

static int
fixed(struct decoder *decoder, struct span value, void *out, size_t size, struct span *rest)
{
  if (value.length < size || (!rest && value.length != size))
    return malformed(decoder, "a record has a wrong length");
  memcpy(out, value.data, size);
  if (rest)
    *rest = (struct span){value.data + size, value.length - (uint32_t)size};
  return 0;
}

static bool
within_pages(const struct decoder *decoder, uint64_t offset, uint64_t length)
{
  return length <= decoder->page_bytes && offset <= decoder->page_bytes - length;
}

static int
check_relations(struct decoder *decoder, const struct image_relations *relations)
{
  if (relations->pid < 2 || relations->parent < 1 || relations->group < 2 || relations->session < 2 ||
      relations->exit_signal > 64)
    return malformed(decoder, "a process has no number, or no place among the others");
  return 0;
}

static int
decode_process(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  struct process_image *process =
      more(decoder, &image->processes, image->process_count, sizeof *process, IMAGE_PROCESSES_MAX);

  if (!process)
    return -1;
  memset(process, 0, sizeof *process);
  image->process_count++;
  decoder->process = process;
  if (fixed(decoder, value, &process->process, sizeof process->process, NULL) < 0)
    return -1;
  if (!memchr(process->process.exe, 0, sizeof process->process.exe) || process->process.death_signal > 64)
    return malformed(decoder, "a process has no program");
  if ((process->process.stopped & ~IMAGE_STOP_UNTOLD) > 64)
    return malformed(decoder, "a process that is stopped");
  return check_relations(decoder, &process->process.relations);
}

static int
decode_command(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  uint32_t n = image->command_count;
  struct image_command *command = more(decoder, &image->commands, n, sizeof *command, IMAGE_COMMANDS_MAX);
  struct span *record = more(decoder, &image->command_records, n, sizeof *record, IMAGE_COMMANDS_MAX);

  if (!command || !record || fixed(decoder, value, command, sizeof *command, record) < 0)
    return -1;
  if (!command->number || command->pid < 2 || image_command(image, command->number) >= 0 ||
      command->log_bytes > RAMET_LOG_BYTES_MAX || record->length > RAMET_COMMAND_RECORD_MAX)
    return malformed(decoder, "a command is none");
  image->command_count++;
  return 0;
}

static int
decode_zombie(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  struct image_zombie *zombie =
      more(decoder, &image->zombies, image->zombie_count, sizeof *zombie, IMAGE_PROCESSES_MAX);

  if (!zombie || fixed(decoder, value, zombie, sizeof *zombie, NULL) < 0)
    return -1;
  if (!memchr(zombie->name, 0, sizeof zombie->name) || (zombie->status & 0x7f) > 64)
    return malformed(decoder, "a process that has ended");
  image->zombie_count++;
  return check_relations(decoder, &zombie->relations);
}

static int
decode_thread(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_thread *thread = more(decoder, &p->threads, p->thread_count, sizeof *thread, IMAGE_THREADS_MAX);
  const uint8_t **xstate = more(decoder, &p->xstates, p->thread_count, sizeof *xstate, IMAGE_THREADS_MAX);
  struct span rest = {0};

  if (!thread || !xstate || fixed(decoder, value, thread, sizeof *thread, &rest) < 0)
    return -1;
  if (thread->tid < 2 || thread->xstate_length != rest.length || rest.length > ARCH_XSTATE_MAX ||
      rest.length < 576 || thread->name[15] != 0)
    return malformed(decoder, "a thread's state has a wrong size");
  *xstate = rest.data;
  p->thread_count++;
  return 0;
}

static int
decode_mapping(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_mapping *mapping =
      more(decoder, &p->mappings, p->mapping_count, sizeof *mapping, IMAGE_MAPPINGS_MAX);
  struct span *path = more(decoder, &p->paths, p->mapping_count, sizeof *path, IMAGE_MAPPINGS_MAX);
  uint32_t *first = more(decoder, &p->first_run, p->mapping_count, sizeof *first, IMAGE_MAPPINGS_MAX);
  uint64_t after = p->mapping_count ? p->mappings[p->mapping_count - 1].end : 0;

  if (!mapping || !path || !first || fixed(decoder, value, mapping, sizeof *mapping, path) < 0)
    return -1;
  /* `more` may have moved the array, so the end of the mapping before was read first. */
  if (mapping->start < after || mapping->start >= mapping->end || mapping->end > ((uint64_t)1 << 56) ||
      (mapping->start | mapping->end | mapping->offset) % IMAGE_PAGE || mapping->backing > IMAGE_SPECIAL)
    return malformed(decoder, "mappings overlap or are not whole pages");
  if (mapping->backing == IMAGE_FILE || mapping->backing == IMAGE_SHARED_FILE) {
    if (path->length < 2 || path->data[0] != '/' || !span_is_text(*path) || path->length > 4095)
      return malformed(decoder, "a mapped file has no path");
  }
  if ((mapping->backing == IMAGE_SHARED) != (mapping->description != 0))
    return malformed(decoder, "shared memory without an object");
  *first = p->run_count;
  p->mapping_count++;
  return 0;
}

static int
decode_run(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_run *run = more(decoder, &p->runs, p->run_count, sizeof *run, IMAGE_RUNS_MAX);

  if (!run || fixed(decoder, value, run, sizeof *run, NULL) < 0)
    return -1;
  if (p->mapping_count == 0)
    return malformed(decoder, "pages without a mapping");
  const struct image_mapping *mapping = &p->mappings[p->mapping_count - 1];
  uint64_t after =
      p->run_count > p->first_run[p->mapping_count - 1] ? run[-1].address + run[-1].length : mapping->start;
  if (run->address < after || run->length == 0 || run->length > mapping->end - run->address ||
      run->address > mapping->end || (run->address | run->length) % IMAGE_PAGE ||
      (run->offset != IMAGE_GUARD && run->offset != IMAGE_FROZEN && run->offset != IMAGE_INHERITED &&
       (run->offset % IMAGE_PAGE || !within_pages(decoder, run->offset, run->length))))
    return malformed(decoder, "pages lie outside their mapping or the page file");
  p->run_count++;
  return 0;
}

static int
decode_signal(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_signal *signal = more(decoder, &p->signals, p->signal_count, sizeof *signal, 64);

  if (!signal || fixed(decoder, value, signal, sizeof *signal, NULL) < 0)
    return -1;
  if (signal->number < 1 || signal->number > 64)
    return malformed(decoder, "a signal has no such number");
  p->signal_count++;
  return 0;
}

static int
decode_description(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  uint32_t n = image->description_count;
  struct image_description *d = more(decoder, &image->descriptions, n, sizeof *d, IMAGE_DESCRIPTORS_MAX);
  struct span *content = more(decoder, &image->contents, n, sizeof *content, IMAGE_DESCRIPTORS_MAX);
  uint32_t *first_epoll = more(decoder, &image->first_epoll, n, sizeof *first_epoll, IMAGE_DESCRIPTORS_MAX);
  uint32_t *first_extent = more(decoder, &image->first_extent, n, sizeof *first_extent, IMAGE_DESCRIPTORS_MAX);

  if (!d || !content || !first_epoll || !first_extent || fixed(decoder, value, d, sizeof *d, content) < 0)
    return -1;
  if (d->kind < IMAGE_STREAM || d->kind > IMAGE_TERMINAL || d->peer > IMAGE_OBJECT_IDS || content->length > 4095 ||
      !within_pages(decoder, d->content_offset, d->content_length))
    return malformed(decoder, "an open file is of no known kind");
  if (d->kind == IMAGE_REOPEN && (content->length < 1 || content->data[0] != '/' || !span_is_text(*content)))
    return malformed(decoder, "an open file has no path");
  if (d->kind == IMAGE_REOPEN && d->value[0] != S_IFREG && d->value[0] != S_IFDIR && d->value[0] != S_IFCHR)
    return malformed(decoder, "an open file of a path is of no kind that has one");
  if (d->kind == IMAGE_PIPE && content->length && (content->data[0] != '/' || !span_is_text(*content)))
    return malformed(decoder, "a named pipe has no path");
  if (d->kind == IMAGE_STREAM && d->value[0] >= STREAM_COUNT)
    return malformed(decoder, "a stream has no such number");
  if (d->kind == IMAGE_TERMINAL && d->value[1] > IMAGE_HUNG_UP)
    return malformed(decoder, "an end of a terminal is none");
  *first_epoll = image->epoll_count;
  *first_extent = image->extent_count;
  image->description_count++;
  return 0;
}

static int
decode_extent(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  struct image_extent *extent = more(decoder, &image->extents, image->extent_count, sizeof *extent, IMAGE_RUNS_MAX);

  if (!extent || fixed(decoder, value, extent, sizeof *extent, NULL) < 0)
    return -1;
  uint32_t last = image->description_count - 1;
  if (image->description_count == 0 || image->descriptions[last].kind != IMAGE_UNLINKED)
    return malformed(decoder, "bytes of no file");
  uint64_t after = image->extent_count > image->first_extent[last] ? extent[-1].offset + extent[-1].length : 0;
  if (extent->offset < after || extent->length == 0 || extent->length > image->descriptions[last].value[2] ||
      extent->offset > image->descriptions[last].value[2] - extent->length ||
      !within_pages(decoder, extent->page_offset, extent->length))
    return malformed(decoder, "bytes lie outside their file or the page file");
  image->extent_count++;
  return 0;
}

static int
decode_epoll(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  struct image_epoll *item = more(decoder, &image->epolls, image->epoll_count, sizeof *item, IMAGE_DESCRIPTORS_MAX);

  if (!item || fixed(decoder, value, item, sizeof *item, NULL) < 0)
    return -1;
  image->epoll_count++;
  return 0;
}

static int
decode_fd(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_fd *fd = more(decoder, &p->fds, p->fd_count, sizeof *fd, IMAGE_DESCRIPTORS_MAX);

  if (!fd || fixed(decoder, value, fd, sizeof *fd, NULL) < 0)
    return -1;
  if (fd->number < 0 || fd->number > 1048576 || (p->fd_count && fd[-1].number >= fd->number))
    return malformed(decoder, "descriptors are not in order");
  p->fd_count++;
  return 0;
}

static int
decode_pending(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_pending *pending = more(decoder, &p->pending, p->pending_count, sizeof *pending, 4096);

  if (!pending || fixed(decoder, value, pending, sizeof *pending, NULL) < 0)
    return -1;
  if (pending->thread >= p->thread_count && !pending->shared)
    return malformed(decoder, "a pending signal belongs to no thread");
  p->pending_count++;
  return 0;
}

static bool
is_thread(const struct process_image *p, int32_t tid)
{
  for (uint32_t i = 0; i < p->thread_count; i++)
    if (p->threads[i].tid == tid)
      return true;
  return false;
}

static int
decode_timer(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_timer *timer = more(decoder, &p->timers, p->timer_count, sizeof *timer, IMAGE_TIMERS_MAX);

  if (!timer || fixed(decoder, value, timer, sizeof *timer, NULL) < 0)
    return -1;
  if (timer->id < 0 || (p->timer_count && timer[-1].id >= timer->id) || timer->signal > 64 || timer->notify > 4 ||
      (timer->notify == 4 && !is_thread(p, timer->thread)) || timer->interval[1] > 999999999 ||
      timer->left[1] > 999999999)
    return malformed(decoder, "a timer");
  p->timer_count++;
  return 0;
}

static int
decode_scheduling(struct decoder *decoder, struct span value)
{
  struct process_image *p = decoder->process;
  struct image_scheduling *scheduling =
      more(decoder, &p->schedulings, p->scheduling_count, sizeof *scheduling, IMAGE_THREADS_MAX);

  if (!scheduling || fixed(decoder, value, scheduling, sizeof *scheduling, NULL) < 0)
    return -1;
  if (scheduling->thread >= p->thread_count || scheduling->nice < -20 || scheduling->nice > 19)
    return malformed(decoder, "scheduling of no thread");
  p->scheduling_count++;
  return 0;
}

/* Those of an open file, or of a process. */
static int
decode_lock(struct decoder *decoder, struct span value, struct image_lock **locks, uint32_t *count, bool of_process)
{
  struct image_lock *lock = more(decoder, locks, *count, sizeof *lock, IMAGE_LOCKS_MAX);

  if (!lock || fixed(decoder, value, lock, sizeof *lock, NULL) < 0)
    return -1;
  if (lock->kind < IMAGE_LOCK_OF_PROCESS || lock->kind > IMAGE_LOCK_WHOLE || lock->exclusive > 1 ||
      (lock->kind == IMAGE_LOCK_OF_PROCESS) != of_process || lock->start > INT64_MAX ||
      lock->length > INT64_MAX - lock->start)
    return malformed(decoder, "a lock");
  (*count)++;
  return 0;
}

static int
decode_terminal(struct decoder *decoder, struct span value)
{
  struct image *image = decoder->image;
  struct image_terminal *terminal =
      more(decoder, &image->terminals, image->terminal_count, sizeof *terminal, IMAGE_TERMINALS_MAX);

  if (!terminal || fixed(decoder, value, terminal, sizeof *terminal, NULL) < 0)
    return -1;
  if (terminal->index >= IMAGE_TERMINALS_MAX || terminal->mode > 0777 || terminal->session < 0 ||
      terminal->foreground < 0 || terminal->input_length > IMAGE_TERMINAL_BYTES ||
      terminal->output_length > IMAGE_TERMINAL_BYTES ||
      !within_pages(decoder, terminal->offset, terminal->input_length + terminal->output_length) ||
      image_terminal(image, terminal->index))
    return malformed(decoder, "a terminal");
  image->terminal_count++;
  return 0;
}

static int
decode_header(struct decoder *decoder, struct span value)
{
  struct image_header *header = &decoder->image->header;

  if (header->version)
    return malformed(decoder, "two headers");
  if (fixed(decoder, value, header, sizeof *header, NULL) < 0)
    return -1;
  if (header->version != IMAGE_VERSION)
    return err_code(decoder->err, "image_version", "the image has version %u, this core reads %u", header->version,
                    IMAGE_VERSION);
  return header->page == IMAGE_PAGE ? 0 : malformed(decoder, "pages of another size");
}

static int
decode_record(struct decoder *decoder, uint16_t tag, struct span value)
{
  if (tag != IMAGE_TAG_HEADER && decoder->image->header.version == 0)
    return malformed(decoder, "a record before the header");
  if (tag != IMAGE_TAG_HEADER && tag != IMAGE_TAG_PROCESS && !decoder->process)
    return malformed(decoder, "a record before the first process");
  switch ((enum image_tag)tag) {
  case IMAGE_TAG_HEADER:
    return decode_header(decoder, value);
  case IMAGE_TAG_PROCESS:
    return decode_process(decoder, value);
  case IMAGE_TAG_THREAD:
    return decode_thread(decoder, value);
  case IMAGE_TAG_SIGNAL:
    return decode_signal(decoder, value);
  case IMAGE_TAG_MAPPING:
    return decode_mapping(decoder, value);
  case IMAGE_TAG_RUN:
    return decode_run(decoder, value);
  case IMAGE_TAG_FD:
    return decode_fd(decoder, value);
  case IMAGE_TAG_AUXV:
    decoder->process->auxv = value;
    return value.length % 16 == 0 && value.length <= 512 ? 0 : malformed(decoder, "the auxiliary vector");
  case IMAGE_TAG_CWD:
    decoder->process->cwd = value;
    return value.length && value.length < 4096 && span_is_text(value) ? 0 : malformed(decoder, "the directory");
  case IMAGE_TAG_PENDING:
    return decode_pending(decoder, value);
  case IMAGE_TAG_DESCRIPTION:
    return decode_description(decoder, value);
  case IMAGE_TAG_EPOLL:
    return decode_epoll(decoder, value);
  case IMAGE_TAG_EXTENT:
    return decode_extent(decoder, value);
  case IMAGE_TAG_TIMER:
    return decode_timer(decoder, value);
  case IMAGE_TAG_SCHEDULING:
    return decode_scheduling(decoder, value);
  case IMAGE_TAG_ZOMBIE:
    return decode_zombie(decoder, value);
  case IMAGE_TAG_COMMAND:
    return decode_command(decoder, value);
  case IMAGE_TAG_TERMINAL:
    return decode_terminal(decoder, value);
  case IMAGE_TAG_LOCK:
    return decode_lock(decoder, value, &decoder->image->locks, &decoder->image->lock_count, false);
  case IMAGE_TAG_PROCESS_LOCK:
    return decode_lock(decoder, value, &decoder->process->locks, &decoder->process->lock_count, true);
  default:
    return malformed(decoder, "a record of no known kind");
  }
}

static const struct image_description *
find_description(const struct image *image, uint32_t id)
{
  for (uint32_t i = 0; i < image->description_count; i++)
    if (image->descriptions[i].id == id)
      return &image->descriptions[i];
  return NULL;
}

static int
check_descriptors(struct decoder *decoder, struct process_image *p)
{
  for (uint32_t i = 0; i < p->fd_count; i++)
    if (!find_description(decoder->image, p->fds[i].description))
      return malformed(decoder, "a descriptor of no open file");
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    const struct image_mapping *mapping = &p->mappings[i];
    if (mapping->backing != IMAGE_SHARED)
      continue;
    const struct image_description *object = find_description(decoder->image, mapping->description - 1);
    if (!object || object->kind != IMAGE_UNLINKED)
      return malformed(decoder, "shared memory of no object");
  }
  return 0;
}

static int
check_inherited(struct decoder *decoder, const struct process_image *p)
{
  const struct process_image *first = &decoder->image->processes[0];

  for (uint32_t i = 0; i < p->run_count; i++) {
    const struct image_run *run = &p->runs[i];
    uint64_t end = run->address + run->length;
    if (run->offset == IMAGE_INHERITED &&
        (p == first || !image_can_inherit(p, run->address, end) || !image_can_inherit(first, run->address, end)))
      return malformed(decoder, "pages of the first process that it has not");
  }
  return 0;
}

static int
check_locks(struct decoder *decoder)
{
  for (uint32_t i = 0; i < decoder->image->lock_count; i++)
    if (!find_description(decoder->image, decoder->image->locks[i].description))
      return malformed(decoder, "a lock of no open file");
  return 0;
}

/* A terminal that controls a session, which has one, can be taken by it. */
static int
check_control(struct decoder *decoder, uint32_t at)
{
  const struct image *image = decoder->image;
  const struct image_terminal *terminal = &image->terminals[at];
  const struct image_description *d = find_description(image, IMAGE_TERMINAL_IDS + terminal->index);

  if (!terminal->session)
    return 0;
  if (!d || d->kind != IMAGE_TERMINAL || d->value[0] != terminal->index || d->value[1] != IMAGE_SLAVE)
    return malformed(decoder, "a terminal that nobody can take");
  for (uint32_t i = 0; i < at; i++)
    if (image->terminals[i].session == terminal->session)
      return malformed(decoder, "a session with two terminals");
  return 0;
}

static int
check_terminals(struct decoder *decoder)
{
  const struct image *image = decoder->image;

  for (uint32_t i = 0; i < image->terminal_count; i++)
    if (check_control(decoder, i) < 0)
      return -1;
  for (uint32_t i = 0; i < image->description_count; i++) {
    const struct image_description *d = &image->descriptions[i];
    if (d->kind == IMAGE_TERMINAL && d->value[1] != IMAGE_HUNG_UP && !image_terminal(image, d->value[0]))
      return malformed(decoder, "an end of no terminal");
  }
  return 0;
}

/* Both ends of a pair name each other. */
static int
check_pairs(struct decoder *decoder)
{
  const struct image *image = decoder->image;

  for (uint32_t i = 0; i < image->description_count; i++) {
    const struct image_description *d = &image->descriptions[i];
    if (d->kind != IMAGE_SOCKETPAIR || d->peer == 0)
      continue;
    const struct image_description *other = find_description(image, d->peer - 1);
    if (!other || other == d || other->kind != IMAGE_SOCKETPAIR || other->peer != d->id + 1)
      return malformed(decoder, "a socket pair with one end");
  }
  return 0;
}

/* Behind the last of each, where an array of first ones ends. */
static int
end_lists(struct decoder *decoder)
{
  struct image *image = decoder->image;
  uint32_t *epolls =
      more(decoder, &image->first_epoll, image->description_count, sizeof *epolls, IMAGE_DESCRIPTORS_MAX + 1);
  uint32_t *extents =
      more(decoder, &image->first_extent, image->description_count, sizeof *extents, IMAGE_DESCRIPTORS_MAX + 1);

  if (!epolls || !extents)
    return -1;
  *epolls = image->epoll_count;
  *extents = image->extent_count;
  return 0;
}

static int
check_whole(struct decoder *decoder)
{
  struct image *image = decoder->image;

  if (image->process_count != image->header.process_count || image->zombie_count != image->header.zombie_count)
    return malformed(decoder, "processes are missing");
  for (uint32_t i = 0; i < image->process_count; i++) {
    struct process_image *p = &image->processes[i];
    if (p->thread_count == 0 || p->thread_count != p->process.thread_count ||
        p->threads[0].tid != p->process.relations.pid)
      return malformed(decoder, "threads are missing");
    if (p->mapping_count == 0 || p->cwd.length == 0)
      return malformed(decoder, "a process without memory or directory");
    uint32_t *end = more(decoder, &p->first_run, p->mapping_count, sizeof *end, IMAGE_MAPPINGS_MAX + 1);
    if (!end || check_descriptors(decoder, p) < 0 || check_inherited(decoder, p) < 0)
      return -1;
    *end = p->run_count;
  }
  if (end_lists(decoder) < 0 || check_locks(decoder) < 0 || check_terminals(decoder) < 0)
    return -1;
  return check_pairs(decoder);
}

static bool
is_of_files(uint16_t tag)
{
  return tag == IMAGE_TAG_HEADER || tag == IMAGE_TAG_PROCESS || tag == IMAGE_TAG_DESCRIPTION ||
         tag == IMAGE_TAG_EPOLL || tag == IMAGE_TAG_EXTENT || tag == IMAGE_TAG_LOCK || tag == IMAGE_TAG_TERMINAL ||
         tag == IMAGE_TAG_COMMAND;
}

static int
decode(struct span description, uint64_t page_bytes, bool whole, struct image *image, struct err *err)
{
  struct decoder decoder = {.image = image, .page_bytes = page_bytes, .err = err};
  struct attr_walk walk = {description};
  struct span value;
  uint16_t tag;
  int more_left;

  memset(image, 0, sizeof *image);
  while ((more_left = attr_next(&walk, &tag, &value, err)) > 0)
    if ((whole || is_of_files(tag)) && decode_record(&decoder, tag, value) < 0)
      break;
  if (more_left == 0 && image->process_count && (whole ? check_whole(&decoder) : end_lists(&decoder)) == 0)
    return 0;
  if (more_left == 0 && !image->process_count)
    malformed(&decoder, "processes are missing");
  image_free(image);
  return -1;
}

int
image_decode(struct span description, uint64_t page_bytes, struct image *image, struct err *err)
{
  return decode(description, page_bytes, true, image, err);
}

int
image_decode_files(struct span description, uint64_t page_bytes, struct image *image, struct err *err)
{
  return decode(description, page_bytes, false, image, err);
}

void
image_free(struct image *image)
{
  for (uint32_t i = 0; i < image->process_count; i++) {
    struct process_image *p = &image->processes[i];
    free(p->threads);
    free(p->xstates);
    free(p->signals);
    free(p->mappings);
    free(p->paths);
    free(p->runs);
    free(p->first_run);
    free(p->fds);
    free(p->pending);
    free(p->timers);
    free(p->schedulings);
    free(p->locks);
  }
  free(image->processes);
  free(image->zombies);
  free(image->locks);
  free(image->terminals);
  free(image->commands);
  free(image->command_records);
  free(image->descriptions);
  free(image->contents);
  free(image->epolls);
  free(image->first_epoll);
  free(image->extents);
  free(image->first_extent);
  memset(image, 0, sizeof *image);
}

int
image_command(const struct image *image, uint32_t number)
{
  for (uint32_t i = 0; i < image->command_count; i++)
    if (image->commands[i].number == number)
      return (int)i;
  return -1;
}
