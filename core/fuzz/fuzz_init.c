/* SPDX-License-Identifier: Apache-2.0
 * What an init says that a guest has taken over: any frames, in any order, mixed with the daemon's requests, a kill
 * and a deadline. Core may believe or end the sandbox; it may not answer a request that it was not asked, tell an end
 * twice, or keep a descriptor. The input is steps: a byte says what, the rest of a frame follows. */
#define _GNU_SOURCE
#include "fuzz.h"

#define NEED(condition) EXPECT(condition)
#include "../tests/unit/alone.h"

#define ID 11
#define CREATE_REQUEST 500
#define SPAWN_REQUEST 600

static int far = -1;
static uint64_t last_spawn;
/* What the last daemon asked, and how much had been told until it went: nothing of that is answered to the next. */
static uint64_t last_of_previous;
static int told_to_previous;

static struct sandbox *
make(enum sandbox_state state, bool is_run)
{
  struct err err = {0};
  struct sandbox *sandbox = sandbox_alloc(&err);
  int pair[2];

  EXPECT(sandbox && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  sandbox->pid = 1 << 30; /* no process has this number, so what core sends to it goes nowhere */
  sandbox->channel = pair[0];
  far = pair[1];
  EXPECT(loop_add(sandbox->channel, &sandbox->watch, EPOLLIN) == 0);
  if (state == SANDBOX_STARTING || state == SANDBOX_RUNNING || state == SANDBOX_STANDING) {
    sandbox->id = ID;
    sandbox->request = CREATE_REQUEST;
    sandbox->is_run = is_run;
    sandbox->arrived = loop_now();
    if (state != SANDBOX_STARTING)
      sandbox->started = loop_now();
  }
  set_state(sandbox, state);
  return sandbox;
}

static void
spawn_one(uint8_t number)
{
  struct writer writer = {0};
  struct err err = {0};

  put_u64(&writer, RAMET_TAG_SANDBOX, ID);
  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_text(&writer, RAMET_TAG_ARG, "true");
  struct frame frame = {
      .kind = RAMET_SPAWN, .request = ++last_spawn, .payload = {writer.data, (uint32_t)writer.length}};
  if (sandbox_spawn(&frame, &err) < 0)
    EXPECT(err.text[0]);
  writer_free(&writer);
}

/* A frame of init's, or bytes that are none; true when there was room for it. */
static void
speak(struct sandbox *sandbox, const uint8_t *data, size_t size)
{
  if (sandbox->channel < 0 || size == 0 || send(far, data, size, MSG_NOSIGNAL) < 0)
    return;
  channel_ready(&sandbox->watch, EPOLLIN);
}

static void
speak_framed(struct sandbox *sandbox, uint8_t kind, const uint8_t *data, size_t size)
{
  uint8_t bytes[sizeof(struct ramet_frame) + 256];
  struct ramet_frame head = {.magic = RAMET_FRAME_MAGIC,
                             .version = RAMET_PROTOCOL_VERSION,
                             .kind = (uint16_t)(RAMET_INIT_PREPARED + kind % 6),
                             .length = (uint32_t)size};

  if (size) { /* the first byte says whom it answers */
    head.request = SPAWN_REQUEST + data[0] % 8u;
    head.length = (uint32_t)--size;
    data++;
  }
  memcpy(bytes, &head, sizeof head);
  memcpy(bytes + sizeof head, data, size);
  speak(sandbox, bytes, sizeof head + size);
}

static void
step(struct sandbox *sandbox, uint8_t what, const uint8_t *data, size_t size)
{
  struct err err = {0};

  switch (what % 8) {
  case 0:
    speak(sandbox, data, size);
    break;
  case 1:
    spawn_one(what >> 3);
    break;
  case 2:
    if (sandbox_kill(ID, &err) < 0)
      EXPECT(err.code[0]);
    break;
  case 3:
    deadline_fired(&sandbox->deadline);
    break;
  case 4:
    sandbox_owner_gone();
    last_of_previous = last_spawn;
    told_to_previous = told_count;
    break;
  default:
    speak_framed(sandbox, what >> 3, data, size);
  }
}

static void
check_told(const struct sandbox *sandbox)
{
  int ends = 0;

  for (int i = 0; i < told_count; i++) {
    uint64_t request = told[i].request;
    EXPECT(request == 0 || request == CREATE_REQUEST || (request > SPAWN_REQUEST && request <= last_spawn));
    EXPECT(request == 0 || i < told_to_previous || last_of_previous == 0 || request > last_of_previous);
    ends += told[i].kind == RAMET_ENDED;
    for (int j = 0; j < i && request; j++)
      EXPECT(told[j].request != request || told[j].kind != told[i].kind);
  }
  EXPECT(ends <= 1);
  EXPECT(!sandbox || sandbox->state < SANDBOX_STATES);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static bool ready;
  static const enum sandbox_state states[] = {SANDBOX_BORN, SANDBOX_POOLED, SANDBOX_STARTING, SANDBOX_RUNNING,
                                              SANDBOX_STANDING};
  struct err err = {0};

  if (size < 1)
    return 0;
  if (!ready)
    EXPECT(loop_setup(&err) == 0);
  ready = true;
  int before = dup(2);
  close(before);
  told_count = 0;
  last_spawn = SPAWN_REQUEST;
  last_of_previous = 0;
  told_to_previous = 0;
  enum sandbox_state state = states[data[0] % 5];
  struct sandbox *sandbox = make(state, state == SANDBOX_RUNNING || (data[0] & 0x80));
  sandbox->owned = data[0] & 0x40;
  for (data++, size--; size >= 2 && told_count < 48;) {
    size_t length = data[1] < size - 2 ? data[1] : size - 2;
    step(sandbox, data[0], data + 2, length);
    check_told(sandbox);
    data += 2 + length;
    size -= 2 + length;
  }
  dispatch(sandbox, EVENT_DEATH, NULL);
  check_told(NULL);
  EXPECT(sandbox_count(SANDBOX_STATES) == 0);
  close(far);
  int after = dup(2);
  EXPECT(after == before);
  close(after);
  return 0;
}
