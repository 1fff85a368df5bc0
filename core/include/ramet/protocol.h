/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that crosses between the daemon (Python) and core (C), and between core and init.
 * Python's copy, src/ramet/native/_protocol.py, is generated from this file by scripts/gen_protocol.py:
 * keep one enumerator or macro a line. PROTOCOL.md explains the order of messages.
 */
#ifndef RAMET_PROTOCOL_H
#define RAMET_PROTOCOL_H

#include <stdint.h>

#define RAMET_PROTOCOL_VERSION 1
/* "RMT1", little endian: a stray writer is noticed at the first frame. */
#define RAMET_FRAME_MAGIC 0x31544d52
/* Largest frame on the socket, header included. Larger payloads travel in a memory file. */
#define RAMET_FRAME_BYTES 65536
/* Largest payload in a memory file. Linux bounds argv + environment at 6 MiB for the default stack. */
#define RAMET_PAYLOAD_MAX 16777216
/* SCM_MAX_FD is 253; no message of ours needs more than this. */
#define RAMET_FRAME_FDS 64
#define RAMET_RECORD_MAX 65536
#define RAMET_NAME_MAX 64
#define RAMET_BINDS_MAX 40
/* An export has two more descriptors, in one frame. */
#define RAMET_LAYERS_MAX 60
#define RAMET_RLIMITS_MAX 16
#define RAMET_FILTER_BYTES_MAX 32768
#define RAMET_SANDBOXES_MAX 8192
#define RAMET_LANES_MAX 4096
#define RAMET_POOL_MAX 64
#define RAMET_FD_NONE 4294967295
/* With a step in RAMET_TAG_FAULT: who reaches it calls itself "held" and goes no further (tests). */
#define RAMET_FAULT_HOLD 65536

/* struct ramet_frame flags */
enum ramet_frame_flag {
  RAMET_FLAG_PAYLOAD_FD = 1, /* the payload is the content of the last descriptor, a sealed memory file */
};

/* Every frame: this header, then attributes. Little endian, no padding inside the header. */
struct ramet_frame {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint64_t request; /* chosen by the requester, repeated in the reply; 0 in events */
  uint32_t length;  /* payload bytes after the header, or in the memory file */
  uint16_t fds;     /* descriptors that came along, the memory file not counted */
  uint16_t flags;
};

/* An attribute: this header, `length` bytes of value, zero padding to 4 bytes. */
struct ramet_attr {
  uint16_t tag;
  uint16_t zero;
  uint32_t length;
};

