/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "plan.h"

#include <limits.h>
#include <sys/resource.h>

#include "tap.h"

/* ---- plans to start from -------------------------------------------------------------------------------------- */

static void
put_sandbox(struct writer *writer)
{
  put_u64(writer, RAMET_TAG_SANDBOX, 7);
  put_u32(writer, RAMET_TAG_ROOT, 2);
  put_u32(writer, RAMET_TAG_FILTER, 3);
  put_u64(writer, RAMET_TAG_DISK_BYTES, 1 << 20);
  put_u64(writer, RAMET_TAG_DISK_INODES, 100);
}

static void
put_run(struct writer *writer)
{
  put_sandbox(writer);
  put_text(writer, RAMET_TAG_ARG, "true");
}

/* A start without what the message needs: tests add what they are about. */
static void
put_use(struct writer *writer, enum plan_use use)
{
  if (use == PLAN_SPAWN || use == PLAN_START)
    put_u64(writer, RAMET_TAG_SANDBOX, 7);
  else
    put_sandbox(writer);
  if (use == PLAN_START)
    put_u32(writer, RAMET_TAG_COMMAND, 3);
  if (use != PLAN_CREATE)
    put_text(writer, RAMET_TAG_ARG, "true");
}

static struct err last;

static bool
decodes(const struct writer *writer, enum plan_use use, bool from_core, struct plan *plan)
{
  struct span payload = {writer->data, (uint32_t)writer->length};

  NEED(!writer->failed);
  memset(&last, 0, sizeof last);
  int result = plan_decode(payload, use, from_core, 4, plan, &last);
  /* The convention: filled when it failed, untouched when not. */
  CHECK((result < 0) == (last.text[0] != 0));
  return result == 0;
}

/* Whether a RUN with this attribute added is accepted. */
static bool
run_accepts(uint16_t tag, const void *value, size_t length)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_run(&writer);
  put_bytes(&writer, tag, value, length);
  return decodes(&writer, PLAN_RUN, false, &plan);
}

static bool
run_refuses(uint16_t tag, const void *value, size_t length, const char *field)
{
  return !run_accepts(tag, value, length) && strcmp(last.code, "malformed") == 0 && strcmp(last.field, field) == 0;
}

/* ---- what is accepted ----------------------------------------------------------------------------------------- */

static void
put_everything(struct writer *writer)
{
  struct {
    uint32_t resource, zero;
    uint64_t soft, hard;
  } limit = {RLIMIT_NOFILE, 0, 64, 128};

  put_run(writer);
  put_text(writer, RAMET_TAG_HOSTNAME, "box");
  put_u32(writer, RAMET_TAG_NETWORK, RAMET_NETWORK_NONE);
  put_bytes(writer, RAMET_TAG_RLIMIT, &limit, sizeof limit);
  put_u64(writer, RAMET_TAG_PROCESSES, 50);
  put_u64(writer, RAMET_TAG_WALL_NS, 500000000);
  put_u32(writer, RAMET_TAG_OWNED, 0);
  put_bytes(writer, RAMET_TAG_RECORD, "\0\1\2", 3);
  put_u32(writer, RAMET_TAG_FAULT, RAMET_STEP_EXEC);
  put_u32(writer, RAMET_TAG_COMMAND, 9);
  put_text(writer, RAMET_TAG_ARG, "");
  put_text(writer, RAMET_TAG_ENV, "A=");
  put_text(writer, RAMET_TAG_ENV, "B=c=d");
  put_text(writer, RAMET_TAG_CWD, "/home");
  put_u32(writer, RAMET_TAG_UID, 1000);
  put_u32(writer, RAMET_TAG_GID, 1001);
  put_u32(writer, RAMET_TAG_STDIN, 0);
  put_u32(writer, RAMET_TAG_STDOUT, 1);
  put_u32(writer, RAMET_TAG_STDERR, 2);
  put_u32(writer, RAMET_TAG_CHANNEL, 3);
}

