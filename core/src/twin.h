/* SPDX-License-Identifier: Apache-2.0
 * Parked twins. A twin shares its guest's memory (CLONE_VM) and nothing else: it lives in core's pid namespace, has
 * core's capabilities, and stands still under ptrace. The guest can write every byte that a twin would execute, so a
 * twin executes exactly what core puts before it, one system call at a time, only while the guest is frozen. */
#ifndef RAMET_TWIN_H
#define RAMET_TWIN_H

#include <sys/types.h>

#include "err.h"

/* It has stopped for the first time: from now on it dies with core, and core hears of what it clones. */
int twin_take(pid_t twin, struct err *err) MUST_CHECK;
/* While the guest stands still: a copy of its memory as a new process, a child of core's, traced and stopped.
 * `syscall_address`: verified by the tracer. */
int twin_fork(pid_t twin, uint64_t syscall_address, pid_t *copy, struct err *err) MUST_CHECK;
void twin_kill(pid_t process);

/* A copy becomes what `region` was built for: the region is mapped in it and written, and it runs on at `entry`. */
struct twin_region {
  uint64_t start, length, code_length, written_length, entry, argument, stack;
};
int twin_launch(pid_t copy, uint64_t syscall_address, const struct twin_region *region, struct err *err) MUST_CHECK;

#endif
