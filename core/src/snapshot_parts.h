/* SPDX-License-Identifier: Apache-2.0
 * Inside of a snapshot, for the files that make it: snapshot.c (list, stem, orders), snapshot_take.c (tracer),
 * snapshot_move.c (export and load), snapshot_memory.c (the budget). Nobody else includes this. */
#ifndef RAMET_SNAPSHOT_PARTS_H
#define RAMET_SNAPSHOT_PARTS_H

#include "snapshot.h"

enum snapshot_state {
  SNAPSHOT_CAPTURING, /* the tracer works */
  SNAPSHOT_BUILDING,  /* the image is there, the stem not yet */
  SNAPSHOT_READY,
};

/* A child that is ordered: sent to the stem, or waiting for one. */
struct order {
  struct order *next;
  uint64_t sandbox;
  int init_pidfd;
  struct spawn_ends ends;
  bool sent;
};

struct snapshot {
  struct watch tracer_watch, stem_watch;
  struct snapshot *next;
  enum snapshot_state state;
  bool orphaned; /* its daemon went while it was being taken */
  int holders; /* the list of named ones, and sandboxes forked from it */
  uint32_t id, filter;
  uint64_t request, source;
  struct lane *session; /* of the client for which it is there, or NULL */
  bool exporting; /* an exporter works: because it was asked for, or to make room */
  uint64_t export_request;
  enum ramet_step fault;
  int tracer_pid, tracer;
  struct deadline overdue;   /* of a tracer that does not look at its own */
  volatile bool *touched;    /* capture_source */
  bool killed;               /* for that */
  struct err *refused; /* what the tracer answered; it is told when nobody is attached to the source any more */
  int stem_pid, stem;
  /* a twin made ahead for the next child: core's end of its socket, or -1 */
  int spare;
  uint32_t spawned;
  uint64_t used_at; /* when it was forked last, or ready */
  bool learned; /* what children touch */
  uint32_t ended; /* children that could have taught it */
  int teacher; /* the twin of a child that has ended, or 0 */
  struct deadline teacher_leaves;
  int description, pages;
  void *mapping;
  size_t mapping_length;
  struct image image;
  struct root *base, *root;
  struct root *below; /* on which its files are a layer, while it is being taken; NULL: on `base` */
  struct snapshot *parent; /* of the source */
  uint64_t region_start, region_length;
  pid_t *frozen; /* of each process, or 0: the tracer holds them, until the stem has their memory. NULL: none */
  bool in_stem; /* the memory is nowhere but in the stem: no page file has it */
  /* the way of the parked twin */
  bool by_twin;
  pid_t copy; /* a fork of it, not a stem yet */
  uint64_t syscall_address, old_start, old_end;
  struct order *orders;
  uint64_t asked_at, captured_at;
  uint64_t pause_ns, memory_bytes, file_bytes;
  struct writer dropped, ways; /* RAMET_TAG_DROPPED, RAMET_TAG_WAYS */
  bool drop;
  /* what the budget is charged with */
  uint64_t stem_bytes, spare_bytes, pages_bytes, weighed_at;
  uint64_t anonymous_bytes; /* of its stem, also when that has gone; 0: it has had none */
  pid_t spare_pid; /* 0: it has not said yet */
  bool stays; /* it could not be written out */
};

/* snapshot.c */
struct snapshot *snapshot_by_id(uint64_t id);
struct snapshot *snapshot_alloc(uint32_t id, uint64_t request, struct err *err) MUST_CHECK;
void snapshot_close_watched(int *fd, struct watch *watch);
struct snapshot *snapshot_next(struct snapshot *previous);
/* Off the list: nothing is forked from it any more. */
void snapshot_retire(struct snapshot *s);
/* The stem has the frozen copy's memory, or there will be no stem: the tracer may go. */
void snapshot_end_tracer(struct snapshot *s);
void snapshot_end_stem(struct snapshot *s);
void snapshot_end_spare(struct snapshot *s);
/* Its number is core's own, where it is for a client. */
#define SNAPSHOT_FOR_CLIENTS 0x80000000u
/* Its request is refused, and it is retired. */
void snapshot_fail(struct snapshot *s, const struct err *err);
int snapshot_build_stem(struct snapshot *s, struct err *err) MUST_CHECK;
/* The fork of the source's parked twin, which has the memory already, becomes the stem. */
int snapshot_adopt_copy(struct snapshot *s, struct err *err) MUST_CHECK;

/* snapshot_take.c */
/* The tracer was reaped. */
void snapshot_tracer_ended(struct snapshot *s);
/* What it had of the tracer is given back. */
void snapshot_forget_tracer(struct snapshot *s);
void snapshot_tracer_ready(struct watch *watch, uint32_t events);
int snapshot_map_description(struct snapshot *s, struct err *err) MUST_CHECK;
/* A socket to a tracer or an exporter that is started next: watched before there is anybody, since one that has begun
 * cannot be stopped in the middle. */
int snapshot_watch_tracer(struct snapshot *s, enum ramet_step step, int *theirs, struct err *err) MUST_CHECK;
void snapshot_read_refusal(const struct frame *frame, struct err *err);

/* snapshot_move.c */
/* The exporter's answer; or that there will be none. */
void snapshot_exported(struct snapshot *s, struct frame *frame);
void snapshot_exporter_lost(struct snapshot *s);
/* Starts the exporter; after it the stem may go. Where there is no directory for them, pages go into memory. */
int snapshot_write_out(struct snapshot *s, struct err *err) MUST_CHECK;

/* snapshot_memory.c */
/* Its stem stands. */
void snapshot_memory_charge(struct snapshot *s);
/* Its page file is there, or another one in its place. */
void snapshot_memory_charge_pages(struct snapshot *s);
void snapshot_memory_charge_spare(struct snapshot *s);
bool snapshot_memory_fits_spare(void);
/* Where page files are made; -1: in memory. */
int snapshot_memory_directory(void);
/* Gives up what was used least recently for as long as more is in use than there may be. */
void snapshot_memory_relieve(void);
/* A further snapshot is asked for. */
int snapshot_memory_admit(struct err *err) MUST_CHECK;

#endif
