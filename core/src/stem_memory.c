/* SPDX-License-Identifier: Apache-2.0
 * What a stem's memory is made of, and that of the other processes of its sandbox: mappings, fills, what is kept of the
 * memory that a process is born with, moves of the kernel's own areas. */
#define _GNU_SOURCE
#include "stem_parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "deposit.h"
#include "procfs.h"
#include "syscalls.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08 /* Linux 6.11 */
#endif

/* Flags of a mapping that one call each gives back. */
static const struct {
  uint32_t flag;
  int32_t advice;
} advice_of[] = {
    {IMAGE_HUGE, MADV_HUGEPAGE},         {IMAGE_NO_HUGE, MADV_NOHUGEPAGE}, {IMAGE_MERGEABLE, MADV_MERGEABLE},
    {IMAGE_WIPEONFORK, MADV_WIPEONFORK}, {IMAGE_DONTDUMP, MADV_DONTDUMP},
};
_Static_assert(STEM_ADVICE_KINDS == 1 + sizeof advice_of / sizeof advice_of[0], "kinds of advice");

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

void
stem_add_protect(uint64_t table, uint32_t *count, const struct image_mapping *mapping, int32_t advice)
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
      stem_add_protect(b->args->protects, &b->args->protect_count, mapping, advice_of[i].advice);
}

/* The first process's files are opened here, in layers that never change; the others open theirs in their own root. */
static int
add_file(struct builder *b, uint32_t i, struct pie_map *map, struct opened *last)
{
  struct span path = b->process->paths[i];

  map->offset = b->process->mappings[i].offset;
  if (stem_is_first(b)) {
    map->fd = open_backing(b, path, last);
    return map->fd < 0 ? -1 : 0;
  }
  if (last->path.length != path.length || memcmp(last->path.data, path.data, path.length) != 0) {
    char *name = stem_table(b, path.length + 1, &last->address);
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
  struct pie_range *kept = stem_table(b, stem_inherited_runs(p) * sizeof *kept, &b->args->kept), *last = NULL;

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
    stem_add_protect(b->args->protects, &b->args->protect_count, mapping, PIE_PROTECT);
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

  if (mapping->backing == IMAGE_SPECIAL || stem_is_late(mapping))
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
    stem_add_protect(b->args->protects, &b->args->protect_count, mapping, PIE_PROTECT);
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
  if (stem_is_first(b) && find_huge(b, mapping, &start, &end))
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
  char *path = stem_table(b, sizeof FROZEN_PATH, &b->frozen_path);

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
  if (!b->plan->frozen || b->plan->frozen[0] == 0 || !stem_is_first(b))
    return 0;
  snprintf(path, sizeof path, "/proc/%d/mem", b->plan->frozen[0]);
  b->args->frozen = open(path, O_RDONLY | O_CLOEXEC);
  return b->args->frozen < 0 ? err_step(b->err, RAMET_STEP_STEM_FILL, "open %s: %s", path, strerror(errno)) : 0;
}

int
stem_build_memory(struct builder *b)
{
  const struct process_image *p = b->process;
  struct opened last = {.fd = -1};

  uint32_t inherited = stem_inherited_runs(p);

  build_kept(b);
  stem_table(b, (p->mapping_count + inherited) * sizeof(struct pie_map), &b->args->maps);
  stem_table(b, p->mapping_count * STEM_ADVICE_KINDS * sizeof(struct pie_protect), &b->args->protects);
  stem_table(b, 2 * (p->run_count + inherited) * sizeof(struct pie_fill), &b->args->fills);
  stem_table(b, 2 * p->run_count * sizeof(struct pie_store), &b->args->stores);
  stem_table(b, p->mapping_count * sizeof(struct pie_take), &b->args->takes);
  name_frozen(b);
  b->args->part = b->args->deposit + b->deposited;
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    uint64_t place = stem_is_first(b) ? 0 : deposit_place(&p->mappings[i], &b->deposited);
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

int
stem_build_moves(struct builder *b)
{
  struct procmaps own = {0};
  uint64_t park = b->args->region + b->args->region_length - PARKING_BYTES;

  if (!b->born_in && procfs_maps(getpid(), &own, RAMET_STEP_STEM_REGION, b->err) < 0)
    return -1;
  int result = add_moves(b, &own, park);
  procfs_maps_free(&own);
  return result;
}

int
stem_build_mm(struct builder *b)
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
  memcpy(stem_table(b, b->process->auxv.length, &auxv), b->process->auxv.data, b->process->auxv.length);
  mm->auxv = auxv;
  mm->exe = -1;
  if (!stem_is_first(b))
    return 0;
  mm->exe = root_open_file(b->plan->root, p->exe, RAMET_STEP_STEM_FILES, b->err);
  return mm->exe < 0 ? -1 : 0;
}
