/* SPDX-License-Identifier: Apache-2.0
 * The order of a snapshot. Everything between SEIZE and RESUME is the pause. */
#define _GNU_SOURCE
#include "capture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include "capture_files.h"
#include "deposit.h"
#include "loop.h"
#include "overdue.h"
#include "title.h"

static uint64_t stopped_at, resumed_at;

int
capture_refuse(const struct capture *capture, struct err *err, const char *format, ...)
{
  char what[128];
  va_list args;

  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  int pid = capture->status ? procfs_inside(capture->status, "NSpid") : 0;
  return pid ? err_code(err, "unforkable", "pid %d %s: %s", pid, capture->name, what)
             : err_code(err, "unforkable", "pid ? %s: %s", capture->name, what);
}

bool
capture_drops(struct capture_tree *tree, struct err *err)
{
  if (!tree->source->drop || strcmp(err->code, "unforkable") != 0)
    return false;
  for (char *c = err->text; *c; c++)
    if (*c == '\n')
      *c = '?';
  put_raw(&tree->dropped, (struct span){(const uint8_t *)err->text, (uint32_t)strlen(err->text)});
  put_raw(&tree->dropped, (struct span){(const uint8_t *)"\n", 1});
  memset(err, 0, sizeof *err);
  return true;
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

static int
resume(struct capture_tree *tree, struct err *err)
{
  int result = 0;

  for (int i = 0; i < tree->count; i++) {
    struct capture *capture = tree->processes[i];
    if (tree->source->frozen)
      kill(capture->pid, SIGSTOP); /* what runs on until it is ended exceeds its memory further */
    if (capture->threads && trace_release(capture->threads, capture->thread_count, err) < 0)
      result = -1;
    free(capture->threads);
    capture->threads = NULL;
  }
  resumed_at = loop_now();
  return result;
}

static int inherited_filters; /* that all processes have, as core was started under them */

static int
filters_of(const char *status)
{
  const char *filters = status ? procfs_field(status, "Seccomp_filters") : NULL;
  return filters ? atoi(filters) : 0;
}

void
capture_setup(void)
{
  char *status = procfs_read("/proc/self/status", NULL);

  inherited_filters = filters_of(status);
  free(status);
}

static int
check_process(struct capture *capture, struct err *err)
{
  char path[48];

  free(capture->status);
  snprintf(path, sizeof path, "/proc/%d/status", capture->pid);
  capture->status = procfs_read(path, NULL);
  snprintf(path, sizeof path, "/proc/%d/mem", capture->pid);
  capture->memory = open(path, O_RDWR | O_CLOEXEC);
  if (!capture->status || capture->memory < 0)
    return err_step(err, RAMET_STEP_SEIZE, "open %s: %s", path, strerror(errno));
  const char *uid = procfs_field(capture->status, "Uid");
  if (!uid || strtoul(uid, NULL, 10) != getuid())
    return capture_refuse(capture, err, "runs as another user than 0");
  if (filters_of(capture->status) > inherited_filters + 1)
    return capture_refuse(capture, err, "has installed a seccomp filter of its own");
  return capture_stopped(capture, err);
}

static int
read_maps(struct capture *capture, struct err *err)
{
  if (fault_here(RAMET_STEP_MAPPINGS, err) < 0)
    return -1;
  if (procfs_maps(capture->pid, &capture->maps, RAMET_STEP_MAPPINGS, err) < 0)
    return -1;
  return capture->maps.count > IMAGE_MAPPINGS_MAX
             ? capture_refuse(capture, err, "has more than %d mappings", IMAGE_MAPPINGS_MAX)
             : 0;
}

/* The guest may have put anything where its vdso was: what is to be executed is read before it is. */
static int
find_syscall(struct capture *capture, struct err *err)
{
  const struct procmap *vdso = procfs_find(&capture->maps, "[vdso]");
  uint8_t code[16384], instruction[2];
  size_t length;

  /* Killed in the meantime: its memory goes before it does. */
  if (capture->maps.count == 0)
    return capture_refuse(capture, err, "is exiting");
  if (!vdso)
    return capture_refuse(capture, err, "has unmapped its vdso");
  length = vdso->end - vdso->start;
  if (length > sizeof code || pread(capture->memory, code, length, (off_t)vdso->start) != (ssize_t)length)
    return err_step(err, RAMET_STEP_INJECT, "read the vdso: %s", strerror(errno));
  uint64_t offset = arch_vdso_syscall_offset(code, length);
  capture->syscall_address = vdso->start + offset;
  if (offset == 0 || pread(capture->memory, instruction, 2, (off_t)capture->syscall_address) != 2)
    return capture_refuse(capture, err, "its vdso holds no system call");
  return 0;
}

static int
describe(struct capture *capture, struct err *err)
{
  return capture_process(capture, err) < 0 || capture_threads(capture, err) < 0 || capture_timers(capture, err) < 0
             ? -1
             : 0;
}

/* One step for all processes, or until one fails. */
static int
for_each(struct capture_tree *tree, int (*step)(struct capture *, struct err *), struct err *err)
{
  for (int i = 0; i < tree->count; i++)
    if (overdue_check(RAMET_STEP_NONE, err) < 0 || step(tree->processes[i], err) < 0)
      return -1;
  return 0;
}

/* What has no copy that keeps the instant is copied in it. */
static int
copy_now(struct capture *capture, struct err *err)
{
  return capture->twin ? 0 : capture_pages(capture, err);
}

static int
copy_later(struct capture *capture, struct err *err)
{
  return capture->twin ? capture_pages(capture, err) : 0;
}

static int
take_in(struct capture_tree *tree, bool orphans, struct err *err)
{
  int result = 0;

  for (int i = 0; i < tree->count; i++)
    if (capture_take_in(tree->processes[i], orphans, err) < 0)
      result = -1;
  return result;
}

static int
make_twins(struct capture_tree *tree, struct err *err)
{
  struct err second;
  int result = take_in(tree, false, err);

  if (result == 0)
    result = for_each(tree, capture_twin, err);
  return take_in(tree, true, result < 0 ? &second : err) < 0 ? -1 : result;
}

static int
paused(struct capture_tree *tree, struct capture_files *files, struct err *err)
{
  stopped_at = loop_now();
  if (capture_stop(tree, err) < 0)
    return -1;
  /* Not before: what still runs may need this processor to stop. */
  trace_stay_here(&tree->everywhere);
  if (for_each(tree, check_process, err) < 0 || capture_relate(tree, err) < 0 ||
      for_each(tree, read_maps, err) < 0 || for_each(tree, find_syscall, err) < 0 ||
      for_each(tree, describe, err) < 0 || capture_descriptors(tree, err) < 0 || capture_commands(tree, err) < 0 ||
      make_twins(tree, err) < 0 || capture_unforked(tree, err) < 0 ||
      (capture_ipc(tree->processes[0], err) < 0 && !capture_drops(tree, err)) ||
      for_each(tree, copy_now, err) < 0 || capture_files_now(files, err) < 0)
    return -1;
  return fault_here(RAMET_STEP_RESUME, err);
}

/* Killed while they stood still: whatever failed or was refused then, a directory that has no path any more too, was so
 * for that. */
static void
blame_exit(const struct capture_tree *tree, struct err *err)
{
  for (int i = 0; i < tree->count; i++)
    if (procfs_exiting(tree->processes[i]->pid)) {
      capture_refuse(tree->processes[i], err, "is exiting");
      memcpy(err->code, "exiting", sizeof "exiting");
      return;
    }
}

static void
drop_twins(struct capture_tree *tree, int first)
{
  for (int i = first; i < tree->count; i++)
    capture_drop_twin(tree->processes[i]);
}

/* A guest may have reserved more than there is room for in a stem. */
static bool
fits_deposit(const struct capture_tree *tree)
{
  uint64_t sum = 0;

  for (int i = 1; i < tree->count; i++)
    for (uint32_t m = 0; m < tree->processes[i]->maps.count; m++)
      sum += deposit_takes(tree->processes[i]->maps.items[m].end - tree->processes[i]->maps.items[m].start);
  return sum < DEPOSIT_MOST;
}

static int
leave_pages(struct capture_tree *tree, struct err *err)
{
  int count = fits_deposit(tree) ? tree->count : 1;

  for (int i = 0; i < count; i++) {
    struct capture *capture = tree->processes[i];
    if (capture->twin && !capture->parked && capture_leave_pages(capture, err) < 0)
      return -1;
  }
  return 0;
}

static int
take(struct capture_tree *tree, struct capture_files *files, struct err *err)
{
  struct err second;

  if (fault_here(RAMET_STEP_FIND_PROCESSES, err) < 0)
    return -1;
  int result = paused(tree, files, err);
  if (result < 0)
    blame_exit(tree, err);
  if (result < 0)
    drop_twins(tree, 0);
  int resumed = resume(tree, result < 0 ? &second : err);
  if (result < 0 && resumed == 0)
    *tree->source->touched = false;
  if (resumed < 0 || result < 0)
    return -1;
  if (CPU_COUNT(&tree->everywhere))
    sched_setaffinity(0, sizeof tree->everywhere, &tree->everywhere);
  if (leave_pages(tree, err) < 0)
    return -1;
  capture_find_heirs(tree);
  if (for_each(tree, copy_later, err) < 0)
    return -1;
  for (int i = 0; i < tree->count; i++)
    if (!tree->processes[i]->left)
      capture_drop_twin(tree->processes[i]);
  *tree->source->touched = false;
  return fault_here(RAMET_STEP_DROP_TWIN, err);
}

/* ---- answer --------------------------------------------------------------------------------------------------- */

/* An image is written once. Its readers have it for reading only; one of them is the pid 1 of guests. */
static int
reader_of(int fd, enum ramet_step step, struct err *err)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int reader = open(path, O_RDONLY | O_CLOEXEC);
  return reader < 0 ? err_step(err, step, "open the image again: %s", strerror(errno)) : reader;
}

