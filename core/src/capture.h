/* SPDX-License-Identifier: Apache-2.0
 * Takes a snapshot: runs in a process of its own, the tracer, forked from core for each. */
#ifndef RAMET_CAPTURE_H
#define RAMET_CAPTURE_H

#include <sys/stat.h>

#include "image.h"
#include "inodes.h"
#include "plan.h"
#include "procfs.h"
#include "trace.h"

/* The major number of pseudo terminals' slaves: Documentation/admin-guide/devices.txt. */
#define UNIX98_SLAVES 136

/* A thread that an earlier snapshot of the source let go in the middle of such a call. */
struct restarted {
  int32_t tid, zero; /* as core sees it */
  struct arch_call call;
};

struct streamlog;

/* One that core keeps the streams of, as core knows it; where they stood the tracer finds out. */
struct capture_command {
  struct image_command command;
  struct span record;
  const struct streamlog *log;
};

struct capture_source {
  int init_pid;                         /* in core's pid namespace */
  struct stream_identity streams[STREAM_COUNT]; /* of the command */
  int upper;                            /* the sandbox's tmpfs */
  int below, file_index;                /* an earlier copy of that, which is a layer, and what is in it; or -1 */
  int layers[RAMET_LAYERS_MAX];         /* what is below the writable one, the topmost first */
  int layer_count, merged;              /* so many of them, all of them writable once, are to become one; or 0 */
  int file_watch;                       /* tells what was written since: filewatch.h; or -1 */
  const char *const *bind_targets;      /* absolute paths inside */
  int bind_count;
  unsigned patience_ms;
  unsigned allowed_ms;     /* for all of it */
  volatile bool
      *touched; /* shared with core: threads of the source have registers that are not theirs, or copies that
                             would run on if the tracer died */
  bool drop; /* what cannot be carried */
  bool frozen; /* by signals that are none of its own, and to be so again */
  pid_t twin;                            /* parked, or 0 */
  const struct image *parent;            /* of which the source is a fork, or NULL */
  const struct image *stem; /* the source is a stem made from this, or NULL: shared memory is as there */
  uint64_t region_start, region_end; /* the restorer's, when the source was forked itself */
  struct capture_command *commands;
  int command_count;
  struct span restarted; /* struct restarted, one after another */
};

/* Why the memory of a process was not had from a parked twin. */
enum no_twin {
  TWIN_NONE = 0,    /* no fork made the sandbox, or its twin was lost */
  TWIN_REPLACED,    /* the process has called exec since */
  TWIN_REFUSED,     /* core could not fork it */
  TWIN_LESS,        /* a fork of it lacks areas that are kept from forks */
  TWIN_HAS_PARENT,  /* the process is not the sandbox's first: it is born of its parent, with that one's memory */
};

/* Shared memory that is in the image as the content of a description. */
struct shared_object {
  uint32_t id;
  uint64_t inode;
  char *name; /* as /proc tells it */
};

/* What the tracer keeps in its hands of one process while it stands still. */
struct capture {
  const struct capture_source *source;
  struct capture_tree *tree;
  int pid; /* in core's pid namespace */
  int parent; /* the same */
  char name[32];
  struct image_relations relations;
  struct tracee *threads;
  int thread_count;
  bool still; /* all its threads have stopped */
  uint32_t stopped; /* image_process */
  bool
      subreaper; /* it takes in the orphans among its descendants, of which the frozen copy is one: not in the pause */
  struct procmaps maps;
  uint64_t syscall_address;
  int memory; /* /proc/PID/mem */
  int pidfd;
  int helper, twin; /* 0: none */
  enum no_twin no_twin; /* why a parked one did not give the memory, when it did not */
  uint64_t copied; /* bytes of its memory that were copied, or will be into the stem */
  bool froze; /* it had a twin in the pause, of either kind */
  bool parked; /* the twin is a fork of the parked one: core's, not the tracer's */
  struct tracee twin_thread;
  char *status;
  struct writer description;
  char *smaps; /* of the source: only when it has what a twin has not */
  bool keeping; /* in the pause: runs are kept aside */
  bool heir; /* a fork of the first, whose pages are compared with that one's */
  const struct procmap *mapping; /* of which pages are being put, and its flags */
  uint32_t mapping_flags;
  bool leaving; /* pages stay in the frozen copy: the stem takes them from there */
  bool leaves; /* those of this mapping */
  bool left; /* some have stayed */
  struct image_run *kept;
  uint32_t kept_count;
};

/* All processes of the sandbox; the first is the one that the others are made around. */
struct capture_tree {
  const struct capture_source *source;
  struct capture **processes;
  int count;
  struct image_zombie *zombies;
  int zombie_count;
  cpu_set_t everywhere; /* what the tracer may run on by itself */
  int channel; /* to core */
  int pages; /* the page file */
  uint64_t pages_end, memory_bytes;
  struct writer files; /* descriptions of open files */
  struct writer restarted;
  struct shared_object *objects;
  uint32_t object_count;
  struct writer dropped; /* RAMET_TAG_DROPPED */
  struct inode_wish *wishes; /* files that are open, whose numbers may be remembered */
  int wish_count;
  struct heritage *heritage; /* what heirs may have: of the first's frozen copy */
  uint32_t open_files; /* descriptions that descriptors are of */
};

