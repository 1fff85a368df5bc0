/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <limits.h>
#include <string.h>
#include <sys/resource.h>

bool
path_is_clean(struct span path)
{
  if (path.length == 0 || path.length >= PATH_MAX || path.data[0] != '/' || !span_is_text(path))
    return false;
  if (path.length == 1)
    return true;
  for (uint32_t i = 0; i < path.length;) {
    uint32_t start = ++i;
    while (i < path.length && path.data[i] != '/')
      i++;
    uint32_t length = i - start;
    if (length == 0 || length > NAME_MAX || (length == 1 && path.data[start] == '.') ||
        (length == 2 && path.data[start] == '.' && path.data[start + 1] == '.'))
      return false;
  }
  return true;
}

static int
decode_rlimit(struct plan *plan, struct span value, struct err *err)
{
  struct plan_rlimit *limit;
  struct {
    uint32_t resource, zero;
    uint64_t soft, hard;
  } raw;

  if (value.length != sizeof raw)
    return err_field(err, "rlimit", "a limit has %zu bytes, not %u", sizeof raw, value.length);
  memcpy(&raw, value.data, sizeof raw);
  if (raw.resource >= RLIM_NLIMITS || raw.zero != 0 || raw.soft > raw.hard)
    return err_field(err, "rlimit", "resource %u with soft above hard, or unknown", raw.resource);
  if (plan->rlimit_count == RAMET_RLIMITS_MAX)
    return err_field(err, "rlimit", "more than %d limits", RAMET_RLIMITS_MAX);
  limit = &plan->rlimits[plan->rlimit_count++];
  *limit = (struct plan_rlimit){raw.resource, raw.soft, raw.hard};
  return 0;
}

static int
decode_text(struct span value, const char *field, uint32_t longest, struct err *err)
{
  if (!span_is_text(value) || value.length > longest)
    return err_field(err, field, "holds a NUL byte or is longer than %u", longest);
  return 0;
}

static int
decode_u32(struct span value, const char *field, uint32_t *out, struct err *err)
{
  return span_u32(value, out) < 0 ? err_field(err, field, "is no 32-bit number") : 0;
}

static int
decode_u64(struct span value, const char *field, uint64_t *out, struct err *err)
{
  return span_u64(value, out) < 0 ? err_field(err, field, "is no 64-bit number") : 0;
}

static int
decode_stream(struct span value, const char *field, int fd_count, uint32_t *out, struct err *err)
{
  if (span_u32(value, out) < 0 || *out >= (uint32_t)fd_count)
    return err_field(err, field, "names no descriptor that came along");
  return 0;
}

static int
decode_hostname(struct plan *plan, struct span value, struct err *err)
{
  if (decode_text(value, "hostname", RAMET_NAME_MAX, err) < 0)
    return -1;
  memcpy(plan->hostname, value.data, value.length);
  plan->hostname[value.length] = 0;
  return 0;
}

static int
decode_target(struct plan *plan, struct span value, struct err *err)
{
  if (plan->bind_count == RAMET_BINDS_MAX || !path_is_clean(value))
    return err_field(err, "bind", "bad target");
  plan->targets[plan->bind_count++] = value;
  return 0;
}

int
window_decode(struct span value, uint32_t *window, struct err *err)
{
  if (decode_u32(value, "window", window, err) < 0)
    return -1;
  return *window >> 16 && *window & 0xffff ? 0 : err_field(err, "window", "has no rows, or no columns");
}

