/* SPDX-License-Identifier: Apache-2.0
 * The state table against an init that does what it likes: every frame below is what a guest could send that had
 * taken its init over. Init is a process that only waits to be killed; the far end of its channel is ours. */
#include "../../src/sandbox.c"

#include <sys/syscall.h>

#include "tap.h"

/* ---- what stands for the rest of core ------------------------------------------------------------------------- */

struct told {
  uint16_t kind;
  uint64_t request;
  struct err err; /* of control_refuse() */
  uint8_t payload[4096];
  size_t length;
};

static struct told told[64];
static int told_count;

void
control_reply(uint16_t kind, uint64_t request, struct writer *writer)
{
  NEED(told_count < 64);
  struct told *one = &told[told_count++];
  *one = (struct told){.kind = kind, .request = request};
  one->length = writer->length < sizeof one->payload ? writer->length : sizeof one->payload;
  if (one->length)
    memcpy(one->payload, writer->data, one->length);
}

void
control_refuse(uint64_t request, const struct err *err)
{
  NEED(told_count < 64);
  told[told_count++] = (struct told){.kind = RAMET_ERROR, .request = request, .err = *err};
}

struct root *
root_find(uint32_t id)
{
  return id == 1 ? (struct root *)(uintptr_t)8 : NULL;
}

int
root_hand_out(const struct root *root, const struct plan *plan, struct root_mounts *mounts, struct err *err)
{
  (void)root;
  (void)plan;
  (void)err;
  mounts->count = ROOT_MOUNTS_FIXED;
  for (int i = 0; i < ROOT_MOUNTS_FIXED; i++)
    mounts->fds[i] = dup(2);
  return 0;
}

struct root *
root_hold(struct root *root)
{
  return root;
}

void
root_release(struct root *root)
{
  (void)root;
}

/* No snapshots here: forks have tests of their own in tests/system/core. */
struct snapshot *
snapshot_find(uint32_t id)
{
  (void)id;
  return NULL;
}

struct root *
snapshot_root(const struct snapshot *snapshot)
{
  (void)snapshot;
  return NULL;
}

uint32_t
snapshot_filter(const struct snapshot *snapshot)
{
  (void)snapshot;
  return 0;
}

int
snapshot_description(const struct snapshot *snapshot)
{
  (void)snapshot;
  return -1;
}

int
snapshot_pages(const struct snapshot *snapshot)
{
  (void)snapshot;
  return -1;
}

void
snapshot_region(const struct snapshot *snapshot, uint64_t *start, uint64_t *end)
{
  (void)snapshot;
  *start = *end = 0;
}

int
snapshot_spawn(struct snapshot *snapshot, uint64_t sandbox, int init_pidfd, const struct spawn_ends *ends,
               struct err *err)
{
  (void)snapshot;
  (void)sandbox;
  (void)init_pidfd;
  (void)ends;
  return err_code(err, "internal", "no snapshots here");
}

struct snapshot *
snapshot_hold(struct snapshot *snapshot)
{
  return snapshot;
}

void
snapshot_release(struct snapshot *snapshot)
{
  (void)snapshot;
}

bool
snapshot_reaped(int pid)
{
  (void)pid;
  return false;
}

void
root_mounts_release(struct root_mounts *mounts)
{
  while (mounts->count > 0)
    close_fd(&mounts->fds[--mounts->count]);
}

void
root_put_targets(const struct root *root, struct writer *writer)
{
  (void)root;
  (void)writer;
}

struct span
filter_find(uint32_t id)
{
  return id == 1 ? (struct span){(const uint8_t *)"allallal", 8} : (struct span){NULL, 0};
}

void
init_main(int fd)
{
  (void)fd;
  _exit(EXIT_DEFECT);
}

/* ---- a sandbox with a false init ------------------------------------------------------------------------------ */

#define ID 11
#define REQUEST 500

static int far = -1; /* init's end of the channel */

