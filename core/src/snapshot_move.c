/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "snapshot_parts.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "capture.h"
#include "control.h"
#include "deposit.h"
#include "filters.h"
#include "log.h"
#include "mounts.h"
#include "stem.h"
#include "syscalls.h"
#include "treecopy.h"

/* ---- export and load ------------------------------------------------------------------------------------------ */

static void
tell_exported(struct snapshot *s, uint64_t request)
{
  cleanup_writer struct writer writer = {0};
  int fds[2 + RAMET_LAYERS_MAX] = {s->description, s->pages};
  int count = 2 + root_uppers(s->root, fds + 2);

  put_u32(&writer, RAMET_TAG_SNAPSHOT, s->id);
  put_u64(&writer, RAMET_TAG_MEMORY_BYTES, s->memory_bytes);
  put_u64(&writer, RAMET_TAG_FILE_BYTES, s->file_bytes);
  /* Mounts are held by O_PATH descriptors, which no reader can list. */
  for (int i = 2; i < count; i++)
    fds[i] = openat(fds[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  control_reply_fds(request, &writer, fds, count);
  for (int i = 2; i < count; i++)
    close_fd(&fds[i]);
}

static void
export_failed(struct snapshot *s, const struct err *err)
{
  log_err("export_failed", err);
  s->stays = true;
  if (s->export_request)
    control_refuse(s->export_request, err);
  s->export_request = 0;
  snapshot_memory_relieve();
}

static int
take_exported(struct snapshot *s, struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;

  while (attr_next(&walk, &tag, &value, err) > 0)
    if (tag == RAMET_TAG_MEMORY_BYTES && span_u64(value, &s->memory_bytes) < 0)
      s->memory_bytes = 0;
  image_free(&s->image);
  munmap(s->mapping, s->mapping_length);
  close_fd(&s->description);
  close_fd(&s->pages);
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  s->in_stem = false;
  return snapshot_map_description(s, err);
}

void
snapshot_exported(struct snapshot *s, struct frame *frame)
{
  uint64_t request = s->export_request;
  struct err err = {0};

  s->exporting = false;
  snapshot_close_watched(&s->tracer, &s->tracer_watch);
  if (frame->kind != RAMET_OK || frame->fd_count != 2) {
    snapshot_read_refusal(frame, &err);
    export_failed(s, &err);
    return;
  }
  s->export_request = 0;
  if (take_exported(s, frame, &err) < 0) {
    if (request)
      control_refuse(request, &err);
    snapshot_retire(s);
    return;
  }
  if (request)
    tell_exported(s, request);
  snapshot_memory_relieve();
}

void
snapshot_exporter_lost(struct snapshot *s)
{
  struct err err;

  s->exporting = false;
  snapshot_close_watched(&s->tracer, &s->tracer_watch);
  err_code(&err, "exporter_lost", "the exporter ended without a word");
  export_failed(s, &err);
}

int
snapshot_write_out(struct snapshot *s, struct err *err)
{
  struct export_source source = {.stem_pid = s->stem_pid,
                                 .image = &s->image,
                                 .original = {s->mapping, (uint32_t)s->mapping_length},
                                 .region_start = s->region_start,
                                 .deposit = deposit_start(s->region_start, s->region_length),
                                 .region_end =
                                     deposit_start(s->region_start, s->region_length) + deposit_length(&s->image),
                                 .pages = s->pages,
                                 .directory = snapshot_memory_directory()};
  cleanup_fd int theirs = -1;

  if (s->stem < 0)
    return err_code(err, "stem_lost", "the snapshot's stem is gone, and its memory was nowhere else");
  if (snapshot_watch_tracer(s, RAMET_STEP_EXPORT, &theirs, err) < 0)
    return -1;
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    export_main(&source, theirs);
  if (pid < 0) {
    err_step(err, RAMET_STEP_EXPORT, "start the exporter: %s", strerror(errno));
    snapshot_close_watched(&s->tracer, &s->tracer_watch);
    return -1;
  }
  s->tracer_pid = (int)pid;
  s->exporting = true;
  return 0;
}

int
snapshot_export(uint64_t id, uint64_t request, struct err *err)
{
  struct snapshot *s = snapshot_by_id(id);

  if (!s || s->state != SNAPSHOT_READY)
    return err_code(err, "unknown_snapshot", "snapshot %llu is not there", (unsigned long long)id);
  if (!s->in_stem) {
    tell_exported(s, request);
    return 0;
  }
  if (s->export_request)
    return err_code(err, "busy", "snapshot %u is being exported", s->id);
  if (!s->exporting && snapshot_write_out(s, err) < 0)
    return -1;
  s->export_request = request;
  return 0;
}

/* Copies what lies in a directory of the caller's into a tmpfs of core's, and puts it on top of the root. */
static int
stack_upper(struct snapshot *s, int from, struct err *err)
{
  struct tmpfs_options options = {.mode = "0700"};
  struct treecopy_count count = {0};
  struct root *below = s->root ? s->root : s->base;

  if (fault_here(RAMET_STEP_LOAD, err) < 0)
    return -1;
  cleanup_fd int to = tmpfs_make(&options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, RAMET_STEP_LOAD, err);
  if (to < 0)
    return -1;
  cleanup_fd int source = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  cleanup_fd int target = openat(to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (source < 0 || target < 0)
    return err_step(err, RAMET_STEP_LOAD, "open a writable layer: %s", strerror(errno));
  if (treecopy(source, target, NULL, &count, RAMET_STEP_LOAD, err) < 0)
    return -1;
  s->file_bytes += count.bytes;
  struct root *derived = root_derive(below, steal_fd(&to), err);
  if (s->root)
    root_release(s->root);
  s->root = derived;
  return derived ? 0 : -1;
}

static int
read_load(const struct frame *frame, uint32_t *id, uint32_t *root, uint32_t *filter, uint32_t *fault,
          struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more;

  *id = *root = *filter = *fault = 0;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    uint32_t *out = tag == RAMET_TAG_SNAPSHOT ? id
                    : tag == RAMET_TAG_ROOT   ? root
                    : tag == RAMET_TAG_FILTER ? filter
                    : tag == RAMET_TAG_FAULT  ? fault
                                              : NULL;
    if (!out || span_u32(value, out) < 0)
      return err_field(err, "payload", "tag %u of %u bytes does not belong into a load", tag, value.length);
  }
  if (more < 0)
    return -1;
  if (*id == 0 || snapshot_by_id(*id))
    return err_field(err, "snapshot", *id ? "this number is taken" : "is missing");
  if (frame->fd_count < 3)
    return err_field(err, "fds", "description, pages and at least one writable layer are needed");
  return 0;
}

/* What the description of a snapshot says that was never exported. */
static int
check_stored(const struct image *image, struct err *err)
{
  for (uint32_t i = 0; i < image->process_count; i++)
    for (uint32_t r = 0; r < image->processes[i].run_count; r++)
      if (image->processes[i].runs[r].offset == IMAGE_FROZEN)
        return err_field(err, "image", "its pages were not stored");
  return 0;
}

static int
load(struct snapshot *s, struct frame *frame, uint32_t root, struct err *err)
{
  struct root *base = root_find(root);

  if (!base)
    return err_code(err, "unknown_root", "root %u is not defined", root);
  if (filter_find(s->filter).length == 0)
    return err_code(err, "unknown_filter", "filter %u is not defined", s->filter);
  s->base = root_hold(base);
  s->description = frame_steal_fd(frame, 0);
  s->pages = frame_steal_fd(frame, 1);
  if (snapshot_map_description(s, err) < 0 || check_stored(&s->image, err) < 0)
    return -1;
  for (int i = frame->fd_count - 1; i >= 2; i--)
    if (stack_upper(s, frame->fds[i], err) < 0)
      return -1;
  if (stem_find_region(&s->image, 0, 0, &s->region_start, &s->region_length, err) < 0)
    return -1;
  s->captured_at = loop_now();
  return snapshot_build_stem(s, err);
}

int
snapshot_load(struct frame *frame, struct err *err)
{
  uint32_t id, root, filter, fault;

  if (read_load(frame, &id, &root, &filter, &fault, err) < 0 || snapshot_memory_admit(err) < 0)
    return -1;
  struct snapshot *s = snapshot_alloc(id, frame->request, err);
  if (!s)
    return -1;
  s->filter = filter;
  s->fault = (enum ramet_step)fault;
  if (load(s, frame, root, err) == 0)
    return 0;
  snapshot_retire(s);
  return -1;
}
