/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "wire.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "syscalls.h"

_Static_assert(sizeof(struct ramet_frame) == 24, "frame header has no padding");
_Static_assert(sizeof(struct ramet_attr) == 8, "attribute header has no padding");

static uint32_t
padded(uint32_t length)
{
  return (length + 3u) & ~3u;
}

void
frame_release(struct frame *frame)
{
  for (int i = 0; i < frame->fd_count; i++)
    close_fd(&frame->fds[i]);
  frame->fd_count = 0;
  if (frame->mapping)
    munmap(frame->mapping, frame->mapping_length);
  frame->mapping = NULL;
  free(frame->copy);
  frame->copy = NULL;
}

int
frame_keep(struct frame *frame)
{
  if (frame->mapping || frame->copy || frame->payload.length == 0)
    return 0;
  frame->copy = malloc(frame->payload.length);
  if (!frame->copy)
    return -1;
  memcpy(frame->copy, frame->payload.data, frame->payload.length);
  frame->payload.data = frame->copy;
  return 0;
}

int
frame_steal_fd(struct frame *frame, uint32_t index)
{
  if (index >= (uint32_t)frame->fd_count)
    return -1;
  return steal_fd(&frame->fds[index]);
}

static void
take_descriptors(struct msghdr *message, struct frame *frame)
{
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const uint8_t *data = CMSG_DATA(c);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, data + i * sizeof fd, sizeof fd);
      if (frame->fd_count < RAMET_FRAME_FDS)
        frame->fds[frame->fd_count++] = fd;
      else
        close(fd);
    }
  }
}

/* The sender must have sealed the file: a mapping of a file that shrinks raises SIGBUS in core. */
static int
map_payload(struct frame *frame, uint32_t length, struct err *err)
{
  int fd = frame->fds[frame->fd_count - 1];
  struct stat st;
  int wanted = F_SEAL_SHRINK | F_SEAL_WRITE;
  int seals = fcntl(fd, F_GET_SEALS);

  if (seals < 0 || (seals & wanted) != wanted)
    return err_field(err, "payload", "the payload's memory file is not sealed against writing and shrinking");
  if (fstat(fd, &st) < 0 || st.st_size < (off_t)length || length == 0)
    return err_field(err, "payload", "the payload's memory file is shorter than %u bytes", length);
  void *mapping = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED)
    return err_field(err, "payload", "the payload cannot be mapped: %s", strerror(errno));
  frame->mapping = mapping;
  frame->mapping_length = length;
  frame->payload = (struct span){mapping, length};
  close_fd(&frame->fds[--frame->fd_count]);
  return 0;
}

static int
check_header(const uint8_t *buffer, size_t got, int truncated, struct frame *frame, struct err *err)
{
  struct ramet_frame header;

  if (got < sizeof header)
    return err_field(err, "frame", "%zu bytes are no frame", got);
  memcpy(&header, buffer, sizeof header);
  if (header.magic != RAMET_FRAME_MAGIC)
    return err_field(err, "magic", "not a frame of this protocol");
  frame->kind = header.kind;
  frame->request = header.request;
  if (header.version != RAMET_PROTOCOL_VERSION) {
    err_code(err, "version", "the frame speaks version %u, this core speaks %u", header.version,
             RAMET_PROTOCOL_VERSION);
    return -1;
  }
  if (truncated)
    return err_field(err, "length", "the frame or its descriptors do not fit");
  bool in_file = header.flags & RAMET_FLAG_PAYLOAD_FD;
  if (header.flags & ~RAMET_FLAG_PAYLOAD_FD)
    return err_field(err, "flags", "unknown flags %#x", header.flags);
  if (header.length > RAMET_PAYLOAD_MAX)
    return err_field(err, "length", "a payload of %u bytes is above %u", header.length, RAMET_PAYLOAD_MAX);
  if (frame->fd_count != header.fds + (in_file ? 1 : 0))
    return err_field(err, "fds", "%d descriptors came, %u were announced", frame->fd_count, header.fds);
  if (in_file && got != sizeof header)
    return err_field(err, "length", "%zu bytes came beside the payload's file", got - sizeof header);
  if (in_file)
    return map_payload(frame, header.length, err);
  if (header.length != got - sizeof header)
    return err_field(err, "length", "%u bytes were announced, %zu came", header.length, got - sizeof header);
  frame->payload = (struct span){buffer + sizeof header, header.length};
  return 0;
}

enum frame_result
frame_receive(int socket, uint8_t *buffer, struct frame *frame, struct err *err)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int) * RAMET_FRAME_FDS)];
  } control;
  struct iovec iov = {buffer, RAMET_FRAME_BYTES};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  ssize_t got;

  memset(frame, 0, sizeof *frame);
  /* ECONNRESET comes once, before what the peer had sent, when it closed with frames of ours unread. */
  do
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? FRAME_NONE : FRAME_CLOSED;
  take_descriptors(&message, frame);
  if (got == 0 && frame->fd_count == 0)
    return FRAME_CLOSED;
  if (check_header(buffer, (size_t)got, message.msg_flags & (MSG_TRUNC | MSG_CTRUNC), frame, err) < 0) {
    frame_release(frame);
    return FRAME_MALFORMED;
  }
  return FRAME_GOT;
}

