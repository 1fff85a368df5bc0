/* SPDX-License-Identifier: Apache-2.0
 * What crosses from core to the restorer: one structure and its tables, all inside the region, which lies at the same
 * address in core's fork, in the stem that it becomes, and in every child. Fixed widths; addresses are absolute. */
#ifndef RAMET_PIE_ARGS_H
#define RAMET_PIE_ARGS_H

#include <stdint.h>

/* The region:  code | args: this structure, threads | frames and stacks | the same of each other process | tables | parking
 *              ─────── kept by the first ─────────────────────────────   ── given back ─────────────────────────────
 * The other processes of a sandbox are forked from the first while it is still in here, or from each other. Each gives
 * up the memory that it was born with for its own, and keeps of the region the code and its part. Behind the region stands
 * the deposit, with what the other processes will have: src/deposit.h. */

#define PIE_STACK_BYTES 16384
#define PIE_FRAME_BYTES 16384
#define PIE_MOVES_MAX 8
#define PIE_FDS_AT_ONCE 128
#define PIE_SPAWN_FDS 4
#define PIE_ENTRANCES_MAX 5
/* What a stem remembers of an order: its descriptors, and behind them what the order says, and the entrances. */
enum { PIE_ORDER_NAMESPACES = PIE_SPAWN_FDS, PIE_ORDER_BORN_INSIDE, PIE_ORDER_ENTRANCES, PIE_ORDER_ENTRANCE };
#define PIE_ORDER_WORDS (PIE_ORDER_ENTRANCE + PIE_ENTRANCES_MAX)

/* Kernel objects of the stem stand above every number that the guest uses. */
struct pie_map {
  uint64_t start, length, offset;
  uint64_t path; /* of the child's own root; 0: `fd` is opened already, or there is none */
  uint32_t protection, flags;
  int32_t fd;
  uint32_t zero;
};

struct pie_fill {
  uint64_t address, length, offset;
};

/* Memory of another process, which the stem keeps for it in the deposit: deposit.h. */
struct pie_store {
  uint64_t address, length;
  uint64_t offset; /* in the page file, or PIE_HUGE; with a path in that file */
  uint64_t path;   /* of the memory of a frozen copy; or 0 */
};
/* And its move to where the process has it. */
struct pie_take {
  uint64_t from, length, to;
};

/* As the offset of a fill: */
#define PIE_GUARD UINT64_MAX         /* guard pages */
#define PIE_FROZEN (UINT64_MAX - 1)  /* the same addresses of the frozen copy */
#define PIE_HUGE (UINT64_MAX - 2)    /* huge pages, about to be filled whole */
#define PIE_CLEAR (UINT64_MAX - 3)   /* of kept memory: what its parent has there, guards too, goes */
#define PIE_OPEN (UINT64_MAX - 4)    /* kept memory becomes writable */
#define PIE_PROTECT (-1)
#define PIE_LOCK (-2)

struct pie_protect {
  uint64_t start, length;
  uint32_t protection;
  int32_t advice; /* madvise(2), or one of the above: mprotect(2), mlock(2) */
};

#define PIE_FD_PATH "/proc/self/fd/"
#define PIE_FD_PATH_NUMBER (sizeof PIE_FD_PATH - 1)

/* Shared memory: mapped by each child, behind its namespaces. */
struct pie_late {
  uint64_t start, length, offset;
  uint64_t path;        /* of the child's own root, or 0 */
  uint32_t description; /* place among the received ones */
  uint32_t protection, open_flags, zero;
};

struct pie_range {
  uint64_t start, length;
};

#define PIE_HOT_MAX 512 /* of a stem's table of hot pages: hot.h */

struct pie_move {
  uint64_t from, length, park, to;
};

struct pie_signal {
  uint64_t number, handler, flags, restorer, mask;
};

struct pie_thread {
  uint64_t frame, stack_top;
  uint64_t fs_base, gs_base, rseq, robust_list, tid_address;
  uint64_t stack_address, stack_size;
  uint32_t stack_flags, rseq_length, rseq_signature;
  int32_t tid;
  char name[16];
  uint64_t holds_tiles; /* its frame holds AMX tiles */
};

struct pie_timer {
  int32_t id, clock;
  uint32_t notify, signal;
  uint64_t value;
  int32_t thread, zero;
  uint64_t interval[2], left[2];
};

struct pie_scheduling {
  uint32_t thread, policy;
  int32_t nice, zero;
  uint64_t processors[16];
};

struct pie_fd {
  int32_t number;
  uint32_t description; /* place among the received ones */
  uint32_t close_on_exec, zero;
};

/* Of the process, by fcntl(2). */
struct pie_lock {
  int32_t number;
  uint32_t exclusive;
  uint64_t start, length;
};

struct pie_epoll {
  int32_t epoll, target; /* numbers of the guest */
  uint32_t events, zero;
  uint64_t data;
};

struct pie_pending {
  uint32_t thread, shared;
  uint8_t info[128];
};

/* struct prctl_mm_map of linux/prctl.h */
struct pie_mm {
  uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start,
      env_end, auxv;
  uint32_t auxv_size;
  int32_t exe;
};

enum pie_kind {
  PIE_PROCESS = 0,
  PIE_ZOMBIE = 1, /* ends at once, and stays for its parent to wait for */
  PIE_HELPER = 2, /* leads a session or a group that has lost its leader, or is a parent, until all are born */
};

