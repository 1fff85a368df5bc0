/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "started.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "capture.h"
#include "control.h"
#include "lanes.h"
#include "log.h"
#include "loop.h"
#include "overuse.h"
#include "sandbox.h"
#include "streamlog.h"
#include "swap.h"
#include "terminal.h"

/* How long the end of a command can be asked for, how many are kept of one sandbox, lest it take the room of others, and
 * of all, and how much memory they may take together. */
#define RETENTION_NS 300000000000u
#define ENDED_MAX 256
#define ENDED_ALL_MAX 2048
#define ENDED_BYTES_MAX (256u << 20)
/* A process in uninterruptible sleep does not die: after this long a command's end is told all the same. */
#define LINGER_NS 5000000000u
/* Init did not take the word to kill: it is told again. */
#define AGAIN_NS 20000000u

/* Who waits for an answer. */
struct asker {
  struct lane *lane; /* NULL: the daemon */
  uint64_t request;
  bool waits;
};

struct started {
  struct watch input_watch;  /* first */
  struct deadline deadline;  /* running: its time, then patience; ended: its retention */
  struct started *next;      /* the newest first; the ended by their end */
  uint64_t sandbox, own_request;
  uint32_t number, pid, flags;
  enum ramet_command_state state;
  enum ramet_reason reason, ending; /* `ending`: why it is being killed, EXIT: it is not */
  uint32_t status;
  uint64_t arrived, began, wall_ns, elapsed_ns;
  struct asker starter, feeder;
  struct streamlog *log;
  bool first, exited; /* its sandbox's first, whose log ends with the sandbox; it has ended as `exit` says */
  bool unknown;       /* one that nobody asked for the log of but its owner, who has its streams and ends it */
  struct exit_record exit;
  enum ramet_reason exit_reason;
  uint32_t window;  /* of its terminal; 0: it has none */
  int input;        /* near end of its standard input, or -1 */
  uint8_t *pending; /* of INPUT, not written yet */
  size_t pending_at, pending_length;
  bool input_ends;
  uint8_t *record;
  uint32_t record_length;
};

static struct started *all;
static uint64_t last_request = COMMAND_OWN_REQUESTS;

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void
answer(struct asker *asker, struct writer *writer, const int *fds, int count)
{
  if (!asker->waits)
    return;
  asker->waits = false;
  if (asker->lane)
    lane_reply_fds(asker->lane, RAMET_OK, asker->request, writer, fds, count);
  else if (count)
    control_reply_fds(asker->request, writer, fds, count);
  else
    control_reply(RAMET_OK, asker->request, writer);
}

static void
refuse(struct asker *asker, const struct err *err)
{
  if (!asker->waits)
    return;
  asker->waits = false;
  if (asker->lane)
    lane_refuse(asker->lane, asker->request, err);
  else
    control_refuse(asker->request, err);
}

static void
answer_nothing(struct asker *asker)
{
  struct writer nothing = {0};

  answer(asker, &nothing, NULL, 0);
}

/* ---- the list ------------------------------------------------------------------------------------------------- */

static struct started *
find(uint64_t sandbox, uint32_t number)
{
  for (struct started *one = all; one; one = one->next)
    if (one->sandbox == sandbox && one->number == number)
      return one;
  return NULL;
}

static void
drop_pending(struct started *one)
{
  free(one->pending);
  one->pending = NULL;
  one->pending_at = one->pending_length = 0;
}

static void
close_input(struct started *one)
{
  struct err err;

  if (one->input >= 0)
    loop_remove(one->input, &one->input_watch);
  close_fd(&one->input);
  drop_pending(one);
  err_code(&err, "stdin_closed", "the command's standard input is closed");
  refuse(&one->feeder, &err);
}

static void
unlink_one(struct started *one)
{
  struct started **at = &all;

  while (*at != one)
    at = &(*at)->next;
  *at = one->next;
}

static void
forget(struct started *one)
{
  unlink_one(one);
  deadline_clear(&one->deadline);
  close_input(one);
  if (one->log)
    streamlog_free(one->log);
  free(one->record);
  free(one);
}

static void
forget_quiet(void *owner)
{
  forget(owner);
}

/* Nobody will ask for it again. Whoever can still write to it would notice that it is gone. */
static void
forget_when_quiet(struct started *one)
{
  if (streamlog_written(one->log))
    streamlog_when_quiet(one->log, forget_quiet, one);
  else
    forget(one);
}

static void
forget_ended(uint64_t sandbox)
{
  struct started *next;

  for (struct started *one = all; one; one = next) {
    next = one->next;
    if (one->sandbox == sandbox && one->state == RAMET_COMMAND_ENDED)
      forget_when_quiet(one);
  }
}

