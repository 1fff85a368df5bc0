/* SPDX-License-Identifier: Apache-2.0
 * Inside of the capture of descriptors: capture_fds.c (table, files, what has no name), capture_pipes.c,
 * capture_sockets.c, capture_terminals.c. Nobody else includes this. */
#ifndef RAMET_CAPTURE_FDS_H
#define RAMET_CAPTURE_FDS_H

#include "capture.h"

#include <sys/stat.h>

struct found_fd {
  struct capture *owner;
  int next; /* the next description of the same hash, or -1 */
  int number, open_flags;
  bool dropped;
  uint32_t description;
  struct stat st;
  char link[512];
  char *info; /* fdinfo */
};

#define FD_HASHES 1024

/* Of all processes, one after another. */
struct fd_table {
  struct found_fd *items;
  int count, capacity;
  bool again; /* something was dropped that others may have counted on */
  int first[FD_HASHES]; /* description of each hash, or -1 */
  int diag; /* asks the guest's network namespace for its unix sockets; -1: nobody has asked yet */
};

struct writing {
  struct capture *capture; /* of the descriptor that was found first */
  struct fd_table *table;
  struct found_fd *fd;
  struct image_description out;
  char path[4096];
  size_t path_length;
};

/* "fd 7 is ..." */
int fd_refuse(struct writing *w, struct err *err, const char *what) MUST_CHECK;
/* The guest's own open file, in the tracer. */
int fd_take_copy(const struct writing *w);
/* Keeps what lies in `file` as the content of the description. */
int fd_keep_content(struct writing *w, int file, uint64_t length, struct err *err) MUST_CHECK;

/* Whether the name that /proc tells leads to the open file. */
bool fd_has_name(const struct writing *w);

/* capture_locks.c */
int fd_put_locks(const struct fd_table *table, const struct found_fd *fd, struct err *err) MUST_CHECK;

int fd_write_pipe(struct writing *w, struct err *err) MUST_CHECK;
/* capture_terminals.c */
bool fd_is_terminal(const struct found_fd *fd);
int fd_write_terminal(struct writing *w, struct err *err) MUST_CHECK;
int fd_write_socket(struct writing *w, struct err *err) MUST_CHECK;

#endif
