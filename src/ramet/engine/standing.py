"""One sandbox that stays: what is known of it, who has it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet._descriptors import close_all, copies
from ramet.engine.drain import Drain
from ramet.engine.durable import Ground
from ramet.engine.keeping import CORE_S
from ramet.engine.records import read_record
from ramet.errors import DaemonLost, SandboxEnded
from ramet.models.commands import FIRST
from ramet.models.limits import without_memory
from ramet.models.results import EXIT_TIMEOUT
from ramet.models.runs import RunEnd
from ramet.models.sandboxes import SandboxInfo, hostname_of, how_it_ended
from ramet.native import _protocol as p
from ramet.native.frames import u32, u64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ramet.engine.cores import Core
    from ramet.engine.records import Origin, Record
    from ramet.models.limits import Limits
    from ramet.models.results import Reason
    from ramet.models.runs import RunRequest

LOST = RunEnd(137, "lost", None, 0.0, 0.0, 0.0, 0.0, 0, 0, single_uid=True, lingering=False)


class First(NamedTuple):
    """The command of a sandbox that stands and has not begun: what was asked for, SPAWN, its descriptors."""

    run: RunRequest
    payload: bytes
    fds: list[int]


class Sandbox:
    """A sandbox from the request for it until it is forgotten."""

    # What most never have is here: thousands are made and end while nobody asks for them.
    spare = False
    """Forked ahead, and nobody's yet."""
    watched = False
    """Its memory is bounded by its init and not by a cgroup."""
    past_daemon = False
    """A client made or claimed it over a lane, and core knows when that lets go of it."""
    setup_ms = 0.0
    exit: RunEnd | None = None
    """The end of its command, from which on the sandbox's is awaited."""
    end: RunEnd | None = None
    ended = 0.0
    first: First | None = None
    returning: asyncio.Event | None = None
    """Its streams are at a client who made it over a lane, until this is set."""
    note: str | None = None
    """Who had it ended."""
    replaced: str | None = None
    """Whose place it had, when a fork of it has taken that: it is to end."""
    keep_on: tuple[str, ...] = ()
    until: float | None = None
    """Its deadline, where that is ours: of time.monotonic(), which daemons of one boot share."""
    kept: str | None = None
    kept_error: str | None = None
    overdue: Reason | None = None
    """What it is ended for, where that is a limit that we see to."""
    keeping = False
    """Its last state is wanted now."""
    writing = False
    """Its last state is being written to disk: its end is told after that."""
    last: RunEnd | None = None
    """The end that is to be told then."""
    _drain: Drain | None = None
    _users = 0
    _timer: asyncio.TimerHandle | None = None
    _waiting: list[Callable[[], object]] | None = None
    """While its number changes: what core is to hear under the next one."""
    _told: tuple[tuple[Any, ...], SandboxInfo] | None = None

    def __init__(
        self,
        core: Core,
        number: int,
        origin: Origin,
        *,
        limits: Limits,
        name: str | None = None,
        ttl: float | None = None,
        created: float | None = None,
        ground: Ground | None = None,
    ) -> None:
        """`ttl` is None for one that ends with its owner."""
        self.core = core
        self.number = number
        self.id = f"{number:012x}"
        self.origin = origin
        self.limits = limits
        self.name = name
        self.ttl = ttl
        self.created = time.time() if created is None else created
        self.ground = Ground() if ground is None else ground
        self.on_end: list[Callable[[], object]] = []
        self._ends: list[int] = []

    @functools.cached_property
    def gone(self) -> asyncio.Event:
        """Set when no process is left in it."""
        event = asyncio.Event()
        if self.end is not None:
            event.set()
        return event

    @functools.cached_property
    def capturing(self) -> asyncio.Lock:
        """Of who takes a snapshot of it."""
        return asyncio.Lock()

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.id

    @property
    def hostname(self) -> str:
        """What it is called inside."""
        return hostname_of(self.name, self.id)

    @property
    def cgroups(self) -> str:
        """Which cgroups hold its limits, as in `ramet.models.limits.enforced_by`."""
        return without_memory(self.core.cgroups) if self.watched else self.core.cgroups

    @property
    def shown(self) -> bool:
        """Whether it is told of: it runs, and somebody asked for it."""
        return bool(self.origin.pid) and not self.spare

    def hand_out(
        self, metadata: Mapping[str, str], *, ttl: float | None = None, past_daemon: bool = False
    ) -> None:
        """It is somebody's now."""
        self.spare = False
        self.past_daemon = past_daemon
        self.ttl = ttl
        self.created = time.time()
        self.origin = dataclasses.replace(self.origin, metadata=metadata)

    @property
    def ending(self) -> bool:
        """True once its end is certain, and while that is awaited."""
        return (
            self.overdue is not None or self.note is not None or self.exit is not None or self.end is not None
        )

    def info(self) -> SandboxInfo:
        """What is told of it: the same object until it changes."""
        # To make it takes ten times as long as to compare what it is made of.
        state = (
            self.id, self.name, self.origin, self.created, self.ttl, self.setup_ms, self.ended, self.end,
            self.note, self.limits, self.cgroups, self.keep_on, self.kept, self.kept_error,
        )  # fmt: skip
        if self._told is None or self._told[0] != state:
            self._told = state, self._info()
        return self._told[1]

    def _info(self) -> SandboxInfo:
        origin = self.origin
        return SandboxInfo(
            id=self.id,
            name=self.name,
            status="running" if self.end is None else "ended",
            pid=origin.pid,
            command=origin.command,
            created=self.created,
            parent=origin.parent,
            snapshot=origin.snapshot,
            detached=self.ttl is not None,
            ttl=self.ttl,
            single_uid=self.core.single_uid,
            setup_ms=self.setup_ms,
            pause_ms=origin.pause_ms,
            by_twin=origin.by_twin,
            ways=origin.ways,
            dropped=origin.dropped,
            ended=None if self.end is None else self.ended,
            end=self.end,
            note=self.note,
            kernel=origin.kernel,
            epoch=origin.epoch,
            metadata=origin.metadata,
            limits=self.limits.asked(),
            cgroups=self.cgroups,
            keep_on=self.keep_on,
            kept=self.kept,
            kept_error=self.kept_error,
        )

    # --- the record in core -------------------------------------------------------------------------------

    def record(self) -> bytes:
        """What core keeps of it for the next daemon."""
        return json.dumps(self.told(), separators=(",", ":")).encode()

    def told(self) -> dict[str, Any]:
        """The record as an object of JSON."""
        return {
            "version": 1,
            "origin": dataclasses.asdict(self.origin),
            "name": self.name,
            "ttl": self.ttl,
            "created": self.created,
            "limits": self.limits.asked(),
            "ground": self.ground.to_record(),
            "keep_on": self.keep_on,
            "until": self.until,
            "replaced": self.replaced,
        }

    @classmethod
    def from_record(cls, core: Core, number: int, record: bytes) -> Sandbox | None:
        """The detached sandbox of a record that an earlier daemon wrote; None if it is not for us to keep."""
        told = read_record(record)
        return None if told is None or told.ttl is None else cls._of(core, number, told)

    @classmethod
    def past_us(cls, core: Core, number: int, told: Record, ground: Ground) -> Sandbox:
        """The sandbox that a client made over a lane, with this record, on `ground`. The client has it."""
        sandbox = cls._of(core, number, told)
        sandbox.ground = ground
        sandbox.past_daemon = True
        sandbox.attach()
        return sandbox

    @classmethod
    def _of(cls, core: Core, number: int, told: Record) -> Sandbox:
        sandbox = cls(
            core,
            number,
            told.origin,
            limits=told.limits,
            name=told.name,
            ttl=told.ttl,
            created=told.created,
            ground=told.ground,
        )
        sandbox.keep_on, sandbox.until, sandbox.replaced = told.keep_on, told.until, told.replaced
        return sandbox

    # --- who has it ---------------------------------------------------------------------------------------

    def hold(self, ends: list[int]) -> None:
        """Takes `ends`: near ends of a detached sandbox's streams, for the time after its owner.

        A kernel's channel is the last of them: without it the kernel would end with its owner. What it says
        meanwhile waits there for who has it next.
        """
        self._ends = ends

    def ground_of_children(self) -> Ground:
        """What those that are forked from it as it runs stand on."""
        return self.ground

    def attach(self) -> None:
        """Somebody has it, or asks something of it: its time to live does not run."""
        self._users += 1
        if self._timer is not None:
            self._stop_timer()

    def touch(self) -> None:
        """Somebody asks something of it: its time to live begins anew."""
        self.attach()
        self.leave()

    def leave(self) -> None:
        """One of them is done."""
        self._users -= 1
        if self._users <= 0 and self.ttl is not None and self.end is None:
            self._timer = asyncio.get_running_loop().call_later(self.ttl, self._expire)

    def returned(self, ends: list[int]) -> None:
        """Takes `ends`: its owner, who made it over a lane, has let go of it."""
        if self.end is None:
            self.hold(ends)
            self.take_back()
        else:
            close_all(ends)
        self.leave()
        self.settle()

    def settle(self) -> None:
        """Nobody need wait for its streams any more."""
        returning, self.returning = self.returning, None
        if returning is not None:
            returning.set()

    def owner_gone(self) -> None:
        """Its owner has let go of it, or died."""
        if self.ttl is None:
            self.kill("its owner went")
        self.take_back()
        self.leave()

    def lend(self) -> list[int]:
        """The near ends of its streams, for another to have; none where somebody has them. The caller's.

        Those that somebody had when an earlier daemon ended are gone with that. Raises OSError.
        """
        if self._drain is None or self.end is not None:
            return []
        self._ends[1:1] = self._drain.release()
        self._drain = None
        try:
            lent = copies(self._ends)
        except OSError:
            self.take_back()
            raise
        self._deposit([])
        return lent

    def take_back(self) -> None:
        """Nobody has its streams any more: what it writes is read and dropped."""
        if self.ttl is not None and self.end is None and self._drain is None and len(self._ends) >= 3:
            # Without copies there the next daemon finds none, and the command hears so when it writes.
            with contextlib.suppress(OSError):
                self._deposit(copies(self._ends))
            self._drain = Drain(self._ends[1:3])
            del self._ends[1:3]

    def _deposit(self, ends: list[int]) -> None:
        """Have core hold `ends` for the daemon after this one. Takes them."""
        if not self.core.alive:
            close_all(ends)
            return
        self._say(lambda: self._tell(p.HOLD, b"", ends))

    def _expire(self) -> None:
        self.kill(f"nobody asked for it in {self.ttl:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- its end ------------------------------------------------------------------------------------------

    def kill(self, note: str) -> None:
        """Have it ended, if it is not ending already."""
        if not self.ending:
            self.note = note
        if self.end is None and self.core.alive:
            self._say(lambda: self.core.end_sandbox(self.number))

    def end_overdue(self, limit: Reason) -> None:
        """Have it ended for a limit, ``timeout`` or ``oom``, if it is not ending already."""
        if not self.ending:
            self.overdue = limit
            if self.core.alive:
                self._say(lambda: self.core.end_sandbox(self.number))

    def signal(self, number: int, sent: Callable[[], object]) -> None:
        """Send a signal to its command, and to what that waits for; `sent` is called when that is done."""
        if self.end is None and self.core.alive:
            payload = u32(p.TAG_COMMAND, FIRST) + u32(p.TAG_SIGNAL, number)
            self._say(lambda: self._tell(p.SIGNAL, payload, [], sent))

    def command_ended(self, end: RunEnd) -> None:
        """Its command ended, and so it does. One that was being ended from outside keeps that cause."""
        if not self.ending:
            self.exit = end
        self._say(lambda: self.core.end_sandbox(self.number))

    def _tell(
        self, kind: int, payload: bytes, fds: list[int], told: Callable[[], object] = lambda: None
    ) -> None:
        with contextlib.suppress(DaemonLost):
            self.core.connection.call(kind, u64(p.TAG_SANDBOX, self.number) + payload, fds, lambda _: told())

    def _say(self, say: Callable[[], object]) -> None:
        if self._waiting is None:
            say()
        else:
            self._waiting.append(say)

    # --- another's place ----------------------------------------------------------------------------------

    def moves(self) -> None:
        """Core was asked to give it another number: what it is to hear of it waits until it has answered."""
        self._waiting = []

    @property
    def moving(self) -> bool:
        """Whether its number is about to change."""
        return self._waiting is not None

    def moved(self, number: int) -> None:
        """It has this number now, which may be the old one."""
        self.number = number
        self.id = f"{number:012x}"
        waiting, self._waiting = self._waiting or [], None
        for say in waiting:
            say()

    def drop_first(self) -> None:
        """Its command does not begin any more."""
        first, self.first = self.first, None
        if first is not None:
            close_all(first.fds)

    def finish(self, end: RunEnd) -> None:
        """No process is left in it: tell who waits."""
        if self.first is not None:
            self.drop_first()
        if self.past_daemon and end.reason == "killed" and self.note is None:
            self.note = "its owner had it ended, or went"
        if self.overdue is not None and end.reason == "killed":
            code = EXIT_TIMEOUT if self.overdue == "timeout" else end.exit_code
            end = end._replace(reason=self.overdue, exit_code=code)
        if self.until is not None and end.wall > CORE_S:
            end = end._replace(wall=round(end.wall - CORE_S, 9))
        self.end = end if self.exit is None else self.exit._replace(lingering=end.lingering)
        if self.end.reason in self.keep_on and self.kept is None:
            self.kept_error = self.kept_error or "the daemon did not come to it in time"
        self.ended = time.time()
        if self._timer is not None:
            self._stop_timer()
        if self._drain is not None:
            self._drain.close()
        if self._ends:
            ends, self._ends = self._ends, []
            close_all(ends)
        if self.returning is not None:
            self.settle()
        if "gone" in self.__dict__:  # somebody has asked for it
            self.gone.set()
        for tell in list(self.on_end):
            tell()

    def how_it_ended(self) -> str:
        """The end in a few words; nothing while it lives."""
        return how_it_ended(self.end, self.note, self.kept, self.kept_error)

    def refusal(self) -> SandboxEnded:
        """The error for who asks something of it that only a living one can do."""
        end = self.end or LOST
        ago = max(0.0, time.time() - self.ended)
        return SandboxEnded(
            f"the sandbox {self.label} ended {ago:.1f} s ago: {self.how_it_ended()}",
            sandbox=self.id,
            reason=end.reason,
            exit_code=end.exit_code,
            signal=end.signal,
        )