static int
decode_one(struct plan *plan, uint16_t tag, struct span value, int fd_count, struct err *err)
{
  struct command *command = &plan->command;
  uint32_t number = 0;

  switch (tag) {
  case RAMET_TAG_SANDBOX:
    return decode_u64(value, "sandbox", &plan->sandbox, err);
  case RAMET_TAG_ROOT:
    return decode_u32(value, "root", &plan->root, err);
  case RAMET_TAG_FILTER:
    return decode_u32(value, "filter", &plan->filter, err);
  case RAMET_TAG_SNAPSHOT:
    return span_u32(value, &plan->snapshot) < 0 || plan->snapshot == 0
               ? err_field(err, "snapshot", "needs a number above 0")
               : 0;
  case RAMET_TAG_HOSTNAME:
    return decode_hostname(plan, value, err);
  case RAMET_TAG_DISK_BYTES:
    return decode_u64(value, "disk", &plan->disk_bytes, err);
  case RAMET_TAG_DISK_INODES:
    return decode_u64(value, "inodes", &plan->disk_inodes, err);
  case RAMET_TAG_NETWORK:
    if (decode_u32(value, "network", &plan->network, err) < 0)
      return -1;
    return plan->network == RAMET_NETWORK_NONE ? 0 : err_field(err, "network", "unknown kind %u", plan->network);
  case RAMET_TAG_RLIMIT:
    return decode_rlimit(plan, value, err);
  case RAMET_TAG_PROCESSES:
    return decode_u64(value, "processes", &plan->processes, err);
  case RAMET_TAG_WALL_NS:
    return decode_u64(value, "wall", &plan->wall_ns, err);
  case RAMET_TAG_MEMORY:
    return decode_u64(value, "memory", &plan->memory, err);
  case RAMET_TAG_KEEP:
    return decode_u32(value, "keep", &plan->keep, err);
  case RAMET_TAG_CPU_QUOTA:
    return decode_u64(value, "cpu_quota", &plan->quota, err);
  case RAMET_TAG_CPU_NS:
    return decode_u64(value, "cpu", &plan->cpu_ns, err);
  case RAMET_TAG_IDLE_NS_MAX:
    return decode_u64(value, "idle", &plan->idle_ns, err);
  case RAMET_TAG_SHM_BYTES:
    return decode_u64(value, "shm", &plan->shm_bytes, err);
  case RAMET_TAG_IO_BYTES:
    return decode_u64(value, "io", &plan->io_bytes, err);
  case RAMET_TAG_WATCH:
    return decode_u64(value, "watch", &plan->watch, err);
  case RAMET_TAG_INHERITED:
    return decode_u64(value, "inherited", &plan->inherited, err);
  case RAMET_TAG_OWNED:
    if (decode_u32(value, "owned", &number, err) < 0)
      return -1;
    plan->owned = number != 0;
    return 0;
  case RAMET_TAG_RECORD:
    if (value.length > RAMET_RECORD_MAX)
      return err_field(err, "record", "is longer than %d bytes", RAMET_RECORD_MAX);
    plan->record = value;
    return 0;
  case RAMET_TAG_FAULT:
    if (decode_u32(value, "fault", &number, err) < 0)
      return -1;
    plan->fault = (enum ramet_step)number;
    return 0;
  case RAMET_TAG_COMMAND:
    return decode_u32(value, "command", &command->number, err);
  case RAMET_TAG_ARG:
    command->arg_count++;
    return decode_text(value, "arg", RAMET_PAYLOAD_MAX, err);
  case RAMET_TAG_ENV:
    command->env_count++;
    if (value.length < 2 || value.data[0] == '=' || !memchr(value.data, '=', value.length))
      return err_field(err, "env", "is no NAME=value");
    return decode_text(value, "env", RAMET_PAYLOAD_MAX, err);
  case RAMET_TAG_CWD:
    return path_is_clean(value) ? 0 : err_field(err, "cwd", "is no clean absolute path");
  case RAMET_TAG_UID:
    return decode_u32(value, "uid", &command->uid, err);
  case RAMET_TAG_GID:
    return decode_u32(value, "gid", &command->gid, err);
  case RAMET_TAG_STDIN:
    return decode_stream(value, "stdin", fd_count, &command->streams[STREAM_IN], err);
  case RAMET_TAG_STDOUT:
    return decode_stream(value, "stdout", fd_count, &command->streams[STREAM_OUT], err);
  case RAMET_TAG_STDERR:
    return decode_stream(value, "stderr", fd_count, &command->streams[STREAM_ERR], err);
  case RAMET_TAG_CHANNEL:
    return decode_stream(value, "channel", fd_count, &command->streams[STREAM_CHANNEL], err);
  case RAMET_TAG_BYTES:
    plan->filter_program = value;
    return 0;
  case RAMET_TAG_BIND:
    return decode_target(plan, value, err);
  case RAMET_TAG_LOG_BYTES:
    if (decode_u64(value, "log_bytes", &plan->log_bytes, err) < 0)
      return -1;
    return plan->log_bytes <= RAMET_LOG_BYTES_MAX ? 0 : err_field(err, "log_bytes", "is above the most");
  case RAMET_TAG_FLAGS:
    return decode_u32(value, "flags", &plan->flags, err);
  case RAMET_TAG_WINDOW:
    return window_decode(value, &plan->window, err);
  default:
    return err_field(err, "payload", "tag %u does not belong into a plan", tag);
  }
}

