"""Drives the fork engine by core's own socket: sources, snapshots, children, victims of core/tests/victims.

Every wait has a deadline and none of them sleeps.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.seccomp import default_filter
from system.core import _core, _payloads

PRODUCT_FILTER = 2
"""What guests of the product run under; the engine may inject only what it allows."""
VICTIMS = "/victims"
"""Where the programs stand in every root."""
REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = REPOSITORY / "core/tests/victims"
COUNTER = ["/bin/sh", "-c", "n=0; echo READY; while read -r line; do n=$((n+1)); echo $n; done"]
"""Says how many lines it has heard."""


# --- victims -----------------------------------------------------------------------------------------------


class Victim(NamedTuple):
    """One entry of a victim program."""

    program: str
    name: str
    proves: str

    @property
    def argv(self) -> list[str]:
        """The command that runs it in a sandbox."""
        return [f"{VICTIMS}/{self.program}", self.name]


def victims(program: str) -> list[Victim]:
    """What `core/tests/victims/PROGRAM.c` holds, in its order."""
    text = (SOURCES / f"{program}.c").read_text()
    found = re.findall(r'^VICTIM\((\w+),\s*"([^"]+)"\)', text, re.MULTILINE)
    assert found, f"no victim in {program}.c"
    return [Victim(program, name, proves) for name, proves in found]


# --- guests ------------------------------------------------------------------------------------------------


class Died(AssertionError):
    """A guest's output ended before it said what was awaited."""


class Missing(Exception):
    """This machine lacks what the victim is about."""


