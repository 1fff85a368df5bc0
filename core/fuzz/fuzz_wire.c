/* SPDX-License-Identifier: Apache-2.0
 * A frame received from a hostile peer, by a real socket, and its attributes. The first byte tells how many
 * descriptors come along; the last of them is a memory file, sealed when the byte is odd. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define FDS_SENT_MAX 3

static int
memory_file(bool sealed)
{
  int fd = memfd_create("payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  EXPECT(fd >= 0);
  EXPECT(write(fd, "\x1e\0\0\0\x08\0\0\0\1\0\0\0\0\0\0\0", 16) == 16);
  if (sealed)
    EXPECT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
  return fd;
}

static void
send_bytes(int socket, const uint8_t *data, size_t size, int fds, bool sealed)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FDS_SENT_MAX)];
  } control = {0};
  struct iovec part = {(void *)(uintptr_t)data, size};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  int sent[FDS_SENT_MAX];

  for (int i = 0; i < fds; i++)
    sent[i] = memory_file(sealed);
  if (fds) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fds);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fds);
    memcpy(CMSG_DATA(c), sent, sizeof(int) * (size_t)fds);
  }
  EXPECT(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)size);
  for (int i = 0; i < fds; i++)
    close(sent[i]);
}

static void
walk_all(struct span payload)
{
  struct attr_walk walk = {payload};
  struct span value;
  struct err err = {0};
  uint16_t tag;
  int more;

  while ((more = attr_next(&walk, &tag, &value, &err)) > 0)
    EXPECT(value.data >= payload.data && value.data + value.length <= payload.data + payload.length);
  EXPECT(more == 0 || err.text[0]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static uint8_t buffer[RAMET_FRAME_BYTES];
  int pair[2];
  struct frame frame = {0};
  struct err err = {0};

  if (size < 2)
    return 0;
  EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  int before = dup(pair[0]);
  EXPECT(before >= 0);
  close(before);
  send_bytes(pair[0], data + 1, size - 1, (data[0] >> 1) % (FDS_SENT_MAX + 1), data[0] & 1);
  enum frame_result result = frame_receive(pair[1], buffer, &frame, &err);
  EXPECT(result == FRAME_GOT || result == FRAME_MALFORMED);
  if (result == FRAME_GOT) {
    walk_all(frame.payload);
    EXPECT(frame_keep(&frame) == 0);
    walk_all(frame.payload);
  } else {
    EXPECT(err.text[0]);
  }
  frame_release(&frame);
  /* The lowest free descriptor is the one it was: none has leaked. */
  int after = dup(pair[0]);
  EXPECT(after == before);
  close(after);
  close(pair[0]);
  close(pair[1]);
  return 0;
}
