/* SPDX-License-Identifier: Apache-2.0
 * From an image to the restorer's tables. This runs in a fork of core, up to the jump into the region. */
#define _GNU_SOURCE
#include "stem.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../pie/args.h"
#include "births.h"
#include "deposit.h"
#include "log.h"
#include "procfs.h"
#include "syscalls.h"
#include "title.h"
#include "twin.h"

#define STEM_STACK_BYTES 65536
#define PARKING_BYTES (1u << 20)
#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP)
#define HUGE_PAGE ((uint64_t)2 << 20)
#define FROZEN_PATH "/proc/2147483647/mem"
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08 /* Linux 6.11 */
#endif

/* glibc registers a restartable-sequence area for the thread core runs in; musl does not. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
#define RSEQ_SIGNATURE_X86 0x53053053

struct builder {
  const struct stem_plan *plan;
  struct births births;
  const struct process_image *process;
  const struct process_image *born_in; /* whose memory the process is born with; NULL: the stem's own process */
  struct pie_args *args, *first; /* of the process, of the first */
  uint64_t next;          /* where the next process's part begins */
  uint8_t *at, *end; /* free part of the tables */
  uint64_t deposited; /* so far */
  uint64_t frozen_path; /* of the process's frozen copy, if there is one */
  bool *late;        /* which processes have the memory that they are born with when their children are */
  struct err *err;
};

/* Flags of a mapping that one call each gives back. */
static const struct {
  uint32_t flag;
  int32_t advice;
} advice_of[] = {
    {IMAGE_HUGE, MADV_HUGEPAGE},         {IMAGE_NO_HUGE, MADV_NOHUGEPAGE}, {IMAGE_MERGEABLE, MADV_MERGEABLE},
    {IMAGE_WIPEONFORK, MADV_WIPEONFORK}, {IMAGE_DONTDUMP, MADV_DONTDUMP},
};
/* Of children: a stem that had the one would lose the area at its forks, the other ends there. */
static const struct {
  uint32_t flag;
  int32_t advice;
} late_advice_of[] = {{IMAGE_DONTFORK, MADV_DONTFORK}, {IMAGE_LOCKED, PIE_LOCK}};

#define ADVICE_KINDS (1 + sizeof advice_of / sizeof advice_of[0])
#define LATE_ADVICE_KINDS (sizeof late_advice_of / sizeof late_advice_of[0])

static bool
is_late(const struct image_mapping *mapping)
{
  return mapping->backing == IMAGE_SHARED || mapping->backing == IMAGE_SHARED_FILE;
}