enum ramet_kind {
  /* daemon to core */
  RAMET_HELLO = 1,
  RAMET_DEFINE_ROOT = 2,
  RAMET_DROP_ROOT = 3,
  RAMET_DEFINE_FILTER = 4,
  RAMET_RUN = 5,     /* create, spawn, wait, end: one request, one ENDED reply */
  RAMET_CREATE = 6,  /* a sandbox that stays; reply OK when it stands */
  RAMET_SPAWN = 7,   /* a command in a standing sandbox; reply OK, then an EXITED event */
  RAMET_KILL = 8,    /* end a sandbox; its ENDED follows */
  RAMET_LIST = 9,
  RAMET_STATUS = 10,
  RAMET_SHUTDOWN = 11,
  RAMET_SET_POOL = 12,
  RAMET_RECORD = 13, /* replace a sandbox's opaque record */
  RAMET_SNAPSHOT = 14,      /* freeze a standing sandbox, keep its state under a number */
  RAMET_DROP_SNAPSHOT = 15, /* its children go on */
  RAMET_EXPORT_SNAPSHOT = 16, /* answered with descriptors: description, pages, writable layers topmost first */
  RAMET_LOAD_SNAPSHOT = 17,   /* from such descriptors, on a root that is defined */
  RAMET_LANE = 18,            /* the descriptor that comes along is a lane from now on */
  RAMET_SIGNAL = 20,          /* to the process group of a command in a standing sandbox */
  RAMET_CLOSE_LANES = 19,     /* those without a run; answered with the number of the others */
  RAMET_OFFER = 21, /* a fork that nobody asked for, with the near ends of its streams: it may be claimed */
  RAMET_CLAIM = 22, /* such a fork of a snapshot; reply OK with what was offered */
  RAMET_WITHDRAW = 23, /* end a fork that is offered, unless it was claimed; its ENDED follows */
  /* over the control connection or a lane: commands with logs in a standing sandbox */
  RAMET_START = 24,        /* core makes the streams and keeps what is written */
  RAMET_ATTACH = 25,       /* a reader of such a command, also after its end */
  RAMET_COMMANDS = 26,     /* all of a sandbox, also after its end */
  RAMET_INPUT = 27,        /* bytes for its standard input, or the end of that */
  RAMET_KILL_COMMAND = 28, /* every process of it, wherever it went */
  RAMET_FORGET = 29,       /* the ended ones of a sandbox */
  RAMET_FILES = 30,        /* the descriptor that comes along, a SEQPACKET socket, carries FILE_ requests */
  RAMET_CONNECT = 31,      /* answered with a socket that is connected to a server in the sandbox */
  RAMET_HOLD = 41, /* near ends of a sandbox's streams, for the next daemon; none: they are not for it any more */
  RAMET_HELD = 42, /* answered with copies of them */
  RAMET_SWAP = 43, /* two standing sandboxes change numbers, and each gets a record: one takes the other's place */
  RAMET_AWAIT_EVENTS = 46, /* FLAGS (enum ramet_await): what somebody waits for */
  RAMET_RESIZE = 40, /* the window of a command that has a terminal */
  /* client to a sandbox's file server */
  RAMET_FILE_OPEN = 112,
  RAMET_FILE_STAT = 113,
  RAMET_FILE_LIST = 114,
  RAMET_FILE_MAKE_DIR = 115,
  RAMET_FILE_RENAME = 116,
  RAMET_FILE_REMOVE = 117,
  RAMET_FILE_LINK = 118,
  RAMET_FILE_SET = 119,
  RAMET_FILE_COPY = 120,
  RAMET_FILE_WATCH = 121,
  RAMET_FILE_USAGE = 122, /* what the sandbox uses now */
  RAMET_FILE_PROCESSES = 123, /* which processes it has now */
  RAMET_FILE_BASE = 124, /* on what it stands */
  /* core to daemon */
  RAMET_OK = 32,
  RAMET_ERROR = 33,
  RAMET_EXITED = 34, /* event: a command ended, its sandbox stays */
  RAMET_ENDED = 35, /* reply to RUN, or event: the sandbox is gone */
  RAMET_READY = 36, /* first frame on the control connection of a new core */
  RAMET_CREATED = 37, /* event: a client made a sandbox over a lane, or claimed one */
  RAMET_COMMAND_BEGAN = 47, /* event: one of START runs */
  RAMET_COMMAND_OVER = 48, /* event: it has ended */
  RAMET_OVER = 38, /* event: a sandbox with KEEP is above its memory, and stands still to be captured */
  RAMET_LET_GO = 44, /* event: who made a sandbox over a lane that is not OWNED has closed its session */
  /* core to init */
  RAMET_INIT_PREPARE = 64,
  RAMET_INIT_ENTER = 65, /* take root and limits */
  RAMET_INIT_SPAWN = 66,
  RAMET_INIT_RUN = 67, /* ENTER and SPAWN in one; init ends with the command */
  RAMET_INIT_SIGNAL = 69, /* a signal to a command's process group */
  RAMET_INIT_CONNECT = 73, /* to a port of the loopback */
  RAMET_INIT_KILL_COMMAND = 72, /* every process of a command */
  RAMET_INIT_TAKE_BACK = 74, /* kill those who hold too much of what all sandboxes share; without PID everybody */
  RAMET_INIT_END = 68, /* kill everything inside now; of RUN the end of the command is told as ever */
  /* init to core */
  RAMET_INIT_PREPARED = 80,
  RAMET_INIT_ENTERED = 81,
  RAMET_INIT_SPAWNED = 82,
  RAMET_INIT_EXITED = 83,
  RAMET_INIT_CARRIED = 90, /* a command that was forked while it ran, with core's ends of its streams */
  RAMET_INIT_FAILED = 84,
  RAMET_INIT_ENDED = 85, /* no process is left in a sandbox that was told to end */
  RAMET_INIT_CONNECTED = 86,
  RAMET_INIT_SIGNALLED = 91,
  RAMET_INIT_IDLE = 87, /* nothing has run in the sandbox for as long as may be */
  RAMET_INIT_OVER = 89, /* as OVER; PID: one that a signal of its own had stopped before */
  /* tracer to core, while the source stands still: fork the parked twin */
  RAMET_TRACER_TWIN = 96,
};

