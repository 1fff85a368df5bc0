/* SPDX-License-Identifier: Apache-2.0
 * Ownership by attribute: a descriptor or mapping is released when its variable leaves scope,
 * unless it was handed on by steal_fd(). */
#ifndef RAMET_CLEANUP_H
#define RAMET_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MUST_CHECK __attribute__((warn_unused_result))

static inline void
cleanup_fd_fn(int *fd)
{
  if (*fd >= 0) {
    int saved = errno;
    close(*fd);
    errno = saved;
  }
}

static inline void
cleanup_free_fn(void *p)
{
  free(*(void **)p);
}

#define cleanup_fd __attribute__((cleanup(cleanup_fd_fn)))
#define cleanup_free __attribute__((cleanup(cleanup_free_fn)))

static inline int
steal_fd(int *fd)
{
  int value = *fd;
  *fd = -1;
  return value;
}

static inline void
close_fd(int *fd)
{
  cleanup_fd_fn(fd);
  *fd = -1;
}

#endif
