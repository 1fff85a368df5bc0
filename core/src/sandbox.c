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
#include "commands.h"
#include "control.h"
#include "filters.h"
#include "init.h"
#include "log.h"
#include "rootfs.h"
#include "snapshot.h"
#include "syscalls.h"
#include "twin.h"

/* A process in uninterruptible sleep ignores SIGKILL. Its sandbox's result is told after this long all the same. */
#define LINGER_NS 5000000000u

/* Without CLONE_NEWNET: the kernel takes about 0.4 ms for a network namespace, and core would not hear of anything
 * meanwhile. Init unshares it for itself. */
#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

enum event {
  EVENT_PREPARED,
  EVENT_ENTERED,
  EVENT_SPAWNED,
  EVENT_EXITED,
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
static char uid_map[512], gid_map[512];
static bool single_uid;
static uint8_t receive_buffer[RAMET_FRAME_BYTES];

static void dispatch(struct sandbox *sandbox, enum event event, struct frame *frame);
static bool status_read(struct sandbox *sandbox);
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
close_status(struct sandbox *sandbox)
{
  if (sandbox->status_socket >= 0)
    loop_remove(sandbox->status_socket, &sandbox->status_watch);
  close_fd(&sandbox->status_socket);
}

void
sandbox_lose_twin(struct sandbox *sandbox)
{
  twin_kill(sandbox->twin);
  sandbox->twin = 0;
  close_fd(&sandbox->nursery);
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
  deadline_clear(&sandbox->deadline);
  close_channel(sandbox);
  close_fd(&sandbox->pidfd);
  close_status(sandbox);
  sandbox_lose_twin(sandbox);
  close_fd(&sandbox->upper);
  if (sandbox->root)
    root_release(sandbox->root);
  if (sandbox->origin)
    snapshot_release(sandbox->origin);
  drop_waiting(sandbox);
  commands_end(&sandbox->commands);
  free(sandbox->record);
  free(sandbox);
}

/* ---- birth ---------------------------------------------------------------------------------------------------- */

/* An id map of an entry must lie inside core's, range by range: "All of the mapping must be mapped" (user_namespaces(7)). */
static int
read_map(const char *path, char *out, size_t size, uint32_t *mapped, struct err *err)
{
  FILE *file = fopen(path, "re");
  unsigned inside, outside, count;
  size_t used = 0;

  if (!file)
    return err_step(err, RAMET_STEP_TAKE_IDS, "open %s: %s", path, strerror(errno));
  *mapped = 0;
  while (fscanf(file, "%u %u %u", &inside, &outside, &count) == 3 && used + 40 < size) {
    used += (size_t)snprintf(out + used, size - used, "%u %u %u\n", inside, inside, count);
    *mapped += count;
  }
  fclose(file);
  if (used == 0) {
    errno = EINVAL;
    return err_step(err, RAMET_STEP_TAKE_IDS, "%s is empty", path);
  }
  return 0;
}

int
sandbox_setup(struct err *err)
{
  uint32_t uids, gids;

  if (read_map("/proc/self/uid_map", uid_map, sizeof uid_map, &uids, err) < 0 ||
      read_map("/proc/self/gid_map", gid_map, sizeof gid_map, &gids, err) < 0)
    return -1;
  single_uid = uids == 1 || gids == 1;
  return 0;
}

bool
sandbox_single_uid(void)
{
  return single_uid;
}

static int
write_map(int pid, const char *name, const char *map, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
  size_t length = strlen(map);
  if (fd < 0 || write(fd, map, length) != (ssize_t)length)
    return err_step(err, RAMET_STEP_MAP_INIT, "%s: %s", name, strerror(errno));
  return 0;
}

static int
map_ids(int pid, struct err *err)
{
  if (fault_here(RAMET_STEP_MAP_INIT, err) < 0)
    return -1;
  return write_map(pid, "uid_map", uid_map, err) < 0 ? -1 : write_map(pid, "gid_map", gid_map, err);
}

static void channel_ready(struct watch *watch, uint32_t events);
static void status_ready(struct watch *watch, uint32_t events);
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
  sandbox->status_watch.ready = status_ready;
  sandbox->channel = sandbox->pidfd = sandbox->upper = sandbox->status_socket = sandbox->nursery = -1;
  sandbox->next = all;
  if (all)
    all->previous = sandbox;
  all = sandbox;
  counts[sandbox->state]++;
  counts[SANDBOX_STATES]++;
  return sandbox;
}

