"""Drives core by its own socket: starts the program that `RAMET_CORE` names (else the built one).

Every wait has a deadline and none of them sleeps: a test that would hang fails after DEADLINE_S seconds.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import select
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames, ids
from ramet.native.locate import find_program
from system.core._payloads import ALLOW_ALL, ALLOW_ALL_PROGRAM, ROOT, command, plan, root_entries

DEADLINE_S = 20.0
SANITIZER_OPTIONS = {
    # For the launcher: core runs without an environment, and ends by _exit(), which looks for no leaks.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


# --- what comes back ---------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """A frame from core, its attributes by tag."""

    kind: int
    request: int
    found: frames.Attributes
    fds: tuple[int, ...] = ()

    @property
    def error(self) -> tuple[str, str, int, str]:
        """(code, step, errno, field) of an ERROR."""
        assert self.kind == p.ERROR, p.KIND_NAMES.get(self.kind, self.kind)
        step = self.found.u32(p.TAG_STEP)
        code, fault = self.found.text(p.TAG_CODE), self.found.u32(p.TAG_ERRNO)
        return code, p.STEP_NAMES.get(step, str(step)), fault, self.found.text(p.TAG_FIELD)

    @property
    def ended(self) -> tuple[str, int]:
        """(reason, wait status) of an ENDED or EXITED."""
        assert self.kind in {p.ENDED, p.EXITED}, (p.KIND_NAMES.get(self.kind, self.kind), self.found)
        return p.REASON_NAMES[self.found.u32(p.TAG_REASON)], self.found.u32(p.TAG_STATUS)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ended by itself."""
        reason, status = self.ended
        assert reason == "exit", (reason, status)
        return os.waitstatus_to_exitcode(status)


@dataclass(frozen=True, slots=True)
class Result:
    """A RUN's answer and what its command wrote."""

    answer: Answer
    stdout: bytes
    stderr: bytes


@dataclass(slots=True)
class Running:
    """A RUN that was sent. Output goes to memory files: nothing blocks, whatever its amount."""

    request: int
    sandbox: int
    outputs: tuple[int, int]

    def forget(self) -> None:
        """Close what its output went to, without waiting for its end."""
        for fd in self.outputs:
            os.close(fd)


class StartFailed(Exception):
    """Core did not come up; `answer` is the ERROR it sent instead of READY."""

    def __init__(self, answer: Answer | None, exit_code: int, log: str) -> None:
        super().__init__(answer, exit_code, log)
        self.answer = answer
        self.exit_code = exit_code


def parse(frame: frames.Frame) -> Answer:
    """The frame's attributes, decoded."""
    return Answer(frame.kind, frame.request, frames.attributes(frame.payload), tuple(frame.fds))


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until it holds."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S:g} s"


# --- core --------------------------------------------------------------------------------------------------


