/* SPDX-License-Identifier: Apache-2.0
 * The order of a snapshot. Everything between SEIZE and RESUME is the pause. */
#define _GNU_SOURCE
#include "capture.h"

#include <fcntl.h>
#include <linux/mount.h>
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

#include "loop.h"
#include "mounts.h"
#include "title.h"
#include "treecopy.h"

static uint64_t stopped_at, resumed_at;

int
capture_refuse(const struct capture *capture, struct err *err, const char *format, ...)
{
  char what[128], inside[16] = "?";
  const char *pid = capture->status ? procfs_field(capture->status, "NSpid") : NULL;
  va_list args;

  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  if (pid) {
    /* One number for each nested namespace; the last is the guest's own. */
    size_t length = strcspn(pid, "\n");
    const char *last = pid + length;
    while (last > pid && last[-1] != '\t')
      last--;
    snprintf(inside, sizeof inside, "%.*s", (int)(pid + length - last), last);
  }
  return err_code(err, "unforkable", "pid %s %s: %s", inside, capture->name, what);
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

/* The frozen copy of a snapshot before, whose stem is being filled: another tracer of core's holds it until it dies. */
static bool
is_frozen(int pid)
{
  int tracer = procfs_tracer(pid);

  return tracer > 0 && tracer != getpid() && procfs_parent(tracer) == getppid();
}

/* Children of init that are no zombies: those it only has yet to wait for. -1 with errno: they cannot be told. */
static int
living_children(int init_pid, int out[4])
{
  int children[64], count = procfs_children(init_pid, children, 64), living = 0;

  if (count < 0)
    return -1;
  for (int i = 0; i < count && living < 4; i++) {
    int threads[2];
    char state = procfs_state(children[i]);
    /* The first thread of a process may end before the others. */
    int left = state == 'Z' ? procfs_threads(children[i], threads, 2) : 2;
    bool ended = state == 0 || (left >= 0 ? left < 2 : procfs_gone());
    if (!ended && !is_frozen(children[i]))
      out[living++] = children[i];
  }
  return living;
}

/* Once it stands still, so that none can come any more. Of its own children zombies too: it is to wait for them. */
static int
check_alone(const struct capture *capture, struct err *err)
{
  int beside[4], count = living_children(capture->source->init_pid, beside);
  char name[32];

  if (count < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "the sandbox's processes: %s", strerror(errno));
  for (int i = 0; i < count; i++)
    if (beside[i] != capture->pid) {
      procfs_name(beside[i], name);
      return capture_refuse(capture, err, "runs beside another process (%s)", name);
    }
  count = procfs_children(capture->pid, beside, 1);
  if (count < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "children of the process: %s", strerror(errno));
  if (count == 0)
    return 0;
  procfs_name(beside[0], name);
  return capture_refuse(capture, err, "has a child (%s)", name);
}

static int
find_process(struct capture *capture, struct err *err)
{
  int children[4];
  char path[48];

  if (fault_here(RAMET_STEP_FIND_PROCESSES, err) < 0)
    return -1;
  int count = living_children(capture->source->init_pid, children);
  if (count < 0)
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "the sandbox's processes: %s", strerror(errno));
  if (count == 0)
    return err_code(err, "unforkable", "no process runs in the sandbox");
  capture->pid = children[0];
  procfs_name(capture->pid, capture->name);
  snprintf(path, sizeof path, "/proc/%d/status", capture->pid);
  capture->status = procfs_read(path, NULL);
  if (!capture->status && !procfs_gone())
    return err_step(err, RAMET_STEP_FIND_PROCESSES, "%s: %s", path, strerror(errno));
  if (!capture->status)
    return err_code(err, "exiting", "the sandbox's process is exiting");
  /* Again when it stands still: this time so that a process in vfork(2) is not waited for. */
  return check_alone(capture, err);
}

static int
resume(struct capture *capture, struct err *err)
{
  if (!capture->threads)
    return 0;
  int result = trace_release(capture->threads, capture->thread_count, err);
  resumed_at = loop_now();
  free(capture->threads);
  capture->threads = NULL;
  return result;
}

/* A child is told of before its threads have left the restorer, whose memory is in no image. What has left stays
 * stopped; the others go on and are stopped again, later each time: on a busy machine they get nowhere at once. */
static int
leave_restorer(struct capture *capture, struct err *err)
{
  const struct capture_source *source = capture->source;

  for (long wait_ns = 200000;; wait_ns *= 2) {
    int left = 0;
    for (int i = 0; i < capture->thread_count; i++) {
      struct tracee *thread = &capture->threads[i];
      if (thread->registers.rip < source->region_start || thread->registers.rip >= source->region_end)
        continue;
      left++;
      if (trace_run_on(thread, err) < 0)
        return -1;
    }
    if (left == 0)
      return 0;
    if (trace_patience_over())
      return capture_refuse(capture, err, "executes what is left of the restorer");
    nanosleep(&(struct timespec){wait_ns / 1000000000, wait_ns % 1000000000}, NULL);
    if (trace_stop_again(capture->pid, capture->threads, &capture->thread_count, err) < 0)
      return -1;
  }
}