static void
a_whole_plan_is_decoded_field_by_field(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_everything(&writer);
  NEED(decodes(&writer, PLAN_RUN, false, &plan));
  CHECK(plan.sandbox == 7 && plan.root == 2 && plan.filter == 3);
  CHECK(plan.disk_bytes == 1 << 20 && plan.disk_inodes == 100);
  CHECK_TEXT(plan.hostname, "box");
  CHECK(plan.network == RAMET_NETWORK_NONE);
  CHECK(plan.rlimit_count == 1 && plan.rlimits[0].resource == RLIMIT_NOFILE);
  CHECK(plan.rlimits[0].soft == 64 && plan.rlimits[0].hard == 128);
  CHECK(plan.processes == 50 && plan.wall_ns == 500000000 && !plan.owned);
  CHECK(plan.record.length == 3 && memcmp(plan.record.data, "\0\1\2", 3) == 0);
  CHECK(plan.fault == RAMET_STEP_EXEC);
  CHECK(plan.command.number == 9 && plan.command.uid == 1000 && plan.command.gid == 1001);
  CHECK(plan.command.arg_count == 2 && plan.command.env_count == 2);
  for (uint32_t i = 0; i < STREAM_COUNT; i++)
    CHECK(plan.command.streams[i] == i);
  plan_free(&plan);
}

static void
what_a_plan_leaves_out_has_its_documented_default(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_run(&writer);
  NEED(decodes(&writer, PLAN_RUN, false, &plan));
  CHECK(plan.owned);
  CHECK(plan.wall_ns == 0 && plan.processes == 0 && plan.rlimit_count == 0);
  CHECK(plan.hostname[0] == 0 && plan.record.length == 0 && plan.fault == RAMET_STEP_NONE);
  CHECK(plan.command.uid == 0 && plan.command.gid == 0 && plan.command.number == 0);
  for (int i = 0; i < STREAM_COUNT; i++)
    CHECK(plan.command.streams[i] == RAMET_FD_NONE);
}

static void
core_adds_the_filter_program_and_bind_targets_for_init(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_sandbox(&writer);
  put_bytes(&writer, RAMET_TAG_BYTES, "12345678", 8);
  put_text(&writer, RAMET_TAG_BIND, "/usr");
  put_text(&writer, RAMET_TAG_BIND, "/opt/python");
  NEED(decodes(&writer, PLAN_CREATE, true, &plan));
  CHECK(plan.filter_program.length == 8 && memcmp(plan.filter_program.data, "12345678", 8) == 0);
  CHECK(plan.bind_count == 2);
  CHECK(plan.targets[1].length == 11 && memcmp(plan.targets[1].data, "/opt/python", 11) == 0);
}

static void
as_many_binds_as_a_root_may_have_and_no_more(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_sandbox(&writer);
  for (int i = 0; i < RAMET_BINDS_MAX; i++)
    put_text(&writer, RAMET_TAG_BIND, "/usr");
  CHECK(decodes(&writer, PLAN_CREATE, true, &plan));
  put_text(&writer, RAMET_TAG_BIND, "/usr");
  CHECK(!decodes(&writer, PLAN_CREATE, true, &plan));
  CHECK_TEXT(last.field, "bind");
}

/* ---- strings -------------------------------------------------------------------------------------------------- */

static void
arguments_environment_and_directory_become_c_strings(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_everything(&writer);
  NEED(decodes(&writer, PLAN_RUN, false, &plan) && plan_strings(&plan, &last) == 0);
  CHECK_TEXT(plan.command.argv[0], "true");
  CHECK_TEXT(plan.command.argv[1], "");
  CHECK(plan.command.argv[2] == NULL);
  CHECK_TEXT(plan.command.envp[0], "A=");
  CHECK_TEXT(plan.command.envp[1], "B=c=d");
  CHECK(plan.command.envp[2] == NULL);
  CHECK_TEXT(plan.command.cwd, "/home");
  plan_free(&plan);
  plan_free(&plan); /* again is harmless */
}

