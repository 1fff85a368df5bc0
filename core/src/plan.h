/* SPDX-License-Identifier: Apache-2.0
 * What is to be done, decoded and checked before anything is. After plan_decode() no input is parsed. */
#ifndef RAMET_PLAN_H
#define RAMET_PLAN_H

#include <sys/types.h>

#include "wire.h"

struct plan_rlimit {
  uint32_t resource;
  uint64_t soft, hard;
};

enum { STREAM_IN, STREAM_OUT, STREAM_ERR, STREAM_CHANNEL, STREAM_COUNT };

/* Which file a stream is: the child gets one of its own in its place. inode 0: none. */
struct stream_identity {
  dev_t device;
  ino_t inode;
};

struct command {
  uint32_t number;
  uint32_t uid, gid;
  uint32_t streams[STREAM_COUNT]; /* index of the command's descriptors, or RAMET_FD_NONE */
  char *cwd;
  char **argv; /* built by plan_strings() */
  char **envp;
  uint32_t arg_count, env_count;
};

struct plan {
  uint64_t sandbox;
  uint32_t root, filter;
  uint32_t snapshot; /* 0: the command is started, not forked */
  char hostname[RAMET_NAME_MAX + 1];
  uint64_t disk_bytes, disk_inodes;
  uint32_t network;
  struct plan_rlimit rlimits[RAMET_RLIMITS_MAX];
  int rlimit_count;
  uint64_t processes; /* 0: no limit of ours */
  uint64_t wall_ns;   /* 0: none */
  uint64_t memory;    /* 0: none */
  uint32_t keep;      /* not 0: what exceeds that is captured before its end */
  uint64_t quota;     /* 0: none */
  uint64_t cpu_ns, idle_ns, shm_bytes, io_bytes; /* 0: none */
  bool owned;
  enum ramet_step fault;
  struct span record;
  struct command command;
  bool for_a_command; /* a tag of a command occurred */
  uint64_t log_bytes; /* of a command, 0: it has no log */
  uint32_t flags;  /* of START, as `window` */
  uint32_t window; /* 0: none */
  /* added by core for init */
  struct span filter_program;
  struct span targets[RAMET_BINDS_MAX];
  int bind_count;
  uint64_t watch; /* 0: not init's business */
  uint64_t inherited; /* of a fork that is watched: bytes of memory that its snapshot has */
  struct span payload;
  void *arena;
};

/* What a payload must hold and may hold. */
enum plan_use {
  PLAN_RUN = 1,    /* sandbox and command */
  PLAN_CREATE = 2, /* sandbox */
  PLAN_SPAWN = 3,  /* command */
  PLAN_START = 4,  /* command whose streams core makes */
};

/* The largest file that may be written; 0: no file can become as large. */
uint64_t plan_file_size(const struct plan *plan);

/* `from_core`: the payload was extended by core for init (targets, filter program). */
int plan_decode(struct span payload, enum plan_use use, bool from_core, int fd_count, struct plan *plan,
                struct err *err) MUST_CHECK;
/* Builds argv, envp and cwd as C strings; needs memory, so before any step. */
int plan_strings(struct plan *plan, struct err *err) MUST_CHECK;
void plan_free(struct plan *plan);
/* The kernel counts processes per user namespace and uid; init is one of them. RLIM_INFINITY: no limit of ours. */
uint64_t plan_rlimit_processes(const struct plan *plan);
/* Whether a fork's first process has to be in the sandbox's own cgroups, where there are any. */
bool plan_needs_cgroup(const struct plan *plan);

/* Whether it is one that a terminal can have: RAMET_TAG_WINDOW. */
int window_decode(struct span value, uint32_t *window, struct err *err) MUST_CHECK;

/* Absolute, without NUL, empty, "." or ".." components, shorter than PATH_MAX. "/" itself is clean. */
bool path_is_clean(struct span path);

#endif