/* On a disk nothing can be sealed. */
static int
finish_file(int *fd, bool in_memory, enum ramet_step step, struct err *err)
{
  const int seals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

  if (in_memory && fcntl(*fd, F_ADD_SEALS, seals) < 0)
    return err_step(err, step, "seal the image: %s", strerror(errno));
  int reader = reader_of(*fd, step, err);
  if (reader < 0)
    return -1;
  close_fd(fd);
  *fd = reader;
  return 0;
}

static void
put_writer(struct writer *to, const struct writer *from)
{
  put_raw(to, (struct span){from->data, (uint32_t)from->length});
  to->failed |= from->failed;
}

/* The first process comes first: an exporter writes its memory anew. */
static int
description_file(const struct capture_tree *tree, uint32_t processes, uint32_t zombies, struct err *err)
{
  struct image_header header = {
      .version = IMAGE_VERSION, .page = IMAGE_PAGE, .process_count = processes, .zombie_count = zombies};
  const struct procmap *vdso = procfs_find(&tree->processes[0]->maps, "[vdso]");
  cleanup_writer struct writer all = {0};
  cleanup_fd int fd = memfd_create("ramet-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  if (fault_here(RAMET_STEP_IMAGE, err) < 0)
    return -1;
  header.vdso_length = vdso ? vdso->end - vdso->start : 0;
  put_bytes(&all, IMAGE_TAG_HEADER, &header, sizeof header);
  for (int i = 0; i < tree->count; i++)
    put_writer(&all, &tree->processes[i]->description);
  for (int i = 0; i < tree->zombie_count; i++)
    put_bytes(&all, IMAGE_TAG_ZOMBIE, &tree->zombies[i], sizeof tree->zombies[i]);
  put_writer(&all, &tree->files);
  if (all.failed || fd < 0 || write(fd, all.data, all.length) != (ssize_t)all.length)
    return err_step(err, RAMET_STEP_IMAGE, "write the description: %s", strerror(errno));
  if (finish_file(&fd, true, RAMET_STEP_IMAGE, err) < 0)
    return -1;
  return steal_fd(&fd);
}

/* Those whose pages the stem will take. */
static bool
put_frozen(const struct capture_tree *tree, struct writer *writer, struct err *err)
{
  cleanup_free uint32_t *pids = calloc((size_t)tree->count, sizeof *pids);
  bool any = false;

  for (int i = 0; pids && i < tree->count; i++) {
    pids[i] = tree->processes[i]->left ? (uint32_t)tree->processes[i]->twin : 0;
    any |= pids[i] != 0;
  }
  if (!pids)
    err_code(err, "internal", "no memory for the frozen copies");
  else if (any)
    put_bytes(writer, RAMET_TAG_PID, pids, (size_t)tree->count * sizeof *pids);
  return pids;
}

/* Whether core has an image now. */
static bool
answer(struct capture_tree *tree, const struct capture_files *files, int result, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  const struct capture *first = tree->count ? tree->processes[0] : NULL;
  struct err unkept = {0};
  int fds[5] = {-1, -1, files->copy}, used = 3;

  /* What was refused before the threads were looked at leaves them as they were. */
  if (result == 0 || tree->restarted.length)
    put_bytes(&writer, RAMET_TAG_RESTARTED, tree->restarted.data, tree->restarted.length);
  if (result == 0 && first && finish_file(&tree->pages, true, RAMET_STEP_IMAGE, err) == 0)
    fds[0] = description_file(tree, (uint32_t)tree->count, (uint32_t)tree->zombie_count, err);
  fds[1] = tree->pages;
  if (!first || fds[0] < 0 || !put_frozen(tree, &writer, err)) {
    put_err(&writer, err);
    if (frame_send(tree->channel, RAMET_ERROR, 0, &writer, NULL, 0) < 0)
      _exit(EXIT_DEFECT);
    return false;
  }
  put_u64(&writer, RAMET_TAG_PAUSE_NS, resumed_at - stopped_at);
  put_u64(&writer, RAMET_TAG_MEMORY_BYTES, tree->memory_bytes);
  put_u64(&writer, RAMET_TAG_FILE_BYTES, files->bytes);
  put_u32(&writer, RAMET_TAG_PROCESS_COUNT, (uint32_t)tree->count);
  put_u32(&writer, RAMET_TAG_BY_TWIN, first->parked);
  if (tree->dropped.length)
    put_bytes(&writer, RAMET_TAG_DROPPED, tree->dropped.data, tree->dropped.length);
  capture_ways(tree, &writer);
  fds[used] = capture_files_index(files, &unkept);
  used += fds[used] >= 0;
  if (files->flat >= 0) {
    put_u32(&writer, RAMET_TAG_LAYER, (uint32_t)used);
    fds[used++] = files->flat;
  }
  if (frame_send(tree->channel, RAMET_OK, 0, &writer, fds, used) < 0)
    _exit(EXIT_DEFECT);
  return true;
}

/* Until core says that the stem has the memory, or is gone itself. */
static void
await_stem(int channel)
{
  const struct itimerval never = {0};
  struct pollfd polled = {channel, POLLIN, 0};

  setitimer(ITIMER_REAL, &never, NULL);
  while (poll(&polled, 1, -1) < 0 && errno == EINTR)
    continue;
}

/* ---- export --------------------------------------------------------------------------------------------------- */

static bool
is_memory(uint16_t tag)
{
  return tag == IMAGE_TAG_MAPPING || tag == IMAGE_TAG_RUN;
}

/* Of a process beside the first, one after another: pages that are in the page file stay there, those in the deposit
 * come behind them. */
struct others {
  struct capture *capture;
  const struct process_image *process; /* NULL: those behind the first have not begun */
  int memory;                          /* of the stem */
  uint32_t mapping;
  uint64_t deposit, next, place;
};

static int
put_other(struct others *others, uint16_t tag, struct span value, struct err *err)
{
  struct capture *capture = others->capture;
  struct image_run run;

  if (tag == IMAGE_TAG_MAPPING)
    others->place = deposit_place(&others->process->mappings[others->mapping++], &others->next);
  if (tag != IMAGE_TAG_RUN) {
    put_bytes(&capture->tree->files, tag, value.data, value.length);
    return 0;
  }
  memcpy(&run, value.data, sizeof run);
  uint64_t at =
      others->deposit + others->place + (run.address - others->process->mappings[others->mapping - 1].start);
  if (run.offset == IMAGE_FROZEN && capture_content(capture, others->memory, at, run.length, &run.offset, err) < 0)
    return -1;
  if (run.offset != IMAGE_GUARD && run.offset != IMAGE_INHERITED)
    capture->tree->memory_bytes += run.length;
  put_bytes(&capture->tree->files, tag, &run, sizeof run);
  return 0;
}

/* All records but those of the first process's memory, which are read from the stem: it never runs, so there is no
 * hurry. What is not the first process's goes behind its memory. */
static int
copy_records(struct others *others, const struct export_source *source, struct err *err)
{
  struct attr_walk walk = {source->original};
  struct writer *to = &others->capture->description;
  struct span value;
  uint16_t tag;
  int more, processes = 0;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    if (tag == IMAGE_TAG_PROCESS && processes++) {
      others->process = &source->image->processes[processes - 1];
      others->mapping = 0;
    }
    if (processes > 1 || tag == IMAGE_TAG_ZOMBIE || tag == IMAGE_TAG_DESCRIPTION || tag == IMAGE_TAG_TERMINAL)
      to = &others->capture->tree->files;
    if (others->process && is_memory(tag)) {
      if (put_other(others, tag, value, err) < 0)
        return -1;
    } else if (tag != IMAGE_TAG_HEADER && !is_memory(tag)) {
      put_bytes(to, tag, value.data, value.length);
    }
  }
  return more;
}

