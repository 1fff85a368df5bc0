/* SPDX-License-Identifier: Apache-2.0
 * What the fork engine must know of x86-64: registers, the system call instruction, restart codes, signal frames. */
#ifndef RAMET_ARCH_REGISTERS_H
#define RAMET_ARCH_REGISTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/user.h>

typedef struct user_regs_struct arch_registers;

/* AVX-512 with AMX tiles: 11 KiB (CPUID leaf 0xD). */
#define ARCH_XSTATE_MAX 12288
/* A signal frame with its extended state, and room for its alignment. */
#define ARCH_FRAME_BYTES 16384

/* Offset of a system call instruction in the vdso, which every process of a kernel shares; 0 when there is none. */
uint64_t arch_vdso_syscall_offset(const uint8_t *vdso, size_t length);

/* Registers with which a stopped thread executes one system call at `address`. */
arch_registers arch_prepare_syscall(const arch_registers *base, uint64_t address, long number,
                                    const uint64_t args[6]);
/* Registers of a function's first instruction. `stack` is 16-byte aligned. */
arch_registers arch_prepare_entry(const arch_registers *base, uint64_t entry, uint64_t argument, uint64_t stack);
long arch_syscall_result(const arch_registers *registers);

/* Features that a process must ask for before its threads may hold them (arch_prctl(2), ARCH_REQ_XCOMP_PERM), of those
 * that this processor and kernel have: AMX tiles. */
uint64_t arch_features_to_ask(void);
/* ptrace tells the extended state in the size of all features, but a signal frame is taken back only up to the size
 * that the thread has room for. Cuts what it has not: the length that is left. */
uint32_t arch_trim_xstate(uint8_t *xstate, uint32_t length);
/* Whether the state holds features that are asked for: the thread has to make room for them first. */
bool arch_holds_asked(const uint8_t *xstate, uint32_t length);

/* A call that the kernel goes on with from memory of its own after an interruption (ERESTART_RESTARTBLOCK). The thread
 * then executes restart_syscall(2), and which call it was only who saw it before can tell. */
struct arch_call {
  uint64_t number, address, arguments[4];
};
bool arch_restarted_call(const arch_registers *registers, struct arch_call *call);
/* Puts the number back if the thread is still in that very call. */
void arch_recall(arch_registers *registers, const struct arch_call *call);

/* A thread that was stopped inside a system call is to execute that call again when it runs on. Restart codes are
 * internal to the kernel (include/linux/errno.h); signal(7), "Interruption of system calls". */
void arch_rewind_interrupted(arch_registers *registers);

/* What sigaltstack(2) tells; size 0: none. */
struct arch_stack {
  uint64_t address, size;
  uint32_t flags;
};

/* Writes a frame that rt_sigreturn(2) takes: at `at`, which the process will see under `address`. The frame sets the
 * alternate stack too, unless the stack pointer is on it: then it must have been set before. */
bool arch_write_frame(uint8_t *at, uint64_t address, const arch_registers *registers, uint64_t signal_mask,
                      const struct arch_stack *stack, const uint8_t *xstate, uint32_t xstate_length);

#endif
