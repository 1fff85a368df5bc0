/* SPDX-License-Identifier: Apache-2.0
 * Inside of a snapshot, for the files that make it: snapshot.c (list, stem, orders), snapshot_take.c (tracer),
 * snapshot_move.c (export and load). Nobody else includes this. */
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
  uint64_t request, source, export_request;
  enum ramet_step fault;
  int tracer_pid, tracer;
  int stem_pid, stem;
  /* a twin made ahead for the next child: core's end of its socket, or -1 */
  int spare;
  uint32_t spawned;
  uint64_t spawned_at;
  bool learned; /* what children touch */
  int description, pages;
  void *mapping;
  size_t mapping_length;
  struct image image;
  struct root *base, *root;
  struct snapshot *parent; /* of the source */
  uint64_t region_start, region_length;
  pid_t frozen; /* the tracer holds it, until the stem has its memory */
  bool in_stem; /* the memory is nowhere but in the stem: no page file has it */
  /* the way of the parked twin */
  bool by_twin;
  pid_t copy; /* a fork of it, not a stem yet */
  uint64_t syscall_address, old_start, old_end;
  struct order *orders;
  uint64_t asked_at, captured_at;
  uint64_t pause_ns, memory_bytes, file_bytes;
};

/* snapshot.c */
struct snapshot *snapshot_by_id(uint64_t id);
struct snapshot *snapshot_alloc(uint32_t id, uint64_t request, struct err *err) MUST_CHECK;
/* Whether a sandbox is being captured. */
bool snapshot_capturing(uint64_t sandbox);
void snapshot_close_watched(int *fd, struct watch *watch);
/* Off the list: nothing is forked from it any more. */
void snapshot_retire(struct snapshot *s);
/* The stem has the frozen copy's memory, or there will be no stem: the tracer may go. */
void snapshot_end_tracer(struct snapshot *s);
/* Its request is refused, and it is retired. */
void snapshot_fail(struct snapshot *s, const struct err *err);
int snapshot_build_stem(struct snapshot *s, struct err *err) MUST_CHECK;
/* The fork of the source's parked twin, which has the memory already, becomes the stem. */
int snapshot_adopt_copy(struct snapshot *s, struct err *err) MUST_CHECK;

/* snapshot_take.c */
void snapshot_tracer_ready(struct watch *watch, uint32_t events);
int snapshot_map_description(struct snapshot *s, struct err *err) MUST_CHECK;
void snapshot_read_refusal(const struct frame *frame, struct err *err);

/* snapshot_move.c: the exporter's answer. */
void snapshot_exported(struct snapshot *s, struct frame *frame);

#endif
