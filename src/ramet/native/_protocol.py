"""Numbers of core's protocol.

Generated from core/include/ramet/protocol.h by scripts/gen_protocol.py. Do not edit.
"""

from types import MappingProxyType

PROTOCOL_VERSION = 1
FRAME_MAGIC = 0x31544D52
FRAME_BYTES = 65536
PAYLOAD_MAX = 16777216
FRAME_FDS = 64
RECORD_MAX = 65536
NAME_MAX = 64
BINDS_MAX = 40
LAYERS_MAX = 60
RLIMITS_MAX = 16
FILTER_BYTES_MAX = 32768
SANDBOXES_MAX = 8192
LANES_MAX = 4096
POOL_MAX = 64
FD_NONE = 4294967295
FAULT_HOLD = 65536
PROCESS_COMMAND_MAX = 4096
LOG_MAGIC = 0x474F4C52
LOG_HEADER = 4096
LOG_CHUNK = 65536
LOG_BYTES_MAX = 1073741824
COMMAND_RECORD_MAX = 8192
INPUT_MAX = 65000

# enum ramet_frame_flag
FLAG_PAYLOAD_FD = 1

# enum ramet_kind
HELLO = 1
DEFINE_ROOT = 2
DROP_ROOT = 3
DEFINE_FILTER = 4
RUN = 5
CREATE = 6
SPAWN = 7
KILL = 8
LIST = 9
STATUS = 10
SHUTDOWN = 11
SET_POOL = 12
RECORD = 13
SNAPSHOT = 14
DROP_SNAPSHOT = 15
EXPORT_SNAPSHOT = 16
LOAD_SNAPSHOT = 17
LANE = 18
SIGNAL = 20
CLOSE_LANES = 19
OFFER = 21
CLAIM = 22
WITHDRAW = 23
START = 24
ATTACH = 25
COMMANDS = 26
INPUT = 27
KILL_COMMAND = 28
FORGET = 29
FILES = 30
CONNECT = 31
HOLD = 41
HELD = 42
SWAP = 43
AWAIT_EVENTS = 46
RESIZE = 40
FILE_OPEN = 112
FILE_STAT = 113
FILE_LIST = 114
FILE_MAKE_DIR = 115
FILE_RENAME = 116
FILE_REMOVE = 117
FILE_LINK = 118
FILE_SET = 119
FILE_COPY = 120
FILE_WATCH = 121
FILE_USAGE = 122
FILE_PROCESSES = 123
FILE_BASE = 124
OK = 32
ERROR = 33
EXITED = 34
ENDED = 35
READY = 36
CREATED = 37
COMMAND_BEGAN = 47
COMMAND_OVER = 48
OVER = 38
LET_GO = 44
INIT_PREPARE = 64
INIT_ENTER = 65
INIT_SPAWN = 66
INIT_RUN = 67
INIT_SIGNAL = 69
INIT_CONNECT = 73
INIT_KILL_COMMAND = 72
INIT_TAKE_BACK = 74
INIT_END = 68
INIT_PREPARED = 80
INIT_ENTERED = 81
INIT_SPAWNED = 82
INIT_EXITED = 83
INIT_CARRIED = 90
INIT_FAILED = 84
INIT_ENDED = 85
INIT_CONNECTED = 86
INIT_SIGNALLED = 91
INIT_IDLE = 87
INIT_OVER = 89
TRACER_TWIN = 96

