/* SPDX-License-Identifier: Apache-2.0
 * Memory: the frozen twin that keeps the instant, and the pages read from it at leisure. */
#define _GNU_SOURCE
#include "capture.h"

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

#ifndef PAGEMAP_SCAN
/* linux/fs.h of Linux 6.7. */
struct page_region {
  uint64_t start, end, categories;
};
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

#define REGIONS_AT_ONCE 4096
#define BOUNCE (1u << 20)
/* Above the highest address of user space with four-level page tables. */
#define ADDRESS_END 0x7ffffffff000

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
  struct pollfd polled = {capture->channel, POLLIN, 0};

  if (!capture->source->twin || !buffer ||
      syscall(SYS_kcmp, capture->pid, capture->source->twin, KCMP_VM, 0, 0) != 0)
    return false;
  put_u64(&writer, RAMET_TAG_ADDRESS, capture->syscall_address);
  if (frame_send(capture->channel, RAMET_TRACER_TWIN, 0, &writer, NULL, 0) < 0)
    return false;
  while (poll(&polled, 1, -1) < 0 && errno == EINTR)
    continue;
  if (frame_receive(capture->channel, buffer, &frame, &ignored) != FRAME_GOT)
    return false;
  walk.rest = frame.payload;
  if (frame.kind == RAMET_OK && attr_next(&walk, &tag, &value, &ignored) == 1 && span_u32(value, &pid) == 0)
    capture->twin = (int)pid;
  frame_release(&frame);
  capture->parked = capture->twin > 0;
  return capture->parked;
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

  if (ask_for_parked(capture))
    return 0;
  if (fault_here(RAMET_STEP_FROZEN_TWIN, err) < 0)
    return -1;
  if (trace_clone(&capture->threads[0], capture->syscall_address, CLONE_VM | CLONE_FILES | CLONE_FS,
                  &capture->helper, &inside, RAMET_STEP_FROZEN_TWIN, err) < 0)
    return -1;
  int made = trace_adopt(capture->helper, &helper, err);
  if (made == 0)
    made = trace_clone(&helper, capture->syscall_address, CLONE_FILES | CLONE_FS, &capture->twin, &twin_inside,
                       RAMET_STEP_FROZEN_TWIN, err);
  if (made == 0)
    made = trace_adopt(capture->twin, &capture->twin_thread, err);
  if (reap_helper(capture, inside, made < 0 ? &second : err) < 0)
    return -1;
  return made;
}

void
capture_drop_twin(struct capture *capture)
{
  if (capture->twin > 0 && !capture->parked)
    trace_kill(capture->twin);
  capture->twin = 0;
}

/* ---- the page file -------------------------------------------------------------------------------------------- */

static uint8_t *bounce;

static int
setup_bounce(struct err *err)
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
write_pages(struct capture *capture, size_t length, struct err *err)
{
  if (pwrite(capture->pages, bounce, length, (off_t)capture->pages_end) != (ssize_t)length)
    return err_step(err, RAMET_STEP_PAGES, "keep pages: %s", strerror(errno));
  capture->pages_end += length;
  return 0;
}

static int
copy_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  while (start < end) {
    size_t want = end - start < BOUNCE ? (size_t)(end - start) : BOUNCE;
    ssize_t got = pread(memory, bounce, want, (off_t)start);
    if (got <= 0)
      return err_step(err, RAMET_STEP_PAGES, "read memory at %#llx: %s", (unsigned long long)start,
                      strerror(errno));
    if (write_pages(capture, (size_t)got, err) < 0)
      return -1;
    start += (uint64_t)got;
  }
  return 0;
}

static int
put_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  struct image_run run = {.address = start, .length = end - start, .offset = capture->pages_end};

  if (copy_run(capture, memory, start, end, err) < 0)
    return -1;
  capture->memory_bytes += end - start;
  put_bytes(&capture->description, IMAGE_TAG_RUN, &run, sizeof run);
  return 0;
}