/* What trace.c refuses, with the process in front. */
static int
name_refusal(const struct capture *capture, struct err *err)
{
  struct err told = *err;

  if ((strcmp(told.code, "unforkable") != 0 && strcmp(told.code, "exiting") != 0) ||
      strncmp(told.text, "pid ", 4) == 0)
    return -1;
  capture_refuse(capture, err, "%s", told.text);
  memcpy(err->code, told.code, sizeof err->code);
  return -1;
}

static int
seize(struct capture *capture, struct err *err)
{
  char path[48];

  stopped_at = loop_now();
  if (trace_stop_process(capture->pid, &capture->threads, &capture->thread_count, err) < 0 ||
      leave_restorer(capture, err) < 0)
    return name_refusal(capture, err);
  if (check_alone(capture, err) < 0)
    return -1;
  if (capture->threads[0].stopped)
    return capture_refuse(capture, err, "is stopped by a signal");
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
  const char *filters = procfs_field(capture->status, "Seccomp_filters");
  if (filters && atoi(filters) > 1)
    return capture_refuse(capture, err, "has installed a seccomp filter of its own");
  return 0;
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
  struct image_header header = {.version = IMAGE_VERSION, .page = IMAGE_PAGE, .process_count = 1};
  const struct procmap *vdso = procfs_find(&capture->maps, "[vdso]");

  header.vdso_length = vdso ? vdso->end - vdso->start : 0;
  put_bytes(&capture->description, IMAGE_TAG_HEADER, &header, sizeof header);
  return capture_process(capture, err) < 0 || capture_threads(capture, err) < 0 || capture_timers(capture, err) < 0
             ? -1
             : 0;
}

static int
copy_upper(struct capture *capture, int *upper, struct treecopy_count *count, struct err *err)
{
  struct tmpfs_options options = {.mode = "0700"};

  if (fault_here(RAMET_STEP_COPY_UPPER, err) < 0)
    return -1;
  cleanup_fd int copy = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_COPY_UPPER, err);
  if (copy < 0)
    return -1;
  static const char *const dirs[] = {"upper", "shm"};
  for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
    cleanup_fd int from = openat(capture->source->upper, dirs[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0 || mkdirat(copy, dirs[i], 0700) < 0)
      return err_step(err, RAMET_STEP_COPY_UPPER, "%s: %s", dirs[i], strerror(errno));
    cleanup_fd int to = openat(copy, dirs[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0)
      return err_step(err, RAMET_STEP_COPY_UPPER, "%s: %s", dirs[i], strerror(errno));
    if (treecopy(from, to, count, RAMET_STEP_COPY_UPPER, err) < 0)
      return -1;
  }
  *upper = steal_fd(&copy);
  return 0;
}

static int
paused(struct capture *capture, int *upper, struct treecopy_count *count, struct err *err)
{
  if (seize(capture, err) < 0)
    return -1;
  /* Not before: what still runs may need this processor to stop. */
  trace_stay_here(&capture->everywhere);
  if (read_maps(capture, err) < 0 || find_syscall(capture, err) < 0 || describe(capture, err) < 0 ||
      capture_descriptors(capture, err) < 0 || capture_twin(capture, err) < 0 ||
      capture_unforked(capture, err) < 0 || capture_ipc(capture, err) < 0 ||
      copy_upper(capture, upper, count, err) < 0)
    return -1;
  return fault_here(RAMET_STEP_RESUME, err);
}