# enum ramet_tag
TAG_CODE = 1
TAG_STEP = 2
TAG_ERRNO = 3
TAG_TEXT = 4
TAG_FIELD = 5
TAG_VERSION = 10
TAG_CORE_ID = 11
TAG_GRACE_NS = 12
TAG_POOL_SIZE = 13
TAG_POOL_READY = 14
TAG_SANDBOXES = 15
TAG_SINGLE_UID = 16
TAG_RUNS = 17
TAG_ROOTS = 18
TAG_PROGRAM = 19
TAG_LANES = 20
TAG_IDLE_NS = 21
TAG_SNAPSHOT_MEMORY = 22
TAG_CGROUPS = 24
TAG_SNAPSHOT_BUDGET = 23
TAG_SANDBOX = 30
TAG_ROOT = 31
TAG_FILTER = 32
TAG_HOSTNAME = 33
TAG_DISK_BYTES = 34
TAG_DISK_INODES = 35
TAG_NETWORK = 36
TAG_RLIMIT = 37
TAG_PROCESSES = 38
TAG_WALL_NS = 39
TAG_OWNED = 40
TAG_RECORD = 41
TAG_FAULT = 42
TAG_MEMORY = 43
TAG_WATCH = 44
TAG_INHERITED = 27
TAG_KEEP = 46
TAG_CPU_QUOTA = 45
TAG_CPU_NS = 84
TAG_IDLE_NS_MAX = 85
TAG_SHM_BYTES = 86
TAG_IO_BYTES = 87
TAG_SIGNAL = 49
TAG_COMMAND = 50
TAG_ARG = 51
TAG_ENV = 52
TAG_CWD = 53
TAG_UID = 54
TAG_GID = 55
TAG_STDIN = 56
TAG_STDOUT = 57
TAG_STDERR = 58
TAG_CHANNEL = 59
TAG_SNAPSHOT = 60
TAG_PAUSE_NS = 61
TAG_MEMORY_BYTES = 62
TAG_FILE_BYTES = 63
TAG_PROCESS_COUNT = 64
TAG_CAPTURE_NS = 65
TAG_STEM_NS = 66
TAG_BY_TWIN = 67
TAG_WAYS = 126
TAG_ADDRESS = 68
TAG_DROP = 47
TAG_DROPPED = 48
TAG_RESTARTED = 69
TAG_STATUS = 70
TAG_REASON = 71
TAG_USER_NS = 72
TAG_SYSTEM_NS = 73
TAG_PEAK_BYTES = 74
TAG_ELAPSED_NS = 75
TAG_DISK_PEAK = 76
TAG_PID = 77
TAG_LINGERING = 78
TAG_SETUP_NS = 79
TAG_MEMORY_PEAK = 81
TAG_OOM_KILLS = 82
TAG_SHARED_BYTES = 89
TAG_FILE_COUNT = 105
TAG_REACHED = 96
TAG_LIMIT = 97
TAG_CPU_PEAK_NS = 98
TAG_SHM_PEAK = 99
TAG_SHM_FILE_COUNT = 108
TAG_SHM_INODES = 109
TAG_CPU_KILLED = 88
TAG_STARTED_NS = 80
TAG_DIR = 90
TAG_LINK = 91
TAG_FILE = 92
TAG_BIND = 93
TAG_LAYER = 94
TAG_BYTES = 95
TAG_LOG_BYTES = 100
TAG_FLAGS = 101
TAG_PORT = 103
TAG_THREAD_COUNT = 104
TAG_WINDOW = 106
TAG_MISSED = 107
TAG_COMMAND_INFO = 102

# enum ramet_file_tag
TAG_PATH = 110
TAG_OTHER = 111
TAG_MODE = 112
TAG_TREE = 113
TAG_DEPTH = 114
TAG_MTIME_NS = 115
TAG_FILE_INFO = 116
TAG_MORE = 117
TAG_PROCESS_INFO = 118
TAG_BASE = 119

# enum ramet_file_tree
TREE_SANDBOX = 0
TREE_ORIGIN = 1
TREE_WRITTEN = 2
TREE_INHERITED = 3

# enum ramet_file_flag
FILE_READ = 1
FILE_WRITE = 2
FILE_CREATE = 4
FILE_TRUNCATE = 8
FILE_EXCLUSIVE = 16
FILE_APPEND = 32
FILE_PARENTS = 64
FILE_RECURSIVE = 128
FILE_REPLACE = 256
FILE_AS_NAMED = 512
FILE_HARD = 1024

# enum ramet_start_flag
START_STDIN = 1
START_AT_END = 2
START_CHANGES = 4
INPUT_END = 8
START_TERMINAL = 16

