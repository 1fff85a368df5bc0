/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "control.h"

/* So many commands at once that a list is still right for them. */
#define COMMANDS_MAX 4096

struct known_command {
  struct known_command *next;
  uint64_t request;
  uint32_t number;
  bool running;
  bool forgotten; /* the daemon that asked is gone: nobody is answered */
};

int
commands_add(struct known_command **list, uint64_t request, uint32_t number, struct err *err)
{
  int count = 0;

  for (struct known_command *known = *list; known; known = known->next, count++)
    if (known->number == number)
      return err_field(err, "command", "number %u is taken", number);
  if (count == COMMANDS_MAX)
    return err_code(err, "too_many_commands", "%d commands run in the sandbox", COMMANDS_MAX);
  struct known_command *known = malloc(sizeof *known);
  if (!known)
    return err_code(err, "internal", "no memory for a command");
  *known = (struct known_command){*list, request, number, false, false};
  *list = known;
  return 0;
}

bool
commands_known(const struct known_command *list, uint32_t number)
{
  while (list && list->number != number)
    list = list->next;
  return list != NULL;
}

bool
commands_spawned(struct known_command *list, uint64_t request, uint32_t number, bool *wanted)
{
  for (struct known_command *known = list; known; known = known->next)
    if (!known->running && known->number == number && known->request == request) {
      known->running = true;
      *wanted = !known->forgotten;
      return true;
    }
  return false;
}

static void
drop(struct known_command **at)
{
  struct known_command *known = *at;

  *at = known->next;
  free(known);
}

bool
commands_failed(struct known_command **list, uint64_t request, bool *wanted)
{
  struct known_command **oldest = NULL;

  /* Two daemons may have used one number; init answers in the order in which it was asked. */
  for (struct known_command **at = list; *at; at = &(*at)->next)
    if (!(*at)->running && (*at)->request == request)
      oldest = at;
  if (!oldest)
    return false;
  *wanted = !(*oldest)->forgotten;
  drop(oldest);
  return true;
}

bool
commands_exited(struct known_command **list, uint32_t number)
{
  for (struct known_command **at = list; *at; at = &(*at)->next)
    if ((*at)->running && (*at)->number == number) {
      drop(at);
      return true;
    }
  return false;
}

void
commands_forget_requests(struct known_command *list)
{
  for (struct known_command *known = list; known; known = known->next)
    known->forgotten = true;
}

void
commands_end(struct known_command **list)
{
  struct err err;

  while (*list) {
    if (!(*list)->running && !(*list)->forgotten && (*list)->request < COMMAND_OWN_REQUESTS) {
      err_code(&err, "sandbox_ended", "the sandbox ended before the command was started");
      control_refuse((*list)->request, &err);
    }
    drop(list);
  }
}

int
exit_record_read(const struct frame *frame, struct exit_record *record)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint16_t tag;
  int more, bad = 0;

  memset(record, 0, sizeof *record);
  while ((more = attr_next(&walk, &tag, &value, &ignored)) > 0) {
    if (tag == RAMET_TAG_COMMAND)
      bad |= span_u32(value, &record->number);
    else if (tag == RAMET_TAG_STATUS)
      bad |= span_u32(value, &record->status);
    else if (tag == RAMET_TAG_USER_NS)
      bad |= span_u64(value, &record->user_ns);
    else if (tag == RAMET_TAG_SYSTEM_NS)
      bad |= span_u64(value, &record->system_ns);
    else if (tag == RAMET_TAG_PEAK_BYTES)
      bad |= span_u64(value, &record->peak_bytes);
    else if (tag == RAMET_TAG_DISK_PEAK)
      bad |= span_u64(value, &record->disk_bytes);
    else if (tag == RAMET_TAG_MEMORY_PEAK)
      bad |= span_u64(value, &record->memory_peak);
    else if (tag == RAMET_TAG_OOM_KILLS)
      bad |= span_u64(value, &record->oom_kills);
    else if (tag == RAMET_TAG_SHM_PEAK)
      bad |= span_u64(value, &record->shm_bytes);
    else if (tag == RAMET_TAG_CPU_PEAK_NS)
      bad |= span_u64(value, &record->cpu_peak_ns);
    else if (tag == RAMET_TAG_REACHED)
      bad |= span_u32(value, &record->reached);
    else if (tag == RAMET_TAG_CPU_KILLED)
      bad |= span_u32(value, &record->cpu_killed);
    else if (tag == RAMET_TAG_STARTED_NS)
      bad |= span_u64(value, &record->started_ns);
    else
      bad = -1;
  }
  return more < 0 || bad ? -1 : 0;
}