class Connection:
    """A control connection: requests, their answers, and events, which are kept until somebody asks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(DEADLINE_S)
        self.sock = sock
        self.events: deque[Answer] = deque()
        self._answers: dict[int, deque[Answer]] = {}
        self._numbers = itertools.count(1)
        self._buffer = bytearray(p.FRAME_BYTES)

    def send(self, kind: int, payload: bytes = b"", fds: Sequence[int] = ()) -> int:
        """Send a request and return its number."""
        request = next(self._numbers)
        frames.send(self.sock, kind, request, payload, list(fds))
        return request

    def receive(self) -> Answer | None:
        """The next frame; None at the end of the connection."""
        try:
            frame = frames.receive(self.sock, self._buffer)
        except ConnectionResetError:
            # Told once, before what core had sent, when core ended with frames of ours unread.
            frame = frames.receive(self.sock, self._buffer)
        return frame and parse(frame)

    def _sort(self, answer: Answer | None) -> None:
        assert answer is not None, "core closed the connection"
        if answer.request:
            self._answers.setdefault(answer.request, deque()).append(answer)
        else:
            self.events.append(answer)

    def answer(self, request: int) -> Answer:
        """The next frame that answers `request`."""
        while not self._answers.get(request):
            self._sort(self.receive())
        return self._answers[request].popleft()

    def ask(self, kind: int, payload: bytes = b"", fds: Sequence[int] = ()) -> Answer:
        """Send a request and wait for its answer, whatever it is."""
        return self.answer(self.send(kind, payload, fds))

    def ok(self, kind: int, payload: bytes = b"", fds: Sequence[int] = ()) -> Answer:
        """Send a request that has to succeed."""
        answer = self.ask(kind, payload, fds)
        assert answer.kind == p.OK, answer
        return answer

    def event(self, kind: int, sandbox: int) -> Answer:
        """The next event of this kind about this sandbox."""
        while True:
            for answer in self.events:
                if answer.kind == kind and answer.found.u64(p.TAG_SANDBOX) == sandbox:
                    self.events.remove(answer)
                    return answer
            self._sort(self.receive())

    def hello(self) -> Answer:
        """Become the control connection."""
        return self.ok(p.HELLO)

    def status(self) -> frames.Attributes:
        """Core's numbers, without the one that never stands still."""
        found = self.ok(p.STATUS).found
        assert found.pop(p.TAG_IDLE_NS, None) is not None
        return found

    def listing(self) -> dict[int, bytes]:
        """Every living sandbox and its record."""
        request = self.send(p.LIST)
        found = {}
        while p.TAG_SANDBOX in (answer := self.answer(request)).found:
            found[answer.found.u64(p.TAG_SANDBOX)] = answer.found[p.TAG_RECORD]
        return found

    def settle(self) -> None:
        """Wait until the pool is full and nothing else lives."""

        def settled() -> bool:
            status = self.status()
            full = status.u32(p.TAG_POOL_READY) == status.u32(p.TAG_POOL_SIZE)
            return full and not status.u32(p.TAG_SANDBOXES)

        until(settled, "a full pool")

    def close(self) -> None:
        """Hang up."""
        self.sock.close()


@dataclass(slots=True)
class Options:
    """How core is started. `maps` are its id maps; None: as the product chooses them."""

    pool: int = 2
    grace_ms: int = 60000
    fault: int = 0
    maps: tuple[str, str] | None = None
    snapshot_memory: int = 0
    snapshot_ms: int = 0
    spill: int | None = None
    listen: bool = False
    python: bool = False