/* Once, in core: what its processes have that it was started with is nothing that they did. */
void capture_setup(void);

/* The whole: answers on `channel` with OK (pause, sizes; descriptors: description, pages, upper, and an index of that
 * where it is worth keeping) or ERROR. With a PID in the answer those are the frozen copies, pid_t of each process or 0,
 * which have the memory until a message comes. */
void capture_main(const struct capture_source *source, enum ramet_step fault, int channel)
    __attribute__((noreturn));

/* The exporter: writes the image of a stem that was made without one. `original`: the description that it has. */
struct export_source {
  int stem_pid;
  const struct image *image;
  struct span original;
  uint64_t region_start, region_end; /* with the deposit */
  uint64_t deposit;
  int pages; /* what is not memory: contents of open files */
  int directory; /* where the new page file goes, without a name; -1: into memory */
};
void export_main(const struct export_source *source, int channel) __attribute__((noreturn));

/* capture_tree.c: all processes and all threads, also those that appear meanwhile, and what has ended. */
int capture_stop(struct capture_tree *tree, struct err *err) MUST_CHECK;
/* Whether a process is stopped by a signal, or will be as soon as it runs. Behind its status. */
int capture_stopped(struct capture *capture, struct err *err) MUST_CHECK;
/* What they are to each other; refuses what no child could be. */
int capture_relate(struct capture_tree *tree, struct err *err) MUST_CHECK;

/* capture_process.c: what only the stopped process itself or /proc can tell. */
int capture_threads(struct capture *capture, struct err *err) MUST_CHECK;
int capture_process(struct capture *capture, struct err *err) MUST_CHECK;
/* One system call in the first thread, with `length` bytes that it wrote read back. */
int capture_ask(struct capture *capture, struct tracee *thread, long number, const uint64_t args[6],
                int out_argument, void *out, size_t length, struct err *err) MUST_CHECK;

/* capture_timers.c: behind the threads, which they may wake. */
int capture_timers(struct capture *capture, struct err *err) MUST_CHECK;

/* A guest that takes in orphans would get the frozen copy, and hear of its end. */
int capture_take_in(struct capture *capture, bool orphans, struct err *err) MUST_CHECK;

/* capture_memory.c */
int capture_twin(struct capture *capture, struct err *err) MUST_CHECK;
void capture_drop_twin(struct capture *capture);
/* It is to die with the tracer. */
int capture_leave_pages(struct capture *capture, struct err *err) MUST_CHECK;
/* Content that is no page, `length` bytes from `from` on: appended to the page file. */
int capture_content(struct capture *capture, int fd, uint64_t from, uint64_t length, uint64_t *offset,
                    struct err *err) MUST_CHECK;

/* capture_kept.c: in the pause, behind the twins: what no twin keeps. */
int capture_unforked(struct capture_tree *tree, struct err *err) MUST_CHECK;
/* An open file that shared mappings may be of. */
int capture_note_object(struct capture_tree *tree, const char *name, uint64_t inode, uint32_t id,
                        struct err *err) MUST_CHECK;

/* capture_maps.c: all mappings, with their pages. */
int capture_pages(struct capture *capture, struct err *err) MUST_CHECK;

/* capture_heritage.c: who may have pages from the first process. */
void capture_find_heirs(struct capture_tree *tree);
/* Whether the mapping of which pages are being put may have some. */
bool capture_may_inherit(const struct capture *capture);

/* capture_names.c: in the sandbox's root, following no link. An O_PATH descriptor, or -1. */
int capture_look(const struct capture *capture, const char *name) MUST_CHECK;
/* Whether the name leads to this file on the mount that `info`, its fdinfo, tells. */
bool capture_leads(const struct capture *capture, const char *name, const struct stat *to, const char *info);
bool capture_ends_deleted(const char *name);
/* What the file at `path`, a name in /proc/PID/fd, is if it is none of a mount with files of the guest's; or NULL. */
const char *capture_kernel_file(const char *path, const char *name);

/* capture_ipc.c: refuses what no child would find. The tracer is in the sandbox's IPC namespace from here on. */
int capture_ipc(struct capture *capture, struct err *err) MUST_CHECK;

/* capture_fds.c */
int capture_descriptors(struct capture_tree *tree, struct err *err) MUST_CHECK;

/* capture_commands.c: which of the three streams of one of the commands this pipe is, or NULL. */
struct capture_command *capture_command_of(const struct capture_source *source, const struct stat *pipe,
                                           int *stream);
/* Behind the descriptors: those that go on in a child. */
int capture_commands(struct capture_tree *tree, struct err *err) MUST_CHECK;

/* capture_ways.c: RAMET_TAG_WAYS. */
void capture_ways(const struct capture_tree *tree, struct writer *out);

/* Behind a refusal, of something that a process can be without: true, and it is noted, when the caller wants it so. */
bool capture_drops(struct capture_tree *tree, struct err *err);

/* "pid 57 python: " in front of what cannot be carried. */
int capture_refuse(const struct capture *capture, struct err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