/* The oldest go first, but for those whose pipes somebody would miss. */
static void
bound_ended(uint64_t sandbox)
{
  uint64_t bytes = 0;
  int count = 0, own = 0;
  struct started *next;

  for (struct started *one = all; one; one = next) {
    next = one->next;
    if (one->state != RAMET_COMMAND_ENDED)
      continue;
    count++;
    own += one->sandbox == sandbox;
    bytes += streamlog_size(one->log);
    bool many = count > ENDED_ALL_MAX || bytes > ENDED_BYTES_MAX || (one->sandbox == sandbox && own > ENDED_MAX);
    if (many && !streamlog_written(one->log)) {
      count--;
      own -= one->sandbox == sandbox;
      bytes -= streamlog_size(one->log);
      forget(one);
    }
  }
}

/* ---- the end -------------------------------------------------------------------------------------------------- */

static void
answer_end(struct started *one)
{
  cleanup_writer struct writer writer = {0};
  struct err err = {0};
  int fds[2];

  if (streamlog_open(one->log, false, fds, &err) < 0) {
    refuse(&one->starter, &err);
    return;
  }
  put_u32(&writer, RAMET_TAG_PID, one->pid);
  answer(&one->starter, &writer, fds, 1);
  close_fd(&fds[0]);
}

/* Of the first one its sandbox's events tell. */
static void
tell_event(const struct started *one, uint16_t kind)
{
  cleanup_writer struct writer writer = {0};

  if (one->first)
    return;
  put_u64(&writer, RAMET_TAG_SANDBOX, one->sandbox);
  put_u32(&writer, RAMET_TAG_COMMAND, one->number);
  if (kind == RAMET_COMMAND_BEGAN) {
    put_bytes(&writer, RAMET_TAG_RECORD, one->record, one->record_length);
  } else {
    put_u32(&writer, RAMET_TAG_REASON, (uint32_t)one->reason);
    put_u32(&writer, RAMET_TAG_STATUS, one->status);
  }
  control_command_event(kind, &writer);
}

/* May forget it. */
static void
finish(struct started *one, enum ramet_reason reason, const struct exit_record *record, bool lingering)
{
  uint64_t now = loop_now();
  bool answered = one->starter.waits;

  close_input(one);
  one->state = RAMET_COMMAND_ENDED;
  one->reason = reason;
  one->status = record->status;
  one->elapsed_ns = now - one->arrived;
  struct log_end end = {.reason = (uint32_t)reason,
                        .status = record->status,
                        .user_ns = record->user_ns,
                        .system_ns = record->system_ns,
                        .peak_bytes = record->peak_bytes,
                        .disk_bytes = record->disk_bytes,
                        .memory_peak = record->memory_peak,
                        .oom_kills = record->oom_kills,
                        .elapsed_ns = one->elapsed_ns,
                        .setup_ns = one->began ? one->began - one->arrived : 0,
                        .cpu_peak_ns = record->cpu_peak_ns,
                        .shm_bytes = record->shm_bytes,
                        .wall_ns = one->wall_ns,
                        .limit = (uint32_t)exit_record_limit(record),
                        .lingering = lingering};
  streamlog_finish(one->log, &end);
  one->deadline.exact = false;
  if (answered)
    answer_end(one);
  tell_event(one, RAMET_COMMAND_OVER);
  if (one->unknown) {
    forget(one); /* what its owner has not read yet the mirrors have */
    return;
  }
  bool quiet = !streamlog_written(one->log);
  if (answered)
    forget_when_quiet(one);
  if (answered && quiet)
    return;
  deadline_set(&one->deadline, now + RETENTION_NS);
  unlink_one(one);
  one->next = all;
  all = one;
  bound_ended(one->sandbox);
}

static int
tell_init_to_kill(const struct started *one, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct sandbox *sandbox = sandbox_find(one->sandbox);

  if (!sandbox || sandbox->state != SANDBOX_STANDING)
    return err_code(err, "unknown_sandbox", "no sandbox of this number has commands");
  put_u32(&writer, RAMET_TAG_COMMAND, one->number);
  if (frame_send(sandbox->channel, RAMET_INIT_KILL_COMMAND, 0, &writer, NULL, 0) < 0)
    return err_code(err, "busy", "init does not take the word: %s", strerror(errno));
  return 0;
}