static int
take(struct capture *capture, int *upper, struct treecopy_count *count, struct err *err)
{
  struct err second;

  if (find_process(capture, err) < 0)
    return -1;
  int result = paused(capture, upper, count, err);
  /* It was killed while it stood still: whatever failed then failed for that. */
  if (result < 0 && err->step && procfs_exiting(capture->pid)) {
    capture_refuse(capture, err, "is exiting");
    memcpy(err->code, "exiting", sizeof "exiting");
  }
  if (result < 0)
    capture_drop_twin(capture);
  if (resume(capture, result < 0 ? &second : err) < 0)
    return -1;
  if (result < 0)
    return -1;
  if (CPU_COUNT(&capture->everywhere))
    sched_setaffinity(0, sizeof capture->everywhere, &capture->everywhere);
  if (!capture->parked && capture_leave_pages(capture, err) < 0)
    return -1;
  return capture_pages(capture, err) < 0 ? -1 : fault_here(RAMET_STEP_DROP_TWIN, err);
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

static int
description_file(const struct capture *capture, struct err *err)
{
  cleanup_fd int fd = memfd_create("ramet-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  if (fault_here(RAMET_STEP_IMAGE, err) < 0)
    return -1;
  if (capture->description.failed || fd < 0 ||
      write(fd, capture->description.data, capture->description.length) != (ssize_t)capture->description.length)
    return err_step(err, RAMET_STEP_IMAGE, "write the description: %s", strerror(errno));
  if (finish_file(&fd, true, RAMET_STEP_IMAGE, err) < 0)
    return -1;
  return steal_fd(&fd);
}

static void
answer(int channel, struct capture *capture, int upper, const struct treecopy_count *count, int result,
       struct err *err)
{
  cleanup_writer struct writer writer = {0};
  int fds[3] = {-1, -1, upper};

  /* What was refused before the threads were looked at leaves them as they were. */
  if (result == 0 || capture->restarted.length)
    put_bytes(&writer, RAMET_TAG_RESTARTED, capture->restarted.data, capture->restarted.length);
  if (result == 0 && finish_file(&capture->pages, true, RAMET_STEP_IMAGE, err) == 0)
    fds[0] = description_file(capture, err);
  fds[1] = capture->pages;
  if (fds[0] < 0) {
    put_err(&writer, err);
    if (frame_send(channel, RAMET_ERROR, 0, &writer, NULL, 0) < 0)
      _exit(EXIT_DEFECT);
    return;
  }
  put_u64(&writer, RAMET_TAG_PAUSE_NS, resumed_at - stopped_at);
  put_u64(&writer, RAMET_TAG_MEMORY_BYTES, capture->memory_bytes);
  put_u64(&writer, RAMET_TAG_FILE_BYTES, count->bytes);
  put_u32(&writer, RAMET_TAG_PROCESS_COUNT, 1);
  put_u32(&writer, RAMET_TAG_BY_TWIN, capture->parked);
  if (capture->leaving)
    put_u32(&writer, RAMET_TAG_PID, (uint32_t)capture->twin);
  if (frame_send(channel, RAMET_OK, 0, &writer, fds, 3) < 0)
    _exit(EXIT_DEFECT);
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

/* All records but those of memory, which are read from the stem: it never runs, so there is no hurry. */
static int
copy_records(struct capture *capture, struct span original, struct err *err)
{
  struct attr_walk walk = {original};
  struct span value;
  uint16_t tag;
  int more;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0)
    if (tag != IMAGE_TAG_MAPPING && tag != IMAGE_TAG_RUN)
      put_bytes(&capture->description, tag, value.data, value.length);
  return more;
}

static int
export_stem(struct capture *capture, const struct export_source *source, struct err *err)
{
  if (fault_here(RAMET_STEP_EXPORT, err) < 0 || copy_records(capture, source->original, err) < 0 ||
      procfs_maps(source->stem_pid, &capture->maps, RAMET_STEP_EXPORT, err) < 0)
    return -1;
  /* Contents of open files keep their places in front. */
  struct stat st;
  uint64_t offset;
  if (fstat(source->pages, &st) < 0)
    return err_step(err, RAMET_STEP_EXPORT, "the page file: %s", strerror(errno));
  if (st.st_size && capture_content(capture, source->pages, 0, (uint64_t)st.st_size, &offset, err) < 0)
    return -1;
  return capture_pages(capture, err);
}

void
export_main(const struct export_source *source, int channel)
{
  struct capture_source as_source = {.parent = source->image,
                                     .stem = source->image,
                                     .region_start = source->region_start,
                                     .region_end = source->region_end};
  struct capture capture = {
      .source = &as_source, .pid = source->stem_pid, .twin = source->stem_pid, .memory = -1, .channel = channel};
  struct err err = {0};
  cleanup_writer struct writer writer = {0};
  int fds[2];

  title_set("ramet-exporter");
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  capture.pages = source->directory < 0 ? memfd_create("ramet-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                        : openat(source->directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  int result = capture.pages < 0 ? err_step(&err, RAMET_STEP_EXPORT, "a page file: %s", strerror(errno))
                                 : export_stem(&capture, source, &err);
  if (result == 0)
    result = finish_file(&capture.pages, source->directory < 0, RAMET_STEP_EXPORT, &err);
  fds[0] = result < 0 ? -1 : description_file(&capture, &err);
  fds[1] = capture.pages;
  if (fds[0] < 0)
    put_err(&writer, &err);
  else
    put_u64(&writer, RAMET_TAG_MEMORY_BYTES, capture.memory_bytes);
  if (frame_send(channel, fds[0] < 0 ? RAMET_ERROR : RAMET_OK, 0, &writer, fds, fds[0] < 0 ? 0 : 2) < 0)
    _exit(EXIT_DEFECT);
  _exit(0);
}

void
capture_main(const struct capture_source *source, enum ramet_step fault, int channel)
{
  struct capture capture = {.source = source, .memory = -1, .pages = -1, .channel = channel};
  struct treecopy_count count = {0};
  struct err err = {0};
  int upper = -1;

  title_set("ramet-tracer");
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  fault_arm(fault);
  capture.pages = memfd_create("ramet-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int result = capture.pages < 0 ? err_step(&err, RAMET_STEP_IMAGE, "memfd_create: %s", strerror(errno))
                                 : trace_setup(source->patience_ms, &err);
  if (result == 0)
    result = take(&capture, &upper, &count, &err);
  answer(channel, &capture, upper, &count, result, &err);
  if (result == 0 && capture.leaving)
    await_stem(channel);
  capture_drop_twin(&capture);
  _exit(0);
}
