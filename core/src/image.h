/* SPDX-License-Identifier: Apache-2.0
 * The image of a snapshot: what stood in every process at one instant. Written once by the tracer, immutable after.
 *
 * The description is a payload of attributes (wire.h): each record below, followed by its variable bytes, under its
 * tag. Pages lie in a sparse memory file beside it. Fixed widths only: the same bytes go to disk and to other
 * machines. docs/internals/image.md has the rules of versions. */
#ifndef RAMET_IMAGE_H
#define RAMET_IMAGE_H

#include "arch/x86_64/registers.h"
#include "wire.h"

#define IMAGE_VERSION 8
#define IMAGE_PROCESSES_MAX 1024 /* zombies too */
#define IMAGE_THREADS_MAX 1024
#define IMAGE_MAPPINGS_MAX 65000 /* vm.max_map_count is 65,530 */
#define IMAGE_RUNS_MAX 1000000
#define IMAGE_DESCRIPTORS_MAX 4096
#define IMAGE_TIMERS_MAX 4096
#define IMAGE_LOCKS_MAX 65536
#define IMAGE_COMMANDS_MAX 4096
#define IMAGE_TERMINALS_MAX 1024 /* and the highest number of one */
#define IMAGE_TERMINAL_BYTES (128u << 10) /* on their way in one, each way: the kernel holds up to 68 KiB */
#define IMAGE_PAGE 4096

enum image_tag {
  IMAGE_TAG_HEADER = 1,
  IMAGE_TAG_PROCESS = 2,    /* opens a process: what follows is its own, up to the next */
  IMAGE_TAG_THREAD = 3,     /* + xstate */
  IMAGE_TAG_SIGNAL = 4,     /* one disposition */
  IMAGE_TAG_MAPPING = 5,    /* + path */
  IMAGE_TAG_RUN = 6,        /* pages of the mapping before it */
  IMAGE_TAG_FD = 7,         /* a number in the table, of a description */
  IMAGE_TAG_AUXV = 8,
  IMAGE_TAG_CWD = 9,        /* path */
  IMAGE_TAG_PENDING = 11,
  IMAGE_TAG_DESCRIPTION = 12, /* an open file, shared by its descriptors; + path or content */
  IMAGE_TAG_EPOLL = 13,     /* an item of the description before it */
  IMAGE_TAG_EXTENT = 14,    /* bytes of the description before it; what is between them is zero */
  IMAGE_TAG_TIMER = 15,     /* a POSIX timer */
  IMAGE_TAG_SCHEDULING = 16, /* of a thread for which it is not the ordinary one */
  IMAGE_TAG_LOCK = 18,      /* of an open file */
  IMAGE_TAG_PROCESS_LOCK = 19, /* of a file, by a descriptor of the process */
  IMAGE_TAG_TERMINAL = 20,  /* a pseudo terminal, of which descriptions are the ends */
  IMAGE_TAG_COMMAND = 21,   /* one whose streams core keeps; + what whoever started it noted */
  IMAGE_TAG_ZOMBIE = 17,    /* of no process: it has ended, and its parent has not waited for it yet */
};

struct image_header {
  uint32_t version;
  uint32_t page;
  uint64_t xfeatures;   /* processor state that threads may hold */
  uint64_t vdso_length; /* and its content's hash: children need the same vdso */
  uint64_t vdso_hash;
  uint32_t process_count, zombie_count;
};

/* Numbers are those of the sandbox's pid namespace; its init is 1, and the first process is a child of init's. */
struct image_relations {
  int32_t pid, parent, group, session;
  uint32_t exit_signal; /* that the parent gets */
  uint32_t zero;
};

/* Besides the signal. */
#define IMAGE_STOP_UNTOLD 0x100u

struct image_process {
  struct image_relations relations;
  uint32_t death_signal; /* PR_SET_PDEATHSIG */
  uint32_t no_thp;
  uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start,
      env_end;
  uint32_t umask, personality;
  uint32_t thread_count;
  uint32_t subreaper; /* PR_SET_CHILD_SUBREAPER */
  uint32_t terminal;  /* the number of its controlling terminal, and one; 0: none */
  uint32_t stopped;   /* the signal that has stopped it, and whether its parent has not asked yet; 0: it runs */
  uint64_t rlimits[16][2];
  uint64_t itimers[3][4]; /* interval, value: seconds, microseconds */
  uint64_t asked_features; /* processor state that the process has asked for: ARCH_REQ_XCOMP_PERM */
  char exe[256];
};

struct image_zombie {
  struct image_relations relations;
  uint32_t status, zero; /* as wait(2) tells it */
  char name[16];
};

struct image_thread {
  int32_t tid, pending_count;
  arch_registers registers;
  uint64_t signal_mask;
  uint64_t fs_base, gs_base;
  uint64_t rseq, robust_list, tid_address;
  uint32_t rseq_length, rseq_signature;
  uint64_t stack_address, stack_size;
  uint32_t stack_flags, xstate_length;
  char name[16];
};

