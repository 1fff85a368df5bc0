/* SPDX-License-Identifier: Apache-2.0
 * How bytes are taken out of a pseudo terminal and put back (drivers/tty/n_tty.c, pty.c):
 *
 *   output  written by the slave, is read from the master as it is. It is put back by writing to the slave without
 *           output processing.
 *   input   written to the master, has been edited and cut into lines. Lines are read one by one; the line that is not
 *           ended yet shows only without ICANON. It is put back by writing to the master while no character means
 *           anything but the end of a line. A worker of the kernel does the editing, with the settings that it finds
 *           then: so they may not change before it is done, which the echo tells.
 *
 * To switch ICANON forgets where lines end, so it is switched only while there is no input. */
#define _GNU_SOURCE
#include "terminal_content.h"

#include <asm/termbits.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#ifndef TCGETS2 /* musl: see include/uapi/asm-generic/ioctls.h */
#define TCGETS2 _IOR('T', 0x2A, struct termios2)
#define TCSETS2 _IOW('T', 0x2B, struct termios2)
#endif
#define PATIENCE_MS 2000
/* What is written before its echo is read: less than what the kernel's echo buffer holds, and than there are
 * characters. */
#define AT_ONCE 128

/* ---- settings ------------------------------------------------------------------------------------------------- */

static void
to_termios(const struct image_terminal *settings, struct termios2 *out)
{
  *out = (struct termios2){.c_iflag = settings->input_flags,
                           .c_oflag = settings->output_flags,
                           .c_cflag = settings->control_flags,
                           .c_lflag = settings->local_flags,
                           .c_line = settings->line,
                           .c_ispeed = settings->input_speed,
                           .c_ospeed = settings->output_speed};
  _Static_assert(sizeof out->c_cc == sizeof settings->characters, "as many characters as the kernel has");
  memcpy(out->c_cc, settings->characters, sizeof out->c_cc);
}

int
terminal_read_settings(int master, struct image_terminal *out)
{
  struct termios2 termios;
  struct winsize size;
  int packets = 0;

  /* Of a master these are the slave's. */
  if (ioctl(master, TCGETS2, &termios) < 0 || ioctl(master, TIOCGWINSZ, &size) < 0 ||
      ioctl(master, TIOCGPKT, &packets) < 0 || ioctl(master, TIOCGPTN, &out->index) < 0)
    return -1;
  out->input_flags = termios.c_iflag;
  out->output_flags = termios.c_oflag;
  out->control_flags = termios.c_cflag;
  out->local_flags = termios.c_lflag;
  out->line = termios.c_line;
  out->input_speed = termios.c_ispeed;
  out->output_speed = termios.c_ospeed;
  memcpy(out->characters, termios.c_cc, sizeof out->characters);
  out->rows = size.ws_row;
  out->columns = size.ws_col;
  out->width = size.ws_xpixel;
  out->height = size.ws_ypixel;
  out->flags = packets ? IMAGE_TERMINAL_PACKETS : 0;
  return 0;
}

static int
set_packets(int master, int on)
{
  return ioctl(master, TIOCPKT, &on);
}

/* Neither edits, nor echoes, nor sends signals, nor changes output. */
static struct termios2
quiet(const struct image_terminal *settings)
{
  struct termios2 termios;

  to_termios(settings, &termios);
  termios.c_iflag = 0;
  termios.c_oflag = 0;
  termios.c_lflag &= ICANON;
  termios.c_cc[VMIN] = 1;
  termios.c_cc[VTIME] = 0;
  return termios;
}

/* ---- out ------------------------------------------------------------------------------------------------------ */

struct bytes {
  uint8_t *data;
  size_t length, capacity;
};

static int
add_bytes(struct bytes *bytes, const void *data, size_t length)
{
  if (bytes->length + length > IMAGE_TERMINAL_BYTES) {
    errno = EMSGSIZE;
    return -1;
  }
  if (bytes->length + length > bytes->capacity) {
    uint8_t *grown = realloc(bytes->data, bytes->length + length + 4096);
    if (!grown)
      return -1;
    bytes->data = grown;
    bytes->capacity = bytes->length + length + 4096;
  }
  memcpy(bytes->data + bytes->length, data, length);
  bytes->length += length;
  return 0;
}

