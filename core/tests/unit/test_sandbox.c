/* SPDX-License-Identifier: Apache-2.0
 * The state table against an init that does what it likes. */
#include "false_init.h"

/* ---- the table ------------------------------------------------------------------------------------------------ */

static const enum sandbox_state alive[] = {SANDBOX_BORN, SANDBOX_POOLED, SANDBOX_STARTING, SANDBOX_RUNNING,
                                           SANDBOX_STANDING};
#define ALIVE (sizeof alive / sizeof alive[0])

static void
every_state_has_an_action_for_every_event(void)
{
  for (int state = 0; state < SANDBOX_STATES; state++)
    for (int event = 0; event < EVENTS; event++)
      CHECK(actions[state][event] != NULL);
}

/* What init may say in each state; anything else is hostile. */
static bool
belongs(enum sandbox_state state, uint16_t kind)
{
  switch (state) {
  case SANDBOX_BORN:
    return kind == RAMET_INIT_PREPARED || kind == RAMET_INIT_FAILED;
  case SANDBOX_STARTING:
    return kind == RAMET_INIT_ENTERED || kind == RAMET_INIT_FAILED || kind == RAMET_INIT_IDLE;
  case SANDBOX_RUNNING:
    return kind == RAMET_INIT_EXITED || kind == RAMET_INIT_FAILED || kind == RAMET_INIT_IDLE;
  case SANDBOX_STANDING:
    return kind == RAMET_INIT_SPAWNED || kind == RAMET_INIT_EXITED || kind == RAMET_INIT_FAILED ||
           kind == RAMET_INIT_IDLE;
  case SANDBOX_POOLED:
  case SANDBOX_ENDING:
  case SANDBOX_STATES:
    break;
  }
  return false;
}

static void
a_message_that_does_not_belong_to_the_state_ends_the_sandbox_as_lost(void)
{
  for (size_t i = 0; i < ALIVE; i++)
    for (uint16_t kind = 0; kind < 100; kind++) {
      if (belongs(alive[i], kind))
        continue;
      struct sandbox *sandbox = sandbox_in(alive[i], alive[i] == SANDBOX_RUNNING);
      say(sandbox, kind, REQUEST, NULL);
      CHECK(sandbox->state == SANDBOX_ENDING && sandbox->reason == RAMET_REASON_LOST);
      bool nobodys = sandbox->id == 0;
      die(sandbox);
      CHECK(nobodys ? told_count == 0 : told_count == 1 && told[0].kind == RAMET_ENDED);
    }
  CHECK(sandbox_count(SANDBOX_STATES) == 0);
}

static void
bytes_that_are_no_frame_end_the_sandbox_as_lost(void)
{
  struct ramet_frame magic = {.version = RAMET_PROTOCOL_VERSION, .kind = RAMET_INIT_EXITED};
  struct ramet_frame version = {.magic = RAMET_FRAME_MAGIC, .version = 9, .kind = RAMET_INIT_EXITED};
  struct ramet_frame length = {
      .magic = RAMET_FRAME_MAGIC, .version = RAMET_PROTOCOL_VERSION, .kind = RAMET_INIT_EXITED, .length = 80};
  const struct {
    const void *data;
    size_t length;
  } cases[] = {{"x", 1}, {&magic, sizeof magic}, {&version, sizeof version}, {&length, sizeof length}};

  for (size_t i = 0; i < ALIVE; i++)
    for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++) {
      struct sandbox *sandbox = sandbox_in(alive[i], false);
      say_bytes(sandbox, cases[j].data, cases[j].length);
      CHECK(sandbox->state == SANDBOX_ENDING && sandbox->reason == RAMET_REASON_LOST);
      die(sandbox);
    }
}

static void
an_init_that_closes_its_channel_and_lives_on_ends_the_sandbox(void)
{
  for (size_t i = 0; i < ALIVE; i++) {
    struct sandbox *sandbox = sandbox_in(alive[i], false);
    shutdown(far, SHUT_RDWR);
    channel_ready(&sandbox->watch, EPOLLIN | EPOLLHUP);
    CHECK(sandbox->state == SANDBOX_ENDING);
    put_down(sandbox);
  }
}

static void
descriptors_from_init_are_closed(void)
{
  int before = tap_open_descriptors();
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer nothing = {0};
  int fds[RAMET_FRAME_FDS];

  for (size_t i = 0; i < RAMET_FRAME_FDS; i++)
    fds[i] = STDOUT_FILENO;
  for (uint16_t kind = RAMET_INIT_PREPARED; kind <= RAMET_INIT_FAILED; kind++) {
    NEED(frame_send(far, kind, REQUEST, &nothing, fds, RAMET_FRAME_FDS) == 0);
    channel_ready(&sandbox->watch, EPOLLIN);
  }
  die(sandbox);
  CHECK(tap_open_descriptors() == before);
}