static void
without_a_directory_there_is_none(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_run(&writer);
  NEED(decodes(&writer, PLAN_RUN, false, &plan) && plan_strings(&plan, &last) == 0);
  CHECK(plan.command.cwd == NULL && plan.command.envp[0] == NULL);
  plan_free(&plan);
}

/* Empty arguments need more room as pointers than their attributes have bytes. */
static void
a_hundred_thousand_arguments_of_every_short_length_fit(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;
  const uint32_t count = 100000;

  put_sandbox(&writer);
  for (uint32_t i = 0; i < count; i++)
    put_bytes(&writer, RAMET_TAG_ARG, "abcdefg", i % 8);
  NEED(decodes(&writer, PLAN_RUN, false, &plan) && plan_strings(&plan, &last) == 0);
  CHECK(plan.command.arg_count == count);
  for (uint32_t i = 0; i < count; i++)
    if (strlen(plan.command.argv[i]) != i % 8)
      CHECK(!"every argument has its length");
  CHECK(plan.command.argv[count] == NULL);
  plan_free(&plan);
}

/* ---- what is missing ------------------------------------------------------------------------------------------ */

static const struct {
  uint16_t tag;
  bool wide; /* u64 */
  const char *field;
} needed[] = {
    {RAMET_TAG_SANDBOX, true, "sandbox"},  {RAMET_TAG_ROOT, false, "root"},
    {RAMET_TAG_FILTER, false, "filter"},   {RAMET_TAG_DISK_BYTES, true, "disk"},
    {RAMET_TAG_DISK_INODES, true, "disk"},
};
#define NEEDED_COUNT (sizeof needed / sizeof needed[0])

/* All that is needed but number `without`; or that one as zero. */
static void
put_needed(struct writer *writer, size_t without, bool as_zero)
{
  for (size_t i = 0; i < NEEDED_COUNT; i++) {
    if (i == without && !as_zero)
      continue;
    uint64_t value = i == without ? 0 : 5;
    put_bytes(writer, needed[i].tag, &value, needed[i].wide ? 8 : 4);
  }
  put_text(writer, RAMET_TAG_ARG, "true");
}

static void
each_needed_number_that_is_missing_or_zero_is_named(void)
{
  struct plan plan;

  for (size_t i = 0; i < NEEDED_COUNT; i++)
    for (int as_zero = 0; as_zero < 2; as_zero++) {
      cleanup_writer struct writer writer = {0};
      put_needed(&writer, i, as_zero);
      CHECK(!decodes(&writer, PLAN_RUN, false, &plan));
      CHECK_TEXT(last.field, needed[i].field);
    }
}

static void
a_command_without_arguments_is_refused_and_a_sandbox_needs_none(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_sandbox(&writer);
  CHECK(!decodes(&writer, PLAN_RUN, false, &plan));
  CHECK_TEXT(last.field, "arg");
  CHECK(decodes(&writer, PLAN_CREATE, false, &plan));
}

static void
a_spawn_needs_a_sandbox_and_a_command_only(void)
{
  cleanup_writer struct writer writer = {0}, empty = {0};
  struct plan plan;

  put_use(&writer, PLAN_SPAWN);
  CHECK(decodes(&writer, PLAN_SPAWN, false, &plan));
  put_text(&empty, RAMET_TAG_ARG, "true");
  CHECK(!decodes(&empty, PLAN_SPAWN, false, &plan));
  CHECK_TEXT(last.field, "sandbox");
}

static void
an_empty_payload_is_no_plan(void)
{
  struct writer writer = {0};
  struct plan plan;

  for (int use = PLAN_RUN; use <= PLAN_START; use++)
    CHECK(!decodes(&writer, (enum plan_use)use, false, &plan));
}

/* The command comes last, so no beginning of the plan is a plan. */
static void
every_beginning_of_a_plan_is_refused(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_run(&writer);
  for (struct writer part = writer; part.length-- > 0;)
    CHECK(!decodes(&part, PLAN_RUN, false, &plan));
}

/* ---- tags ----------------------------------------------------------------------------------------------------- */

