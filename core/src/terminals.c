/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "terminals.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "syscalls.h"
#include "terminal_content.h"

#define STEP RAMET_STEP_CHILD_MAKE_FDS

static int
failed(struct err *err, const char *what)
{
  return err_step(err, STEP, "%s: %s", what, strerror(errno));
}

static int
open_master(int *index)
{
  cleanup_fd int fd = sys_openat2(AT_FDCWD, "/dev/pts/ptmx", O_RDWR | O_NOCTTY, 0, RESOLVE_AS_NAMED);

  return fd < 0 || ioctl(fd, TIOCGPTN, index) < 0 ? -1 : steal_fd(&fd);
}

static int
open_slave(uint64_t index, int flags)
{
  char path[32];

  snprintf(path, sizeof path, "/dev/pts/%u", (unsigned)index);
  return sys_openat2(AT_FDCWD, path, (uint64_t)(flags | O_NOCTTY), 0, RESOLVE_AS_NAMED);
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

/* The kernel gives the lowest number that is free: those in between are taken until all are there. */
static int
take_numbers(const struct image *image, struct terminals *made, int *others, struct err *err)
{
  uint32_t found = 0;

  for (int i = 0; found < image->terminal_count; i++) {
    int index;
    if (i == IMAGE_TERMINALS_MAX)
      return err_step(err, STEP, "the numbers of terminals are others'");
    int master = open_master(&index);
    if (master < 0)
      return failed(err, "a terminal");
    const struct image_terminal *wanted = image_terminal(image, (uint64_t)index);
    *(wanted ? &made->masters[wanted - image->terminals] : &others[i]) = master;
    found += wanted != NULL;
  }
  return 0;
}

static int
make_masters(const struct image *image, struct terminals *made, struct err *err)
{
  cleanup_free int *others = malloc(IMAGE_TERMINALS_MAX * sizeof *others);

  if (!others)
    return err_code(err, "internal", "no memory for terminals");
  for (int i = 0; i < IMAGE_TERMINALS_MAX; i++)
    others[i] = -1;
  int result = take_numbers(image, made, others, err);
  for (int i = 0; i < IMAGE_TERMINALS_MAX; i++)
    close_fd(&others[i]);
  return result;
}

/* ---- content -------------------------------------------------------------------------------------------------- */

static int
read_content(const struct image_terminal *terminal, int pages, struct terminal_content *content, struct err *err)
{
  uint64_t at = terminal->offset;

  *content = (struct terminal_content){.input = malloc(terminal->input_length + 1),
                                       .output = malloc(terminal->output_length + 1),
                                       .input_length = terminal->input_length,
                                       .output_length = terminal->output_length};
  if (!content->input || !content->output)
    return err_code(err, "internal", "no memory for a terminal");
  if (pread(pages, content->input, content->input_length, (off_t)at) != (ssize_t)content->input_length ||
      pread(pages, content->output, content->output_length, (off_t)(at + content->input_length)) !=
          (ssize_t)content->output_length)
    return failed(err, "read what is in a terminal");
  return 0;
}

static int
settle(const struct image_terminal *terminal, int pages, int master, int *slave, struct err *err)
{
  const int unlocked = 0;
  struct terminal_content content;

  if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
    return failed(err, "unlock a terminal");
  *slave = open_slave(terminal->index, O_RDWR | O_NONBLOCK);
  if (*slave < 0 || fchmod(*slave, terminal->mode) < 0)
    return failed(err, "a terminal");
  int result = read_content(terminal, pages, &content, err);
  if (result == 0 && terminal_fill(master, *slave, terminal, &content) < 0)
    result = failed(err, "fill a terminal");
  terminal_free(&content);
  return result;
}

int
terminals_make(const struct image *image, int pages, struct terminals *made, struct err *err)
{
  uint32_t count = image->terminal_count;

  if (count == 0)
    return 0;
  made->masters = malloc(2 * count * sizeof *made->masters);
  if (!made->masters)
    return err_code(err, "internal", "no memory for terminals");
  made->slaves = made->masters + count;
  made->count = count;
  for (uint32_t i = 0; i < 2 * count; i++)
    made->masters[i] = -1;
  if (make_masters(image, made, err) < 0)
    return -1;
  for (uint32_t i = 0; i < count; i++)
    if (settle(&image->terminals[i], pages, made->masters[i], &made->slaves[i], err) < 0)
      return -1;
  return 0;
}

/* ---- ends ----------------------------------------------------------------------------------------------------- */

/* Its number is free again with the last open file of it. */
static int
open_hung_up(int flags, struct err *err)
{
  const int unlocked = 0;
  int index;
  cleanup_fd int master = open_master(&index);

  if (master < 0 || ioctl(master, TIOCSPTLCK, &unlocked) < 0)
    return failed(err, "a terminal");
  int slave = open_slave((uint64_t)index, flags);
  return slave < 0 ? failed(err, "a terminal") : slave;
}

int
terminals_open(const struct image *image, struct terminals *made, const struct image_description *d,
               struct err *err)
{
  const int kept = O_NONBLOCK | O_APPEND, flags = (int)d->flags & (O_ACCMODE | kept);
  const struct image_terminal *terminal = image_terminal(image, d->value[0]);

  if (d->value[1] == IMAGE_HUNG_UP)
    return open_hung_up(flags, err);
  if (!terminal)
    return err_field(err, "image", "open file %u is of no terminal", d->id);
  if (d->value[1] == IMAGE_SLAVE) {
    int fd = open_slave(terminal->index, flags);
    return fd < 0 ? failed(err, "a terminal") : fd;
  }
  cleanup_fd int master = steal_fd(&made->masters[terminal - image->terminals]);
  if (master < 0)
    return err_field(err, "image", "a terminal has two masters");
  if (fcntl(master, F_SETFL, flags & kept) < 0)
    return failed(err, "the master of a terminal");
  return steal_fd(&master);
}

void
terminals_free(struct terminals *made)
{
  for (uint32_t i = 0; i < made->count; i++) {
    close_fd(&made->masters[i]);
    close_fd(&made->slaves[i]);
  }
  free(made->masters);
}
