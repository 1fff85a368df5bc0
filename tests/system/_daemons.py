"""Daemons that a test may kill: each in a directory of its own, apart from the session's."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import _ledger
from ramet.client import Client
from ramet.errors import DaemonLost

PATIENCE_S = 30.0
ENDED_BY_KILL = 128 + signal.SIGKILL


@dataclass
class Own:
    """A place for one daemon. Clients of it start the daemon on demand, with this process's environment."""

    place: str
    clients: list[Client] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def client(self, *, start: bool = True) -> Client:
        """A client of this daemon alone."""
        client = Client(self.place, start=start)
        self.clients.append(client)
        return client

    def pids(self) -> tuple[int, int]:
        """(daemon, core); both are started if need be."""
        client = self.client()
        client.run("true")
        status = client.status()
        assert status.core is not None
        return status.pid, status.core.pid

    def entries(self) -> set[str]:
        """What is in the runtime directory."""
        return set(os.listdir(self.place)) if os.path.isdir(self.place) else set()

    def program(self, source: str, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
        """A client in a process of its own, which can be killed. Its streams are pipes."""
        started = subprocess.Popen(
            [sys.executable, "-c", source, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "RAMET_RUNTIME_DIR": self.place, **environment},
            bufsize=0,
        )
        self.processes.append(started)
        return started

    def end(self) -> None:
        """End daemon and core as a user would, whatever is left of them."""
        if self.entries():
            with contextlib.suppress(DaemonLost), Client(self.place) as client:
                wait_gone(client.shutdown().pid)

    def close(self) -> None:
        """End everything; what tests started besides is killed."""
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for client in self.clients:
            client.close()
        self.end()


@contextlib.contextmanager
def own_daemon() -> Iterator[Own]:
    """A place for a daemon; afterwards nothing may be in it."""
    home = Path(tempfile.mkdtemp(prefix="ramet-o-", dir="/tmp"))
    place = home / "run"
    place.mkdir(mode=0o700)
    daemon = Own(str(place))
    try:
        yield daemon
        daemon.close()
        left = daemon.entries()
    finally:
        daemon.close()
        shutil.rmtree(home)
    assert left == set(), "the daemon left files"


@pytest.fixture
def own() -> Iterator[Own]:
    """A daemon of this test's own."""
    with own_daemon() as daemon:
        yield daemon


def wait_gone(pid: int, patience: float = PATIENCE_S) -> None:
    """Wait until the process is dead, and reap it where it has become ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], patience)[0], f"{pid} is still there after {patience} s"
    finally:
        os.close(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def kill_hard(pid: int) -> None:
    """SIGKILL, and wait for the end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def marked(mark: str) -> list[int]:
    """Processes below this one, and so of the sandboxes that it started, with `mark` in their command line.

    A client in a process of its own must be told the mark otherwise.
    """
    found = []
    for process in _ledger.descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if mark.encode() in words and not process.ended:
                found.append(process.pid)
    return found


def none_left(mark: str, patience: float = PATIENCE_S) -> bool:
    """Whether no marked process is left at the end of `patience`; true as soon as that is so."""
    end = time.monotonic() + patience
    while pids := marked(mark):
        if time.monotonic() > end:
            return False
        for pid in pids:
            wait_gone(pid, max(0.0, end - time.monotonic()))
    return True


def memory(pid: int | str, row: str) -> int:
    """Bytes that a row of /proc/PID/status tells, VmHWM say."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(row + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(row)


@pytest.fixture(scope="module")
def shared() -> Iterator[Own]:
    """A daemon of this module's own, which a test must leave alive."""
    with own_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def rooted(shared: Own) -> Client:
    """A client whose daemon may learn roots that the session's daemon would keep."""
    return shared.client()


def build(top: Path, *names: str) -> Path:
    """A root directory with a shell and the programs `names`, at `top`."""
    from ramet.engine.closure import build_root

    build_root(top, ["sh", *names])
    return top