/* poll(2) of a terminal that has nothing waits for the kernel's worker to bring what is on its way. */
static bool
polls(int fd, short event)
{
  struct pollfd polled = {fd, event, 0};

  return poll(&polled, 1, 0) == 1 && polled.revents & event;
}

/* Without packets. An end that hangs up is readable too, and has nothing. */
static int
take_output(int master, struct bytes *out)
{
  uint8_t chunk[4096];

  while (polls(master, POLLIN)) {
    int waiting = 0;
    if (ioctl(master, FIONREAD, &waiting) < 0)
      return -1;
    if (waiting == 0)
      return 0;
    ssize_t got = read(master, chunk, sizeof chunk);
    if (got < 0 || add_bytes(out, chunk, (size_t)got) < 0)
      return -1;
  }
  return 0;
}

static bool
ends_line(const struct image_terminal *settings, uint8_t byte)
{
  return byte == '\n' || (byte && (byte == settings->characters[VEOL] ||
                                   (byte == settings->characters[VEOL2] && settings->local_flags & IEXTEN)));
}

static int
add_record(struct bytes *in, enum terminal_input kind, const uint8_t *data, size_t length)
{
  struct terminal_record record = {(uint32_t)length, (uint32_t)kind};

  return add_bytes(in, &record, sizeof record) < 0 ? -1 : add_bytes(in, data, length);
}

/* A line for each read(2); nothing is a line that was ended before it had begun. */
static int
take_lines(int slave, const struct image_terminal *settings, struct bytes *in)
{
  uint8_t line[4096];

  while (polls(slave, POLLIN)) {
    ssize_t got = read(slave, line, sizeof line);
    if (got < 0)
      return -1;
    bool whole = got > 0 && ends_line(settings, line[got - 1]);
    if (add_record(in, whole ? TERMINAL_LINE : TERMINAL_CUT, line, (size_t)got) < 0)
      return -1;
  }
  return 0;
}

static int
take_open(int slave, struct bytes *in)
{
  uint8_t chunk[4096];
  struct bytes all = {0};
  int result = 0;

  while (result == 0 && polls(slave, POLLIN)) {
    ssize_t got = read(slave, chunk, sizeof chunk);
    result = got < 0 ? -1 : add_bytes(&all, chunk, (size_t)got);
  }
  if (result == 0 && all.length)
    result = add_record(in, TERMINAL_OPEN, all.data, all.length);
  free(all.data);
  return result;
}

static int
take_input(int slave, const struct image_terminal *settings, struct bytes *in)
{
  struct termios2 termios = quiet(settings);

  if (ioctl(slave, TCSETS2, &termios) < 0)
    return -1;
  if (termios.c_lflag & ICANON) {
    if (take_lines(slave, settings, in) < 0)
      return -1;
    termios.c_lflag = 0;
    if (ioctl(slave, TCSETS2, &termios) < 0)
      return -1;
  }
  return take_open(slave, in);
}

/* With IXON off a terminal that was stopped by a character runs again, one that was by tcflow(3) does not. */
static int
start_output(int slave, bool stopped, struct image_terminal *settings)
{
  if (!stopped)
    return 0;
  settings->flags |= polls(slave, POLLOUT) ? IMAGE_TERMINAL_STOPPED : IMAGE_TERMINAL_HELD;
  return settings->flags & IMAGE_TERMINAL_HELD ? ioctl(slave, TCXONC, TCOON) : 0;
}

int
terminal_drain(int master, int slave, struct image_terminal *settings, struct terminal_content *content)
{
  struct bytes in = {0}, out = {0};
  int result = 0;

  if (settings->flags & IMAGE_TERMINAL_PACKETS && set_packets(master, 0) < 0)
    return -1;
  result = take_output(master, &out);
  /* With all taken out there is room, unless the output stands still. */
  bool stopped = !polls(slave, POLLOUT);
  if (result == 0)
    result = take_input(slave, settings, &in);
  if (result == 0)
    result = start_output(slave, stopped, settings);
  if (result == 0)
    result = take_output(master, &out); /* what was held back */
  *content = (struct terminal_content){in.data, out.data, in.length, out.length};
  return result;
}

