/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tap.h"

static uint8_t buffer[RAMET_FRAME_BYTES];
static struct err last;

/* ---- a pair of sockets; what is sent at one end is received at the other -------------------------------------- */

struct pair {
  int out, in;
};

static struct pair
make_pair(void)
{
  int fds[2], bytes = 1 << 20;

  NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
  NEED(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
  return (struct pair){fds[0], fds[1]};
}

static void
close_pair(struct pair *pair)
{
  close_fd(&pair->out);
  close_fd(&pair->in);
}

/* Any bytes with any descriptors, as a stranger would send them. */
static void
send_raw(int socket, const void *data, size_t length, const int *fds, size_t fd_count)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * 250)];
  } control = {0};
  struct iovec part = {(void *)(uintptr_t)data, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

  if (fd_count) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    control.align.cmsg_level = SOL_SOCKET;
    control.align.cmsg_type = SCM_RIGHTS;
    control.align.cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * fd_count);
  }
  NEED(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

static struct ramet_frame
header(uint32_t length)
{
  return (struct ramet_frame){.magic = RAMET_FRAME_MAGIC,
                              .version = RAMET_PROTOCOL_VERSION,
                              .kind = RAMET_STATUS,
                              .request = 77,
                              .length = length};
}

static enum frame_result
receive(struct pair *pair, struct frame *frame)
{
  memset(&last, 0, sizeof last);
  return frame_receive(pair->in, buffer, frame, &last);
}

/* Sends a header, `extra` bytes behind it and descriptors; true when the receiver refuses and names `field`. */
static bool
refused(struct ramet_frame head, size_t extra, const int *fds, size_t fd_count, const char *field)
{
  static uint8_t bytes[RAMET_FRAME_BYTES + 4096];
  struct pair pair = make_pair();
  struct frame frame;
  int before = tap_open_descriptors();

  memcpy(bytes, &head, sizeof head);
  send_raw(pair.out, bytes, sizeof head + extra, fds, fd_count);
  bool result = receive(&pair, &frame) == FRAME_MALFORMED && strcmp(last.field, field) == 0;
  CHECK(frame.fd_count == 0 && frame.mapping == NULL);
  CHECK(tap_open_descriptors() == before);
  close_pair(&pair);
  return result;
}

static int
memory_file(size_t size, int seals)
{
  int fd = memfd_create("payload", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  NEED(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  NEED(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

/* ---- sound frames --------------------------------------------------------------------------------------------- */

static void
a_frame_arrives_as_it_was_sent(void)
{
  cleanup_writer struct writer writer = {0};
  struct pair pair = make_pair();
  struct frame frame;

  put_text(&writer, RAMET_TAG_TEXT, "hello");
  put_u64(&writer, RAMET_TAG_SANDBOX, UINT64_MAX);
  NEED(frame_send(pair.out, RAMET_CREATE, UINT64_MAX - 1, &writer, NULL, 0) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT);
  CHECK(frame.kind == RAMET_CREATE && frame.request == UINT64_MAX - 1 && frame.fd_count == 0);
  CHECK(frame.payload.length == writer.length);
  CHECK(memcmp(frame.payload.data, writer.data, writer.length) == 0);
  CHECK(frame.mapping == NULL);
  frame_release(&frame);
  close_pair(&pair);
}

static void
a_frame_may_carry_nothing(void)
{
  struct writer nothing = {0};
  struct pair pair = make_pair();
  struct frame frame;

  NEED(frame_send(pair.out, RAMET_LIST, 3, &nothing, NULL, 0) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT);
  CHECK(frame.kind == RAMET_LIST && frame.payload.length == 0);
  CHECK(frame_keep(&frame) == 0);
  frame_release(&frame);
  close_pair(&pair);
}

/* Sends a payload of this size and compares; true when it travelled in a memory file. */
static bool
round_trip(size_t length)
{
  cleanup_writer struct writer writer = {0};
  cleanup_free uint8_t *bytes = malloc(length);
  struct pair pair = make_pair();
  struct frame frame;

  NEED(bytes && length >= sizeof(struct ramet_attr));
  for (size_t i = 0; i < length; i++)
    bytes[i] = (uint8_t)(i * 7);
  put_raw(&writer, (struct span){bytes, (uint32_t)length});
  NEED(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT);
  CHECK(frame.payload.length == length && memcmp(frame.payload.data, bytes, length) == 0);
  CHECK(frame.fd_count == 0);
  bool in_file = frame.mapping != NULL;
  frame_release(&frame);
  close_pair(&pair);
  return in_file;
}

static void
a_payload_that_does_not_fit_a_frame_travels_in_a_memory_file(void)
{
  size_t largest = RAMET_FRAME_BYTES - sizeof(struct ramet_frame);
  int before = tap_open_descriptors();

  CHECK(!round_trip(largest));
  CHECK(round_trip(largest + 1));
  CHECK(round_trip(RAMET_PAYLOAD_MAX));
  CHECK(tap_open_descriptors() == before);
}

static void
a_payload_above_the_limit_is_not_sent(void)
{
  cleanup_writer struct writer writer = {0};
  static uint8_t bytes[RAMET_PAYLOAD_MAX];
  struct pair pair = make_pair();

  put_bytes(&writer, RAMET_TAG_BYTES, bytes, sizeof bytes);
  CHECK(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) < 0 && errno == EMSGSIZE);
  close_pair(&pair);
}

static bool
same_file(int a, int b)
{
  struct stat first, second;

  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

static void
descriptors_arrive_in_order_and_close_on_exec(void)
{
  struct writer nothing = {0};
  struct pair pair = make_pair();
  struct frame frame;
  int sent[RAMET_FRAME_FDS], before = tap_open_descriptors();

  for (size_t i = 0; i < RAMET_FRAME_FDS; i++)
    sent[i] = memory_file(i, 0);
  NEED(frame_send(pair.out, RAMET_OK, 1, &nothing, sent, RAMET_FRAME_FDS) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT && frame.fd_count == RAMET_FRAME_FDS);
  for (size_t i = 0; i < RAMET_FRAME_FDS; i++) {
    CHECK(same_file(sent[i], frame.fds[i]));
    CHECK(fcntl(frame.fds[i], F_GETFD) == FD_CLOEXEC);
    close(sent[i]);
  }
  frame_release(&frame);
  CHECK(tap_open_descriptors() == before);
  close_pair(&pair);
}

static void
a_large_payload_and_descriptors_come_together(void)
{
  cleanup_writer struct writer writer = {0};
  static uint8_t bytes[2 * RAMET_FRAME_BYTES];
  struct pair pair = make_pair();
  struct frame frame;
  int sent[2] = {memory_file(1, 0), memory_file(2, 0)};

  put_bytes(&writer, RAMET_TAG_BYTES, bytes, sizeof bytes);
  NEED(frame_send(pair.out, RAMET_OK, 1, &writer, sent, 2) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT);
  CHECK(frame.fd_count == 2 && same_file(frame.fds[1], sent[1]));
  CHECK(frame.payload.length == writer.length);
  frame_release(&frame);
  close(sent[0]);
  close(sent[1]);
  close_pair(&pair);
}

static void
a_stolen_descriptor_outlives_its_frame(void)
{
  struct writer nothing = {0};
  struct pair pair = make_pair();
  struct frame frame;
  int sent = memory_file(5, 0);

  NEED(frame_send(pair.out, RAMET_OK, 1, &nothing, &sent, 1) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT);
  CHECK(frame_steal_fd(&frame, 1) < 0);
  CHECK(frame_steal_fd(&frame, RAMET_FD_NONE) < 0);
  int stolen = frame_steal_fd(&frame, 0);
  CHECK(frame_steal_fd(&frame, 0) < 0);
  frame_release(&frame);
  CHECK(same_file(sent, stolen));
  close(stolen);
  close(sent);
  close_pair(&pair);
}

static void
a_kept_frame_does_not_need_the_buffer(void)
{
  cleanup_writer struct writer writer = {0};
  struct pair pair = make_pair();
  struct frame frame;

  put_text(&writer, RAMET_TAG_TEXT, "keep me");
  NEED(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) == 0);
  NEED(receive(&pair, &frame) == FRAME_GOT && frame_keep(&frame) == 0);
  memset(buffer, 0xff, sizeof buffer);
  CHECK(memcmp(frame.payload.data, writer.data, writer.length) == 0);
  CHECK(frame_keep(&frame) == 0);
  frame_release(&frame);
  close_pair(&pair);
}

/* ---- no frame ------------------------------------------------------------------------------------------------- */

static void
nothing_sent_is_no_frame_and_a_closed_peer_is_the_end(void)
{
  struct pair pair = make_pair();
  struct frame frame;

  CHECK(receive(&pair, &frame) == FRAME_NONE);
  close_fd(&pair.out);
  CHECK(receive(&pair, &frame) == FRAME_CLOSED);
  close_pair(&pair);
}

/* The kernel reports the reset before it hands out what was sent: the last words of an init that failed. */
static void
the_last_words_of_a_peer_that_left_frames_unread_arrive(void)
{
  struct writer nothing = {0};
  struct pair pair = make_pair();
  struct frame frame;

  NEED(frame_send(pair.in, RAMET_INIT_PREPARE, 1, &nothing, NULL, 0) == 0);
  NEED(frame_send(pair.out, RAMET_INIT_FAILED, 2, &nothing, NULL, 0) == 0);
  close_fd(&pair.out);
  CHECK(receive(&pair, &frame) == FRAME_GOT && frame.kind == RAMET_INIT_FAILED);
  frame_release(&frame);
  CHECK(receive(&pair, &frame) == FRAME_CLOSED);
  close_pair(&pair);
}

static void
fewer_bytes_than_a_header_are_refused(void)
{
  struct ramet_frame head = header(0);
  struct frame frame;

  for (size_t length = 1; length < sizeof head; length++) {
    struct pair pair = make_pair();
    send_raw(pair.out, &head, length, NULL, 0);
    CHECK(receive(&pair, &frame) == FRAME_MALFORMED);
    CHECK_TEXT(last.field, "frame");
    CHECK_TEXT(last.code, "malformed");
    close_pair(&pair);
  }
}

static void
another_magic_number_is_refused(void)
{
  struct ramet_frame head = header(0);

  head.magic++;
  CHECK(refused(head, 0, NULL, 0, "magic"));
}

static void
another_version_is_refused_naming_both(void)
{
  struct ramet_frame head = header(0);
  struct pair pair = make_pair();
  struct frame frame;

  head.version = 65535;
  send_raw(pair.out, &head, sizeof head, NULL, 0);
  CHECK(receive(&pair, &frame) == FRAME_MALFORMED);
  CHECK_TEXT(last.code, "version");
  CHECK(strstr(last.text, "version 65535") && strstr(last.text, "speaks 1"));
  /* The refusal can be answered: who asked is known. */
  CHECK(frame.request == 77);
  close_pair(&pair);
}

static void
a_length_that_is_not_that_of_the_message_is_refused(void)
{
  CHECK(refused(header(0), 1, NULL, 0, "length"));
  CHECK(refused(header(1), 0, NULL, 0, "length"));
  CHECK(refused(header(8), 7, NULL, 0, "length"));
  CHECK(refused(header(UINT32_MAX), 0, NULL, 0, "length"));
  CHECK(refused(header(RAMET_PAYLOAD_MAX + 1), 0, NULL, 0, "length"));
}

static void
a_message_longer_than_a_frame_is_refused(void)
{
  size_t extra = RAMET_FRAME_BYTES - sizeof(struct ramet_frame) + 1;

  CHECK(refused(header((uint32_t)extra), extra, NULL, 0, "length"));
}

static void
unknown_flags_are_refused(void)
{
  for (int bit = 1; bit < 16; bit++) {
    struct ramet_frame head = header(0);
    head.flags = (uint16_t)(1u << bit);
    CHECK(refused(head, 0, NULL, 0, "flags"));
  }
}

static void
another_number_of_descriptors_than_announced_is_refused(void)
{
  struct ramet_frame head = header(0);
  int fds[2] = {memory_file(0, 0), memory_file(0, 0)};

  CHECK(refused(head, 0, fds, 1, "fds"));
  head.fds = 1;
  CHECK(refused(head, 0, NULL, 0, "fds"));
  CHECK(refused(head, 0, fds, 2, "fds"));
  head.fds = UINT16_MAX;
  CHECK(refused(head, 0, fds, 2, "fds"));
  close(fds[0]);
  close(fds[1]);
}

static void
more_descriptors_than_a_frame_may_carry_are_refused_and_closed(void)
{
  struct ramet_frame head = header(0);
  int fds[RAMET_FRAME_FDS + 60];

  for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
    fds[i] = STDOUT_FILENO;
  head.fds = RAMET_FRAME_FDS + 1;
  CHECK(refused(head, 0, fds, RAMET_FRAME_FDS + 1, "length"));
  head.fds = RAMET_FRAME_FDS;
  CHECK(refused(head, 0, fds, sizeof fds / sizeof fds[0], "length"));
}

/* ---- payloads in memory files --------------------------------------------------------------------------------- */

#define SEALED (F_SEAL_SHRINK | F_SEAL_WRITE)

static struct ramet_frame
header_in_file(uint32_t length)
{
  struct ramet_frame head = header(length);

  head.flags = RAMET_FLAG_PAYLOAD_FD;
  return head;
}

static bool
file_refused(int file, uint32_t length, const char *field)
{
  bool result = refused(header_in_file(length), 0, &file, 1, field);

  close(file);
  return result;
}

static void
a_payload_that_its_sender_could_still_change_is_refused(void)
{
  CHECK(file_refused(memory_file(4096, 0), 4096, "payload"));
  CHECK(file_refused(memory_file(4096, F_SEAL_SHRINK), 4096, "payload"));
  CHECK(file_refused(memory_file(4096, F_SEAL_WRITE), 4096, "payload"));
  CHECK(file_refused(memory_file(4096, F_SEAL_SHRINK | F_SEAL_GROW), 4096, "payload"));
}

static void
a_payload_longer_than_its_file_is_refused(void)
{
  CHECK(file_refused(memory_file(4095, SEALED), 4096, "payload"));
  CHECK(file_refused(memory_file(0, SEALED), 1, "payload"));
}

static void
an_empty_payload_in_a_file_is_refused(void)
{
  CHECK(file_refused(memory_file(4096, SEALED), 0, "payload"));
}

static void
a_payload_in_something_else_than_a_memory_file_is_refused(void)
{
  int ends[2];

  NEED(pipe2(ends, O_CLOEXEC) == 0);
  CHECK(file_refused(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 16, "payload"));
  CHECK(file_refused(open("/", O_PATH | O_CLOEXEC), 16, "payload"));
  CHECK(file_refused(ends[0], 16, "payload"));
  close(ends[1]);
}

static void
bytes_beside_a_payload_in_a_file_are_refused(void)
{
  int file = memory_file(4096, SEALED);

  CHECK(refused(header_in_file(4096), 4, &file, 1, "length"));
  close(file);
}

static void
a_payload_file_that_did_not_come_along_is_refused(void)
{
  CHECK(refused(header_in_file(16), 0, NULL, 0, "fds"));
}

/* ---- attributes ----------------------------------------------------------------------------------------------- */

static int
walk(const void *data, size_t length, int *count)
{
  struct attr_walk at = {{data, (uint32_t)length}};
  struct span value;
  uint16_t tag;
  int more;

  *count = 0;
  memset(&last, 0, sizeof last);
  while ((more = attr_next(&at, &tag, &value, &last)) > 0)
    ++*count;
  return more;
}

static void
attributes_of_every_length_are_padded_to_four_bytes(void)
{
  cleanup_writer struct writer writer = {0};
  struct span value;
  uint16_t tag;

  for (uint16_t length = 0; length < 9; length++)
    put_bytes(&writer, length, "abcdefghi", length);
  CHECK(writer.length % 4 == 0);
  struct attr_walk at = {{writer.data, (uint32_t)writer.length}};
  for (uint16_t length = 0; length < 9; length++) {
    NEED(attr_next(&at, &tag, &value, &last) == 1);
    CHECK(tag == length && value.length == length && memcmp(value.data, "abcdefghi", length) == 0);
  }
  CHECK(attr_next(&at, &tag, &value, &last) == 0);
}

static void
an_attribute_that_reaches_out_of_the_payload_is_refused(void)
{
  struct {
    struct ramet_attr attr;
    uint8_t value[8];
  } part = {.attr = {.tag = 1}};
  static const uint32_t lengths[] = {9, 10, 12, 1u << 16, 0x7fffffff, 0xfffffffc, 0xfffffffd, UINT32_MAX};
  int count;

  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    part.attr.length = lengths[i];
    CHECK(walk(&part, sizeof part, &count) < 0 && count == 0);
    CHECK_TEXT(last.field, "payload");
  }
  /* 5 bytes need 8 with their padding. */
  part.attr.length = 5;
  CHECK(walk(&part, sizeof part - 3, &count) < 0);
  CHECK(walk(&part, sizeof part, &count) == 0 && count == 1);
}

static void
a_cut_off_or_unclean_attribute_header_is_refused(void)
{
  struct ramet_attr attr = {.tag = 1};
  int count;

  for (size_t length = 1; length < sizeof attr; length++)
    CHECK(walk(&attr, length, &count) < 0);
  attr.zero = 1;
  CHECK(walk(&attr, sizeof attr, &count) < 0);
}

static void
numbers_have_their_size_and_text_has_no_nul(void)
{
  static const uint8_t bytes[9] = {1, 0, 0, 0, 0, 0, 0, 0, 0};
  uint32_t small = 0;
  uint64_t large = 0;

  for (uint32_t length = 0; length <= sizeof bytes; length++) {
    CHECK((span_u32((struct span){bytes, length}, &small) == 0) == (length == 4));
    CHECK((span_u64((struct span){bytes, length}, &large) == 0) == (length == 8));
  }
  CHECK(small == 1 && large == 1);
  CHECK(span_is_text((struct span){NULL, 0}) && span_is_text((struct span){bytes, 1}));
  CHECK(!span_is_text((struct span){bytes, 2}));
}

static void
an_error_is_told_with_all_its_parts(void)
{
  cleanup_writer struct writer writer = {0};
  struct err err;
  int count;

  errno = EPERM;
  err_step(&err, RAMET_STEP_PIVOT_ROOT, "no");
  put_err(&writer, &err);
  CHECK(walk(writer.data, writer.length, &count) == 0 && count == 4);
  err_field(&err, "cwd", "no");
  put_err(&writer, &err);
  CHECK(walk(writer.data, writer.length, &count) == 0 && count == 9);
}

/* ---- sending -------------------------------------------------------------------------------------------------- */

static void
too_many_descriptors_are_not_sent(void)
{
  struct writer nothing = {0};
  struct pair pair = make_pair();
  int fds[RAMET_FRAME_FDS + 1] = {0};

  CHECK(frame_send(pair.out, RAMET_OK, 1, &nothing, fds, RAMET_FRAME_FDS + 1) < 0 && errno == EMSGSIZE);
  close_pair(&pair);
}

static void
a_full_socket_and_a_closed_peer_are_errors_and_no_signal(void)
{
  cleanup_writer struct writer writer = {0};
  static const uint8_t bytes[1024];
  struct pair pair = make_pair();
  int sent = 0;

  put_bytes(&writer, RAMET_TAG_BYTES, bytes, sizeof bytes);
  while (sent < 100000 && frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) == 0)
    sent++;
  CHECK(sent < 100000 && errno == EAGAIN);
  close_fd(&pair.in);
  /* What the peer left unread is told first. */
  CHECK(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) < 0 && errno == ECONNRESET);
  CHECK(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) < 0 && errno == EPIPE);
  close_pair(&pair);
}

