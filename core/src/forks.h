/* SPDX-License-Identifier: Apache-2.0
 * The part of a sandbox's life that only forks have: the child's word that it runs on, and the parked twin. */
#ifndef RAMET_FORKS_H
#define RAMET_FORKS_H

#include "sandbox.h"

/* The child's one message; false when there is none yet. */
bool fork_status_read(struct sandbox *sandbox);
void fork_status_ready(struct watch *watch, uint32_t events);
void fork_close_status(struct sandbox *sandbox);
/* Init noticed that the child is gone: whether the child, or its twin, has said why, and is refused for that. */
bool fork_blames_child(struct sandbox *sandbox);

/* A process that core traces has stopped: a twin, for the first time. */
void fork_process_stopped(int pid);
/* A process that nobody knows has ended: perhaps a twin that could not place its child. */
void fork_twin_gave_up(void);

#endif