static int
end_command(struct started *one, enum ramet_reason reason, struct err *err)
{
  if (tell_init_to_kill(one, err) < 0)
    return -1;
  if (one->state != RAMET_COMMAND_ENDED && one->ending == RAMET_REASON_EXIT) {
    one->ending = reason;
    one->deadline.exact = false;
    deadline_set(&one->deadline, loop_now() + LINGER_NS);
  }
  return 0;
}

static void
deadline_fired(struct deadline *deadline)
{
  struct started *one = (struct started *)(void *)((char *)deadline - offsetof(struct started, deadline));
  const struct exit_record killed = {.number = one->number, .status = SIGKILL};
  struct err err;

  if (one->state == RAMET_COMMAND_ENDED) {
    if (streamlog_written(one->log))
      deadline_set(deadline, loop_now() + RETENTION_NS);
    else
      forget(one);
  } else if (one->ending != RAMET_REASON_EXIT) {
    log_text("command_lingers", "a process does not die");
    finish(one, one->ending, &killed, true);
  } else if (end_command(one, RAMET_REASON_TIMEOUT, &err) < 0) {
    deadline_set(deadline, loop_now() + AGAIN_NS); /* or its sandbox ends meanwhile */
  }
}

bool
started_exited(uint64_t sandbox, const struct exit_record *record)
{
  struct started *one = find(sandbox, record->number);

  if (!one)
    return false;
  if (one->state == RAMET_COMMAND_ENDED)
    return true; /* one that lingered */
  /* One that ended in the same moment by itself has ended by itself. */
  enum ramet_reason reason = exit_record_reason(record);
  if (one->ending != RAMET_REASON_EXIT && (record->status & 0x7f) == SIGKILL)
    reason = one->ending;
  if (one->first) {
    deadline_clear(&one->deadline);
    one->exited = true;
    one->exit = *record;
    one->exit_reason = reason;
    return false;
  }
  finish(one, reason, record, false);
  return true;
}

void
started_sandbox_gone(uint64_t sandbox, enum ramet_reason reason, uint64_t wall_ns)
{
  struct started *next;
  struct err err;

  err_code(&err, "sandbox_ended", "the sandbox ended before the command was started");
  for (struct started *one = all; one; one = next) {
    const struct exit_record killed = {.number = one->number, .status = SIGKILL};
    next = one->next;
    if (one->sandbox != sandbox || one->state == RAMET_COMMAND_ENDED)
      continue;
    if (one->state == RAMET_COMMAND_STARTING) {
      refuse(&one->starter, &err);
      forget(one);
      next = all; /* what follows may have gone too */
      continue;
    }
    if (reason == RAMET_REASON_TIMEOUT)
      one->wall_ns = wall_ns; /* its own is not over */
    /* The first command's end ends the sandbox, and this one with it. */
    if (one->exited)
      finish(one, one->exit_reason, &one->exit, false);
    else
      finish(one, reason == RAMET_REASON_EXIT || reason == RAMET_REASON_SIGNAL ? RAMET_REASON_KILLED : reason,
             &killed, false);
    next = all;
  }
}

/* ---- START ---------------------------------------------------------------------------------------------------- */

static void input_ready(struct watch *watch, uint32_t events);

/* Near and far end of its standard input. */
static int
make_input(struct started *one, bool shared, int *far, struct err *err)
{
  int ends[2];

  if (pipe2(ends, O_CLOEXEC) < 0)
    return err_code(err, "busy", "no pipe can be made: %s", strerror(errno));
  *far = ends[0];
  one->input = ends[1];
  if (fcntl(one->input, F_SETFL, O_NONBLOCK) < 0 || (shared && fchmod(*far, 0666) < 0) ||
      loop_add(one->input, &one->input_watch, 0) < 0)
    return err_code(err, "internal", "a pipe cannot be watched: %s", strerror(errno));
  return 0;
}

/* One end of it is read by the log, the same once more is the command's input. */
static int
make_terminal(struct started *one, const struct sandbox *sandbox, const struct plan *plan, int *far,
              struct err *err)
{
  cleanup_fd int near = terminal_make(sandbox->pid, plan->window, plan->command.uid, plan->command.gid, far, err);

  if (near < 0)
    return -1;
  one->window = plan->window;
  one->input = fcntl(near, F_DUPFD_CLOEXEC, 0);
  if (one->input < 0 || loop_add(one->input, &one->input_watch, 0) < 0)
    return err_code(err, "internal", "a terminal cannot be watched: %s", strerror(errno));
  one->log = streamlog_of_terminal(plan->log_bytes, steal_fd(&near), err);
  return one->log ? 0 : -1;
}