static void
a_payload_that_did_not_fit_into_memory_is_not_sent(void)
{
  struct writer writer = {.failed = true};
  struct pair pair = make_pair();

  put_u32(&writer, RAMET_TAG_STATUS, 1);
  CHECK(writer.length == 0);
  CHECK(frame_send(pair.out, RAMET_OK, 1, &writer, NULL, 0) < 0 && errno == ENOMEM);
  close_pair(&pair);
}

int
main(void)
{
  RUN(a_frame_arrives_as_it_was_sent);
  RUN(a_frame_may_carry_nothing);
  RUN(a_payload_that_does_not_fit_a_frame_travels_in_a_memory_file);
  RUN(a_payload_above_the_limit_is_not_sent);
  RUN(descriptors_arrive_in_order_and_close_on_exec);
  RUN(a_large_payload_and_descriptors_come_together);
  RUN(a_stolen_descriptor_outlives_its_frame);
  RUN(a_kept_frame_does_not_need_the_buffer);
  RUN(nothing_sent_is_no_frame_and_a_closed_peer_is_the_end);
  RUN(the_last_words_of_a_peer_that_left_frames_unread_arrive);
  RUN(fewer_bytes_than_a_header_are_refused);
  RUN(another_magic_number_is_refused);
  RUN(another_version_is_refused_naming_both);
  RUN(a_length_that_is_not_that_of_the_message_is_refused);
  RUN(a_message_longer_than_a_frame_is_refused);
  RUN(unknown_flags_are_refused);
  RUN(another_number_of_descriptors_than_announced_is_refused);
  RUN(more_descriptors_than_a_frame_may_carry_are_refused_and_closed);
  RUN(a_payload_that_its_sender_could_still_change_is_refused);
  RUN(a_payload_longer_than_its_file_is_refused);
  RUN(an_empty_payload_in_a_file_is_refused);
  RUN(a_payload_in_something_else_than_a_memory_file_is_refused);
  RUN(bytes_beside_a_payload_in_a_file_are_refused);
  RUN(a_payload_file_that_did_not_come_along_is_refused);
  RUN(attributes_of_every_length_are_padded_to_four_bytes);
  RUN(an_attribute_that_reaches_out_of_the_payload_is_refused);
  RUN(a_cut_off_or_unclean_attribute_header_is_refused);
  RUN(numbers_have_their_size_and_text_has_no_nul);
  RUN(an_error_is_told_with_all_its_parts);
  RUN(too_many_descriptors_are_not_sent);
  RUN(a_full_socket_and_a_closed_peer_are_errors_and_no_signal);
  RUN(a_payload_that_did_not_fit_into_memory_is_not_sent);
  return tap_end();
}
