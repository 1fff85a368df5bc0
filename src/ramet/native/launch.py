"""Starts core and awaits its first word; has mounts lent to it where it cannot open them itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path

from ramet._descriptors import close_all
from ramet.errors import DaemonStartError, IsolationError, RametError
from ramet.native import _protocol as p
from ramet.native import cgroups, frames
from ramet.native.disks import disks
from ramet.native.faults import error_of
from ramet.native.ids import Ids, choose_ids

START_TIMEOUT_S = 10.0
UCRED = struct.Struct("3i")


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What a core is started with. The descriptors stay the caller's; core gets copies.

    `listener` is the listening socket of ``core.sock``, `runtime_dir` the directory it stands in (core
    removes it at its end), `log` where core writes. None as `pool` means core's own default.
    `snapshot_memory` are the bytes that snapshots may take in memory, 0: any; `snapshot_ms` bounds how long
    taking one may last, 0: core's choice; `spill` is a directory for
    what exceeds them, if there is one. `memory_reserve` are the bytes
    that the machine keeps, 0: core's choice. `place` is where sandboxes can have cgroups; they are noted in
    `runtime_dir`. `totals` are the bounds of all sandboxes together, as core reads them. `build` is what it
    says of its program.
    """

    program: Path
    listener: socket.socket
    runtime_dir: int
    log: int
    grace_ms: int
    pool: int | None = None
    snapshot_memory: int = 0
    snapshot_ms: int = 0
    spill: int | None = None
    memory_reserve: int = 0
    place: cgroups.Place = cgroups.NOWHERE
    totals: str = ""
    build: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """A core that is up. `pid` is its pid as seen from here; it is a child of this process.

    `program` is its version, and after a ``+`` what tells it from other builds of that.

    `cgroups` is what it has of them, as in `ramet.models.limits.enforced_by`.
    """

    sock: socket.socket
    pid: int
    core_id: int
    program: str
    single_uid: bool
    cgroups: str = ""


def start_core(start: Start) -> Launched:
    """Start core and wait for its READY. Blocks for some milliseconds: run it in a thread.

    Raises:
        IsolationError: a step of core's own start failed; nothing is left.
        DaemonStartError: core could not be executed, or said nothing.
    """
    refused: RametError | None = None
    for ids in choose_ids():
        given = cgroups.give(start.place, ids.owner(), start.runtime_dir)
        try:
            return _start(start, ids, given)
        except RametError as error:
            # With one id instead of a range everything but other users works: tried before giving up.
            refused = refused or error
            if ids.helpers is None:
                raise refused from None
        finally:
            ids.close()
            if given is not None:
                given.close()
                cgroups.remove_noted(start.runtime_dir)  # unless core is in them
    raise refused or DaemonStartError("no_ids", "there are no ids to start core with")


def _start(start: Start, ids: Ids, given: cgroups.Given | None) -> Launched:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ours.settimeout(START_TIMEOUT_S)
            launcher = _execute(
                *command_line(start, ids, theirs, given), output=subprocess.PIPE, log=start.log
            )
        try:
            launched = _await_ready(ours)
        except BaseException:
            _bury(launcher)
            raise
        finally:
            _leave(launcher)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    except BaseException:
        ours.close()
        raise
    return launched


def command_line(
    start: Start, ids: Ids, control: socket.socket, given: cgroups.Given | None = None
) -> tuple[list[str], list[int]]:
    """The words that start core, and the descriptors that it inherits."""
    inherited = {
        "control": control.fileno(),
        "listen": start.listener.fileno(),
        "runtime-dir": start.runtime_dir,
        "log": start.log,
    }
    if ids.hold is not None:
        inherited["hold"] = ids.hold.fileno()
    if start.spill is not None:
        inherited["spill"] = start.spill
    options = {
        **inherited,
        "grace-ms": start.grace_ms,
        "pool": start.pool,
        "snapshot-memory": start.snapshot_memory or None,
        "snapshot-ms": start.snapshot_ms or None,
        "memory-reserve": start.memory_reserve or None,
        "uid-map": ids.uids,
        "gid-map": ids.gids,
        "newidmap": ids.helpers,
        "cgroups": None if given is None else given.option,
        "disks": None if given is None else ",".join(disks()) or None,
        "totals": start.totals or None,
        "build": start.build,
    }
    asked = {name: value for name, value in options.items() if value is not None}
    words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    passed = [*inherited.values(), *(() if given is None else given.descriptors)]
    return [str(start.program), "serve", *words], passed