/* In this state, as the request that leads there leaves it. POOLED and a BORN nobody waits for have no id. */
static struct sandbox *
sandbox_in(enum sandbox_state state, bool is_run)
{
  struct err err = {0};
  struct sandbox *sandbox = sandbox_alloc(&err);
  int pair[2];

  NEED(sandbox && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  pid_t pid = fork();
  NEED(pid >= 0);
  if (pid == 0)
    for (;;)
      pause();
  sandbox->pid = pid;
  sandbox->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  sandbox->channel = pair[0];
  far = pair[1];
  NEED(sandbox->pidfd >= 0 && loop_add(sandbox->channel, &sandbox->watch, EPOLLIN) == 0);
  if (state != SANDBOX_POOLED && state != SANDBOX_BORN) {
    sandbox->id = ID;
    sandbox->request = REQUEST;
    sandbox->is_run = is_run;
    sandbox->owned = true;
    sandbox->arrived = loop_now();
    if (state != SANDBOX_STARTING)
      sandbox->started = loop_now();
  }
  set_state(sandbox, state);
  told_count = 0;
  return sandbox;
}

/* Waits until init is dead and lets core hear of it. */
static void
die(struct sandbox *sandbox)
{
  siginfo_t info;

  NEED(waitid(P_PID, (id_t)sandbox->pid, &info, WEXITED | WNOWAIT) == 0);
  sandbox_reap();
  close_fd(&far);
}

static void
put_down(struct sandbox *sandbox)
{
  kill(sandbox->pid, SIGKILL);
  die(sandbox);
}

static void
say(struct sandbox *sandbox, uint16_t kind, uint64_t request, struct writer *writer)
{
  struct writer nothing = {0};

  NEED(frame_send(far, kind, request, writer ? writer : &nothing, NULL, 0) == 0);
  if (writer)
    writer_free(writer);
  channel_ready(&sandbox->watch, EPOLLIN);
}

static void
say_bytes(struct sandbox *sandbox, const void *data, size_t length)
{
  NEED(send(far, data, length, MSG_NOSIGNAL) == (ssize_t)length);
  channel_ready(&sandbox->watch, EPOLLIN);
}

/* The value of a tag in what was told; true when it is there. */
static bool
told_number(const struct told *one, uint16_t wanted, uint64_t *out)
{
  struct attr_walk walk = {{one->payload, (uint32_t)one->length}};
  struct span value;
  struct err ignored;
  uint32_t small;
  uint16_t tag;

  while (attr_next(&walk, &tag, &value, &ignored) > 0)
    if (tag == wanted) {
      if (span_u64(value, out) == 0)
        return true;
      bool found = span_u32(value, &small) == 0;
      *out = small;
      return found;
    }
  return false;
}

static bool
told_ended(const struct told *one, uint64_t request, enum ramet_reason reason)
{
  uint64_t value = 0;

  return one->kind == RAMET_ENDED && one->request == request && told_number(one, RAMET_TAG_SANDBOX, &value) &&
         value == ID && told_number(one, RAMET_TAG_REASON, &value) && value == (uint64_t)reason;
}

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
    return kind == RAMET_INIT_ENTERED || kind == RAMET_INIT_SPAWNED || kind == RAMET_INIT_FAILED;
  case SANDBOX_RUNNING:
    return kind == RAMET_INIT_EXITED;
  case SANDBOX_STANDING:
    return kind == RAMET_INIT_SPAWNED || kind == RAMET_INIT_EXITED || kind == RAMET_INIT_FAILED;
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

static struct writer
exit_message(int status)
{
  struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_COMMAND, 0);
  put_u32(&writer, RAMET_TAG_STATUS, (uint32_t)status);
  put_u64(&writer, RAMET_TAG_USER_NS, 1000);
  put_u64(&writer, RAMET_TAG_SYSTEM_NS, 2000);
  put_u64(&writer, RAMET_TAG_PEAK_BYTES, 3000);
  put_u64(&writer, RAMET_TAG_DISK_PEAK, 4000);
  return writer;
}

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
    CHECK(sandbox->state == SANDBOX_ENDING && told_count == 0);
    die(sandbox);
    CHECK(told_count == 1);
    CHECK(told_ended(&told[0], states[i] == SANDBOX_STANDING ? 0 : REQUEST, RAMET_REASON_TIMEOUT));
  }
}

static void
a_kill_ends_a_standing_sandbox_with_an_event(void)
{
  struct sandbox *sandbox = sandbox_in(SANDBOX_STANDING, false);
  struct err err = {0};

  CHECK(sandbox_kill(ID, &err) == 0);
  die(sandbox);
  CHECK(told_count == 1 && told_ended(&told[0], 0, RAMET_REASON_KILLED));
  CHECK(sandbox_kill(ID, &err) < 0);
  CHECK_TEXT(err.code, "unknown_sandbox");
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

/* ENTERED belongs to CREATE, SPAWNED to RUN. */
static void
a_run_does_not_stand_and_a_create_does_not_run(void)
{
  struct sandbox *run = sandbox_in(SANDBOX_STARTING, true);
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
  struct frame frame = {
      .kind = RAMET_SPAWN, .request = request, .payload = {writer.data, (uint32_t)writer.length}};
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
  struct frame frame = {
      .kind = RAMET_RUN, .request = REQUEST, .payload = {writer->data, (uint32_t)writer->length}};
  int result = sandbox_start(&frame, err);

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
  CHECK(sandbox->state == SANDBOX_STARTING && sandbox->id == ID && sandbox->is_run);
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
  CHECK(sandbox->state == SANDBOX_STARTING && !sandbox->waiting);
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
  CHECK(sandbox->state == SANDBOX_ENDING && sandbox_find(ID) == NULL);
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
  RUN(a_kill_ends_a_standing_sandbox_with_an_event);
  RUN(a_create_that_ends_before_it_stands_is_answered);
  RUN(a_process_that_does_not_die_is_told_as_lingering_once);
  RUN(an_ending_sandbox_hears_nothing_more_from_its_init);
  RUN(a_failed_step_refuses_the_request_with_step_and_errno);
  RUN(a_failure_of_nonsense_is_cut_and_keeps_its_own_code);
  RUN(a_failing_pool_entry_tells_nobody);
  RUN(an_entered_sandbox_stands_and_answers_its_create);
  RUN(a_run_does_not_stand_and_a_create_does_not_run);
  RUN(a_spawned_command_answers_its_own_request);
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
  return tap_end();
}
