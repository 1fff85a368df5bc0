/* SPDX-License-Identifier: Apache-2.0
 * Sandboxes from birth in the pool to the end, as a table of state and event. */
#ifndef RAMET_SANDBOX_H
#define RAMET_SANDBOX_H

#include <sys/resource.h>

#include "cgroups.h"
#include "commands.h"
#include "loop.h"
#include "plan.h"

enum sandbox_state {
  SANDBOX_BORN,     /* ordered, or init prepares; a request may wait for it */
  SANDBOX_POOLED,   /* ready, nobody's */
  SANDBOX_STARTING, /* CREATE: the plan is with init */
  SANDBOX_RUNNING,  /* RUN: the plan is with init, which tells its end */
  SANDBOX_STANDING, /* CREATE: it stands and takes commands */
  SANDBOX_ENDING,   /* told to end, or its result is told: init's death is awaited */
  SANDBOX_STATES,
};

struct lane;

struct sandbox {
  struct watch watch;       /* on the channel; first */
  struct sandbox *next, *previous;
  enum sandbox_state state;
  uint64_t birth; /* the number of the order that its init comes from; 0: it waits to be ordered */
  enum ramet_step birth_fault;
  bool ordered_again;
  int pid; /* 0: there is no init yet */
  int pidfd;
  int channel;
  uint64_t id;              /* 0 while nobody's */
  uint64_t request;         /* of RUN or CREATE */
  struct lane *lane;        /* that it came over; NULL: the control connection */
  bool is_run, owned, told, killed, overdue; /* overdue: init was told to end it, and has some time for that */
  bool over;        /* its end was told: another may have its number */
  bool has_session;         /* `lane` is, or was, its own; the daemon hears of it by events */
  struct frame *waiting;    /* the request, until PREPARED */
  struct deadline deadline; /* wall limit; in ENDING: patience with a process that does not die */
  uint64_t arrived, started, ended;
  enum ramet_reason reason, cause; /* cause: why it was told to end */
  enum ramet_limit limit;
  uint32_t status;
  uint64_t user_ns, system_ns, peak_bytes, disk_bytes, memory_peak;
  uint64_t shm_bytes, cpu_peak_ns;
  uint64_t overuse_at; /* when something of it was killed last for what all share, and how often in a row */
  unsigned overuses;
  uint64_t oom_kills; /* that were told with the end of a command */
  uint64_t memory, disk, wall_ns; /* its limits */
  uint64_t processes, quota; /* as well, for the totals */
  bool own_shm;              /* /dev/shm is a file system of its own */
  uint64_t cgroup;       /* number of its own; 0: none */
  struct cgroup_limits limits; /* that the cgroup has */
  int network; /* of one that goes: its own, or -1 */
  bool watched;          /* init sees to its memory */
  bool keep, frozen;     /* it is to be captured when it exceeds that, and does */
  uint32_t stopped_before; /* then: a process inside that a signal of its own had stopped, or 0 */
  struct known_command *commands; /* of a standing sandbox */
  /* what a snapshot of it needs */
  struct root *root;
  struct limit_view *limit_view; /* what it is shown of its limits */
  struct snapshot *origin; /* it was forked from this, or NULL */
  struct kept *kept;       /* of its files, for the next snapshot: kept.h; or NULL */
  int upper;
  int tree; /* its root, with everything that is mounted on it */
  uint32_t filter;
  struct stream_identity streams[STREAM_COUNT];
  uint64_t region_start, region_end;
  /* a fork, until it runs */
  struct watch status_watch;
  int status_socket;
  uint32_t forked_command;
  bool entered, child_runs;
  void *restarted; /* threads that the last snapshot let go in a call that it cannot see again: capture.h */
  uint32_t restarted_length;
  int nursery;   /* of its parked twin: core's end, or -1 */
  int twin;      /* 0: none, or not stopped yet */
  uint8_t *record;
  uint32_t record_length;
  /* a fork that nobody asked for: the near ends of its streams, for who claims it */
  uint64_t offer; /* its place among those that are offered, or 0 */
  int offered[STREAM_COUNT];
  int offered_count;
};

