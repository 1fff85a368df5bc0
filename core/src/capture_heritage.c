/* SPDX-License-Identifier: Apache-2.0
 * Memory that a process has from the first one, whose fork it is: what equals it there, at the same addresses of both
 * frozen copies, is not kept twice. A child's processes are forked from its first, and have those pages by that.
 *
 * Who shares a page the kernel tells nobody who is not root of the host, so contents are compared. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "overdue.h"

#define PIECE (1u << 20)
#define PAGES (PIECE / IMAGE_PAGE)
/* What the first has is read once for all heirs, so much of it. Mappings that are longer hold little for their length. */
#define READ_ONCE ((size_t)256 << 20)
#define LONGEST ((uint64_t)1 << 30)
/* Fewer equal pages between others are copied with those: a run of its own costs as much. */
#define SHORTEST 4

struct heritage {
  int memory;
  struct procmaps maps;
  uint32_t *flags; /* of each mapping */
  uint8_t *ours, *theirs;
  uint8_t **pieces; /* of the first, as far as they were read; NULL: there is one heir, who needs them once */
  uint32_t *first_piece; /* of each mapping; one more than there are mappings */
  uint8_t *read;
  size_t read_bytes;
  bool equal[PAGES + 1];
};

/* ---- heirs ---------------------------------------------------------------------------------------------------- */

/* Where the kernel has put program, stack and arguments: random numbers, which only a fork has in common. */
static bool
is_fork(int first, int other)
{
  static const int fields[] = {26, 28, 47, 48};
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/stat", first);
  cleanup_free char *one = procfs_read(path, NULL);
  snprintf(path, sizeof path, "/proc/%d/stat", other);
  cleanup_free char *two = procfs_read(path, NULL);
  for (size_t i = 0; one && two && i < sizeof fields / sizeof fields[0]; i++)
    if (procfs_stat_field(one, fields[i]) != procfs_stat_field(two, fields[i]))
      return false;
  return one && two;
}

static int
find_heirs(struct capture_tree *tree)
{
  int count = 0;

  for (int i = 1; i < tree->count; i++) {
    struct capture *capture = tree->processes[i];
    capture->heir = capture->twin && is_fork(tree->processes[0]->twin, capture->twin);
    count += capture->heir;
  }
  return count;
}

static uint32_t
count_pieces(const struct procmap *map)
{
  return map->shared || map->inode || map->end - map->start > LONGEST
             ? 0
             : (uint32_t)((map->end - 1) / PIECE - map->start / PIECE + 1);
}

/* Where there is no memory for that, it is read for each. */
static void
remember_pieces(struct heritage *heritage)
{
  uint32_t count = heritage->maps.count;

  heritage->first_piece = calloc(count + 1, sizeof *heritage->first_piece);
  for (uint32_t i = 0; heritage->first_piece && i < count; i++)
    heritage->first_piece[i + 1] = heritage->first_piece[i] + count_pieces(&heritage->maps.items[i]);
  heritage->read =
      mmap(NULL, READ_ONCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!heritage->first_piece || heritage->read == MAP_FAILED)
    return;
  madvise(heritage->read, READ_ONCE, MADV_HUGEPAGE);
  heritage->pieces = calloc(heritage->first_piece[count] + 1, sizeof *heritage->pieces);
}