static uint64_t
page_up(uint64_t length)
{
  return (length + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
}

static uint64_t
code_length(void)
{
  return page_up((uint64_t)(__stop_ramet_restorer - __start_ramet_restorer));
}

static uint64_t
args_length(const struct process_image *process)
{
  return page_up(sizeof(struct pie_args) + process->thread_count * sizeof(struct pie_thread));
}

static uint64_t
stacks_length(const struct process_image *process)
{
  return (uint64_t)process->thread_count * (PIE_STACK_BYTES + ARCH_FRAME_BYTES);
}

/* Its part of the region. That of the first has the stem's own stack too. */
static uint64_t
own_length(const struct process_image *process)
{
  return args_length(process) + stacks_length(process);
}

static uint32_t
inherited_runs(const struct process_image *p)
{
  uint32_t count = 0;

  for (uint32_t i = 0; i < p->run_count; i++)
    count += p->runs[i].offset == IMAGE_INHERITED;
  return count;
}

static uint64_t
process_tables_length(const struct process_image *p)
{
  uint64_t paths = sizeof FROZEN_PATH + 16, inherited = inherited_runs(p);

  for (uint32_t i = 0; i < p->mapping_count; i++)
    paths += p->paths[i].length + 17;
  return p->mapping_count *
             (sizeof(struct pie_map) + (ADVICE_KINDS + LATE_ADVICE_KINDS) * sizeof(struct pie_protect) +
              sizeof(struct pie_late)) +
         inherited * (sizeof(struct pie_map) + sizeof(struct pie_range)) +
         2 * (p->run_count + inherited) * sizeof(struct pie_fill) + 2 * p->run_count * sizeof(struct pie_store) +
         p->mapping_count * sizeof(struct pie_take) + p->signal_count * sizeof(struct pie_signal) +
         p->fd_count * sizeof(struct pie_fd) + (p->pending_count + 1) * sizeof(struct pie_pending) +
         p->lock_count * sizeof(struct pie_lock) + p->timer_count * sizeof(struct pie_timer) +
         p->scheduling_count * sizeof(struct pie_scheduling) + paths + p->cwd.length + p->auxv.length + 4096;
}

static uint64_t
tables_length(const struct image *image, struct span filter)
{
  uint64_t length =
      filter.length + 4096 + image->epoll_count * sizeof(struct pie_epoll) +
      image->description_count * sizeof(int32_t) + image->process_count * (sizeof(uint32_t) + 1) +
      (uint64_t)(image->process_count + image->zombie_count) * BIRTHS_FOR_EACH * sizeof(struct pie_node);

  for (uint32_t i = 0; i < image->process_count; i++)
    length += process_tables_length(&image->processes[i]) + image->process_count * 16;
  return page_up(length);
}

static uint64_t
parts_length(const struct image *image)
{
  uint64_t length = STEM_STACK_BYTES;

  for (uint32_t i = 0; i < image->process_count; i++)
    length += own_length(&image->processes[i]);
  return length;
}

/* ---- the region ----------------------------------------------------------------------------------------------- */

static bool
overlaps_guest(const struct image *image, uint64_t start, uint64_t end)
{
  for (uint32_t p = 0; p < image->process_count; p++) {
    const struct process_image *process = &image->processes[p];
    for (uint32_t i = 0; i < process->mapping_count; i++)
      if (process->mappings[i].start < end && process->mappings[i].end > start)
        return true;
  }
  return false;
}

static bool
overlaps_own(const struct procmaps *maps, uint64_t start, uint64_t end)
{
  for (uint32_t i = 0; i < maps->count; i++)
    if (maps->items[i].start < end && maps->items[i].end > start)
      return true;
  return false;
}

int
stem_find_region(const struct image *image, uint64_t avoid_start, uint64_t avoid_end, uint64_t *start,
                 uint64_t *length, struct err *err)
{
  const uint64_t step = (uint64_t)1 << 36, deposit = deposit_length(image);
  struct procmaps own;
  const struct span longest_filter = {NULL, RAMET_FILTER_BYTES_MAX};

  /* The page that is shared stands in front of the parking place. */
  *length = code_length() + parts_length(image) + tables_length(image, longest_filter) + IMAGE_PAGE + PARKING_BYTES;
  if (procfs_maps(getpid(), &own, RAMET_STEP_STEM_REGION, err) < 0)
    return -1;
  *start = 0;
  for (uint64_t at = (uint64_t)1 << 44; at < (uint64_t)0x7e << 40 && !*start; at += step) {
    uint64_t end = deposit_start(at, *length) + deposit;
    if (!overlaps_guest(image, at, end) && !overlaps_own(&own, at, end) && (at >= avoid_end || end <= avoid_start))
      *start = at;
  }
  procfs_maps_free(&own);
  if (*start)
    return 0;
  errno = ENOMEM;
  return err_step(err, RAMET_STEP_STEM_REGION, "no hole of %llu bytes in the guest's memory",
                  (unsigned long long)*length);
}

static void *
table(struct builder *b, size_t bytes, uint64_t *address)
{
  uint8_t *at = b->at;

  b->at += (bytes + 15) & ~(size_t)15;
  if (b->at > b->end)
    _exit(EXIT_DEFECT); /* tables_length() is wrong */
  *address = (uint64_t)(uintptr_t)at;
  return at;
}

static void
copy_table(struct builder *b, const void *from, size_t bytes, uint64_t *address)
{
  void *to = table(b, bytes, address);

  if (bytes)
    memcpy(to, from, bytes);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

struct opened {
  struct span path;
  int fd;
  uint64_t address; /* of the path in the tables */
};

/* The same file backs several mappings in a row: text, data, relocated data. */
static int
open_backing(struct builder *b, struct span path, struct opened *last)
{
  char name[4096];

  if (last->fd >= 0 && last->path.length == path.length && memcmp(last->path.data, path.data, path.length) == 0)
    return last->fd;
  memcpy(name, path.data, path.length);
  name[path.length] = 0;
  last->fd = root_open_file(b->plan->root, name, RAMET_STEP_STEM_FILES, b->err);
  last->path = path;
  return last->fd;
}

static void
add_protect(uint64_t table, uint32_t *count, const struct image_mapping *mapping, int32_t advice)
{
  struct pie_protect *protects = (struct pie_protect *)(uintptr_t)table;

  protects[(*count)++] = (struct pie_protect){.start = mapping->start,
                                              .length = mapping->end - mapping->start,
                                              .protection = mapping->protection,
                                              .advice = advice};
}

/* Droppable memory has the others of its flags by itself. */
static void
add_advice(struct builder *b, const struct image_mapping *mapping)
{
  for (size_t i = 0; i < sizeof advice_of / sizeof advice_of[0]; i++)
    if (mapping->flags & advice_of[i].flag && !(mapping->flags & IMAGE_DROPPABLE))
      add_protect(b->args->protects, &b->args->protect_count, mapping, advice_of[i].advice);
}

static bool
is_first(const struct builder *b)
{
  return b->process == &b->plan->image->processes[0];
}

/* The first process's files are opened here, in layers that never change; the others open theirs in their own root. */
static int
add_file(struct builder *b, uint32_t i, struct pie_map *map, struct opened *last)
{
  struct span path = b->process->paths[i];

  map->offset = b->process->mappings[i].offset;
  if (is_first(b)) {
    map->fd = open_backing(b, path, last);
    return map->fd < 0 ? -1 : 0;
  }
  if (last->path.length != path.length || memcmp(last->path.data, path.data, path.length) != 0) {
    char *name = table(b, path.length + 1, &last->address);
    memcpy(name, path.data, path.length);
    name[path.length] = 0;
    last->path = path;
  }
  map->path = last->address;
  return 0;
}

/* ---- what is kept of the memory that a process is born with ---------------------------------------------------- */

static const struct pie_range *
kept_of(const struct builder *b)
{
  return (const struct pie_range *)(uintptr_t)b->args->kept;
}

static bool
is_within(const struct pie_range *range, const struct image_mapping *mapping)
{
  return range->start >= mapping->start && range->start < mapping->end;
}

/* From the first inherited page of a mapping to the last, as far as the first process has memory without a break. */
static void
build_kept(struct builder *b)
{
  const struct process_image *p = b->process, *first = &b->plan->image->processes[0];
  struct pie_range *kept = table(b, inherited_runs(p) * sizeof *kept, &b->args->kept), *last = NULL;

  for (uint32_t m = 0; m < p->mapping_count; m++, last = NULL)
    for (uint32_t i = p->first_run[m]; i < p->first_run[m + 1]; i++) {
      const struct image_run *run = &p->runs[i];
      if (run->offset != IMAGE_INHERITED)
        continue;
      if (last && image_can_inherit(first, last->start + last->length, run->address)) {
        last->length = run->address + run->length - last->start;
        continue;
      }
      last = &kept[b->args->kept_count++];
      *last = (struct pie_range){run->address, run->length};
    }
}

/* Whether all that is kept of the mapping has its protection already. */
static bool
has_protection(const struct builder *b, const struct image_mapping *mapping)
{
  const struct process_image *first = &b->plan->image->processes[0];

  for (uint32_t i = 0; i < b->args->kept_count; i++) {
    const struct pie_range *kept = &kept_of(b)[i];
    for (uint64_t at = kept->start; is_within(kept, mapping) && at < kept->start + kept->length;) {
      const struct image_mapping *theirs = image_mapping_at(first, at);
      if (theirs->protection != mapping->protection)
        return false;
      at = theirs->end;
    }
  }
  return true;
}

/* But what is kept. */
static void
put_maps(struct builder *b, const struct pie_map *map)
{
  struct pie_map *maps = (struct pie_map *)(uintptr_t)b->args->maps;
  uint64_t at = map->start, end = map->start + map->length;

  for (uint32_t i = 0; i <= b->args->kept_count && at < end; i++) {
    const struct pie_range *kept = i < b->args->kept_count ? &kept_of(b)[i] : NULL;
    uint64_t until = kept && kept->start < end ? kept->start : end;
    if (until < at)
      continue;
    if (until > at) {
      struct pie_map *part = &maps[b->args->map_count++];
      *part = *map;
      part->start = at;
      part->length = until - at;
      part->offset = map->offset + (at - map->start);
    }
    at = until == end ? end : kept->start + kept->length;
  }
}

static void
add_fill(struct builder *b, uint64_t start, uint64_t end, uint64_t what)
{
  struct pie_fill *fills = (struct pie_fill *)(uintptr_t)b->args->fills;

  if (start < end)
    fills[b->args->fill_count++] = (struct pie_fill){start, end - start, what};
}

/* What of it is not the first's goes, before it is filled. */
static void
add_clears(struct builder *b, uint32_t m, const struct pie_range *kept)
{
  const struct process_image *p = b->process;
  uint64_t at = kept->start, end = kept->start + kept->length;
  bool fills = false;

  for (uint32_t i = p->first_run[m]; i < p->first_run[m + 1]; i++) {
    const struct image_run *run = &p->runs[i];
    if (run->address < kept->start || run->address >= end)
      continue;
    fills |= run->offset != IMAGE_INHERITED && run->offset != IMAGE_GUARD;
    if (run->offset != IMAGE_INHERITED)
      continue;
    add_fill(b, at, run->address, PIE_CLEAR);
    at = run->address + run->length;
  }
  if (fills)
    add_fill(b, kept->start, end, PIE_OPEN);
}

/* What is kept in the deposit, at `place`, is moved from there as one piece: it stays one mapping. */
static void
add_take(struct builder *b, uint32_t i, uint64_t place)
{
  const struct image_mapping *mapping = &b->process->mappings[i];
  struct pie_take *takes = (struct pie_take *)(uintptr_t)b->args->takes;

  takes[b->args->take_count++] = (struct pie_take){place, mapping->end - mapping->start, mapping->start};
  if (mapping->protection != (PROT_READ | PROT_WRITE))
    add_protect(b->args->protects, &b->args->protect_count, mapping, PIE_PROTECT);
  add_advice(b, mapping);
}

static int
add_mapping(struct builder *b, uint32_t i, struct opened *last)
{
  const struct image_mapping *mapping = &b->process->mappings[i];
  uint32_t runs = b->process->first_run[i + 1] - b->process->first_run[i];
  struct pie_map map = {.start = mapping->start,
                        .length = mapping->end - mapping->start,
                        .protection = mapping->protection,
                        .flags = MAP_FIXED | MAP_NORESERVE | MAP_PRIVATE,
                        .fd = -1};
  bool writable = (mapping->protection & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE);

  if (mapping->backing == IMAGE_SPECIAL || is_late(mapping))
    return 0;
  if (mapping->backing == IMAGE_ANONYMOUS) {
    map.flags |= MAP_ANONYMOUS | (mapping->flags & IMAGE_GROWS_DOWN ? MAP_GROWSDOWN : 0);
    if (mapping->flags & IMAGE_DROPPABLE)
      map.flags = (map.flags & ~(uint32_t)MAP_PRIVATE) | MAP_DROPPABLE;
  } else if (add_file(b, i, &map, last) < 0) {
    return -1;
  }
  if (runs)
    map.protection |= PROT_READ | PROT_WRITE;
  put_maps(b, &map);
  if (runs && (!writable || !has_protection(b, mapping)))
    add_protect(b->args->protects, &b->args->protect_count, mapping, PIE_PROTECT);
  add_advice(b, mapping);
  return 0;
}

/* Whether there are whole huge pages in what will be filled. Memory with other rights of its own stays as it was. */
static bool
find_huge(const struct builder *b, const struct image_mapping *mapping, uint64_t *start, uint64_t *end)
{
  const uint32_t never = IMAGE_GROWS_DOWN | IMAGE_NO_HUGE | IMAGE_DROPPABLE | IMAGE_MERGEABLE;

  *start = (*start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
  *end &= ~(HUGE_PAGE - 1);
  return *start < *end && mapping->backing == IMAGE_ANONYMOUS && !(mapping->flags & never) &&
         !b->process->process.no_thp;
}

static void
add_huge(struct builder *b, const struct image_mapping *mapping, uint64_t start, uint64_t end)
{
  if (is_first(b) && find_huge(b, mapping, &start, &end))
    add_fill(b, start, end, PIE_HUGE);
}

/* `place`: of the mapping, in the deposit. */
static void
add_store(struct builder *b, uint32_t m, const struct image_run *run, uint64_t place)
{
  const struct image_mapping *mapping = &b->process->mappings[m];
  struct pie_store *stores = (struct pie_store *)(uintptr_t)b->args->stores;
  uint64_t start = run->address, end = run->address + run->length, away = place - mapping->start;

  if (find_huge(b, mapping, &start, &end))
    stores[b->args->store_count++] =
        (struct pie_store){.address = start + away, .length = end - start, .offset = PIE_HUGE};
  struct pie_store *store = &stores[b->args->store_count++];
  *store = (struct pie_store){.address = run->address + away, .length = run->length, .offset = run->offset};
  if (run->offset == IMAGE_FROZEN) {
    store->offset = run->address;
    store->path = b->frozen_path;
  }
}

/* It is opened in the stem, when it is needed: there may be as many as there are processes. */
static void
name_frozen(struct builder *b)
{
  uint32_t process = (uint32_t)(b->process - b->plan->image->processes);
  char *path = table(b, sizeof FROZEN_PATH, &b->frozen_path);

  snprintf(path, sizeof FROZEN_PATH, "/proc/%d/mem", b->plan->frozen ? b->plan->frozen[process] : 0);
}

static void
add_stores(struct builder *b, uint32_t m, uint64_t place)
{
  const struct process_image *p = b->process;

  for (uint32_t i = p->first_run[m]; i < p->first_run[m + 1]; i++)
    if (p->runs[i].offset == IMAGE_GUARD)
      add_fill(b, p->runs[i].address, p->runs[i].address + p->runs[i].length, PIE_GUARD);
    else
      add_store(b, m, &p->runs[i], place);
}

static void
add_fills(struct builder *b, uint32_t mapping)
{
  const struct process_image *p = b->process;

  for (uint32_t i = 0; i < b->args->kept_count; i++)
    if (is_within(&kept_of(b)[i], &p->mappings[mapping]))
      add_clears(b, mapping, &kept_of(b)[i]);
  for (uint32_t i = p->first_run[mapping]; i < p->first_run[mapping + 1]; i++) {
    const struct image_run *run = &p->runs[i];
    if (run->offset == IMAGE_INHERITED)
      continue;
    uint64_t offset = run->offset == IMAGE_GUARD    ? PIE_GUARD
                      : run->offset == IMAGE_FROZEN ? PIE_FROZEN
                                                    : run->offset;
    if (offset != PIE_GUARD)
      add_huge(b, &p->mappings[mapping], run->address, run->address + run->length);
    add_fill(b, run->address, run->address + run->length, offset);
  }
}

static int
open_frozen(struct builder *b)
{
  char path[48];

  b->args->frozen = -1;
  if (!b->plan->frozen || b->plan->frozen[0] == 0 || !is_first(b))
    return 0;
  snprintf(path, sizeof path, "/proc/%d/mem", b->plan->frozen[0]);
  b->args->frozen = open(path, O_RDONLY | O_CLOEXEC);
  return b->args->frozen < 0 ? err_step(b->err, RAMET_STEP_STEM_FILL, "open %s: %s", path, strerror(errno)) : 0;
}

static int
build_memory(struct builder *b)
{
  const struct process_image *p = b->process;
  struct opened last = {.fd = -1};

  uint32_t inherited = inherited_runs(p);

  build_kept(b);
  table(b, (p->mapping_count + inherited) * sizeof(struct pie_map), &b->args->maps);
  table(b, p->mapping_count * ADVICE_KINDS * sizeof(struct pie_protect), &b->args->protects);
  table(b, 2 * (p->run_count + inherited) * sizeof(struct pie_fill), &b->args->fills);
  table(b, 2 * p->run_count * sizeof(struct pie_store), &b->args->stores);
  table(b, p->mapping_count * sizeof(struct pie_take), &b->args->takes);
  name_frozen(b);
  b->args->part = b->args->deposit + b->deposited;
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    uint64_t place = is_first(b) ? 0 : deposit_place(&p->mappings[i], &b->deposited);
    if (place && deposit_keeps(p, i)) {
      add_take(b, i, b->args->deposit + place);
      add_stores(b, i, b->args->deposit + place);
      continue;
    }
    if (add_mapping(b, i, &last) < 0)
      return -1;
    add_fills(b, i);
  }
  b->args->part_length = b->args->take_count ? b->args->deposit + b->deposited - b->args->part : 0;
  return open_frozen(b);
}

struct place {
  uint64_t start, length;
};

/* Where the process has the kernel's page of this name when it is born. */
static struct place
find_special(const struct builder *b, const struct procmaps *own, struct span name)
{
  if (b->born_in) {
    for (uint32_t i = 0; i < b->born_in->mapping_count; i++)
      if (b->born_in->mappings[i].backing == IMAGE_SPECIAL && b->born_in->paths[i].length == name.length &&
          memcmp(b->born_in->paths[i].data, name.data, name.length) == 0)
        return (struct place){b->born_in->mappings[i].start,
                              b->born_in->mappings[i].end - b->born_in->mappings[i].start};
    return (struct place){0};
  }
  char text[64];
  snprintf(text, sizeof text, "%.*s", (int)name.length, (const char *)name.data);
  const struct procmap *mine = procfs_find(own, text);
  return mine ? (struct place){mine->start, mine->end - mine->start} : (struct place){0};
}

/* The kernel's own pages are moved to where the guest had them: its libc remembers addresses inside. */
static int
add_moves(struct builder *b, const struct procmaps *own, uint64_t park)
{
  for (uint32_t i = 0; i < b->process->mapping_count; i++) {
    const struct image_mapping *mapping = &b->process->mappings[i];
    struct span name = b->process->paths[i];
    if (mapping->backing != IMAGE_SPECIAL)
      continue;
    struct place from = find_special(b, own, name);
    if (from.length != mapping->end - mapping->start || b->args->move_count == PIE_MOVES_MAX)
      return err_code(b->err, "other_kernel", "the image's %.*s is not this kernel's", (int)name.length,
                      (const char *)name.data);
    b->args->moves[b->args->move_count++] =
        (struct pie_move){.from = from.start, .length = from.length, .park = park, .to = mapping->start};
    park += from.length;
  }
  return 0;
}

static int
build_moves(struct builder *b)
{
  struct procmaps own = {0};
  uint64_t park = b->args->region + b->args->region_length - PARKING_BYTES;

  if (!b->born_in && procfs_maps(getpid(), &own, RAMET_STEP_STEM_REGION, b->err) < 0)
    return -1;
  int result = add_moves(b, &own, park);
  procfs_maps_free(&own);
  return result;
}

static int
build_mm(struct builder *b)
{
  const struct image_process *p = &b->process->process;
  struct pie_mm *mm = &b->args->mm;
  uint64_t auxv;

  *mm = (struct pie_mm){.start_code = p->start_code,
                        .end_code = p->end_code,
                        .start_data = p->start_data,
                        .end_data = p->end_data,
                        .start_brk = p->start_brk,
                        .brk = p->brk,
                        .start_stack = p->start_stack,
                        .arg_start = p->arg_start,
                        .arg_end = p->arg_end,
                        .env_start = p->env_start,
                        .env_end = p->env_end,
                        .auxv_size = b->process->auxv.length};
  memcpy(table(b, b->process->auxv.length, &auxv), b->process->auxv.data, b->process->auxv.length);
  mm->auxv = auxv;
  mm->exe = -1;
  if (!is_first(b))
    return 0;
  mm->exe = root_open_file(b->plan->root, p->exe, RAMET_STEP_STEM_FILES, b->err);
  return mm->exe < 0 ? -1 : 0;
}

/* ---- what a child restores ------------------------------------------------------------------------------------ */

/* The process with the channel finds what its twin needs to know there, and looks at its next safe point: by default
 * SIGURG is ignored. */
static bool
has_channel(const struct builder *b)
{
  const struct image *image = b->plan->image;

  for (uint32_t i = 0; is_first(b) && i < image->description_count; i++)
    if (image->descriptions[i].kind == IMAGE_STREAM && image->descriptions[i].value[0] == STREAM_CHANNEL)
      return true;
  return false;
}

static void
build_signals(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_signal *out = table(b, p->signal_count * sizeof *out, &b->args->signals);

  for (uint32_t i = 0; i < p->signal_count; i++)
    out[i] = (struct pie_signal){p->signals[i].number, p->signals[i].handler, p->signals[i].flags,
                                 p->signals[i].restorer, p->signals[i].mask};
  b->args->signal_count = p->signal_count;
  bool told = has_channel(b);
  struct pie_pending *pending = table(b, (p->pending_count + told) * sizeof *pending, &b->args->pending);
  for (uint32_t i = 0; i < p->pending_count; i++) {
    pending[i] = (struct pie_pending){.thread = p->pending[i].thread, .shared = p->pending[i].shared};
    memcpy(pending[i].info, p->pending[i].info, sizeof pending[i].info);
  }
  b->args->pending_count = p->pending_count + told;
  if (told) {
    const siginfo_t urgent = {.si_signo = SIGURG, .si_code = SI_QUEUE};
    pending[p->pending_count] = (struct pie_pending){.shared = 1};
    memcpy(pending[p->pending_count].info, &urgent, sizeof pending->info);
  }
  _Static_assert(sizeof(struct pie_timer) == sizeof(struct image_timer), "the same");
  _Static_assert(sizeof(struct pie_scheduling) == sizeof(struct image_scheduling), "the same");
  copy_table(b, p->timers, p->timer_count * sizeof *p->timers, &b->args->timers);
  copy_table(b, p->schedulings, p->scheduling_count * sizeof *p->schedulings, &b->args->schedulings);
  b->args->timer_count = p->timer_count;
  b->args->scheduling_count = p->scheduling_count;
}

static int
build_threads(struct builder *b, uint64_t stacks)
{
  const struct process_image *p = b->process;
  struct pie_thread *threads = (struct pie_thread *)(void *)(b->args + 1);

  b->args->threads = (uint64_t)(uintptr_t)threads;
  b->args->thread_count = p->thread_count;
  for (uint32_t i = 0; i < p->thread_count; i++) {
    const struct image_thread *t = &p->threads[i];
    uint64_t stack = stacks + (uint64_t)i * (PIE_STACK_BYTES + ARCH_FRAME_BYTES);
    uint64_t frame = stack + PIE_STACK_BYTES;
    threads[i] = (struct pie_thread){.frame = frame,
                                     .stack_top = stack + PIE_STACK_BYTES,
                                     .fs_base = t->fs_base,
                                     .gs_base = t->gs_base,
                                     .rseq = t->rseq,
                                     .robust_list = t->robust_list,
                                     .tid_address = t->tid_address,
                                     .stack_address = t->stack_address,
                                     .stack_size = t->stack_size,
                                     .stack_flags = t->stack_flags,
                                     .rseq_length = t->rseq_length,
                                     .rseq_signature = t->rseq_signature,
                                     .tid = t->tid};
    memcpy(threads[i].name, t->name, sizeof threads[i].name);
    threads[i].holds_tiles = arch_holds_asked(p->xstates[i], t->xstate_length);
    const struct arch_stack alternate = {t->stack_address, t->stack_size, t->stack_flags};
    if (!arch_write_frame((uint8_t *)(uintptr_t)frame, frame, &t->registers, t->signal_mask, &alternate,
                          p->xstates[i], t->xstate_length))
      return err_code(b->err, "other_processor", "a thread's state does not fit a signal frame");
  }
  return 0;
}

static uint32_t
description_index(const struct image *image, uint32_t id)
{
  for (uint32_t i = 0; i < image->description_count; i++)
    if (image->descriptions[i].id == id)
      return i;
  return 0; /* image_decode() has checked that there is one */
}

/* The number under which the process has the description, or -1. */
static int
number_of(const struct process_image *process, uint32_t description)
{
  for (uint32_t f = 0; f < process->fd_count; f++)
    if (process->fds[f].description == description)
      return process->fds[f].number;
  return -1;
}

/* Items are registered under the number that the epoll has in the guest, by the process to which the target's is known. */
static void
build_epolls(struct builder *b)
{
  const struct image *image = b->plan->image;
  uint32_t own = 0;

  for (uint32_t i = 0; i < image->epoll_count; i++)
    own += image->epolls[i].process == b->process->process.relations.pid;
  struct pie_epoll *out = table(b, own * sizeof *out, &b->args->epolls);
  for (uint32_t d = 0; d < image->description_count; d++)
    for (uint32_t i = image->first_epoll[d]; i < image->first_epoll[d + 1]; i++) {
      const struct image_epoll *item = &image->epolls[i];
      int number = number_of(b->process, image->descriptions[d].id);
      if (item->process == b->process->process.relations.pid && number >= 0)
        out[b->args->epoll_count++] =
            (struct pie_epoll){.epoll = number, .target = item->target, .events = item->events, .data = item->data};
    }
}

/* Shared memory, and advice that only a process that runs may have. */
static void
build_late(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_late *late_table = table(b, p->mapping_count * sizeof *late_table, &b->args->late_table);

  table(b, p->mapping_count * LATE_ADVICE_KINDS * sizeof(struct pie_protect), &b->args->advice_table);
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    const struct image_mapping *mapping = &p->mappings[i];
    for (size_t j = 0; j < LATE_ADVICE_KINDS; j++)
      if (mapping->flags & late_advice_of[j].flag)
        add_protect(b->args->advice_table, &b->args->advice_count, mapping, late_advice_of[j].advice);
    if (!is_late(mapping))
      continue;
    bool writes = mapping->protection & PROT_WRITE || mapping->flags & IMAGE_MAY_WRITE;
    struct pie_late *late = &late_table[b->args->late_count++];
    *late = (struct pie_late){.start = mapping->start,
                              .length = mapping->end - mapping->start,
                              .offset = mapping->offset,
                              .protection = mapping->protection,
                              .open_flags = writes ? O_RDWR | O_CLOEXEC : O_RDONLY | O_CLOEXEC};
    if (mapping->backing == IMAGE_SHARED) {
      late->description = description_index(b->plan->image, mapping->description - 1);
      continue;
    }
    char *path = table(b, p->paths[i].length + 1, &late->path);
    memcpy(path, p->paths[i].data, p->paths[i].length);
    path[p->paths[i].length] = 0;
  }
}

/* Above every process's numbers: they are forked from each other. */
static int
first_free(const struct image *image)
{
  int highest = -1;

  for (uint32_t i = 0; i < image->process_count; i++) {
    const struct process_image *p = &image->processes[i];
    if (p->fd_count && p->fds[p->fd_count - 1].number > highest)
      highest = p->fds[p->fd_count - 1].number;
  }
  return highest + 1;
}

static void
build_descriptors(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_fd *out = table(b, p->fd_count * sizeof *out, &b->args->fds);

  for (uint32_t i = 0; i < p->fd_count; i++) {
    out[i] = (struct pie_fd){.number = p->fds[i].number,
                             .description = description_index(b->plan->image, p->fds[i].description),
                             .close_on_exec = p->fds[i].close_on_exec};
  }
  b->args->fd_count = p->fd_count;
  b->args->description_count = b->plan->image->description_count;
  b->args->first_free = first_free(b->plan->image);
  build_epolls(b);
}

static void
build_locks(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_lock *out = table(b, p->lock_count * sizeof *out, &b->args->locks);

  for (uint32_t i = 0; i < p->lock_count; i++)
    out[i] = (struct pie_lock){p->locks[i].number, p->locks[i].exclusive, p->locks[i].start, p->locks[i].length};
  b->args->lock_count = p->lock_count;
}

/* The leader of a session has its terminal, or nobody has. */
static const struct image_terminal *
session_terminal(const struct image *image, int32_t session)
{
  for (uint32_t i = 0; i < image->terminal_count; i++)
    if (image->terminals[i].session == session)
      return &image->terminals[i];
  return NULL;
}

static void
build_terminal(struct builder *b)
{
  const struct image *image = b->plan->image;
  const struct image_process *p = &b->process->process;
  const struct image_terminal *terminal = session_terminal(image, p->relations.session);

  if (!terminal)
    return;
  b->args->terminal = description_index(image, IMAGE_TERMINAL_IDS + terminal->index);
  b->args->foreground = terminal->foreground;
  if (p->relations.session == p->relations.pid)
    b->args->control_kind = PIE_TAKES;
  else if (p->terminal != terminal->index + 1)
    b->args->control_kind = PIE_GIVES_UP;
}

static void
build_rest(struct builder *b)
{
  const struct image_process *p = &b->process->process;
  struct pie_args *args = b->args;
  char *cwd = table(b, b->process->cwd.length + 1, &args->cwd);

  memcpy(table(b, sizeof p->exe, &args->exe), p->exe, sizeof p->exe);
  memcpy(cwd, b->process->cwd.data, b->process->cwd.length);
  cwd[b->process->cwd.length] = 0;
  args->filter_length = (int32_t)(b->plan->filter.length / 8);
  memcpy(args->rlimits, p->rlimits, sizeof args->rlimits);
  memcpy(args->itimers, p->itimers, sizeof args->itimers);
  memcpy(args->fd_path, PIE_FD_PATH, sizeof PIE_FD_PATH);
  args->umask = p->umask;
  args->fault = b->plan->fault;
  args->personality = p->personality;
  args->asked_features = p->asked_features;
  args->no_thp = p->no_thp;
  args->death_signal = p->death_signal;
  args->subreaper = p->subreaper;
  if (&__rseq_offset && __rseq_size) {
    args->own_rseq = (uint64_t)(uintptr_t)__builtin_thread_pointer() + (uint64_t)__rseq_offset;
    args->own_rseq_length = __rseq_size < 32 ? 32 : __rseq_size;
    args->own_rseq_signature = RSEQ_SIGNATURE_X86;
  }
}

/* ---- the region's content ------------------------------------------------------------------------------------- */

static int
make_region(struct builder *b, uint64_t region, uint64_t length)
{
  void *at = mmap((void *)(uintptr_t)region, length, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

  if (at != (void *)(uintptr_t)region)
    return err_step(b->err, RAMET_STEP_STEM_REGION, "map the region: %s", strerror(errno));
  memcpy(at, __start_ramet_restorer, (size_t)(__stop_ramet_restorer - __start_ramet_restorer));
  if (mprotect(at, code_length(), PROT_READ | PROT_EXEC) < 0)
    return err_step(b->err, RAMET_STEP_STEM_REGION, "protect the region: %s", strerror(errno));
  return 0;
}

static int
build_region(struct builder *b, uint64_t region, uint64_t length)
{
  uint64_t tables = region + code_length() + parts_length(b->plan->image);

  if (fault_here(RAMET_STEP_STEM_REGION, b->err) < 0 || births_of_image(b->plan->image, &b->births, b->err) < 0 ||
      make_region(b, region, length) < 0)
    return -1;
  b->args = (struct pie_args *)(uintptr_t)(region + code_length());
  b->next = (uint64_t)(uintptr_t)b->args;
  b->at = (uint8_t *)(uintptr_t)tables;
  b->end = (uint8_t *)(uintptr_t)(region + length - PARKING_BYTES - IMAGE_PAGE);
  b->args->region = region;
  b->args->region_length = length;
  return 0;
}

/* The next process's part of the region, with what is the same for all. */
static void
open_part(struct builder *b, const struct process_image *process)
{
  uint64_t region = b->args->region, region_length = b->args->region_length;

  b->process = process;
  b->args = (struct pie_args *)(uintptr_t)b->next;
  b->next += own_length(process) + (is_first(b) ? STEM_STACK_BYTES : 0);
  b->args->region = region;
  b->args->region_length = region_length;
  b->args->own = (uint64_t)(uintptr_t)b->args;
  b->args->own_end = b->next;
  if (is_first(b))
    b->first = b->args;
  b->args->first = b->first->own;
  b->args->nodes = b->first->nodes;
  b->args->filter = b->first->filter;
  b->args->received = b->first->received;
  b->args->node_count = (uint32_t)b->births.count;
  b->args->node = (uint32_t)(process - b->plan->image->processes);
  b->args->passage_tid = b->births.passage_pid;
  b->args->passage_leads = b->births.passage_leads;
  b->args->filter_length = (int32_t)(b->plan->filter.length / 8);
  b->args->shared = region + region_length - PARKING_BYTES - IMAGE_PAGE;
  b->args->deposit = deposit_start(region, region_length);
  b->args->deposit_length = is_first(b) ? deposit_length(b->plan->image) : b->first->deposit_length;
  b->args->heirs = b->first->heirs;
  /* At the end of the parking place, whose beginning alone is ever used. */
  b->args->hot = region + region_length - PIE_HOT_MAX * sizeof(struct pie_range);
}

/* Where its threads' stacks and frames begin. */
static uint64_t
stacks_of(const struct builder *b)
{
  return b->args->own + args_length(b->process) + (is_first(b) ? STEM_STACK_BYTES : 0);
}

/* What every child of the stem restores. */
static int
build_child(struct builder *b)
{
  if (build_threads(b, stacks_of(b)) < 0)
    return -1;
  build_signals(b);
  build_descriptors(b);
  build_locks(b);
  build_terminal(b);
  build_late(b);
  build_rest(b);
  return 0;
}

static void
build_nodes(struct builder *b)
{
  const struct image *image = b->plan->image;
  struct pie_node *nodes = table(b, (size_t)b->births.count * sizeof *nodes, &b->args->nodes);

  for (int i = 0; i < b->births.count; i++) {
    const struct birth *birth = &b->births.items[i];
    nodes[i] = (struct pie_node){.pid = birth->pid,
                                 .parent = birth->parent,
                                 .kind = (uint32_t)birth->kind,
                                 .early = birth->early,
                                 .session = birth->session,
                                 .group = birth->group};
    if (birth->kind == BIRTH_PROCESS)
      nodes[i].exit_signal = image->processes[i].process.relations.exit_signal;
    if (birth->kind == BIRTH_PROCESS)
      nodes[i].status = image->processes[i].process.stopped;
    if (birth->kind != BIRTH_ZOMBIE)
      continue;
    const struct image_zombie *zombie = &image->zombies[i - (int)image->process_count];
    nodes[i].exit_signal = zombie->relations.exit_signal;
    nodes[i].status = zombie->status;
    memcpy(nodes[i].name, zombie->name, sizeof nodes[i].name);
  }
}

/* What the processes have in common. */
static void
build_common(struct builder *b)
{
  build_nodes(b);
  table(b, b->plan->image->process_count * sizeof(uint32_t), &b->args->heirs);
  table(b, b->plan->image->description_count * sizeof(int32_t), &b->args->received);
  copy_table(b, b->plan->filter.data, b->plan->filter.length, &b->args->filter);
}

/* Those that keep some of the first's memory, and those through which they get it. */
static void
find_late(struct builder *b)
{
  uint64_t address;

  b->late = table(b, b->plan->image->process_count, &address);
  for (uint32_t i = 1; i < b->plan->image->process_count; i++) {
    if (!inherited_runs(&b->plan->image->processes[i]))
      continue;
    for (int at = (int)i; at > 0; at = b->births.items[at].parent)
      if (b->births.items[at].kind == BIRTH_PROCESS)
        b->late[at] = true;
  }
}

/* A process is born with the memory of the next before it that is one and has its own by then: a helper has its
 * parent's, and so has who leaves it late. */
static const struct process_image *
find_born_in(const struct builder *b, int at)
{
  do
    at = b->births.items[at].parent;
  while (b->births.items[at].kind != BIRTH_PROCESS || b->late[at]);
  return &b->plan->image->processes[at];
}

/* Of the node and of those below it, which its parent passes on to it. */
static void
find_heirs(struct builder *b, int at, uint32_t *count)
{
  struct pie_node *nodes = (struct pie_node *)(uintptr_t)b->first->nodes;
  uint32_t *heirs = (uint32_t *)(uintptr_t)b->first->heirs;

  nodes[at].first_heir = *count;
  if (nodes[at].args && ((const struct pie_args *)(uintptr_t)nodes[at].args)->part_length)
    heirs[(*count)++] = (uint32_t)at;
  for (int i = 1; i < b->births.count; i++)
    if (b->births.items[i].parent == at)
      find_heirs(b, i, count);
  nodes[at].heir_count = *count - nodes[at].first_heir;
}

/* Processes beside the first, forked from it by each child anew. */
static int
build_others(struct builder *b)
{
  const struct image *image = b->plan->image;
  uint32_t heirs = 0;

  find_late(b);
  for (uint32_t i = 1; i < image->process_count; i++) {
    open_part(b, &image->processes[i]);
    b->args->leaves_late = b->late[i];
    b->born_in = find_born_in(b, (int)i);
    struct pie_node *node = &((struct pie_node *)(uintptr_t)b->first->nodes)[i];
    node->args = b->args->own;
    if (build_memory(b) < 0 || build_moves(b) < 0 || build_mm(b) < 0 || build_child(b) < 0)
      return -1;
  }
  b->born_in = NULL;
  b->process = &image->processes[0];
  b->args = b->first;
  find_heirs(b, 0, &heirs);
  return 0;
}

static int
build(struct builder *b, uint64_t region, uint64_t length)
{
  if (build_region(b, region, length) < 0 || fault_here(RAMET_STEP_STEM_FILES, b->err) < 0)
    return -1;
  open_part(b, &b->plan->image->processes[0]);
  build_common(b);
  if (build_memory(b) < 0 || build_moves(b) < 0 || build_mm(b) < 0 || build_child(b) < 0)
    return -1;
  return build_others(b);
}

/* ---- adoption ------------------------------------------------------------------------------------------------- */

static uint64_t
entry_of(const struct pie_args *args, const void *function)
{
  return args->region + (uint64_t)((const uint8_t *)function - __start_ramet_restorer);
}

/* The first message on the nursery: a socket for this stem alone, and the page file. */
static int
send_control(int nursery, int pages, int *control)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
  } space;
  int pair[2];
  struct iovec iov = {(void *)(uintptr_t)"", 1};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return -1;
  memset(&space, 0, sizeof space);
  space.align.cmsg_level = SOL_SOCKET;
  space.align.cmsg_type = SCM_RIGHTS;
  space.align.cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int fds[] = {pair[1], pages};
  memcpy(CMSG_DATA(&space.align), fds, sizeof fds);
  ssize_t sent = sendmsg(nursery, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  int saved = errno;
  close(pair[1]);
  errno = saved;
  *control = pair[0];
  return sent < 0 ? -1 : 0;
}

static int
launch_copy(struct builder *b, const struct stem_adoption *adoption, int *control)
{
  open_part(b, &b->plan->image->processes[0]);
  build_common(b);
  if (build_child(b) < 0 || build_others(b) < 0)
    return -1;
  /* The stem before has given up its registration; this process never had one. */
  struct pie_args *args = b->args;
  args->own_rseq = 0;
  args->old_region = adoption->old_start;
  args->old_length = adoption->old_end - adoption->old_start;
  struct twin_region region = {.start = args->region,
                               .length = args->region_length,
                               .code_length = code_length(),
                               .written_length = (uint64_t)(uintptr_t)b->at - args->region,
                               .entry = entry_of(args, (const void *)(uintptr_t)&pie_adopted),
                               .argument = (uint64_t)(uintptr_t)args,
                               .stack = stacks_of(b) - 64};
  if (send_control(adoption->nursery, b->plan->pages, control) < 0)
    return err_step(b->err, RAMET_STEP_PARKED_TWIN, "the nursery: %s", strerror(errno));
  return twin_launch(adoption->pid, adoption->syscall_address, &region, b->err);
}

int
stem_adopt(const struct stem_plan *plan, const struct stem_adoption *adoption, uint64_t region,
           uint64_t region_length, int *control, struct err *err)
{
  struct builder b = {.plan = plan, .err = err};
  int result = fault_here(RAMET_STEP_STEM_ADOPT, err) < 0 ? -1 : build_region(&b, region, region_length);

  *control = -1;
  if (result == 0) {
    result = launch_copy(&b, adoption, control);
    munmap((void *)(uintptr_t)region, region_length);
  }
  births_free(&b.births);
  if (result < 0)
    close_fd(control);
  return result;
}

/* ---- the fork ------------------------------------------------------------------------------------------------- */

static void
jump(struct pie_args *args, uint64_t stack_top)
{
  uint64_t entry = entry_of(args, (const void *)(uintptr_t)&pie_stem);

  __asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tmov %1, %%rdi\n\tcall *%2\n\thlt" ::"r"(stack_top),
                   "r"(args), "r"(entry)
                   : "memory", "rdi");
}

