/* SPDX-License-Identifier: Apache-2.0
 * Pool entries: init cloned into namespaces of its own, its ids mapped. */
#ifndef RAMET_ENTRY_H
#define RAMET_ENTRY_H

#include "sandbox.h"

/* Fills pid, pidfd and channel. */
int entry_clone(struct sandbox *sandbox, struct err *err) MUST_CHECK;

#endif
