/* SPDX-License-Identifier: Apache-2.0
 * Connections to servers in a sandbox: init, which is in its network, connects and passes the descriptor. So no way
 * out of the sandbox is opened, and each fork has servers and ports of its own. */
#ifndef RAMET_PORTS_H
#define RAMET_PORTS_H

#include "wire.h"

struct lane;

/* CONNECT: answered with a connected socket, now or later. */
int ports_request(struct frame *frame, struct lane *lane, struct err *err) MUST_CHECK;
/* Init's word on one; false when it was not asked. Takes the frame's descriptor. */
bool ports_connected(uint64_t sandbox, struct frame *frame);
bool ports_failed(uint64_t sandbox, uint64_t request, const struct err *err);
void ports_sandbox_gone(uint64_t sandbox);
/* Two sandboxes change numbers: swap.h. */
void ports_swap(const uint64_t pair[2]);
/* Who asked has gone; NULL: the daemon. */
void ports_forget(const struct lane *lane);
bool ports_lane_busy(const struct lane *lane);

/* In init: a socket that is connected to `port` of the loopback, or a failure. */
int ports_connect(uint32_t port, struct err *err) MUST_CHECK;

#endif