static int
make_pipes(struct started *one, const struct plan *plan, int far[3], struct err *err)
{
  bool shared = plan->command.uid != 0;

  one->log = streamlog_make(plan->log_bytes, shared, far, err);
  if (!one->log)
    return -1;
  return plan->flags & RAMET_START_STDIN ? make_input(one, shared, &far[2], err) : 0;
}

static struct started *
make(const struct frame *frame, struct lane *lane, const struct plan *plan, struct err *err)
{
  struct started *one = calloc(1, sizeof *one);

  if (one)
    one->record = malloc(plan->record.length + 1);
  if (!one || !one->record) {
    free(one);
    err_code(err, "internal", "no memory for a command");
    return NULL;
  }
  if (plan->record.length)
    memcpy(one->record, plan->record.data, plan->record.length);
  one->record_length = plan->record.length;
  one->input_watch.ready = input_ready;
  one->deadline.fire = deadline_fired;
  one->deadline.exact = true;
  one->sandbox = plan->sandbox;
  one->number = plan->command.number;
  one->own_request = ++last_request;
  one->flags = plan->flags;
  one->arrived = loop_now();
  one->wall_ns = plan->wall_ns;
  one->starter = (struct asker){lane, frame->request, true};
  one->input = -1;
  one->next = all;
  all = one;
  return one;
}

static int
pass_to_init(struct started *one, struct sandbox *sandbox, const struct frame *frame, const int *far,
             struct err *err)
{
  static const uint16_t tags[] = {RAMET_TAG_STDOUT, RAMET_TAG_STDERR, RAMET_TAG_STDIN};
  cleanup_writer struct writer writer = {0};
  int count = one->window ? 1 : far[2] >= 0 ? 3 : 2;
  bool wanted;

  put_raw(&writer, frame->payload);
  for (int i = 0; i < (one->window ? 3 : count); i++)
    put_u32(&writer, tags[i], one->window ? 0 : (uint32_t)i);
  if (commands_add(&sandbox->commands, one->own_request, one->number, err) < 0)
    return -1;
  if (frame_send(sandbox->channel, RAMET_INIT_SPAWN, one->own_request, &writer, far, count) < 0) {
    commands_failed(&sandbox->commands, one->own_request, &wanted);
    return err_code(err, "busy", "init does not take the command: %s", strerror(errno));
  }
  return 0;
}

static int
start(struct frame *frame, struct lane *lane, struct err *err)
{
  const uint32_t known = RAMET_START_STDIN | RAMET_START_AT_END | RAMET_START_CHANGES | RAMET_START_TERMINAL;
  struct plan plan;
  int far[3] = {-1, -1, -1};

  if (plan_decode(frame->payload, PLAN_START, false, frame->fd_count, &plan, err) < 0)
    return -1;
  if (frame->fd_count || (plan.flags & ~known))
    return err_field(err, "flags", "unknown, or descriptors came along");
  if (!(plan.flags & RAMET_START_TERMINAL) != !plan.window)
    return err_field(err, "window", "a terminal has one, and nothing else has");
  struct sandbox *sandbox = sandbox_find(plan.sandbox);
  if (!sandbox || sandbox->state != SANDBOX_STANDING || sandbox->frozen)
    return err_code(err, "unknown_sandbox", "no sandbox of this number takes commands");
  if (find(plan.sandbox, plan.command.number))
    return err_field(err, "command", "number %u is taken", plan.command.number);
  struct started *one = make(frame, lane, &plan, err);
  if (!one)
    return -1;
  int result = plan.window ? make_terminal(one, sandbox, &plan, &far[0], err) : make_pipes(one, &plan, far, err);
  if (result == 0)
    result = pass_to_init(one, sandbox, frame, far, err);
  overuse_expect(plan.command.uid);
  for (int i = 0; i < 3; i++)
    close_fd(&far[i]);
  if (result < 0) {
    one->starter.waits = false; /* the caller refuses */
    forget(one);
    return -1;
  }
  sandbox_note_activity();
  if (one->wall_ns && one->wall_ns < UINT64_MAX - one->arrived)
    deadline_set(&one->deadline, one->arrived + one->wall_ns);
  return 0;
}

/* ---- first commands ------------------------------------------------------------------------------------------- */

