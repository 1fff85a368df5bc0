"""What is sent to core: the attributes of plans, commands and roots, as `core/PROTOCOL.md` has them."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from ramet.native import _protocol as p
from ramet.native import frames, launch
from ramet.native.locate import find_program

ROOT = 1
ALLOW_ALL = 1
HOME = "/home/user"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": HOME}
# BPF_RET | BPF_K, SECCOMP_RET_ALLOW: what is tested here must hold without the filter's help.
ALLOW_ALL_PROGRAM = struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)


def plan(
    sandbox: int,
    *,
    root: int = ROOT,
    filter_id: int = ALLOW_ALL,
    disk: int = 64 << 20,
    inodes: int = 10000,
    processes: int = 0,
    wall_s: float = 0,
    owned: bool = True,
    hostname: str = "box",
    record: bytes = b"",
    fault: int = 0,
    rlimits: Sequence[tuple[int, int, int]] = (),
) -> bytes:
    """The attributes of a sandbox. Every number is sent, also the defaults."""
    parts = [
        frames.u64(p.TAG_SANDBOX, sandbox),
        frames.u32(p.TAG_ROOT, root),
        frames.u32(p.TAG_FILTER, filter_id),
        frames.text(p.TAG_HOSTNAME, hostname),
        frames.u64(p.TAG_DISK_BYTES, disk),
        frames.u64(p.TAG_DISK_INODES, inodes),
        frames.u32(p.TAG_NETWORK, p.NETWORK_NONE),
        frames.u64(p.TAG_PROCESSES, processes),
        frames.u64(p.TAG_WALL_NS, int(wall_s * 1e9)),
        frames.u32(p.TAG_OWNED, owned),
        frames.raw(p.TAG_RECORD, record),
        *(frames.raw(p.TAG_RLIMIT, struct.pack("<IIQQ", n, 0, soft, hard)) for n, soft, hard in rlimits),
    ]
    if fault:
        parts.append(frames.u32(p.TAG_FAULT, fault))
    return b"".join(parts)


def command(
    argv: Sequence[str],
    *,
    env: dict[str, str] = ENVIRONMENT,
    cwd: str = HOME,
    number: int = 0,
    uid: int = 0,
    gid: int = 0,
    streams: Sequence[int | None] = (None, 0, 1),
) -> bytes:
    """The attributes of a command. `streams`: of stdin, stdout, stderr the descriptor's index, or None."""
    parts = [frames.text(p.TAG_ARG, word) for word in argv]
    parts += [frames.text(p.TAG_ENV, f"{name}={value}") for name, value in env.items()]
    parts += [frames.text(p.TAG_CWD, cwd), frames.u32(p.TAG_COMMAND, number)]
    parts += [frames.u32(p.TAG_UID, uid), frames.u32(p.TAG_GID, gid)]
    tags = (p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR)
    parts += [frames.u32(tag, index) for tag, index in zip(tags, streams, strict=True) if index is not None]
    return b"".join(parts)


def directory(path: str, mode: int = 0o755) -> bytes:
    """A directory of a root's skeleton."""
    return frames.raw(p.TAG_DIR, struct.pack("<I", mode) + os.fsencode(path))


def link(path: str, target: str) -> bytes:
    """A symbolic link of a root's skeleton."""
    return frames.raw(p.TAG_LINK, struct.pack("<I", len(target)) + os.fsencode(target + path))


def file(path: str, content: bytes, mode: int = 0o644) -> bytes:
    """A file of a root's skeleton."""
    return frames.raw(p.TAG_FILE, struct.pack("<II", mode, len(path)) + os.fsencode(path) + content)


def bind(source: str, target: str, *, index: int = p.FD_NONE, flags: int = p.BIND_READ_ONLY) -> bytes:
    """A bind of a host path, or of the descriptor `index` of the frame."""
    head = struct.pack("<III", flags, index, len(os.fsencode(source)))
    return frames.raw(p.TAG_BIND, head + os.fsencode(source) + os.fsencode(target))


def layer(path: str, *, index: int = p.FD_NONE) -> bytes:
    """A read-only layer below the skeleton."""
    return frames.raw(p.TAG_LAYER, struct.pack("<I", index) + os.fsencode(path))


PYTHON = os.path.realpath(sys.executable)
"""An interpreter that every root of `root_entries` holds."""


def interpreter_prefix() -> str | None:
    """What has to be bound beside /usr for PYTHON to run."""
    prefix = os.path.realpath(sys.base_prefix)
    return None if prefix == "/usr" or prefix.startswith("/usr/") else prefix


def parents(path: str) -> list[str]:
    """The directories above `path`, topmost first, without /."""
    return [str(parent) for parent in reversed(Path(path).parents)][1:]


def root_entries(*, python: bool = False) -> tuple[bytes, list[int]]:
    """A root like the default one: /usr and, if asked for, PYTHON. The descriptors are the caller's."""
    entries = [directory("/proc"), directory("/dev"), directory("/tmp", 0o1777), directory("/home")]
    entries += [directory(HOME), directory("/etc"), directory("/usr"), bind("/usr", "/usr")]
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            entries.append(link(f"/{name}", os.readlink(f"/{name}")))
        elif os.path.isdir(f"/{name}"):
            entries += [directory(f"/{name}"), bind(f"/{name}", f"/{name}")]
    lent: list[int] = []
    if python and (prefix := interpreter_prefix()):
        entries += [directory(path) for path in parents(prefix) if path != "/home"] + [directory(prefix)]
        # Core, as nobody of the host, cannot look into what is root's alone.
        lent = launch.lend_mounts(find_program(), [prefix])
        entries.append(bind("", prefix, index=0))
    return b"".join(entries), lent
