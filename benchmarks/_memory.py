"""What an entry of the pool costs the machine, all in: not what one process shows, but what is gone.

Page tables, kernel stacks, namespaces, mounts and network devices belong to nobody's resident set; they show
in the fall of MemAvailable alone. That number has a noise of a megabyte or two, so it is taken over 200
entries, made as everybody's are: many cores with a pool of the usual size each.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks._machine import available_kib
from benchmarks._measure import Figure, Series
from benchmarks._peers import Bubblewrap
from benchmarks._settings import Outcome, Settings
from ramet._descriptors import close_all
from ramet.engine import plan
from ramet.engine.root import RootSpec, default_environment, default_root
from ramet.models.limits import DEFAULT_LIMITS
from ramet.models.runs import RunRequest
from ramet.native import _protocol as p
from ramet.native import frames, runs
from ramet.native.launch import Start, lend_mounts, start_core
from ramet.native.locate import find_program
from ramet.seccomp import default_filter

MOST_KIB = 500.0
TIMEOUT_S = 30.0
ROOT = FILTER = 1


class BareCore:
    """A core without a daemon, its pool empty at first."""

    def __init__(self, directory: Path) -> None:
        self._program = find_program()
        self._requests = 0
        self._buffer = bytearray(p.FRAME_BYTES)
        self._descriptors = [os.open(directory, os.O_RDONLY | os.O_DIRECTORY)]
        self._descriptors.append(os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(directory / "core.sock"))
            listener.listen(1)
            directory_fd, log = self._descriptors
            start = Start(self._program, listener, directory_fd, log, grace_ms=1000, pool=0)
            launched = start_core(start)
        self._sock, self._pid = launched.sock, launched.pid
        self._sock.settimeout(TIMEOUT_S)

    def ask(self, kind: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> frames.Attributes:
        """Send a request, return its answer's attributes."""
        self._requests += 1
        frames.send(self._sock, kind, self._requests, payload, list(fds))
        frame = frames.receive(self._sock, self._buffer)
        if frame is None or frame.kind == p.ERROR:
            raise RuntimeError(f"core answered {frame}")
        close_all(frame.fds)
        return frames.attributes(frame.payload)

    def define(self, spec: RootSpec) -> None:
        """Tell it the usual filter, and a root."""
        self.ask(
            p.DEFINE_FILTER, frames.u32(p.TAG_FILTER, FILTER) + frames.raw(p.TAG_BYTES, default_filter())
        )
        sources = [str(bind.source) for bind in spec.binds]
        lent = lend_mounts(self._program, sources) if os.geteuid() == 0 else []
        try:
            payload = plan.root_part(ROOT, spec, [bool(lent)] * len(sources))
            self.ask(p.DEFINE_ROOT, payload, tuple(lent))
        finally:
            close_all(lent)

    def run(self, request: RunRequest, spec: RootSpec) -> None:
        """Run a command on that root; its output goes nowhere."""
        parts = [plan.fixed_part(ROOT, FILTER), plan.limits_part(DEFAULT_LIMITS, "")]
        parts.append(runs.environment_part(default_environment(spec)))
        parts.append(runs.command_part(request, self._requests + 1, spec.home))
        if self.ask(p.RUN, b"".join(parts)).u32(p.TAG_STATUS):
            raise RuntimeError(f"{request.argv} failed")

    def fill(self, pool: int) -> None:
        """Set the size of the pool, and wait until it has it."""
        self.ask(p.SET_POOL, frames.u32(p.TAG_POOL_SIZE, pool))
        end = time.monotonic() + TIMEOUT_S
        while self.ask(p.STATUS).u32(p.TAG_POOL_READY) < pool:
            if time.monotonic() > end:
                raise RuntimeError("the pool does not fill")
            time.sleep(0.005)

    def close(self) -> None:
        """End it and everything in it."""
        with contextlib.suppress(OSError, RuntimeError, frames.FrameError):
            self.ask(p.SHUTDOWN)
        self._sock.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        close_all(self._descriptors)


@contextlib.contextmanager
def some_cores(count: int) -> Iterator[list[BareCore]]:
    """Cores that are ended at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="ramet-bench-", dir="/tmp") as top,
        contextlib.ExitStack() as stack,
    ):
        cores = []
        for number in range(count):
            directory = Path(top, str(number))
            directory.mkdir(mode=0o700)
            cores.append(BareCore(directory))
            stack.callback(cores[-1].close)
        yield cores


def settled_kib() -> float:
    """MemAvailable, once it has stopped to move for the most part."""
    readings = []
    for _ in range(10):
        time.sleep(0.05)
        readings.append(available_kib())
    return median(readings[3:])


def measure(settings: Settings, _: Bubblewrap | None) -> Outcome:
    """Fall of MemAvailable when the pools fill and have served a run, for each entry."""
    cost = Series("pool entry", "KiB")
    spec = default_root(private=())
    request = RunRequest.of(["true"])
    for _pass in range(settings.memory_passes):
        with some_cores(settings.cores) as cores:
            for core in cores:
                core.define(spec)
            before = settled_kib()
            for core in cores:
                core.fill(settings.pool)
                core.run(request, spec)
                core.fill(settings.pool)
            after = settled_kib()
        cost.samples.append((before - after) / (settings.cores * settings.pool))
    entries = settings.cores * settings.pool
    note = f"{entries} entries in {settings.cores} cores, {settings.memory_passes} times"
    figure = Figure("entry_kib", "a pool entry, all in", "KiB", cost.p50, MOST_KIB, note=note)
    return Outcome([figure], [cost])