/* ---- a run ---------------------------------------------------------------------------------------------------- */

static void
a_run_that_exits_is_told_once_with_its_usage(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
  struct writer first = exit_message(3 << 8), again = exit_message(0);
  uint64_t value = 0;

  say(sandbox, RAMET_INIT_EXITED, 0, &first);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_EXIT));
  CHECK(told_number(&told[0], RAMET_TAG_STATUS, &value) && value == 3 << 8);
  CHECK(told_number(&told[0], RAMET_TAG_USER_NS, &value) && value == 1000);
  CHECK(told_number(&told[0], RAMET_TAG_SYSTEM_NS, &value) && value == 2000);
  CHECK(told_number(&told[0], RAMET_TAG_PEAK_BYTES, &value) && value == 3000);
  CHECK(told_number(&told[0], RAMET_TAG_DISK_PEAK, &value) && value == 4000);
  CHECK(told_number(&told[0], RAMET_TAG_LINGERING, &value) && value == 0);
  say(sandbox, RAMET_INIT_EXITED, 0, &again);
  die(sandbox);
  CHECK(told_count == 1);
}

static void
a_run_that_ended_by_a_signal_is_told_so(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
  struct writer message = exit_message(SIGSEGV);

  say(sandbox, RAMET_INIT_EXITED, 0, &message);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_SIGNAL));
  die(sandbox);
}

static void
numbers_of_a_wrong_size_make_the_result_lost(void)
{
  static const uint16_t tags[] = {RAMET_TAG_STATUS, RAMET_TAG_USER_NS, RAMET_TAG_SYSTEM_NS, RAMET_TAG_PEAK_BYTES,
                                  RAMET_TAG_DISK_PEAK};

  for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
    struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
    struct writer message = {0};
    put_bytes(&message, tags[i], "abc", 3);
    say(sandbox, RAMET_INIT_EXITED, 0, &message);
    CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_LOST));
    die(sandbox);
  }
}

static void
an_init_that_dies_unasked_leaves_a_lost_run(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);

  put_down(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_LOST));
}

static void
what_init_told_before_it_died_comes_first(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
  struct writer message = exit_message(7 << 8);

  NEED(frame_send(far, RAMET_INIT_EXITED, 0, &message, NULL, 0) == 0);
  writer_free(&message);
  put_down(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_EXIT));
}

/* ---- deadlines and kills -------------------------------------------------------------------------------------- */

static void
a_deadline_ends_every_claimed_sandbox_as_timeout(void)
{
  static const enum sandbox_state states[] = {SANDBOX_STARTING, SANDBOX_RUNNING, SANDBOX_STANDING};

  for (size_t i = 0; i < 3; i++) {
    bool is_run = states[i] == SANDBOX_RUNNING;
    struct sandbox *sandbox = sandbox_in(states[i], is_run);
    deadline_fired(&sandbox->deadline);
    if (states[i] != SANDBOX_STARTING)
      deadline_fired(&sandbox->deadline); /* init had its time */
    CHECK(sandbox->state == SANDBOX_ENDING && told_count == 0);
    die(sandbox);
    CHECK(told_count == 1);
    CHECK(told_ended(&told[0], states[i] == SANDBOX_STANDING ? 0 : REQUEST, RAMET_REASON_TIMEOUT));
  }
}

static void
at_the_deadline_of_a_run_init_is_told_to_end_it(void)
{
  static const struct {
    int status;
    enum ramet_reason reason;
  } ends[] = {
      {SIGKILL, RAMET_REASON_TIMEOUT},
      {SIGSEGV, RAMET_REASON_SIGNAL}, /* in the same moment, by itself */
      {3 << 8, RAMET_REASON_EXIT},
  };
  static uint8_t buffer[RAMET_FRAME_BYTES];

  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
    struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
    struct writer message = exit_message(ends[i].status);
    struct frame frame;
    struct err err;

    deadline_fired(&sandbox->deadline);
    NEED(frame_receive(far, buffer, &frame, &err) == FRAME_GOT);
    CHECK(frame.kind == RAMET_INIT_END && sandbox->state == SANDBOX_RUNNING && told_count == 0);
    say(sandbox, RAMET_INIT_EXITED, 0, &message);
    CHECK(told_count == 1 && told_ended(&told[0], REQUEST, ends[i].reason));
    die(sandbox);
  }
}