static int
copy_others(struct capture *capture, const struct export_source *source, struct err *err)
{
  struct others others = {.capture = capture, .deposit = source->deposit};
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/mem", source->stem_pid);
  cleanup_fd int memory = open(path, O_RDONLY | O_CLOEXEC);
  if (memory < 0)
    return err_step(err, RAMET_STEP_EXPORT, "open %s: %s", path, strerror(errno));
  others.memory = memory;
  return copy_records(&others, source, err);
}

static int
export_stem(struct capture *capture, const struct export_source *source, struct err *err)
{
  if (fault_here(RAMET_STEP_EXPORT, err) < 0 ||
      procfs_maps(source->stem_pid, &capture->maps, RAMET_STEP_EXPORT, err) < 0)
    return -1;
  /* Contents of open files, and other processes' pages, keep their places in front. */
  struct stat st;
  uint64_t offset;
  if (fstat(source->pages, &st) < 0)
    return err_step(err, RAMET_STEP_EXPORT, "the page file: %s", strerror(errno));
  if (st.st_size && capture_content(capture, source->pages, 0, (uint64_t)st.st_size, &offset, err) < 0)
    return -1;
  return copy_others(capture, source, err) < 0 ? -1 : capture_pages(capture, err);
}

void
export_main(const struct export_source *source, int channel)
{
  struct capture_source as_source = {.parent = source->image,
                                     .stem = source->image,
                                     .region_start = source->region_start,
                                     .region_end = source->region_end};
  struct capture_tree tree = {.source = &as_source, .channel = channel};
  struct capture capture = {
      .source = &as_source, .tree = &tree, .pid = source->stem_pid, .twin = source->stem_pid, .memory = -1};
  struct capture *only[] = {&capture};
  struct err err = {0};
  cleanup_writer struct writer writer = {0};
  int fds[2];

  title_set("ramet-exporter");
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  tree.processes = only;
  tree.count = 1;
  tree.pages = source->directory < 0 ? memfd_create("ramet-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                     : openat(source->directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  int result = tree.pages < 0 ? err_step(&err, RAMET_STEP_EXPORT, "a page file: %s", strerror(errno))
                              : export_stem(&capture, source, &err);
  if (result == 0)
    result = finish_file(&tree.pages, source->directory < 0, RAMET_STEP_EXPORT, &err);
  fds[0] =
      result < 0 ? -1 : description_file(&tree, source->image->process_count, source->image->zombie_count, &err);
  fds[1] = tree.pages;
  if (fds[0] < 0)
    put_err(&writer, &err);
  else
    put_u64(&writer, RAMET_TAG_MEMORY_BYTES, tree.memory_bytes);
  if (frame_send(channel, fds[0] < 0 ? RAMET_ERROR : RAMET_OK, 0, &writer, fds, fds[0] < 0 ? 0 : 2) < 0)
    _exit(EXIT_DEFECT);
  _exit(0);
}

static bool
has_left(const struct capture_tree *tree)
{
  for (int i = 0; i < tree->count; i++)
    if (tree->processes[i]->left)
      return true;
  return false;
}

void
capture_main(const struct capture_source *source, enum ramet_step fault, int channel)
{
  struct capture_tree tree = {.source = source, .pages = -1, .channel = channel};
  struct capture_files files = {.tree = &tree, .copy = -1, .flat = -1};
  struct err err = {0}, second = {0};

  title_set("ramet-tracer");
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  fault_arm(fault);
  overdue_set(source->allowed_ms);
  tree.pages = memfd_create("ramet-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int result = tree.pages < 0 ? err_step(&err, RAMET_STEP_IMAGE, "memfd_create: %s", strerror(errno))
                              : capture_files_ahead(&files, &tree, &err);
  /* Its patience is for processes. */
  if (result == 0)
    result = trace_setup(source->patience_ms, source->touched, &err);
  if (result == 0)
    result = take(&tree, &files, &err);
  if (capture_files_end(&files, result == 0, result < 0 ? &second : &err) < 0)
    result = -1;
  /* Core waits for the end of whoever could not make one. */
  if (answer(&tree, &files, result, &err) && has_left(&tree))
    await_stem(channel);
  drop_twins(&tree, 0);
  _exit(0);
}
