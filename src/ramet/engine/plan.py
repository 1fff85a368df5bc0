"""From a checked request to core's words: the frames that define roots, and the plan of a run.

A plan is a join of attributes, so what does not change from one run to the next can be encoded once and kept
by its owner (a defined root, a set of limits).
"""

from __future__ import annotations

import math
import os
import resource
import struct
from typing import TYPE_CHECKING

from ramet.engine import memory
from ramet.engine.root import Dir, File, RootSpec, Symlink
from ramet.errors import InvalidRequest
from ramet.models.limits import BY_NAME, LIMITS, MIB, Limits, check_enforceable
from ramet.models.users import ROOT
from ramet.native import _protocol as p
from ramet.native.frames import raw, text, u32, u64
from ramet.native.runs import STREAM_TAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.models.runs import RunRequest

HOSTNAME = "ramet"
MACHINE_SHARE = 0.75
PROCESSOR_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "CARGO_BUILD_JOBS",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "GOMAXPROCS",
    "JULIA_CPU_THREADS",
    "DOTNET_PROCESSOR_COUNT",
    "PYTHON_CPU_COUNT",
)
HEAP_SHARE = 0.75
"""Of a limit on memory, what .NET's heap may take (its own share where it finds a limit), and V8's."""
PERIOD_US = 100_000
"""Microseconds; cgroups.h's."""
_RLIMIT = struct.Struct("<IIQQ").pack

# What the guest would otherwise inherit from the daemon: resource, soft, hard.
# CORE is 1 and not 0: a dump that goes to a program (core_pattern "|...") ignores 0, and only 1 keeps a crash
# inside from starting the host's crash handler as root (core(5)). STACK is Linux's default; argv may take a
# quarter of it.
_FIXED = (
    (resource.RLIMIT_CORE, 1, 1),
    (resource.RLIMIT_STACK, 8 << 20, resource.RLIM_INFINITY),
    (resource.RLIMIT_MEMLOCK, 64 << 20, 64 << 20),
    (resource.RLIMIT_NICE, 0, 0),
    (resource.RLIMIT_RTPRIO, 0, 0),
)
# Counted for all sandboxes of a user together as well: at most, and no more than QUOTA_SHARE of the user's.
_SHARED = (
    (resource.RLIMIT_SIGPENDING, 1024),
    (resource.RLIMIT_MSGQUEUE, 819_200),
)
QUOTA_SHARE = 4
"""As in core/src/quotas.c."""
DESCRIPTOR_SHARE = 2
"""Of the daemon's RLIMIT_NOFILE, with which the kernel compares what all processes of the user have in flight
when daemon or core send a descriptor. Guests are stopped by their own, a message late.
"""
_INFINITY = (1 << 64) - 1