static void
become_stem(const struct stem_plan *plan, uint64_t region, uint64_t length, int control)
{
  struct err err = {0};
  struct builder b = {.plan = plan, .err = &err};

  title_set("ramet-stem");
  fault_arm(plan->fault);
  if (build(&b, region, length) < 0) {
    log_err("stem_failed", &err);
    struct pie_status failed = {.step = (int32_t)err.step, .error = err.number ? err.number : EINVAL};
    if (write(control, &failed, sizeof failed) < 0)
      _exit(EXIT_DEFECT);
    _exit(EXIT_SYSTEM);
  }
  b.args->control = control;
  b.args->pages = plan->pages;
  b.args->own_pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  jump(b.args, stacks_of(&b) - 64);
}

int
stem_fork(const struct stem_plan *plan, uint64_t region, uint64_t region_length, int *pid, int *control,
          struct err *err)
{
  int pair[2];

  fault_arm(plan->fault);
  int faulted = fault_here(RAMET_STEP_STEM_FORK, err);
  fault_arm(RAMET_STEP_NONE);
  if (faulted < 0)
    return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_STEM_FORK, "socketpair: %s", strerror(errno));
  long child = sys_clone(0, NULL);
  if (child == 0)
    become_stem(plan, region, region_length, pair[1]);
  int saved = errno;
  close(pair[1]);
  errno = saved;
  if (child < 0) {
    close(pair[0]);
    return err_step(err, RAMET_STEP_STEM_FORK, "clone: %s", strerror(errno));
  }
  *pid = (int)child;
  *control = pair[0];
  return 0;
}

