/* SPDX-License-Identifier: Apache-2.0
 * The daemon's side of core: the control connection, its requests, and what waits for the next daemon. */
#ifndef RAMET_CONTROL_H
#define RAMET_CONTROL_H

#include "loop.h"
#include "wire.h"

struct control_options {
  int connection;   /* the first control connection */
  int listener;     /* core.sock, or -1 */
  int runtime_dir;  /* descriptor of the directory that holds core.sock, or -1 */
  const char *build; /* what tells this program from others of its version, or NULL */
  uint64_t grace_ns;
  uint32_t pool_size;
};

int control_setup(const struct control_options *options, struct err *err) MUST_CHECK;
/* Sends, or queues until the connection takes it; without a connection, events wait for the next daemon. */
void control_reply(uint16_t kind, uint64_t request, struct writer *writer);
/* Of something that a client did past the daemon: told with others soon, and before anything that the daemon asks is
 * answered. Takes what was written. */
void control_event(uint16_t kind, struct writer *writer);
/* The daemon has something to do for those that wait: within milliseconds. */
void control_hurry(void);
/* Those that wait, now: what is told by `control_reply` next is of what they are about. */
void control_tell_events(void);
/* Of a command. The daemon hears of it when it asks for something, when somebody waits for such events, or when many have
 * come together; what a daemon that does not read misses is counted. Takes what was written. */
void control_command_event(uint16_t kind, struct writer *writer);
/* With descriptors: they cannot wait in the queue, so a connection that is full is answered with an error. */
void control_reply_fds(uint64_t request, struct writer *writer, const int *fds, int count);
void control_refuse(uint64_t request, const struct err *err);
uint32_t control_pool_size(void);
/* Removes core.sock. */
void control_close(void);

#endif
