/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "log.h"

#include <fcntl.h>

#include "tap.h"

static char text[8192];
static int reader = -1;

static void
open_log(void)
{
  int ends[2];

  NEED(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  reader = ends[0];
  log_setup(ends[1]);
}

static const char *
logged(void)
{
  ssize_t n = read(reader, text, sizeof text - 1);

  text[n > 0 ? n : 0] = 0;
  return text;
}

static bool
is_one_line(const char *line)
{
  size_t length = strlen(line);

  return length > 2 && line[0] == '{' && strcmp(line + length - 2, "}\n") == 0 &&
         strchr(line, '\n') == line + length - 1;
}

static void
without_a_descriptor_nothing_is_written(void)
{
  log_setup(-1);
  log_text("event", "text");
  CHECK(tap_open_descriptors() >= 0);
}

static void
an_event_is_one_line(void)
{
  log_text("grace_over", "no daemon came back");
  CHECK(is_one_line(logged()));
  CHECK(strstr(text, "\"event\":\"grace_over\",\"step\":0,\"errno\":0,\"text\":\"no daemon came back\"}") != NULL);
}

static void
an_error_is_logged_with_step_and_errno(void)
{
  struct err err;

  errno = EPERM;
  err_step(&err, RAMET_STEP_PIVOT_ROOT, "pivot_root");
  log_err("core_failed", &err);
  CHECK(is_one_line(logged()));
  CHECK(strstr(text, "\"step\":65,\"errno\":1,\"text\":\"pivot_root\"") != NULL);
}

/* Texts may hold names that a guest or another user chose. */
static void
no_byte_of_the_text_ends_the_line_or_the_string(void)
{
  char every[256];

  for (int i = 1; i < 256; i++)
    every[i - 1] = (char)i;
  every[255] = 0;
  log_text("event", every);
  CHECK(is_one_line(logged()));
  const char *value = strstr(text, "\"text\":\"");
  NEED(value != NULL);
  value += strlen("\"text\":\"");
  CHECK(strchr(value, '"') == value + strlen(value) - 3);
  CHECK(strchr(value, '\\') == NULL);
  for (const char *c = value; *c && *c != '\n'; c++)
    CHECK((unsigned char)*c >= 0x20);
}

static void
a_text_that_is_too_long_is_cut(void)
{
  char endless[4096];

  memset(endless, 'x', sizeof endless - 1);
  endless[sizeof endless - 1] = 0;
  log_text("event", endless);
  CHECK(is_one_line(logged()));
  CHECK(strlen(text) < 512);
}

static void
a_full_log_loses_the_line_and_does_not_wait(void)
{
  for (int i = 0; i < 5000; i++)
    log_text("event", "one of very many");
  CHECK(logged()[0] == '{');
}

int
main(void)
{
  RUN(without_a_descriptor_nothing_is_written);
  open_log();
  RUN(an_event_is_one_line);
  RUN(an_error_is_logged_with_step_and_errno);
  RUN(no_byte_of_the_text_ends_the_line_or_the_string);
  RUN(a_text_that_is_too_long_is_cut);
  RUN(a_full_log_loses_the_line_and_does_not_wait);
  return tap_end();
}
