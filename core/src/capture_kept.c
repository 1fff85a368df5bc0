/* SPDX-License-Identifier: Apache-2.0
 * In the pause, behind the twin: what a twin does not keep. Shared memory goes on changing; areas with MADV_DONTFORK
 * are not in it; locks of memory end at a fork. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

/* ---- objects -------------------------------------------------------------------------------------------------- */

int
capture_note_object(struct capture_tree *tree, const char *name, uint64_t inode, uint32_t id, struct err *err)
{
  struct shared_object *grown = realloc(tree->objects, (tree->object_count + 1) * sizeof *grown);

  if (!grown)
    return err_code(err, "internal", "no memory for shared memory");
  tree->objects = grown;
  grown[tree->object_count++] = (struct shared_object){.id = id, .inode = inode, .name = strdup(name)};
  return grown[tree->object_count - 1].name ? 0 : err_code(err, "internal", "no memory for shared memory");
}

uint32_t
capture_object(const struct capture *capture, const struct procmap *map)
{
  const struct capture_tree *tree = capture->tree;

  for (uint32_t i = 0; i < tree->object_count; i++)
    if (tree->objects[i].inode == map->inode && strcmp(tree->objects[i].name, map->name) == 0)
      return tree->objects[i].id + 1;
  return 0;
}

/* ---- what is in shared memory --------------------------------------------------------------------------------- */

static bool
swap_exists(void)
{
  struct sysinfo info;

  return sysinfo(&info) < 0 || info.totalswap > 0;
}

/* Which pages of the object exist. Reading a hole through /proc would fill it; mincore(2) looks into the page cache,
 * so it finds pages that this process has never touched, but none in swap. */
static int
ask_present(struct capture *capture, uint64_t start, uint32_t pages, uint8_t *out, struct err *err)
{
  const uint64_t args[6] = {start, (uint64_t)pages * IMAGE_PAGE};

  if (swap_exists()) {
    memset(out, 1, pages);
    return 0;
  }
  return capture_ask(capture, &capture->threads[0], SYS_mincore, args, 2, out, pages, err);
}

struct object_writer {
  struct capture *capture;
  const struct procmap *map;
  struct err *err;
};

static int
put_extent(struct object_writer *w, uint64_t start, uint64_t end)
{
  struct capture *capture = w->capture;
  struct image_extent extent = {.offset = w->map->offset + (start - w->map->start), .length = end - start};

  capture->keeping = true;
  uint32_t before = capture->kept_count;
  int result = capture_run(capture, capture->memory, start, end, w->err);
  capture->keeping = false;
  if (result < 0)
    return -1;
  /* A run of a mapping would be the child's own: here it is the object's. */
  extent.page_offset = capture->kept[before].offset;
  capture->kept_count = before;
  put_bytes(&capture->tree->files, IMAGE_TAG_EXTENT, &extent, sizeof extent);
  return 0;
}

/* Pages of one mapping from `start` on, in pieces that one page of answers describes. */
static int
put_present(struct object_writer *w, uint64_t start)
{
  static uint8_t present[IMAGE_PAGE];

  for (uint64_t at = start; at < w->map->end;) {
    uint64_t left = (w->map->end - at) / IMAGE_PAGE;
    uint32_t pages = left < sizeof present ? (uint32_t)left : (uint32_t)sizeof present;
    if (ask_present(w->capture, at, pages, present, w->err) < 0)
      return -1;
    for (uint32_t i = 0; i < pages;) {
      uint32_t first = i;
      while (i < pages && present[i] & 1)
        i++;
      if (i > first && put_extent(w, at + first * (uint64_t)IMAGE_PAGE, at + i * (uint64_t)IMAGE_PAGE) < 0)
        return -1;
      while (i < pages && !(present[i] & 1))
        i++;
    }
    at += (uint64_t)pages * IMAGE_PAGE;
  }
  return 0;
}

static int
refuse_object(const struct capture *capture, const struct procmap *map, struct err *err)
{
  if (strncmp(map->name, "/SYSV", 5) == 0)
    return capture_refuse(capture, err, "shares System V memory");
  if (strncmp(map->name, "/[aio]", 6) == 0)
    return capture_refuse(capture, err, "has a context for asynchronous input and output");
  if (strncmp(map->name, "anon_inode:", 11) == 0)
    return capture_refuse(capture, err, "maps %s", map->name + 11);
  return 0;
}

static bool
same_object(const struct procmap *a, const struct procmap *b)
{
  return a->shared && b->shared && a->inode == b->inode && a->major == b->major && a->minor == b->minor &&
         strcmp(a->name, b->name) == 0;
}

/* The part of an object that one process maps. */
struct part {
  struct capture *capture;
  const struct procmap *map;
};

/* The mapping of the same object, in any process, that begins next at or behind `offset`, or reaches over it. */
static struct part
next_part(const struct capture_tree *tree, const struct procmap *first, uint64_t offset)
{
  struct part best = {0};

  for (int p = 0; p < tree->count; p++)
    for (uint32_t i = 0; i < tree->processes[p]->maps.count; i++) {
      const struct procmap *map = &tree->processes[p]->maps.items[i];
      if (same_object(map, first) && map->offset + (map->end - map->start) > offset &&
          (!best.map || map->offset < best.map->offset))
        best = (struct part){tree->processes[p], map};
    }
  return best;
}

static uint64_t
size_of_object(const struct capture_tree *tree, const struct procmap *first)
{
  uint64_t size = 0;

  for (struct part part; (part = next_part(tree, first, size)).map;)
    size = part.map->offset + (part.map->end - part.map->start);
  return size;
}

