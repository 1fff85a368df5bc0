/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "sandbox.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../pie/args.h"
#include "asked.h"
#include "cgroup_stock.h"
#include "commands.h"
#include "control.h"
#include "files.h"
#include "filters.h"
#include "forks.h"
#include "handout.h"
#include "init.h"
#include "kept.h"
#include "lanes.h"
#include "limit_views.h"
#include "log.h"
#include "networks.h"
#include "offers.h"
#include "overuse.h"
#include "pressure.h"
#include "rootfs.h"
#include "snapshot.h"
#include "started.h"
#include "syscalls.h"
#include "totals.h"
#include "twin.h"
#include "zygote.h"

/* A process in uninterruptible sleep ignores SIGKILL. Its sandbox's result is told after this long all the same. */
#define LINGER_NS 5000000000u

/* For init to kill everything and tell the end of it. Core kills init then, which does the same and takes longer to be
 * heard of: pid 1 of a namespace is dead only when the namespace is. */
#define OVERDUE_NS 50000000u

/* Taking namespaces apart must not have the processor that whoever asked for a run needs to hear of its end. */
#define TAKE_DOWN_NS 1000000u

enum event {
  EVENT_PREPARED,
  EVENT_ENTERED,
  EVENT_SPAWNED,
  EVENT_EXITED,
  EVENT_CARRIED,
  EVENT_ENDED, /* no process is left inside */
  EVENT_ANSWERED,
  EVENT_IDLE, /* nothing has run for as long as may be */
  EVENT_OVER, /* it is above its memory and stands still */
  EVENT_FAILED,
  EVENT_HOSTILE, /* a malformed or unexpected frame, or a closed channel */
  EVENT_DEADLINE,
  EVENT_KILL,
  EVENT_DEATH,
  EVENTS,
};

static struct sandbox *all;
static int counts[SANDBOX_STATES + 1];
static uint64_t ended_count;
static int prepare_failures;
static uint64_t last_activity;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];
static uint64_t last_cgroup;
/* In the making at a time. The others wait here, where they can be ended, and for what is left by who ends meanwhile. */
#define ORDERS_MAX 16
static int ordered, unordered;
static struct cgroup_limits usual_limits; /* of the last sandbox: entries are made with them ahead */

static void dispatch(struct sandbox *sandbox, enum event event, struct frame *frame);
static void tell_ended(struct sandbox *sandbox, bool lingering);
static void kill_init(struct sandbox *sandbox);
static void on_hostile(struct sandbox *sandbox, struct frame *frame);

/* ---- the list ------------------------------------------------------------------------------------------------- */

int
sandbox_count(enum sandbox_state state)
{
  return counts[state];
}

int
sandbox_prepare_failures(void)
{
  return prepare_failures;
}

uint64_t
sandbox_last_activity(void)
{
  return last_activity;
}

void
sandbox_note_activity(void)
{
  last_activity = loop_now();
}

uint64_t
sandbox_ended_count(void)
{
  return ended_count;
}

struct sandbox *
sandbox_find(uint64_t id)
{
  for (struct sandbox *sandbox = all; sandbox && id; sandbox = sandbox->next)
    if (sandbox->id == id && !sandbox->told)
      return sandbox;
  return NULL;
}

struct sandbox *
sandbox_next(const struct sandbox *after)
{
  return after ? after->next : all;
}

static void
set_state(struct sandbox *sandbox, enum sandbox_state state)
{
  counts[sandbox->state]--;
  sandbox->state = state;
  counts[state]++;
}

static void
drop_waiting(struct sandbox *sandbox)
{
  if (sandbox->waiting)
    frame_release(sandbox->waiting);
  free(sandbox->waiting);
  sandbox->waiting = NULL;
}

static void
close_channel(struct sandbox *sandbox)
{
  if (sandbox->channel >= 0)
    loop_remove(sandbox->channel, &sandbox->watch);
  close_fd(&sandbox->channel);
}

static void
sandbox_free(struct sandbox *sandbox)
{
  if (sandbox->next)
    sandbox->next->previous = sandbox->previous;
  if (sandbox->previous)
    sandbox->previous->next = sandbox->next;
  else
    all = sandbox->next;
  counts[sandbox->state]--;
  counts[SANDBOX_STATES]--;
  if (!sandbox->pid)
    *(sandbox->birth ? &ordered : &unordered) -= 1;
  deadline_clear(&sandbox->deadline);
  close_channel(sandbox);
  close_fd(&sandbox->pidfd);
  close_fd(&sandbox->network);
  fork_close_status(sandbox);
  sandbox_lose_twin(sandbox);
  kept_forget(sandbox);
  close_fd(&sandbox->upper);
  close_fd(&sandbox->tree);
  offer_over(sandbox);
  if (sandbox->lane)
    lane_over(sandbox->lane);
  if (sandbox->root)
    root_release(sandbox->root);
  limit_view_release(sandbox->limit_view);
  if (sandbox->origin)
    snapshot_release(sandbox->origin);
  drop_waiting(sandbox);
  if (sandbox->id && !sandbox->over) {
    files_sandbox_gone(sandbox->id);
    asked_sandbox_gone(sandbox->id);
    started_sandbox_gone(sandbox->id, sandbox->reason, sandbox->wall_ns);
  }
  commands_end(&sandbox->commands);
  if (sandbox->cgroup && sandbox->ended && sandbox->oom_kills == 0)
    cgroup_stock_give(sandbox->cgroup, &sandbox->limits);
  else if (sandbox->cgroup)
    cgroups_remove(sandbox->cgroup);
  free(sandbox->record);
  free(sandbox->restarted);
  free(sandbox);
}