/* One that is forked: births.h. */
struct pie_node {
  int32_t pid, parent; /* parent: place in the list */
  uint32_t kind, early;
  int32_t session, group;
  uint32_t exit_signal, status; /* status: of a zombie; of a process that is stopped, as in image_process */
  uint64_t args; /* of a process */
  char name[16]; /* of a zombie */
  uint32_t first_heir, heir_count; /* in `heirs`: those below it, and itself, that have something in the deposit */
};

/* Towards the terminal that controls its session. Who is born later in that inherits it. */
enum pie_control {
  PIE_NO_TERMINAL = 0, /* there is none, or it is inherited */
  PIE_TAKES = 1, /* it leads the session */
  PIE_GIVES_UP = 2, /* it has none, though its session has */
};

/* A page that all of them share until they run on. What is left counts down; then the gate opens. */
struct pie_gate {
  volatile uint32_t left, open;
};
struct pie_shared {
  struct pie_gate born, joined, gathered, ready, release;
};

/* What a stem is told for each child; the descriptors that come along are init's pidfd, the child's status socket,
 * the socket by which init hands descriptors to the child, and the nursery of its parked twin. Or for a spare, a twin
 * to be, whose one order comes over the first of them: the second is the page map of a child, to learn from, if
 * `namespaces` is not zero. To that the stem gives no answer; the spare says its pid. Behind those four come the
 * entrances of cgroups: a file to which the child writes for each, while it has one thread and moves by that alone, which
 * takes no lock; or with `born_inside` one directory, in which it is born (version 2). */
struct pie_spawn {
  uint32_t spare;
  uint32_t namespaces; /* CLONE_NEW*: of init, to be entered by the child */
  uint32_t fault; /* as RAMET_TAG_FAULT, of the child */
  uint32_t entrances, born_inside;
};

/* On the status socket of a child, and on the stem's own: step 0 is success. */
struct pie_status {
  int32_t step, error;
  int64_t value;
};

struct pie_args {
  uint64_t region, region_length;
  uint64_t own, own_end; /* this process's part of the region */
  int32_t control; /* the stem's socket */
  int32_t pages; /* the page file */
  int32_t own_pidns; /* the stem's own pid namespace */
  int32_t frozen; /* the memory of the source's frozen copy; or -1 */
  int32_t first_free; /* one above the guest's highest descriptor */
  int32_t passage_tid; /* of the process between stem and child */
  uint32_t passage_leads; /* it opens the child's session */
  uint32_t move_count, map_count, fill_count, protect_count, signal_count, thread_count, fd_count, epoll_count,
      pending_count, description_count, late_count, advice_count, timer_count, scheduling_count, lock_count, zero3;
  uint64_t maps, fills, protects, signals, threads, fds, epolls, pending; /* addresses of the tables */
  uint64_t timers, schedulings, locks;
  uint64_t late_table, advice_table; /* what children do with their memory, and a stem must not */
  uint64_t hot; /* struct pie_range, PIE_HOT_MAX */
  uint64_t kept; /* struct pie_range, in order: what it keeps of the memory that it is born with */
  uint32_t kept_count;
  uint32_t leaves_late; /* behind the births of its own children, who keep some */
  uint32_t hot_count, hot_zero;
  struct pie_move moves[PIE_MOVES_MAX];
  struct pie_mm mm;
  uint64_t own_rseq; /* the stem's own registration, to be undone before its memory goes */
  uint32_t own_rseq_length, own_rseq_signature;
  uint64_t cwd, exe; /* paths, as the child's root has them */
  uint64_t rlimits[16][2];
  uint64_t itimers[3][4];
  uint64_t asked_features;
  uint32_t umask, personality, no_thp;
  uint32_t fault; /* as RAMET_TAG_FAULT: of the stem while it is built, then of the child that it forks */
  int32_t zero1, filter_length; /* instructions */
  uint64_t filter;
  /* the tree: nodes, of which the first is the child of the stem, and this process's place among them */
  uint64_t first, nodes, shared; /* first: args of the first process */
  uint32_t node_count, node;
  uint32_t death_signal, subreaper;
  uint32_t control_kind, terminal; /* enum pie_control; place of a slave among the received ones */
  int32_t foreground, zero4; /* the group that is in the foreground; 0: the leader's own */
  /* the deposit, which stands behind the region, and this process's part of it */
  uint64_t deposit, deposit_length, part, part_length;
  uint64_t stores, takes, heirs; /* heirs: uint32_t, places of nodes */
  uint32_t store_count, take_count;
  /* of a child, at work */
  volatile uint32_t waiting, go, confined, whole, leave;
  /* of a stem that was forked from a twin: what its memory still holds of the restorer before */
  uint64_t old_region, old_length;
  int32_t status;
  char fd_path[28]; /* PIE_FD_PATH, and room for a number */
  uint64_t received; /* int32_t for each description: numbers in the first process, and in those forked from it */
};

_Static_assert(sizeof(struct pie_thread) == 112, "no padding in what crosses");
_Static_assert(sizeof(struct pie_map) == 48, "no padding in what crosses");
_Static_assert(sizeof(struct pie_mm) == 104, "struct prctl_mm_map");

/* The code, as it lies in core's own image: position independent, without calls or data outside. */
extern const uint8_t __start_ramet_restorer[], __stop_ramet_restorer[];
/* Its entry: never returns. `stack` is inside the region. */
void pie_stem(struct pie_args *args) __attribute__((noreturn));
/* The entry of a process that has the guest's memory already: a fork of a parked twin. */
void pie_adopted(struct pie_args *args) __attribute__((noreturn));

#endif