@dataclass(slots=True)
class Core:
    """A running core: the program, its first connection, and a directory of its own."""

    options: Options
    pid: int
    ready: Answer
    control: Connection
    home: Path
    listener: socket.socket | None
    sandboxes: Iterator[int] = field(default_factory=lambda: itertools.count(100))

    # -- roots and commands

    def define(self, root: int = ROOT, *, python: bool = False, more: bytes = b"", fault: int = 0) -> Answer:
        """Define a root like the default one."""
        entries, lent = root_entries(python=python)
        armed = frames.u32(p.TAG_FAULT, fault) if fault else b""
        try:
            return self.control.ask(
                p.DEFINE_ROOT, frames.u32(p.TAG_ROOT, root) + entries + more + armed, lent
            )
        finally:
            for fd in lent:
                os.close(fd)

    def lane(self) -> Connection:
        """A new lane."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.control.ok(p.LANE, b"", [theirs.fileno()])
        return Connection(ours)

    def start_run(
        self,
        argv: Sequence[str],
        *,
        inherit: int | None = None,
        over: Connection | None = None,
        **options: object,
    ) -> Running:
        """Send a RUN. Options are those of `plan` and `command`; `inherit` becomes its standard input."""
        sandbox = next(self.sandboxes)
        mine, theirs = split_options(options)
        outputs = (os.memfd_create("stdout"), os.memfd_create("stderr"))
        fds = [*outputs] if inherit is None else [*outputs, inherit]
        streams = (None if inherit is None else 2, 0, 1)
        payload = plan(sandbox, **mine) + command(argv, streams=streams, **theirs)  # type: ignore[arg-type]
        return Running((over or self.control).send(p.RUN, payload, fds), sandbox, outputs)

    def finish(self, running: Running, over: Connection | None = None) -> Result:
        """Wait for a RUN's answer."""
        answer = (over or self.control).answer(running.request)
        texts = []
        for fd in running.outputs:
            texts.append(os.pread(fd, os.fstat(fd).st_size, 0))
            os.close(fd)
        return Result(answer, *texts)

    def run(self, argv: Sequence[str], **options: object) -> Result:
        """Run a command and wait for its end."""
        return self.finish(self.start_run(argv, **options))  # type: ignore[arg-type]

    def shell(self, line: str, **options: object) -> Result:
        """Run a shell line."""
        return self.run(["/bin/sh", "-c", line], **options)

    def create(self, **options: object) -> int:
        """Make a standing sandbox."""
        sandbox = next(self.sandboxes)
        answer = self.control.ok(p.CREATE, plan(sandbox, **options))  # type: ignore[arg-type]
        assert answer.found.u64(p.TAG_SANDBOX) == sandbox
        return sandbox

    def spawn(self, sandbox: int, argv: Sequence[str], fds: Sequence[int] = (), **options: object) -> Answer:
        """Ask for a command in a standing sandbox; the answer is OK or ERROR."""
        given = {"streams": (None, None, None), **options}
        payload = frames.u64(p.TAG_SANDBOX, sandbox) + command(argv, **given)  # type: ignore[arg-type]
        return self.control.ask(p.SPAWN, payload, fds)

    def kill(self, sandbox: int) -> Answer:
        """End a standing sandbox; its ENDED."""
        self.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, sandbox))
        return self.control.event(p.ENDED, sandbox)

    # -- what the host sees

    def descendants(self) -> list[_ledger.Process]:
        """Every process below core, zombies too; but for the one that entries come from, which stays."""
        return [one for one in _ledger.descendants(self.pid) if one.name != "ramet-zygote" or one.ended]

    def guests(self, name: str) -> list[_ledger.Process]:
        """The living processes of this name below core."""
        return [one for one in self.descendants() if one.name == name and not one.ended]

    def settle(self) -> None:
        """Wait until there is nothing but a full pool: what was told to have ended is taken down, too."""
        self.control.settle()
        until(lambda: len(self.descendants()) == self.options.pool, "the pool alone")
        until(lambda: self.networks() <= 1, "no network but core's own")
        self.control.status()

    def descriptors(self) -> int:
        """How many descriptors core itself has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def networks(self) -> int:
        """How many network namespaces core itself has open: what nobody used it keeps for a moment."""
        return sum(one.startswith("net:[") for one in _ledger.links(f"/proc/{self.pid}/fd"))

    def resident_kib(self) -> int:
        """Core's own memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1])

    @property
    def socket_path(self) -> Path:
        """Where core.sock stands."""
        return self.home / "core.sock"

    def connect(self) -> Connection:
        """Another connection, to core.sock."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(DEADLINE_S)
        sock.connect(str(self.socket_path))
        return Connection(sock)

    def reports(self) -> str:
        """What core wrote to its standard error or log that a sound core does not."""
        text = (self.home / "stderr").read_text(errors="replace")
        log = (self.home / "log").read_text(errors="replace")
        lines = [line for line in log.splitlines() if "init_malformed" in line]
        return "\n".join([text, *lines]).strip()

    # -- ends

    def wait(self) -> int:
        """Wait for core's own end; its exit status as a shell has it (-9: killed)."""
        pidfd = os.pidfd_open(self.pid)
        try:
            assert select.select([pidfd], [], [], DEADLINE_S)[0], "core does not end"
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        finally:
            os.close(pidfd)
            self.pid = 0

    def shut_down(self) -> None:
        """Ask core to end and wait for it."""
        self.control.ok(p.SHUTDOWN)
        assert self.control.receive() is None
        assert self.wait() == 0

    def discard(self) -> None:
        """Whatever state it is in: end it, and forget it."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, 9)
            self.wait()
        self.control.close()
        if self.listener:
            self.listener.close()
        for path in self.home.iterdir():
            path.unlink()
        self.home.rmdir()


PLAN_OPTIONS = frozenset(inspect.signature(plan).parameters)


def split_options(options: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Those of the plan, and those of the command."""
    mine = {name: value for name, value in options.items() if name in PLAN_OPTIONS}
    return mine, {name: value for name, value in options.items() if name not in PLAN_OPTIONS}


def start(options: Options | None = None, *, define: bool = True) -> Core:
    """Start core, wait for READY and define filter ALLOW_ALL and root ROOT.

    Raises:
        StartFailed: it sent something else, or nothing.
    """
    core = start_bare(options or Options())
    try:
        if define:
            payload = frames.u32(p.TAG_FILTER, ALLOW_ALL) + frames.raw(p.TAG_BYTES, ALLOW_ALL_PROGRAM)
            core.control.ok(p.DEFINE_FILTER, payload)
            answer = core.define(python=core.options.python)
            assert answer.kind == p.OK, answer
            core.control.settle()
    except BaseException:
        core.discard()
        raise
    return core


