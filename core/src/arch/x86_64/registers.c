/* SPDX-License-Identifier: Apache-2.0 */
#include "registers.h"

#include <cpuid.h>
#include <string.h>

/* include/linux/errno.h: never seen by user space, but by a tracer. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

#define RESTART_SYSCALL 219

uint64_t
arch_vdso_syscall_offset(const uint8_t *vdso, size_t length)
{
  /* Code starts behind the ELF header and its tables. */
  for (size_t i = 0x200; i + 1 < length; i++)
    if (vdso[i] == 0x0f && vdso[i + 1] == 0x05)
      return i;
  return 0;
}

arch_registers
arch_prepare_syscall(const arch_registers *base, uint64_t address, long number, const uint64_t args[6])
{
  arch_registers registers = *base;

  registers.rip = address;
  registers.rax = (uint64_t)number;
  registers.orig_rax = (uint64_t)-1; /* not inside a system call: nothing is restarted */
  registers.rdi = args[0];
  registers.rsi = args[1];
  registers.rdx = args[2];
  registers.r10 = args[3];
  registers.r8 = args[4];
  registers.r9 = args[5];
  return registers;
}

arch_registers
arch_prepare_entry(const arch_registers *base, uint64_t entry, uint64_t argument, uint64_t stack)
{
  arch_registers registers = *base;

  registers.rip = entry;
  registers.rdi = argument;
  registers.rsp = stack - 8; /* as behind a call */
  registers.rbp = 0;
  registers.orig_rax = (uint64_t)-1;
  return registers;
}

long
arch_syscall_result(const arch_registers *registers)
{
  return (long)registers->rax;
}

/* ERESTART_RESTARTBLOCK (a sleep or wait with a relative timeout): the kernel would go on with the time that is
 * left, which it keeps in the task and no interface shows. Calling again waits the whole time: longer than asked,
 * as sleeping always may, where EINTR would be an error that the program never had to expect. */
void
arch_rewind_interrupted(arch_registers *registers)
{
  long result = (long)registers->rax;

  if ((long)registers->orig_rax >= 0 && (result == -ERESTARTSYS || result == -ERESTARTNOINTR ||
                                         result == -ERESTARTNOHAND || result == -ERESTART_RESTARTBLOCK)) {
    registers->rax = registers->orig_rax;
    registers->rip -= 2;
  }
  registers->orig_rax = (uint64_t)-1;
}

bool
arch_restarted_call(const arch_registers *registers, struct arch_call *call)
{
  if ((long)registers->rax != -ERESTART_RESTARTBLOCK)
    return false;
  *call = (struct arch_call){
      registers->orig_rax, registers->rip, {registers->rdi, registers->rsi, registers->rdx, registers->r10}};
  return true;
}

void
arch_recall(arch_registers *registers, const struct arch_call *call)
{
  if (registers->orig_rax == RESTART_SYSCALL && registers->rip == call->address &&
      registers->rdi == call->arguments[0] && registers->rsi == call->arguments[1] &&
      registers->rdx == call->arguments[2] && registers->r10 == call->arguments[3])
    registers->orig_rax = call->number;
}

/* Documentation/arch/x86/xstate.rst: XFEATURE_MASK_USER_DYNAMIC */
#define FEATURE_TILE_DATA 18
#define ASKED_FEATURES ((uint64_t)1 << FEATURE_TILE_DATA)
#define LEGACY_BYTES 576 /* with the header */

/* XCR0: the features that the kernel has enabled. */
static uint64_t
enabled_features(void)
{
  uint32_t a, b, c, d;

  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
    return 0;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (uint64_t)d << 32 | a;
}

uint64_t
arch_features_to_ask(void)
{
  return enabled_features() & ASKED_FEATURES;
}

/* The standard layout of the xsave area: CPUID leaf 0xD gives size and place of each feature. */
static uint32_t
layout_bytes(uint64_t features)
{
  uint32_t end = LEGACY_BYTES;

  for (uint32_t feature = 2; feature < 63; feature++) {
    uint32_t size, offset, c, d;
    if (features >> feature & 1 && __get_cpuid_count(0xd, feature, &size, &offset, &c, &d) && offset + size > end)
      end = offset + size;
  }
  return end;
}

#define FRAME_SOFTWARE_AT 464 /* in the legacy area: sw_reserved */
#define FRAME_HEADER_AT 512   /* xsave header; its first word is XSTATE_BV */