/* timer_create(2). The thread is one of SIGEV_THREAD_ID. */
struct image_timer {
  int32_t id, clock;
  uint32_t notify, signal;
  uint64_t value;
  int32_t thread, zero;
  uint64_t interval[2], left[2]; /* seconds, nanoseconds */
};

struct image_scheduling {
  uint32_t thread, policy; /* index; SCHED_* */
  int32_t nice, zero;
  uint64_t processors[16]; /* a bit for each that it may run on */
};

struct image_signal {
  uint32_t number, zero;
  uint64_t handler, flags, restorer, mask;
};

enum image_backing {
  IMAGE_ANONYMOUS = 0, /* private: pages of the image over zero */
  IMAGE_FILE = 1,      /* private or read-only: a file of a layer below pages of the image */
  IMAGE_SHARED = 2, /* shared memory without a name: a description, made anew for each child and mapped by it */
  IMAGE_SHARED_FILE = 3, /* a file of the child's own root, mapped by the child */
  IMAGE_SPECIAL = 4, /* vdso and vvar: moved, not copied */
};

enum image_mapping_flag {
  IMAGE_GROWS_DOWN = 1,
  IMAGE_DONTFORK = 2,
  IMAGE_WIPEONFORK = 4,
  IMAGE_DONTDUMP = 8,
  IMAGE_LOCKED = 16,
  IMAGE_HUGE = 32,
  IMAGE_NO_HUGE = 64,
  IMAGE_MERGEABLE = 128,
  IMAGE_DROPPABLE = 256,
  IMAGE_MAY_WRITE = 512, /* shared: of a file that was opened for writing */
};
/* What memory may have that a fork inherits as it is. */
#define IMAGE_INHERITABLE (IMAGE_DONTDUMP | IMAGE_HUGE | IMAGE_NO_HUGE | IMAGE_MAY_WRITE)

struct image_mapping {
  uint64_t start, end, offset;
  uint32_t protection, backing, flags;
  uint32_t description; /* IMAGE_SHARED: its id + 1; else 0 */
};

#define IMAGE_GUARD UINT64_MAX
/* Not in the page file yet, and never on disk: the source's frozen copy has them, for the one stem made from it. */
#define IMAGE_FROZEN (UINT64_MAX - 1)
/* Of a process that is not the first: the pages of that one at the same addresses, in memory without a file. */
#define IMAGE_INHERITED (UINT64_MAX - 2)
/* Descriptions of shared memory without a descriptor have numbers from here on. */
#define IMAGE_OBJECT_IDS (1u << 24)
/* And those of terminals that control a session, by which its leader takes them. */
#define IMAGE_TERMINAL_IDS (1u << 25)

struct image_run {
  uint64_t address, length, offset; /* offset in the page file; IMAGE_GUARD: guard pages (MADV_GUARD_INSTALL) */
};

enum image_description_kind {
  IMAGE_STREAM = 1, /* one of the command's own streams: the child gets its own */
  IMAGE_REOPEN = 2, /* a path of the root: file, directory, fifo, device */
  IMAGE_UNLINKED = 3, /* a regular file or memfd without a name, or shared memory: extents kept */
  IMAGE_PIPE =
      4, /* one end, or both (O_RDWR); + path of a named one. value: key, size, key. Content and size with one of them */
  IMAGE_EVENTFD = 6,
  IMAGE_TIMERFD = 7,
  IMAGE_SIGNALFD = 8,
  IMAGE_EPOLL = 9,
  IMAGE_SOCKETPAIR =
      10, /* one end; value: send buffer, shutdown(2), type, options. Content: what it has yet to read */
  IMAGE_TCP_LISTEN = 11,
  IMAGE_TCP_RESET = 12, /* was connected: the child finds it reset */
  IMAGE_UDP = 13,
  IMAGE_UNIX_UNBOUND = 14,
  IMAGE_TERMINAL = 16, /* value: number, enum image_terminal_end */
  IMAGE_DROPPED = 15, /* could not be carried: its numbers stand for nothing that can be used */
};

struct image_description {
  uint32_t id, kind;
  uint32_t flags; /* open(2) status flags */
  uint32_t peer; /* socket pairs: id of the other end + 1; 0: closed */
  uint64_t offset; /* files */
  uint64_t
      value[4]; /* eventfd count; timerfd; signal mask; internet: options, family, type, connected; memfd?, seals,
                        size; file type and device of a path */
  uint64_t content_length; /* pipes: unread bytes; socket pairs: messages, u32 length and bytes each */
  uint64_t content_offset; /* in the page file */
};

enum image_terminal_end {
  IMAGE_MASTER = 0,
  IMAGE_SLAVE = 1,
  IMAGE_HUNG_UP = 2, /* a slave whose master is closed: of no terminal of the image */
};

