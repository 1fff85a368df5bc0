/* SPDX-License-Identifier: Apache-2.0
 * Mappings: what stands behind each, under which name it will be found again, and its record. */
#define _GNU_SOURCE
#include "capture_parts.h"
#include "deposit.h"

#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- names ---------------------------------------------------------------------------------------------------- */

static bool
is_named(const struct capture *capture, const struct procmap *map, const char *name)
{
  cleanup_fd int fd = capture_look(capture, name);
  struct stat st;

  return fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == map->inode;
}

/* /proc writes a line feed in a name as \012, and nothing else that could be told from it. */
static void
unescape(const char *name, char out[PATH_MAX])
{
  size_t used = 0;

  while (*name && used < PATH_MAX - 1) {
    bool escaped = strncmp(name, "\\012", 4) == 0;
    out[used++] = escaped ? '\n' : *name;
    name += escaped ? 4 : 1;
  }
  out[used] = 0;
}

/* Whether the file has no name any more: one that is called "x (deleted)" has. */
static bool
is_deleted(const struct capture *capture, const struct procmap *map)
{
  return capture_ends_deleted(map->name) && !is_named(capture, map, map->name);
}

/* Files outside the root's layers and binds: mounts of the sandbox's own. */
static bool
is_elsewhere(const struct procmap *map)
{
  return strncmp(map->name, "/dev/", 5) == 0 || strncmp(map->name, "/proc/", 6) == 0;
}

uint32_t
capture_backing(const struct capture *capture, const struct procmap *map)
{
  if (strncmp(map->name, "[vvar", 5) == 0 || strcmp(map->name, "[vdso]") == 0)
    return IMAGE_SPECIAL;
  bool has_file = map->name[0] == '/' && map->inode && !is_deleted(capture, map);
  if (map->shared)
    return has_file ? IMAGE_SHARED_FILE : IMAGE_SHARED;
  return has_file && !is_elsewhere(map) ? IMAGE_FILE : IMAGE_ANONYMOUS;
}

bool
capture_wants_all(const struct capture *capture, const struct procmap *map)
{
  return !map->shared && map->inode && map->name[0] == '/' && strcmp(map->name, "/dev/zero") != 0 &&
         capture_backing(capture, map) == IMAGE_ANONYMOUS;
}

bool
capture_is_guests(const struct capture *capture, const struct procmap *map)
{
  return strcmp(map->name, "[vsyscall]") != 0 &&
         (map->start >= capture->source->region_end || map->end <= capture->source->region_start);
}

/* ---- flags ---------------------------------------------------------------------------------------------------- */

