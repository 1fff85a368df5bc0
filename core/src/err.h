/* SPDX-License-Identifier: Apache-2.0
 * The one error convention: a function that can fail takes `struct err *` last, returns a negative value
 * when it failed and then has filled it; on success it is untouched. The first cause wins. */
#ifndef RAMET_ERR_H
#define RAMET_ERR_H

#include <ramet/protocol.h>
#include <stdbool.h>

#include "cleanup.h"

/* Exit codes of the program, as s6 gives them meaning. */
enum { EXIT_USAGE = 100, EXIT_SYSTEM = 111, EXIT_DEFECT = 125 };

struct err {
  enum ramet_step step;
  int number;       /* errno, or 0 */
  char code[32];    /* stable, for programs */
  char field[32];   /* the attribute at fault, or empty */
  char text[192];   /* for people */
};

/* All return -1 so that a caller can `return err_step(...)`. */
int err_step(struct err *err, enum ramet_step step, const char *format, ...) __attribute__((format(printf, 3, 4)));
int err_field(struct err *err, const char *field, const char *format, ...) __attribute__((format(printf, 3, 4)));
int err_code(struct err *err, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Fault injection: the step armed in this process fails with EIO when it is reached. */
void fault_arm(enum ramet_step step);
int fault_here(enum ramet_step step, struct err *err) MUST_CHECK;

#endif