/* ---- birth ---------------------------------------------------------------------------------------------------- */

static void channel_ready(struct watch *watch, uint32_t events);
static void deadline_fired(struct deadline *deadline);

static struct sandbox *
sandbox_alloc(struct err *err)
{
  struct sandbox *sandbox;

  if (counts[SANDBOX_STATES] >= RAMET_SANDBOXES_MAX) {
    err_code(err, "too_many_sandboxes", "%d sandboxes are alive", RAMET_SANDBOXES_MAX);
    return NULL;
  }
  sandbox = calloc(1, sizeof *sandbox);
  if (!sandbox) {
    err_code(err, "internal", "no memory for a sandbox");
    return NULL;
  }
  sandbox->watch.ready = channel_ready;
  sandbox->deadline.fire = deadline_fired;
  sandbox->deadline.exact = true;
  sandbox->status_watch.ready = fork_status_ready;
  sandbox->channel = sandbox->pidfd = sandbox->network = sandbox->upper = sandbox->tree = sandbox->status_socket =
      sandbox->nursery = -1;
  for (int i = 0; i < STREAM_COUNT; i++)
    sandbox->offered[i] = -1;
  sandbox->next = all;
  if (all)
    all->previous = sandbox;
  all = sandbox;
  counts[sandbox->state]++;
  counts[SANDBOX_STATES]++;
  unordered++;
  return sandbox;
}

static void
take_cgroup(struct sandbox *sandbox, struct birth *birth)
{
  if (!cgroups_version())
    return;
  sandbox->cgroup = cgroup_stock_take(&birth->before);
  birth->cgroup_is_there = sandbox->cgroup != 0;
  if (!birth->cgroup_is_there)
    sandbox->cgroup = ++last_cgroup;
  birth->cgroup = sandbox->cgroup;
  birth->limits = sandbox->limits = usual_limits;
}

static int
order(struct sandbox *sandbox, struct err *err)
{
  static uint64_t last;
  struct birth birth = {.number = ++last, .network = -1, .fault = sandbox->birth_fault};

  take_cgroup(sandbox, &birth);
  /* A fault of a step that makes one must find that step. */
  if (birth.fault == RAMET_STEP_NONE)
    birth.network = network_take();
  int result = zygote_order(&birth, err);
  close_fd(&birth.network);
  if (result < 0)
    return -1;
  sandbox->birth = birth.number;
  unordered--;
  ordered++;
  return 0;
}

/* It never had an init. */
static void
not_made(struct sandbox *sandbox, const struct err *err)
{
  if (sandbox->state == SANDBOX_BORN) {
    prepare_failures++;
    sandbox_refuse(sandbox, err);
  } else {
    tell_ended(sandbox, false);
  }
  sandbox_free(sandbox);
}

static struct sandbox *
find_unordered(void)
{
  struct sandbox *oldest = NULL;

  for (struct sandbox *sandbox = unordered ? all : NULL; sandbox; sandbox = sandbox->next)
    if (!sandbox->pid && !sandbox->birth)
      oldest = sandbox;
  return oldest;
}

static void
order_waiting(void)
{
  struct sandbox *sandbox;
  struct err err = {0};

  while (ordered < ORDERS_MAX && (sandbox = find_unordered()) != NULL)
    if (sandbox->state != SANDBOX_BORN || order(sandbox, &err) < 0)
      not_made(sandbox, &err);
}

struct sandbox *
sandbox_born(enum ramet_step fault, struct err *err)
{
  struct sandbox *sandbox = sandbox_alloc(err);

  if (!sandbox)
    return NULL;
  sandbox->birth_fault = fault;
  if (ordered >= ORDERS_MAX || order(sandbox, err) == 0)
    return sandbox;
  prepare_failures++;
  sandbox_free(sandbox);
  return NULL;
}

static struct sandbox *
find_ordered(uint64_t birth)
{
  for (struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next)
    if (!sandbox->pid && sandbox->birth == birth)
      return sandbox;
  _exit(EXIT_DEFECT);
}

void
sandbox_entry_made(uint64_t birth, int pid, int channel, int pidfd)
{
  struct sandbox *sandbox = find_ordered(birth);
  siginfo_t info;

  ordered--;
  sandbox->pid = pid;
  sandbox->channel = channel;
  sandbox->pidfd = pidfd;
  if (sandbox->state == SANDBOX_ENDING) {
    kill_init(sandbox);
  } else if (loop_add(channel, &sandbox->watch, EPOLLIN) < 0) {
    struct err err;
    err_step(&err, RAMET_STEP_CLONE_INIT, "hear init: %s", strerror(errno));
    sandbox_refuse(sandbox, &err);
    sandbox_end(sandbox);
  }
  /* Its end may have been told of while nobody knew its number. */
  if (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD)
    dispatch(sandbox, EVENT_DEATH, NULL);
  order_waiting();
}

void
sandbox_entry_failed(uint64_t birth, const struct err *err)
{
  not_made(find_ordered(birth), err);
  order_waiting();
}

/* Nothing of it has run. But an order of its own may be what the maker of entries died of. */
static void
order_again(struct sandbox *sandbox)
{
  sandbox->ordered_again = true;
  sandbox->birth = 0;
  ordered--;
  unordered++;
  if (sandbox->cgroup)
    cgroups_remove(sandbox->cgroup);
  sandbox->cgroup = 0;
}

void
sandbox_entries_lost(const struct err *err)
{
  struct sandbox *next;

  for (struct sandbox *sandbox = all; sandbox; sandbox = next) {
    next = sandbox->next;
    if (sandbox->pid || !sandbox->birth)
      continue;
    if (sandbox->ordered_again)
      not_made(sandbox, err);
    else
      order_again(sandbox);
  }
  order_waiting();
}

