/* SPDX-License-Identifier: Apache-2.0
 * Hand-out: a prepared entry gets root, limits and command, or is where a stem puts a child. */
#ifndef RAMET_HANDOUT_H
#define RAMET_HANDOUT_H

#include "sandbox.h"

int hand_out(struct sandbox *sandbox, struct frame *frame, const struct plan *plan, struct err *err) MUST_CHECK;
/* Which files the command's streams are, for snapshots. */
void handout_note_streams(struct sandbox *sandbox, const struct command *command, const int *fds);

#endif
