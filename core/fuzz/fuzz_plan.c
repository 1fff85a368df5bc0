/* SPDX-License-Identifier: Apache-2.0
 * A plan decoded from any bytes. The first byte chooses the message and its origin, the second how many descriptors
 * came along. What was accepted must lie inside the payload, and be complete. */
#include "fuzz.h"
#include "plan.h"

static void
inside(struct span part, struct span whole)
{
  EXPECT(part.length == 0 || (part.data >= whole.data && part.length <= whole.length &&
                              part.data - whole.data <= (ptrdiff_t)(whole.length - part.length)));
}

static void
check_strings(struct plan *plan)
{
  struct err err = {0};

  EXPECT(plan_strings(plan, &err) == 0);
  for (uint32_t i = 0; i < plan->command.arg_count; i++)
    EXPECT(strlen(plan->command.argv[i]) <= plan->payload.length);
  EXPECT(plan->command.argv[plan->command.arg_count] == NULL);
  for (uint32_t i = 0; i < plan->command.env_count; i++)
    EXPECT(strchr(plan->command.envp[i], '=') > plan->command.envp[i]);
  EXPECT(plan->command.envp[plan->command.env_count] == NULL);
  EXPECT(!plan->command.cwd || plan->command.cwd[0] == '/');
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct plan plan;
  struct err err = {0};

  if (size < 2)
    return 0;
  enum plan_use use = (enum plan_use)(PLAN_RUN + data[0] % 3);
  int fd_count = data[1] % (RAMET_FRAME_FDS + 1);
  struct span payload = {data + 2, (uint32_t)(size - 2)};
  if (plan_decode(payload, use, data[0] & 0x80, fd_count, &plan, &err) < 0) {
    EXPECT(err.text[0] && err.code[0]);
    return 0;
  }
  EXPECT(plan.sandbox != 0);
  EXPECT(plan.rlimit_count <= RAMET_RLIMITS_MAX && plan.bind_count <= RAMET_BINDS_MAX);
  EXPECT(memchr(plan.hostname, 0, sizeof plan.hostname));
  inside(plan.record, payload);
  inside(plan.filter_program, payload);
  for (int i = 0; i < plan.bind_count; i++)
    inside(plan.targets[i], payload);
  for (int i = 0; i < STREAM_COUNT; i++)
    EXPECT(plan.command.streams[i] == RAMET_FD_NONE || plan.command.streams[i] < (uint32_t)fd_count);
  check_strings(&plan);
  plan_free(&plan);
  return 0;
}