def _leave(launcher: subprocess.Popen[bytes]) -> None:
    """Collect the launcher, which ends at once when core is up or has failed."""
    launcher.wait()
    if launcher.stdout is not None:
        launcher.stdout.close()


def _bury(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher and the core that it made, which is our child: its pid is what was printed."""
    launcher.kill()
    launcher.wait()
    word = launcher.stdout.readline() if launcher.stdout is not None else b""
    if word.strip().isdigit():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(int(word), signal.SIGKILL)
            os.waitpid(int(word), 0)


def _execute(argv: list[str], inherited: list[int], *, output: int, log: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except OSError as error:
        text = f"{argv[0]} cannot be executed: {error.strerror}"
        raise DaemonStartError("core_not_executable", text, errno=error.errno) from None


def _await_ready(sock: socket.socket) -> Launched:
    try:
        data, ancillary, _, _ = sock.recvmsg(p.FRAME_BYTES, socket.CMSG_SPACE(UCRED.size))
    except TimeoutError:
        raise DaemonStartError("core_silent", f"core said nothing for {START_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise DaemonStartError("core_start_failed", f"core ended at once: {error.strerror}") from None
    if not data:
        raise DaemonStartError("core_start_failed", "core ended before it was ready")
    try:
        frame = frames.parse(data, len(data), [])
        found = frames.attributes(frame.payload)
        if frame.kind == p.ERROR:
            raise error_of(frame)
        if frame.kind != p.READY:
            raise DaemonStartError("core_start_failed", f"core began with frame {frame.kind}")
        return Launched(
            sock,
            sender_pid(ancillary),
            found.u64(p.TAG_CORE_ID),
            found.text(p.TAG_PROGRAM),
            bool(found.u32(p.TAG_SINGLE_UID)),
            found.text(p.TAG_CGROUPS),
        )
    except frames.FrameError as error:
        raise DaemonStartError("core_start_failed", f"core's first frame is malformed: {error}") from None


def sender_pid(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The pid that the kernel vouches for in SCM_CREDENTIALS; 0 without any."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(UCRED.unpack(data[: UCRED.size])[0])
    return 0


def lend_mounts(program: Path, paths: list[str], *, id_map_pid: int | None = None) -> list[int]:
    """Detached read-only mounts of `paths`, in order, as descriptors: root's way to give files to core.

    Core's user namespace owns no mount of the host, and has no rights over files of the host's root. With
    `id_map_pid` the mounts show owners as that process's user namespace numbers them. Blocks for a
    millisecond. The descriptors are the caller's.

    Raises:
        IsolationError: a path cannot be lent; the message names it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    option = [] if id_map_pid is None else ["--idmap", str(id_map_pid)]
    argv = [str(program), "lend", "--socket", str(theirs.fileno()), *option, "--", *paths]
    with ours:
        ours.settimeout(START_TIMEOUT_S)
        with theirs:
            lender = _execute(argv, [theirs.fileno()], output=subprocess.DEVNULL, log=subprocess.DEVNULL)
        try:
            return _take_mounts(ours, paths)
        except BaseException:
            lender.kill()
            raise
        finally:
            lender.wait()


def _take_mounts(sock: socket.socket, paths: list[str]) -> list[int]:
    fds: list[int] = []
    buffer = bytearray(p.FRAME_BYTES)
    try:
        for path in paths:
            frame = frames.receive(sock, buffer)
            if frame is None:
                raise IsolationError("isolation_failed", f"{path}: lending it failed", step="root_bind")
            fds += frame.fds
            if frame.kind == p.ERROR:
                raise error_of(frame)
            if frame.kind != p.OK or len(frame.fds) != 1:
                raise frames.FrameError("it is no answer")
    except BaseException as error:
        close_all(fds)
        if isinstance(error, (OSError, frames.FrameError)):
            text = f"lending mounts failed: {error}"
            raise IsolationError("isolation_failed", text, step="root_bind") from None
        raise
    return fds


def reap(pid: int) -> int | None:
    """Collect a core that has ended; its wait status, None when it still runs or is not our child."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return status if done else None