enum ramet_tag {
  /* errors */
  RAMET_TAG_CODE = 1, /* text: stable code, e.g. "isolation_failed" */
  RAMET_TAG_STEP = 2, /* u32: enum ramet_step */
  RAMET_TAG_ERRNO = 3, /* u32 */
  RAMET_TAG_TEXT = 4, /* text for people */
  RAMET_TAG_FIELD = 5, /* text: the attribute or argument at fault */
  /* session */
  RAMET_TAG_VERSION = 10, /* u32 */
  RAMET_TAG_CORE_ID = 11, /* u64, random at start */
  RAMET_TAG_GRACE_NS = 12, /* u64 */
  RAMET_TAG_POOL_SIZE = 13, /* u32 */
  RAMET_TAG_POOL_READY = 14, /* u32 */
  RAMET_TAG_SANDBOXES = 15, /* u32 */
  RAMET_TAG_SINGLE_UID = 16, /* u32: 1 when only one id is mapped */
  RAMET_TAG_RUNS = 17, /* u64: sandboxes ended since start */
  RAMET_TAG_ROOTS = 18, /* u32 */
  RAMET_TAG_PROGRAM = 19, /* text: version of core */
  RAMET_TAG_LANES = 20, /* u32 */
  RAMET_TAG_IDLE_NS = 21, /* u64: since a request for a sandbox arrived, or a run ended */
  RAMET_TAG_SNAPSHOT_MEMORY = 22, /* u64: bytes that stems and spares take */
  RAMET_TAG_CGROUPS = 24, /* text: version and controllers of the cgroups that sandboxes have; absent: none */
  RAMET_TAG_SNAPSHOT_BUDGET = 23, /* u64: bytes that they may take; 0: no limit */
  /* plan */
  RAMET_TAG_SANDBOX = 30, /* u64, chosen by the daemon, never 0 */
  RAMET_TAG_ROOT = 31, /* u32, chosen by the daemon, never 0 */
  RAMET_TAG_FILTER = 32, /* u32, chosen by the daemon, never 0 */
  RAMET_TAG_HOSTNAME = 33, /* text */
  RAMET_TAG_DISK_BYTES = 34, /* u64 */
  RAMET_TAG_DISK_INODES = 35, /* u64 */
  RAMET_TAG_NETWORK = 36, /* u32: enum ramet_network */
  RAMET_TAG_RLIMIT = 37, /* u32 resource, u32 zero, u64 soft, u64 hard; repeated */
  RAMET_TAG_PROCESSES = 38, /* u64: most processes and threads of the guest */
  RAMET_TAG_WALL_NS = 39, /* u64: from arrival of the request to the end of every process */
  RAMET_TAG_OWNED = 40, /* u32: 1 = ends with the control connection */
  RAMET_TAG_RECORD = 41, /* bytes */
  RAMET_TAG_FAULT = 42, /* u32: enum ramet_step that is to fail with EIO; FAULT_HOLD: to wait for SIGCONT (tests) */
  RAMET_TAG_MEMORY = 43, /* u64: bytes that all processes and written files together may take; 0: any */
  RAMET_TAG_WATCH = 44, /* u64, core to init: the same, where init has to see to it; in results, 1 if it had */
  RAMET_TAG_INHERITED = 27, /* u64, core to init: of a fork that is watched, memory that its snapshot has */
  RAMET_TAG_KEEP = 46, /* u32: 1: what exceeds its memory is not killed, but stands still until it is ended */
  RAMET_TAG_CPU_QUOTA = 45, /* u64: microseconds of processor time in each 100 ms; 0: any */
  RAMET_TAG_CPU_NS = 84, /* u64: processor time of all processes together; 0: any */
  RAMET_TAG_IDLE_NS_MAX = 85, /* u64: for how long nothing in it may run; 0: any */
  RAMET_TAG_SHM_BYTES = 86, /* u64: /dev/shm is a file system of this size; 0: a directory of the writable layer */
  RAMET_TAG_IO_BYTES = 87, /* u64: bytes a second that may be read from each disk, and written; 0: any */
  /* command */
  RAMET_TAG_SIGNAL = 49, /* u32: for SIGNAL, from 1 to 64 */
  RAMET_TAG_COMMAND = 50, /* u32: number of the command in its sandbox */
  RAMET_TAG_ARG = 51, /* text; repeated */
  RAMET_TAG_ENV = 52, /* text NAME=value; repeated */
  RAMET_TAG_CWD = 53, /* text, absolute */
  RAMET_TAG_UID = 54, /* u32 */
  RAMET_TAG_GID = 55, /* u32 */
  RAMET_TAG_STDIN = 56, /* u32: index of the frame's descriptor; absent: /dev/null */
  RAMET_TAG_STDOUT = 57,
  RAMET_TAG_STDERR = 58,
  RAMET_TAG_CHANNEL = 59, /* u32: index of a socket that becomes descriptor 3; absent: there is none */
  /* snapshots */
  RAMET_TAG_SNAPSHOT = 60, /* u32, chosen by the daemon, never 0; in CREATE: fork from it */
  RAMET_TAG_PAUSE_NS = 61, /* u64: how long the source stood still */
  RAMET_TAG_MEMORY_BYTES = 62, /* u64: pages kept in the image */
  RAMET_TAG_FILE_BYTES = 63, /* u64: bytes of files that this snapshot has and no earlier one of its source */
  RAMET_TAG_PROCESS_COUNT = 64, /* u32 */
  RAMET_TAG_CAPTURE_NS = 65, /* u64: from the request to the image */
  RAMET_TAG_STEM_NS = 66, /* u64: from the image to a stem that can be forked */
  RAMET_TAG_BY_TWIN = 67, /* u32: 1 when a parked twin gave the memory, and no page was copied */
  RAMET_TAG_WAYS = 126, /* text, a line for each process: how its memory came into the snapshot. PROTOCOL.md */
  RAMET_TAG_ADDRESS = 68, /* u64, between tracer and core */
  RAMET_TAG_DROP = 47, /* u32, in SNAPSHOT: 1: what cannot be carried is left out, and told */
  RAMET_TAG_DROPPED = 48, /* text, a line for each: "pid 57 python: fd 9 is a netlink socket" */
  RAMET_TAG_RESTARTED = 69, /* bytes, tracer to core: struct restarted of capture.h */
  /* results */
  RAMET_TAG_STATUS = 70, /* u32: wait status of the command */
  RAMET_TAG_REASON = 71, /* u32: enum ramet_reason */
  RAMET_TAG_USER_NS = 72, /* u64 */
  RAMET_TAG_SYSTEM_NS = 73, /* u64 */
  RAMET_TAG_PEAK_BYTES = 74, /* u64: largest resident set of one process */
  RAMET_TAG_ELAPSED_NS = 75, /* u64: from arrival to the end of the command */
  RAMET_TAG_DISK_PEAK = 76, /* u64: bytes in the writable layer at the end */
  RAMET_TAG_PID = 77, /* u32: pid inside the sandbox */
  RAMET_TAG_LINGERING = 78, /* u32: 1 when a process did not die in time (uninterruptible sleep) */
  RAMET_TAG_SETUP_NS = 79, /* u64: from arrival to the command's exec */
  RAMET_TAG_MEMORY_PEAK = 81, /* u64: the most that everything together took, as far as somebody looked */
  RAMET_TAG_OOM_KILLS = 82, /* u64: processes that were killed because of the limit on memory */
  RAMET_TAG_SHARED_BYTES = 89, /* u64: of MEMORY_BYTES, what others have as well */
  RAMET_TAG_FILE_COUNT = 105, /* u64: files and directories in the writable layer; DISK_INODES: that may be */
  RAMET_TAG_REACHED = 96, /* u32, init to core: enum ramet_reached */
  RAMET_TAG_LIMIT = 97, /* u32: enum ramet_limit */
  RAMET_TAG_CPU_PEAK_NS = 98, /* u64: what all processes have run, where the limit on that was reached; else 0 */
  RAMET_TAG_SHM_PEAK = 99, /* u64: bytes in a /dev/shm of its own; SHM_BYTES: that may be, 0: it has none */
  RAMET_TAG_SHM_FILE_COUNT = 108, /* u64: files and directories in that; SHM_INODES: that may be */
  RAMET_TAG_SHM_INODES = 109,
  RAMET_TAG_CPU_KILLED = 88, /* u32, init to core: 1 when all was killed for its processor time */
  RAMET_TAG_STARTED_NS = 80, /* u64, init to core, of RUN: CLOCK_MONOTONIC at the command's exec */
  /* roots */
  RAMET_TAG_DIR = 90, /* u32 mode, path */
  RAMET_TAG_LINK = 91, /* u32 length of target, target, path */
  RAMET_TAG_FILE = 92, /* u32 mode, u32 length of path, path, content */
  RAMET_TAG_BIND = 93, /* u32 flags, u32 descriptor index or FD_NONE, u32 length of source, source, target */
  RAMET_TAG_LAYER = 94, /* u32 descriptor index or FD_NONE, path; topmost first */
  RAMET_TAG_BYTES = 95, /* raw bytes: the seccomp program; for INPUT what to write */
  /* commands with logs */
  RAMET_TAG_LOG_BYTES = 100, /* u64: bytes kept of each stream, half head, half tail */
  RAMET_TAG_FLAGS = 101, /* u32: enum ramet_start_flag */
  RAMET_TAG_PORT = 103, /* u32 */
  RAMET_TAG_THREAD_COUNT = 104, /* u32 */
  RAMET_TAG_WINDOW = 106, /* u32: rows << 16 | columns of a terminal, neither 0 */
  RAMET_TAG_MISSED = 107, /* u64, in the events of commands: so many before it are missing */
  RAMET_TAG_COMMAND_INFO = 102, /* struct ramet_command_info, and the command's record; repeated */
};