int
capture_content(struct capture *capture, int fd, uint64_t length, uint64_t *offset, struct err *err)
{
  if (setup_bounce(err) < 0)
    return -1;
  *offset = capture->pages_end;
  for (uint64_t at = 0; at < length;) {
    ssize_t got = pread(fd, bounce, length - at < BOUNCE ? length - at : BOUNCE, (off_t)at);
    if (got <= 0)
      return err_step(err, RAMET_STEP_PAGES, "read a file's content: %s", got ? strerror(errno) : "it is shorter");
    if (write_pages(capture, (size_t)got, err) < 0)
      return -1;
    at += (uint64_t)got;
  }
  capture->pages_end = (capture->pages_end + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
  return 0;
}

/* ---- mappings ------------------------------------------------------------------------------------------------- */

static bool
ends_with(const char *text, const char *end)
{
  size_t a = strlen(text), b = strlen(end);

  return a >= b && strcmp(text + a - b, end) == 0;
}

static uint32_t
backing_of(const struct procmap *map)
{
  bool has_name = map->name[0] == '/';
  bool nameless = ends_with(map->name, " (deleted)");

  if (strncmp(map->name, "[vvar", 5) == 0 || strcmp(map->name, "[vdso]") == 0)
    return IMAGE_SPECIAL;
  if (map->shared)
    return has_name && !nameless ? IMAGE_SHARED_FILE : IMAGE_SHARED;
  return has_name && map->inode && !nameless ? IMAGE_FILE : IMAGE_ANONYMOUS;
}

/* Private pages of a file that has no name any more: no layer holds them, so all are kept. */
static bool
wants_all_pages(const struct procmap *map)
{
  return !map->shared && map->inode && ends_with(map->name, " (deleted)") && (map->protection & PROT_READ);
}

static const struct {
  const char *text;
  uint32_t flag;
} vm_flags[] = {
    {"gd", IMAGE_GROWS_DOWN}, {"dc", IMAGE_DONTFORK},  {"wf", IMAGE_WIPEONFORK},
    {"dd", IMAGE_DONTDUMP},   {"lo", IMAGE_LOCKED},    {"hg", IMAGE_HUGE},
    {"nh", IMAGE_NO_HUGE},    {"mg", IMAGE_MERGEABLE}, {"dp", IMAGE_DROPPABLE},
};

static uint32_t
parse_flags(const char *line)
{
  uint32_t flags = 0;

  for (size_t i = 0; i < sizeof vm_flags / sizeof vm_flags[0]; i++)
    for (const char *at = line; *at && *at != '\n'; at += 3)
      if (at[0] == vm_flags[i].text[0] && at[1] == vm_flags[i].text[1])
        flags |= vm_flags[i].flag;
  return flags;
}

/* VmFlags are in smaps only, which walks the page tables: read from the twin, after the pause. */
struct flag_reader {
  char *text, *at;
};

static uint32_t
flags_at(struct flag_reader *reader, uint64_t start)
{
  while (reader->at && *reader->at) {
    char *end;
    uint64_t address = strtoull(reader->at, &end, 16);
    if (address > start)
      return IMAGE_DONTFORK; /* the twin does not have it */
    char *flags = strstr(end, "VmFlags: ");
    if (!flags)
      break;
    char *next = strchr(flags, '\n');
    reader->at = next ? next + 1 : NULL;
    if (address == start)
      return parse_flags(flags + 9);
  }
  return 0;
}

/* ---- pages ---------------------------------------------------------------------------------------------------- */

struct scan {
  int pagemap, memory;
  struct page_region regions[REGIONS_AT_ONCE];
  long count, at;
  uint64_t next;
};

/* Private pages that were written: not of a file, not the zero page. */
static int
scan_more(struct scan *scan, struct err *err)
{
  struct pm_scan_arg arg = {
      .size = sizeof arg,
      .start = scan->next,
      .end = ADDRESS_END,
      .vec = (uint64_t)(uintptr_t)scan->regions,
      .vec_len = REGIONS_AT_ONCE,
      .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO,
      .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO,
      .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
      .return_mask = PAGE_IS_FILE,
  };

  scan->count = ioctl(scan->pagemap, PAGEMAP_SCAN, &arg);
  if (scan->count < 0)
    return err_step(err, RAMET_STEP_PAGES, "scan the page tables: %s", strerror(errno));
  scan->at = 0;
  scan->next = arg.walk_end;
  return 0;
}

/* The part of the mapping that the scan found, run by run. */
static int
put_written(struct capture *capture, struct scan *scan, const struct procmap *map, struct err *err)
{
  for (;;) {
    if (scan->at == scan->count) {
      if (scan->next >= ADDRESS_END)
        return 0;
      if (scan_more(scan, err) < 0)
        return -1;
      continue;
    }
    struct page_region *region = &scan->regions[scan->at];
    if (region->end <= map->start) {
      scan->at++;
      continue;
    }
    if (region->start >= map->end)
      return 0;
    uint64_t start = region->start > map->start ? region->start : map->start;
    uint64_t end = region->end < map->end ? region->end : map->end;
    if (put_run(capture, scan->memory, start, end, err) < 0)
      return -1;
    if (region->end > map->end)
      return 0;
    scan->at++;
  }
}

static bool
path_ends_with(struct span path, const char *end)
{
  size_t length = strlen(end);

  return path.length >= length && memcmp(path.data + path.length - length, end, length) == 0;
}

/* In a fork, files are mapped from core's own mounts, and /proc names them from the top of those: what of the name is
 * missing in front the parent's image tells. Neighbours of the parent's may have become one mapping. */
static struct span
inherited_path(const struct image *parent, const struct procmap *map)
{
  const struct process_image *process = parent ? &parent->processes[0] : NULL;

  for (uint32_t i = 0; process && map->inode && i < process->mapping_count; i++) {
    const struct image_mapping *mapping = &process->mappings[i];
    if (mapping->start > map->start || mapping->end <= map->start)
      continue;
    bool same = (mapping->backing == IMAGE_FILE || mapping->backing == IMAGE_SHARED_FILE) &&
                map->offset - mapping->offset == map->start - mapping->start &&
                path_ends_with(process->paths[i], map->name);
    return same ? process->paths[i] : (struct span){0};
  }
  return (struct span){0};
}

static int
put_mapping(struct capture *capture, struct scan *scan, struct flag_reader *flags, const struct procmap *map,
            struct err *err)
{
  struct {
    struct image_mapping mapping;
    char path[4096];
  } record = {.mapping = {.start = map->start,
                          .end = map->end,
                          .offset = map->offset,
                          .protection = map->protection,
                          .backing = backing_of(map),
                          .flags = flags_at(flags, map->start),
                          .layer = -1}};
  struct span path = inherited_path(capture->source->parent, map);

  if (path.length == 0)
    path = (struct span){(const uint8_t *)map->name, (uint32_t)strlen(map->name)};
  size_t length = path.length;
  if (length >= sizeof record.path)
    return capture_refuse(capture, err, "maps a file whose path is too long");
  memcpy(record.path, path.data, length);
  if (wants_all_pages(map))
    record.mapping.backing = IMAGE_ANONYMOUS;
  put_bytes(&capture->description, IMAGE_TAG_MAPPING, &record, sizeof record.mapping + length);
  if (!scan || record.mapping.backing == IMAGE_SPECIAL || record.mapping.backing == IMAGE_SHARED_FILE)
    return 0;
  if (wants_all_pages(map))
    return put_run(capture, scan->memory, map->start, map->end, err);
  if (map->shared)
    return 0; /* kept by capture_shared(), in the pause */
  return put_written(capture, scan, map, err);
}

static bool
is_guests(const struct capture *capture, const struct procmap *map)
{
  return strcmp(map->name, "[vsyscall]") != 0 &&
         (map->start >= capture->source->region_end || map->end <= capture->source->region_start);
}

/* The copy of a parked twin has the pages: the image says only what is mapped where. */
static int
put_layout(struct capture *capture, struct err *err)
{
  struct flag_reader no_flags = {NULL, NULL};

  for (uint32_t i = 0; i < capture->maps.count; i++)
    if (is_guests(capture, &capture->maps.items[i]) &&
        put_mapping(capture, NULL, &no_flags, &capture->maps.items[i], err) < 0)
      return -1;
  return 0;
}

int
capture_pages(struct capture *capture, struct err *err)
{
  char path[48];
  struct scan scan = {.pagemap = -1, .memory = -1, .next = IMAGE_PAGE};

  if (fault_here(RAMET_STEP_PAGES, err) < 0 || setup_bounce(err) < 0)
    return -1;
  if (capture->parked)
    return put_layout(capture, err);
  snprintf(path, sizeof path, "/proc/%d/pagemap", capture->twin);
  cleanup_fd int pagemap = open(path, O_RDONLY | O_CLOEXEC);
  snprintf(path, sizeof path, "/proc/%d/mem", capture->twin);
  cleanup_fd int memory = open(path, O_RDONLY | O_CLOEXEC);
  snprintf(path, sizeof path, "/proc/%d/smaps", capture->twin);
  cleanup_free char *smaps = procfs_read(path, NULL);
  if (pagemap < 0 || memory < 0 || !smaps)
    return err_step(err, RAMET_STEP_PAGES, "open %s: %s", path, strerror(errno));
  scan.pagemap = pagemap;
  scan.memory = memory;
  struct flag_reader flags = {smaps, smaps};
  for (uint32_t i = 0; i < capture->maps.count; i++) {
    const struct procmap *map = &capture->maps.items[i];
    if (!is_guests(capture, map))
      continue;
    if (put_mapping(capture, &scan, &flags, map, err) < 0)
      return -1;
  }
  return 0;
}

/* ---- what the twin does not keep ------------------------------------------------------------------------------- */

static uint64_t
size_of(int pid)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  cleanup_free char *text = procfs_read(path, NULL);
  return text ? strtoull(text, NULL, 10) : 0;
}

/* In the pause: memory that is shared goes on changing, and MADV_DONTFORK areas are not in the twin at all. */
int
capture_unforked(struct capture *capture, struct err *err)
{
  for (uint32_t i = 0; i < capture->maps.count; i++) {
    const struct procmap *map = &capture->maps.items[i];
    if (backing_of(map) == IMAGE_SHARED)
      return capture_refuse(capture, err, "shares memory (%s)", map->name);
  }
  if (size_of(capture->pid) != size_of(capture->twin))
    return capture_refuse(capture, err, "has memory that it keeps from forks (MADV_DONTFORK)");
  return 0;
}
