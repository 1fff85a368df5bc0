/* SPDX-License-Identifier: Apache-2.0
 * The golden frames of tests/contract/golden, which Python reads and writes too: what frames.json says of each file
 * is what C reads from it, and what C writes is the file. Arguments: that directory, and protocol.h for the names. */
#define _GNU_SOURCE
#include "wire.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "tap.h"

static const char *directory;
static char *header_text;

static char *
read_file(const char *path, size_t *length)
{
  FILE *file = fopen(path, "re");
  char *text = calloc(1, 1 << 20);

  NEED(file && text);
  *length = fread(text, 1, (1 << 20) - 1, file);
  fclose(file);
  return text;
}

/* The number of an enumerator, by its name in protocol.h. */
static long
number_of(const char *prefix, const char *name)
{
  char wanted[80];

  snprintf(wanted, sizeof wanted, " RAMET_%s%s = ", prefix, name);
  const char *at = strstr(header_text, wanted);
  NEED(at != NULL);
  return strtol(at + strlen(wanted), NULL, 10);
}

/* ---- as much of JSON as frames.json uses ---------------------------------------------------------------------- */

struct json {
  const char *at;
};

static bool
take(struct json *json, char wanted)
{
  while (isspace((unsigned char)*json->at))
    json->at++;
  if (*json->at != wanted)
    return false;
  json->at++;
  return true;
}

static char
escaped(struct json *json, char **out)
{
  char digits[5] = {0};

  if (*json->at != 'u')
    return *json->at++;
  memcpy(digits, json->at + 1, 4);
  json->at += 5;
  unsigned code = (unsigned)strtoul(digits, NULL, 16);
  NEED(code >= 0x80 && code < 0x800);
  *(*out)++ = (char)(0xc0 | code >> 6);
  return (char)(0x80 | (code & 0x3f));
}

/* A string, or a number as text. */
static void
value(struct json *json, char *out, size_t size)
{
  const char *end = out + size - 3;

  if (!take(json, '"')) {
    while (isdigit((unsigned char)*json->at) && out < end)
      *out++ = *json->at++;
    *out = 0;
    return;
  }
  while (*json->at && *json->at != '"' && out < end) {
    char c = *json->at++;
    *out++ = c == '\\' ? escaped(json, &out) : c;
  }
  *out = 0;
  NEED(take(json, '"'));
}

/* ---- one frame ------------------------------------------------------------------------------------------------ */

struct sample {
  char file[64], kind[64];
  uint64_t request;
  int fds;
  struct writer payload; /* what frames.json describes, written by C */
  int attributes;
};

static size_t
from_hex(char *text)
{
  size_t n = 0;
  char *out = text;

  for (const char *at = text; *at;) {
    char pair[3] = {at[0], at[1], 0};
    if (*at == ' ') {
      at++;
      continue;
    }
    out[n++] = (char)strtoul(pair, NULL, 16);
    at += 2;
  }
  return n;
}

static void
attribute(struct json *json, struct sample *sample)
{
  char tag[32], kind[8], text[512];

  NEED(take(json, '['));
  value(json, tag, sizeof tag);
  NEED(take(json, ','));
  value(json, kind, sizeof kind);
  NEED(take(json, ','));
  value(json, text, sizeof text);
  NEED(take(json, ']'));
  uint16_t number = (uint16_t)number_of("TAG_", tag);
  sample->attributes++;
  if (strcmp(kind, "u32") == 0)
    put_u32(&sample->payload, number, (uint32_t)strtoul(text, NULL, 10));
  else if (strcmp(kind, "u64") == 0)
    put_u64(&sample->payload, number, strtoull(text, NULL, 10));
  else if (strcmp(kind, "text") == 0)
    put_text(&sample->payload, number, text);
  else
    put_bytes(&sample->payload, number, text, from_hex(text));
}

static void
member(struct json *json, struct sample *sample)
{
  char name[32], text[64];

  value(json, name, sizeof name);
  NEED(take(json, ':'));
  if (strcmp(name, "attributes") == 0) {
    NEED(take(json, '['));
    while (!take(json, ']')) {
      attribute(json, sample);
      take(json, ',');
    }
    return;
  }
  value(json, text, sizeof text);
  if (strcmp(name, "file") == 0)
    snprintf(sample->file, sizeof sample->file, "%s", text);
  else if (strcmp(name, "kind") == 0)
    snprintf(sample->kind, sizeof sample->kind, "%s", text);
  else if (strcmp(name, "request") == 0)
    sample->request = strtoull(text, NULL, 10);
  else if (strcmp(name, "fds") == 0)
    sample->fds = atoi(text);
  else
    NEED(!"a member that this reader knows");
}