static bool
read_first(struct heritage *heritage, int pid)
{
  struct err ignored;
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  heritage->memory = open(path, O_RDONLY | O_CLOEXEC);
  snprintf(path, sizeof path, "/proc/%d/smaps", pid);
  cleanup_free char *smaps = procfs_read(path, NULL);
  struct flag_reader reader = {smaps};
  heritage->ours = mmap(NULL, (size_t)2 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (heritage->memory < 0 || !smaps || heritage->ours == MAP_FAILED ||
      procfs_maps(pid, &heritage->maps, RAMET_STEP_PAGES, &ignored) < 0)
    return false;
  heritage->theirs = heritage->ours + PIECE;
  heritage->flags = malloc((heritage->maps.count + 1) * sizeof *heritage->flags);
  for (uint32_t i = 0; heritage->flags && i < heritage->maps.count; i++)
    heritage->flags[i] = capture_flags_at(&reader, heritage->maps.items[i].start);
  return heritage->flags;
}

/* Where it cannot be read everything is copied. */
void
capture_find_heirs(struct capture_tree *tree)
{
  static struct heritage heritage = {.memory = -1};
  int heirs = find_heirs(tree);

  if (heirs == 0)
    return;
  tree->heritage = &heritage;
  if (read_first(&heritage, tree->processes[0]->twin)) {
    if (heirs > 1)
      remember_pieces(&heritage);
    return;
  }
  for (int i = 1; i < tree->count; i++)
    tree->processes[i]->heir = false;
}

/* ---- what is the same ----------------------------------------------------------------------------------------- */

/* The mapping of the first that has the address, or the next behind it; or the count. */
static uint32_t
next_mapping(const struct heritage *heritage, uint64_t address)
{
  uint32_t low = 0, high = heritage->maps.count;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (heritage->maps.items[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Memory without a file, of the same kind in both, which forks inherit. */
static bool
can_inherit(const struct capture *capture, const struct procmap *theirs, uint32_t flags)
{
  const struct procmap *ours = capture->mapping;

  return !ours->shared && !theirs->shared && !ours->inode && !theirs->inode &&
         strcmp(ours->name, theirs->name) == 0 && !(flags & ~IMAGE_INHERITABLE) &&
         ((flags ^ capture->mapping_flags) & ~(uint32_t)IMAGE_MAY_WRITE) == 0;
}

bool
capture_may_inherit(const struct capture *capture)
{
  const struct heritage *heritage = capture->tree->heritage;

  if (!capture->heir)
    return false;
  for (uint32_t i = next_mapping(heritage, capture->mapping->start);
       i < heritage->maps.count && heritage->maps.items[i].start < capture->mapping->end; i++)
    if (can_inherit(capture, &heritage->maps.items[i], heritage->flags[i]))
      return true;
  return false;
}

/* All that the mapping has of this piece of the address space; or NULL: what is asked for is to be read. */
static const uint8_t *
piece_at(struct heritage *heritage, uint32_t mapping, uint64_t address)
{
  const struct procmap *map = &heritage->maps.items[mapping];
  uint64_t start = address - address % PIECE, end = start + PIECE;

  if (!heritage->pieces || heritage->first_piece[mapping] == heritage->first_piece[mapping + 1])
    return NULL;
  uint8_t **piece = &heritage->pieces[heritage->first_piece[mapping] + (address / PIECE - map->start / PIECE)];
  if (start < map->start)
    start = map->start;
  if (end > map->end)
    end = map->end;
  if (!*piece && heritage->read_bytes + PIECE <= READ_ONCE) {
    uint8_t *into = heritage->read + heritage->read_bytes;
    if (pread(heritage->memory, into, end - start, (off_t)start) != (ssize_t)(end - start))
      return NULL;
    heritage->read_bytes += PIECE;
    *piece = into;
  }
  return *piece ? *piece + (address - start) : NULL;
}

/* What the first has there, and how many pages of it. */
static const uint8_t *
theirs_at(struct heritage *heritage, uint32_t mapping, uint64_t address, uint32_t count, uint32_t *known)
{
  const uint8_t *piece = piece_at(heritage, mapping, address);

  *known = count;
  if (piece)
    return piece;
  ssize_t got = pread(heritage->memory, heritage->theirs, (size_t)count * IMAGE_PAGE, (off_t)address);
  *known = got < 0 ? 0 : (uint32_t)((size_t)got / IMAGE_PAGE);
  return heritage->theirs;
}

/* Marks what equals; `count` is there in ours. */
static void
compare_pages(struct heritage *heritage, uint32_t mapping, uint64_t address, uint32_t count)
{
  uint32_t known, since = 0;
  const uint8_t *theirs = theirs_at(heritage, mapping, address, count, &known);

  for (uint32_t i = 0; i < count; i++)
    heritage->equal[i] = i < known && memcmp(heritage->ours + (size_t)i * IMAGE_PAGE,
                                             theirs + (size_t)i * IMAGE_PAGE, IMAGE_PAGE) == 0;
  for (uint32_t i = 0; i <= count; i++) {
    if (i < count && heritage->equal[i])
      continue;
    for (; i - since < SHORTEST && since < i; since++)
      heritage->equal[since] = false;
    since = i + 1;
  }
}

static int
put_piece(struct capture *capture, uint32_t mapping, uint64_t address, uint32_t count, struct err *err)
{
  struct heritage *heritage = capture->tree->heritage;

  compare_pages(heritage, mapping, address, count);
  for (uint32_t first = 0, i = 0; i < count; first = i) {
    while (i < count && heritage->equal[i] == heritage->equal[first])
      i++;
    uint64_t at = address + (uint64_t)first * IMAGE_PAGE;
    size_t length = (size_t)(i - first) * IMAGE_PAGE;
    const uint8_t *own = heritage->equal[first] ? NULL : heritage->ours + (size_t)first * IMAGE_PAGE;
    if (capture_put_run(capture, at, length, own, err) < 0)
      return -1;
  }
  return 0;
}

static int
put_comparing(struct capture *capture, int memory, uint32_t mapping, uint64_t start, uint64_t end, struct err *err)
{
  while (start < end) {
    if (overdue_check(RAMET_STEP_PAGES, err) < 0)
      return -1;
    size_t length = PIECE - start % PIECE;
    if (end - start < length)
      length = (size_t)(end - start);
    ssize_t got = pread(memory, capture->tree->heritage->ours, length, (off_t)start);
    if (got < IMAGE_PAGE)
      return err_step(err, RAMET_STEP_PAGES, "read memory at %#llx: %s", (unsigned long long)start,
                      strerror(errno));
    if (put_piece(capture, mapping, start, (uint32_t)((size_t)got / IMAGE_PAGE), err) < 0)
      return -1;
    start += (size_t)got / IMAGE_PAGE * IMAGE_PAGE;
  }
  return 0;
}

int
capture_heirs_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err)
{
  const struct heritage *heritage = capture->tree->heritage;

  for (uint64_t stop; start < end; start = stop) {
    uint32_t i = next_mapping(heritage, start);
    const struct procmap *theirs = i < heritage->maps.count ? &heritage->maps.items[i] : NULL;
    bool there = theirs && theirs->start <= start;
    stop = there ? theirs->end : theirs ? theirs->start : end;
    stop = stop < end ? stop : end;
    int result = there && can_inherit(capture, theirs, heritage->flags[i])
                     ? put_comparing(capture, memory, i, start, stop, err)
                     : capture_copy_run(capture, memory, start, stop, err);
    if (result < 0)
      return -1;
  }
  return 0;
}