/* A value that decodes, for each tag of a message from the daemon. */
static size_t
valid_value(uint16_t tag, uint8_t value[24])
{
  memset(value, 0, 24);
  switch (tag) {
  case RAMET_TAG_SANDBOX:
  case RAMET_TAG_DISK_BYTES:
  case RAMET_TAG_DISK_INODES:
  case RAMET_TAG_PROCESSES:
  case RAMET_TAG_WALL_NS:
  case RAMET_TAG_LOG_BYTES:
    return 8;
  case RAMET_TAG_RLIMIT:
    return 24;
  case RAMET_TAG_HOSTNAME:
  case RAMET_TAG_RECORD:
  case RAMET_TAG_ARG:
    value[0] = 'a';
    return 1;
  case RAMET_TAG_ENV:
    memcpy(value, "A=b", 3);
    return 3;
  case RAMET_TAG_CWD:
    value[0] = '/';
    return 1;
  default:
    return 4;
  }
}

static const uint16_t sandbox_tags[] = {
    RAMET_TAG_ROOT,        RAMET_TAG_FILTER,  RAMET_TAG_HOSTNAME,  RAMET_TAG_DISK_BYTES,
    RAMET_TAG_DISK_INODES, RAMET_TAG_NETWORK, RAMET_TAG_PROCESSES, RAMET_TAG_WALL_NS,
    RAMET_TAG_OWNED,       RAMET_TAG_RECORD,  RAMET_TAG_FAULT,     RAMET_TAG_RLIMIT,
};
static const uint16_t command_tags[] = {
    RAMET_TAG_COMMAND, RAMET_TAG_CWD,    RAMET_TAG_UID, RAMET_TAG_GID, RAMET_TAG_STDIN,
    RAMET_TAG_STDOUT,  RAMET_TAG_STDERR, RAMET_TAG_ARG, RAMET_TAG_ENV, RAMET_TAG_CHANNEL,
};
static const uint16_t start_tags[] = {
    RAMET_TAG_COMMAND, RAMET_TAG_CWD,     RAMET_TAG_UID,    RAMET_TAG_GID,       RAMET_TAG_ARG,
    RAMET_TAG_ENV,     RAMET_TAG_WALL_NS, RAMET_TAG_RECORD, RAMET_TAG_LOG_BYTES, RAMET_TAG_FLAGS,
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool
in(uint16_t tag, const uint16_t *tags, size_t count)
{
  for (size_t i = 0; i < count; i++)
    if (tags[i] == tag)
      return true;
  return false;
}

static bool
belongs(uint16_t tag, enum plan_use use)
{
  if (tag == RAMET_TAG_SANDBOX)
    return true;
  if (tag == RAMET_TAG_KEEP)
    return use == PLAN_CREATE;
  if (tag == RAMET_TAG_LOG_BYTES)
    return use != PLAN_RUN;
  if (use == PLAN_START)
    return in(tag, start_tags, COUNT(start_tags));
  return (use != PLAN_SPAWN && in(tag, sandbox_tags, COUNT(sandbox_tags))) ||
         (use != PLAN_CREATE && in(tag, command_tags, COUNT(command_tags)));
}

static bool
is_present_already(uint16_t tag, enum plan_use use)
{
  if (use == PLAN_START)
    return tag == RAMET_TAG_SANDBOX || tag == RAMET_TAG_COMMAND;
  return tag == RAMET_TAG_SANDBOX ||
         (use != PLAN_SPAWN && (tag == RAMET_TAG_ROOT || tag == RAMET_TAG_FILTER || tag == RAMET_TAG_DISK_BYTES ||
                                tag == RAMET_TAG_DISK_INODES));
}

static void
each_message_takes_its_own_tags_and_no_other_number(void)
{
  struct plan plan;
  uint8_t value[24];

  for (int use = PLAN_RUN; use <= PLAN_START; use++)
    for (uint32_t tag = 0; tag <= UINT16_MAX; tag++) {
      cleanup_writer struct writer writer = {0};
      if (is_present_already((uint16_t)tag, (enum plan_use)use))
        continue;
      put_use(&writer, (enum plan_use)use);
      put_bytes(&writer, (uint16_t)tag, value, valid_value((uint16_t)tag, value));
      if (decodes(&writer, (enum plan_use)use, false, &plan) != belongs((uint16_t)tag, (enum plan_use)use)) {
        printf("# tag %u in message %d\n", tag, use);
        CHECK(!"the message takes this tag, or refuses it, as its table says");
      }
    }
}

static void
a_tag_occurs_once_unless_it_is_marked_repeated(void)
{
  struct plan plan;
  uint8_t value[24];

  for (uint16_t tag = 0; tag <= UINT8_MAX; tag++) {
    cleanup_writer struct writer writer = {0};
    bool repeats = tag == RAMET_TAG_ARG || tag == RAMET_TAG_ENV || tag == RAMET_TAG_RLIMIT;
    if (!belongs(tag, PLAN_RUN) || is_present_already(tag, PLAN_RUN))
      continue;
    put_run(&writer);
    put_bytes(&writer, tag, value, valid_value(tag, value));
    CHECK(decodes(&writer, PLAN_RUN, false, &plan));
    put_bytes(&writer, tag, value, valid_value(tag, value));
    CHECK(decodes(&writer, PLAN_RUN, false, &plan) == repeats);
  }
}

static void
a_needed_tag_occurs_once_too(void)
{
  static const uint64_t five = 5;

  for (size_t i = 0; i < NEEDED_COUNT; i++)
    CHECK(run_refuses(needed[i].tag, &five, needed[i].wide ? 8 : 4, "payload"));
}

static void
what_only_core_adds_is_refused_from_the_daemon(void)
{
  CHECK(run_refuses(RAMET_TAG_BYTES, "12345678", 8, "payload"));
  CHECK(run_refuses(RAMET_TAG_BIND, "/usr", 4, "payload"));
}

/* ---- values --------------------------------------------------------------------------------------------------- */

static void
a_number_of_another_size_is_refused(void)
{
  static const uint8_t zeros[32];
  uint8_t ignored[24];

  for (uint16_t tag = 0; tag <= UINT8_MAX; tag++) {
    size_t right = valid_value(tag, ignored);
    if (!belongs(tag, PLAN_RUN) || is_present_already(tag, PLAN_RUN) || right == 1 || right == 3)
      continue;
    for (size_t size = 0; size <= sizeof zeros; size++)
      CHECK(run_accepts(tag, zeros, size) == (size == right));
  }
}

static void
a_nul_byte_is_refused_in_every_text(void)
{
  CHECK(run_refuses(RAMET_TAG_HOSTNAME, "a\0b", 3, "hostname"));
  CHECK(run_refuses(RAMET_TAG_ARG, "a\0b", 3, "arg"));
  CHECK(run_refuses(RAMET_TAG_ARG, "a\0", 2, "arg"));
  CHECK(run_refuses(RAMET_TAG_ENV, "A=\0", 3, "env"));
  CHECK(run_refuses(RAMET_TAG_ENV, "A\0=b", 4, "env"));
  CHECK(run_refuses(RAMET_TAG_CWD, "/a\0b", 4, "cwd"));
}

static void
a_host_name_has_at_most_64_bytes(void)
{
  char name[RAMET_NAME_MAX + 1];

  memset(name, 'n', sizeof name);
  CHECK(run_accepts(RAMET_TAG_HOSTNAME, name, RAMET_NAME_MAX));
  CHECK(run_refuses(RAMET_TAG_HOSTNAME, name, RAMET_NAME_MAX + 1, "hostname"));
  CHECK(run_accepts(RAMET_TAG_HOSTNAME, name, 0));
}

static void
the_environment_is_names_with_values(void)
{
  CHECK(run_accepts(RAMET_TAG_ENV, "A=", 2));
  CHECK(run_accepts(RAMET_TAG_ENV, "A==", 3));
  CHECK(run_refuses(RAMET_TAG_ENV, "", 0, "env"));
  CHECK(run_refuses(RAMET_TAG_ENV, "=", 1, "env"));
  CHECK(run_refuses(RAMET_TAG_ENV, "=value", 6, "env"));
  CHECK(run_refuses(RAMET_TAG_ENV, "NAME", 4, "env"));
}

static void
a_working_directory_is_a_clean_absolute_path(void)
{
  CHECK(run_accepts(RAMET_TAG_CWD, "/", 1));
  CHECK(run_accepts(RAMET_TAG_CWD, "/home/user", 10));
  CHECK(run_refuses(RAMET_TAG_CWD, "", 0, "cwd"));
  CHECK(run_refuses(RAMET_TAG_CWD, "home", 4, "cwd"));
  CHECK(run_refuses(RAMET_TAG_CWD, "/home/../etc", 12, "cwd"));
}

static bool
accepts_limit(uint32_t resource, uint32_t zero, uint64_t soft, uint64_t hard)
{
  struct {
    uint32_t resource, zero;
    uint64_t soft, hard;
  } limit = {resource, zero, soft, hard};

  return run_accepts(RAMET_TAG_RLIMIT, &limit, sizeof limit);
}

static void
a_limit_names_a_known_resource_and_its_soft_value_is_not_above_the_hard(void)
{
  CHECK(accepts_limit(RLIMIT_CPU, 0, 1, 1));
  CHECK(accepts_limit(RLIM_NLIMITS - 1, 0, 0, UINT64_MAX));
  CHECK(!accepts_limit(RLIM_NLIMITS, 0, 1, 1));
  CHECK(!accepts_limit(UINT32_MAX, 0, 1, 1));
  CHECK(!accepts_limit(RLIMIT_CPU, 0, 2, 1));
  CHECK(!accepts_limit(RLIMIT_CPU, 1, 1, 1));
  CHECK_TEXT(last.field, "rlimit");
}

static void
the_seventeenth_limit_is_refused(void)
{
  cleanup_writer struct writer writer = {0};
  static const uint8_t limit[24];
  struct plan plan;

  put_run(&writer);
  for (int i = 0; i < RAMET_RLIMITS_MAX; i++)
    put_bytes(&writer, RAMET_TAG_RLIMIT, limit, sizeof limit);
  CHECK(decodes(&writer, PLAN_RUN, false, &plan));
  CHECK(plan.rlimit_count == RAMET_RLIMITS_MAX);
  put_bytes(&writer, RAMET_TAG_RLIMIT, limit, sizeof limit);
  CHECK(!decodes(&writer, PLAN_RUN, false, &plan));
}

static void
an_unknown_kind_of_network_is_refused(void)
{
  static const uint32_t unknown = RAMET_NETWORK_NONE + 1;

  CHECK(run_refuses(RAMET_TAG_NETWORK, &unknown, sizeof unknown, "network"));
}

static void
a_record_has_at_most_64_kib(void)
{
  static const uint8_t record[RAMET_RECORD_MAX + 1];

  CHECK(run_accepts(RAMET_TAG_RECORD, record, RAMET_RECORD_MAX));
  CHECK(run_accepts(RAMET_TAG_RECORD, record, 0));
  CHECK(run_refuses(RAMET_TAG_RECORD, record, RAMET_RECORD_MAX + 1, "record"));
}

static void
a_stream_names_a_descriptor_that_came_along(void)
{
  static const uint32_t last_one = 3, beyond = 4, none = RAMET_FD_NONE;

  CHECK(run_accepts(RAMET_TAG_STDOUT, &last_one, sizeof last_one));
  CHECK(run_refuses(RAMET_TAG_STDIN, &beyond, sizeof beyond, "stdin"));
  CHECK(run_refuses(RAMET_TAG_STDOUT, &beyond, sizeof beyond, "stdout"));
  CHECK(run_refuses(RAMET_TAG_STDERR, &none, sizeof none, "stderr"));
}

static void
two_streams_may_share_a_descriptor(void)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  put_run(&writer);
  put_u32(&writer, RAMET_TAG_STDOUT, 1);
  put_u32(&writer, RAMET_TAG_STDERR, 1);
  CHECK(decodes(&writer, PLAN_RUN, false, &plan));
}

