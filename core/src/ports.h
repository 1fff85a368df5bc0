/* SPDX-License-Identifier: Apache-2.0
 * Connections to servers in a sandbox: init, which is in its network, connects and passes the descriptor. So no way
 * out of the sandbox is opened, and each fork has servers and ports of its own. */
#ifndef RAMET_PORTS_H
#define RAMET_PORTS_H

#include "wire.h"

struct lane;

/* CONNECT: answered with a connected socket, now or later. */
int ports_request(struct frame *frame, struct lane *lane, struct err *err) MUST_CHECK;

/* In init: a socket that is connected to `port` of the loopback, or a failure. */
int ports_connect(uint32_t port, struct err *err) MUST_CHECK;

#endif