static int
clone_init(struct sandbox *sandbox, struct err *err)
{
  int pair[2];

  if (fault_here(RAMET_STEP_CLONE_INIT, err) < 0)
    return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "socketpair: %s", strerror(errno));
  long pid = sys_clone(NAMESPACES | CLONE_PIDFD, &sandbox->pidfd);
  if (pid == 0)
    init_main(pair[1]);
  int saved = errno;
  close(pair[1]);
  sandbox->channel = pair[0];
  errno = saved;
  if (pid < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "clone: %s", strerror(errno));
  sandbox->pid = (int)pid;
  return 0;
}

struct sandbox *
sandbox_born(enum ramet_step fault, struct err *err)
{
  struct writer nothing = {0};
  struct sandbox *sandbox = sandbox_alloc(err);

  if (!sandbox)
    return NULL;
  fault_arm(fault);
  int result = clone_init(sandbox, err);
  if (result == 0)
    result = map_ids(sandbox->pid, err);
  fault_arm(RAMET_STEP_NONE);
  if (result == 0 && (loop_add(sandbox->channel, &sandbox->watch, EPOLLIN) < 0 ||
                      frame_send(sandbox->channel, RAMET_INIT_PREPARE, 0, &nothing, NULL, 0) < 0))
    result = err_step(err, RAMET_STEP_CLONE_INIT, "speak to init: %s", strerror(errno));
  if (result == 0)
    return sandbox;
  prepare_failures++;
  if (sandbox->pid > 0) {
    sandbox->told = true;
    set_state(sandbox, SANDBOX_ENDING);
    sys_pidfd_send_signal(sandbox->pidfd, SIGKILL);
  } else {
    sandbox_free(sandbox);
  }
  return NULL;
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

static void
tell_ended(struct sandbox *sandbox, bool lingering)
{
  cleanup_writer struct writer writer = {0};

  if (sandbox->told || sandbox->id == 0)
    return;
  sandbox->told = true;
  ended_count++;
  uint64_t ended = sandbox->ended ? sandbox->ended : loop_now();
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(&writer, RAMET_TAG_REASON, (uint32_t)sandbox->reason);
  put_u32(&writer, RAMET_TAG_STATUS, sandbox->status);
  put_u64(&writer, RAMET_TAG_USER_NS, sandbox->user_ns);
  put_u64(&writer, RAMET_TAG_SYSTEM_NS, sandbox->system_ns);
  put_u64(&writer, RAMET_TAG_PEAK_BYTES, sandbox->peak_bytes);
  put_u64(&writer, RAMET_TAG_DISK_PEAK, sandbox->disk_bytes);
  put_u64(&writer, RAMET_TAG_ELAPSED_NS, ended - sandbox->arrived);
  put_u64(&writer, RAMET_TAG_SETUP_NS, sandbox->started ? sandbox->started - sandbox->arrived : 0);
  put_u32(&writer, RAMET_TAG_LINGERING, lingering);
  /* A CREATE that ended before it stood is answered by this. */
  control_reply(RAMET_ENDED, sandbox->is_run || !sandbox->started ? sandbox->request : 0, &writer);
}

static void
tell_refused(struct sandbox *sandbox, const struct err *err)
{
  if (sandbox->told || sandbox->id == 0) {
    log_err("entry_failed", err);
    return;
  }
  sandbox->told = true;
  control_refuse(sandbox->request, err);
}

static void
end(struct sandbox *sandbox)
{
  sandbox_lose_twin(sandbox);
  if (sandbox->state == SANDBOX_BORN && !sandbox->id)
    prepare_failures++;
  drop_waiting(sandbox);
  set_state(sandbox, SANDBOX_ENDING);
  sys_pidfd_send_signal(sandbox->pidfd, SIGKILL);
  deadline_set(&sandbox->deadline, loop_now() + LINGER_NS);
}

static void
end_because(struct sandbox *sandbox, enum ramet_reason reason)
{
  sandbox->reason = reason;
  sandbox->status = SIGKILL;
  end(sandbox);
}

/* ---- hand-out ------------------------------------------------------------------------------------------------- */

/* What a fork's init gets behind the mounts. */
struct fork_ends {
  int status, descriptors; /* the child's */
  int nursery;             /* the twin's */
  int init;                /* init's end, over which it hands descriptors to the child */
};

static int
send_plan(struct sandbox *sandbox, struct frame *frame, const struct root *root, const struct plan *plan,
          const struct root_mounts *mounts, const struct fork_ends *ends, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  int fds[RAMET_FRAME_FDS], count = mounts->count;
  struct span filter = filter_find(sandbox->filter);
  struct snapshot *snapshot = plan->snapshot ? snapshot_find(plan->snapshot) : NULL;

  if (fault_here(RAMET_STEP_SEND_PLAN, err) < 0)
    return -1;
  if (count + frame->fd_count + 3 > RAMET_FRAME_FDS)
    return err_field(err, "fds", "%d mounts and %d descriptors are too many", count, frame->fd_count);
  put_raw(&writer, frame->payload);
  put_bytes(&writer, RAMET_TAG_BYTES, filter.data, filter.length);
  root_put_targets(root, &writer);
  memcpy(fds, mounts->fds, sizeof(int) * (size_t)count);
  if (snapshot) {
    fds[count++] = snapshot_description(snapshot);
    fds[count++] = snapshot_pages(snapshot);
    fds[count++] = ends->init;
  }
  if (frame->fd_count)
    memcpy(fds + count, frame->fds, sizeof(int) * (size_t)frame->fd_count);
  uint16_t kind = sandbox->is_run ? RAMET_INIT_RUN : RAMET_INIT_ENTER;
  if (frame_send(sandbox->channel, kind, frame->request, &writer, fds, count + frame->fd_count) < 0)
    return err_step(err, RAMET_STEP_SEND_PLAN, "send the plan: %s", strerror(errno));
  return 0;
}

static int
open_fork_ends(struct sandbox *sandbox, struct fork_ends *ends, struct err *err)
{
  int status[2], descriptors[2], nursery[2];

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) < 0)
    return err_step(err, RAMET_STEP_SEND_PLAN, "socketpair: %s", strerror(errno));
  sandbox->status_socket = status[0];
  ends->status = status[1];
  if (loop_add(sandbox->status_socket, &sandbox->status_watch, EPOLLIN) < 0 ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, descriptors) < 0)
    return err_step(err, RAMET_STEP_SEND_PLAN, "socketpair: %s", strerror(errno));
  ends->init = descriptors[0];
  ends->descriptors = descriptors[1];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, nursery) < 0)
    return err_step(err, RAMET_STEP_SEND_PLAN, "socketpair: %s", strerror(errno));
  sandbox->nursery = nursery[0];
  ends->nursery = nursery[1];
  return 0;
}