/* How many sandboxes are in a state; SANDBOX_STATES counts all. */
int sandbox_count(enum sandbox_state state);
uint64_t sandbox_ended_count(void);
/* Entries in a row that failed to prepare, nobody waiting for them; a request starts the count anew. */
int sandbox_prepare_failures(void);
uint64_t sandbox_last_activity(void);
void sandbox_note_activity(void);
struct sandbox *sandbox_find(uint64_t id);
struct sandbox *sandbox_next(const struct sandbox *after);

/* A new entry: its init is ordered, or will be when fewer are in the making. */
struct sandbox *sandbox_born(enum ramet_step fault, struct err *err) MUST_CHECK;
/* Answers to orders, by their number. Takes the descriptors. */
void sandbox_entry_made(uint64_t birth, int pid, int channel, int pidfd);
void sandbox_entry_failed(uint64_t birth, const struct err *err);
/* There will be no answers any more to what was ordered: each is ordered again, once. */
void sandbox_entries_lost(const struct err *err);
/* RUN or CREATE. Takes the frame's descriptors. On success the answer comes later, over `lane` unless that is NULL; of
 * CREATE that is its session. */
int sandbox_start(struct frame *frame, struct lane *lane, struct err *err) MUST_CHECK;
int sandbox_spawn(struct frame *frame, struct err *err) MUST_CHECK;
/* `only`: the one sandbox that may be named; 0: any. */
int sandbox_signal(struct frame *frame, struct lane *lane, uint64_t only, struct err *err) MUST_CHECK;
int sandbox_kill(uint64_t id, struct err *err) MUST_CHECK;
int sandbox_set_record(uint64_t id, struct span record, struct err *err) MUST_CHECK;
int sandbox_keep_record(struct sandbox *sandbox, struct span record, struct err *err) MUST_CHECK;
/* The control connection closed: what it owns ends. */
void sandbox_owner_gone(void);
/* A lane closed: what came over it ends. */
void sandbox_lane_gone(const struct lane *lane);
bool sandbox_lane_busy(const struct lane *lane);
/* The number of the sandbox whose session it is, or 0. */
uint64_t sandbox_of_session(const struct lane *session);
/* One that was offered is somebody's: `session`'s, or the daemon's where that is NULL. */
void sandbox_claimed(struct sandbox *sandbox, struct lane *session);
/* To the daemon: it has an owner that the daemon has not heard of. */
void sandbox_tell_created(const struct sandbox *sandbox);
/* For the files that make a sandbox together (handout.c, forks.c): a request is refused, a sandbox is told to end, a
 * sandbox stands and its request is answered. */
void sandbox_refuse(struct sandbox *sandbox, const struct err *err);
void sandbox_end(struct sandbox *sandbox);
void sandbox_stand(struct sandbox *sandbox);
/* The limits of the next sandbox are probably those of this one. */
void sandbox_usual_limits(const struct cgroup_limits *limits);
/* What a sandbox that starts has told and nobody has read yet. */
void sandbox_hear_init(struct sandbox *sandbox);
/* The stem refused to fork, or is gone. */
void sandbox_fork_failed(uint64_t id, int step, int error);
/* A snapshot of it failed in a way that may have left its process damaged. */
void sandbox_damaged(uint64_t id);
/* The parked twin cannot serve any more. */
void sandbox_lose_twin(struct sandbox *sandbox);
/* SIGCHLD. */
void sandbox_reap(void);

/* Sizes of the id maps of entries, taken from core's own: "0 0 1\n" or a line for each mapped range. */
int sandbox_setup(struct err *err) MUST_CHECK;
bool sandbox_single_uid(void);

#endif