@dataclass(slots=True, eq=False)
class Guest:
    """A sandbox with one process whose streams are ours; `about` tells failures apart."""

    engine: Engine
    sandbox: int
    about: str
    stdin: int
    stdout: int
    stderr: int
    _buffer: bytearray = field(default_factory=bytearray)
    _host_pid: int = 0

    # -- its streams

    def say(self, line: str) -> None:
        """Write one line to its standard input."""
        data = line.encode() + b"\n"
        assert os.write(self.stdin, data) == len(data)

    def line(self, deadline_s: float = _core.DEADLINE_S) -> str:
        """The next line of its standard output.

        Raises:
            Died: the output ended instead.
        """
        end = time.monotonic() + deadline_s
        while (at := self._buffer.find(b"\n")) < 0:
            poller = select.poll()
            poller.register(self.stdout, select.POLLIN)
            ready = poller.poll(max(0.0, end - time.monotonic()) * 1000)
            assert ready, f"{self.about}: no line within {deadline_s:g} s; so far {bytes(self._buffer)!r}"
            data = os.read(self.stdout, 65536)
            if not data:
                raise Died(
                    f"{self.about}: {self.exit()}; last words {bytes(self._buffer)!r}; {self.errors()}"
                )
            self._buffer += data
        text = self._buffer[:at].decode(errors="replace")
        del self._buffer[: at + 1]
        return text

    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return os.pread(self.stderr, 65536, 0).decode(errors="replace")

    def ask(self, line: str) -> str:
        """Say a line and hear one."""
        self.say(line)
        return self.line()

    # -- a victim's words

    def ready(self) -> None:
        """Wait until it has made its state.

        Raises:
            Missing: it cannot on this machine.
        """
        text = self.line()
        if text.startswith("missing: "):
            raise Missing(text.removeprefix("missing: "))
        assert text == "READY", f"{self.about}: {text} {self.errors()}"

    def go(self) -> None:
        """Let it compare. One that has died already tells so by its verdict."""
        with suppress(BrokenPipeError):
            self.say("go")

    def verdict(self) -> str:
        """`OK`, or what differs."""
        try:
            return self.line()
        except Died as died:
            return str(died)

    # -- from outside

    @property
    def host_pid(self) -> int:
        """Its process, as the test sees it: the one below core that holds the pipe of our `stdin`."""
        if not self._host_pid:
            pipe = f"pipe:[{os.fstat(self.stdin).st_ino}]"

            def found() -> bool:
                for process in self.engine.core.descendants():
                    if process.name.startswith("ramet-"):
                        continue
                    with suppress(OSError):
                        held = [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
                        if pipe in held:
                            self._host_pid = process.pid
                            return True
                return self.speaks()

            _core.until(found, f"the process of {self.about}")
        return self._host_pid

    def threads(self) -> list[str]:
        """The state letter of each of its threads."""
        letters = []
        with suppress(OSError):
            for task in Path(f"/proc/{self.host_pid}/task").iterdir():
                with suppress(OSError):
                    letters.append((task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0])
        return letters

    def speaks(self) -> bool:
        """Whether its output holds more, or has ended."""
        return bool(self._buffer or select.select([self.stdout], [], [], 0)[0])

    def asleep(self) -> None:
        """Wait until every thread waits in the kernel. One that has spoken, or died, is let pass."""
        _core.until(lambda: self.speaks() or set(self.threads()) == {"S"}, f"{self.about} asleep")

    def stopped(self) -> None:
        """Wait until a signal has stopped it."""
        _core.until(lambda: set(self.threads()) == {"T"}, f"{self.about} stopped")

    def exit(self) -> str:
        """How its process ended, in words."""
        ended = self.engine.core.control.event(p.EXITED, self.sandbox)
        code = os.waitstatus_to_exitcode(ended.found.u32(p.TAG_STATUS))
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def close(self) -> None:
        """Close our ends; core is told nothing."""
        for name in ("stdin", "stdout", "stderr"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def end(self) -> None:
        """End the sandbox."""
        self.close()
        self.engine.guests.remove(self)
        self.engine.core.kill(self.sandbox)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that core holds."""

    engine: Engine
    number: int
    found: frames.Attributes

    def fork(self, about: str = "child", **options: object) -> Guest:
        """A child that runs."""
        return self.engine.fork(self, about, **options)

    def drop(self) -> None:
        """Forget it; its children go on."""
        self.engine.core.control.ok(p.DROP_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, self.number))
        self.engine.snapshots.remove(self)


# --- the engine --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Engine:
    """A core whose sandboxes are forked. Everything made here ends with `clear`."""

    core: _core.Core
    guests: list[Guest] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def start(self, argv: Sequence[str], about: str = "source", **options: object) -> Guest:
        """A sandbox of its own with one command in it. Options are those of `plan` and `command`."""
        given: dict[str, object] = {"filter_id": PRODUCT_FILTER, **options}
        mine, theirs = _core.split_options(given)
        guest, fds = self._streams(self.core.create(**mine), about)
        try:
            answer = self.core.spawn(guest.sandbox, argv, fds, streams=(0, 1, 2), number=1, **theirs)
        finally:
            for fd in fds:
                os.close(fd)
        assert answer.kind == p.OK, answer
        return guest

    def ask_snapshot(self, guest: Guest, *, fault: int = 0, drop: bool = False) -> tuple[int, _core.Answer]:
        """Ask for a snapshot; its number, and the answer whatever it is."""
        number = next(self.numbers)
        return number, self.core.control.answer(self.send_snapshot(guest, number, fault=fault, drop=drop))

    def send_snapshot(self, guest: Guest, number: int, *, fault: int = 0, drop: bool = False) -> int:
        """Send the request alone; its number."""
        payload = frames.u64(p.TAG_SANDBOX, guest.sandbox) + frames.u32(p.TAG_SNAPSHOT, number)
        payload += frames.u32(p.TAG_FAULT, fault) if fault else b""
        payload += frames.u32(p.TAG_DROP, 1) if drop else b""
        return self.core.control.send(p.SNAPSHOT, payload)

    def snapshot(self, guest: Guest, *, twin: bool = True) -> Snapshot:
        """A snapshot that has to succeed; without `twin` memory is copied also if a parked twin has it."""
        number, answer = self.ask_snapshot(guest, fault=0 if twin else p.STEP_PARKED_TWIN)
        assert answer.kind == p.OK, f"{guest.about}: {describe(answer)}"
        snapshot = Snapshot(self, number, answer.found)
        self.snapshots.append(snapshot)
        return snapshot

    def refusal(self, guest: Guest) -> str:
        """Ask for a snapshot that must be refused by name; the words."""
        _, answer = self.ask_snapshot(guest)
        assert answer.kind == p.ERROR, f"{guest.about} was forked"
        assert answer.error[0] == "unforkable", describe(answer)
        return answer.found.text(p.TAG_TEXT)

    def send_fork(self, snapshot: int, about: str, **options: object) -> tuple[Guest, int]:
        """Send CREATE from a snapshot; the guest to be, and the request's number."""
        guest, fds = self._streams(next(self.core.sandboxes), about)
        plan = _payloads.plan(guest.sandbox, **options)  # type: ignore[arg-type]
        # Root and filter are the snapshot's.
        kept = b"".join(
            frames.raw(tag, value) for tag, value in attributes(plan) if tag not in {p.TAG_ROOT, p.TAG_FILTER}
        )
        streams = zip((p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR), range(3), strict=True)
        payload = kept + frames.u32(p.TAG_SNAPSHOT, snapshot) + frames.u32(p.TAG_COMMAND, 1)
        payload += b"".join(frames.u32(tag, index) for tag, index in streams)
        try:
            return guest, self.core.control.send(p.CREATE, payload, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def ask_fork(self, snapshot: int, about: str, **options: object) -> tuple[Guest, _core.Answer]:
        """CREATE from a snapshot; the guest, and the answer whatever it is."""
        guest, request = self.send_fork(snapshot, about, **options)
        return guest, self.core.control.answer(request)

    def fork(self, snapshot: Snapshot, about: str, **options: object) -> Guest:
        """A child that has to run."""
        guest, answer = self.ask_fork(snapshot.number, about, **options)
        assert answer.kind == p.OK, f"{about}: {describe(answer)}"
        return guest

    def forget(self, guest: Guest) -> None:
        """A guest that never came to be."""
        guest.close()
        self.guests.remove(guest)

    def _streams(self, sandbox: int, about: str) -> tuple[Guest, list[int]]:
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        errors = os.memfd_create("stderr")
        guest = Guest(self, sandbox, about, in_write, out_read, errors)
        self.guests.append(guest)
        return guest, [in_read, out_write, os.dup(errors)]

    def clear(self) -> None:
        """End every sandbox, drop every snapshot."""
        alive = self.core.control.listing()
        requests = []
        for guest in self.guests:
            guest.close()
            if guest.sandbox in alive:
                payload = frames.u64(p.TAG_SANDBOX, guest.sandbox)
                requests.append((guest.sandbox, self.core.control.send(p.KILL, payload)))
        for sandbox, request in requests:
            if self.core.control.answer(request).kind == p.OK:
                self.core.control.event(p.ENDED, sandbox)
        for snapshot in self.snapshots:
            self.core.control.ask(p.DROP_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
        self.guests.clear()
        self.snapshots.clear()
        self.core.control.events.clear()


def attributes(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and value of each attribute, in order, repeated ones too."""
    at = 0
    while at < len(payload):
        tag = int.from_bytes(payload[at : at + 2], "little")
        length = int.from_bytes(payload[at + 4 : at + 8], "little")
        yield tag, payload[at + 8 : at + 8 + length]
        at += 8 + (length + 3) // 4 * 4


def describe(answer: _core.Answer) -> str:
    """An answer in words, for failures."""
    if answer.kind != p.ERROR:
        return p.KIND_NAMES.get(answer.kind, str(answer.kind))
    return f"{answer.error} {answer.found.text(p.TAG_TEXT)}"


def start_engine(
    victims_dir: Path, *, options: _core.Options | None = None, pool: int = 8, python: bool = False
) -> Engine:
    """A core that knows the product's filter, whose root holds the victims."""
    core = _core.start(options or _core.Options(pool=pool), define=False)
    try:
        for number, program in (
            (_payloads.ALLOW_ALL, _payloads.ALLOW_ALL_PROGRAM),
            (PRODUCT_FILTER, default_filter()),
        ):
            core.control.ok(
                p.DEFINE_FILTER, frames.u32(p.TAG_FILTER, number) + frames.raw(p.TAG_BYTES, program)
            )
        more = _payloads.directory(VICTIMS) + _payloads.bind(str(victims_dir), VICTIMS)
        answer = core.define(python=python, more=more)
        assert answer.kind == p.OK, describe(answer)
        core.control.settle()
    except BaseException:
        core.discard()
        raise
    return Engine(core)


@contextmanager
def nothing_left(engine: Engine) -> Iterator[None]:
    """Fail if the body leaves more of anything than it found; sandboxes may stand meanwhile."""
    core = engine.core

    def full() -> bool:
        status = core.control.status()
        return status.u32(p.TAG_POOL_READY) == status.u32(p.TAG_POOL_SIZE)

    _core.until(full, "a full pool")
    before = _ledger.settle(lambda: _core.observe(core.home), quiet=0.02)
    yield
    _core.until(full, "a full pool")
    found = _ledger.drift(before, lambda: _core.observe(core.home))
    assert not found, "; ".join(found)


# --- the ways a victim is taken ----------------------------------------------------------------------------


def family(
    engine: Engine, source: Guest, *, siblings: int = 5, generations: int = 3, asleep: bool = True
) -> list[Guest]:
    """All at the same point: the source, `siblings` children of one snapshot, a chain of forks of forks, a
    fork of a fork whose parked twin could not be used, and a child of a second snapshot of the source.
    `asleep`: none is frozen before all its threads wait.
    """

    def freeze(guest: Guest, *, twin: bool = True) -> Snapshot:
        if asleep:
            guest.asleep()
        return engine.snapshot(guest, twin=twin)

    first = freeze(source)
    members = [source, *(first.fork(f"child {n + 1}") for n in range(siblings))]
    youngest = members[1]
    for depth in range(2, generations + 1):
        youngest = freeze(youngest).fork(f"generation {depth}")
        members.append(youngest)
    members.append(freeze(members[siblings], twin=False).fork("generation 2 by copy"))
    members.append(freeze(source).fork("late child"))
    return members


def all_right(members: Sequence[Guest], *, asleep: bool = True) -> None:
    """Let every one compare; fail with the words of all that are not right."""
    for member in members:
        if asleep:
            member.asleep()
        member.go()
    verdicts = {member.about: member.verdict() for member in members}
    wrong = {about: words for about, words in verdicts.items() if words != "OK"}
    assert not wrong, wrong


def end(engine: Engine) -> None:
    """Stop its core, which must have had nothing to report."""
    reports = engine.core.reports()
    try:
        if engine.core.pid:
            engine.core.shut_down()
    finally:
        engine.core.discard()
    assert not reports
