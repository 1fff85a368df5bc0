/* SPDX-License-Identifier: Apache-2.0
 * What a stem or child tells core: steps that failed, and where a test wants one to; and what all parts of the restorer
 * stand on. Each part is included once, for there is one object without libc, globals and relocations. */
#ifndef RAMET_PIE_REPORT_H
#define RAMET_PIE_REPORT_H

#include "args.h"
#include "sys.h"

#include <linux/prctl.h>
#include <ramet/protocol.h>
#include <sys/socket.h>

#define MASK_ALL ((uint64_t)-1)

PIE_CODE static __attribute__((noinline)) void
pie_report(int socket, int step, long error, long value)
{
  struct pie_status status;

  status.step = step;
  status.error = (int32_t)-error;
  status.value = value;
  SYS6(SYS_sendto, socket, &status, sizeof status, MSG_NOSIGNAL, 0, 0);
}

PIE_CODE static __attribute__((noinline, noreturn)) void
pie_fail(int socket, int step, long error)
{
  pie_report(socket, step, error, 0);
  for (;;)
    SYS1(SYS_exit_group, 111);
}

/* Where a test wants a step to fail, or to be held. */
PIE_CODE static __attribute__((noinline)) int
pie_faulted(struct pie_args *args, uint32_t step)
{
  if ((args->fault & ~(uint32_t)RAMET_FAULT_HOLD) != step)
    return 0;
  if (args->fault & RAMET_FAULT_HOLD) {
    volatile uint64_t name = 0x646c6568; /* "held" */
    SYS2(SYS_prctl, PR_SET_NAME, &name);
    for (;;)
      SYS0(SYS_pause);
  }
  return 1;
}

/* What a stem does with its memory another process of the sandbox does too, and tells its child's listener. */
PIE_CODE static __attribute__((noinline, noreturn)) void
pie_fail_memory(struct pie_args *args, int step, long error)
{
  if (args->node)
    pie_fail(args->status, RAMET_STEP_CHILD_MEMORY, error);
  pie_fail(args->control, step, error);
}

PIE_INLINE void
stem_step(struct pie_args *args, uint32_t step)
{
  if (pie_faulted(args, args->node ? RAMET_STEP_CHILD_MEMORY : step))
    pie_fail_memory(args, (int)step, -5 /* EIO */);
}

PIE_INLINE void
child_step(struct pie_args *args, uint32_t step)
{
  if (pie_faulted(args, step))
    pie_fail(args->status, (int)step, -5 /* EIO */);
}

PIE_INLINE struct pie_args *
first_of(struct pie_args *args)
{
  return (struct pie_args *)args->first;
}

#endif
