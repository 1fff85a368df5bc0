/* SPDX-License-Identifier: Apache-2.0
 * Commands whose streams core keeps. Their pipes are carried like any other, with what core has not read yet; of each
 * there is a record by which the child's core takes the far ends, and goes on with the log where that of the source
 * stands. */
#define _GNU_SOURCE
#include "capture.h"

#include <sched.h>
#include <string.h>

#include "streamlog.h"

struct capture_command *
capture_command_of(const struct capture_source *source, const struct stat *pipe, int *stream)
{
  for (int i = 0; i < source->command_count; i++)
    for (int n = 0; n < 3; n++) {
      const struct image_command *command = &source->commands[i].command;
      if (command->pipes[n] && command->pipes[n] == pipe->st_ino && command->device == pipe->st_dev) {
        *stream = n;
        return &source->commands[i];
      }
    }
  return NULL;
}

/* One that has ended, or is another's child, is core's no more. */
static bool
goes_on(const struct capture_tree *tree, const struct image_command *command)
{
  for (int i = 0; i < tree->count; i++)
    if (tree->processes[i]->relations.pid == command->pid)
      return tree->processes[i]->relations.parent == 1;
  return false;
}

/* Of a stream that nobody has open any more: core has its end, or is about to. */
static void
find_begin(struct capture_command *command, int stream)
{
  if (command->command.begin[stream] == UINT64_MAX)
    while (!streamlog_settled(command->log, stream, &command->command.begin[stream]))
      sched_yield();
}

int
capture_commands(struct capture_tree *tree, struct err *err)
{
  for (int i = 0; i < tree->source->command_count; i++) {
    struct capture_command *command = &tree->source->commands[i];
    struct {
      struct image_command command;
      uint8_t record[RAMET_COMMAND_RECORD_MAX];
    } out;
    if (!goes_on(tree, &command->command))
      continue;
    find_begin(command, 0);
    find_begin(command, 1);
    out.command = command->command;
    if (command->record.length)
      memcpy(out.record, command->record.data, command->record.length);
    put_bytes(&tree->files, IMAGE_TAG_COMMAND, &out, sizeof out.command + command->record.length);
  }
  return tree->files.failed ? err_code(err, "internal", "no memory for commands") : 0;
}