# enum ramet_command_state
COMMAND_STARTING = 0
COMMAND_RUNNING = 1
COMMAND_ENDED = 2

# enum ramet_bind_flag
BIND_READ_ONLY = 1

# enum ramet_network
NETWORK_NONE = 0

# enum ramet_await
AWAIT_NOTHING = 0
AWAIT_EVERYTHING = 1
AWAIT_SANDBOXES = 2

# enum ramet_reason
REASON_EXIT = 0
REASON_SIGNAL = 1
REASON_TIMEOUT = 2
REASON_KILLED = 3
REASON_LOST = 4
REASON_OOM = 5
REASON_CPU = 7
REASON_IDLE = 8
REASON_DISK = 6

# enum ramet_reached
REACHED_MEMORY = 1
REACHED_CPU = 2
REACHED_FILE_SIZE = 4
REACHED_DISK = 8
REACHED_SHM = 16
REACHED_IN_FLIGHT = 32
REACHED_EPOLL_WATCHES = 64

# enum ramet_limit
LIMIT_NONE = 0
LIMIT_CPU_SECONDS = 1
LIMIT_FILE_SIZE = 2
LIMIT_DISK = 3
LIMIT_SHM = 4
LIMIT_IN_FLIGHT = 5
LIMIT_EPOLL_WATCHES = 6

# enum ramet_step
STEP_NONE = 0
STEP_CLONE_CORE = 1
STEP_MAP_IDS = 2
STEP_TAKE_IDS = 3
STEP_RUN_CORE = 4
STEP_CORE_CGROUP = 5
STEP_PRIVATE_MOUNTS = 10
STEP_KEEP_HOST_MOUNTS = 11
STEP_CORE_ROOT = 12
STEP_CORE_PROC = 13
STEP_CORE_DEV = 14
STEP_LEAVE_HOST_ROOT = 15
STEP_ROOT_SKELETON = 20
STEP_ROOT_BIND = 21
STEP_ROOT_LAYER = 22
STEP_CLONE_INIT = 30
STEP_MAP_INIT = 31
STEP_INIT_PROTECT = 40
STEP_INIT_IDS = 41
STEP_INIT_CGROUP = 49
STEP_INIT_NETWORK = 48
STEP_INIT_LOOPBACK = 42
STEP_INIT_PROC = 43
STEP_INIT_MASK_PROC = 44
STEP_INIT_PTS = 45
STEP_INIT_DEV = 46
STEP_INIT_BOUNDING_SET = 47
STEP_INIT_VIEW = 39
STEP_UPPER = 50
STEP_OVERLAY = 51
STEP_CLONE_BINDS = 52
STEP_SEND_PLAN = 53
STEP_ATTACH_ROOT = 60
STEP_ATTACH_BINDS = 61
STEP_ATTACH_PROC = 62
STEP_ATTACH_DEV = 63
STEP_ATTACH_SHM = 64
STEP_PIVOT_ROOT = 65
STEP_DETACH_OLD_ROOT = 66
STEP_HOSTNAME = 67
STEP_NETWORK = 68
STEP_FORK_COMMAND = 80
STEP_SESSION = 81
STEP_STREAMS = 82
STEP_CLOSE_DESCRIPTORS = 83
STEP_RLIMITS = 84
STEP_WORKING_DIRECTORY = 85
STEP_SWITCH_USER = 86
STEP_DROP_CAPABILITIES = 87
STEP_NO_NEW_PRIVS = 88
STEP_SECCOMP = 89
STEP_EXEC = 90
STEP_FIND_PROCESSES = 100
STEP_SEIZE = 101
STEP_REGISTERS = 102
STEP_MAPPINGS = 103
STEP_INJECT = 104
STEP_FROZEN_TWIN = 105
STEP_DESCRIPTORS = 106
STEP_COPY_UPPER = 107
STEP_RESUME = 108
STEP_PAGES = 109
STEP_DROP_TWIN = 110
STEP_IMAGE = 111
STEP_PARKED_TWIN = 112
STEP_EXPORT = 113
STEP_LOAD = 114
STEP_COPY_AHEAD = 115
STEP_FLATTEN = 116
STEP_STEM_FORK = 120
STEP_STEM_FILES = 121
STEP_STEM_REGION = 122
STEP_STEM_UNMAP = 123
STEP_STEM_MAP = 124
STEP_STEM_FILL = 125
STEP_STEM_PROTECT = 126
STEP_STEM_MM = 127
STEP_STEM_ADOPT = 128
STEP_CHILD_PIDNS = 140
STEP_CHILD_CLONE = 141
STEP_CHILD_MAKE_FDS = 142
STEP_CHILD_NAMESPACES = 143
STEP_CHILD_FDS = 144
STEP_CHILD_DIRECTORY = 145
STEP_CHILD_SHARED_MEMORY = 146
STEP_CHILD_THREADS = 147
STEP_CHILD_STATE = 148
STEP_CHILD_CAPABILITIES = 149
STEP_CHILD_SECCOMP = 150
STEP_CHILD_FAMILY = 151
STEP_CHILD_MEMORY = 152
STEP_CHILD_CGROUP = 153

