/* SPDX-License-Identifier: Apache-2.0
 * Options of internet sockets that a child's have too: on or off each, all but IMAGE_ONLY_SIX settable at any time. */
#ifndef RAMET_SOCKET_OPTIONS_H
#define RAMET_SOCKET_OPTIONS_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>

#include "image.h"

static const struct socket_option {
  int level, name;
  uint32_t flag;
} socket_options[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY, IMAGE_ONLY_SIX},  {SOL_SOCKET, SO_REUSEPORT, IMAGE_REUSES_PORT},
    {SOL_SOCKET, SO_REUSEADDR, IMAGE_REUSES},     {SOL_SOCKET, SO_KEEPALIVE, IMAGE_KEEPS_ALIVE},
    {SOL_SOCKET, SO_BROADCAST, IMAGE_BROADCASTS}, {IPPROTO_TCP, TCP_NODELAY, IMAGE_NO_DELAY},
};
#define SOCKET_OPTION_COUNT (sizeof socket_options / sizeof socket_options[0])

#endif
