/* SPDX-License-Identifier: Apache-2.0
 * Memory: the frozen twin that keeps the instant, and the pages read from it at leisure. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "overdue.h"

#ifndef PAGEMAP_SCAN
/* linux/fs.h of Linux 6.7; struct page_region is struct scan_region. */
struct pm_scan_arg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
      category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_FILE (1 << 2)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#define PAGE_IS_PFNZERO (1 << 5)
#endif
#ifndef PAGE_IS_GUARD
#define PAGE_IS_GUARD (1 << 8)
#endif

#define BOUNCE (1u << 20)

/* ---- the twin ------------------------------------------------------------------------------------------------- */

static int
reap_helper(struct capture *capture, long inside, struct err *err)
{
  /* A clone without a signal is waited for with __WALL only, and by number: the guest has children of its own. */
  const uint64_t args[6] = {(uint64_t)inside, 0, __WALL};
  long result;

  trace_kill(capture->helper);
  if (trace_syscall(&capture->threads[0], capture->syscall_address, SYS_wait4, args, &result,
                    RAMET_STEP_FROZEN_TWIN, err) < 0)
    return -1;
  if (result != inside) {
    errno = result < 0 ? (int)-result : ECHILD;
    return err_step(err, RAMET_STEP_FROZEN_TWIN, "the helper is not reaped: %s", strerror(errno));
  }
  return 0;
}

static uint64_t
size_of(int pid)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  cleanup_free char *text = procfs_read(path, NULL);
  return text ? strtoull(text, NULL, 10) : 0;
}

/* A fork is smaller by the areas that are kept from forks. */
bool
capture_twin_is_whole(const struct capture *capture)
{
  uint64_t size = size_of(capture->pid);

  return size && size == size_of(capture->twin);
}

static bool
lacks_twin(struct capture *capture, enum no_twin why)
{
  capture->no_twin = why;
  return false;
}

/* The parked twin has the same memory unless the guest has called exec since. Core traces it, so core forks it. */
static bool
ask_for_parked(struct capture *capture)
{
  cleanup_writer struct writer writer = {0};
  cleanup_free uint8_t *buffer = malloc(RAMET_FRAME_BYTES);
  struct frame frame;
  struct err ignored;
  struct attr_walk walk;
  struct span value;
  uint32_t pid = 0;
  uint16_t tag;
  int channel = capture->tree->channel;
  struct pollfd polled = {channel, POLLIN, 0};

  if (capture != capture->tree->processes[0])
    return lacks_twin(capture, TWIN_HAS_PARENT);
  if (!capture->source->twin)
    return lacks_twin(capture, TWIN_NONE);
  if (syscall(SYS_kcmp, capture->pid, capture->source->twin, KCMP_VM, 0, 0) != 0)
    return lacks_twin(capture, TWIN_REPLACED);
  lacks_twin(capture, TWIN_REFUSED);
  if (!buffer)
    return false;
  put_u64(&writer, RAMET_TAG_ADDRESS, capture->syscall_address);
  if (frame_send(channel, RAMET_TRACER_TWIN, 0, &writer, NULL, 0) < 0)
    return false;
  while (poll(&polled, 1, -1) < 0 && errno == EINTR)
    continue;
  if (frame_receive(channel, buffer, &frame, &ignored) != FRAME_GOT)
    return false;
  walk.rest = frame.payload;
  if (frame.kind == RAMET_OK && attr_next(&walk, &tag, &value, &ignored) == 1 && span_u32(value, &pid) == 0)
    capture->twin = (int)pid;
  frame_release(&frame);
  capture->parked = capture->twin > 0;
  return capture->parked;
}

/* What is copied sooner than a copy is made that need not be copied. The first process always has one, from which its
 * stem takes the pages. */
#define SMALL_KIB 1024

static bool
is_small(const struct capture *capture)
{
  const char *own = procfs_field(capture->status, "RssAnon"), *swapped = procfs_field(capture->status, "VmSwap");

  return capture != capture->tree->processes[0] && own && swapped &&
         strtoull(own, NULL, 10) + strtoull(swapped, NULL, 10) < SMALL_KIB;
}

/* The guest makes its copy itself, and is held to its limits as ever. */
static int
name_limit(const struct capture *capture, struct err *err)
{
  if (err->number != EAGAIN)
    return -1;
  memset(err, 0, sizeof *err);
  return capture_refuse(capture, err, "is at its limit of processes");
}

/* A fork of the guest would be its child, or with CLONE_PARENT its parent's: known to somebody who waits. So the
 * guest clones a helper that shares its memory and sends no signal; the helper clones the twin and dies, and the
 * twin is init's. Descriptors are shared, not copied: else the twin would hold ends of pipes open. */
