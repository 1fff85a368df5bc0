"""The core that a daemon has, and those of earlier programs beside it.

It is started when first needed, adopted from a daemon that died, and replaced by the next request when it
dies. One that was adopted and is of another program than this daemon would start is kept for the sandboxes
that it has and gets no new ones: it ends with the last of them, or at a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import secrets
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ramet.engine.definitions import Definitions, Host, refuse
from ramet.engine.events import Awaited
from ramet.engine.runs import kill_payload
from ramet.engine.sandboxes import Sandboxes
from ramet.errors import DaemonLost, DaemonStartError, ProtocolMismatch, RametError
from ramet.models.runs import RunEnd
from ramet.models.status import CoreStatus
from ramet.native import _protocol as p
from ramet.native import cgroups, frames
from ramet.native.core import CoreConnection
from ramet.native.faults import error_of
from ramet.native.launch import UCRED, Launched, Start, reap, sender_pid, start_core
from ramet.native.locate import build_of, find_program
from ramet.native.runs import run_end
from ramet.store.places import data_path, make_overflow

SOCKET = "core.sock"
"""Of the core that gets new sandboxes. Those beside it have a name of their own."""
OLDER_SOCKET = re.compile(r"core-[0-9a-f]{16}\.sock")
END_TIMEOUT_S = 10.0
HELLO_TIMEOUT_S = 3.0
_AWAIT: dict[Awaited, int] = {
    "nothing": p.AWAIT_NOTHING,
    "sandboxes": p.AWAIT_SANDBOXES,
    "everything": p.AWAIT_EVERYTHING,
}
Spawn = Callable[[Coroutine[Any, Any, object]], object]


class Core:
    """A core that is up, with what it was told."""

    def __init__(self, launched: Launched, cores: Cores) -> None:
        self.pid = launched.pid
        self.core_id = launched.core_id
        self.program = launched.program
        self.single_uid = launched.single_uid
        self.cgroups = launched.cgroups
        self.active = 0
        self.alive = True
        self.listed = True
        """False until it has told, when it is adopted, of what it has."""
        self.leaving = False
        """Whether it gets no new sandboxes but forks of those that it has."""
        self.socket = SOCKET
        self.awaits: Awaited = "nothing"
        self.gone = asyncio.Event()
        """Set when it was left alone by the last of its sandboxes."""
        # Random, so that no sandbox of an adopted core has the number.
        self.last_sandbox = secrets.randbits(62) + 1
        self._last_snapshot = secrets.randbits(31)
        self.connection = CoreConnection(launched.sock, on_event=self._event, on_lost=self._lost)
        settings = cores.settings
        host = Host(settings.core_program(), launched.pid, settings.lends, settings.private, launched.cgroups)
        self.definitions = Definitions(self.connection, host, cores.spawn)
        self._cores = cores

    def next_sandbox(self) -> int:
        """A number for a sandbox, never 0."""
        self.last_sandbox += 1
        return self.last_sandbox

    def next_snapshot(self) -> int:
        """A number for a snapshot, never 0. Those from 2**31 on core gives to snapshots of clients."""
        self._last_snapshot = self._last_snapshot % ((1 << 31) - 1) + 1
        return self._last_snapshot

    def run_end(self, frame: frames.Frame) -> RunEnd:
        """The end of a sandbox of this core. Raises FrameError."""
        return run_end(frame, single_uid=self.single_uid, cgroups=self.cgroups)

    def ended_as(self, end: RunEnd, **changes: Any) -> RunEnd:
        """`end`, changed, with what holds for everything in this core."""
        return end._replace(single_uid=self.single_uid, cgroups=self.cgroups, **changes)

    def end_sandbox(self, sandbox: int) -> None:
        """Ask core to end a sandbox; that it may have ended by itself is no error."""
        with contextlib.suppress(DaemonLost):
            self.connection.call(p.KILL, kill_payload(sandbox), [], lambda _: None)

    def await_events(self, awaited: Awaited) -> None:
        """Have it tell of these at once, and of others later."""
        self.awaits = awaited
        with contextlib.suppress(DaemonLost):
            self.connection.call(p.AWAIT_EVENTS, frames.u32(p.TAG_FLAGS, _AWAIT[awaited]), [], lambda _: None)

    async def status(self) -> CoreStatus:
        """What core says of itself. Raises DaemonLost."""
        found = await self.connection.ask(p.STATUS)
        return CoreStatus(
            pid=self.pid,
            core_id=f"{self.core_id:016x}",
            program=self.program,
            protocol=p.PROTOCOL_VERSION,
            ids="single" if self.single_uid else "range",
            pool_size=found.u32(p.TAG_POOL_SIZE),
            pool_ready=found.u32(p.TAG_POOL_READY),
            sandboxes=found.u32(p.TAG_SANDBOXES),
            roots=found.u32(p.TAG_ROOTS),
            runs=found.u64(p.TAG_RUNS),
            lanes=found.u32(p.TAG_LANES),
            idle_s=round(found.u64(p.TAG_IDLE_NS) / 1e9, 3),
            snapshot_memory=found.u64(p.TAG_SNAPSHOT_MEMORY),
            snapshot_budget=found.u64(p.TAG_SNAPSHOT_BUDGET),
            cgroups=self.cgroups,
        )

    def _event(self, frame: frames.Frame) -> None:
        """Of sandboxes that stay: those that clients made past us, and the ends of all."""
        self._cores.sandboxes.event(self, frame)

    def _lost(self, error: RametError) -> None:
        self.alive = False
        self._cores.lost(self, error)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Where a core lives and how. The descriptors belong to the daemon and outlive every core.

    `snapshot_memory` are the bytes that snapshots may take in memory, 0: any; `snapshot_ms` bounds how long
    taking one may last, 0: core's choice. `private` are paths that no
    root shows. `data` is where snapshots are kept, by default where the
    environment says. `memory_reserve` are the bytes that the machine keeps, 0: core's choice.
    `place` is where sandboxes can have cgroups. `totals` bounds all sandboxes together. `upgrade_s` is how
    long a core of an earlier program is kept for its sandboxes, None: as long as there are any. `lends`:
    mounts are lent to core, which real root's core needs.
    """

    directory: int
    path: str
    log: int
    grace_ms: int
    pool: int | None = None
    private: tuple[str, ...] = ()
    program: Path | None = None
    data: str | None = None
    snapshot_memory: int = 0
    snapshot_ms: int = 0
    memory_reserve: int = 0
    place: cgroups.Place = cgroups.NOWHERE
    totals: str = ""
    upgrade_s: float | None = None
    lends: bool = dataclasses.field(default_factory=lambda: os.geteuid() == 0)

    def core_program(self) -> Path:
        """The program to start. Raises DaemonStartError."""
        return self.program or find_program()