static void
a_run_whose_init_cannot_be_told_is_killed_at_its_deadline(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);

  shutdown(far, SHUT_RDWR);
  deadline_fired(&sandbox->deadline);
  CHECK(sandbox->state == SANDBOX_ENDING && sandbox->reason == RAMET_REASON_TIMEOUT);
  put_down(sandbox);
}

static void
a_kill_ends_a_standing_sandbox_with_an_event(void)
{
  static uint8_t buffer[RAMET_FRAME_BYTES];
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer message = exit_message(SIGKILL);
  struct frame frame;
  struct err err = {0};

  CHECK(sandbox_kill(ID, &err) == 0);
  NEED(frame_receive(far, buffer, &frame, &err) == FRAME_GOT);
  CHECK(frame.kind == RAMET_INIT_END && sandbox->state == SANDBOX_STANDING && told_count == 0);
  CHECK(sandbox_kill(ID, &err) == 0); /* again, which changes nothing */
  say(sandbox, RAMET_INIT_ENDED, 0, &message);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_KILLED));
  CHECK(sandbox->state == SANDBOX_ENDING);
  CHECK(sandbox_kill(ID, &err) < 0);
  CHECK_TEXT(err.code, "unknown_sandbox");
  deadline_fired(&sandbox->deadline); /* the namespaces go */
  die(sandbox);
  CHECK(told_count == 1);
}

static void
a_standing_sandbox_whose_init_does_not_say_that_it_ended_is_killed(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};

  CHECK(sandbox_kill(ID, &err) == 0);
  deadline_fired(&sandbox->deadline); /* init had its time */
  CHECK(sandbox->state == SANDBOX_ENDING && told_count == 0);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_KILLED));
}

static void
a_sandbox_in_which_nothing_runs_is_ended_for_that(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer message = exit_message(SIGKILL);

  say(sandbox, RAMET_INIT_IDLE, 0, NULL);
  say(sandbox, RAMET_INIT_IDLE, 0, NULL); /* again, which changes nothing */
  CHECK(sandbox->state == SANDBOX_STANDING && told_count == 0);
  say(sandbox, RAMET_INIT_ENDED, 0, &message);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_IDLE));
  die(sandbox);
  sandbox = sandbox_in(SANDBOX_RUNNING, true);
  message = exit_message(SIGKILL);
  say(sandbox, RAMET_INIT_IDLE, 0, NULL);
  say(sandbox, RAMET_INIT_EXITED, 0, &message);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_IDLE));
  die(sandbox);
}

/* Whether core has to end it, or init dies of something else meanwhile. */
static void
a_run_whose_init_needs_longer_for_its_end_is_told_with_the_first_cause(void)
{
  static const enum ramet_reason causes[] = {RAMET_REASON_TIMEOUT, RAMET_REASON_IDLE};

  for (int i = 0; i < 4; i++) {
    struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
    uint64_t value = 0;
    if (causes[i % 2] == RAMET_REASON_IDLE)
      say(sandbox, RAMET_INIT_IDLE, 0, NULL);
    else
      deadline_fired(&sandbox->deadline);
    say(sandbox, RAMET_INIT_IDLE, 0, NULL); /* which changes nothing */
    CHECK(sandbox->state == SANDBOX_RUNNING && sandbox->overdue);
    CHECK(told_count == 0);
    kill(sandbox->pid, SIGKILL);
    if (i < 2)
      die(sandbox); /* init had its time */
    else
      reap_init(sandbox);
    CHECK(told_count == 1 && told_ended(&told[0], REQUEST, causes[i % 2]));
    CHECK(told_number(&told[0], RAMET_TAG_STATUS, &value) && value == SIGKILL);
  }
}

static void
an_end_that_nobody_asked_for_is_hostile(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct writer message = exit_message(SIGKILL);

  say(sandbox, RAMET_INIT_ENDED, 0, &message);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_LOST));
}

/* Else whoever asked for it waits for ever. */
static void
a_create_that_ends_before_it_stands_is_answered(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STARTING, false);
  struct err err = {0};

  CHECK(sandbox_kill(ID, &err) == 0);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_KILLED));
}

static void
a_process_that_does_not_die_is_told_as_lingering_once(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_RUNNING, true);
  uint64_t value = 0;

  deadline_fired(&sandbox->deadline); /* the wall limit */
  deadline_fired(&sandbox->deadline); /* init's time */
  CHECK(sandbox->deadline.index != 0);
  deadline_fired(&sandbox->deadline); /* patience */
  CHECK(told_count == 1 && told_ended(&told[0], REQUEST, RAMET_REASON_TIMEOUT));
  CHECK(told_number(&told[0], RAMET_TAG_LINGERING, &value) && value == 1);
  die(sandbox);
  CHECK(told_count == 1);
}

