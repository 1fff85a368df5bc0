"""Core, spoken to as the daemon speaks to it: no daemon and no client is in what is measured.

A *source* is a sandbox with one process, `_engine_program.py`. A *child* is a sandbox forked from a snapshot
of one. A *peer* is the same program beside the sandbox, which is forked by `os.fork`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import _engine_program
from benchmarks._memory import FILTER, ROOT, BareCore
from ramet._descriptors import close_all
from ramet.engine import plan
from ramet.engine.root import Bind, Dir, InterpreterFacts, RootSpec, default_environment, default_root
from ramet.models.limits import DEFAULT_LIMITS
from ramet.models.runs import RunRequest
from ramet.native import _protocol as p
from ramet.native import frames, runs

DEADLINE_S = 60.0
MIB = 1 << 20
PACKAGES = "/opt/packages"
"""Where a sandbox has the modules that are not Python's own."""
PROGRAM = Path(_engine_program.__file__).read_text()


class Failed(RuntimeError):
    """Core refused, or a process did not answer."""


# --- processes that answer


@dataclasses.dataclass(eq=False)
class Answering:
    """A process that answers lines: the ends of its pipes that are ours."""

    stdin: int
    stdout: int

    def say(self, line: str) -> None:
        """Ask a question. One line is one write, and fits a pipe."""
        os.write(self.stdin, line.encode())

    def hear(self) -> str:
        """Its answer."""
        poller = select.poll()
        poller.register(self.stdout, select.POLLIN)
        said = b""
        while not said.endswith(b"\n"):
            if not poller.poll(DEADLINE_S * 1e3):
                raise Failed(f"no answer in {DEADLINE_S:g} s")
            part = os.read(self.stdout, 65536)
            if not part:
                raise Failed("it ended before it answered")
            said += part
        text = said[:-1].decode()
        if text.startswith("failed: "):
            raise Failed(text)
        return text

    def ask(self, line: str) -> Any:
        """Ask, and hear a value that Python can read."""
        self.say(line)
        return literal_eval(self.hear())

    def close(self) -> None:
        """Let go of its pipes."""
        close_all([self.stdin, self.stdout])