def start_bare(options: Options) -> Core:
    """Start core and wait for READY."""
    home = Path(tempfile.mkdtemp(prefix="ramet-core-", dir="/tmp"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    listener = listen_at(home / "core.sock") if options.listen else None
    hold = None if options.maps else next(ids.choose_ids())
    maps = options.maps or (hold.uids, hold.gids)  # type: ignore[union-attr]
    if os.geteuid() == 0:
        # Core is nobody on the host: to remove core.sock at its end it must own the directory.
        os.chown(home, first_host_id(maps[0]), -1)
    directory_fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    with (home / "log").open("ab") as log, (home / "stderr").open("ab") as stderr, theirs:
        inherited = {"control": theirs.fileno(), "log": log.fileno(), "runtime-dir": directory_fd}
        if listener:
            inherited["listen"] = listener.fileno()
        if options.spill is not None:
            inherited["spill"] = options.spill
        if hold and hold.hold:
            inherited["hold"] = hold.hold.fileno()
        given: dict[str, object] = {**inherited, "uid-map": maps[0], "gid-map": maps[1]}
        given |= {"pool": options.pool, "grace-ms": options.grace_ms, "fault": options.fault}
        if options.snapshot_ms:
            given["snapshot-ms"] = options.snapshot_ms
        if options.snapshot_memory:
            given["snapshot-memory"] = options.snapshot_memory
        if hold and hold.helpers:
            given["newidmap"] = hold.helpers
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        launcher = subprocess.Popen(
            [str(find_program()), "serve", *words],
            pass_fds=list(inherited.values()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=SANITIZER_OPTIONS,
            start_new_session=True,
        )
    os.close(directory_fd)
    if hold:
        hold.close()
    # The launcher tells the pid of core, which is our child too.
    with launcher.stdout as pipe:  # type: ignore[union-attr]
        pid = int(pipe.readline() or 0)
    exit_code = launcher.wait(DEADLINE_S)
    ready = parse_first(ours)
    if ready is None or ready.kind != p.READY:
        words_of_core = "".join((home / name).read_text(errors="replace") for name in ("log", "stderr"))
        give_up(ours, listener, home, pid)
        raise StartFailed(ready, exit_code, words_of_core)
    assert exit_code == 0
    return Core(options, pid, ready, Connection(ours), home, listener)


def first_host_id(id_map: str) -> int:
    """The host's id of uid 0 of an id map; -1, which changes nothing, for a map of a test of bad ones."""
    words = id_map.partition(",")[0].split()
    return int(words[1]) if len(words) == 3 and words[1].isdecimal() else -1


def parse_first(sock: socket.socket) -> Answer | None:
    """Core's first frame."""
    data = sock.recv(p.FRAME_BYTES)
    return parse(frames.parse(data, len(data), [])) if data else None


def give_up(sock: socket.socket, listener: socket.socket | None, home: Path, pid: int) -> None:
    """Remove what a core that did not come up leaves: files, and itself as our child."""
    sock.close()
    if listener:
        listener.close()
    if pid:
        os.waitpid(pid, 0)
    for path in home.iterdir():
        path.unlink()
    home.rmdir()


def listen_at(path: Path) -> socket.socket:
    """A listening socket for core.sock."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(8)
    return listener


@cache
def is_sanitized() -> bool:
    """Whether the program is a sanitizer build: it uses more memory, and more of it each time."""
    return b"__asan_init" in find_program().read_bytes()


# --- what is left ------------------------------------------------------------------------------------------


def observe(runtime: Path) -> _ledger.Record:
    """What this test process and everything below it own now."""
    return _ledger.observe(runtime)


@contextmanager
def nothing_left(core: Core) -> Iterator[None]:
    """Fail if the body leaves more processes, mounts, namespaces or descriptors than it found.

    The pool is full before and after, so what is being made or taken down is not counted.
    """
    core.control.settle()
    before = _ledger.settle(lambda: observe(core.home), quiet=0.05)
    yield
    core.control.settle()
    found = _ledger.drift(before, lambda: observe(core.home))
    assert not found, "; ".join(found)