static bool
tag_fits(uint16_t tag, enum plan_use use, bool from_core)
{
  if (tag == RAMET_TAG_BYTES || tag == RAMET_TAG_BIND || tag == RAMET_TAG_WATCH || tag == RAMET_TAG_INHERITED)
    return from_core;
  if (tag == RAMET_TAG_SANDBOX)
    return true;
  if (tag == RAMET_TAG_LOG_BYTES)
    return use != PLAN_RUN;
  if (tag == RAMET_TAG_FLAGS || tag == RAMET_TAG_WINDOW)
    return use == PLAN_START || (use == PLAN_SPAWN && from_core);
  if (tag == RAMET_TAG_WALL_NS || tag == RAMET_TAG_RECORD)
    return use != PLAN_SPAWN || from_core;
  if (use == PLAN_START)
    return tag >= RAMET_TAG_COMMAND && tag < RAMET_TAG_STDIN;
  if (tag == RAMET_TAG_SNAPSHOT || tag == RAMET_TAG_KEEP)
    return use == PLAN_CREATE;
  /* A fork takes streams and a number for the command that it carries on, and nothing else of a command. */
  if (tag == RAMET_TAG_COMMAND || (tag >= RAMET_TAG_STDIN && tag <= RAMET_TAG_CHANNEL))
    return true;
  if (tag >= RAMET_TAG_COMMAND && tag <= RAMET_TAG_CHANNEL)
    return use != PLAN_CREATE;
  return use != PLAN_SPAWN;
}

static bool
tag_repeats(uint16_t tag)
{
  return tag == RAMET_TAG_ARG || tag == RAMET_TAG_ENV || tag == RAMET_TAG_RLIMIT || tag == RAMET_TAG_BIND;
}

static int
require(const struct plan *plan, enum plan_use use, struct err *err)
{
  if (plan->sandbox == 0)
    return err_field(err, "sandbox", "is missing");
  if (use == PLAN_CREATE && plan->for_a_command && !plan->snapshot)
    return err_field(err, "snapshot", "is missing: only a fork takes a command's number and streams");
  if (use == PLAN_CREATE && plan->log_bytes && !plan->snapshot)
    return err_field(err, "log_bytes", "is of a command, and nothing begins here");
  if (plan->keep && !plan->memory)
    return err_field(err, "keep", "is for what has a limit on memory");
  if (plan->snapshot && plan->root)
    return err_field(err, "root", "a snapshot brings its own");
  if (use == PLAN_START && plan->command.number == 0)
    return err_field(err, "command", "needs a number above 0");
  if (use == PLAN_START && plan->record.length > RAMET_COMMAND_RECORD_MAX)
    return err_field(err, "record", "is longer than %d bytes", RAMET_COMMAND_RECORD_MAX);
  bool only_command = use == PLAN_SPAWN || use == PLAN_START;
  if (!only_command && plan->root == 0 && plan->snapshot == 0)
    return err_field(err, "root", "is missing");
  if (!only_command && plan->filter == 0 && plan->snapshot == 0)
    return err_field(err, "filter", "is missing");
  if (!only_command && (plan->disk_bytes == 0 || plan->disk_inodes == 0))
    return err_field(err, "disk", "the writable layer needs a size and a number of inodes");
  if (use != PLAN_CREATE && plan->command.arg_count == 0)
    return err_field(err, "arg", "a command has at least one argument");
  return 0;
}

