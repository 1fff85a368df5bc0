"""Finds the user's daemon, and starts it when there is none."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator

from ramet.errors import DaemonStartError, RametError
from ramet.models.runs import Python
from ramet.wire.places import LOG, START_LOCK, connect, is_named, make_runtime, open_runtime

START_TIMEOUT_S = 30.0
SILENT = b"silent"  # no word of a daemon, whose words are JSON or `ready`
LOG_TAIL_BYTES = 2000

__all__ = ["absolute", "base_interpreter", "connect", "interpreter", "start_daemon"]


@functools.cache
def interpreter() -> Python | None:
    """The interpreter that runs this program, for the default root; None where it does not say what it is."""
    if not sys.executable:
        return None
    return Python(sys.executable, sys.prefix, sys.base_prefix)


@functools.cache
def base_interpreter() -> Python | None:
    """The same without the virtual environment, if it runs in one."""
    if not sys.executable:
        return None
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Python(base, sys.base_prefix, sys.base_prefix)


def absolute(path: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """`path` as the daemon must hear it, whose working directory is another."""
    # "" is most often a variable that was not set; it and what is no path are refused by name, later.
    return os.path.abspath(path) if path and isinstance(path, (str, bytes, os.PathLike)) else path


def start_daemon(place: str, data: str | None = None) -> socket.socket:
    """A connection to a daemon started now, or by another client meanwhile. Blocks until it serves.

    `data` is where it keeps snapshots, by default the user's own place.

    Raises:
        DaemonStartError: it does not start; the message ends with the tail of its log.
        RametError: what the daemon itself said was wrong.
    """
    with _only_one(place):
        sock = connect(place)
        if sock is not None:
            return sock
        _launch(place, data)
        sock = connect(place)
    if sock is None:
        raise DaemonStartError("daemon_start_failed", f"the daemon ended at once{_log_tail(place)}")
    return sock


@contextlib.contextmanager
def _only_one(place: str) -> Iterator[None]:
    """Hold the lock of those who start a daemon. The file goes with its last holder."""
    while True:
        directory = make_runtime(place)
        lock = -1
        try:
            lock = os.open(
                START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory
            )
            os.fchmod(lock, 0o600)  # whatever the umask: others wait for it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_named(lock, START_LOCK, directory):
                break
        except FileNotFoundError:
            pass  # the directory went with a daemon that ended
        os.close(directory)
        if lock >= 0:
            os.close(lock)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(START_LOCK, dir_fd=directory)
        os.close(lock)
        os.close(directory)


def _launch(place: str, data: str | None) -> None:
    """Start the daemon and wait for its word: nothing when it serves, or the error that kept it from it."""
    if not sys.executable:
        raise DaemonStartError("daemon_start_failed", "this program does not know its Python interpreter")
    program = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "daemon", "__main__.py"
    )
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    theirs, log = _above_standard(theirs), _above_standard(_open_log(place))
    try:
        # -P: the directory of the program must not be a place to import from.
        argv = [sys.executable, "-P", program, "--runtime-dir", place, "--ready", str(theirs)]
        if data is not None:
            argv += ["--data", data]
        try:
            pid = _spawn(argv, theirs, log)
        except OSError as error:
            text = f"{sys.executable} cannot be executed: {error.strerror}"
            raise DaemonStartError("daemon_start_failed", text, errno=error.errno) from None
        finally:
            os.close(theirs)
            os.close(log)
        word = _read_word(ours)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    finally:
        os.close(ours)
    if word != b"ready":
        raise _refusal(word, place)


def _open_log(place: str) -> int:
    """The daemon's log, for what goes wrong before it can open it itself."""
    directory = make_runtime(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        log = os.open(LOG, flags, 0o600, dir_fd=directory)
        os.fchmod(log, 0o600)  # whatever the caller's umask: the daemon opens it again
        return log
    except OSError as error:
        text = f"its log {os.path.join(place, LOG)} cannot be opened"
        raise DaemonStartError("daemon_start_failed", text, errno=error.errno) from None
    finally:
        os.close(directory)


def _above_standard(descriptor: int) -> int:
    """The same file under a number above 2: a caller that closed its standard streams gets those numbers."""
    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def _spawn(argv: list[str], ready: int, log: int) -> int:
    """The process leaves at once; the daemon is its child, so that it is nobody's here."""
    import signal

    # dup2 onto itself is how posix_spawn(3) lets one descriptor pass.
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 2),
        (os.POSIX_SPAWN_DUP2, ready, ready),
    ]
    # Ignored and blocked signals would pass on through daemon and core to every command, and with SIGCHLD
    # ignored core would not hear of the end of any.
    default = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    return os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsigmask=(), setsigdef=default)


def _read_word(pipe: int) -> bytes:
    deadline = time.monotonic() + START_TIMEOUT_S
    parts: list[bytes] = []
    poller = select.poll()  # select(2) cannot name descriptors above 1023
    poller.register(pipe, select.POLLIN)
    while True:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return SILENT
        part = os.read(pipe, 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _refusal(word: bytes, place: str) -> RametError:
    how = "did not start"
    try:
        return RametError.from_wire(json.loads(word))
    except (ValueError, AttributeError):
        if word == SILENT:
            how = f"said nothing for {START_TIMEOUT_S:g} s"
        return DaemonStartError("daemon_start_failed", f"the daemon {how}{_log_tail(place)}")


def _log_tail(place: str) -> str:
    try:
        directory = open_runtime(place)
        if directory is None:
            return ""
        try:
            log = os.open(LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
    except (OSError, RametError):
        return ""
    try:
        size = os.fstat(log).st_size
        tail = os.pread(log, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
    finally:
        os.close(log)
    return f"; its log ends with:\n{tail.decode('utf-8', 'replace').strip()}" if tail else ""