enum ramet_file_tag {
  RAMET_TAG_PATH = 110, /* text, inside the sandbox */
  RAMET_TAG_OTHER = 111, /* text: where to rename or copy to; what a link is to say */
  RAMET_TAG_MODE = 112, /* u32: permissions */
  RAMET_TAG_TREE = 113, /* u32: enum ramet_file_tree; absent: the sandbox's */
  RAMET_TAG_DEPTH = 114, /* u32: of LIST, how many levels below the directory; 0: all */
  RAMET_TAG_MTIME_NS = 115, /* u64: nanoseconds since the epoch */
  RAMET_TAG_FILE_INFO = 116, /* struct ramet_file_info, name, target; repeated */
  RAMET_TAG_MORE = 117, /* u32: 1: another frame answers too */
  RAMET_TAG_PROCESS_INFO = 118, /* struct ramet_process_info, name, the words of its command; repeated */
  RAMET_TAG_BASE = 119, /* u64: the root below all snapshots; of one core no two roots ever have the same */
};

enum ramet_file_tree {
  RAMET_TREE_SANDBOX = 0,
  RAMET_TREE_ORIGIN = 1, /* as the sandbox was when it was made */
  RAMET_TREE_WRITTEN = 2, /* its writable layer alone: whiteouts are devices 0,0 */
  RAMET_TREE_INHERITED = 3, /* and on: what those wrote that it was forked from, a layer each, the topmost first */
};