int
plan_decode(struct span payload, enum plan_use use, bool from_core, int fd_count, struct plan *plan,
            struct err *err)
{
  struct attr_walk walk = {payload};
  uint8_t seen[256 / 8] = {0};
  uint16_t tag;
  struct span value;
  int more;

  memset(plan, 0, sizeof *plan);
  plan->payload = payload;
  plan->owned = true;
  for (int i = 0; i < STREAM_COUNT; i++)
    plan->command.streams[i] = RAMET_FD_NONE;
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    if (tag > 255 || !tag_fits(tag, use, from_core))
      return err_field(err, "payload", "tag %u does not belong into this message", tag);
    if (!tag_repeats(tag) && (seen[tag / 8] & (1u << (tag % 8))))
      return err_field(err, "payload", "tag %u occurs twice", tag);
    seen[tag / 8] |= (uint8_t)(1u << (tag % 8));
    if (tag >= RAMET_TAG_COMMAND && tag <= RAMET_TAG_CHANNEL)
      plan->for_a_command = true;
    if (decode_one(plan, tag, value, fd_count, err) < 0)
      return -1;
  }
  return more < 0 ? -1 : require(plan, use, err);
}

static char *
copy_text(char **at, struct span value)
{
  char *text = *at;

  memcpy(text, value.data, value.length);
  text[value.length] = 0;
  *at += value.length + 1;
  return text;
}

int
plan_strings(struct plan *plan, struct err *err)
{
  struct command *command = &plan->command;
  struct attr_walk walk = {plan->payload};
  size_t pointers = (size_t)command->arg_count + command->env_count + 2;
  /* Every text stands in the payload behind an attribute header of 8 bytes: its copy with a NUL is never longer. */
  char *arena = malloc(pointers * sizeof(char *) + plan->payload.length + sizeof(char *));
  uint16_t tag;
  struct span value;

  if (!arena)
    return err_code(err, "internal", "no memory for the command's arguments");
  plan->arena = arena;
  command->argv = (char **)(void *)arena;
  command->envp = command->argv + command->arg_count + 1;
  char *at = arena + pointers * sizeof(char *);
  uint32_t args = 0, envs = 0;
  while (attr_next(&walk, &tag, &value, err) > 0) {
    if (tag == RAMET_TAG_ARG)
      command->argv[args++] = copy_text(&at, value);
    else if (tag == RAMET_TAG_ENV)
      command->envp[envs++] = copy_text(&at, value);
    else if (tag == RAMET_TAG_CWD)
      command->cwd = copy_text(&at, value);
  }
  command->argv[args] = NULL;
  command->envp[envs] = NULL;
  return 0;
}

void
plan_free(struct plan *plan)
{
  free(plan->arena);
  plan->arena = NULL;
}

uint64_t
plan_rlimit_processes(const struct plan *plan)
{
  return plan->processes && plan->processes < RLIM_INFINITY ? plan->processes + 1 : RLIM_INFINITY;
}

/* More processor time than this nobody is held to exactly. */
#define ESTIMATED_NS 86400000000000u

bool
plan_needs_cgroup(const struct plan *plan)
{
  return plan->quota || plan->io_bytes || (plan->cpu_ns && plan->cpu_ns < ESTIMATED_NS);
}

uint64_t
plan_file_size(const struct plan *plan)
{
  for (int i = 0; i < plan->rlimit_count; i++)
    if (plan->rlimits[i].resource == RLIMIT_FSIZE &&
        (plan->rlimits[i].soft <= plan->disk_bytes || plan->rlimits[i].soft <= plan->shm_bytes))
      return plan->rlimits[i].soft;
  return 0;
}
