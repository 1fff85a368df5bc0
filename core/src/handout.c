/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "handout.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "filters.h"
#include "limit_views.h"
#include "rootfs.h"
#include "snapshot.h"
#include "started.h"

/* What a fork's init gets behind the mounts. */
struct fork_ends {
  int status, descriptors; /* the child's */
  int nursery;             /* the twin's */
  int init;                /* init's end, over which it hands descriptors to the child */
};

/* A fork's process begins in its stem's cgroups, and is in those of its own only for what nothing else can bound or count. Its memory
 * is that of its parked twin, to which the kernel charges it (mm->owner), wherever the child is: init watches it. So it does
 * where the state is to be kept: at a cgroup's limit the kernel kills, or has processes wait where no tracer can stop
 * them, and the snapshot's own copies would be charged to who is at the limit. */
static int
bound(struct sandbox *sandbox, const struct plan *plan, struct cgroup_entrances *entrances, struct err *err)
{
  const struct cgroup_limits limits = {plan->keep ? 0 : plan->memory, plan->processes, plan->quota, plan->io_bytes};

  sandbox->keep = plan->keep != 0;
  sandbox->watched =
      plan->memory && (plan->keep || plan->snapshot || !sandbox->cgroup || !cgroups_control_memory());
  if (plan->quota && !cgroups_control_cpu())
    return err_field(err, "cpu_quota", "needs a cgroup, and there is none");
  if (plan->io_bytes && !cgroups_control_io())
    return err_field(err, "io", "needs a cgroup and a disk, and there is none");
  if (!sandbox->cgroup)
    return 0;
  if (cgroups_limit(sandbox->cgroup, &limits, &sandbox->limits, err) < 0)
    return -1;
  sandbox->limits = limits;
  sandbox_usual_limits(&limits);
  return plan->snapshot && plan_needs_cgroup(plan) ? cgroups_open_entrances(sandbox->cgroup, entrances, err) : 0;
}

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
  root_put_targets(root, mounts, &writer);
  put_u64(&writer, RAMET_TAG_WATCH, sandbox->watched ? plan->memory : 0);
  put_u64(&writer, RAMET_TAG_INHERITED, sandbox->watched && snapshot ? snapshot_inheritance(snapshot) : 0);
  memcpy(fds, mounts->fds, sizeof(int) * (size_t)count);
  if (snapshot) {
    fds[count++] = snapshot_description(snapshot);
    fds[count++] = snapshot_pages(snapshot);
    fds[count++] = ends->init;
  }
  if (frame->fd_count)
    memcpy(fds + count, frame->fds, sizeof(int) * (size_t)frame->fd_count);
  count += frame->fd_count;
  uint16_t kind = sandbox->is_run ? RAMET_INIT_RUN : RAMET_INIT_ENTER;
  if (frame_send(sandbox->channel, kind, frame->request, &writer, fds, count) < 0)
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

void
handout_note_streams(struct sandbox *sandbox, const struct command *command, const int *fds)
{
  struct stat st;

  for (int i = 0; i < STREAM_COUNT; i++)
    if (command->streams[i] != RAMET_FD_NONE && fstat(fds[command->streams[i]], &st) == 0)
      sandbox->streams[i] = (struct stream_identity){st.st_dev, st.st_ino};
}

/* The stem forks while init takes the root: the child waits for init's descriptors before it enters. */
static int
order_child(struct sandbox *sandbox, const struct plan *plan, struct fork_ends *ends,
            struct cgroup_entrances *entrances, struct err *err)
{
  struct spawn_ends spawn = {.status = steal_fd(&ends->status),
                             .descriptors = steal_fd(&ends->descriptors),
                             .nursery = steal_fd(&ends->nursery),
                             .entrances = *entrances,
                             .fault = plan->fault,
                             .plan = plan};

  entrances->count = 0;
  struct snapshot *snapshot = snapshot_find(plan->snapshot);
  int result = snapshot_spawn(snapshot, sandbox->id, sandbox->pidfd, &spawn, err);

  snapshot_region(snapshot, &sandbox->region_start, &sandbox->region_end);
  return result;
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
  return 0;
}

/* The stem copies the memory on another processor while the mounts are made here. A child whose init never gets the
 * plan loses its socket to it, and ends. */
static int
send_parts(struct sandbox *sandbox, struct frame *frame, const struct plan *plan, struct root *root,
           struct root_mounts *mounts, struct err *err)
{
  struct fork_ends ends = {-1, -1, -1, -1};
  struct cgroup_entrances entrances = {.count = 0};
  int result = bound(sandbox, plan, &entrances, err);

  if (result == 0 && !(sandbox->limit_view = limit_view_hold(plan, err)))
    result = -1;
  if (result == 0)
    result = plan->snapshot ? open_fork_ends(sandbox, &ends, err) : 0;
  if (result == 0 && plan->snapshot)
    result = order_child(sandbox, plan, &ends, &entrances, err);
  if (result == 0)
    result = root_hand_out(root, plan, mounts, err);
  if (result == 0)
    result = send_plan(sandbox, frame, root, plan, mounts, &ends, err);
  cgroups_close_entrances(&entrances);
  close_fd(&ends.status);
  close_fd(&ends.descriptors);
  close_fd(&ends.nursery);
  close_fd(&ends.init);
  return result;
}

int
hand_out(struct sandbox *sandbox, struct frame *frame, const struct plan *plan, struct err *err)
{
  struct root_mounts mounts = {.count = 0};
  struct root *root = NULL;

  if (find_origin(sandbox, plan, &root, err) < 0 || started_first(frame, plan, err) < 0)
    return -1;
  fault_arm(plan->fault);
  int result = send_parts(sandbox, frame, plan, root, &mounts, err);
  fault_arm(RAMET_STEP_NONE);
  if (result == 0 && !sandbox->is_run) {
    sandbox->root = root_hold(root);
    sandbox->origin = plan->snapshot ? snapshot_hold(snapshot_find(plan->snapshot)) : NULL;
    sandbox->upper = steal_fd(&mounts.fds[ROOT_MOUNT_UPPER]);
    sandbox->tree = steal_fd(&mounts.fds[0]);
    sandbox->forked_command = plan->command.number;
    handout_note_streams(sandbox, &plan->command, frame->fds);
  }
  root_mounts_release(&mounts);
  return result;
}
