/* SPDX-License-Identifier: Apache-2.0
 * Seccomp programs that the daemon compiled: data to core. */
#ifndef RAMET_FILTERS_H
#define RAMET_FILTERS_H

#include "wire.h"

int filter_define(const struct frame *frame, struct err *err) MUST_CHECK;
/* length 0: not defined. */
struct span filter_find(uint32_t id);

#endif