KIND_NAMES = MappingProxyType(
    {
        1: "hello",
        2: "define_root",
        3: "drop_root",
        4: "define_filter",
        5: "run",
        6: "create",
        7: "spawn",
        8: "kill",
        9: "list",
        10: "status",
        11: "shutdown",
        12: "set_pool",
        13: "record",
        14: "snapshot",
        15: "drop_snapshot",
        16: "export_snapshot",
        17: "load_snapshot",
        18: "lane",
        20: "signal",
        19: "close_lanes",
        21: "offer",
        22: "claim",
        23: "withdraw",
        24: "start",
        25: "attach",
        26: "commands",
        27: "input",
        28: "kill_command",
        29: "forget",
        30: "files",
        31: "connect",
        41: "hold",
        42: "held",
        43: "swap",
        46: "await_events",
        40: "resize",
        112: "file_open",
        113: "file_stat",
        114: "file_list",
        115: "file_make_dir",
        116: "file_rename",
        117: "file_remove",
        118: "file_link",
        119: "file_set",
        120: "file_copy",
        121: "file_watch",
        122: "file_usage",
        123: "file_processes",
        124: "file_base",
        32: "ok",
        33: "error",
        34: "exited",
        35: "ended",
        36: "ready",
        37: "created",
        47: "command_began",
        48: "command_over",
        38: "over",
        44: "let_go",
        64: "init_prepare",
        65: "init_enter",
        66: "init_spawn",
        67: "init_run",
        69: "init_signal",
        73: "init_connect",
        72: "init_kill_command",
        74: "init_take_back",
        68: "init_end",
        80: "init_prepared",
        81: "init_entered",
        82: "init_spawned",
        83: "init_exited",
        90: "init_carried",
        84: "init_failed",
        85: "init_ended",
        86: "init_connected",
        91: "init_signalled",
        87: "init_idle",
        89: "init_over",
        96: "tracer_twin",
    }
)