int
attr_next(struct attr_walk *walk, uint16_t *tag, struct span *value, struct err *err)
{
  struct ramet_attr header;

  if (walk->rest.length == 0)
    return 0;
  if (walk->rest.length < sizeof header)
    return err_field(err, "payload", "%u bytes are left, no attribute", walk->rest.length);
  memcpy(&header, walk->rest.data, sizeof header);
  uint32_t room = walk->rest.length - (uint32_t)sizeof header;
  if (header.zero != 0 || header.length > room || padded(header.length) > room)
    return err_field(err, "payload", "attribute %u announces %u bytes, %u are left", header.tag, header.length,
                     room);
  *tag = header.tag;
  *value = (struct span){walk->rest.data + sizeof header, header.length};
  uint32_t step = (uint32_t)sizeof header + padded(header.length);
  walk->rest.data += step;
  walk->rest.length -= step;
  return 1;
}

int
span_u32(struct span value, uint32_t *out)
{
  if (value.length != sizeof *out)
    return -1;
  memcpy(out, value.data, sizeof *out);
  return 0;
}

int
span_u64(struct span value, uint64_t *out)
{
  if (value.length != sizeof *out)
    return -1;
  memcpy(out, value.data, sizeof *out);
  return 0;
}

bool
span_is_text(struct span value)
{
  return value.length == 0 || memchr(value.data, 0, value.length) == NULL;
}

static uint8_t *
writer_room(struct writer *writer, size_t more)
{
  if (writer->failed)
    return NULL;
  if (writer->length + more > writer->capacity) {
    size_t capacity = writer->capacity ? writer->capacity : 512;
    while (capacity < writer->length + more)
      capacity *= 2;
    uint8_t *data = realloc(writer->data, capacity);
    if (!data) {
      writer->failed = true;
      return NULL;
    }
    writer->data = data;
    writer->capacity = capacity;
  }
  uint8_t *at = writer->data + writer->length;
  writer->length += more;
  return at;
}

void
put_bytes(struct writer *writer, uint16_t tag, const void *data, size_t length)
{
  struct ramet_attr header = {.tag = tag, .length = (uint32_t)length};
  size_t whole = sizeof header + padded((uint32_t)length);
  uint8_t *at = writer_room(writer, whole);

  if (!at)
    return;
  memset(at, 0, whole);
  memcpy(at, &header, sizeof header);
  if (length)
    memcpy(at + sizeof header, data, length);
}

void
put_text(struct writer *writer, uint16_t tag, const char *text)
{
  put_bytes(writer, tag, text, strlen(text));
}

void
put_u32(struct writer *writer, uint16_t tag, uint32_t value)
{
  put_bytes(writer, tag, &value, sizeof value);
}

void
put_u64(struct writer *writer, uint16_t tag, uint64_t value)
{
  put_bytes(writer, tag, &value, sizeof value);
}

void
put_raw(struct writer *writer, struct span attributes)
{
  uint8_t *at = writer_room(writer, attributes.length);

  if (at && attributes.length)
    memcpy(at, attributes.data, attributes.length);
}

void
put_err(struct writer *writer, const struct err *err)
{
  put_text(writer, RAMET_TAG_CODE, err->code);
  put_u32(writer, RAMET_TAG_STEP, (uint32_t)err->step);
  put_u32(writer, RAMET_TAG_ERRNO, (uint32_t)err->number);
  put_text(writer, RAMET_TAG_TEXT, err->text);
  if (err->field[0])
    put_text(writer, RAMET_TAG_FIELD, err->field);
}

void
writer_free(struct writer *writer)
{
  free(writer->data);
  memset(writer, 0, sizeof *writer);
}

static int
payload_file(const struct writer *writer)
{
  cleanup_fd int fd = memfd_create("ramet-payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  size_t done = 0;

  if (fd < 0)
    return -1;
  while (done < writer->length) {
    ssize_t n = write(fd, writer->data + done, writer->length - done);
    if (n < 0)
      return -1;
    done += (size_t)n;
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
    return -1;
  return steal_fd(&fd);
}

int
frame_send(int socket, uint16_t kind, uint64_t request, const struct writer *writer, const int *fds, int fd_count)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int) * (RAMET_FRAME_FDS + 1))];
  } control;
  struct ramet_frame header = {.magic = RAMET_FRAME_MAGIC,
                               .version = RAMET_PROTOCOL_VERSION,
                               .kind = kind,
                               .request = request,
                               .length = (uint32_t)writer->length,
                               .fds = (uint16_t)fd_count};
  int all[RAMET_FRAME_FDS + 1];
  cleanup_fd int file = -1;

  if (writer->failed) {
    errno = ENOMEM;
    return -1;
  }
  if (fd_count > RAMET_FRAME_FDS || writer->length > RAMET_PAYLOAD_MAX) {
    errno = EMSGSIZE;
    return -1;
  }
  if (fd_count)
    memcpy(all, fds, sizeof(int) * (size_t)fd_count);
  struct iovec iov[2] = {{&header, sizeof header}, {writer->data, writer->length}};
  struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
  if (writer->length > RAMET_FRAME_BYTES - sizeof header) {
    file = payload_file(writer);
    if (file < 0)
      return -1;
    header.flags = RAMET_FLAG_PAYLOAD_FD;
    all[fd_count++] = file;
    message.msg_iovlen = 1;
  }
  if (fd_count) {
    size_t bytes = sizeof(int) * (size_t)fd_count;
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *c = &control.align;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), all, bytes);
  }
  ssize_t sent;
  do
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent < 0 ? -1 : 0;
}

int
frame_send_waiting(int socket, uint16_t kind, uint64_t request, const struct writer *writer, const int *fds,
                   int fd_count)
{
  struct pollfd room = {socket, POLLOUT, 0};

  while (frame_send(socket, kind, request, writer, fds, fd_count) < 0)
    if (errno != EAGAIN || (poll(&room, 1, -1) < 0 && errno != EINTR))
      return -1;
  return 0;
}