enum image_terminal_flag {
  IMAGE_TERMINAL_PACKETS = 1, /* TIOCPKT */
  IMAGE_TERMINAL_STOPPED = 2, /* its output, by the character for that */
  IMAGE_TERMINAL_HELD = 4, /* the same by tcflow(3) */
};

/* The bytes that are on their way, input first, are in the page file. Session and group: by their numbers inside. */
struct image_terminal {
  uint32_t index, flags;
  int32_t session, foreground; /* 0: none */
  uint32_t mode; /* permissions */
  uint32_t input_flags, output_flags, control_flags, local_flags, input_speed, output_speed;
  uint16_t rows, columns, width, height;
  uint8_t line, characters[19];
  uint64_t input_length, output_length, offset;
};

/* Its pipes are descriptions like others, whose far ends a child's core gets. */
struct image_command {
  uint32_t number;
  int32_t pid; /* its first process, a child of init's */
  uint32_t takes_input, zero;
  uint64_t log_bytes, wall_ns; /* wall_ns: that were left to it; 0: it has no deadline */
  uint64_t begin[2]; /* of standard output and error that core has taken out of the pipes */
  uint64_t device, pipes[3]; /* of standard input, output, error, as in IMAGE_PIPE; 0: there is none */
};

struct image_fd {
  int32_t number;
  uint32_t description;
  uint32_t close_on_exec, zero;
};

struct image_pending {
  uint32_t thread; /* index; meaningless when shared */
  uint32_t shared;
  uint8_t info[128]; /* siginfo_t */
};

/* Options of a socket pair's end. */
#define IMAGE_PASSES_CREDENTIALS 1

/* Of an internet socket, in value[0], whose upper half is the backlog + 1; all of it 0: not known. */
enum image_socket_option {
  IMAGE_OPTIONS_KNOWN = 1,
  IMAGE_ONLY_SIX = 2,
  IMAGE_REUSES_PORT = 4,
  IMAGE_REUSES = 8,
  IMAGE_KEEPS_ALIVE = 16,
  IMAGE_BROADCASTS = 32,
  IMAGE_NO_DELAY = 64,
};

/* The number of the target is one of the process that registered it. */
struct image_epoll {
  int32_t process, target;
  uint32_t events, zero;
  uint64_t data;
};

enum image_lock_kind {
  IMAGE_LOCK_OF_PROCESS = 1, /* fcntl(2) */
  IMAGE_LOCK_OF_FILE = 2, /* F_OFD_SETLK */
  IMAGE_LOCK_WHOLE = 3, /* flock(2) */
};

struct image_lock {
  uint32_t kind, exclusive;
  uint32_t description;
  int32_t number; /* of a process's: of its descriptor */
  uint64_t start, length; /* 0: to the end, wherever that will be */
};

struct image_extent {
  uint64_t offset, length, page_offset;
};

/* ---- decoded -------------------------------------------------------------------------------------------------- */

struct process_image {
  struct image_process process;
  struct image_thread *threads;
  const uint8_t **xstates;
  struct image_signal *signals;
  struct image_mapping *mappings;
  struct span *paths; /* of the mappings */
  struct image_run *runs;
  uint32_t *first_run; /* of each mapping; one more than there are mappings */
  struct image_fd *fds;
  struct image_pending *pending;
  struct image_timer *timers;
  struct image_scheduling *schedulings;
  struct image_lock *locks;
  uint32_t lock_count;
  struct span auxv, cwd;
  uint32_t thread_count, signal_count, mapping_count, run_count, fd_count, pending_count, timer_count,
      scheduling_count;
};

struct image {
  struct image_header header;
  struct process_image *processes;
  struct image_description *descriptions;
  struct span *contents;
  uint32_t process_count, description_count;
  struct image_zombie *zombies;
  struct image_lock *locks; /* of open files */
  struct image_terminal *terminals;
  uint32_t zombie_count, lock_count, terminal_count;
  struct image_command *commands;
  struct span *command_records;
  uint32_t command_count;
  struct image_epoll *epolls;
  uint32_t *first_epoll; /* of each description; one more than there are descriptions */
  struct image_extent *extents;
  uint32_t *first_extent;
  uint32_t epoll_count, extent_count;
};

/* The decoded image points into `description`, which must live as long. */
int image_decode(struct span description, uint64_t page_bytes, struct image *image, struct err *err) MUST_CHECK;
/* Only open files and what opens a process: of a description that was decoded whole before. */
int image_decode_files(struct span description, uint64_t page_bytes, struct image *image,
                       struct err *err) MUST_CHECK;
void image_free(struct image *image);
/* The mapping that has the address, or NULL. */
const struct image_mapping *image_mapping_at(const struct process_image *process, uint64_t address);
/* Whether all of it is memory without a file, of a kind that forks inherit as it is. */
bool image_can_inherit(const struct process_image *process, uint64_t start, uint64_t end);
/* By its number: its place, or -1. */
int image_command(const struct image *image, uint32_t number);
/* By its number, or NULL. */
const struct image_terminal *image_terminal(const struct image *image, uint64_t index);

#endif
