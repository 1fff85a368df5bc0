"""The daemon's life: lock, log, socket and core in this order, and all of it taken away at the end.

One daemon per runtime directory: the lock is held from before the socket stands until after core has gone, so
that a daemon that starts while another ends waits for it. Every file is made and removed through the
directory's descriptor, which was checked once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, overload

from ramet._version import __version__
from ramet.daemon.logs import Log
from ramet.daemon.server import Server
from ramet.engine import memory
from ramet.engine.cores import Cores, Settings, Spawn
from ramet.engine.plan import PERIOD_US
from ramet.errors import DaemonLost, DaemonStartError, InvalidRequest, RametError
from ramet.models.limits import BY_NAME, parse_limit, parse_seconds, parse_size
from ramet.native.cgroups import Place, find_place
from ramet.wire.places import DAEMON_SOCKET, LOCK, LOG, is_named, make_runtime, runtime_path

IDLE_S = 900.0
GRACE_S = 10.0
SNAPSHOT_TIMEOUT_S = 60.0
SNAPSHOT_TIMEOUT_MAX_S = 3600
LOCK_TIMEOUT_S = 20.0
HAND_OVER_S = 15.0
"""How long requests may go on that are under way when a daemon hands over; below LOCK_TIMEOUT_S."""
BACKLOG = 1024
TICK_S = 30.0
TOTALS = {"memory": "memory", "cpus": "cpus", "processes": "processes", "sandboxes": "processes"}
"""Totals of the daemon, and the limit whose unit and bounds each has."""


class Starter:
    """Whoever started this daemon and waits for its word."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def waits(self) -> bool:
        """False in the foreground, and once the word was given."""
        return self._descriptor is not None

    def tell(self, word: bytes) -> None:
        """Give the word, once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(descriptor, word)
            os.close(descriptor)


def serve(
    runtime_dir: str | None, *, ready: int | None, idle_s: float | None, data: str | None = None
) -> int:
    """Serve until idle, asked or signalled to end. The exit code: 0, or 1 after an error.

    `data` is where snapshots are kept, by default where the environment says.
    """
    starter = Starter(ready)
    try:
        place = runtime_dir or runtime_path()
        idle = _seconds("RAMET_DAEMON_IDLE_S", IDLE_S) if idle_s is None else idle_s
        grace = _seconds("RAMET_CORE_GRACE_S", GRACE_S)
        with _place(place) as directory, _lock(directory, place), _log(directory) as log:
            _raise_descriptor_limit()
            if starter.waits:
                _silence(log)
            settings = Settings(
                directory,
                place,
                log,
                int(grace * 1000),
                _pool(),
                (place,) if data is None else (place, data),
                data=data,
                snapshot_memory=_snapshot_memory(),
                snapshot_ms=_snapshot_ms(),
                memory_reserve=_memory_reserve(),
                place=_cgroups(),
                totals=_totals(),
                upgrade_s=_seconds("RAMET_UPGRADE_DEADLINE_S", None),
            )
            asyncio.run(live(settings, Log(log), starter, idle))
    except Exception as error:  # noqa: BLE001  the last stop: told to the starter and to the log
        told = _told(error)
        starter.tell(json.dumps(told.to_wire()).encode())
        sys.stderr.write(f"ramet daemon: {told}\n")
        if not isinstance(error, RametError):
            traceback.print_exc()
        return 1
    return 0


def _told(error: BaseException) -> RametError:
    while isinstance(error, BaseExceptionGroup):  # of the task group
        error = error.exceptions[0]
    if isinstance(error, RametError):
        return error
    return DaemonStartError("daemon_start_failed", f"the daemon did not start: {error!r}")


@overload
def _seconds(variable: str, default: float) -> float: ...
@overload
def _seconds(variable: str, default: None) -> float | None: ...
def _seconds(variable: str, default: float | None) -> float | None:
    text = os.environ.get(variable)
    return default if not text else parse_seconds(text, variable)


def _pool() -> int | None:
    text = os.environ.get("RAMET_POOL")
    if not text:
        return None
    if not text.isdecimal() or int(text) > 64:
        raise InvalidRequest.of("RAMET_POOL", f"{text!r:.40} is not a number from 0 to 64")
    return int(text)


def _snapshot_memory() -> int:
    text = os.environ.get("RAMET_SNAPSHOT_MEMORY")
    if not text:
        return memory.available()[0] // 2
    if (number := parse_size(text, "RAMET_SNAPSHOT_MEMORY")) < 1:
        raise InvalidRequest.of("RAMET_SNAPSHOT_MEMORY", "no snapshot fits into no memory")
    return number


def _snapshot_ms() -> int:
    seconds = _seconds("RAMET_SNAPSHOT_TIMEOUT", SNAPSHOT_TIMEOUT_S)
    if not 0 < seconds <= SNAPSHOT_TIMEOUT_MAX_S:
        raise InvalidRequest.of(
            "RAMET_SNAPSHOT_TIMEOUT", f"a snapshot may take between 1 ms and {SNAPSHOT_TIMEOUT_MAX_S} s"
        )
    return math.ceil(seconds * 1000)


def _memory_reserve() -> int:
    text = os.environ.get("RAMET_MEMORY_RESERVE")
    return parse_size(text, "RAMET_MEMORY_RESERVE") if text else 0


def _totals() -> str:
    """What all sandboxes together may be promised, as core reads it."""
    found = []
    for name, limit in TOTALS.items():
        variable = f"RAMET_TOTAL_{name.upper()}"
        if text := os.environ.get(variable):
            number = parse_limit(BY_NAME[limit], text, variable)
            found.append(f"{name}={int(number * PERIOD_US) if name == 'cpus' else number}")
    return ",".join(found)


def _cgroups() -> Place:
    text = os.environ.get("RAMET_CGROUPS") or "auto"
    if text not in {"auto", "none"}:
        raise InvalidRequest.of("RAMET_CGROUPS", f"{text!r:.40} is neither auto nor none")
    return find_place() if text == "auto" else Place(why="switched off by RAMET_CGROUPS")


@contextlib.contextmanager
def _place(place: str) -> Iterator[int]:
    """The runtime directory. One that Ramet chose is removed with its last file."""
    directory = make_runtime(place)
    try:
        yield directory
    finally:
        os.close(directory)
        if "RAMET_RUNTIME_DIR" not in os.environ and place == runtime_path():
            with contextlib.suppress(OSError):
                os.rmdir(place)


@contextlib.contextmanager
def _lock(directory: int, place: str) -> Iterator[None]:
    """Be the only daemon here; wait for one that is ending. The lock file goes while it is still held."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_named(lock, LOCK, directory):
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                text = f"another daemon has held {place}/{LOCK} for {LOCK_TIMEOUT_S:g} s"
                raise DaemonStartError("daemon_locked", text, hint="ramet daemon stop ends it") from None
            time.sleep(0.02)
        os.close(lock)
    try:
        yield
    finally:
        _remove(LOCK, directory)
        os.close(lock)


