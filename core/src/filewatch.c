/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "filewatch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/stat.h>

/* Generation and number, as a tmpfs makes handles. */
#define HANDLE_BYTES 12
#define CHANGES (FAN_MODIFY | FAN_ATTRIB | FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO | FAN_ONDIR)

static uint64_t
number_of(const uint32_t words[3])
{
  return words[1] | (uint64_t)words[2] << 32;
}

static bool
handles_are_known(int layer)
{
  struct {
    uint32_t bytes;
    int type;
    uint32_t words[HANDLE_BYTES / 4];
  } handle = {.bytes = HANDLE_BYTES};
  struct stat st;
  int mount;

  return fstat(layer, &st) == 0 &&
         name_to_handle_at(layer, "", (struct file_handle *)(void *)&handle, &mount, AT_EMPTY_PATH) == 0 &&
         handle.bytes == HANDLE_BYTES && number_of(handle.words) == st.st_ino;
}

int
filewatch_open(int layer)
{
  cleanup_fd int watch = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);

  if (watch < 0 || !handles_are_known(layer) ||
      fanotify_mark(watch, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE, layer, ".") < 0)
    return -1;
  return steal_fd(&watch);
}

int
filewatch_all(int watch, int layer)
{
  return fanotify_mark(watch, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, CHANGES, layer, ".");
}

void
filewatch_less(int watch, int layer)
{
  fanotify_mark(watch, FAN_MARK_REMOVE | FAN_MARK_FILESYSTEM, CHANGES, layer, ".");
}

static int
note_event(const struct fanotify_event_metadata *event, struct inode_map *closed, struct inode_map *changed,
           bool *lost)
{
  const struct fanotify_event_info_fid *info = (const void *)(event + 1);
  const struct file_handle *handle = (const void *)info->handle;
  uint32_t words[HANDLE_BYTES / 4];

  if (event->mask & FAN_Q_OVERFLOW ||
      event->event_len < sizeof *event + sizeof *info + sizeof *handle + HANDLE_BYTES ||
      info->hdr.info_type != FAN_EVENT_INFO_TYPE_FID || handle->handle_bytes != HANDLE_BYTES) {
    *lost = true;
    return 0;
  }
  memcpy(words, handle->f_handle, sizeof words);
  uint64_t number = number_of(words);
  return (event->mask & FAN_CLOSE_WRITE && inode_map_put(closed, number, 1) < 0) ||
                 inode_map_put(changed, number, 1) < 0
             ? -1
             : 0;
}

int
filewatch_read(int watch, struct inode_map *closed, struct inode_map *changed, bool *lost, struct err *err)
{
  static _Alignas(struct fanotify_event_metadata) char buffer[65536];
  ssize_t length;

  while ((length = read(watch, buffer, sizeof buffer)) > 0) {
    const struct fanotify_event_metadata *event = (const void *)buffer;
    for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length))
      if (note_event(event, closed, changed, lost) < 0)
        return err_code(err, "internal", "no memory for changed files");
  }
  if (length < 0 && errno != EAGAIN)
    return err_step(err, RAMET_STEP_COPY_UPPER, "read of changed files: %s", strerror(errno));
  return 0;
}