_Static_assert(PIE_ENTRANCES_MAX >= CGROUP_DIRECTORIES_MAX, "an order holds an entrance to each hierarchy");

static int
send_order(int control, struct pie_spawn order, const int *fds)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int) * (PIE_SPAWN_FDS + PIE_ENTRANCES_MAX))];
  } space;
  uint32_t length = (uint32_t)(sizeof(int) * (PIE_SPAWN_FDS + order.entrances));
  struct iovec iov = {&order, sizeof order};
  struct msghdr message = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = space.bytes,
                           .msg_controllen = (socklen_t)CMSG_SPACE(length)};

  memset(&space, 0, sizeof space);
  struct cmsghdr *c = &space.align;
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = (socklen_t)CMSG_LEN(length);
  memcpy(CMSG_DATA(c), fds, length);
  return sendmsg(control, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

void
spawn_ends_close(struct spawn_ends *ends)
{
  close_fd(&ends->status);
  close_fd(&ends->descriptors);
  close_fd(&ends->nursery);
  cgroups_close_entrances(&ends->entrances);
}

int
stem_order(int control, int init_pidfd, const struct spawn_ends *ends)
{
  int fds[PIE_SPAWN_FDS + PIE_ENTRANCES_MAX] = {init_pidfd, ends->status, ends->descriptors, ends->nursery};
  struct pie_spawn order = {.namespaces = NAMESPACES,
                            .fault = ends->fault,
                            .entrances = (uint32_t)ends->entrances.count,
                            .born_inside = ends->entrances.born_inside};

  memcpy(fds + PIE_SPAWN_FDS, ends->entrances.fds, sizeof(int) * order.entrances);
  return send_order(control, order, fds);
}

int
stem_order_spare(int control, int spare, int pagemap)
{
  /* A descriptor in every place: the stem closes what only stands there. */
  const int fds[PIE_SPAWN_FDS] = {spare, pagemap >= 0 ? pagemap : spare, spare, spare};

  return send_order(control, (struct pie_spawn){.spare = 1, .namespaces = pagemap >= 0}, fds);
}