static void
note_streams(struct sandbox *sandbox, const struct command *command, const int *fds)
{
  struct stat st;

  for (int i = 0; i < STREAM_COUNT; i++)
    if (command->streams[i] != RAMET_FD_NONE && fstat(fds[command->streams[i]], &st) == 0)
      sandbox->streams[i] = (struct stream_identity){st.st_dev, st.st_ino};
}

/* The stem forks while init takes the root: the child waits for init's descriptors before it enters. */
static int
order_child(struct sandbox *sandbox, const struct plan *plan, struct fork_ends *ends, struct err *err)
{
  struct spawn_ends spawn = {.status = steal_fd(&ends->status),
                             .descriptors = steal_fd(&ends->descriptors),
                             .nursery = steal_fd(&ends->nursery)};

  return snapshot_spawn(snapshot_find(plan->snapshot), sandbox->id, sandbox->pidfd, &spawn, err);
}

static int
find_origin(struct sandbox *sandbox, const struct plan *plan, struct root **root, struct err *err)
{
  struct snapshot *snapshot = plan->snapshot ? snapshot_find(plan->snapshot) : NULL;

  if (plan->snapshot && !snapshot)
    return err_code(err, "unknown_snapshot", "snapshot %u is not there", plan->snapshot);
  *root = snapshot ? snapshot_root(snapshot) : root_find(plan->root);
  sandbox->filter = snapshot ? snapshot_filter(snapshot) : plan->filter;
  if (!*root)
    return err_code(err, "unknown_root", "root %u is not defined", plan->root);
  if (filter_find(sandbox->filter).length == 0)
    return err_code(err, "unknown_filter", "filter %u is not defined", sandbox->filter);
  if (snapshot)
    snapshot_region(snapshot, &sandbox->region_start, &sandbox->region_end);
  return 0;
}