enum ramet_file_flag {
  RAMET_FILE_READ = 1,
  RAMET_FILE_WRITE = 2,
  RAMET_FILE_CREATE = 4,
  RAMET_FILE_TRUNCATE = 8,
  RAMET_FILE_EXCLUSIVE = 16,
  RAMET_FILE_APPEND = 32,
  RAMET_FILE_PARENTS = 64, /* make missing directories above */
  RAMET_FILE_RECURSIVE = 128, /* REMOVE, COPY, WATCH: with everything below */
  RAMET_FILE_REPLACE = 256, /* RENAME, COPY: what stands there goes */
  RAMET_FILE_AS_NAMED = 512, /* a link is meant itself, not what it leads to */
  RAMET_FILE_HARD = 1024, /* LINK: another name of the file, not a link that says where it is */
};

/* What is told of a file; `name_length` bytes of its name and `target_length` of what a link says follow. */
struct ramet_file_info {
  uint64_t size;
  uint64_t inode;
  uint64_t mtime_ns;
  uint64_t blocks;
  uint32_t mode;
  uint32_t uid;
  uint32_t gid;
  uint32_t links;
  uint32_t device; /* of a device */
  uint32_t opaque; /* 1: a directory that hides the one below it */
  uint32_t name_length;
  uint32_t target_length;
};

