/* SPDX-License-Identifier: Apache-2.0
 * Standing sandboxes and the daemon's requests about them, with an init that does what it likes. */
#include "false_init.h"

/* ---- a standing sandbox --------------------------------------------------------------------------------------- */

static void
an_entered_sandbox_stands_and_answers_its_create(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STARTING, false);
  uint64_t value = 0;

  say(sandbox, RAMET_INIT_ENTERED, REQUEST, NULL);
  CHECK(sandbox->state == SANDBOX_STANDING);
  CHECK(told_count == 1 && told[0].kind == RAMET_OK && told[0].request == REQUEST);
  CHECK(told_number(&told[0], RAMET_TAG_SANDBOX, &value) && value == ID);
  put_down(sandbox);
}

/* ENTERED belongs to CREATE, SPAWNED to SPAWN. */
static void
a_run_does_not_stand_and_a_create_does_not_run(void)
{
  struct sandbox *run = sandbox_in(SANDBOX_RUNNING, true);
  say(run, RAMET_INIT_ENTERED, REQUEST, NULL);
  CHECK(run->state == SANDBOX_ENDING);
  put_down(run);
  struct sandbox *create = sandbox_in(SANDBOX_STARTING, false);
  say(create, RAMET_INIT_SPAWNED, REQUEST, NULL);
  CHECK(create->state == SANDBOX_ENDING);
  put_down(create);
}

static void
ask_to_spawn(uint64_t request, uint32_t number)
{
  struct writer writer = {0};
  struct err err = {0};

  put_u64(&writer, RAMET_TAG_SANDBOX, ID);
  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_text(&writer, RAMET_TAG_ARG, "true");
  struct frame frame = {.kind = RAMET_SPAWN, .request = request, .payload = {writer.data, (uint32_t)writer.length}};
  NEED(sandbox_spawn(&frame, &err) == 0);
  writer_free(&writer);
}

static struct writer
spawned_message(uint32_t number)
{
  struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_u32(&writer, RAMET_TAG_PID, 5);
  return writer;
}

static void
a_spawned_command_answers_its_own_request(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer message = spawned_message(4);
  uint64_t value = 0;

  ask_to_spawn(900, 4);
  say(sandbox, RAMET_INIT_SPAWNED, 900, &message);
  CHECK(told_count == 1 && told[0].kind == RAMET_OK && told[0].request == 900);
  CHECK(told_number(&told[0], RAMET_TAG_PID, &value) && value == 5);
  CHECK(told_number(&told[0], RAMET_TAG_SANDBOX, &value) && value == ID);
  put_down(sandbox);
}

static void
a_number_of_a_command_is_one_commands_while_it_runs(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer spawned = spawned_message(4), exited = exit_message(0), payload = {0};
  struct err err = {0};

  ask_to_spawn(900, 4);
  put_u64(&payload, RAMET_TAG_SANDBOX, ID);
  put_u32(&payload, RAMET_TAG_COMMAND, 4);
  put_text(&payload, RAMET_TAG_ARG, "true");
  struct frame frame = {.kind = RAMET_SPAWN, .request = 901, .payload = {payload.data, (uint32_t)payload.length}};
  CHECK(sandbox_spawn(&frame, &err) < 0);
  CHECK_TEXT(err.field, "command");
  say(sandbox, RAMET_INIT_SPAWNED, 900, &spawned);
  CHECK(sandbox_spawn(&frame, &err) < 0);
  memcpy(exited.data + sizeof(struct ramet_attr), "\4\0\0\0", 4); /* COMMAND comes first */
  say(sandbox, RAMET_INIT_EXITED, 0, &exited);
  CHECK(told_count == 2 && told[1].kind == RAMET_EXITED);
  CHECK(sandbox_spawn(&frame, &err) == 0);
  writer_free(&payload);
  put_down(sandbox);
}