int
capture_twin(struct capture *capture, struct err *err)
{
  struct tracee helper;
  struct err second;
  long inside = 0, twin_inside;

  if (ask_for_parked(capture)) {
    if (capture_twin_is_whole(capture)) {
      capture->froze = true;
      return 0;
    }
    capture->parked = false;
    capture->no_twin = TWIN_LESS;
  }
  if (is_small(capture))
    return 0;
  if (fault_here(RAMET_STEP_FROZEN_TWIN, err) < 0)
    return -1;
  if (trace_clone(&capture->threads[0], capture->syscall_address, CLONE_VM | CLONE_FILES | CLONE_FS,
                  &capture->helper, &inside, RAMET_STEP_FROZEN_TWIN, err) < 0)
    return name_limit(capture, err);
  int made = trace_adopt(capture->helper, &helper, err);
  if (made == 0)
    made = trace_clone(&helper, capture->syscall_address, CLONE_FILES | CLONE_FS, &capture->twin, &twin_inside,
                       RAMET_STEP_FROZEN_TWIN, err);
  if (made == 0)
    made = trace_adopt(capture->twin, &capture->twin_thread, err);
  if (reap_helper(capture, inside, made < 0 ? &second : err) < 0)
    return -1;
  capture->froze = made == 0;
  return made < 0 ? name_limit(capture, err) : 0;
}

void
capture_drop_twin(struct capture *capture)
{
  if (capture->twin > 0 && !capture->parked)
    trace_kill(capture->twin);
  capture->twin = 0;
}

int
capture_leave_pages(struct capture *capture, struct err *err)
{
  if (sys_ptrace(PTRACE_SETOPTIONS, capture->twin, 0, PTRACE_O_EXITKILL) < 0)
    return err_step(err, RAMET_STEP_FROZEN_TWIN, "bind the frozen copy to the tracer: %s", strerror(errno));
  capture->leaving = true;
  return 0;
}

/* ---- the page file -------------------------------------------------------------------------------------------- */

static uint8_t *bounce;

int
capture_setup_pages(struct err *err)
{
  if (!bounce)
    bounce = mmap(NULL, BOUNCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (bounce == MAP_FAILED) {
    bounce = NULL;
    return err_code(err, "internal", "no memory to copy pages");
  }
  return 0;
}

static int
write_pages(struct capture *capture, const uint8_t *bytes, size_t length, struct err *err)
{
  struct capture_tree *tree = capture->tree;

  if (pwrite(tree->pages, bytes, length, (off_t)tree->pages_end) != (ssize_t)length)
    return err_step(err, RAMET_STEP_PAGES, "keep pages: %s", strerror(errno));
  tree->pages_end += length;
  return 0;
}

static int
copy_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  while (start < end) {
    if (overdue_check(RAMET_STEP_PAGES, err) < 0)
      return -1;
    size_t want = end - start < BOUNCE ? (size_t)(end - start) : BOUNCE;
    ssize_t got = pread(memory, bounce, want, (off_t)start);
    if (got <= 0)
      return err_step(err, RAMET_STEP_PAGES, "read memory at %#llx: %s", (unsigned long long)start,
                      strerror(errno));
    if (write_pages(capture, bounce, (size_t)got, err) < 0)
      return -1;
    start += (uint64_t)got;
  }
  return 0;
}

/* In the pause runs are kept aside: their mapping's record is written later. */
static int
put_record(struct capture *capture, const struct image_run *run, struct err *err)
{
  if (!capture->keeping) {
    put_bytes(&capture->description, IMAGE_TAG_RUN, run, sizeof *run);
    return 0;
  }
  struct image_run *grown = realloc(capture->kept, (capture->kept_count + 1) * sizeof *grown);
  if (!grown)
    return err_code(err, "internal", "no memory for pages that are kept");
  capture->kept = grown;
  grown[capture->kept_count++] = *run;
  return 0;
}

static void
count_copied(struct capture *capture, uint64_t bytes)
{
  capture->copied += bytes;
  capture->tree->memory_bytes += bytes;
}

int
capture_put_run(struct capture *capture, uint64_t start, size_t length, const uint8_t *bytes, struct err *err)
{
  struct image_run run = {
      .address = start, .length = length, .offset = bytes ? capture->tree->pages_end : IMAGE_INHERITED};

  if (bytes && write_pages(capture, bytes, length, err) < 0)
    return -1;
  count_copied(capture, bytes ? length : 0);
  return put_record(capture, &run, err);
}