/* What is told of a process; `name_length` bytes of its name and `command_length` of its command follow. Numbers are
 * those that the sandbox sees; the parent is 0 where it has just ended. */
#define RAMET_PROCESS_COMMAND_MAX 4096 /* what is longer is cut off */
struct ramet_process_info {
  uint32_t pid;
  uint32_t parent;
  uint32_t uid;
  uint32_t threads;
  uint32_t state; /* the letter of proc(5) */
  uint32_t name_length;
  uint32_t command_length;
};

enum ramet_start_flag {
  RAMET_START_STDIN = 1, /* START: its input is what INPUT brings; else /dev/null */
  RAMET_START_AT_END = 2, /* START: answered at the command's end, and then forgotten */
  RAMET_START_CHANGES = 4, /* START, ATTACH: the wakeup tells of output too, and not only of the end */
  RAMET_INPUT_END = 8, /* INPUT: nothing follows */
  RAMET_START_TERMINAL = 16, /* START: a terminal is its three streams, all of which is its standard output here */
};

enum ramet_command_state {
  RAMET_COMMAND_STARTING = 0,
  RAMET_COMMAND_RUNNING = 1,
  RAMET_COMMAND_ENDED = 2,
};

#define RAMET_LOG_MAGIC 0x474f4c52
/* The header stands alone in the log's first bytes; then the first stream's head and ring, then the second's. */
#define RAMET_LOG_HEADER 4096
/* Most bytes written at once: so many before the oldest byte of the ring may be in the course of being replaced. */
#define RAMET_LOG_CHUNK 65536
#define RAMET_LOG_BYTES_MAX 1073741824
#define RAMET_COMMAND_RECORD_MAX 8192
#define RAMET_INPUT_MAX 65000

/* A command's log begins with this. Its readers have the file read-only; core writes totals after the bytes, and
 * `state` last. Byte n of a stream stands at n in its head, else at (n - head) modulo ring behind that. */
struct ramet_log {
  uint32_t magic;
  uint32_t state; /* enum ramet_command_state */
  uint64_t head; /* bytes of a head */
  uint64_t ring; /* bytes of a ring; the last `ring` - RAMET_LOG_CHUNK written are there to be read */
  uint64_t tail; /* bytes at the end of a stream that are its result, behind the head */
  uint64_t total[2]; /* written so far: standard output, standard error */
  uint32_t failed[2]; /* errno that kept bytes out of the log */
  uint32_t reason; /* enum ramet_reason; this and what follows at the end */
  uint32_t status;
  uint64_t user_ns, system_ns, peak_bytes, disk_bytes;
  uint64_t elapsed_ns, setup_ns;
  uint64_t memory_peak, oom_kills;
  uint32_t lingering;
  uint32_t terminal; /* from the beginning on; 1: standard output is a terminal's, and there is no standard error */
  uint64_t begin[2]; /* of a command that was forked while it ran: what came before is in its parent's log alone */
  uint32_t filling[2]; /* core's: what it has read of a stream is not counted yet */
  uint32_t limit; /* enum ramet_limit; at the end, as what follows */
  uint32_t zero;
  uint64_t cpu_peak_ns, shm_bytes, wall_ns;
};

struct ramet_command_info {
  uint32_t number;
  uint32_t pid;
  uint32_t state;
  uint32_t reason;
  uint32_t status;
  uint32_t input; /* 1: takes INPUT */
  uint32_t window; /* of its terminal, as TAG_WINDOW; 0: it has none */
  uint32_t zero;
  uint64_t elapsed_ns;
  uint64_t total[2];
};

enum ramet_bind_flag {
  RAMET_BIND_READ_ONLY = 1,
};