static void
an_exit_of_a_command_that_does_not_run_is_hostile(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer exited = exit_message(0);

  ask_to_spawn(900, 0); /* asked for, and not started yet */
  say(sandbox, RAMET_INIT_EXITED, 0, &exited);
  CHECK(sandbox->state == SANDBOX_ENDING && sandbox->reason == RAMET_REASON_LOST);
  for (int i = 0; i < told_count; i++)
    CHECK(told[i].kind != RAMET_EXITED);
  die(sandbox);
}

static void
a_spawn_that_its_sandbox_did_not_live_to_see_is_refused(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};
  int refused = 0;

  ask_to_spawn(900, 4);
  CHECK(sandbox_kill(ID, &err) == 0);
  die(sandbox);
  for (int i = 0; i < told_count; i++)
    refused += told[i].kind == RAMET_ERROR && told[i].request == 900;
  CHECK(refused == 1);
}

static void
a_spawn_of_the_last_daemon_is_not_answered_to_the_next(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer spawned = spawned_message(4);

  sandbox->owned = false;
  ask_to_spawn(900, 4);
  sandbox_owner_gone();
  say(sandbox, RAMET_INIT_SPAWNED, 900, &spawned);
  CHECK(sandbox->state == SANDBOX_STANDING);
  ask_to_spawn(900, 5); /* the next daemon's, which numbers its own */
  sandbox_owner_gone();
  say(sandbox, RAMET_INIT_FAILED, 900, NULL);
  CHECK(sandbox->state == SANDBOX_STANDING);
  for (int i = 0; i < told_count; i++)
    CHECK(told[i].request != 900);
  put_down(sandbox);
}

/* The request could be another sandbox's, or the daemon's own LIST. */
static void
init_cannot_answer_a_request_that_it_was_not_asked(void)
{
  static const uint16_t answers[] = {RAMET_INIT_SPAWNED, RAMET_INIT_FAILED};

  for (size_t i = 0; i < 2; i++) {
    struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
    struct writer message = spawned_message(4);
    say(sandbox, answers[i], 901, &message);
    for (int j = 0; j < told_count; j++)
      CHECK(told[j].request != 901);
    put_down(sandbox);
  }
}

/* What is told about a sandbox is core's word: a second id, or a tag of another message, would be init's. */
static void
init_cannot_add_what_is_not_an_exit_to_an_exit(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer message = exit_message(0);
  struct attr_walk walk;
  struct span value;
  struct err ignored;
  uint16_t tag;
  int ids = 0;

  put_u64(&message, RAMET_TAG_SANDBOX, 12);
  say(sandbox, RAMET_INIT_EXITED, 0, &message);
  for (int i = 0; i < told_count; i++) {
    walk = (struct attr_walk){{told[i].payload, (uint32_t)told[i].length}};
    if (told[i].kind != RAMET_EXITED)
      continue;
    while (attr_next(&walk, &tag, &value, &ignored) > 0)
      ids += tag == RAMET_TAG_SANDBOX;
    CHECK(ids == 1);
  }
  put_down(sandbox);
}

static void
only_a_standing_sandbox_takes_commands(void)
{
  static const enum sandbox_state states[] = {SANDBOX_STARTING, SANDBOX_RUNNING};

  for (size_t i = 0; i < 2; i++) {
    struct sandbox *sandbox = sandbox_in(states[i], states[i] == SANDBOX_RUNNING);
    struct writer writer = {0};
    struct err err = {0};
    put_u64(&writer, RAMET_TAG_SANDBOX, ID);
    put_text(&writer, RAMET_TAG_ARG, "true");
    struct frame frame = {.kind = RAMET_SPAWN, .payload = {writer.data, (uint32_t)writer.length}};
    CHECK(sandbox_spawn(&frame, &err) < 0);
    CHECK_TEXT(err.code, "unknown_sandbox");
    writer_free(&writer);
    put_down(sandbox);
  }
}

