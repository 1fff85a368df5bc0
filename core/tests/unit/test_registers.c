/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86_64/registers.h"

#include "tap.h"

static arch_registers
in_call(long number, long result)
{
  return (arch_registers){.orig_rax = (unsigned long)number, .rax = (unsigned long)result, .rip = 0x1002, .rdi = 1};
}

static void
a_call_that_would_be_restarted_is_rewound_to_its_instruction(void)
{
  static const long restarted[] = {-512, -513, -514, -516};

  for (size_t i = 0; i < sizeof restarted / sizeof restarted[0]; i++) {
    arch_registers registers = in_call(7, restarted[i]);
    arch_rewind_interrupted(&registers);
    CHECK(registers.rax == 7 && registers.rip == 0x1000 && (long)registers.orig_rax == -1);
  }
}

static void
a_call_that_has_ended_and_code_outside_of_calls_stay_as_they_are(void)
{
  arch_registers ended = in_call(7, -4), outside = in_call(-1, -512);

  arch_rewind_interrupted(&ended);
  CHECK((long)ended.rax == -4 && ended.rip == 0x1002);
  arch_rewind_interrupted(&outside);
  CHECK((long)outside.rax == -512 && outside.rip == 0x1002);
}

static void
a_call_is_recalled_only_by_the_thread_that_is_still_in_it(void)
{
  arch_registers before = in_call(7, -516), after = in_call(219, -516), other = after;
  struct arch_call call;

  NEED(arch_restarted_call(&before, &call));
  arch_recall(&after, &call);
  CHECK(after.orig_rax == 7);
  other.rdi = 2;
  arch_recall(&other, &call);
  CHECK(other.orig_rax == 219);
  before.rax = 0;
  CHECK(!arch_restarted_call(&before, &call));
}

static void
a_system_call_is_found_in_code_and_not_where_none_is(void)
{
  uint8_t code[1024] = {0};

  CHECK(arch_vdso_syscall_offset(code, sizeof code) == 0);
  code[700] = 0x0f;
  code[701] = 0x05;
  CHECK(arch_vdso_syscall_offset(code, sizeof code) == 700);
  CHECK(arch_vdso_syscall_offset(code, 701) == 0);
}

static void
state_is_cut_to_what_a_thread_has_room_for(void)
{
  static uint8_t xstate[ARCH_XSTATE_MAX];
  uint32_t whole = sizeof xstate;

  memset(xstate, 0, sizeof xstate);
  uint32_t plain = arch_trim_xstate(xstate, whole);
  CHECK(plain >= 576 && plain < whole && !arch_holds_asked(xstate, plain));
  if (arch_features_to_ask() == 0)
    return;
  xstate[512 + 2] = 1 << 2; /* feature 18 is in use */
  CHECK(arch_holds_asked(xstate, whole));
  CHECK(arch_trim_xstate(xstate, whole) > plain);
}

static void
a_frame_needs_room_for_its_state(void)
{
  static uint8_t frame[ARCH_FRAME_BYTES], xstate[ARCH_FRAME_BYTES];
  const arch_registers registers = {.rip = 0x1000};
  const struct arch_stack none = {0, 0, 0};

  CHECK(arch_write_frame(frame, 0x10000, &registers, 0, &none, xstate, 2696));
  CHECK(!arch_write_frame(frame, 0x10000, &registers, 0, &none, xstate, 575));
  CHECK(!arch_write_frame(frame, 0x10000, &registers, 0, &none, xstate, ARCH_FRAME_BYTES));
}

int
main(void)
{
  RUN(a_call_that_would_be_restarted_is_rewound_to_its_instruction);
  RUN(a_call_that_has_ended_and_code_outside_of_calls_stay_as_they_are);
  RUN(a_call_is_recalled_only_by_the_thread_that_is_still_in_it);
  RUN(a_system_call_is_found_in_code_and_not_where_none_is);
  RUN(state_is_cut_to_what_a_thread_has_room_for);
  RUN(a_frame_needs_room_for_its_state);
  return tap_end();
}