class Cores:
    """At most one core that gets new sandboxes, and those of earlier programs that have some still."""

    def __init__(self, settings: Settings, spawn: Spawn, log: Callable[..., object]) -> None:
        """`spawn` runs a coroutine in the daemon's task group; `log` takes an event and its fields."""
        self.settings = settings
        self.spawn = spawn
        self.running: Core | None = None
        self.older: list[Core] = []
        self.sandboxes = Sandboxes(self)
        self._log = log
        self._starting: asyncio.Future[Core] | None = None
        self._closed = False

    def living(self) -> tuple[Core, ...]:
        """All that run."""
        return (*self.older, *(() if self.running is None else (self.running,)))

    async def ensure(self) -> Core:
        """The running core, started if there is none. Raises IsolationError, DaemonStartError."""
        if self.running is not None:
            return self.running
        if self._closed:
            raise DaemonLost("daemon_lost", "the daemon is ending")
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_future()
            self.spawn(self._start(self._starting))
        return await asyncio.shield(self._starting)

    def lost(self, core: Core, error: RametError) -> None:
        """Core ended unasked. The kernel has ended all that was in it; the next request starts another."""
        self._log("core lost", core=f"{core.core_id:016x}", pid=core.pid, error=error.message)
        if self.running is core:
            self.running = None
        elif core in self.older:
            self.older.remove(core)
            self._remove_socket(core.socket)
        self.sandboxes.core_lost(core)
        self.spawn(self._bury(core.pid))

    async def close(self) -> None:
        """End core and everything in it, and wait until it is gone."""
        self._closed = True
        self.sandboxes.close()
        # The record of lineage is compared with the snapshots, so these are closed after it.
        await self.sandboxes.lineage.close()
        self.sandboxes.snapshots.close()
        cores = self.living()
        self.running, self.older = None, []
        for core in cores:
            await self._end(core)
        # Core removes it where it can: not in a directory of real root's.
        self._remove_socket(SOCKET)
        # Also what a core left that ended while there was no daemon.
        await asyncio.to_thread(cgroups.remove_noted, self.settings.directory)

    async def _end(self, core: Core) -> None:
        """End a core with all that it has, and wait until it is gone."""
        if core.socket != SOCKET:
            self._remove_socket(core.socket)
        with contextlib.suppress(RametError, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await core.connection.ask(p.SHUTDOWN)
        core.connection.close()
        core.alive = False
        await self._bury(core.pid)

    async def leave(self) -> None:
        """Leave every core to the next daemon, with the sandboxes that outlive their makers."""
        self._closed = True
        self.sandboxes.ahead.close()
        await self.sandboxes.lineage.close()
        self.sandboxes.snapshots.close()
        for core in self.living():
            core.connection.close()
            core.alive = False

    def _remove_socket(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.settings.directory)

    async def adopt(self) -> bool:
        """Take over the cores that earlier daemons left behind; True when there were any."""
        older = [name for name in os.listdir(self.settings.directory) if OLDER_SOCKET.fullmatch(name)]
        return any([await self._adopt(name) for name in (*sorted(older), SOCKET)])

    async def _adopt(self, name: str) -> bool:
        try:
            launched = await asyncio.to_thread(self._hello, name)
            if launched is None:
                if name != SOCKET:
                    self._remove_socket(name)
                return False
            core = Core(launched, self)
            core.listed, core.socket = False, name
            await core.definitions.define_filter()
            left = await core.connection.list_sandboxes()
        except RametError as error:
            self._log("core not adopted", error=error.message)
            if isinstance(error, ProtocolMismatch):
                raise
            return False
        core.listed = True
        core.leaving = name != SOCKET or not self._is_ours(core)
        if core.leaving:
            self._put_aside(core)
        else:
            self.running = core
        for sandbox in left:
            if not self.sandboxes.adopt(core, sandbox):
                core.end_sandbox(sandbox.u64(p.TAG_SANDBOX))
        await self.sandboxes.adopted(core)
        self._log("core adopted", core=f"{core.core_id:016x}", sandboxes=len(left), leaving=core.leaving)
        if core.leaving:
            self.emptied(core)
        return True

    def _is_ours(self, core: Core) -> bool:
        """Whether it is of the program that this daemon would start."""
        try:
            return core.program.partition("+")[2] == build_of(self.settings.core_program())
        except (OSError, DaemonStartError):
            # There is none to be started in its place.
            return True

    def _put_aside(self, core: Core) -> None:
        """Have it get no new sandboxes, and have the name of its socket be free for the next."""
        if core.socket == SOCKET:
            core.socket = f"core-{core.core_id:016x}.sock"
            directory = self.settings.directory
            os.rename(SOCKET, core.socket, src_dir_fd=directory, dst_dir_fd=directory)
        self.older.append(core)
        if self.settings.upgrade_s is not None:
            self.spawn(self._end_at_deadline(core, self.settings.upgrade_s))

    async def _end_at_deadline(self, core: Core, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await core.gone.wait()
                return
        if core in self.older:
            self._log("core at its deadline", core=f"{core.core_id:016x}")
            self.older.remove(core)
            self.sandboxes.core_ends(core, "an upgrade's deadline came")
            await self._end(core)

    def emptied(self, core: Core) -> None:
        """A core may have lost its last sandbox: then one of an earlier program ends."""
        if core in self.older and not self.sandboxes.of_core(core):
            self.older.remove(core)
            core.gone.set()
            self._log("core empty", core=f"{core.core_id:016x}")
            self.spawn(self._end(core))

    async def _start(self, started: asyncio.Future[Core]) -> None:
        try:
            core = Core(await asyncio.to_thread(self._launch), self)
            await core.definitions.define_filter()
            if self._closed or not core.alive:
                core.connection.close()
                raise DaemonLost("core_lost", "core ended at its start")
            self.running = core
            self._log("core started", core=f"{core.core_id:016x}", pid=core.pid, single_uid=core.single_uid)
            started.set_result(core)
        except RametError as error:
            self._log("core not started", error=error.message, step=error.step, errno=error.errno)
            refuse(started, error)
        finally:
            self._starting = None
            if not started.done():
                refuse(started, DaemonLost("daemon_lost", "the daemon is ending"))

    def _launch(self) -> Launched:
        settings = self.settings
        program = settings.core_program()
        self._remove_socket(SOCKET)  # a core that was killed leaves it behind
        cgroups.remove_noted(settings.directory)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            contextlib.ExitStack() as opened,
        ):
            overflow = make_overflow(settings.data or data_path())
            if overflow is not None:
                opened.callback(os.close, overflow)
            listener.bind(self._address(SOCKET))
            os.chmod(SOCKET, 0o600, dir_fd=settings.directory)
            listener.listen(4)
            start = Start(
                program=program,
                listener=listener,
                runtime_dir=settings.directory,
                log=settings.log,
                grace_ms=settings.grace_ms,
                pool=settings.pool,
                snapshot_memory=settings.snapshot_memory,
                snapshot_ms=settings.snapshot_ms,
                spill=overflow,
                memory_reserve=settings.memory_reserve,
                place=settings.place,
                totals=settings.totals,
                build=build_of(program),
            )
            try:
                return start_core(start)
            except BaseException:
                self._remove_socket(SOCKET)
                raise

    def _hello(self, name: str) -> Launched | None:
        """Blocks for a moment: the conversation's first exchange, before the connection serves requests."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(HELLO_TIMEOUT_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            try:
                sock.connect(self._address(name))
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                return None
            frames.send(sock, p.HELLO, 1, b"", [])
            data, ancillary, _, _ = sock.recvmsg(p.FRAME_BYTES, socket.CMSG_SPACE(UCRED.size))
            frame = frames.parse(data, len(data), [])
            if frame.kind == p.ERROR:
                raise error_of(frame)
            found = frames.attributes(frame.payload)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        except frames.FrameError as error:
            sock.close()
            raise DaemonStartError("core_not_adopted", f"a core answered with nonsense: {error}") from None
        except OSError as error:
            sock.close()
            raise DaemonStartError("core_not_adopted", f"a core does not answer: {error}") from None
        except BaseException:
            sock.close()
            raise
        return Launched(
            sock,
            sender_pid(ancillary),
            found.u64(p.TAG_CORE_ID),
            found.text(p.TAG_PROGRAM),
            bool(found.u32(p.TAG_SINGLE_UID)),
            found.text(p.TAG_CGROUPS),
        )

    def _address(self, name: str) -> str:
        return f"/proc/self/fd/{self.settings.directory}/{name}"

    async def _bury(self, pid: int) -> None:
        """Wait until a core is gone, and remove its cgroups, which only now are empty."""
        await self._reap(pid)
        await asyncio.to_thread(cgroups.remove_noted, self.settings.directory)

    async def _reap(self, pid: int) -> None:
        """Wait until core is gone from the process table; it is pid 1 inside, so nothing is left then."""
        try:
            handle = os.pidfd_open(pid) if pid > 0 else -1
        except ProcessLookupError:
            return
        if handle < 0:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await gone.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        reap(pid)