static void
a_record_is_replaced_emptied_and_bounded(void)
{
  static const uint8_t large[RAMET_RECORD_MAX + 1];
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};

  CHECK(sandbox_set_record(ID, (struct span){(const uint8_t *)"abc", 3}, &err) == 0);
  CHECK(sandbox->record_length == 3 && memcmp(sandbox->record, "abc", 3) == 0);
  CHECK(sandbox_set_record(ID, (struct span){NULL, 0}, &err) == 0);
  CHECK(sandbox->record_length == 0);
  CHECK(sandbox_set_record(ID, (struct span){large, RAMET_RECORD_MAX}, &err) == 0);
  CHECK(sandbox_set_record(ID, (struct span){large, RAMET_RECORD_MAX + 1}, &err) < 0);
  CHECK(sandbox->record_length == RAMET_RECORD_MAX);
  CHECK(sandbox_set_record(ID + 1, (struct span){large, 1}, &err) < 0);
  put_down(sandbox);
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

static struct writer
run_payload(uint64_t id, uint64_t wall_ns, uint32_t root)
{
  struct writer writer = {0};

  put_u64(&writer, RAMET_TAG_SANDBOX, id);
  put_u32(&writer, RAMET_TAG_ROOT, root);
  put_u32(&writer, RAMET_TAG_FILTER, 1);
  put_u64(&writer, RAMET_TAG_DISK_BYTES, 4096);
  put_u64(&writer, RAMET_TAG_DISK_INODES, 10);
  if (wall_ns)
    put_u64(&writer, RAMET_TAG_WALL_NS, wall_ns);
  put_text(&writer, RAMET_TAG_ARG, "true");
  return writer;
}

static int
start(struct writer *writer, struct err *err)
{
  struct frame frame = {.kind = RAMET_RUN, .request = REQUEST, .payload = {writer->data, (uint32_t)writer->length}};
  int result = sandbox_start(&frame, NULL, err);

  frame_release(&frame);
  writer_free(writer);
  return result;
}

static void
a_run_takes_a_pooled_entry_and_hands_it_the_plan(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_POOLED, false);
  struct writer writer = run_payload(ID, 0, 1);
  struct err err = {0};
  struct frame frame;

  CHECK(start(&writer, &err) == 0);
  CHECK(sandbox->state == SANDBOX_RUNNING && sandbox->id == ID && sandbox->is_run);
  NEED(frame_receive(far, receive_buffer, &frame, &err) == FRAME_GOT);
  CHECK(frame.kind == RAMET_INIT_RUN && frame.request == REQUEST);
  frame_release(&frame);
  put_down(sandbox);
}

static void
a_run_waits_for_an_entry_that_is_still_being_prepared(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_BORN, false);
  struct writer writer = run_payload(ID, 0, 1);
  struct err err = {0};
  struct frame frame;

  CHECK(start(&writer, &err) == 0);
  CHECK(sandbox->state == SANDBOX_BORN && sandbox->waiting);
  say(sandbox, RAMET_INIT_PREPARED, 0, NULL);
  CHECK(sandbox->state == SANDBOX_RUNNING && !sandbox->waiting);
  NEED(frame_receive(far, receive_buffer, &frame, &err) == FRAME_GOT);
  CHECK(frame.kind == RAMET_INIT_RUN);
  frame_release(&frame);
  put_down(sandbox);
}

static void
a_deadline_while_waiting_answers_the_run(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_BORN, false);
  struct writer writer = run_payload(ID, 1, 1);
  struct err err = {0};

  CHECK(start(&writer, &err) == 0);
  deadline_fired(&sandbox->deadline);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_TIMEOUT));
}

static void
the_longest_wall_limit_is_far_away(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_POOLED, false);
  struct writer writer = run_payload(ID, UINT64_MAX, 1);
  struct err err = {0};

  CHECK(start(&writer, &err) == 0);
  CHECK(sandbox->deadline.index == 0 || sandbox->deadline.at > loop_now());
  put_down(sandbox);
}