static bool
next_sample(struct json *json, struct sample *sample)
{
  *sample = (struct sample){.file = ""};
  take(json, ',');
  if (!take(json, '{'))
    return false;
  while (!take(json, '}')) {
    member(json, sample);
    take(json, ',');
  }
  return true;
}

static void
open_pair(int pair[2])
{
  NEED(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
}

/* The file's bytes as they would come from a peer, with as many descriptors as its header announces. */
static void
send_file(int socket, const char *data, size_t length, int fds)
{
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * RAMET_FRAME_FDS)];
  } control = {0};
  struct iovec part = {(void *)(uintptr_t)data, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  int sent[RAMET_FRAME_FDS] = {0};

  if (fds) {
    size_t bytes = sizeof(int) * (size_t)fds;
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(bytes);
    control.align =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.align), sent, bytes);
  }
  NEED(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

static void
check_read(const struct sample *sample, const char *data, size_t length)
{
  static uint8_t buffer[RAMET_FRAME_BYTES];
  struct attr_walk walk, expected;
  struct span got, wanted;
  struct frame frame;
  struct err err = {0};
  uint16_t tag, wanted_tag;
  int pair[2], count = 0;

  open_pair(pair);
  send_file(pair[0], data, length, sample->fds);
  NEED(frame_receive(pair[1], buffer, &frame, &err) == FRAME_GOT);
  CHECK(frame.kind == number_of("", sample->kind) && frame.request == sample->request);
  CHECK(frame.fd_count == sample->fds);
  walk = (struct attr_walk){frame.payload};
  expected = (struct attr_walk){{sample->payload.data, (uint32_t)sample->payload.length}};
  while (attr_next(&walk, &tag, &got, &err) > 0 && attr_next(&expected, &wanted_tag, &wanted, &err) > 0) {
    CHECK(tag == wanted_tag && got.length == wanted.length && memcmp(got.data, wanted.data, got.length) == 0);
    count++;
  }
  CHECK(count == sample->attributes && walk.rest.length == 0 && err.text[0] == 0);
  frame_release(&frame);
  close(pair[0]);
  close(pair[1]);
}

static void
check_written(const struct sample *sample, const char *data, size_t length)
{
  static char bytes[RAMET_FRAME_BYTES];
  int pair[2], fds[RAMET_FRAME_FDS] = {0};

  open_pair(pair);
  NEED(frame_send(pair[0], (uint16_t)number_of("", sample->kind), sample->request, &sample->payload, fds,
                  sample->fds) == 0);
  ssize_t got = recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT);
  CHECK(got == (ssize_t)length && memcmp(bytes, data, length) == 0);
  close(pair[0]);
  close(pair[1]);
}

static void
for_each_sample(void (*check)(const struct sample *, const char *, size_t))
{
  char path[4096];
  struct sample sample;
  size_t length;
  int count = 0;

  snprintf(path, sizeof path, "%s/frames.json", directory);
  cleanup_free char *text = read_file(path, &length);
  struct json json = {text};
  NEED(take(&json, '['));
  for (; next_sample(&json, &sample); count++) {
    snprintf(path, sizeof path, "%s/%s", directory, sample.file);
    cleanup_free char *data = read_file(path, &length);
    int failed = tap_failed_checks;
    check(&sample, data, length);
    if (tap_failed_checks != failed)
      printf("# in %s\n", sample.file);
    writer_free(&sample.payload);
  }
  CHECK(take(&json, ']') && count > 5);
}

static void
core_reads_every_golden_frame_as_it_is_described(void)
{
  for_each_sample(check_read);
}

static void
core_writes_every_golden_frame_byte_for_byte(void)
{
  for_each_sample(check_written);
}

int
main(int argc, char **argv)
{
  size_t length;

  if (argc < 3 || access(argv[1], R_OK) < 0) {
    printf("1..0 # SKIP core stands alone here, without tests/contract\n");
    return 0;
  }
  directory = argv[1];
  header_text = read_file(argv[2], &length);
  RUN(core_reads_every_golden_frame_as_it_is_described);
  RUN(core_writes_every_golden_frame_byte_for_byte);
  free(header_text);
  return tap_end();
}
