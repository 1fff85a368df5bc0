/* SPDX-License-Identifier: Apache-2.0
 * Sockets in the messages that wait in a socket, which no table has, and what waits in those. */
#ifndef RAMET_QUEUED_H
#define RAMET_QUEUED_H

#include "inodemap.h"

/* Descriptors in flight in sockets that are in flight to socket `fd` of thread `tid`. Each is counted once: `sockets` are those
 * that were. Nothing is taken out. */
uint64_t queued_below(int tid, int fd, struct inode_map *sockets);

#endif
