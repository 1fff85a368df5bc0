/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "forks.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "../pie/args.h"
#include "twin.h"

void
fork_close_status(struct sandbox *sandbox)
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
refuse_child(struct sandbox *sandbox, int step, int error)
{
  struct err err;

  errno = error;
  err_step(&err, (enum ramet_step)step, "%s", strerror(error));
  sandbox_refuse(sandbox, &err);
  sandbox_end(sandbox);
}

/* Of a child that failed there are up to three words: the twin's that could not place it, its own, init's. Who is the
 * cause has always spoken before the others can notice: by a closed socket, a missing process. */

/* A namespace that is gone is no cause: its init has failed, and has said why. */
static bool
blames_init(struct sandbox *sandbox, int step, int error)
{
  if ((step == RAMET_STEP_CHILD_PIDNS && (error == EPERM || error == ESRCH)) ||
      (step == RAMET_STEP_CHILD_CLONE && error == ENOMEM))
    sandbox_hear_init(sandbox);
  return sandbox->state != SANDBOX_STARTING;
}

/* A twin that could not place its child says why, and exits. For one that could not be forked the stem does. */
static bool
refused_by_twin(struct sandbox *sandbox)
{
  struct pie_status word;

  if (sandbox->nursery < 0 || sandbox->twin || sandbox->state != SANDBOX_STARTING ||
      recv(sandbox->nursery, &word, sizeof word, MSG_DONTWAIT | MSG_PEEK) != sizeof word || word.step == 0)
    return false;
  if (!blames_init(sandbox, word.step, word.error))
    refuse_child(sandbox, word.step, word.error);
  return true;
}

static ssize_t
receive_status(struct sandbox *sandbox, struct pie_status *status)
{
  ssize_t got = recv(sandbox->status_socket, status, sizeof *status, MSG_DONTWAIT);

  /* It left something unread. That is told first, and once; its word is still there. */
  if (got < 0 && errno == ECONNRESET)
    got = recv(sandbox->status_socket, status, sizeof *status, MSG_DONTWAIT);
  return got;
}

bool
fork_blames_child(struct sandbox *sandbox)
{
  struct pie_status status;

  if (sandbox->status_socket < 0)
    return false;
  if (refused_by_twin(sandbox))
    return true;
  if (receive_status(sandbox, &status) != sizeof status || status.step == 0)
    return false;
  refuse_child(sandbox, status.step, status.error);
  return true;
}

static void
child_is_gone(struct sandbox *sandbox)
{
  if (refused_by_twin(sandbox))
    return;
  sandbox_hear_init(sandbox);
  if (sandbox->state == SANDBOX_STARTING)
    refuse_child(sandbox, RAMET_STEP_CHILD_STATE, ECHILD);
}

bool
fork_status_read(struct sandbox *sandbox)
{
  struct pie_status status;
  ssize_t got = receive_status(sandbox, &status);
  struct err ignored;
  bool wanted;

  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  fork_close_status(sandbox);
  if (sandbox->state != SANDBOX_STARTING)
    return true;
  if (got != sizeof status) {
    child_is_gone(sandbox);
    return true;
  }
  /* Init has failed, and is about to say why. */
  if (status.step == RAMET_STEP_CHILD_MAKE_FDS && status.error == ECONNRESET)
    return true;
  if (status.step != 0) {
    refuse_child(sandbox, status.step, status.error);
    return true;
  }
  sandbox->child_runs = true;
  if (commands_add(&sandbox->commands, 0, sandbox->forked_command, &ignored) == 0)
    commands_spawned(sandbox->commands, 0, sandbox->forked_command, &wanted);
  if (sandbox->entered)
    sandbox_stand(sandbox);
  return true;
}

void
fork_status_ready(struct watch *watch, uint32_t events)
{
  (void)events;
  fork_status_read((struct sandbox *)(void *)((char *)watch - offsetof(struct sandbox, status_watch)));
}

void
sandbox_fork_failed(uint64_t id, int step, int error)
{
  struct sandbox *sandbox = sandbox_find(id);

  if (sandbox && sandbox->state == SANDBOX_STARTING && !blames_init(sandbox, step, error))
    refuse_child(sandbox, step, error);
}

void
fork_twin_gave_up(void)
{
  struct sandbox *next;

  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = next) {
    next = sandbox_next(sandbox);
    refused_by_twin(sandbox);
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

void
fork_process_stopped(int pid)
{
  struct err err;

  for (struct sandbox *sandbox = sandbox_next(NULL); sandbox; sandbox = sandbox_next(sandbox)) {
    if (!claims_twin(sandbox, pid))
      continue;
    sandbox->twin = pid;
    if (twin_take(pid, &err) < 0)
      refuse_child(sandbox, RAMET_STEP_PARKED_TWIN, err.number);
    /* A child that has ended already said why. */
    else if (send(sandbox->status_socket, "G", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && !fork_status_read(sandbox))
      refuse_child(sandbox, RAMET_STEP_PARKED_TWIN, errno);
    return;
  }
  /* Nobody's: its sandbox has ended. */
  twin_kill(pid);
}