static int
send_parts(struct sandbox *sandbox, struct frame *frame, const struct plan *plan, struct root *root,
           struct root_mounts *mounts, struct err *err)
{
  struct fork_ends ends = {-1, -1, -1, -1};
  int result = plan->snapshot ? open_fork_ends(sandbox, &ends, err) : 0;

  if (result == 0)
    result = send_plan(sandbox, frame, root, plan, mounts, &ends, err);
  if (result == 0 && plan->snapshot)
    result = order_child(sandbox, plan, &ends, err);
  close_fd(&ends.status);
  close_fd(&ends.descriptors);
  close_fd(&ends.nursery);
  close_fd(&ends.init);
  return result;
}

static int
hand_out(struct sandbox *sandbox, struct frame *frame, const struct plan *plan, struct err *err)
{
  struct root_mounts mounts = {.count = 0};
  struct root *root = NULL;

  if (find_origin(sandbox, plan, &root, err) < 0)
    return -1;
  fault_arm(plan->fault);
  int result = root_hand_out(root, plan, &mounts, err);
  if (result == 0)
    result = send_parts(sandbox, frame, plan, root, &mounts, err);
  fault_arm(RAMET_STEP_NONE);
  if (result == 0 && !sandbox->is_run) {
    sandbox->root = root_hold(root);
    sandbox->origin = plan->snapshot ? snapshot_hold(snapshot_find(plan->snapshot)) : NULL;
    sandbox->upper = steal_fd(&mounts.fds[ROOT_MOUNT_UPPER]);
    sandbox->forked_command = plan->command.number;
    note_streams(sandbox, &plan->command, frame->fds);
  }
  root_mounts_release(&mounts);
  return result;
}

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
claim(struct sandbox *sandbox, const struct frame *frame, const struct plan *plan, struct err *err)
{
  sandbox->record = malloc(plan->record.length + 1);
  if (!sandbox->record)
    return err_code(err, "internal", "no memory for a record");
  memcpy(sandbox->record, plan->record.data ? plan->record.data : (const uint8_t *)"", plan->record.length);
  sandbox->record_length = plan->record.length;
  sandbox->id = plan->sandbox;
  sandbox->request = frame->request;
  sandbox->is_run = frame->kind == RAMET_RUN;
  sandbox->owned = plan->owned;
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

int
sandbox_start(struct frame *frame, struct err *err)
{
  struct plan plan;
  enum plan_use use = frame->kind == RAMET_RUN ? PLAN_RUN : PLAN_CREATE;

  if (plan_decode(frame->payload, use, false, frame->fd_count, &plan, err) < 0)
    return -1;
  if (sandbox_find(plan.sandbox))
    return err_field(err, "sandbox", "this number is taken");
  prepare_failures = 0;
  /* A fault is armed before birth, so it needs an entry of its own. */
  struct sandbox *sandbox = plan.fault ? NULL : take_entry();
  if (!sandbox)
    sandbox = sandbox_born(plan.fault, err);
  if (!sandbox)
    return -1;
  int result = claim(sandbox, frame, &plan, err);
  if (result == 0 && sandbox->state == SANDBOX_BORN) {
    result = wait_for_prepared(sandbox, frame, err);
  } else if (result == 0) {
    set_state(sandbox, SANDBOX_STARTING);
    result = hand_out(sandbox, frame, &plan, err);
  }
  if (result < 0) {
    sandbox->told = true;
    end(sandbox);
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
  if (commands_add(&sandbox->commands, frame->request, plan.command.number, err) < 0)
    return -1;
  note_streams(sandbox, &plan.command, frame->fds);
  put_raw(&writer, frame->payload);
  if (frame_send(sandbox->channel, RAMET_INIT_SPAWN, frame->request, &writer, frame->fds, frame->fd_count) < 0) {
    commands_failed(&sandbox->commands, frame->request);
    return err_code(err, "busy", "init does not take the command: %s", strerror(errno));
  }
  return 0;
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

  if (!sandbox)
    return err_code(err, "unknown_sandbox", "no sandbox of this number is alive");
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
    if (sandbox->id && (sandbox->owned || !sandbox->started)) {
      dispatch(sandbox, EVENT_KILL, NULL);
      sandbox->told = true; /* nobody is left who waits for it */
    }
    commands_forget_requests(sandbox->commands);
    sandbox->request = 0; /* a number of the next daemon's means another request */
  }
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
  set_state(sandbox, SANDBOX_STARTING);
  struct frame *waiting = sandbox->waiting;
  enum plan_use use = sandbox->is_run ? PLAN_RUN : PLAN_CREATE;
  if (plan_decode(waiting->payload, use, false, waiting->fd_count, &plan, &err) < 0 ||
      hand_out(sandbox, waiting, &plan, &err) < 0) {
    tell_refused(sandbox, &err);
    end(sandbox);
    return;
  }
  drop_waiting(sandbox);
}

static void
read_failure(struct frame *frame, struct err *err)
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

static void
on_failed(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  read_failure(frame, &err);
  tell_refused(sandbox, &err);
  end(sandbox);
}

/* A command of a standing sandbox could not be started. */
static void
on_spawn_failed(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  read_failure(frame, &err);
  if (!commands_failed(&sandbox->commands, frame->request))
    dispatch(sandbox, EVENT_HOSTILE, NULL);
  else if (frame->request)
    control_refuse(frame->request, &err);
}

static void
on_run_spawned(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (!sandbox->is_run) {
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return;
  }
  sandbox->started = loop_now();
  set_state(sandbox, SANDBOX_RUNNING);
}

static void
stand(struct sandbox *sandbox)
{
  cleanup_writer struct writer writer = {0};

  sandbox->started = loop_now();
  set_state(sandbox, SANDBOX_STANDING);
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u64(&writer, RAMET_TAG_SETUP_NS, sandbox->started - sandbox->arrived);
  control_reply(RAMET_OK, sandbox->request, &writer);
}

static void
on_entered(struct sandbox *sandbox, struct frame *frame)
{
  if (sandbox->is_run) {
    on_hostile(sandbox, frame);
    return;
  }
  sandbox->entered = true;
  if (sandbox->status_socket < 0 || sandbox->child_runs)
    stand(sandbox);
}

/* A fork's process ended before it ran on: its own word on why has come over the status socket. */
static void
on_early_exit(struct sandbox *sandbox, struct frame *frame)
{
  struct err err;

  if (sandbox->is_run || sandbox->status_socket < 0) {
    on_hostile(sandbox, frame);
    return;
  }
  while (sandbox->state == SANDBOX_STARTING && sandbox->status_socket >= 0 && status_read(sandbox))
    continue;
  if (sandbox->state != SANDBOX_STARTING)
    return;
  err_code(&err, "fork_failed", "the child ended before it ran on");
  tell_refused(sandbox, &err);
  end(sandbox);
}

static void
refuse_child(struct sandbox *sandbox, int step, int error)
{
  struct err err;

  errno = error;
  err_step(&err, (enum ramet_step)step, "%s", strerror(error));
  tell_refused(sandbox, &err);
  end(sandbox);
}

/* The child's one message; false when there is none yet. */
static bool
status_read(struct sandbox *sandbox)
{
  struct pie_status status;
  ssize_t got = recv(sandbox->status_socket, &status, sizeof status, MSG_DONTWAIT);
  struct err ignored;

  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  close_status(sandbox);
  if (sandbox->state != SANDBOX_STARTING)
    return true;
  if (got != sizeof status) {
    refuse_child(sandbox, RAMET_STEP_CHILD_STATE, ECHILD);
    return true;
  }
  if (status.step != 0) {
    refuse_child(sandbox, status.step, status.error);
    return true;
  }
  sandbox->child_runs = true;
  if (commands_add(&sandbox->commands, 0, sandbox->forked_command, &ignored) == 0)
    commands_spawned(sandbox->commands, 0, sandbox->forked_command);
  if (sandbox->entered)
    stand(sandbox);
  return true;
}

static void
status_ready(struct watch *watch, uint32_t events)
{
  (void)events;
  status_read((struct sandbox *)(void *)((char *)watch - offsetof(struct sandbox, status_watch)));
}

void
sandbox_fork_failed(uint64_t id, int step, int error)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (sandbox && sandbox->state == SANDBOX_STARTING)
    refuse_child(sandbox, step, error);
}