STEP_NAMES = MappingProxyType(
    {
        0: "none",
        1: "clone_core",
        2: "map_ids",
        3: "take_ids",
        4: "run_core",
        5: "core_cgroup",
        10: "private_mounts",
        11: "keep_host_mounts",
        12: "core_root",
        13: "core_proc",
        14: "core_dev",
        15: "leave_host_root",
        20: "root_skeleton",
        21: "root_bind",
        22: "root_layer",
        30: "clone_init",
        31: "map_init",
        40: "init_protect",
        41: "init_ids",
        49: "init_cgroup",
        48: "init_network",
        42: "init_loopback",
        43: "init_proc",
        44: "init_mask_proc",
        45: "init_pts",
        46: "init_dev",
        47: "init_bounding_set",
        39: "init_view",
        50: "upper",
        51: "overlay",
        52: "clone_binds",
        53: "send_plan",
        60: "attach_root",
        61: "attach_binds",
        62: "attach_proc",
        63: "attach_dev",
        64: "attach_shm",
        65: "pivot_root",
        66: "detach_old_root",
        67: "hostname",
        68: "network",
        80: "fork_command",
        81: "session",
        82: "streams",
        83: "close_descriptors",
        84: "rlimits",
        85: "working_directory",
        86: "switch_user",
        87: "drop_capabilities",
        88: "no_new_privs",
        89: "seccomp",
        90: "exec",
        100: "find_processes",
        101: "seize",
        102: "registers",
        103: "mappings",
        104: "inject",
        105: "frozen_twin",
        106: "descriptors",
        107: "copy_upper",
        108: "resume",
        109: "pages",
        110: "drop_twin",
        111: "image",
        112: "parked_twin",
        113: "export",
        114: "load",
        115: "copy_ahead",
        116: "flatten",
        120: "stem_fork",
        121: "stem_files",
        122: "stem_region",
        123: "stem_unmap",
        124: "stem_map",
        125: "stem_fill",
        126: "stem_protect",
        127: "stem_mm",
        128: "stem_adopt",
        140: "child_pidns",
        141: "child_clone",
        142: "child_make_fds",
        143: "child_namespaces",
        144: "child_fds",
        145: "child_directory",
        146: "child_shared_memory",
        147: "child_threads",
        148: "child_state",
        149: "child_capabilities",
        150: "child_seccomp",
        151: "child_family",
        152: "child_memory",
        153: "child_cgroup",
    }
)

REASON_NAMES = MappingProxyType(
    {
        0: "exit",
        1: "signal",
        2: "timeout",
        3: "killed",
        4: "lost",
        5: "oom",
        7: "cpu",
        8: "idle",
        6: "disk",
    }
)

TAG_NAMES = MappingProxyType(
    {
        1: "code",
        2: "step",
        3: "errno",
        4: "text",
        5: "field",
        10: "version",
        11: "core_id",
        12: "grace_ns",
        13: "pool_size",
        14: "pool_ready",
        15: "sandboxes",
        16: "single_uid",
        17: "runs",
        18: "roots",
        19: "program",
        20: "lanes",
        21: "idle_ns",
        22: "snapshot_memory",
        24: "cgroups",
        23: "snapshot_budget",
        30: "sandbox",
        31: "root",
        32: "filter",
        33: "hostname",
        34: "disk_bytes",
        35: "disk_inodes",
        36: "network",
        37: "rlimit",
        38: "processes",
        39: "wall_ns",
        40: "owned",
        41: "record",
        42: "fault",
        43: "memory",
        44: "watch",
        27: "inherited",
        46: "keep",
        45: "cpu_quota",
        84: "cpu_ns",
        85: "idle_ns_max",
        86: "shm_bytes",
        87: "io_bytes",
        49: "signal",
        50: "command",
        51: "arg",
        52: "env",
        53: "cwd",
        54: "uid",
        55: "gid",
        56: "stdin",
        57: "stdout",
        58: "stderr",
        59: "channel",
        60: "snapshot",
        61: "pause_ns",
        62: "memory_bytes",
        63: "file_bytes",
        64: "process_count",
        65: "capture_ns",
        66: "stem_ns",
        67: "by_twin",
        126: "ways",
        68: "address",
        47: "drop",
        48: "dropped",
        69: "restarted",
        70: "status",
        71: "reason",
        72: "user_ns",
        73: "system_ns",
        74: "peak_bytes",
        75: "elapsed_ns",
        76: "disk_peak",
        77: "pid",
        78: "lingering",
        79: "setup_ns",
        81: "memory_peak",
        82: "oom_kills",
        89: "shared_bytes",
        105: "file_count",
        96: "reached",
        97: "limit",
        98: "cpu_peak_ns",
        99: "shm_peak",
        108: "shm_file_count",
        109: "shm_inodes",
        88: "cpu_killed",
        80: "started_ns",
        90: "dir",
        91: "link",
        92: "file",
        93: "bind",
        94: "layer",
        95: "bytes",
        100: "log_bytes",
        101: "flags",
        103: "port",
        104: "thread_count",
        106: "window",
        107: "missed",
        102: "command_info",
    }
)