enum ramet_network {
  RAMET_NETWORK_NONE = 0, /* a network namespace with nothing but a loopback that is up */
};

/* What of the events the daemon is to hear within milliseconds. */
enum ramet_await {
  RAMET_AWAIT_NOTHING = 0,
  RAMET_AWAIT_EVERYTHING = 1, /* sandboxes, and commands that begin and end */
  RAMET_AWAIT_SANDBOXES = 2,
};

enum ramet_reason {
  RAMET_REASON_EXIT = 0,
  RAMET_REASON_SIGNAL = 1,
  RAMET_REASON_TIMEOUT = 2,
  RAMET_REASON_KILLED = 3, /* by request, or because its owner went */
  RAMET_REASON_LOST = 4, /* init died unasked: a defect or the host's out-of-memory killer */
  RAMET_REASON_OOM = 5, /* killed because of the limit on memory */
  RAMET_REASON_CPU = 7, /* killed because of the limit on processor time */
  RAMET_REASON_IDLE = 8, /* nothing ran in the sandbox for as long as may be */
  RAMET_REASON_DISK = 6, /* a mapped file could not grow: SIGBUS, and the disk is full */
};

/* What init has seen, when a command ended. */
enum ramet_reached {
  RAMET_REACHED_MEMORY = 1, /* it, or what it may have waited for, had just been killed for the limit on memory */
  RAMET_REACHED_CPU = 2, /* the limit on processor time was reached */
  RAMET_REACHED_FILE_SIZE = 4, /* it, and what it waited for, had written as much as one file may have */
  RAMET_REACHED_DISK = 8, /* nothing more could be written to the root */
  RAMET_REACHED_SHM = 16, /* or to a /dev/shm of its own */
  RAMET_REACHED_IN_FLIGHT = 32, /* somebody had just been killed who had too many descriptors in flight */
  RAMET_REACHED_EPOLL_WATCHES = 64, /* or watches of epoll */
};

/* The limit whose being reached goes with the signal that a command, or by a shell's exit code what it waited for, died
 * of. Others are told by the reason. */
enum ramet_limit {
  RAMET_LIMIT_NONE = 0,
  RAMET_LIMIT_CPU_SECONDS = 1,
  RAMET_LIMIT_FILE_SIZE = 2,
  RAMET_LIMIT_DISK = 3,
  RAMET_LIMIT_SHM = 4,
  RAMET_LIMIT_IN_FLIGHT = 5, /* descriptors in unix sockets */
  RAMET_LIMIT_EPOLL_WATCHES = 6,
};