/* The owner's pipes get what the log gets, and the command writes to core's. */
static int
pass_through(struct started *one, struct frame *frame, const struct plan *plan, struct err *err)
{
  int far[2];

  /* Of a fork nobody says whose its processes are. */
  one->log = streamlog_make(plan->log_bytes, plan->command.uid != 0 || plan->snapshot != 0, far, err);
  if (!one->log)
    return -1;
  for (int i = 0; i < 2; i++) {
    uint32_t place = plan->command.streams[STREAM_OUT + i];
    int owners = frame->fds[place];
    frame->fds[place] = far[i];
    far[i] = -1;
    if (streamlog_mirror(one->log, i, owners, err) == 0)
      continue;
    close_fd(&far[1]);
    return -1;
  }
  return 0;
}

int
started_first(struct frame *frame, const struct plan *plan, struct err *err)
{
  const uint32_t out = plan->command.streams[STREAM_OUT], error = plan->command.streams[STREAM_ERR];
  struct plan asked = *plan;

  if (!plan->log_bytes)
    return 0;
  if (out == RAMET_FD_NONE || error == RAMET_FD_NONE || out == error)
    return err_field(err, "log_bytes", "is for a command with a standard output and a standard error");
  struct started *before = find(plan->sandbox, plan->command.number);
  if (before && before->state != RAMET_COMMAND_ENDED)
    return err_field(err, "command", "number %u is taken", plan->command.number);
  /* A sandbox that is rolled back has its number still. */
  if (before)
    forget(before);
  asked.record = (struct span){0}; /* the sandbox's own */
  asked.wall_ns = 0;
  struct started *one = make(frame, NULL, &asked, err);
  if (!one)
    return -1;
  const struct sandbox *sandbox = sandbox_find(plan->sandbox);
  one->first = true;
  one->unknown = sandbox && sandbox->owned;
  one->own_request = frame->request;
  one->starter.waits = false;
  if (pass_through(one, frame, plan, err) == 0)
    return 0;
  forget(one);
  return -1;
}

void
started_first_runs(uint64_t sandbox, uint32_t number, const struct image *image)
{
  const struct started *one = find(sandbox, number);

  if (one && one->first)
    started_spawned(sandbox, number, (uint32_t)image->processes[0].process.relations.pid);
}

/* ---- answers to START and ATTACH ------------------------------------------------------------------------------ */

static void
answer_reader(struct started *one, struct asker *asker, bool changes)
{
  cleanup_writer struct writer writer = {0};
  struct err err = {0};
  int fds[2];

  if (!asker->waits)
    return;
  if (streamlog_open(one->log, changes, fds, &err) < 0) {
    refuse(asker, &err);
    return;
  }
  put_u32(&writer, RAMET_TAG_COMMAND, one->number);
  put_u32(&writer, RAMET_TAG_PID, one->pid);
  answer(asker, &writer, fds, fds[1] < 0 ? 1 : 2);
  close_fd(&fds[0]);
  close_fd(&fds[1]);
}

bool
started_spawned(uint64_t sandbox, uint32_t number, uint32_t pid)
{
  struct started *one = find(sandbox, number);

  if (!one || one->state != RAMET_COMMAND_STARTING)
    return false;
  one->state = RAMET_COMMAND_RUNNING;
  one->pid = pid;
  one->began = loop_now();
  streamlog_began(one->log);
  if (!(one->flags & RAMET_START_AT_END))
    answer_reader(one, &one->starter, one->flags & RAMET_START_CHANGES);
  tell_event(one, RAMET_COMMAND_BEGAN);
  return !one->first;
}

bool
started_failed(uint64_t sandbox, uint64_t request, const struct err *err)
{
  for (struct started *one = all; one; one = one->next)
    if (one->sandbox == sandbox && one->own_request == request && one->state == RAMET_COMMAND_STARTING) {
      bool own = !one->first;
      refuse(&one->starter, err);
      forget(one);
      return own;
    }
  return false;
}

/* ---- forks ---------------------------------------------------------------------------------------------------- */

/* A terminal is no pipe: who has one is refused. One that is being killed does not go on. The first goes on with streams
 * of the fork's owner. */
static bool
is_carried(const struct started *one, uint64_t sandbox)
{
  return one->sandbox == sandbox && one->state == RAMET_COMMAND_RUNNING && !one->window && !one->first &&
         one->ending == RAMET_REASON_EXIT;
}

static void
fill_captured(const struct started *one, struct capture_command *out)
{
  struct image_command *command = &out->command;
  uint64_t over = one->arrived + one->wall_ns, now = loop_now();
  struct stat st;

  *out = (struct capture_command){.record = {one->record, one->record_length}, .log = one->log};
  *command = (struct image_command){.number = one->number,
                                    .pid = (int32_t)one->pid,
                                    .takes_input = one->input >= 0,
                                    .log_bytes = streamlog_bytes(one->log),
                                    .wall_ns = !one->wall_ns ? 0
                                               : over > now  ? over - now
                                                             : 1,
                                    .begin = {UINT64_MAX, UINT64_MAX}};
  for (int i = 0; i < 2; i++)
    command->pipes[i + 1] = streamlog_pipe(one->log, i, &command->device);
  if (one->input >= 0 && fstat(one->input, &st) == 0) {
    command->device = st.st_dev;
    command->pipes[0] = st.st_ino;
  }
}

