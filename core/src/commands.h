/* SPDX-License-Identifier: Apache-2.0
 * The commands of a standing sandbox, as core knows them without asking init: who asked for which, and which run.
 * What init says is checked against this list, and only the fields below are passed on. */
#ifndef RAMET_COMMANDS_H
#define RAMET_COMMANDS_H

#include "wire.h"

struct known_command;

/* Request numbers from here on are core's own (started.c), which no daemon is answered for. */
#define COMMAND_OWN_REQUESTS (1ull << 63)

int commands_add(struct known_command **list, uint64_t request, uint32_t number, struct err *err) MUST_CHECK;
/* Asked for, and its end not told: init takes both in this order. */
bool commands_known(const struct known_command *list, uint32_t number);
/* Init's word on one of them; false when there is no such command in that state. `wanted`: somebody waits for it. */
bool commands_spawned(struct known_command *list, uint64_t request, uint32_t number, bool *wanted);
bool commands_failed(struct known_command **list, uint64_t request, bool *wanted);
bool commands_exited(struct known_command **list, uint32_t number);
/* The daemon that asked is gone: its request numbers mean nothing to the next one. */
void commands_forget_requests(struct known_command *list);
/* The sandbox ends: whoever waits is refused. */
void commands_end(struct known_command **list);

/* How a command ended, as init tells it. */
struct exit_record {
  uint32_t number, status;
  uint64_t user_ns, system_ns, peak_bytes, disk_bytes;
  uint64_t started_ns; /* of RUN alone */
  uint64_t memory_peak, oom_kills;
  uint64_t shm_bytes, cpu_peak_ns;
  uint32_t reached;    /* enum ramet_reached */
  uint32_t cpu_killed; /* for the limit on processor time */
};

/* What init says when a step failed, and of a command that it started. */
void failure_read(struct frame *frame, struct err *err);
/* The number that is all that the frame says. */
int pid_read(const struct frame *frame, uint32_t *pid) MUST_CHECK;
/* A request to signal one: from the daemon, and passed on to init as it is. */
struct signal_request {
  uint64_t sandbox;
  uint32_t command, signal;
};
int signal_read(const struct frame *frame, struct signal_request *out, struct err *err) MUST_CHECK;
int spawned_read(const struct frame *frame, uint32_t *number, uint32_t *pid) MUST_CHECK;

int exit_record_read(const struct frame *frame, struct exit_record *record) MUST_CHECK;
enum ramet_reason exit_record_reason(const struct exit_record *record);
/* The limit that goes with its signal or exit code. */
enum ramet_limit exit_record_limit(const struct exit_record *record);
void exit_record_put(const struct exit_record *record, struct writer *writer);

#endif