/* Named steps. A failure carries the step and errno; RAMET_TAG_FAULT makes one fail on purpose. */
enum ramet_step {
  RAMET_STEP_NONE = 0,
  /* launcher */
  RAMET_STEP_CLONE_CORE = 1,
  RAMET_STEP_MAP_IDS = 2,
  RAMET_STEP_TAKE_IDS = 3,
  RAMET_STEP_RUN_CORE = 4,
  RAMET_STEP_CORE_CGROUP = 5,
  /* core, once */
  RAMET_STEP_PRIVATE_MOUNTS = 10,
  RAMET_STEP_KEEP_HOST_MOUNTS = 11,
  RAMET_STEP_CORE_ROOT = 12,
  RAMET_STEP_CORE_PROC = 13,
  RAMET_STEP_CORE_DEV = 14,
  RAMET_STEP_LEAVE_HOST_ROOT = 15,
  /* core, a root */
  RAMET_STEP_ROOT_SKELETON = 20,
  RAMET_STEP_ROOT_BIND = 21,
  RAMET_STEP_ROOT_LAYER = 22,
  /* core, a pool entry */
  RAMET_STEP_CLONE_INIT = 30,
  RAMET_STEP_MAP_INIT = 31,
  /* init, before hand-out */
  RAMET_STEP_INIT_PROTECT = 40,
  RAMET_STEP_INIT_IDS = 41,
  RAMET_STEP_INIT_CGROUP = 49,
  RAMET_STEP_INIT_NETWORK = 48,
  RAMET_STEP_INIT_LOOPBACK = 42,
  RAMET_STEP_INIT_PROC = 43,
  RAMET_STEP_INIT_MASK_PROC = 44,
  RAMET_STEP_INIT_PTS = 45,
  RAMET_STEP_INIT_DEV = 46,
  RAMET_STEP_INIT_BOUNDING_SET = 47,
  RAMET_STEP_INIT_VIEW = 39,
  /* core, hand-out */
  RAMET_STEP_UPPER = 50,
  RAMET_STEP_OVERLAY = 51,
  RAMET_STEP_CLONE_BINDS = 52,
  RAMET_STEP_SEND_PLAN = 53,
  /* init, hand-out */
  RAMET_STEP_ATTACH_ROOT = 60,
  RAMET_STEP_ATTACH_BINDS = 61,
  RAMET_STEP_ATTACH_PROC = 62,
  RAMET_STEP_ATTACH_DEV = 63,
  RAMET_STEP_ATTACH_SHM = 64,
  RAMET_STEP_PIVOT_ROOT = 65,
  RAMET_STEP_DETACH_OLD_ROOT = 66,
  RAMET_STEP_HOSTNAME = 67,
  RAMET_STEP_NETWORK = 68,
  /* the command's process */
  RAMET_STEP_FORK_COMMAND = 80,
  RAMET_STEP_SESSION = 81,
  RAMET_STEP_STREAMS = 82,
  RAMET_STEP_CLOSE_DESCRIPTORS = 83,
  RAMET_STEP_RLIMITS = 84,
  RAMET_STEP_WORKING_DIRECTORY = 85,
  RAMET_STEP_SWITCH_USER = 86,
  RAMET_STEP_DROP_CAPABILITIES = 87,
  RAMET_STEP_NO_NEW_PRIVS = 88,
  RAMET_STEP_SECCOMP = 89,
  RAMET_STEP_EXEC = 90,
  /* snapshot: the tracer */
  RAMET_STEP_FIND_PROCESSES = 100,
  RAMET_STEP_SEIZE = 101,
  RAMET_STEP_REGISTERS = 102,
  RAMET_STEP_MAPPINGS = 103,
  RAMET_STEP_INJECT = 104,
  RAMET_STEP_FROZEN_TWIN = 105,
  RAMET_STEP_DESCRIPTORS = 106,
  RAMET_STEP_COPY_UPPER = 107,
  RAMET_STEP_RESUME = 108,
  RAMET_STEP_PAGES = 109,
  RAMET_STEP_DROP_TWIN = 110,
  RAMET_STEP_IMAGE = 111,
  RAMET_STEP_PARKED_TWIN = 112,
  RAMET_STEP_EXPORT = 113,
  RAMET_STEP_LOAD = 114,
  RAMET_STEP_COPY_AHEAD = 115,
  RAMET_STEP_FLATTEN = 116,
  /* a stem */
  RAMET_STEP_STEM_FORK = 120,
  RAMET_STEP_STEM_FILES = 121,
  RAMET_STEP_STEM_REGION = 122,
  RAMET_STEP_STEM_UNMAP = 123,
  RAMET_STEP_STEM_MAP = 124,
  RAMET_STEP_STEM_FILL = 125,
  RAMET_STEP_STEM_PROTECT = 126,
  RAMET_STEP_STEM_MM = 127,
  RAMET_STEP_STEM_ADOPT = 128,
  /* a child of a stem */
  RAMET_STEP_CHILD_PIDNS = 140,
  RAMET_STEP_CHILD_CLONE = 141,
  RAMET_STEP_CHILD_MAKE_FDS = 142,
  RAMET_STEP_CHILD_NAMESPACES = 143,
  RAMET_STEP_CHILD_FDS = 144,
  RAMET_STEP_CHILD_DIRECTORY = 145,
  RAMET_STEP_CHILD_SHARED_MEMORY = 146,
  RAMET_STEP_CHILD_THREADS = 147,
  RAMET_STEP_CHILD_STATE = 148,
  RAMET_STEP_CHILD_CAPABILITIES = 149,
  RAMET_STEP_CHILD_SECCOMP = 150,
  RAMET_STEP_CHILD_FAMILY = 151,
  RAMET_STEP_CHILD_MEMORY = 152,
  RAMET_STEP_CHILD_CGROUP = 153,
};

#endif