int
capture_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  return capture->heir && !capture->keeping ? capture_heirs_run(capture, memory, start, end, err)
                                            : capture_copy_run(capture, memory, start, end, err);
}

int
capture_copy_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  bool leave = capture->leaving && capture->leaves && !capture->keeping;
  struct image_run run = {
      .address = start, .length = end - start, .offset = leave ? IMAGE_FROZEN : capture->tree->pages_end};

  if (!leave && copy_run(capture, memory, start, end, err) < 0)
    return -1;
  capture->left |= leave;
  count_copied(capture, end - start);
  return put_record(capture, &run, err);
}

static int
put_region(struct capture *capture, int memory, uint64_t start, uint64_t end, uint64_t categories, struct err *err)
{
  struct image_run guard = {.address = start, .length = end - start, .offset = IMAGE_GUARD};

  return categories & PAGE_IS_GUARD ? put_record(capture, &guard, err)
                                    : capture_run(capture, memory, start, end, err);
}

int
capture_content(struct capture *capture, int fd, uint64_t from, uint64_t length, uint64_t *offset, struct err *err)
{
  if (capture_setup_pages(err) < 0)
    return -1;
  struct capture_tree *tree = capture->tree;

  *offset = tree->pages_end;
  for (uint64_t at = 0; at < length;) {
    if (overdue_check(RAMET_STEP_PAGES, err) < 0)
      return -1;
    ssize_t got = pread(fd, bounce, length - at < BOUNCE ? length - at : BOUNCE, (off_t)(from + at));
    if (got <= 0)
      return err_step(err, RAMET_STEP_PAGES, "read a file's content: %s", got ? strerror(errno) : "it is shorter");
    if (write_pages(capture, bounce, (size_t)got, err) < 0)
      return -1;
    at += (uint64_t)got;
  }
  tree->pages_end = (tree->pages_end + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
  return 0;
}

/* ---- written pages ---------------------------------------------------------------------------------------------------- */

int
capture_scan_open(struct scan *scan, int pid, uint64_t start, uint64_t end, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/pagemap", pid);
  scan->pagemap = open(path, O_RDONLY | O_CLOEXEC);
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  scan->memory = open(path, O_RDONLY | O_CLOEXEC);
  scan->next = start;
  scan->end = end;
  scan->count = scan->at = 0;
  if (scan->pagemap < 0 || scan->memory < 0)
    return err_step(err, RAMET_STEP_PAGES, "open %s: %s", path, strerror(errno));
  return 0;
}

void
capture_scan_close(struct scan *scan)
{
  close_fd(&scan->pagemap);
  close_fd(&scan->memory);
}

/* PAGE_IS_GUARD came with Linux 6.15, guard pages with 6.13. */
static uint64_t guard_category = PAGE_IS_GUARD;

/* Private pages that were written: not of a file, not the zero page. */
static int
scan_more(struct scan *scan, struct err *err)
{
  struct pm_scan_arg arg = {
      .size = sizeof arg,
      .start = scan->next,
      .end = scan->end,
      .vec = (uint64_t)(uintptr_t)scan->regions,
      .vec_len = SCAN_REGIONS,
      .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO,
      .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO,
      .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
      .return_mask = guard_category,
  };

  scan->count = ioctl(scan->pagemap, PAGEMAP_SCAN, &arg);
  if (scan->count < 0 && errno == EINVAL && guard_category) {
    guard_category = 0;
    return scan_more(scan, err);
  }
  if (scan->count < 0)
    return err_step(err, RAMET_STEP_PAGES, "scan the page tables: %s", strerror(errno));
  scan->at = 0;
  /* Not walk_end: the kernel walks in pieces, and after the last one it tells where that began. */
  scan->next = scan->count < SCAN_REGIONS ? scan->end : scan->regions[scan->count - 1].end;
  return 0;
}

/* The part of the mapping that the scan found, run by run. */
int
capture_written(struct capture *capture, struct scan *scan, const struct procmap *map, struct err *err)
{
  for (;;) {
    if (scan->at == scan->count) {
      if (scan->next >= scan->end)
        return 0;
      if (scan_more(scan, err) < 0)
        return -1;
      continue;
    }
    struct scan_region *region = &scan->regions[scan->at];
    if (region->end <= map->start) {
      scan->at++;
      continue;
    }
    if (region->start >= map->end)
      return 0;
    uint64_t start = region->start > map->start ? region->start : map->start;
    uint64_t end = region->end < map->end ? region->end : map->end;
    if (put_region(capture, scan->memory, start, end, region->categories, err) < 0)
      return -1;
    if (region->end > map->end)
      return 0;
    scan->at++;
  }
}