int
started_capture(uint64_t sandbox, struct capture_command **out, struct err *err)
{
  int count = 0;

  *out = NULL;
  for (const struct started *one = all; one; one = one->next)
    count += is_carried(one, sandbox);
  if (!count)
    return 0;
  *out = calloc((size_t)count, sizeof **out);
  if (!*out)
    return err_code(err, "internal", "no memory for commands");
  count = 0;
  for (const struct started *one = all; one; one = one->next)
    if (is_carried(one, sandbox))
      fill_captured(one, &(*out)[count++]);
  return count;
}

/* Which streams come along, in the order of their bits: input, output, error. Init is believed no more than that. */
static int
read_carried(struct frame *frame, uint32_t *number, int near[3], struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint32_t which = 0;
  uint16_t tag;
  int more, bad = 0, used = 0;
  struct stat st;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0)
    bad |= tag == RAMET_TAG_COMMAND ? span_u32(value, number)
           : tag == RAMET_TAG_FLAGS ? span_u32(value, &which)
                                    : -1;
  if (more < 0 || bad || which > 7)
    return err_code(err, "internal", "init tells nonsense of a command");
  for (int i = 0; i < 3; i++) {
    near[i] = which & 1u << i ? frame_steal_fd(frame, (uint32_t)used++) : -1;
    int flags = near[i] < 0 ? 0 : fcntl(near[i], F_GETFL);
    if (which & 1u << i && (near[i] < 0 || fstat(near[i], &st) < 0 || !S_ISFIFO(st.st_mode) ||
                            (flags & (O_ACCMODE | O_NONBLOCK)) != ((i ? O_RDONLY : O_WRONLY) | O_NONBLOCK)))
      return err_code(err, "internal", "init gives no pipe for a stream");
  }
  return 0;
}

static struct started *
make_carried(const struct sandbox *sandbox, const struct image_command *command, struct span record,
             struct err *err)
{
  struct started *one = calloc(1, sizeof *one);

  if (one)
    one->record = malloc(record.length + 1);
  if (!one || !one->record) {
    free(one);
    err_code(err, "internal", "no memory for a command");
    return NULL;
  }
  if (record.length)
    memcpy(one->record, record.data, record.length);
  one->record_length = record.length;
  one->input_watch.ready = input_ready;
  one->deadline.fire = deadline_fired;
  one->deadline.exact = true;
  one->sandbox = sandbox->id;
  one->number = command->number;
  one->pid = (uint32_t)command->pid;
  one->own_request = ++last_request;
  one->state = RAMET_COMMAND_RUNNING;
  one->arrived = one->began = loop_now();
  one->wall_ns = command->wall_ns;
  one->input = -1;
  one->next = all;
  all = one;
  return one;
}

static int
carry(struct started *one, struct sandbox *sandbox, const struct image_command *command, int near[3],
      struct err *err)
{
  bool wanted;

  one->log = streamlog_carry(command->log_bytes, command->begin, near + 1, err);
  if (!one->log || commands_add(&sandbox->commands, one->own_request, one->number, err) < 0)
    return -1;
  commands_spawned(sandbox->commands, one->own_request, one->number, &wanted);
  if (command->takes_input && near[0] >= 0) {
    one->input = steal_fd(&near[0]);
    if (loop_add(one->input, &one->input_watch, 0) < 0)
      return err_code(err, "internal", "a pipe cannot be watched: %s", strerror(errno));
  }
  streamlog_began(one->log);
  if (one->wall_ns && one->wall_ns < UINT64_MAX - one->arrived)
    deadline_set(&one->deadline, one->arrived + one->wall_ns);
  return 0;
}

int
started_carried(struct sandbox *sandbox, const struct image *image, struct frame *frame, struct err *err)
{
  int near[3] = {-1, -1, -1};
  uint32_t number = 0;
  int result = read_carried(frame, &number, near, err);
  int place = result < 0 ? -1 : image_command(image, number);

  struct started *before = find(sandbox->id, number);
  if (result == 0 && (place < 0 || (before && before->state != RAMET_COMMAND_ENDED)))
    result = err_code(err, "internal", "init tells of a command that nobody has");
  /* A sandbox that is rolled back has its number still, and the command as it was then. */
  if (result == 0 && before)
    forget(before);
  struct started *one =
      result < 0 ? NULL : make_carried(sandbox, &image->commands[place], image->command_records[place], err);
  result = one ? carry(one, sandbox, &image->commands[place], near, err) : -1;
  if (result < 0 && one)
    forget(one);
  for (int i = 0; i < 3; i++)
    close_fd(&near[i]);
  return result;
}