class Peer(Answering):
    """The program beside the sandbox."""

    def __init__(self, interpreter: str) -> None:
        words = [interpreter, "-I", "-S", "-c", PROGRAM]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={}
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(self._process.stdin.fileno(), self._process.stdout.fileno())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclasses.dataclass(eq=False)
class Guest(Answering):
    """The one process of the sandbox with the number `sandbox`."""

    sandbox: int = 0


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A snapshot that can be forked, and what core said of it."""

    number: int
    pause_ms: float
    capture_ms: float
    stem_ms: float
    memory_bytes: int
    file_bytes: int
    by_twin: bool


# --- core


class EngineCore(BareCore):
    """A core whose sandboxes stand. Requests may be under way while others are sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._sandboxes = itertools.count(1)
        self._snapshots = itertools.count(1)
        self._answers: dict[int, frames.Frame] = {}
        self._ended: set[int] = set()
        # What a guest says on standard error is kept: it tells why it did not answer.
        self._errors = os.open(directory / "guests", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._log = directory / "log"
        self._home, self._variables = "/", b""
        self._limits = plan.limits_part(DEFAULT_LIMITS, "")

    def define(self, spec: RootSpec) -> None:
        """Tell it the usual filter, and a root."""
        super().define(spec)
        self._home = spec.home
        self._variables = runs.environment_part(default_environment(spec))

    def send(self, kind: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> int:
        """Send a request; its number."""
        self._requests += 1
        frames.send(self._sock, kind, self._requests, payload, list(fds))
        return self._requests

    def ask(self, kind: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> frames.Attributes:
        """Send a request, return its answer's attributes."""
        return self.answer(self.send(kind, payload, fds))

    def answer(self, request: int) -> frames.Attributes:
        """The answer to a request. Raises Failed."""
        while request not in self._answers:
            self._next()
        frame = self._answers.pop(request)
        found = frames.attributes(frame.payload)
        if frame.kind == p.ERROR:
            step = p.STEP_NAMES.get(found.u32(p.TAG_STEP), "")
            raise Failed(f"core: {found.text(p.TAG_CODE)} {step} {found.text(p.TAG_TEXT)}")
        return found

    def _next(self) -> None:
        frame = frames.receive(self._sock, self._buffer)
        if frame is None:
            raise Failed(f"core has ended: {self._log.read_text(errors='replace')[-2000:]}")
        close_all(frame.fds)
        if frame.request:
            self._answers[frame.request] = frame
        elif frame.kind == p.ENDED:
            self._ended.add(frames.attributes(frame.payload).u64(p.TAG_SANDBOX))

    # -- sandboxes

    def _plan(self, sandbox: int) -> bytes:
        return plan.standing_part(sandbox, hostname="ramet", wall=None, owned=True, record=b"") + self._limits

    def start(self, interpreter: str) -> Guest:
        """A source."""
        sandbox = next(self._sandboxes)
        place = frames.u32(p.TAG_ROOT, ROOT) + frames.u32(p.TAG_FILTER, FILTER)
        self.ask(p.CREATE, place + self._plan(sandbox))
        request = RunRequest.of([interpreter, "-I", "-S", "-c", PROGRAM])
        guest, fds = self._streams(sandbox)
        try:
            command = plan.spawn_part(request, sandbox, self._home, plan.streams_part(1)) + self._variables
            self.ask(p.SPAWN, command, fds)
        finally:
            close_all(fds[:2])
        return guest

    def snapshot(self, guest: Guest) -> Snapshot:
        """Take a snapshot."""
        number = next(self._snapshots)
        payload = frames.u64(p.TAG_SANDBOX, guest.sandbox) + frames.u32(p.TAG_SNAPSHOT, number)
        found = self.ask(p.SNAPSHOT, payload)
        return Snapshot(
            number,
            found.u64(p.TAG_PAUSE_NS) / 1e6,
            found.u64(p.TAG_CAPTURE_NS) / 1e6,
            found.u64(p.TAG_STEM_NS) / 1e6,
            found.u64(p.TAG_MEMORY_BYTES),
            found.u64(p.TAG_FILE_BYTES),
            bool(found.u32(p.TAG_BY_TWIN)),
        )

    def begin_fork(self, snapshot: Snapshot, line: str = "") -> tuple[Guest, int]:
        """Ask for a child, whose first question lies in its pipe; the child to be, and the request."""
        guest, fds = self._streams(next(self._sandboxes))
        if line:
            guest.say(line)
        payload = self._plan(guest.sandbox) + frames.u32(p.TAG_SNAPSHOT, snapshot.number)
        try:
            return guest, self.send(p.CREATE, payload + plan.streams_part(1), fds)
        finally:
            close_all(fds[:2])

    def fork(self, snapshot: Snapshot, line: str = "None") -> tuple[Guest, Any]:
        """A child that has answered, and its answer."""
        guest, request = self.begin_fork(snapshot, line)
        try:
            said = guest.hear()
        except Failed:
            self.answer(request)  # it knows better why
            raise
        self.answer(request)
        return guest, literal_eval(said)

    def _streams(self, sandbox: int) -> tuple[Guest, tuple[int, int, int]]:
        theirs_in, stdin = os.pipe2(os.O_CLOEXEC)
        stdout, theirs_out = os.pipe2(os.O_CLOEXEC)
        return Guest(stdin, stdout, sandbox), (theirs_in, theirs_out, self._errors)

    def end(self, *guests: Guest) -> None:
        """End their sandboxes."""
        requests = [self.send(p.KILL, frames.u64(p.TAG_SANDBOX, guest.sandbox)) for guest in guests]
        for guest, request in zip(guests, requests, strict=True):
            self.answer(request)
            while guest.sandbox not in self._ended:
                self._next()
            guest.close()
            self._ended.discard(guest.sandbox)

    def drop(self, *snapshots: Snapshot) -> None:
        """Forget snapshots."""
        for snapshot in snapshots:
            self.ask(p.DROP_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))

    def processes(self) -> list[int]:
        """The processes of guests, as this process numbers them."""
        inits = _children(self._pid)
        return [guest for init in inits for guest in _children(init)]

    def close(self) -> None:
        """End it and everything in it."""
        super().close()
        os.close(self._errors)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


# --- where it all happens


@dataclasses.dataclass(frozen=True)
class Place:
    """A core with a full pool and a root, and the interpreter under its name inside and outside."""

    core: EngineCore
    inside: str
    outside: str
    packages: Path | None
    pool: int

    def source(self, *modules: str) -> Guest:
        """A source that has imported `modules`."""
        guest = self.core.start(self.inside)
        _import(guest, PACKAGES, modules)
        return guest

    def peer(self, *modules: str) -> Peer:
        """The same program beside the sandbox."""
        peer = Peer(self.outside)
        _import(peer, str(self.packages), modules)
        return peer


def _import(process: Answering, packages: str, modules: tuple[str, ...]) -> None:
    if modules:
        process.ask(f"import sys; sys.path.insert(0, {packages!r})")
    for module in modules:
        process.ask(f"import {module}")


@contextlib.contextmanager
def place(packages: Path | None, pool: int) -> Iterator[Place]:
    """A core of our own, ended at the end."""
    program = os.path.realpath(sys.executable)
    spec = default_root(InterpreterFacts(sys.base_prefix, sys.base_prefix, program))
    if spec.notes:
        raise Failed(f"a sandbox cannot show the interpreter that runs this: {' '.join(spec.notes)}")
    if packages is not None:
        spec = dataclasses.replace(
            spec,
            entries=(*spec.entries, Dir(PACKAGES)),
            binds=(*spec.binds, Bind(packages.resolve(), PACKAGES)),
        )
    with tempfile.TemporaryDirectory(prefix="ramet-bench-", dir="/tmp") as directory:
        core = EngineCore(Path(directory))
        try:
            core.define(spec)
            core.fill(pool)
            yield Place(core, program, program, packages, pool)
        finally:
            core.close()


def rollup(pid: int) -> Mapping[str, int]:
    """KiB by kind, from a process's smaps_rollup. Raises OSError where it may not be read."""
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    return {row[0][:-1]: int(row[1]) for row in rows}


def until(condition: Any, what: str) -> None:
    """Wait until `condition()` holds. Raises Failed."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise Failed(what)
        time.sleep(0.002)


class Clock:
    """A bounded time: what is repeated stops when it is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() > self._end