void
sandbox_damaged(uint64_t id)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (sandbox)
    dispatch(sandbox, EVENT_HOSTILE, NULL);
}

static int
read_spawned(const struct frame *frame, uint32_t *number, uint32_t *pid)
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

static void
on_spawned(struct sandbox *sandbox, struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  uint32_t number = 0, pid = 0;

  if (read_spawned(frame, &number, &pid) < 0 || !commands_spawned(sandbox->commands, frame->request, number)) {
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return;
  }
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_u32(&writer, RAMET_TAG_PID, pid);
  control_reply(RAMET_OK, frame->request, &writer);
}

static void
on_exited(struct sandbox *sandbox, struct frame *frame)
{
  cleanup_writer struct writer writer = {0};
  struct exit_record record;

  if (exit_record_read(frame, &record) < 0 || !commands_exited(&sandbox->commands, record.number)) {
    dispatch(sandbox, EVENT_HOSTILE, NULL);
    return;
  }
  put_u64(&writer, RAMET_TAG_SANDBOX, sandbox->id);
  exit_record_put(&record, &writer);
  control_reply(RAMET_EXITED, 0, &writer);
}

static void
read_exit(struct sandbox *sandbox, struct frame *frame)
{
  struct exit_record record;

  if (exit_record_read(frame, &record) < 0) {
    sandbox->reason = RAMET_REASON_LOST;
    return;
  }
  sandbox->status = record.status;
  sandbox->user_ns = record.user_ns;
  sandbox->system_ns = record.system_ns;
  sandbox->peak_bytes = record.peak_bytes;
  sandbox->disk_bytes = record.disk_bytes;
  sandbox->reason = WIFSIGNALED((int)record.status) ? RAMET_REASON_SIGNAL : RAMET_REASON_EXIT;
}