/* ---- paths ---------------------------------------------------------------------------------------------------- */

static bool
clean(const char *path)
{
  return path_is_clean((struct span){(const uint8_t *)path, (uint32_t)strlen(path)});
}

static void
a_clean_path_is_absolute_and_has_only_plain_components(void)
{
  static const char *const good[] = {"/", "/a", "/a/b", "/...", "/.a", "/a.", "/..a", "/a..", "/a b/\n", "/\xff"};
  static const char *const bad[] = {"",     "a",     "./a",  "//",    "/a/",    "/a//b",   "/.",  "/..",
                                    "/./a", "/../a", "/a/.", "/a/..", "/a/./b", "/a/../b", "///", "/a/b/"};

  for (size_t i = 0; i < COUNT(good); i++)
    CHECK(clean(good[i]));
  for (size_t i = 0; i < COUNT(bad); i++)
    CHECK(!clean(bad[i]));
  CHECK(!path_is_clean((struct span){(const uint8_t *)"/a\0b", 4}));
}

static void
a_path_is_shorter_than_the_kernels_limit_and_so_is_each_component(void)
{
  char path[PATH_MAX + 1];

  memset(path, 'a', sizeof path);
  for (size_t i = 0; i < sizeof path; i += 100)
    path[i] = '/';
  CHECK(path_is_clean((struct span){(const uint8_t *)path, PATH_MAX - 1}));
  CHECK(!path_is_clean((struct span){(const uint8_t *)path, PATH_MAX}));
  memset(path + 1, 'a', 256);
  CHECK(path_is_clean((struct span){(const uint8_t *)path, 1 + NAME_MAX}));
  CHECK(!path_is_clean((struct span){(const uint8_t *)path, 2 + NAME_MAX}));
}

