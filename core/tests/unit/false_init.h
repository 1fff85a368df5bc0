/* SPDX-License-Identifier: Apache-2.0
 * Sandboxes in any state, whose init is a process that only waits to be killed: the far end of its channel is the
 * test's, which says there what a guest could say that had taken its init over. */
#ifndef RAMET_TESTS_FALSE_INIT_H
#define RAMET_TESTS_FALSE_INIT_H

#include "tap.h"

#include <sys/syscall.h>

#include "alone.h"

#define ID 11
#define REQUEST 500

static int far = -1; /* init's end of the channel */

/* In this state, as the request that leads there leaves it. POOLED and a BORN nobody waits for have no id. */
static __attribute__((unused)) struct sandbox *
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
static __attribute__((unused)) void
reap_init(struct sandbox *sandbox)
{
  siginfo_t info;

  NEED(waitid(P_PID, (id_t)sandbox->pid, &info, WEXITED | WNOWAIT) == 0);
  sandbox_reap();
  close_fd(&far);
}

/* What was told is taken down a little later, and so is what was asked to end and says nothing. */
static __attribute__((unused)) void
die(struct sandbox *sandbox)
{
  if (!sandbox->killed && (sandbox->overdue || (sandbox->state == SANDBOX_ENDING && sandbox->told)))
    deadline_fired(&sandbox->deadline);
  reap_init(sandbox);
}

static __attribute__((unused)) void
put_down(struct sandbox *sandbox)
{
  kill(sandbox->pid, SIGKILL);
  die(sandbox);
}

static __attribute__((unused)) void
say(struct sandbox *sandbox, uint16_t kind, uint64_t request, struct writer *writer)
{
  struct writer nothing = {0};

  NEED(frame_send(far, kind, request, writer ? writer : &nothing, NULL, 0) == 0);
  if (writer)
    writer_free(writer);
  channel_ready(&sandbox->watch, EPOLLIN);
}

static __attribute__((unused)) void
say_bytes(struct sandbox *sandbox, const void *data, size_t length)
{
  NEED(send(far, data, length, MSG_NOSIGNAL) == (ssize_t)length);
  channel_ready(&sandbox->watch, EPOLLIN);
}

/* EXITED, as a sound init says it. */
static __attribute__((unused)) struct writer
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

/* The value of a tag in what was told; true when it is there. */
static __attribute__((unused)) bool
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

static __attribute__((unused)) bool
told_ended(const struct told *one, uint64_t request, enum ramet_reason reason)
{
  uint64_t value = 0;

  return one->kind == RAMET_ENDED && one->request == request && told_number(one, RAMET_TAG_SANDBOX, &value) &&
         value == ID && told_number(one, RAMET_TAG_REASON, &value) && value == (uint64_t)reason;
}

#endif
