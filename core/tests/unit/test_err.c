/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "err.h"

#include "tap.h"

static void
a_failed_step_keeps_the_errno_of_its_system_call(void)
{
  struct err err;

  memset(&err, 0xff, sizeof err);
  errno = ENOSPC;
  CHECK(err_step(&err, RAMET_STEP_UPPER, "mount %s", "tmpfs") < 0);
  CHECK(err.step == RAMET_STEP_UPPER && err.number == ENOSPC);
  CHECK_TEXT(err.text, "mount tmpfs");
  CHECK_TEXT(err.code, "isolation_failed");
  CHECK_TEXT(err.field, "");
}

static void
a_bad_attribute_is_named(void)
{
  struct err err;

  memset(&err, 0xff, sizeof err);
  errno = EPERM;
  CHECK(err_field(&err, "cwd", "is %d", 1) < 0);
  CHECK(err.step == RAMET_STEP_NONE && err.number == 0);
  CHECK_TEXT(err.field, "cwd");
  CHECK_TEXT(err.code, "malformed");
  CHECK_TEXT(err.text, "is 1");
}

static void
an_error_with_a_code_has_neither_step_nor_field(void)
{
  struct err err;

  memset(&err, 0xff, sizeof err);
  CHECK(err_code(&err, "busy", "later") < 0);
  CHECK(err.step == RAMET_STEP_NONE && err.number == 0 && err.field[0] == 0);
  CHECK_TEXT(err.code, "busy");
}

static void
what_is_too_long_is_cut_and_stays_a_string(void)
{
  struct err err;
  char endless[1000];

  memset(endless, 'x', sizeof endless);
  endless[sizeof endless - 1] = 0;
  CHECK(err_field(&err, endless, "%s", endless) < 0);
  CHECK(strlen(err.field) == sizeof err.field - 1 && strlen(err.text) == sizeof err.text - 1);
  CHECK(err_code(&err, endless, "%s", endless) < 0);
  CHECK(strlen(err.code) == sizeof err.code - 1);
}

static void
only_the_armed_step_fails_and_with_eio(void)
{
  struct err err = {0};

  fault_arm(RAMET_STEP_OVERLAY);
  for (int step = RAMET_STEP_NONE; step <= RAMET_STEP_EXEC; step++) {
    int result = fault_here((enum ramet_step)step, &err);
    CHECK((result < 0) == (step == RAMET_STEP_OVERLAY));
  }
  CHECK(err.step == RAMET_STEP_OVERLAY && err.number == EIO);
  fault_arm(RAMET_STEP_NONE);
  CHECK(fault_here(RAMET_STEP_OVERLAY, &err) == 0);
}

/* NONE is no step: nothing is armed by it. */
static void
without_an_armed_step_none_fails(void)
{
  struct err err = {0};

  fault_arm(RAMET_STEP_NONE);
  for (int step = RAMET_STEP_NONE; step <= RAMET_STEP_EXEC; step++)
    CHECK(fault_here((enum ramet_step)step, &err) == 0);
  CHECK(err.text[0] == 0);
}

int
main(void)
{
  RUN(a_failed_step_keeps_the_errno_of_its_system_call);
  RUN(a_bad_attribute_is_named);
  RUN(an_error_with_a_code_has_neither_step_nor_field);
  RUN(what_is_too_long_is_cut_and_stays_a_string);
  RUN(only_the_armed_step_fails_and_with_eio);
  RUN(without_an_armed_step_none_fails);
  return tap_end();
}