static const struct {
  const char *text;
  uint32_t flag;
} vm_flags[] = {
    {"gd", IMAGE_GROWS_DOWN}, {"dc", IMAGE_DONTFORK},  {"wf", IMAGE_WIPEONFORK}, {"dd", IMAGE_DONTDUMP},
    {"lo", IMAGE_LOCKED},     {"hg", IMAGE_HUGE},      {"nh", IMAGE_NO_HUGE},    {"mg", IMAGE_MERGEABLE},
    {"dp", IMAGE_DROPPABLE},  {"mw", IMAGE_MAY_WRITE},
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

/* A mapping's first line may hold anything, as names of files do: what is looked for stands at the start of another. */
uint32_t
capture_flags_at(struct flag_reader *reader, uint64_t start)
{
  while (reader->at && *reader->at) {
    char *end;
    uint64_t address = strtoull(reader->at, &end, 16);
    if (address > start)
      return 0; /* this text does not have it */
    const char *flags = strstr(end, "\nVmFlags: ");
    if (!flags)
      break;
    const char *next = strchr(flags + 1, '\n');
    reader->at = next ? next + 1 : NULL;
    if (address == start)
      return parse_flags(flags + strlen("\nVmFlags: "));
  }
  return 0;
}

/* ---- paths ---------------------------------------------------------------------------------------------------- */

/* The top of a mount of core's is below that of the root for a bind, and above it for a writable layer. */
static bool
path_ends_with(struct span path, const char *end)
{
  if (strncmp(end, "/upper/", 7) == 0 && path.length == strlen(end) - 6 &&
      memcmp(path.data, end + 6, path.length) == 0)
    return true;
  size_t length = strlen(end);

  return path.length >= length && memcmp(path.data + path.length - length, end, length) == 0;
}

/* In a fork, files are mapped from core's own mounts, and /proc names them from the top of those: what of the name is
 * missing in front the parent's image tells. Neighbours of the parent's may have become one mapping, and a mapping
 * may have been moved: then any other of the same file tells, unless the name leads to the file as it is. */
static bool
is_file(const struct image_mapping *mapping)
{
  return mapping->backing == IMAGE_FILE || mapping->backing == IMAGE_SHARED_FILE;
}

static struct span
inherited_path(const struct capture *capture, const struct procmap *map, const char *name)
{
  const struct image *parent = capture->source->parent;
  const struct process_image *process = parent ? &parent->processes[0] : NULL;
  const struct image_mapping *here = process && map->inode ? image_mapping_at(process, map->start) : NULL;
  struct span elsewhere = {0};

  if (!process || !map->inode)
    return elsewhere;
  if (here && is_file(here) && map->offset - here->offset == map->start - here->start &&
      path_ends_with(process->paths[here - process->mappings], name))
    return process->paths[here - process->mappings];
  for (uint32_t i = 0; i < process->mapping_count; i++)
    if (is_file(&process->mappings[i]) && path_ends_with(process->paths[i], name))
      elsewhere = process->paths[i];
  return elsewhere.length && !is_named(capture, map, name) ? elsewhere : (struct span){0};
}

static int
path_of(const struct capture *capture, const struct procmap *map, uint32_t backing, char out[PATH_MAX],
        struct err *err)
{
  struct span inherited = {0};

  if (strlen(map->name) >= PATH_MAX)
    return capture_refuse(capture, err, "maps a file whose path is too long");
  unescape(map->name, out);
  bool escaped = strcmp(out, map->name) != 0;
  if (backing == IMAGE_FILE || backing == IMAGE_SHARED_FILE) {
    inherited = inherited_path(capture, map, map->name);
    if (inherited.length == 0 && escaped)
      inherited = inherited_path(capture, map, out);
  }
  if (inherited.length) {
    memcpy(out, inherited.data, inherited.length);
    out[inherited.length] = 0;
  } else if (escaped && is_named(capture, map, map->name)) {
    memcpy(out, map->name, strlen(map->name) + 1);
  }
  return 0;
}

/* ---- records -------------------------------------------------------------------------------------------------- */

/* A file may be shorter than its mapping: what lies behind its end cannot be read, nor could it by the guest. */
int
capture_all_pages(struct capture *capture, int memory, const struct procmap *map, struct err *err)
{
  uint64_t length = map->end - map->start;
  uint8_t byte;

  while (length && pread(memory, &byte, 1, (off_t)(map->start + length - IMAGE_PAGE)) != 1)
    length -= IMAGE_PAGE;
  return length ? capture_run(capture, memory, map->start, map->start + length, err) : 0;
}

static void
put_kept(struct capture *capture, const struct procmap *map)
{
  for (uint32_t i = 0; i < capture->kept_count; i++)
    if (capture->kept[i].address >= map->start && capture->kept[i].address < map->end)
      put_bytes(&capture->description, IMAGE_TAG_RUN, &capture->kept[i], sizeof capture->kept[i]);
}

/* Whether the stem can have its pages: all of the first process, of others what stands in the deposit. */
static bool
stays_frozen(const struct capture *capture, const struct image_mapping *mapping)
{
  return capture->leaving &&
         (capture == capture->tree->processes[0] || (deposit_has_place(mapping) && !capture_may_inherit(capture)));
}

static int
put_record(struct capture *capture, const struct procmap *map, uint32_t flags, struct err *err)
{
  struct {
    struct image_mapping mapping;
    char path[PATH_MAX];
  } record = {.mapping = {.start = map->start,
                          .end = map->end,
                          .offset = map->offset,
                          .protection = map->protection,
                          .backing = capture_backing(capture, map),
                          .flags = flags}};

  capture->leaves = stays_frozen(capture, &record.mapping);
  if (record.mapping.backing == IMAGE_SHARED)
    record.mapping.description = capture_object(capture, map);
  if (path_of(capture, map, record.mapping.backing, record.path, err) < 0)
    return -1;
  put_bytes(&capture->description, IMAGE_TAG_MAPPING, &record, sizeof record.mapping + strlen(record.path));
  return 0;
}

/* `scan`: of the process that has the pages, or NULL: they are not to be kept. */
static int
put_mapping(struct capture *capture, struct scan *scan, const struct procmap *map, uint32_t flags, struct err *err)
{
  uint32_t backing = capture_backing(capture, map);

  capture->mapping = map;
  capture->mapping_flags = flags;
  if (put_record(capture, map, flags, err) < 0)
    return -1;
  if (backing == IMAGE_SPECIAL || map->shared)
    return 0;
  if (flags & IMAGE_DONTFORK && !capture->source->stem && capture->twin)
    put_kept(capture, map);
  else if (scan && capture_wants_all(capture, map))
    return capture_all_pages(capture, scan->memory, map, err);
  else if (scan)
    return capture_written(capture, scan, map, err);
  return 0;
}

/* Of a stem's image: shared memory and late advice, which children have and a stem has not. */
static bool
is_shared(const struct image_mapping *mapping)
{
  return mapping->backing == IMAGE_SHARED || mapping->backing == IMAGE_SHARED_FILE;
}

static void
put_shared_below(struct capture *capture, uint32_t *next, uint64_t end)
{
  const struct process_image *process = capture->source->stem ? &capture->source->stem->processes[0] : NULL;

  for (; process && *next < process->mapping_count && process->mappings[*next].start < end; (*next)++) {
    const struct image_mapping *mapping = &process->mappings[*next];
    struct span path = process->paths[*next];
    struct {
      struct image_mapping mapping;
      char path[PATH_MAX];
    } record = {.mapping = *mapping};
    if (!is_shared(mapping))
      continue;
    memcpy(record.path, path.data, path.length);
    put_bytes(&capture->description, IMAGE_TAG_MAPPING, &record, sizeof record.mapping + path.length);
  }
}

static uint32_t
late_flags(const struct capture *capture, uint32_t *next, uint64_t start)
{
  const struct process_image *process = capture->source->stem ? &capture->source->stem->processes[0] : NULL;

  while (process && *next < process->mapping_count && process->mappings[*next].end <= start)
    (*next)++;
  if (!process || *next == process->mapping_count || process->mappings[*next].start > start)
    return 0;
  return process->mappings[*next].flags & (IMAGE_DONTFORK | IMAGE_LOCKED);
}

static int
put_mappings(struct capture *capture, struct scan *scan, struct flag_reader flags, struct err *err)
{
  uint32_t next_shared = 0, next_flags = 0;

  for (uint32_t i = 0; i < capture->maps.count; i++) {
    const struct procmap *map = &capture->maps.items[i];
    uint32_t own = capture_flags_at(&flags, map->start);
    if (!capture_is_guests(capture, map) || (capture->source->stem && map->shared))
      continue;
    put_shared_below(capture, &next_shared, map->start);
    if (put_mapping(capture, scan, map, own | late_flags(capture, &next_flags, map->start), err) < 0)
      return -1;
  }
  put_shared_below(capture, &next_shared, UINT64_MAX);
  return 0;
}

/* Flags are in smaps only, which walks the page tables: read from the twin, after the pause, unless what the source
 * has and a twin has not forced to read the source's. Without a twin this is of the pause. */
int
capture_pages(struct capture *capture, struct err *err)
{
  static struct scan scan;
  char path[48];

  if (fault_here(RAMET_STEP_PAGES, err) < 0 || capture_setup_pages(err) < 0)
    return -1;
  /* The copy of a parked twin has the pages: the image says only what is mapped where. */
  if (capture->parked)
    return put_mappings(capture, NULL, (struct flag_reader){capture->smaps}, err);
  int from = capture->twin ? capture->twin : capture->pid;
  snprintf(path, sizeof path, "/proc/%d/smaps", from);
  cleanup_free char *own = capture->smaps ? NULL : procfs_read(path, NULL);
  if (!capture->smaps && !own)
    return err_step(err, RAMET_STEP_PAGES, "read %s: %s", path, strerror(errno));
  int result = capture_scan_open(&scan, from, IMAGE_PAGE, ADDRESS_END, err);
  if (result == 0)
    result = put_mappings(capture, &scan, (struct flag_reader){capture->smaps ? capture->smaps : own}, err);
  capture_scan_close(&scan);
  return result;
}