void
sandbox_usual_limits(const struct cgroup_limits *limits)
{
  usual_limits = *limits;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void
reply(struct sandbox *sandbox, uint16_t kind, uint64_t request, struct writer *writer)
{
  if (sandbox->lane)
    lane_reply(sandbox->lane, kind, request, writer);
  else
    control_reply(kind, request, writer);
}

static void
put_end(const struct sandbox *sandbox, bool lingering, struct writer *writer)
{
  uint64_t ended = sandbox->ended ? sandbox->ended : loop_now();

  put_u64(writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(writer, RAMET_TAG_REASON, (uint32_t)sandbox->reason);
  put_u32(writer, RAMET_TAG_STATUS, sandbox->status);
  put_u64(writer, RAMET_TAG_USER_NS, sandbox->user_ns);
  put_u64(writer, RAMET_TAG_SYSTEM_NS, sandbox->system_ns);
  put_u64(writer, RAMET_TAG_PEAK_BYTES, sandbox->peak_bytes);
  put_u64(writer, RAMET_TAG_DISK_PEAK, sandbox->disk_bytes);
  put_u64(writer, RAMET_TAG_MEMORY_PEAK, sandbox->memory_peak);
  put_u64(writer, RAMET_TAG_OOM_KILLS, sandbox->oom_kills);
  put_u64(writer, RAMET_TAG_SHM_PEAK, sandbox->shm_bytes);
  put_u64(writer, RAMET_TAG_CPU_PEAK_NS, sandbox->cpu_peak_ns);
  put_u32(writer, RAMET_TAG_LIMIT, (uint32_t)sandbox->limit);
  put_u64(writer, RAMET_TAG_WALL_NS, sandbox->wall_ns);
  put_u64(writer, RAMET_TAG_MEMORY, sandbox->memory);
  put_u64(writer, RAMET_TAG_DISK_BYTES, sandbox->disk);
  put_u64(writer, RAMET_TAG_WATCH, sandbox->watched);
  put_u64(writer, RAMET_TAG_ELAPSED_NS, ended - sandbox->arrived);
  put_u64(writer, RAMET_TAG_SETUP_NS, sandbox->started ? sandbox->started - sandbox->arrived : 0);
  put_u32(writer, RAMET_TAG_LINGERING, lingering);
}

/* The daemon is told of what a client made past it. */
static void
tell_daemon_of_end(const struct sandbox *sandbox, bool lingering)
{
  cleanup_writer struct writer writer = {0};

  put_end(sandbox, lingering, &writer);
  control_event(RAMET_ENDED, &writer);
}

static void
tell_ended(struct sandbox *sandbox, bool lingering)
{
  cleanup_writer struct writer writer = {0};

  if (sandbox->told || sandbox->id == 0)
    return;
  sandbox->told = sandbox->over = true;
  if (!sandbox->is_run) {
    files_sandbox_gone(sandbox->id);
    asked_sandbox_gone(sandbox->id);
    started_sandbox_gone(sandbox->id, sandbox->reason, sandbox->wall_ns);
  }
  ended_count++;
  if (sandbox->has_session && sandbox->started)
    tell_daemon_of_end(sandbox, lingering);
  if (sandbox->has_session && !sandbox->lane)
    return;
  put_end(sandbox, lingering, &writer);
  /* A CREATE that ended before it stood is answered by this. */
  reply(sandbox, RAMET_ENDED, sandbox->is_run || !sandbox->started ? sandbox->request : 0, &writer);
}

void
sandbox_refuse(struct sandbox *sandbox, const struct err *err)
{
  if (sandbox->told || sandbox->id == 0) {
    log_err("entry_failed", err);
    return;
  }
  sandbox->told = true;
  if (sandbox->lane)
    lane_refuse(sandbox->lane, sandbox->request, err);
  else
    control_refuse(sandbox->request, err);
}

static void
kill_init(struct sandbox *sandbox)
{
  if (sandbox->id && !sandbox->over)
    files_sandbox_gone(sandbox->id);
  sandbox->killed = true;
  /* Before there is one it is killed when it comes. */
  if (sandbox->pidfd >= 0 && sandbox->network < 0)
    sandbox->network = network_of(sandbox->pidfd);
  if (sandbox->pidfd >= 0)
    sys_pidfd_send_signal(sandbox->pidfd, SIGKILL);
  sandbox->deadline.exact = false;
  deadline_set(&sandbox->deadline, loop_now() + LINGER_NS);
}

void
sandbox_end(struct sandbox *sandbox)
{
  sandbox_lose_twin(sandbox);
  if (sandbox->state == SANDBOX_BORN && !sandbox->id)
    prepare_failures++;
  drop_waiting(sandbox);
  set_state(sandbox, SANDBOX_ENDING);
  kill_init(sandbox);
}

static void
end_because(struct sandbox *sandbox, enum ramet_reason reason)
{
  sandbox->reason = reason;
  sandbox->status = SIGKILL;
  sandbox_end(sandbox);
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

/* A pooled entry, or one that nobody waits for yet. */
static struct sandbox *
take_entry(void)
{
  struct sandbox *born = NULL;

  for (struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next) {
    if (sandbox->state == SANDBOX_POOLED)
      return sandbox;
    if (sandbox->state == SANDBOX_BORN && !sandbox->waiting)
      born = sandbox;
  }
  return born;
}

static int
claim(struct sandbox *sandbox, const struct frame *frame, struct lane *lane, const struct plan *plan,
      struct err *err)
{
  if (sandbox_keep_record(sandbox, plan->record, err) < 0)
    return -1;
  sandbox->id = plan->sandbox;
  sandbox->request = frame->request;
  sandbox->lane = lane;
  sandbox->is_run = frame->kind == RAMET_RUN;
  sandbox->has_session = lane && !sandbox->is_run;
  sandbox->owned = plan->owned;
  sandbox->memory = plan->memory;
  sandbox->processes = plan->processes;
  sandbox->quota = plan->quota;
  sandbox->own_shm = plan->shm_bytes != 0;
  sandbox->disk = plan->disk_bytes;
  sandbox->wall_ns = plan->wall_ns;
  overuse_expect(plan->command.uid);
  last_activity = sandbox->arrived = loop_now();
  if (plan->wall_ns && plan->wall_ns < UINT64_MAX - sandbox->arrived)
    deadline_set(&sandbox->deadline, sandbox->arrived + plan->wall_ns);
  return 0;
}

static int
wait_for_prepared(struct sandbox *sandbox, struct frame *frame, struct err *err)
{
  sandbox->waiting = calloc(1, sizeof *sandbox->waiting);
  if (!sandbox->waiting || frame_keep(frame) < 0)
    return err_code(err, "internal", "no memory for a request");
  *sandbox->waiting = *frame;
  memset(frame, 0, sizeof *frame);
  return 0;
}

static enum sandbox_state
state_of_request(const struct sandbox *sandbox)
{
  return sandbox->is_run ? SANDBOX_RUNNING : SANDBOX_STARTING;
}

int
sandbox_start(struct frame *frame, struct lane *lane, struct err *err)
{
  struct plan plan;
  enum plan_use use = frame->kind == RAMET_RUN ? PLAN_RUN : PLAN_CREATE;

  if (plan_decode(frame->payload, use, false, frame->fd_count, &plan, err) < 0)
    return -1;
  if (sandbox_find(plan.sandbox))
    return err_field(err, "sandbox", "this number is taken");
  if (pressure_admit(err) < 0 || totals_admit(&plan, err) < 0)
    return -1;
  if (lane && use == PLAN_CREATE && !plan.snapshot)
    return err_field(err, "snapshot", "over a lane come forks");
  prepare_failures = 0;
  /* A fault is armed before birth, so it needs an entry of its own. */
  struct sandbox *sandbox = plan.fault ? NULL : take_entry();
  if (!sandbox)
    sandbox = sandbox_born(plan.fault, err);
  if (!sandbox)
    return -1;
  int result = claim(sandbox, frame, lane, &plan, err);
  if (result == 0 && sandbox->state == SANDBOX_BORN) {
    result = wait_for_prepared(sandbox, frame, err);
  } else if (result == 0) {
    set_state(sandbox, state_of_request(sandbox));
    result = hand_out(sandbox, frame, &plan, err);
  }
  if (result < 0) {
    sandbox->told = true;
    sandbox_end(sandbox);
  }
  return result;
}

int
sandbox_spawn(struct frame *frame, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct plan plan;

  if (plan_decode(frame->payload, PLAN_SPAWN, false, frame->fd_count, &plan, err) < 0)
    return -1;
  struct sandbox *sandbox = sandbox_find(plan.sandbox);
  if (!sandbox || sandbox->state != SANDBOX_STANDING)
    return err_code(err, "unknown_sandbox", "no sandbox of this number takes commands");
  if (started_first(frame, &plan, err) < 0)
    return -1;
  if (commands_add(&sandbox->commands, frame->request, plan.command.number, err) < 0) {
    started_failed(sandbox->id, frame->request, err);
    return -1;
  }
  overuse_expect(plan.command.uid);
  handout_note_streams(sandbox, &plan.command, frame->fds);
  put_raw(&writer, frame->payload);
  if (frame_send(sandbox->channel, RAMET_INIT_SPAWN, frame->request, &writer, frame->fds, frame->fd_count) < 0) {
    bool wanted;
    err_code(err, "busy", "init does not take the command: %s", strerror(errno));
    commands_failed(&sandbox->commands, frame->request, &wanted);
    started_failed(sandbox->id, frame->request, err);
    return -1;
  }
  return 0;
}

int
sandbox_signal(struct frame *frame, struct lane *lane, uint64_t only, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct signal_request asked;

  if (signal_read(frame, &asked, err) < 0)
    return -1;
  struct sandbox *sandbox = only && asked.sandbox != only ? NULL : sandbox_find(asked.sandbox);
  if (!sandbox || sandbox->state != SANDBOX_STANDING)
    return err_code(err, "unknown_sandbox", "no sandbox of this number has commands");
  if (!commands_known(sandbox->commands, asked.command))
    return started_missing(asked.sandbox, asked.command, err);
  put_raw(&writer, frame->payload);
  return asked_send(sandbox, RAMET_INIT_SIGNAL, &writer, frame, lane, err);
}

int
sandbox_kill(uint64_t id, struct err *err)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (!sandbox)
    return err_code(err, "unknown_sandbox", "no sandbox of this number is alive");
  dispatch(sandbox, EVENT_KILL, NULL);
  return 0;
}

int
sandbox_set_record(uint64_t id, struct span record, struct err *err)
{
  struct sandbox *sandbox = sandbox_find(id);

  return sandbox ? sandbox_keep_record(sandbox, record, err)
                 : err_code(err, "unknown_sandbox", "no sandbox of this number is alive");
}

int
sandbox_keep_record(struct sandbox *sandbox, struct span record, struct err *err)
{
  if (record.length > RAMET_RECORD_MAX)
    return err_field(err, "record", "is longer than %d bytes", RAMET_RECORD_MAX);
  uint8_t *copy = malloc(record.length + 1);
  if (!copy)
    return err_code(err, "internal", "no memory for a record");
  memcpy(copy, record.data ? record.data : (const uint8_t *)"", record.length);
  free(sandbox->record);
  sandbox->record = copy;
  sandbox->record_length = record.length;
  return 0;
}

void
sandbox_owner_gone(void)
{
  struct sandbox *next;

  for (struct sandbox *sandbox = all; sandbox; sandbox = next) {
    next = sandbox->next;
    /* What was never answered as started nobody knows of. */
    if (sandbox->id && (sandbox->owned || (!sandbox->started && !sandbox->is_run))) {
      dispatch(sandbox, EVENT_KILL, NULL);
      sandbox->told = true; /* nobody is left who waits for it */
    }
    started_forget(NULL);
    asked_forget(NULL);
    commands_forget_requests(sandbox->commands);
    sandbox->request = 0; /* a number of the next daemon's means another request */
  }
}

/* It is the daemon's from now on. Of its end, too, that is told as of any that it made, and must know of it by then. */
static void
let_go(struct sandbox *sandbox)
{
  cleanup_writer struct writer writer = {0};

  sandbox->lane = NULL;
  sandbox->has_session = false;
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  control_event(RAMET_LET_GO, &writer);
  control_tell_events();
}

void
sandbox_lane_gone(const struct lane *lane)
{
  struct sandbox *next;

  for (struct sandbox *sandbox = all; sandbox; sandbox = next) {
    next = sandbox->next;
    if (sandbox->lane != lane)
      continue;
    /* Until its streams are held nobody has heard of it who could have it again. */
    if (sandbox->state == SANDBOX_STANDING && !sandbox->owned && sandbox->offered_count && !sandbox->overdue) {
      let_go(sandbox);
      continue;
    }
    if (sandbox->id)
      dispatch(sandbox, EVENT_KILL, NULL);
    /* Of a run nobody else knows; of a sandbox that stands the daemon does. */
    sandbox->told = sandbox->told || !sandbox->has_session || !sandbox->started;
    sandbox->lane = NULL;
  }
}

uint64_t
sandbox_of_session(const struct lane *session)
{
  for (const struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next)
    if (sandbox->lane == session)
      return sandbox->id;
  return 0;
}

void
sandbox_claimed(struct sandbox *sandbox, struct lane *session)
{
  last_activity = loop_now();
  sandbox->lane = session;
  sandbox->has_session = session != NULL;
}

bool
sandbox_lane_busy(const struct lane *lane)
{
  for (const struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next)
    if (sandbox->lane == lane && !sandbox->told)
      return true;
  return false;
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

static void
on_prepared(struct sandbox *sandbox, struct frame *frame)
{
  struct err err = {0};
  struct plan plan;

  (void)frame;
  prepare_failures = 0;
  if (!sandbox->waiting) {
    set_state(sandbox, SANDBOX_POOLED);
    return;
  }
  set_state(sandbox, state_of_request(sandbox));
  struct frame *waiting = sandbox->waiting;
  enum plan_use use = sandbox->is_run ? PLAN_RUN : PLAN_CREATE;
  if (plan_decode(waiting->payload, use, false, waiting->fd_count, &plan, &err) < 0 ||
      hand_out(sandbox, waiting, &plan, &err) < 0) {
    sandbox_refuse(sandbox, &err);
    sandbox_end(sandbox);
    return;
  }
  drop_waiting(sandbox);
}

static void
on_failed(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  failure_read(frame, &err);
  if (err.step == RAMET_STEP_CHILD_MAKE_FDS && (err.number == EPIPE || err.number == ECONNRESET) &&
      fork_blames_child(sandbox))
    return;
  sandbox_refuse(sandbox, &err);
  sandbox_end(sandbox);
}

/* A command of a standing sandbox could not be started. */
static void
on_spawn_failed(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;
  bool wanted;

  failure_read(frame, &err);
  if (asked_failed(sandbox->id, frame->request, &err))
    return;
  if (!commands_failed(&sandbox->commands, frame->request, &wanted))
    dispatch(sandbox, EVENT_HOSTILE, NULL);
  else if (!started_failed(sandbox->id, frame->request, &err) && wanted)
    control_refuse(frame->request, &err);
}

static void tell_over(const struct sandbox *sandbox);

void
sandbox_stand(struct sandbox *sandbox)
{
  cleanup_writer struct writer writer = {0};

  sandbox->started = loop_now();
  set_state(sandbox, SANDBOX_STANDING);
  if (sandbox->origin)
    started_first_runs(sandbox->id, sandbox->forked_command, snapshot_image(sandbox->origin));
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u64(&writer, RAMET_TAG_SETUP_NS, sandbox->started - sandbox->arrived);
  put_u64(&writer, RAMET_TAG_WATCH, sandbox->watched);
  reply(sandbox, RAMET_OK, sandbox->request, &writer);
  if (sandbox->has_session)
    sandbox_tell_created(sandbox);
  if (sandbox->frozen)
    tell_over(sandbox);
}

void
sandbox_tell_created(const struct sandbox *sandbox)
{
  cleanup_writer struct writer writer = {0};

  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(&writer, RAMET_TAG_SNAPSHOT, sandbox->origin ? snapshot_number(sandbox->origin) : 0);
  put_u64(&writer, RAMET_TAG_SETUP_NS, sandbox->started - sandbox->arrived);
  put_u64(&writer, RAMET_TAG_WATCH, sandbox->watched);
  put_bytes(&writer, RAMET_TAG_RECORD, sandbox->record, sandbox->record_length);
  control_event(RAMET_CREATED, &writer);
}

static void
on_entered(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  sandbox->entered = true;
  /* A fork's status socket has closed before this too where its child is gone. */
  if (!sandbox->origin || sandbox->child_runs)
    sandbox_stand(sandbox);
}

/* Before anything of the fork runs on. */
static void
on_carried(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  if (!sandbox->origin) {
    on_hostile(sandbox, frame);
    return;
  }
  if (started_carried(sandbox, snapshot_image(sandbox->origin), frame, &err) == 0)
    return;
  sandbox_refuse(sandbox, &err);
  sandbox_end(sandbox);
}

/* A fork's process ended before it ran on: its own word on why has come over the status socket. */
static void
on_early_exit(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  if (sandbox->child_runs || sandbox->nursery < 0) {
    on_hostile(sandbox, frame);
    return;
  }
  while (sandbox->state == SANDBOX_STARTING && sandbox->status_socket >= 0 && fork_status_read(sandbox))
    continue;
  if (sandbox->state == SANDBOX_STANDING) /* its word that it runs was behind its end */
    dispatch(sandbox, EVENT_EXITED, frame);
  if (sandbox->state != SANDBOX_STARTING)
    return;
  err_code(&err, "fork_failed", "the child ended before it ran on");
  sandbox_refuse(sandbox, &err);
  sandbox_end(sandbox);
}

void
sandbox_damaged(uint64_t id)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (sandbox)
    dispatch(sandbox, EVENT_HOSTILE, NULL);
}

static void
on_spawned(struct sandbox *sandbox, struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  uint32_t number = 0, pid = 0;
  bool wanted;

  if (spawned_read(frame, &number, &pid) < 0 ||
      !commands_spawned(sandbox->commands, frame->request, number, &wanted)) {
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return;
  }
  if (started_spawned(sandbox->id, number, pid) || !wanted)
    return;
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_u32(&writer, RAMET_TAG_PID, pid);
  control_reply(RAMET_OK, frame->request, &writer);
}

/* What is known of memory: the record keeps the kills that no command was told of yet. */
static void
weigh_memory(struct sandbox *sandbox, struct exit_record *record)
{
  uint64_t kills, peak;

  if (sandbox->cgroup) {
    cgroups_read(sandbox->cgroup, &peak, &kills);
    if (!sandbox->watched)
      record->memory_peak = peak;
    record->oom_kills += kills;
  }
  kills = record->oom_kills;
  record->oom_kills = kills > sandbox->oom_kills ? kills - sandbox->oom_kills : 0;
  if (kills > sandbox->oom_kills)
    sandbox->oom_kills = kills;
  if (record->memory_peak > sandbox->memory_peak)
    sandbox->memory_peak = record->memory_peak;
}

/* It has all that its sandbox has touched, for as long as it lives. */
static void
let_twin_teach(struct sandbox *sandbox)
{
  if (sandbox->twin > 0 && sandbox->origin && snapshot_learn(sandbox->origin, sandbox->twin))
    sandbox->twin = 0;
  sandbox_lose_twin(sandbox);
}

static void
keep_usage(struct sandbox *sandbox, const struct exit_record *record)
{
  sandbox->user_ns = record->user_ns;
  sandbox->system_ns = record->system_ns;
  sandbox->peak_bytes = record->peak_bytes;
  sandbox->disk_bytes = record->disk_bytes;
  sandbox->shm_bytes = record->shm_bytes;
  sandbox->cpu_peak_ns = record->cpu_peak_ns;
}

static void
on_answered(struct sandbox *sandbox, struct frame *frame)
{
  if (!asked_answered(sandbox->id, frame))
    dispatch(sandbox, EVENT_HOSTILE, NULL);
}

/* `record` was weighed. */
static void
take_exit(struct sandbox *sandbox, const struct exit_record *record)
{
  sandbox->status = record->status;
  keep_usage(sandbox, record);
  if (record->started_ns > sandbox->arrived && record->started_ns <= loop_now())
    sandbox->started = record->started_ns;
  sandbox->reason = exit_record_reason(record);
  sandbox->limit = exit_record_limit(record);
}

static void
read_exit(struct sandbox *sandbox, struct frame *frame)
{
  struct exit_record record;

  if (exit_record_read(frame, &record) < 0) {
    sandbox->reason = RAMET_REASON_LOST;
    return;
  }
  weigh_memory(sandbox, &record);
  take_exit(sandbox, &record);
}

/* One that a client has over a session ends with the process that was forked. */
static void
on_exited(struct sandbox *sandbox, struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  struct exit_record record;

  if (exit_record_read(frame, &record) < 0 || !commands_exited(&sandbox->commands, record.number)) {
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return;
  }
  if (sandbox->has_session && record.number == sandbox->forked_command)
    let_twin_teach(sandbox);
  weigh_memory(sandbox, &record);
  if (started_exited(sandbox->id, &record))
    return;
  if (sandbox->has_session && record.number == sandbox->forked_command) {
    take_exit(sandbox, &record);
    sandbox->ended = loop_now();
    sandbox_end(sandbox);
    return;
  }
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(&writer, RAMET_TAG_REASON, (uint32_t)exit_record_reason(&record));
  exit_record_put(&record, &writer);
  control_reply(RAMET_EXITED, 0, &writer);
}

/* Init is told to kill everything, and core to kill init if it does not say soon that it has. */
static bool
ask_to_end(struct sandbox *sandbox)
{
  struct writer nothing = {0};

  if (sandbox->overdue || frame_send(sandbox->channel, RAMET_INIT_END, 0, &nothing, NULL, 0) < 0)
    return false;
  sandbox->overdue = true;
  sandbox->deadline.exact = false;
  deadline_set(&sandbox->deadline, loop_now() + OVERDUE_NS);
  return true;
}

/* No process of the guest is left: that is told, and then init goes, with the namespaces. */
static void
take_down(struct sandbox *sandbox)
{
  last_activity = sandbox->ended = loop_now();
  sandbox_lose_twin(sandbox);
  tell_ended(sandbox, false);
  drop_waiting(sandbox);
  set_state(sandbox, SANDBOX_ENDING);
  sandbox->deadline.exact = false;
  deadline_set(&sandbox->deadline, sandbox->ended + TAKE_DOWN_NS);
}

/* Init has killed and reaped everything before it told: no process of the guest is left. */
static void
on_run_exited(struct sandbox *sandbox, struct frame *frame)
{
  read_exit(sandbox, frame);
  /* One that ended in the same moment by itself has ended by itself. Who was killed for memory before is not the cause of
   * what was killed now. */
  bool by_kill = WIFSIGNALED((int)sandbox->status) && WTERMSIG((int)sandbox->status) == SIGKILL;
  if (sandbox->overdue && by_kill &&
      (sandbox->reason == RAMET_REASON_SIGNAL || sandbox->reason == RAMET_REASON_OOM))
    sandbox->reason = sandbox->cause;
  take_down(sandbox);
}

static void
on_deadline(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_because(sandbox, RAMET_REASON_TIMEOUT);
  if (!sandbox->pid) /* nothing of it is there yet, and it may be long until it comes and can be killed */
    tell_ended(sandbox, false);
}

/* Init may need longer for it than it has: it is core that ends it then, for the same cause. */
static void
end_run_because(struct sandbox *sandbox, enum ramet_reason cause)
{
  if (!sandbox->overdue)
    sandbox->cause = cause;
  sandbox->reason = sandbox->cause; /* unless init tells otherwise before it dies */
  sandbox->status = SIGKILL;
  if (!ask_to_end(sandbox))
    end_because(sandbox, sandbox->cause);
}

static void
on_run_deadline(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_run_because(sandbox, RAMET_REASON_TIMEOUT);
}

static void
on_run_idle(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (!sandbox->overdue)
    end_run_because(sandbox, RAMET_REASON_IDLE);
}

static void
on_kill(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_because(sandbox, RAMET_REASON_KILLED);
}

static void
on_kill_standing(struct sandbox *sandbox, struct frame *frame)
{
  if (sandbox->overdue)
    return;
  sandbox->reason = RAMET_REASON_KILLED;
  sandbox->status = SIGKILL;
  let_twin_teach(sandbox);
  if (!ask_to_end(sandbox))
    on_kill(sandbox, frame);
}

static void
on_deadline_standing(struct sandbox *sandbox, struct frame *frame)
{
  if (sandbox->overdue) {
    sandbox_end(sandbox);
    return;
  }
  sandbox->reason = RAMET_REASON_TIMEOUT;
  sandbox->status = SIGKILL;
  sandbox_lose_twin(sandbox);
  if (!ask_to_end(sandbox))
    on_deadline(sandbox, frame);
}

static void
tell_over(const struct sandbox *sandbox)
{
  cleanup_writer struct writer writer = {0};

  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  control_event(RAMET_OVER, &writer);
  control_hurry(); /* it stands still, and is to be kept before init ends it */
}

/* Before it stands nobody could capture it. */
static void
on_over(struct sandbox *sandbox, struct frame *frame)
{
  if (!sandbox->keep || sandbox->frozen || pid_read(frame, &sandbox->stopped_before) < 0) {
    on_hostile(sandbox, frame);
    return;
  }
  sandbox->frozen = true;
  /* It was stopped with the rest, and is no copy of what has been written since. */
  sandbox_lose_twin(sandbox);
  if (sandbox->state == SANDBOX_STANDING)
    tell_over(sandbox);
}

static void
on_idle_standing(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (sandbox->overdue)
    return;
  sandbox->reason = RAMET_REASON_IDLE;
  sandbox->status = SIGKILL;
  let_twin_teach(sandbox);
  if (!ask_to_end(sandbox))
    end_because(sandbox, RAMET_REASON_IDLE);
}

static void
on_ended(struct sandbox *sandbox, struct frame *frame)
{
  struct exit_record record;

  if (!sandbox->overdue || exit_record_read(frame, &record) < 0) {
    on_hostile(sandbox, frame);
    return;
  }
  weigh_memory(sandbox, &record);
  keep_usage(sandbox, &record);
  take_down(sandbox);
}

static void
on_hostile(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_because(sandbox, RAMET_REASON_LOST);
}

static void
on_linger(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (!sandbox->killed) {
    kill_init(sandbox);
    return;
  }
  log_text("sandbox_lingers", "a process does not die");
  started_sandbox_gone(sandbox->id, sandbox->reason, sandbox->wall_ns);
  tell_ended(sandbox, true);
}

/* What no word of init's told. With nobody else left, the kernel kills init too when its cgroup has no room. */
static bool
weigh_at_death(struct sandbox *sandbox)
{
  struct exit_record record = {0};

  weigh_memory(sandbox, &record);
  return record.oom_kills > 0;
}

static void
on_death(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (sandbox->state == SANDBOX_BORN && !sandbox->id)
    prepare_failures++;
  bool of_memory = sandbox->id && !sandbox->over && weigh_at_death(sandbox);
  if (sandbox->state != SANDBOX_ENDING && !sandbox->overdue) {
    sandbox->status = SIGKILL;
    sandbox->reason = of_memory ? RAMET_REASON_OOM : RAMET_REASON_LOST;
  }
  tell_ended(sandbox, false);
  if (sandbox->network >= 0)
    network_keep(steal_fd(&sandbox->network));
  sandbox_free(sandbox);
}

static void
ignore(struct sandbox *sandbox, struct frame *frame)
{
  (void)sandbox;
  (void)frame;
}

typedef void action(struct sandbox *sandbox, struct frame *frame);

static action *const actions[SANDBOX_STATES][EVENTS] = {
    /*                    PREPARED     ENTERED     SPAWNED     EXITED         CARRIED     ENDED       ANSWERED      IDLE              OVER        FAILED           HOSTILE     DEADLINE     KILL     DEATH */
    [SANDBOX_BORN] = {on_prepared, on_hostile, on_hostile, on_hostile, on_hostile, on_hostile, on_hostile,
                      on_hostile, on_hostile, on_failed, on_hostile, on_deadline, on_kill, on_death},
    [SANDBOX_POOLED] = {on_hostile, on_hostile, on_hostile, on_hostile, on_hostile, on_hostile, on_hostile,
                        on_hostile, on_hostile, on_hostile, on_hostile, ignore, ignore, on_death},
    [SANDBOX_STARTING] = {on_hostile, on_entered, on_hostile, on_early_exit, on_carried, on_hostile, on_hostile,
                          ignore, on_over, on_failed, on_hostile, on_deadline, on_kill, on_death},
    [SANDBOX_RUNNING] = {on_hostile, on_hostile, on_hostile, on_run_exited, on_hostile, on_hostile, on_hostile,
                         on_run_idle, on_hostile, on_failed, on_hostile, on_run_deadline, on_kill, on_death},
    [SANDBOX_STANDING] = {on_hostile, on_hostile, on_spawned, on_exited, on_hostile, on_ended, on_answered,
                          on_idle_standing, on_over, on_spawn_failed, on_hostile, on_deadline_standing,
                          on_kill_standing, on_death},
    [SANDBOX_ENDING] = {ignore, ignore, ignore, ignore, ignore, ignore, ignore, ignore, ignore, ignore, ignore,
                        on_linger, ignore, on_death},
};

static void
dispatch(struct sandbox *sandbox, enum event event, struct frame *frame)
{
  actions[sandbox->state][event](sandbox, frame);
}

/* ---- sources of events ---------------------------------------------------------------------------------------- */

static enum event
event_of(uint16_t kind)
{
  switch (kind) {
  case RAMET_INIT_PREPARED:
    return EVENT_PREPARED;
  case RAMET_INIT_ENTERED:
    return EVENT_ENTERED;
  case RAMET_INIT_SPAWNED:
    return EVENT_SPAWNED;
  case RAMET_INIT_EXITED:
    return EVENT_EXITED;
  case RAMET_INIT_CARRIED:
    return EVENT_CARRIED;
  case RAMET_INIT_ENDED:
    return EVENT_ENDED;
  case RAMET_INIT_CONNECTED:
  case RAMET_INIT_SIGNALLED:
    return EVENT_ANSWERED;
  case RAMET_INIT_IDLE:
    return EVENT_IDLE;
  case RAMET_INIT_OVER:
    return EVENT_OVER;
  case RAMET_INIT_FAILED:
    return EVENT_FAILED;
  default:
    return EVENT_HOSTILE;
  }
}

/* One frame; false when there was none. */
static bool
channel_read(struct sandbox *sandbox)
{
  struct frame frame;
  struct err err;

  switch (frame_receive(sandbox->channel, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return false;
  case FRAME_GOT:
    dispatch(sandbox, event_of(frame.kind), &frame);
    frame_release(&frame);
    return true;
  case FRAME_MALFORMED:
    log_err("init_malformed", &err);
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return true;
  case FRAME_CLOSED:
    /* Its death comes too, unless it only pretends. */
    close_channel(sandbox);
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return false;
  }
  return false;
}

void
sandbox_hear_init(struct sandbox *sandbox)
{
  while (sandbox->channel >= 0 && sandbox->state == SANDBOX_STARTING && channel_read(sandbox))
    continue;
}

static void
channel_ready(struct watch *watch, uint32_t events)
{
  (void)events;
  channel_read((struct sandbox *)(void *)watch);
}

static void
deadline_fired(struct deadline *deadline)
{
  struct sandbox *sandbox = (struct sandbox *)(void *)((char *)deadline - offsetof(struct sandbox, deadline));

  dispatch(sandbox, EVENT_DEADLINE, NULL);
}

static void
add_usage(struct sandbox *sandbox, const struct rusage *usage)
{
  if (sandbox->ended)
    return;
  sandbox->user_ns = (uint64_t)usage->ru_utime.tv_sec * 1000000000u + (uint64_t)usage->ru_utime.tv_usec * 1000u;
  sandbox->system_ns = (uint64_t)usage->ru_stime.tv_sec * 1000000000u + (uint64_t)usage->ru_stime.tv_usec * 1000u;
  sandbox->peak_bytes = (uint64_t)usage->ru_maxrss * 1024u;
}

void
sandbox_reap(void)
{
  struct rusage usage;
  int status, pid;

  while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
    if (WIFSTOPPED(status)) {
      fork_process_stopped(pid);
      continue;
    }
    if (snapshot_reaped(pid) || files_reaped(pid) || overuse_reaped(pid) || zygote_reaped(pid))
      continue;
    bool found = false;
    for (struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next)
      if (sandbox->pid == pid) {
        /* What init told before it died comes first. */
        while (sandbox->channel >= 0 && sandbox->state != SANDBOX_ENDING && channel_read(sandbox))
          continue;
        add_usage(sandbox, &usage);
        dispatch(sandbox, EVENT_DEATH, NULL);
        found = true;
        break;
      }
    if (!found)
      fork_twin_gave_up();
  }
}