static int
keep_object(struct capture *capture, const struct procmap *first, struct err *err)
{
  struct capture_tree *tree = capture->tree;
  uint32_t id = IMAGE_OBJECT_IDS + tree->object_count;
  struct image_description out = {
      .id = id, .kind = IMAGE_UNLINKED, .flags = O_RDWR, .value = {1, 0, size_of_object(tree, first)}};
  uint64_t offset = 0;

  if (refuse_object(capture, first, err) < 0 || capture_setup_pages(err) < 0 ||
      capture_note_object(tree, first->name, first->inode, id, err) < 0)
    return -1;
  put_bytes(&tree->files, IMAGE_TAG_DESCRIPTION, &out, sizeof out);
  for (struct part part; (part = next_part(tree, first, offset)).map;) {
    struct object_writer writer = {part.capture, part.map, err};
    uint64_t skipped = offset > part.map->offset ? offset - part.map->offset : 0;
    if (put_present(&writer, part.map->start + skipped) < 0)
      return -1;
    offset = part.map->offset + (part.map->end - part.map->start);
  }
  return 0;
}

/* ---- areas ---------------------------------------------------------------------------------------------------- */

static int
keep_area(struct capture *capture, const struct procmap *map, struct err *err)
{
  static struct scan scan;
  int result = capture_scan_open(&scan, capture->pid, map->start, map->end, err);

  capture->keeping = true;
  if (result == 0 && capture_setup_pages(err) < 0)
    result = -1;
  if (result == 0)
    result = capture_wants_all(capture, map) ? capture_all_pages(capture, scan.memory, map, err)
                                             : capture_written(capture, &scan, map, err);
  capture->keeping = false;
  capture_scan_close(&scan);
  return result;
}

static int
read_smaps(struct capture *capture, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/smaps", capture->pid);
  capture->smaps = procfs_read(path, NULL);
  return capture->smaps ? 0 : err_step(err, RAMET_STEP_MAPPINGS, "read %s: %s", path, strerror(errno));
}

static int
keep_areas(struct capture *capture, struct err *err)
{
  struct flag_reader flags = {capture->smaps};

  for (uint32_t i = 0; i < capture->maps.count; i++) {
    const struct procmap *map = &capture->maps.items[i];
    if (!capture_is_guests(capture, map))
      continue;
    bool kept_from_forks = capture_flags_at(&flags, map->start) & IMAGE_DONTFORK;
    if (kept_from_forks && !map->shared && keep_area(capture, map, err) < 0)
      return -1;
  }
  return 0;
}

static bool
has_locked(const struct capture *capture)
{
  const char *locked = procfs_field(capture->status, "VmLck");

  return locked && strtoull(locked, NULL, 10) > 0;
}

static bool
is_object(const struct capture *capture, const struct procmap *map)
{
  return map->shared && capture_is_guests(capture, map) && capture_backing(capture, map) == IMAGE_SHARED &&
         capture_object(capture, map) == 0;
}

static int
compare_inodes(const void *a, const void *b)
{
  uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

  return one < other ? -1 : one > other;
}

/* Each object is a descriptor of init's and the child's for a moment. Counted ahead, since to keep some and then to
 * refuse takes seconds; shared memory without a name is all of one file system, which counts its files. */
static int
count_objects(const struct capture_tree *tree, struct err *err)
{
  uint32_t most = 0, count = 0, distinct = 0;

  for (int p = 0; p < tree->count; p++)
    most += tree->processes[p]->maps.count;
  cleanup_free uint64_t *inodes = malloc((most + 1) * sizeof *inodes);
  if (!inodes)
    return err_code(err, "internal", "no memory for shared memory");
  for (int p = 0; p < tree->count; p++)
    for (uint32_t i = 0; i < tree->processes[p]->maps.count; i++)
      if (is_object(tree->processes[p], &tree->processes[p]->maps.items[i]))
        inodes[count++] = tree->processes[p]->maps.items[i].inode;
  qsort(inodes, count, sizeof *inodes, compare_inodes);
  for (uint32_t i = 0; i < count; i++)
    distinct += i == 0 || inodes[i] != inodes[i - 1];
  if (distinct + tree->open_files <= IMAGE_DESCRIPTORS_MAX)
    return 0;
  return capture_refuse(tree->processes[0], err, "has more than %d open files and pieces of shared memory",
                        IMAGE_DESCRIPTORS_MAX);
}

static int
keep_objects(struct capture *capture, struct err *err)
{
  for (uint32_t i = 0; i < capture->maps.count; i++) {
    const struct procmap *map = &capture->maps.items[i];
    if (is_object(capture, map) && keep_object(capture, map, err) < 0)
      return -1;
  }
  return 0;
}

/* A process without a twin is copied as it is, and has nothing that its copy has not. */
static int
keep_unforked(struct capture *capture, struct err *err)
{
  if (keep_objects(capture, err) < 0)
    return -1;
  if (!capture->twin || (!has_locked(capture) && capture_twin_is_whole(capture)))
    return 0;
  return read_smaps(capture, err) < 0 ? -1 : keep_areas(capture, err);
}

int
capture_unforked(struct capture_tree *tree, struct err *err)
{
  if (count_objects(tree, err) < 0)
    return -1;
  for (int p = 0; p < tree->count; p++)
    if (keep_unforked(tree->processes[p], err) < 0)
      return -1;
  return 0;
}