static void
an_entry_whose_plan_fails_is_not_used_again(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_POOLED, false);
  struct writer writer = run_payload(ID, 0, 2);
  struct err err = {0};

  CHECK(start(&writer, &err) < 0);
  CHECK_TEXT(err.code, "unknown_root");
  CHECK(sandbox->state == SANDBOX_ENDING);
  CHECK(sandbox_find(ID) == NULL);
  die(sandbox);
  /* The caller of sandbox_start() tells it. */
  CHECK(told_count == 0 && sandbox_count(SANDBOX_STATES) == 0);
}

static void
a_number_that_is_alive_is_not_taken_twice(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer writer = run_payload(ID, 0, 1);
  struct err err = {0};

  CHECK(start(&writer, &err) < 0);
  CHECK_TEXT(err.field, "sandbox");
  CHECK(sandbox->state == SANDBOX_STANDING && sandbox_count(SANDBOX_STATES) == 1);
  put_down(sandbox);
}

/* ---- owners --------------------------------------------------------------------------------------------------- */

static void
what_the_gone_daemon_owned_ends_without_a_word(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);

  sandbox_owner_gone();
  CHECK(sandbox->overdue && sandbox_find(ID) == NULL);
  die(sandbox);
  CHECK(told_count == 0);
}

static void
what_it_did_not_own_lives_on_and_its_end_is_an_event(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};

  sandbox->owned = false;
  sandbox_owner_gone();
  CHECK(sandbox->state == SANDBOX_STANDING);
  CHECK(sandbox_kill(ID, &err) == 0);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_KILLED));
}

/* Requests are numbered by each daemon for itself: an old number would answer another request of the next one. */
static void
the_next_daemon_gets_no_answer_to_a_request_of_the_last(void)
{
  struct sandbox *run = sandbox_in(SANDBOX_RUNNING, true);
  struct writer message = exit_message(0);

  run->owned = false;
  sandbox_owner_gone();
  say(run, RAMET_INIT_EXITED, 0, &message);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_EXIT));
  put_down(run);
  struct sandbox *create = sandbox_in(SANDBOX_STARTING, false);
  create->owned = false;
  sandbox_owner_gone();
  CHECK(create->state == SANDBOX_ENDING);
  put_down(create);
  CHECK(told_count == 0);
}

static void
pool_entries_have_no_owner(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_POOLED, false);

  sandbox_owner_gone();
  CHECK(sandbox->state == SANDBOX_POOLED);
  put_down(sandbox);
}

int
main(void)
{
  struct err err = {0};

  NEED(loop_setup(&err) == 0);
  RUN(an_entered_sandbox_stands_and_answers_its_create);
  RUN(a_run_does_not_stand_and_a_create_does_not_run);
  RUN(a_spawned_command_answers_its_own_request);
  RUN(a_number_of_a_command_is_one_commands_while_it_runs);
  RUN(an_exit_of_a_command_that_does_not_run_is_hostile);
  RUN(a_spawn_that_its_sandbox_did_not_live_to_see_is_refused);
  RUN(a_spawn_of_the_last_daemon_is_not_answered_to_the_next);
  RUN(init_cannot_answer_a_request_that_it_was_not_asked);
  RUN(init_cannot_add_what_is_not_an_exit_to_an_exit);
  RUN(only_a_standing_sandbox_takes_commands);
  RUN(a_record_is_replaced_emptied_and_bounded);
  RUN(a_run_takes_a_pooled_entry_and_hands_it_the_plan);
  RUN(a_run_waits_for_an_entry_that_is_still_being_prepared);
  RUN(a_deadline_while_waiting_answers_the_run);
  RUN(the_longest_wall_limit_is_far_away);
  RUN(an_entry_whose_plan_fails_is_not_used_again);
  RUN(a_number_that_is_alive_is_not_taken_twice);
  RUN(what_the_gone_daemon_owned_ends_without_a_word);
  RUN(what_it_did_not_own_lives_on_and_its_end_is_an_event);
  RUN(the_next_daemon_gets_no_answer_to_a_request_of_the_last);
  RUN(pool_entries_have_no_owner);
  CHECK(limit_view.holders == 0);
  return tap_end();
}