/* ---- INPUT ---------------------------------------------------------------------------------------------------- */

/* Writes what there is room for; answers once all of it is written. */
static void
push_input(struct started *one)
{
  while (one->pending_at < one->pending_length) {
    ssize_t n = write(one->input, one->pending + one->pending_at, one->pending_length - one->pending_at);
    if (n < 0 && errno == EAGAIN) {
      loop_change(one->input, &one->input_watch, EPOLLOUT);
      return;
    }
    if (n < 0) {
      close_input(one);
      return;
    }
    one->pending_at += (size_t)n;
  }
  drop_pending(one);
  answer_nothing(&one->feeder);
  if (one->input_ends)
    close_input(one);
  else
    loop_change(one->input, &one->input_watch, 0);
}

static void
input_ready(struct watch *watch, uint32_t events)
{
  struct started *one = (struct started *)(void *)watch;

  /* Nobody reads it any more: of a pipe, and of a terminal. */
  if (events & (EPOLLERR | EPOLLHUP))
    close_input(one);
  else
    push_input(one);
}

static int
feed(struct started *one, const struct asker *asker, struct span bytes, bool ends, struct err *err)
{
  if (one->first)
    return err_code(err, "stdin_elsewhere", "the standard input of a sandbox's first command is its owner's");
  if (one->input < 0)
    return err_code(err, "stdin_closed", "the command's standard input is closed");
  if (ends && one->window)
    return err_field(err, "flags", "a terminal's input has no end: it takes a key for that, mostly Ctrl-D");
  if (one->pending)
    return err_code(err, "stdin_busy", "somebody writes to the command's standard input");
  one->pending = malloc(bytes.length + 1);
  if (!one->pending)
    return err_code(err, "internal", "no memory for input");
  if (bytes.length)
    memcpy(one->pending, bytes.data, bytes.length);
  one->pending_at = 0;
  one->pending_length = bytes.length;
  one->input_ends = ends;
  one->feeder = *asker;
  push_input(one);
  return 0;
}

/* ---- the other requests --------------------------------------------------------------------------------------- */

struct asked {
  uint64_t sandbox;
  uint32_t command, flags, window;
  struct span bytes;
};

static int
decode_asked(const struct frame *frame, struct asked *asked, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint16_t tag;
  uint32_t seen = 0;
  int more, bad = 0;

  memset(asked, 0, sizeof *asked);
  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    uint32_t bit = tag == RAMET_TAG_SANDBOX   ? 1
                   : tag == RAMET_TAG_COMMAND ? 2
                   : tag == RAMET_TAG_FLAGS   ? 4
                   : tag == RAMET_TAG_BYTES   ? 8
                   : tag == RAMET_TAG_WINDOW  ? 16
                                              : 0;
    if (!bit || (seen & bit))
      return err_field(err, "payload", "tag %u does not belong here, or occurs twice", tag);
    seen |= bit;
    if (bit == 1)
      bad |= span_u64(value, &asked->sandbox);
    else if (bit == 2)
      bad |= span_u32(value, &asked->command);
    else if (bit == 4)
      bad |= span_u32(value, &asked->flags);
    else if (bit == 8)
      asked->bytes = value;
    else if (window_decode(value, &asked->window, err) < 0)
      return -1;
  }
  if (more < 0)
    return -1;
  uint32_t needed = frame->kind == RAMET_COMMANDS || frame->kind == RAMET_FORGET ? 1 : 3;
  needed |= frame->kind == RAMET_RESIZE ? 16 : 0;
  uint32_t allowed = needed | (frame->kind == RAMET_ATTACH ? 4u : frame->kind == RAMET_INPUT ? 12u : 0u);
  if (bad || (seen & needed) != needed || (seen & ~allowed) || frame->fd_count)
    return err_field(err, "payload", "request %u has other attributes", frame->kind);
  if (asked->bytes.length > RAMET_INPUT_MAX)
    return err_field(err, "bytes", "are more than %d", RAMET_INPUT_MAX);
  return 0;
}