def rlimit_parts(limits: Limits) -> list[bytes]:
    """The RLIMIT attributes for `limits`.

    Nobody here may raise a hard limit, so a default above the daemon's own becomes that, which is stricter. A
    limit that was asked for is refused instead. Raises InvalidRequest naming it.
    """
    parts = []
    for spec in LIMITS:
        if spec.rlimit is None or spec.name == "processes":
            continue
        number = getattr(resource, f"RLIMIT_{spec.rlimit}")
        soft = int(getattr(limits, spec.name))
        if number == resource.RLIMIT_NOFILE:
            soft = _open_files(limits)
        else:
            _bounded(limits, spec.name, _hard_limit(number))
        # SIGXCPU tells the limit. What goes on is killed by init, which knows for what. The kernel would kill
        # at the hard limit, and counts ticks, which on a busy virtual machine are more than was run.
        parts.append(_rlimit(number, soft, 2 * soft + 5 if spec.name == "cpu_seconds" else soft))
    shared = [(number, *[min(most, _soft_limit(number) // QUOTA_SHARE)] * 2) for number, most in _SHARED]
    return parts + [_rlimit(*row) for row in (*_FIXED, *shared)]


def _bounded(limits: Limits, name: str, bound: int) -> int:
    """The limit, or the smaller `bound`, unless more was asked for: then InvalidRequest naming it."""
    value = int(getattr(limits, name))
    if value > bound and name in limits.asked():
        text = f"{value} is above the hard limit of Ramet's daemon, {bound}"
        raise InvalidRequest.of(f"limits.{name}", text, code="out_of_range")
    return min(value, bound)


def _open_files(limits: Limits) -> int:
    hard = _hard_limit(resource.RLIMIT_NOFILE)
    value, most = limits.open_files, hard // DESCRIPTOR_SHARE
    if value > most and "open_files" in limits.asked():
        text = f"{value} is above half of the hard limit of Ramet's daemon, {hard}; half is its own"
        raise InvalidRequest.of("limits.open_files", text, code="out_of_range")
    return min(value, most)


def _processes(limits: Limits) -> int:
    """Core adds one for init."""
    return max(1, _bounded(limits, "processes", _hard_limit(resource.RLIMIT_NPROC) - 1))


def _memory(limits: Limits) -> int:
    """The limit; as a default no more than most of what the machine has, which a runaway must leave alive."""
    everything = memory.available()[1]
    if "memory" in limits.asked() or not everything:
        return limits.takeable
    return min(limits.takeable, int(everything * MACHINE_SHARE))


def _quota(limits: Limits) -> int:
    """Processor time in each period; 0 where the machine has no more to give."""
    return 0 if limits.cpus >= (os.cpu_count() or 1) else max(1000, int(limits.cpus * PERIOD_US))


def environment_of(limits: Limits) -> dict[str, str]:
    """Variables by which runtimes learn what they may use, where that is less than they find.

    nproc(1) reads the first. The Java VM looks nowhere else but at mounted cgroups and sysinfo(2), and tells
    on standard error that it has read its variable.
    """
    found = {}
    java = []
    if _quota(limits):
        count = max(1, math.ceil(limits.cpus))
        found = dict.fromkeys(PROCESSOR_VARIABLES, str(count))
        java.append(f"-XX:ActiveProcessorCount={count}")
    if "memory" in limits.asked():
        found["GOMEMLIMIT"] = str(limits.memory * 9 // 10)
        found["DOTNET_GCHeapHardLimit"] = f"{int(limits.memory * HEAP_SHARE):x}"
        # V8 takes 256 MiB at least, whatever it finds.
        found["NODE_OPTIONS"] = f"--max-old-space-size={max(1, int(limits.memory * HEAP_SHARE) // MIB)}"
        java.append(f"-XX:MaxRAM={limits.memory}")
    if java:
        found["JAVA_TOOL_OPTIONS"] = " ".join(["-XX:+IgnoreUnrecognizedVMOptions", *java])
    return found


def _rlimit(number: int, soft: int, hard: int) -> bytes:
    hard = min(_INFINITY if hard == resource.RLIM_INFINITY else hard, _hard_limit(number))
    return raw(p.TAG_RLIMIT, _RLIMIT(number, 0, min(soft, hard), hard))


def _hard_limit(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    return _INFINITY if hard == resource.RLIM_INFINITY else hard


def _soft_limit(number: int) -> int:
    soft = resource.getrlimit(number)[0]
    return _INFINITY if soft == resource.RLIM_INFINITY else soft


def limits_part(limits: Limits, cgroups: str) -> bytes:
    """Everything in a plan that follows from `limits` but the deadline.

    Raises InvalidRequest, LimitUnsupported for what a core with these cgroups cannot enforce.
    """
    check_enforceable(limits, cgroups, os.cpu_count() or 1)
    return b"".join(
        (
            u64(p.TAG_MEMORY, _memory(limits)),
            u64(p.TAG_CPU_QUOTA, _quota(limits)),
            u64(p.TAG_DISK_BYTES, limits.writable),
            u64(p.TAG_DISK_INODES, limits.inodes),
            u64(p.TAG_PROCESSES, _processes(limits)),
            u64(p.TAG_CPU_NS, int(limits.cpu_seconds * 1e9)),
            u64(p.TAG_IDLE_NS_MAX, int(limits.idle * 1e9)),
            u64(p.TAG_SHM_BYTES, limits.shm),
            u64(p.TAG_IO_BYTES, 0 if limits.io >= BY_NAME["io"].default else limits.io),
            *rlimit_parts(limits),
        )
    )


def fixed_part(root: int, filter_number: int) -> bytes:
    """What every run on a root says alike."""
    return b"".join(
        (
            u32(p.TAG_ROOT, root),
            u32(p.TAG_FILTER, filter_number),
            text(p.TAG_HOSTNAME, HOSTNAME),
            u32(p.TAG_NETWORK, p.NETWORK_NONE),
            u32(p.TAG_OWNED, 1),
            u32(p.TAG_UID, 0),
            u32(p.TAG_GID, 0),
        )
    )


def standing_part(
    sandbox: int, *, hostname: str, wall: float | None, owned: bool, record: bytes, keep: bool = False
) -> bytes:
    """What every sandbox that stays says of itself. `wall` None: it has no deadline.

    `keep`: above its limit of memory it stands still, for its state to be kept.
    """
    return b"".join(
        (
            u64(p.TAG_SANDBOX, sandbox),
            u64(p.TAG_WALL_NS, int(wall * 1e9) if wall else 0),
            text(p.TAG_HOSTNAME, hostname),
            u32(p.TAG_NETWORK, p.NETWORK_NONE),
            u32(p.TAG_OWNED, int(owned)),
            raw(p.TAG_RECORD, record),
            u32(p.TAG_KEEP, 1) if keep else b"",
        )
    )


def streams_part(command: int, limits: Limits | None = None, *, channel: bool = False) -> bytes:
    """The number of a command, all of whose streams come along in order, and then its channel.

    What a kernel writes is told with what it ran; of other commands core keeps a log besides, as long as
    `limits` say, where they are given.
    """
    tags = (*STREAM_TAGS, p.TAG_CHANNEL) if channel else STREAM_TAGS
    log = b"" if channel or limits is None else u64(p.TAG_LOG_BYTES, int(limits.output))
    return u32(p.TAG_COMMAND, command) + b"".join([u32(tag, index) for index, tag in enumerate(tags)]) + log


def spawn_part(
    request: RunRequest, sandbox: int, cwd: str, streams: bytes, user: tuple[int, int] = ROOT
) -> bytes:
    """A command for a standing sandbox, without its environment; `streams` is from `streams_part`."""
    uid, gid = user
    parts = [u64(p.TAG_SANDBOX, sandbox), u32(p.TAG_UID, uid), u32(p.TAG_GID, gid), streams]
    parts += [text(p.TAG_ARG, word) for word in request.argv]
    parts.append(text(p.TAG_CWD, request.cwd or cwd))
    return b"".join(parts)


def root_part(number: int, spec: RootSpec, lent: Sequence[bool]) -> bytes:
    """The payload of DEFINE_ROOT. `lent` tells for each bind, then layer, if a descriptor is passed."""
    parts = [u32(p.TAG_ROOT, number)]
    for entry in spec.entries:
        path = os.fsencode(entry.path)
        match entry:
            case Dir():
                parts.append(raw(p.TAG_DIR, struct.pack("<I", entry.mode) + path))
            case Symlink():
                target = os.fsencode(entry.target)
                parts.append(raw(p.TAG_LINK, struct.pack("<I", len(target)) + target + path))
            case File():
                head = struct.pack("<II", entry.mode, len(path))
                parts.append(raw(p.TAG_FILE, head + path + entry.content))
    index = 0
    indexes = []
    for passed in lent:
        indexes.append(index if passed else p.FD_NONE)
        index += passed
    for bind, at in zip(spec.binds, indexes, strict=False):
        flags = p.BIND_READ_ONLY * bind.read_only
        source, target = os.fsencode(bind.source), os.fsencode(bind.target)
        parts.append(raw(p.TAG_BIND, struct.pack("<III", flags, at, len(source)) + source + target))
    for layer, at in zip(spec.layers, indexes[len(spec.binds) :], strict=True):
        parts.append(raw(p.TAG_LAYER, struct.pack("<I", at) + os.fsencode(layer)))
    return b"".join(parts)
