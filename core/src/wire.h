/* SPDX-License-Identifier: Apache-2.0
 * Frames, attributes and descriptor passing: PROTOCOL.md, "Frames". */
#ifndef RAMET_WIRE_H
#define RAMET_WIRE_H

#include <stddef.h>

#include "err.h"

struct span {
  const uint8_t *data;
  uint32_t length;
};

/* A received frame. It owns its descriptors and its mapping: frame_release(). */
struct frame {
  uint16_t kind;
  uint64_t request;
  struct span payload;
  int fds[RAMET_FRAME_FDS];
  int fd_count;
  void *mapping;
  size_t mapping_length;
  void *copy;
};

enum frame_result { FRAME_GOT, FRAME_NONE, FRAME_CLOSED, FRAME_MALFORMED };

/* Reads one frame into `buffer` (RAMET_FRAME_BYTES), never blocks. FRAME_MALFORMED fills err and keeps `request`
 * when the header was readable. */
enum frame_result frame_receive(int socket, uint8_t *buffer, struct frame *frame, struct err *err) MUST_CHECK;
void frame_release(struct frame *frame);
/* Makes the frame independent of the buffer it was read into. */
int frame_keep(struct frame *frame) MUST_CHECK;
/* Takes descriptor `index` out of the frame. */
int frame_steal_fd(struct frame *frame, uint32_t index);

/* Walks the attributes of a payload: 1 and the next one, 0 at the end, -1 when malformed. */
struct attr_walk {
  struct span rest;
};
int attr_next(struct attr_walk *walk, uint16_t *tag, struct span *value, struct err *err) MUST_CHECK;

int span_u32(struct span value, uint32_t *out) MUST_CHECK;
int span_u64(struct span value, uint64_t *out) MUST_CHECK;
/* Text without NUL bytes. */
bool span_is_text(struct span value);

/* Builds a payload in memory that it owns: writer_free(). An allocation failure is remembered and reported by
 * writer_send(). */
struct writer {
  uint8_t *data;
  size_t length;
  size_t capacity;
  bool failed;
};
void put_bytes(struct writer *writer, uint16_t tag, const void *data, size_t length);
void put_text(struct writer *writer, uint16_t tag, const char *text);
void put_u32(struct writer *writer, uint16_t tag, uint32_t value);
void put_u64(struct writer *writer, uint16_t tag, uint64_t value);
/* Appends attributes that are already encoded. */
void put_raw(struct writer *writer, struct span attributes);
void put_err(struct writer *writer, const struct err *err);
void writer_free(struct writer *writer);
#define cleanup_writer __attribute__((cleanup(writer_free)))

/* Sends without blocking; -1 with errno. */
int frame_send(int socket, uint16_t kind, uint64_t request, const struct writer *writer, const int *fds,
               int fd_count) MUST_CHECK;
/* Waits until there is room: for those whom core never waits for. */
int frame_send_waiting(int socket, uint16_t kind, uint64_t request, const struct writer *writer, const int *fds,
                       int fd_count) MUST_CHECK;

#endif