static void
list(uint64_t sandbox, struct asker *asker)
{
  cleanup_writer struct writer writer = {0};

  for (const struct started *one = all; one; one = one->next) {
    uint8_t packed[sizeof(struct ramet_command_info) + RAMET_COMMAND_RECORD_MAX];
    struct ramet_command_info info = {
        .number = one->number,
        .pid = one->pid,
        .state = one->state,
        .reason = (uint32_t)one->reason,
        .status = one->status,
        .input = one->input >= 0,
        .window = one->window,
        .elapsed_ns = one->state == RAMET_COMMAND_ENDED ? one->elapsed_ns : loop_now() - one->arrived,
        .total = {streamlog_total(one->log, 0), streamlog_total(one->log, 1)},
    };
    if (one->sandbox != sandbox || one->state == RAMET_COMMAND_STARTING || one->first)
      continue;
    memcpy(packed, &info, sizeof info);
    memcpy(packed + sizeof info, one->record, one->record_length);
    put_bytes(&writer, RAMET_TAG_COMMAND_INFO, packed, sizeof info + one->record_length);
  }
  answer(asker, &writer, NULL, 0);
}

static int
resize(struct started *one, uint32_t window, struct err *err)
{
  if (!one->window)
    return err_code(err, "no_terminal", "the command has no terminal");
  if (one->input < 0)
    return err_code(err, "stdin_closed", "nobody has the terminal open any more");
  if (terminal_resize(one->input, window, err) < 0)
    return -1;
  one->window = window;
  return 0;
}

int
started_missing(uint64_t sandbox, uint32_t number, struct err *err)
{
  const struct started *one = find(sandbox, number);

  if (one && one->state == RAMET_COMMAND_ENDED)
    return err_code(err, "command_ended", "the command %u has ended", number);
  return err_code(err, "unknown_command", "the sandbox has no command of number %u", number);
}

/* One that is not started yet can be killed: init hears of both in this order. */
static int
find_asked(const struct asked *asked, bool starting, struct started **one, struct err *err)
{
  *one = find(asked->sandbox, asked->command);
  if (!*one || ((*one)->state == RAMET_COMMAND_STARTING && !starting))
    return started_missing(asked->sandbox, asked->command, err);
  return 0;
}

bool
started_takes(uint16_t kind)
{
  return kind == RAMET_START || kind == RAMET_ATTACH || kind == RAMET_COMMANDS || kind == RAMET_INPUT ||
         kind == RAMET_KILL_COMMAND || kind == RAMET_FORGET || kind == RAMET_RESIZE;
}

int
started_request(struct frame *frame, struct lane *lane, struct err *err)
{
  struct asker asker = {lane, frame->request, true};
  struct started *one;
  struct asked asked;

  if (frame->kind == RAMET_START)
    return start(frame, lane, err);
  if (decode_asked(frame, &asked, err) < 0)
    return -1;
  if (frame->kind == RAMET_COMMANDS) {
    list(asked.sandbox, &asker);
    return 0;
  }
  if (frame->kind == RAMET_FORGET) {
    forget_ended(asked.sandbox);
    answer_nothing(&asker);
    return 0;
  }
  if (find_asked(&asked, frame->kind == RAMET_KILL_COMMAND, &one, err) < 0)
    return -1;
  if (frame->kind == RAMET_INPUT)
    return feed(one, &asker, asked.bytes, asked.flags & RAMET_INPUT_END, err);
  if (frame->kind == RAMET_ATTACH) {
    one->unknown = false;
    answer_reader(one, &asker, asked.flags & RAMET_START_CHANGES);
    return 0;
  }
  if ((frame->kind == RAMET_RESIZE ? resize(one, asked.window, err) : end_command(one, RAMET_REASON_KILLED, err)) <
      0)
    return -1;
  answer_nothing(&asker);
  return 0;
}

void
started_swap(const uint64_t pair[2])
{
  for (struct started *one = all; one; one = one->next)
    swap_number(&one->sandbox, pair);
}

void
started_forget(const struct lane *lane)
{
  for (struct started *one = all; one; one = one->next) {
    if (one->starter.lane == lane)
      one->starter.waits = false;
    if (one->feeder.waits && one->feeder.lane == lane) {
      one->feeder.waits = false;
      drop_pending(one); /* whoever sent it does not know how much was read */
      loop_change(one->input, &one->input_watch, 0);
    }
  }
}

bool
started_lane_busy(const struct lane *lane)
{
  for (const struct started *one = all; one; one = one->next)
    if ((one->starter.waits && one->starter.lane == lane) || (one->feeder.waits && one->feeder.lane == lane))
      return true;
  return false;
}
