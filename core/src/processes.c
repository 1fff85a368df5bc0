/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "processes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "procfs.h"

#define PROCESSES_MAX 65536

/* Its words with their NULs, as it may have changed them itself; none of a zombie. */
static uint32_t
read_command(int pid, char command[RAMET_PROCESS_COMMAND_MAX])
{
  char path[48];
  uint32_t used = 0;
  ssize_t n = 1;

  snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
  cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && n > 0 && used < RAMET_PROCESS_COMMAND_MAX) {
    n = read(fd, command + used, RAMET_PROCESS_COMMAND_MAX - used);
    used += n > 0 ? (uint32_t)n : 0;
  }
  return used;
}

static uint32_t
number_of(const char *status, const char *name)
{
  const char *value = procfs_field(status, name);

  return value ? (uint32_t)strtoul(value, NULL, 10) : 0;
}

/* What is gone by now is left out. Its number inside; 0: it is not told. */
static uint32_t
put_one(int pid, uint32_t parent, struct writer *writer)
{
  uint8_t packed[sizeof(struct ramet_process_info) + 16 + RAMET_PROCESS_COMMAND_MAX];
  char path[48], name[16];

  snprintf(path, sizeof path, "/proc/%d/status", pid);
  cleanup_free char *status = procfs_read(path, NULL);
  const char *state = status ? procfs_field(status, "State") : NULL;
  if (!state)
    return 0;
  procfs_copy_name(status, name);
  struct ramet_process_info info = {
      .pid = (uint32_t)procfs_inside(status, "NSpid"),
      .parent = parent,
      .uid = number_of(status, "Uid"),
      .threads = number_of(status, "Threads"),
      .state = (uint8_t)*state,
      .name_length = (uint32_t)strlen(name),
  };
  char *at = (char *)packed + sizeof info;
  memcpy(at, name, info.name_length);
  info.command_length = read_command(pid, at + info.name_length);
  memcpy(packed, &info, sizeof info);
  put_bytes(writer, RAMET_TAG_PROCESS_INFO, packed, sizeof info + info.name_length + info.command_length);
  return info.pid;
}

int
processes_put(int init, struct writer *writer, void (*told)(struct writer *), struct err *err)
{
  static int pids[PROCESSES_MAX];
  static uint32_t parents[PROCESSES_MAX]; /* by their numbers inside */
  int count = 1;

  pids[0] = init;
  for (int at = 0; at < count; at++) {
    uint32_t inside = 1;
    if (at > 0) {
      inside = put_one(pids[at], parents[at], writer);
      told(writer);
    }
    int found = procfs_children(pids[at], pids + count, PROCESSES_MAX - count);
    if (found < 0)
      return err_code(err, "internal", "its processes cannot be told: %s", strerror(errno));
    for (int i = 0; i < found; i++)
      parents[count + i] = inside;
    count += found;
  }
  return 0;
}
