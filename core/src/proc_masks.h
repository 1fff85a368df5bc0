/* SPDX-License-Identifier: Apache-2.0
 * What of /proc a sandbox does not see. */
#ifndef RAMET_PROC_MASKS_H
#define RAMET_PROC_MASKS_H

#include "err.h"

/* Once, by core, of its own proc: no pool entry has to look for what is the same in all of them. */
int proc_masks_learn(int proc, struct err *err) MUST_CHECK;
/* Covers it in an entry's proc. */
int proc_masks_attach(int proc, struct err *err) MUST_CHECK;

#endif
