/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int log_fd = -1;

void
log_setup(int fd)
{
  log_fd = fd;
}

/* Control characters, quotes and backslashes become '?': texts hold names of files and errno strings only. */
static void
plain(char *out, size_t size, const char *text)
{
  size_t n = 0;

  for (; *text && n + 1 < size; text++)
    out[n++] = (unsigned char)*text < 0x20 || *text == '"' || *text == '\\' ? '?' : *text;
  out[n] = 0;
}

static void
line(const char *event, int step, int number, const char *text)
{
  char clean[256], buffer[512];
  struct timespec now;

  if (log_fd < 0)
    return;
  plain(clean, sizeof clean, text);
  clock_gettime(CLOCK_REALTIME, &now);
  int n = snprintf(buffer, sizeof buffer,
                   "{\"time\":%lld.%03ld,\"event\":\"%s\",\"step\":%d,\"errno\":%d,\"text\":\"%s\"}\n",
                   (long long)now.tv_sec, now.tv_nsec / 1000000, event, step, number, clean);
  ssize_t written = write(log_fd, buffer, (size_t)n);
  (void)written;
}

void
log_text(const char *event, const char *text)
{
  line(event, 0, 0, text);
}

void
log_err(const char *event, const struct err *err)
{
  line(event, (int)err->step, err->number, err->text);
}