/* Init has killed and reaped everything before it told: no process of the guest is left. */
static void
on_run_exited(struct sandbox *sandbox, struct frame *frame)
{
  read_exit(sandbox, frame);
  last_activity = sandbox->ended = loop_now();
  tell_ended(sandbox, false);
  end(sandbox);
}

static void
on_deadline(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_because(sandbox, RAMET_REASON_TIMEOUT);
}

static void
on_kill(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  end_because(sandbox, RAMET_REASON_KILLED);
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
  log_text("sandbox_lingers", "a process does not die");
  tell_ended(sandbox, true);
}

static void
on_death(struct sandbox *sandbox, struct frame *frame)
{
  (void)frame;
  if (sandbox->state == SANDBOX_BORN && !sandbox->id)
    prepare_failures++;
  if (sandbox->state != SANDBOX_ENDING)
    sandbox->reason = RAMET_REASON_LOST;
  tell_ended(sandbox, false);
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
    /*                    PREPARED     ENTERED     SPAWNED         EXITED         FAILED           HOSTILE     DEADLINE     KILL     DEATH */
    [SANDBOX_BORN] = {on_prepared, on_hostile, on_hostile, on_hostile, on_failed, on_hostile, on_deadline, on_kill,
                      on_death},
    [SANDBOX_POOLED] = {on_hostile, on_hostile, on_hostile, on_hostile, on_hostile, on_hostile, ignore, ignore,
                        on_death},
    [SANDBOX_STARTING] = {on_hostile, on_entered, on_run_spawned, on_early_exit, on_failed, on_hostile, on_deadline,
                          on_kill, on_death},
    [SANDBOX_RUNNING] = {on_hostile, on_hostile, on_hostile, on_run_exited, on_hostile, on_hostile, on_deadline,
                         on_kill, on_death},
    [SANDBOX_STANDING] = {on_hostile, on_hostile, on_spawned, on_exited, on_spawn_failed, on_hostile, on_deadline,
                          on_kill, on_death},
    [SANDBOX_ENDING] = {ignore, ignore, ignore, ignore, ignore, ignore, on_linger, ignore, on_death},
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

/* A twin that could not place its child says why, and exits. */
static void
twin_gave_up(void)
{
  struct sandbox *next;
  struct pie_status word;

  for (struct sandbox *sandbox = all; sandbox; sandbox = next) {
    next = sandbox->next;
    if (sandbox->nursery >= 0 && !sandbox->twin && sandbox->state == SANDBOX_STARTING &&
        recv(sandbox->nursery, &word, sizeof word, MSG_DONTWAIT | MSG_PEEK) == sizeof word && word.step != 0)
      refuse_child(sandbox, word.step, word.error);
  }
}

/* A twin says its number over the nursery, then stops; its child waits for this. */
static bool
claims_twin(struct sandbox *sandbox, int pid)
{
  struct pie_status word;

  if (sandbox->nursery < 0 || sandbox->twin || sandbox->state != SANDBOX_STARTING ||
      recv(sandbox->nursery, &word, sizeof word, MSG_DONTWAIT | MSG_PEEK) != sizeof word || word.value != pid)
    return false;
  return recv(sandbox->nursery, &word, sizeof word, MSG_DONTWAIT) == sizeof word;
}

static void
process_stopped(int pid)
{
  struct err err;

  for (struct sandbox *sandbox = all; sandbox; sandbox = sandbox->next) {
    if (!claims_twin(sandbox, pid))
      continue;
    sandbox->twin = pid;
    if (twin_take(pid, &err) < 0 || send(sandbox->status_socket, "G", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
      refuse_child(sandbox, RAMET_STEP_PARKED_TWIN, errno);
    return;
  }
  /* Nobody's: its sandbox has ended. */
  twin_kill(pid);
}

void
sandbox_reap(void)
{
  struct rusage usage;
  int status, pid;

  while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
    if (WIFSTOPPED(status)) {
      process_stopped(pid);
      continue;
    }
    if (snapshot_reaped(pid))
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
      twin_gave_up();
  }
}
