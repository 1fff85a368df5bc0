/* SPDX-License-Identifier: Apache-2.0
 * What a command writes, kept in a memory file: the head of each stream, and its end in a ring. Core drains the pipes
 * whether anybody reads or not, so no reader delays the command or another reader; one that is slower than the ring
 * is long sees by the counts what it has missed. struct ramet_log is the layout. */
#ifndef RAMET_STREAMLOG_H
#define RAMET_STREAMLOG_H

#include "err.h"

struct streamlog;

/* How a command ended, for the log's header. */
struct log_end {
  uint32_t reason, status;
  uint64_t user_ns, system_ns, peak_bytes, disk_bytes, elapsed_ns, setup_ns, memory_peak, oom_kills;
  uint64_t cpu_peak_ns, shm_bytes, wall_ns;
  uint32_t limit;
  bool lingering;
};

/* A log that keeps `bytes` of each stream. `far` gets the ends for the command: stdout, stderr. `shared`: the command
 * is of another user than the one that its sandbox begins with, who may open /dev/stdout all the same. */
struct streamlog *streamlog_make(uint64_t bytes, bool shared, int far[2], struct err *err) MUST_CHECK;
/* Of a terminal with this near end, which is taken in any case: what is written to it is standard output. */
struct streamlog *streamlog_of_terminal(uint64_t bytes, int near, struct err *err) MUST_CHECK;
/* What comes of a stream goes to `fd` too, a pipe's end, which is taken in any case. Who reads there delays the command. */
int streamlog_mirror(struct streamlog *log, int stream, int fd, struct err *err) MUST_CHECK;
/* Of a command that was forked while it ran: `near`, which are taken in any case, are core's ends, or -1 of a stream
 * that nobody has open. */
struct streamlog *streamlog_carry(uint64_t bytes, const uint64_t begin[2], int near[2], struct err *err) MUST_CHECK;
/* For who stands beside core: how much core has taken out of the pipe, unless it is at it. */
bool streamlog_settled(const struct streamlog *log, int stream, uint64_t *total) MUST_CHECK;
uint64_t streamlog_bytes(const struct streamlog *log);
/* Number of the pipe's inode, and its device; 0: there is none. */
uint64_t streamlog_pipe(const struct streamlog *log, int stream, uint64_t *device);
void streamlog_free(struct streamlog *log);
/* The command runs: until then its header says that it is starting. */
void streamlog_began(struct streamlog *log);
/* A reader's two descriptors, which are the caller's: the file, and what gets readable for a change and ends with the
 * command. The second is -1 when the command has ended. `changes`: for output too. */
int streamlog_open(struct streamlog *log, bool changes, int fds[2], struct err *err) MUST_CHECK;
/* The command has ended: what it wrote is what is in the pipes now. What others write to them later is dropped; a
 * terminal ends with its command. */
void streamlog_finish(struct streamlog *log, const struct log_end *end);
/* Whether somebody can still write to it: to close the pipes would be noticed. */
bool streamlog_written(const struct streamlog *log);
/* Have `quiet` called, once, when the command has ended and later nobody can write any more. It may free the log. */
void streamlog_when_quiet(struct streamlog *log, void (*quiet)(void *owner), void *owner);
/* Bytes of memory that it takes. */
uint64_t streamlog_size(const struct streamlog *log);
uint64_t streamlog_total(const struct streamlog *log, int stream);

#endif