@contextlib.contextmanager
def _log(directory: int) -> Iterator[int]:
    """The log. It stays behind only when the daemon ends by an error, to tell of it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(LOG, flags, 0o600, dir_fd=directory)
    try:
        yield log
        _remove(LOG, directory)
    finally:
        os.close(log)


def _remove(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _silence(log: int) -> None:
    """Standard streams of a detached daemon: nothing to read, and words of last resort go to the log."""
    nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _raise_descriptor_limit() -> None:
    """Three descriptors a run are in flight, and those count too (ETOOMANYREFS); core inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def live(
    settings: Settings,
    log: Log,
    starter: Starter,
    idle_s: float,
    *,
    make_cores: Callable[[Settings, Spawn, Log], Cores] = Cores,
) -> None:
    """Serve in a directory that is this daemon's alone. Signals are heeded only in the main thread."""
    async with asyncio.TaskGroup() as tasks:
        running: set[asyncio.Task[object]] = set()

        def spawn(coroutine: Coroutine[Any, Any, object]) -> None:
            # A defect in one piece of work is logged and must not end the others.
            task = tasks.create_task(_guarded(coroutine, log))
            running.add(task)
            task.add_done_callback(running.discard)

        cores = make_cores(settings, spawn, log)
        await cores.adopt()
        with _listener(settings) as listener:
            server = Server(
                listener,
                cores,
                spawn=spawn,
                log=log,
                path=settings.path,
                faults=os.environ.get("RAMET_TEST_FAULTS") == "1",
            )
            loop = asyncio.get_running_loop()
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, server.stopping.set)
            starter.tell(b"ready")
            # What is loaded stays: without this each full collection visits all of it again, for
            # milliseconds.
            gc.freeze()
            log("daemon started", version=__version__, runtime_dir=settings.path, idle_s=idle_s)
            try:
                await _until_end(server, log, idle_s)
                if server.handing_over:
                    _remove(DAEMON_SOCKET, settings.directory)
                    await _finish(server, log)
            finally:
                _remove(DAEMON_SOCKET, settings.directory)
                server.close()
        if server.handing_over:
            await cores.leave()
            for task in running:
                task.cancel()  # they watch over sandboxes, as the next daemon does
        else:
            await cores.close()
        log("daemon ended", handed_over=server.handing_over)


async def _finish(server: Server, log: Log) -> None:
    """Let what is under way come to its end. Whoever asks meanwhile waits for the next daemon."""
    try:
        async with asyncio.timeout(HAND_OVER_S):
            await server.finish()
            await server.cores.sandboxes.snapshots.written()
    except TimeoutError:
        log("requests cut off", active=server.active)


async def _guarded(coroutine: Coroutine[Any, Any, object], log: Log) -> None:
    try:
        await coroutine
    except RametError as error:
        log("work failed", error=error.message, code=error.code)
    except Exception:  # noqa: BLE001
        log("defect", exc_info=True)


@contextlib.contextmanager
def _listener(settings: Settings) -> Iterator[socket.socket]:
    _remove(DAEMON_SOCKET, settings.directory)  # left by a daemon that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # Nobody can connect before the mode is set: the directory is closed to others anyway.
        listener.bind(f"/proc/self/fd/{settings.directory}/{DAEMON_SOCKET}")
        os.chmod(DAEMON_SOCKET, 0o600, dir_fd=settings.directory)
        listener.listen(BACKLOG)
        yield listener


async def _is_idle(server: Server, idle_s: float) -> bool:
    """Whether core had nothing to do either: what goes over lanes the daemon does not see."""
    try:
        core_s = await server.lanes.idle_s()
        if core_s >= idle_s:
            core_s = 0.0 if not await server.lanes.close() else idle_s
    except DaemonLost:
        core_s = idle_s
    if core_s >= idle_s and server.idle_s >= idle_s:
        return True
    server.last_activity = max(server.last_activity, time.monotonic() - core_s)
    return False


async def _until_end(server: Server, log: Log, idle_s: float) -> None:
    while not server.stopping.is_set():
        remaining = idle_s - server.idle_s
        if remaining <= 0:
            if await _is_idle(server, idle_s):
                log("idle", seconds=idle_s)
                return
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(remaining, TICK_S)):
                await server.stopping.wait()
        log.bound()
