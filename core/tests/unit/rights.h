/* SPDX-License-Identifier: Apache-2.0
 * Descriptors on their way. To be included behind the header that defines NEED(). */
#ifndef RAMET_TESTS_RIGHTS_H
#define RAMET_TESTS_RIGHTS_H

#include <string.h>
#include <sys/socket.h>

#define SENT_MAX 200

static void
send_copies(int socket, int descriptor, int count)
{
  char control[CMSG_SPACE(sizeof(int) * SENT_MAX)] __attribute__((aligned(8))) = {0};
  char byte = 0;
  struct iovec iov = {&byte, 1};
  struct msghdr message = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count)};
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

  *rights = (struct cmsghdr){CMSG_LEN(sizeof(int) * (size_t)count), SOL_SOCKET, SCM_RIGHTS};
  for (int i = 0; i < count; i++)
    memcpy(CMSG_DATA(rights) + (size_t)i * sizeof descriptor, &descriptor, sizeof descriptor);
  NEED(sendmsg(socket, &message, 0) == 1);
}

#endif