static void
an_ending_sandbox_hears_nothing_more_from_its_init(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};

  CHECK(sandbox_kill(ID, &err) == 0);
  deadline_fired(&sandbox->deadline); /* init had its time */
  for (uint16_t kind = 0; kind < 100; kind++)
    say(sandbox, kind, REQUEST, NULL);
  CHECK(told_count == 0 && sandbox->state == SANDBOX_ENDING);
  die(sandbox);
  CHECK(told_count == 1);
}

/* ---- failures ------------------------------------------------------------------------------------------------- */

static void
a_failed_step_refuses_the_request_with_step_and_errno(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STARTING, true);
  struct writer message = {0};
  struct err err;

  errno = EBUSY;
  err_step(&err, RAMET_STEP_PIVOT_ROOT, "pivot_root: busy");
  put_err(&message, &err);
  say(sandbox, RAMET_INIT_FAILED, REQUEST, &message);
  CHECK(told_count == 1 && told[0].kind == RAMET_ERROR && told[0].request == REQUEST);
  CHECK(told[0].err.step == RAMET_STEP_PIVOT_ROOT && told[0].err.number == EBUSY);
  CHECK_TEXT(told[0].err.text, "pivot_root: busy");
  die(sandbox);
  CHECK(told_count == 1);
}

static void
a_failure_of_nonsense_is_cut_and_keeps_its_own_code(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STARTING, true);
  struct writer message = {0};
  static char endless[10000];

  memset(endless, 'x', sizeof endless - 1);
  put_u32(&message, RAMET_TAG_STEP, UINT32_MAX);
  put_bytes(&message, RAMET_TAG_ERRNO, "abc", 3);
  put_bytes(&message, RAMET_TAG_CODE, "a\0b", 3);
  put_text(&message, RAMET_TAG_TEXT, endless);
  put_text(&message, RAMET_TAG_FIELD, endless);
  put_u32(&message, RAMET_TAG_SANDBOX, 3);
  say(sandbox, RAMET_INIT_FAILED, 1, &message);
  CHECK(told_count == 1 && told[0].request == REQUEST);
  CHECK_TEXT(told[0].err.code, "isolation_failed");
  CHECK(strlen(told[0].err.text) == sizeof told[0].err.text - 1);
  die(sandbox);
}

static void
a_failing_pool_entry_tells_nobody(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_BORN, false);

  say(sandbox, RAMET_INIT_FAILED, REQUEST, NULL);
  CHECK(sandbox->state == SANDBOX_ENDING);
  die(sandbox);
  CHECK(told_count == 0);
}

int
main(void)
{
  struct err err = {0};

  NEED(loop_setup(&err) == 0);
  RUN(every_state_has_an_action_for_every_event);
  RUN(a_message_that_does_not_belong_to_the_state_ends_the_sandbox_as_lost);
  RUN(bytes_that_are_no_frame_end_the_sandbox_as_lost);
  RUN(an_init_that_closes_its_channel_and_lives_on_ends_the_sandbox);
  RUN(descriptors_from_init_are_closed);
  RUN(a_run_that_exits_is_told_once_with_its_usage);
  RUN(a_run_that_ended_by_a_signal_is_told_so);
  RUN(numbers_of_a_wrong_size_make_the_result_lost);
  RUN(an_init_that_dies_unasked_leaves_a_lost_run);
  RUN(what_init_told_before_it_died_comes_first);
  RUN(a_deadline_ends_every_claimed_sandbox_as_timeout);
  RUN(at_the_deadline_of_a_run_init_is_told_to_end_it);
  RUN(a_run_whose_init_cannot_be_told_is_killed_at_its_deadline);
  RUN(a_kill_ends_a_standing_sandbox_with_an_event);
  RUN(a_standing_sandbox_whose_init_does_not_say_that_it_ended_is_killed);
  RUN(a_sandbox_in_which_nothing_runs_is_ended_for_that);
  RUN(a_run_whose_init_needs_longer_for_its_end_is_told_with_the_first_cause);
  RUN(an_end_that_nobody_asked_for_is_hostile);
  RUN(a_create_that_ends_before_it_stands_is_answered);
  RUN(a_process_that_does_not_die_is_told_as_lingering_once);
  RUN(an_ending_sandbox_hears_nothing_more_from_its_init);
  RUN(a_failed_step_refuses_the_request_with_step_and_errno);
  RUN(a_failure_of_nonsense_is_cut_and_keeps_its_own_code);
  RUN(a_failing_pool_entry_tells_nobody);
  return tap_end();
}