bool
arch_holds_asked(const uint8_t *xstate, uint32_t length)
{
  uint64_t held;

  if (length < LEGACY_BYTES)
    return false;
  memcpy(&held, xstate + FRAME_HEADER_AT, sizeof held);
  return (held & ASKED_FEATURES) != 0;
}

uint32_t
arch_trim_xstate(uint8_t *xstate, uint32_t length)
{
  uint64_t features = enabled_features();

  if (!arch_holds_asked(xstate, length))
    features &= ~ASKED_FEATURES;
  uint32_t bytes = layout_bytes(features);
  memcpy(xstate + FRAME_SOFTWARE_AT, &features, sizeof features);
  return bytes < length ? bytes : length;
}

/* arch/x86/include/uapi/asm/sigcontext.h and ucontext.h, as 64-bit programs see them. */
struct frame_context {
  uint64_t flags, link;
  uint64_t stack_pointer;
  uint32_t stack_flags, stack_zero;
  uint64_t stack_size;
  uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags;
  uint16_t cs, gs, fs, ss;
  uint64_t err, trapno, oldmask, cr2, fpstate, reserved[8];
  uint64_t signal_mask;
};

struct frame_software {
  uint32_t magic1, extended_size;
  uint64_t features;
  uint32_t xstate_size, zero[7];
};

#define FRAME_XSAVE 1         /* UC_FP_XSTATE */
#define FRAME_SS 2            /* UC_SIGCONTEXT_SS */
#define FRAME_STRICT_SS 4     /* UC_STRICT_RESTORE_SS */
#define FRAME_NO_ALTSTACK 2   /* SS_DISABLE */
#define FRAME_ON_STACK 1      /* SS_ONSTACK: told by the stack pointer, refused as a flag */
#define FRAME_MAGIC1 0x46505853
#define FRAME_MAGIC2 0x46505845

static void
fill_context(struct frame_context *context, const arch_registers *r, uint64_t signal_mask,
             const struct arch_stack *stack)
{
  memset(context, 0, sizeof *context);
  context->flags = FRAME_XSAVE | FRAME_SS | FRAME_STRICT_SS;
  context->stack_pointer = stack->address;
  context->stack_size = stack->size;
  context->stack_flags = stack->size ? stack->flags & ~(uint32_t)FRAME_ON_STACK : FRAME_NO_ALTSTACK;
  context->r8 = r->r8;
  context->r9 = r->r9;
  context->r10 = r->r10;
  context->r11 = r->r11;
  context->r12 = r->r12;
  context->r13 = r->r13;
  context->r14 = r->r14;
  context->r15 = r->r15;
  context->rdi = r->rdi;
  context->rsi = r->rsi;
  context->rbp = r->rbp;
  context->rbx = r->rbx;
  context->rdx = r->rdx;
  context->rax = r->rax;
  context->rcx = r->rcx;
  context->rsp = r->rsp;
  context->rip = r->rip;
  context->eflags = r->eflags;
  context->cs = (uint16_t)r->cs;
  context->ss = (uint16_t)r->ss;
  context->signal_mask = signal_mask;
}

bool
arch_write_frame(uint8_t *at, uint64_t address, const arch_registers *registers, uint64_t signal_mask,
                 const struct arch_stack *stack, const uint8_t *xstate, uint32_t xstate_length)
{
  struct frame_context context;
  struct frame_software software = {.magic1 = FRAME_MAGIC1};
  const uint32_t magic2 = FRAME_MAGIC2;
  /* rt_sigreturn looks for the context 8 bytes above the handler's return address; xsave areas align to 64. */
  size_t area = (8 + sizeof context + 63) & ~(size_t)63;

  if (xstate_length < FRAME_HEADER_AT + 64 || area + xstate_length + sizeof magic2 > ARCH_FRAME_BYTES)
    return false;
  fill_context(&context, registers, signal_mask, stack);
  context.fpstate = address + area;
  /* What the kernel saves for a signal handler: the features that this processor state has room for. The mask lies at
   * the same place of the legacy area. */
  memcpy(&software.features, xstate + FRAME_SOFTWARE_AT, sizeof software.features);
  software.xstate_size = xstate_length;
  software.extended_size = xstate_length + (uint32_t)sizeof magic2;
  memset(at, 0, 8);
  memcpy(at + 8, &context, sizeof context);
  memcpy(at + area, xstate, xstate_length);
  memcpy(at + area + FRAME_SOFTWARE_AT, &software, sizeof software);
  memcpy(at + area + xstate_length, &magic2, sizeof magic2);
  return true;
}
