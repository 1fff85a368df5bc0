/* SPDX-License-Identifier: Apache-2.0
 * What lies in a pseudo terminal: bytes on their way in both directions, settings. The kernel shows none of the bytes
 * without giving them away, so who copies them puts them back. */
#ifndef RAMET_TERMINAL_CONTENT_H
#define RAMET_TERMINAL_CONTENT_H

#include "image.h"

/* Input is a list of records: the length and one of these, then the bytes. */
enum terminal_input {
  TERMINAL_LINE = 0, /* ended by its own last byte */
  TERMINAL_CUT = 1,  /* ended by the character for the end of a file, which is not among the bytes */
  TERMINAL_OPEN = 2, /* not ended yet; without lines (raw), all there is */
};

struct terminal_record {
  uint32_t length, kind;
};

/* `input` and `output` are allocated. */
struct terminal_content {
  uint8_t *input, *output;
  size_t input_length, output_length;
};

/* What can be told without changing anything; -1 with errno. */
int terminal_read_settings(int master, struct image_terminal *out) MUST_CHECK;
/* Takes everything out of it, and notes whether its output stands still. `slave` is an open file of the caller's own,
 * that does not block. Nobody else may use the terminal meanwhile. -1 with errno, and the terminal is as it was but
 * for what was taken out. */
int terminal_drain(int master, int slave, struct image_terminal *settings,
                   struct terminal_content *content) MUST_CHECK;
/* The reverse, into one that is empty: settings too. */
int terminal_fill(int master, int slave, const struct image_terminal *settings,
                  const struct terminal_content *content) MUST_CHECK;
/* Of the 4095 bytes that the kernel edits (N_TTY_BUF_SIZE in n_tty.c); what is behind has yet to be. The others are room
 * for the characters by which it is put back. */
#define TERMINAL_UNREAD_MAX 4090
/* Whether the input can be put back as it was: NULL, or why it cannot. */
const char *terminal_unfillable(const struct terminal_content *content);
void terminal_free(struct terminal_content *content);

#endif
