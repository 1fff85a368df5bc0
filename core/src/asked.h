/* SPDX-License-Identifier: Apache-2.0
 * Requests about a standing sandbox that its init answers, and nothing else: connections and signals. Each waits here,
 * under a number that is core's own, for whoever asked. */
#ifndef RAMET_ASKED_H
#define RAMET_ASKED_H

#include "wire.h"

struct lane;
struct sandbox;

/* Have init asked on behalf of `frame`, which came over `lane` (NULL: from the daemon). */
int asked_send(struct sandbox *sandbox, uint16_t kind, const struct writer *writer, const struct frame *frame,
               struct lane *lane, struct err *err) MUST_CHECK;
/* Init's word on one; false when that is no answer to what it was asked. Takes the frame's descriptors. */
bool asked_answered(uint64_t sandbox, struct frame *frame);
bool asked_failed(uint64_t sandbox, uint64_t request, const struct err *err);
void asked_sandbox_gone(uint64_t sandbox);
/* Two sandboxes change numbers: swap.h. */
void asked_swap(const uint64_t pair[2]);
/* Who asked has gone; NULL: the daemon. */
void asked_forget(const struct lane *lane);
bool asked_lane_busy(const struct lane *lane);

#endif