/* ---- in ------------------------------------------------------------------------------------------------------- */

static uint64_t
now_ms(void)
{
  struct timespec now;

  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int
read_echo(int master, size_t length)
{
  uint8_t chunk[AT_ONCE];
  uint64_t end = now_ms() + PATIENCE_MS;

  while (length) {
    struct pollfd polled = {master, POLLIN, 0};
    uint64_t now = now_ms();
    if (now >= end) {
      errno = ETIMEDOUT;
      return -1;
    }
    int ready = poll(&polled, 1, (int)(end - now));
    if (ready <= 0 || !(polled.revents & POLLIN))
      continue;
    ssize_t got = read(master, chunk, length < sizeof chunk ? length : sizeof chunk);
    if (got <= 0)
      return -1;
    length -= (size_t)got;
  }
  return 0;
}

/* `shown`: how many of the bytes are echoed. */
static int
type(int master, const uint8_t *data, size_t length, size_t shown)
{
  /* A master whose own output is stopped (TCXONC) would never let us go. */
  if (!polls(master, POLLOUT)) {
    errno = EBUSY;
    return -1;
  }
  return write(master, data, length) == (ssize_t)length ? read_echo(master, shown) : -1;
}

struct walk {
  const uint8_t *at, *end;
};

static bool
next_record(struct walk *walk, struct terminal_record *record, const uint8_t **data)
{
  if ((size_t)(walk->end - walk->at) < sizeof *record)
    return false;
  memcpy(record, walk->at, sizeof *record);
  *data = walk->at + sizeof *record;
  if (record->length > (size_t)(walk->end - *data))
    return false;
  walk->at = *data + record->length;
  return true;
}

/* Characters that stand nowhere in what is typed, and end no line. */
enum spare { SPARE_CUT, SPARE_ERASE, SPARE_QUOTE, SPARES };

/* For so few bytes there are always some. No character means anything but these. */
static int
set_spares(int slave, const struct image_terminal *settings, const uint8_t *data, size_t length,
           uint8_t spares[SPARES])
{
  struct termios2 termios = quiet(settings);
  bool used[256] = {true};
  int found = 0;

  for (size_t i = 0; i < length; i++)
    used[data[i]] = true;
  for (int c = 255; c > 0 && found < SPARES; c--)
    if (!used[c] && !ends_line(settings, (uint8_t)c))
      spares[found++] = (uint8_t)c;
  termios.c_lflag |= ECHO | IEXTEN;
  memset(termios.c_cc, 0, sizeof termios.c_cc);
  termios.c_cc[VMIN] = 1;
  termios.c_cc[VEOF] = spares[SPARE_CUT];
  termios.c_cc[VERASE] = spares[SPARE_ERASE];
  termios.c_cc[VLNEXT] = spares[SPARE_QUOTE];
  termios.c_cc[VEOL] = settings->characters[VEOL];
  if (settings->local_flags & IEXTEN)
    termios.c_cc[VEOL2] = settings->characters[VEOL2];
  return ioctl(slave, TCSETS2, &termios);
}

const char *
terminal_unfillable(const struct terminal_content *content)
{
  struct walk walk = {content->input, content->input + content->input_length};
  struct terminal_record record;
  const uint8_t *data;
  size_t all = 0;

  while (next_record(&walk, &record, &data))
    all += record.length;
  return all > TERMINAL_UNREAD_MAX ? "a terminal with more unread input than can be copied" : NULL;
}

/* What ends a line, and did not, was quoted, for which there is no echo. */
static int
type_piece(int master, int slave, const struct image_terminal *settings, const uint8_t *data, size_t length,
           bool whole)
{
  uint8_t typed[2 * AT_ONCE], spares[SPARES] = {0};
  size_t count = 0;

  if (set_spares(slave, settings, data, length, spares) < 0)
    return -1;
  for (size_t i = 0; i < length; i++) {
    bool ends = whole && i + 1 == length;
    if (settings->local_flags & ICANON && ends_line(settings, data[i]) && !ends)
      typed[count++] = spares[SPARE_QUOTE];
    typed[count++] = data[i];
  }
  return type(master, typed, count, length);
}

/* The end of a line by the character for the end of a file has no echo: what is typed and erased behind it has, and
 * leaves nothing. */
static int
type_cut(int master, int slave, const struct image_terminal *settings)
{
  uint8_t spares[SPARES] = {0};

  if (set_spares(slave, settings, (const uint8_t *)"x", 1, spares) < 0)
    return -1;
  const uint8_t cut[3] = {spares[SPARE_CUT], 'x', spares[SPARE_ERASE]};
  return type(master, cut, sizeof cut, 2);
}

static int
type_record(int master, int slave, const struct image_terminal *settings, const struct terminal_record *record,
            const uint8_t *data)
{
  for (uint32_t at = 0; at < record->length;) {
    uint32_t length = record->length - at < AT_ONCE ? record->length - at : AT_ONCE;
    bool whole = record->kind == TERMINAL_LINE && at + length == record->length;
    if (type_piece(master, slave, settings, data + at, length, whole) < 0)
      return -1;
    at += length;
  }
  return record->kind == TERMINAL_CUT ? type_cut(master, slave, settings) : 0;
}

static int
type_records(int master, int slave, const struct image_terminal *settings, const struct terminal_content *content)
{
  struct walk walk = {content->input, content->input + content->input_length};
  struct terminal_record record;
  const uint8_t *data;

  while (next_record(&walk, &record, &data))
    if (type_record(master, slave, settings, &record, data) < 0)
      return -1;
  return 0;
}

static int
print(int slave, const struct image_terminal *settings, const uint8_t *data, size_t length)
{
  struct termios2 termios = quiet(settings);
  uint64_t end = now_ms() + PATIENCE_MS;

  if (length && ioctl(slave, TCSETS2, &termios) < 0)
    return -1;
  while (length) {
    struct pollfd polled = {slave, POLLOUT, 0};
    ssize_t put = write(slave, data, length);
    if (put < 0 && errno != EAGAIN)
      return -1;
    if (put > 0) {
      data += put;
      length -= (size_t)put;
      continue;
    }
    if (now_ms() > end) {
      errno = ETIMEDOUT;
      return -1;
    }
    poll(&polled, 1, 10);
  }
  return 0;
}

static int
stop_output(int master, int slave, const struct image_terminal *settings)
{
  uint64_t end = now_ms() + PATIENCE_MS;
  uint8_t stop = settings->characters[VSTOP];

  if (settings->flags & IMAGE_TERMINAL_HELD)
    return ioctl(slave, TCXONC, TCOOFF);
  if (!(settings->flags & IMAGE_TERMINAL_STOPPED))
    return 0;
  if (!polls(master, POLLOUT) || write(master, &stop, 1) != 1)
    return -1;
  while (polls(slave, POLLOUT)) {
    if (now_ms() > end) {
      errno = ETIMEDOUT;
      return -1;
    }
    sched_yield();
  }
  return 0;
}

int
terminal_fill(int master, int slave, const struct image_terminal *settings, const struct terminal_content *content)
{
  const struct winsize size = {settings->rows, settings->columns, settings->width, settings->height};
  struct termios2 termios;

  to_termios(settings, &termios);
  if ((content->input_length && type_records(master, slave, settings, content) < 0) ||
      print(slave, settings, content->output, content->output_length) < 0 || ioctl(slave, TCSETS2, &termios) < 0 ||
      ioctl(master, TIOCSWINSZ, &size) < 0 || stop_output(master, slave, settings) < 0)
    return -1;
  return settings->flags & IMAGE_TERMINAL_PACKETS ? set_packets(master, 1) : 0;
}

void
terminal_free(struct terminal_content *content)
{
  free(content->input);
  free(content->output);
  *content = (struct terminal_content){0};
}