void
exit_record_put(const struct exit_record *record, struct writer *writer)
{
  put_u32(writer, RAMET_TAG_COMMAND, record->number);
  put_u32(writer, RAMET_TAG_STATUS, record->status);
  put_u64(writer, RAMET_TAG_USER_NS, record->user_ns);
  put_u64(writer, RAMET_TAG_SYSTEM_NS, record->system_ns);
  put_u64(writer, RAMET_TAG_PEAK_BYTES, record->peak_bytes);
  put_u64(writer, RAMET_TAG_DISK_PEAK, record->disk_bytes);
  put_u64(writer, RAMET_TAG_MEMORY_PEAK, record->memory_peak);
  put_u64(writer, RAMET_TAG_OOM_KILLS, record->oom_kills);
  put_u64(writer, RAMET_TAG_SHM_PEAK, record->shm_bytes);
  put_u64(writer, RAMET_TAG_CPU_PEAK_NS, record->cpu_peak_ns);
  put_u32(writer, RAMET_TAG_LIMIT, (uint32_t)exit_record_limit(record));
}

static bool
died_of(const struct exit_record *record, int signal)
{
  return WIFSIGNALED((int)record->status) && WTERMSIG((int)record->status) == signal;
}

/* Or its exit code says by the convention of shells that what it waited for did. */
static bool
tells_of(const struct exit_record *record, int signal)
{
  return died_of(record, signal) ||
         (WIFEXITED((int)record->status) && WEXITSTATUS((int)record->status) == 128 + signal);
}

enum ramet_reason
exit_record_reason(const struct exit_record *record)
{
  if (record->reached & RAMET_REACHED_MEMORY && tells_of(record, SIGKILL))
    return RAMET_REASON_OOM;
  if (record->cpu_killed && died_of(record, SIGKILL))
    return RAMET_REASON_CPU;
  if (record->reached & (RAMET_REACHED_DISK | RAMET_REACHED_SHM) && died_of(record, SIGBUS))
    return RAMET_REASON_DISK;
  return WIFSIGNALED((int)record->status) ? RAMET_REASON_SIGNAL : RAMET_REASON_EXIT;
}

enum ramet_limit
exit_record_limit(const struct exit_record *record)
{
  if (record->reached & RAMET_REACHED_IN_FLIGHT && tells_of(record, SIGKILL))
    return RAMET_LIMIT_IN_FLIGHT;
  if (record->reached & RAMET_REACHED_EPOLL_WATCHES && tells_of(record, SIGKILL))
    return RAMET_LIMIT_EPOLL_WATCHES;
  if (record->reached & RAMET_REACHED_CPU && tells_of(record, SIGXCPU))
    return RAMET_LIMIT_CPU_SECONDS;
  if (record->reached & RAMET_REACHED_FILE_SIZE && tells_of(record, SIGXFSZ))
    return RAMET_LIMIT_FILE_SIZE;
  if (record->reached & RAMET_REACHED_DISK && tells_of(record, SIGBUS))
    return RAMET_LIMIT_DISK;
  return record->reached & RAMET_REACHED_SHM && tells_of(record, SIGBUS) ? RAMET_LIMIT_SHM : RAMET_LIMIT_NONE;
}

void
failure_read(struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint32_t number;
  uint16_t tag;

  err_code(err, "isolation_failed", "init failed");
  while (attr_next(&walk, &tag, &value, &ignored) > 0) {
    if (tag == RAMET_TAG_STEP && span_u32(value, &number) == 0)
      err->step = (enum ramet_step)number;
    else if (tag == RAMET_TAG_ERRNO && span_u32(value, &number) == 0)
      err->number = (int)number;
    else if (tag == RAMET_TAG_TEXT && span_is_text(value))
      snprintf(err->text, sizeof err->text, "%.*s", (int)value.length, (const char *)value.data);
    else if (tag == RAMET_TAG_CODE && span_is_text(value))
      snprintf(err->code, sizeof err->code, "%.*s", (int)value.length, (const char *)value.data);
    else if (tag == RAMET_TAG_FIELD && span_is_text(value))
      snprintf(err->field, sizeof err->field, "%.*s", (int)value.length, (const char *)value.data);
  }
}

int
pid_read(const struct frame *frame, uint32_t *pid)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint16_t tag;

  return attr_next(&walk, &tag, &value, &ignored) > 0 && tag == RAMET_TAG_PID ? span_u32(value, pid) : -1;
}

int
spawned_read(const struct frame *frame, uint32_t *number, uint32_t *pid)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  struct err ignored;
  uint16_t tag;
  int more, bad = 0;

  while ((more = attr_next(&walk, &tag, &value, &ignored)) > 0)
    bad |= tag == RAMET_TAG_COMMAND ? span_u32(value, number) : tag == RAMET_TAG_PID ? span_u32(value, pid) : -1;
  return more < 0 || bad ? -1 : 0;
}

int
signal_read(const struct frame *frame, struct signal_request *out, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  int more, bad = 0, count = 0;

  memset(out, 0, sizeof *out);
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    count++;
    bad |= tag == RAMET_TAG_SANDBOX   ? span_u64(value, &out->sandbox)
           : tag == RAMET_TAG_COMMAND ? span_u32(value, &out->command)
           : tag == RAMET_TAG_SIGNAL  ? span_u32(value, &out->signal)
                                      : -1;
  }
  if (more < 0)
    return -1;
  if (bad || count != 3)
    return err_field(err, "payload", "a signal takes a sandbox, a command and a number");
  return out->signal >= 1 && out->signal <= 64 ? 0 : err_field(err, "signal", "%u is no signal", out->signal);
}
