/* SPDX-License-Identifier: Apache-2.0 */
#include "err.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

static enum ramet_step fault_armed = RAMET_STEP_NONE;

static void
err_fill(struct err *err, const char *code, const char *format, va_list args)
{
  snprintf(err->code, sizeof err->code, "%s", code);
  vsnprintf(err->text, sizeof err->text, format, args);
}

int
err_step(struct err *err, enum ramet_step step, const char *format, ...)
{
  int number = errno;
  va_list args;

  memset(err, 0, sizeof *err);
  err->step = step;
  err->number = number;
  va_start(args, format);
  err_fill(err, "isolation_failed", format, args);
  va_end(args);
  return -1;
}

int
err_field(struct err *err, const char *field, const char *format, ...)
{
  va_list args;

  memset(err, 0, sizeof *err);
  snprintf(err->field, sizeof err->field, "%s", field);
  va_start(args, format);
  err_fill(err, "malformed", format, args);
  va_end(args);
  return -1;
}

int
err_code(struct err *err, const char *code, const char *format, ...)
{
  va_list args;

  memset(err, 0, sizeof *err);
  va_start(args, format);
  err_fill(err, code, format, args);
  va_end(args);
  return -1;
}

void
fault_arm(enum ramet_step step)
{
  fault_armed = step;
}

static volatile sig_atomic_t continued;

static void
on_continue(int number)
{
  continued = number;
}

/* Until it is killed, or goes on by SIGCONT as if nothing had been. */
static void
hold(void)
{
  sigset_t set;

  sigemptyset(&set);
  sigaddset(&set, SIGCONT);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
  signal(SIGCONT, on_continue);
  prctl(PR_SET_NAME, "held");
  while (!continued)
    poll(NULL, 0, 10);
  continued = 0;
}

int
fault_here(enum ramet_step step, struct err *err)
{
  if ((fault_armed & ~RAMET_FAULT_HOLD) != step || step == RAMET_STEP_NONE)
    return 0;
  if (fault_armed & RAMET_FAULT_HOLD) {
    hold();
    return 0;
  }
  errno = EIO;
  return err_step(err, step, "fault injected");
}
