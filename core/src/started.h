/* SPDX-License-Identifier: Apache-2.0
 * Commands that core keeps the streams of: START and what can be asked of them later. They belong to no connection:
 * whoever started one may go, and another may attach to it, also for a while after its end and its sandbox's. */
#ifndef RAMET_STARTED_H
#define RAMET_STARTED_H

#include "commands.h"
#include "plan.h"

struct lane;
struct sandbox;
struct capture_command;
struct image;

/* START, ATTACH, COMMANDS, INPUT, RESIZE, KILL_COMMAND, FORGET. On success it answers, now or later; `lane` NULL: to the daemon. */
bool started_takes(uint16_t kind);
int started_request(struct frame *frame, struct lane *lane, struct err *err) MUST_CHECK;

/* The first command of a sandbox, of SPAWN or of CREATE with SNAPSHOT, whose streams are its owner's: where the plan asks
 * for a log, what it writes goes through that. Puts other ends in the place of the frame's. */
int started_first(struct frame *frame, const struct plan *plan, struct err *err) MUST_CHECK;
/* One of a fork runs on. */
void started_first_runs(uint64_t sandbox, uint32_t number, const struct image *image);
/* Those of a sandbox that run and go on in its forks: `out` is the caller's to free; how many. */
int started_capture(uint64_t sandbox, struct capture_command **out, struct err *err) MUST_CHECK;
/* Init's word that one of them goes on in a fork, whose image it is in. Takes the frame's descriptors. */
int started_carried(struct sandbox *sandbox, const struct image *image, struct frame *frame,
                    struct err *err) MUST_CHECK;
/* Init's words on a command; false when it is none of these, or a first one, which the daemon is told of. */
bool started_spawned(uint64_t sandbox, uint32_t number, uint32_t pid);
bool started_failed(uint64_t sandbox, uint64_t request, const struct err *err);
bool started_exited(uint64_t sandbox, const struct exit_record *record);
/* The error for who asks something of a command that does not run: `command_ended` or `unknown_command`; -1. */
int started_missing(uint64_t sandbox, uint32_t number, struct err *err) MUST_CHECK;
/* The sandbox has ended, or its end is told. `wall_ns`: the time that it had. */
void started_sandbox_gone(uint64_t sandbox, enum ramet_reason reason, uint64_t wall_ns);
/* Two sandboxes change numbers: swap.h. Their commands go with them. */
void started_swap(const uint64_t pair[2]);
/* Who asked has gone: it is not answered, and what it started goes on. NULL: the daemon. */
void started_forget(const struct lane *lane);
bool started_lane_busy(const struct lane *lane);

#endif