int
main(void)
{
  RUN(a_whole_plan_is_decoded_field_by_field);
  RUN(what_a_plan_leaves_out_has_its_documented_default);
  RUN(core_adds_the_filter_program_and_bind_targets_for_init);
  RUN(as_many_binds_as_a_root_may_have_and_no_more);
  RUN(arguments_environment_and_directory_become_c_strings);
  RUN(without_a_directory_there_is_none);
  RUN(a_hundred_thousand_arguments_of_every_short_length_fit);
  RUN(each_needed_number_that_is_missing_or_zero_is_named);
  RUN(a_command_without_arguments_is_refused_and_a_sandbox_needs_none);
  RUN(a_spawn_needs_a_sandbox_and_a_command_only);
  RUN(an_empty_payload_is_no_plan);
  RUN(every_beginning_of_a_plan_is_refused);
  RUN(each_message_takes_its_own_tags_and_no_other_number);
  RUN(a_tag_occurs_once_unless_it_is_marked_repeated);
  RUN(a_needed_tag_occurs_once_too);
  RUN(what_only_core_adds_is_refused_from_the_daemon);
  RUN(a_number_of_another_size_is_refused);
  RUN(a_nul_byte_is_refused_in_every_text);
  RUN(a_host_name_has_at_most_64_bytes);
  RUN(the_environment_is_names_with_values);
  RUN(a_working_directory_is_a_clean_absolute_path);
  RUN(a_limit_names_a_known_resource_and_its_soft_value_is_not_above_the_hard);
  RUN(the_seventeenth_limit_is_refused);
  RUN(an_unknown_kind_of_network_is_refused);
  RUN(a_record_has_at_most_64_kib);
  RUN(a_stream_names_a_descriptor_that_came_along);
  RUN(two_streams_may_share_a_descriptor);
  RUN(a_clean_path_is_absolute_and_has_only_plain_components);
  RUN(a_path_is_shorter_than_the_kernels_limit_and_so_is_each_component);
  return tap_end();
}
