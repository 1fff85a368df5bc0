/* SPDX-License-Identifier: Apache-2.0
 * Pool entries: init cloned into namespaces of its own, its ids mapped. */
#ifndef RAMET_ENTRY_H
#define RAMET_ENTRY_H

#include "init.h"

/* In the process that entries come from (zygote.h). The number of the init, which is core's child and has been told to
 * prepare; out: core's end of its channel, and its pidfd. */
int entry_clone(const struct birth *birth, int out[2], struct err *err) MUST_CHECK;

#endif
