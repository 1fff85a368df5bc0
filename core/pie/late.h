/* SPDX-License-Identifier: Apache-2.0
 * Memory that a stem cannot hold: shared files, which only the child has open, and what the limits count. */
#ifndef RAMET_PIE_LATE_H
#define RAMET_PIE_LATE_H

#include "pages.h"

#include <fcntl.h>
#include <sys/mman.h>

/* The same file anew, for writing too. */
PIE_INLINE long
open_again(struct pie_args *args, int fd, uint32_t flags)
{
  int length = 1, at = PIE_FD_PATH_NUMBER;

  for (int rest = fd; rest >= 10; rest /= 10)
    length++;
  args->fd_path[at + length] = 0;
  for (; length > 0; fd /= 10)
    args->fd_path[at + --length] = (char)('0' + fd % 10);
  return SYS4(SYS_openat, AT_FDCWD, args->fd_path, flags, 0);
}

PIE_INLINE void
map_shared(struct pie_args *args)
{
  struct pie_late *late = (struct pie_late *)args->late_table;

  child_step(args, RAMET_STEP_CHILD_SHARED_MEMORY);
  for (uint32_t i = 0; i < args->late_count; i++, late++) {
    long fd = late->path ? open_named(late->path, (uint64_t)late->open_flags)
                         : open_again(args, ((int32_t *)args->received)[late->description], late->open_flags);
    if (fd < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, fd);
    long at = SYS6(SYS_mmap, late->start, late->length, late->protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                   fd, late->offset);
    if ((uint64_t)at != late->start)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, at);
    SYS1(SYS_close, fd);
  }
}

/* Behind the limits: how much memory may be locked is one of them. */
PIE_INLINE void
advise_late(struct pie_args *args)
{
  struct pie_protect *advice = (struct pie_protect *)args->advice_table;

  for (uint32_t i = 0; i < args->advice_count; i++, advice++) {
    long result = advise(advice);
    if (result < 0)
      pie_fail(args->status, RAMET_STEP_CHILD_SHARED_MEMORY, result);
  }
}

#endif
