"""The server's end of a tunnel: talk with the tenant's daemon and core, each word looked at before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ramet.errors import InternalError, InvalidRequest, RametError
from ramet.models.sandboxes import SandboxInfo
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.frames import FrameError, text
from ramet.server.faults import Refused, status_of
from ramet.server.operations import Gate, without_own
from ramet.server.past import CoreSession, PastFork, fork
from ramet.tunnel.channels import Bytes, Group, Item, Kind, Packets, Tunnel, What
from ramet.tunnel.content import FileSource
from ramet.tunnel.conversations import FRAME_HEAD, Frames, Messages, SessionMessages, packed, type_of
from ramet.tunnel.logs import LogSource
from ramet.wire import messages
from ramet.wire.places import connect, runtime_path

CHANNELS_MAX = 16384
Note = Callable[[str, int, float], object]

_LANE = {
    p.START: "command.start", p.ATTACH: "command.attach", p.COMMANDS: "command.list",
    p.INPUT: "command.input", p.RESIZE: "terminal.resize", p.KILL_COMMAND: "command.kill",
    p.FORGET: "command.forget", p.FILES: "files", p.CONNECT: "port.connect", p.SIGNAL: "command.signal",
}  # fmt: skip
"""What a lane takes. Plans (`RUN`, `CREATE`, `CLAIM`) name the host's directories: they come from daemons."""
_READS = {p.ATTACH, p.COMMANDS, p.FILES}
_MANY = {p.INPUT, p.RESIZE}
"""What belongs to a stream, and is no request of its own to count."""
_START_TAGS = {
    p.TAG_SANDBOX, p.TAG_COMMAND, p.TAG_UID, p.TAG_GID, p.TAG_LOG_BYTES, p.TAG_FLAGS, p.TAG_RECORD,
    p.TAG_CWD, p.TAG_WINDOW, p.TAG_WALL_NS, p.TAG_ARG, p.TAG_ENV,
}  # fmt: skip
_FILE_KINDS = {value for name, value in vars(p).items() if name.startswith("FILE_") and 112 <= value <= 127}
_FILE_READS = {p.FILE_STAT, p.FILE_LIST, p.FILE_WATCH, p.FILE_USAGE, p.FILE_PROCESSES, p.FILE_BASE}


class ServerTunnel(Tunnel):
    """One client's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], object], gate: Gate, note: Note
    ) -> None:
        """`note` writes to the audit log."""
        super().__init__(loop, send, first=2)
        self.gate = gate
        self.note = note
        self._tasks: set[asyncio.Task[None]] = set()

    def heard(self, frame: bytes) -> None:
        """Take a frame; a heartbeat is answered."""
        super().heard(frame)
        if frame[:5] == bytes([What.CREDIT]) + bytes(4):
            self.put(What.CREDIT, 0, bytes(4))

    def open(self, number: int, _payload: bytes) -> None:
        """A conversation with the tenant's daemon."""
        self.check_new(number)
        Daemon(self, number)

    def check_new(self, number: int) -> None:
        """Raises ValueError for a number that is none of the client's, or one channel too many."""
        if number % 2 == 0 or number in self.channels or len(self.channels) >= CHANNELS_MAX:
            raise ValueError(f"{number} cannot be a channel")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have `work` done meanwhile."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """End all that goes through it."""
        self.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _sent(error: RametError) -> bytes:
    return messages.encoded({"error": error.to_wire()})


class Daemon(Messages):
    """With the tenant's daemon, one request at a time."""

    tunnel: ServerTunnel

    def __init__(self, tunnel: ServerTunnel, number: int) -> None:
        super().__init__(tunnel, number, -1)
        self._operation = ""
        self._began = 0.0
        self._answered: asyncio.Event | None = None
        self._past: PastFork | None = None

    def check_size(self, size: int) -> None:
        """Raises ValueError for a request that is larger than bodies may be."""
        if size > self.tunnel.gate.settings.body_max * 4:
            raise ValueError("a request is too long")

    def arrived(self, item: Item) -> None:
        """Look at a request."""
        if self._answered is not None:
            raise ValueError("a second request came before the answer to the first")
        self._answered, self._past = asyncio.Event(), None
        self._began = time.perf_counter()
        self.group = Group()
        item.fds = self._streams(item)
        self.took(item.size)
        self.tunnel.spawn(self._serve(item, self._answered))

    def _streams(self, item: Item) -> list[int]:
        fds = []
        for number, kind in item.members:
            self.tunnel.check_new(number)
            far, near = os.pipe2(os.O_CLOEXEC)
            if kind is Kind.OUT:
                Bytes(self.tunnel, number, far, reads=True, writes=False, group=self.group)
                fds.append(near)
            elif kind is Kind.IN:
                Bytes(self.tunnel, number, near, reads=False, writes=True)
                fds.append(far)
            if os.geteuid() == 0:
                # Root's pipes belong to nobody inside: /dev/stdout, which opens them anew, needs a mode.
                os.fchmod(fds[-1], 0o666)
        return fds

    async def _serve(self, item: Item, answered: asyncio.Event) -> None:
        self._operation = "unknown"
        try:
            try:
                await self._ask(item, answered)
            finally:
                for descriptor in item.fds:
                    os.close(descriptor)
                item.fds = []
        except RametError as error:
            self._refuse(error)
        except Exception as error:
            self._refuse(InternalError("internal", f"a defect of Ramet: {type(error).__name__}"))
            raise

    async def _ask(self, item: Item, answered: asyncio.Event) -> None:
        message = messages.decoded(item.body)
        operation, args = message.get("op"), message.get("args", {})
        if not isinstance(operation, str) or not isinstance(args, dict):
            raise InvalidRequest("unknown_operation", "that is no request", field="op")
        gate = self.tunnel.gate
        self._operation = operation[:80]
        gate.check(operation)
        if item.members and operation != "run":
            raise InvalidRequest.of("streams", f"{operation} takes no descriptors")
        if item.size > gate.settings.body_max:
            raise Refused(413, "too_large", f"the request has more than {gate.settings.body_max} bytes")
        async with gate.asked(operation, args) as answer:
            if answer is not None:
                self._answer(answer)
                return
            if operation == "sandbox.fork":
                self._past = past = await fork(gate.tenant, args)
                self._tell_made(past)
                if not past.left:
                    self._answer({"ok": past.report(None)})
                    return
                args = past.left_of(args)
            if self.closed:
                return
            if self.descriptor < 0:
                self.attach(await self._connected())
            assert self.sock is not None  # noqa: S101  it was just attached
            messages.send(self.sock, {"op": operation, "args": args}, item.fds)
            for descriptor in item.fds:
                os.close(descriptor)
            item.fds = []
            # The room that it has is had until it is answered, or its client is gone.
            await answered.wait()

    def _tell_made(self, past: PastFork) -> None:
        """What core made past the daemon, as the daemon tells of what it made."""
        if self.closed:
            past.end()
        while past.held:
            number, held = past.held.popitem()
            info = held.info.to_wire()
            without_own(info)
            told = messages.encoded({"made": number, "info": info})
            self.say_packet(self._opened(held.take_descriptors(), held.info), told)

    async def _connected(self) -> int:
        client = self.tunnel.gate.tenant.client
        place = client.runtime_dir or runtime_path()
        sock = connect(place)
        if sock is None:
            await client.ping()
            sock = connect(place)
        if sock is None or self.closed:
            if sock is not None:
                sock.close()
            raise RametError("daemon_lost", "the tenant's daemon ended")
        return sock.detach()

    def take(self) -> tuple[bytes, list[int]] | None:
        """The daemon's next message."""
        taken = super().take()
        if taken is None:
            return None
        body, fds = taken
        message = messages.decoded(body)
        if "made" in message:
            if self._past is not None:
                message["made"] = self._past.left[message["made"]]
            without_own(message["info"])
            return messages.encoded(message), fds
        if self._past is not None and "ok" in message:
            message["ok"] = self._past.report(message["ok"])
        self.tunnel.gate.heard(self._operation, message)
        self._over(message)
        return messages.encoded(message), fds

    def _over(self, message: dict[str, Any]) -> None:
        status = 200
        if (error := message.get("error")) is not None:
            status = status_of(RametError.from_wire(error))
        self._note(status)
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.set()

    def _note(self, status: int) -> None:
        self.tunnel.note(self._operation, status, time.perf_counter() - self._began)

    def _answer(self, message: dict[str, Any]) -> None:
        if not self.closed:
            self.say_packet([], messages.encoded(message))
        self._over(message)

    def _refuse(self, error: RametError) -> None:
        if self._answered is None:
            return
        status = status_of(error)
        if not self.closed:
            self.say_packet([], _sent(error))
        self._note(status)
        self._answered = None

    def opened(self, _body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """What was made."""
        return self._opened(fds) if fds else []

    def _opened(self, fds: list[int], of_core: SandboxInfo | None = None) -> list[tuple[int, Kind]]:
        """Its channels. `of_core`: what is told of a sandbox whose session is core's."""
        tunnel, group = self.tunnel, Group()
        if self._operation == "sandbox.commands":
            kinds = [Kind.LANE]
        else:
            kernel = Kind.KERNEL_PACKETS
            if len(fds) > 4 and type_of(fds[4]) == socket.SOCK_STREAM:
                kernel = Kind.KERNEL_STREAM
            kinds = [Kind.SESSION, Kind.IN, Kind.OUT, Kind.OUT, kernel][: len(fds)]
        members = [(tunnel.new_number(), kind) for kind in kinds]
        # Outputs first: what else there is waits for what they hold.
        for (number, kind), descriptor in sorted(
            zip(members, fds, strict=True), key=lambda one: one[0][1] is not Kind.OUT
        ):
            if kind is Kind.SESSION and of_core is not None:
                CoreHold(tunnel, number, descriptor, group, of_core)
            else:
                _serve_one(tunnel, number, kind, descriptor, group)
        return members

    def release(self) -> None:
        """The client has gone, or the daemon: nothing is answered any more."""
        super().release()
        answered, self._answered = self._answered, None
        if answered is not None:
            self._note(499)
            answered.set()


def _serve_one(tunnel: ServerTunnel, number: int, kind: Kind, descriptor: int, group: Group) -> None:
    if kind is Kind.SESSION:
        Session(tunnel, number, descriptor, group)
    elif kind is Kind.LANE:
        Lane(tunnel, number, descriptor)
    elif kind is Kind.OUT:
        Bytes(tunnel, number, descriptor, reads=True, writes=False, group=group)
    elif kind is Kind.IN:
        Bytes(tunnel, number, descriptor, reads=False, writes=True)
    else:
        Packets(tunnel, number, descriptor, group)


class Session(SessionMessages):
    """The client's hold on a sandbox. It ends with the tunnel."""

    tunnel: ServerTunnel

    def arrived(self, item: Item) -> None:
        """Pass on what may be said over one."""
        if messages.decoded(item.body).get("op") not in {"kill", "signal"} or item.members:
            raise ValueError("a session takes nothing else")
        super().arrived(item)


class CoreHold(Session, CoreSession):
    """The same, on one that core made past the daemon."""


class _Guarded(Frames):
    """A conversation in frames, each of which is looked at."""

    tunnel: ServerTunnel

    def arrived(self, item: Item) -> None:
        """Pass on what may be asked; answer else."""
        if len(item.body) < FRAME_HEAD.size:
            raise ValueError("a frame is shorter than its head")
        kind, request = FRAME_HEAD.unpack_from(item.body)
        try:
            self.judge(kind, item.body[FRAME_HEAD.size :])
        except FrameError as error:
            raise ValueError(str(error)) from None
        except RametError as error:
            if item.members:
                raise ValueError("what was refused came with channels") from None
            told = text(p.TAG_CODE, error.code) + text(p.TAG_TEXT, error.message)
            self.say_packet([], packed(p.ERROR, request, told))
            self.took(item.size)
            return
        super().arrived(item)

    def judge(self, kind: int, payload: bytes) -> None:
        """Raises RametError for what may not be asked, FrameError, ValueError for what makes no sense."""
        raise NotImplementedError


class Lane(_Guarded):
    """With core, about commands, files and ports of sandboxes."""

    def __init__(self, tunnel: ServerTunnel, number: int, descriptor: int) -> None:
        self._asked = 0
        self._live = False
        super().__init__(tunnel, number, descriptor)

    def judge(self, kind: int, payload: bytes) -> None:
        """Raises RametError, FrameError, ValueError."""
        name, gate = _LANE.get(kind), self.tunnel.gate
        if name is None:
            raise ValueError(f"a lane takes no frame of kind {kind}")
        began = time.perf_counter()
        tags = [tag for tag, _ in frames.decode(payload)]
        try:
            if kind not in _MANY:
                gate.bound_rate()
            if kind not in _READS:
                gate.need("run")
            if kind == p.START and not set(tags) <= _START_TAGS:
                raise InvalidRequest("not_remote", "a command has what no client gives it", field="command")
            if kind in {p.START, p.ATTACH}:
                self._look_for_room(payload)
        except Refused as error:
            self.tunnel.note(name, error.status, time.perf_counter() - began)
            raise
        if kind not in _MANY:
            self.tunnel.note(name, 200, time.perf_counter() - began)
        self._asked = kind

    def _look_for_room(self, payload: bytes) -> None:
        flags = next((value for tag, value in frames.decode(payload) if tag == p.TAG_FLAGS), bytes(4))
        self._live = bool(int.from_bytes(flags, "little") & p.START_CHANGES)
        with self.tunnel.gate.tenant.streaming(self.tunnel.gate.identity):
            pass

    def mirror(self, item: Item) -> list[Any]:
        """A conversation with a file server begins: core gets one end of it, this one the other."""
        for number, kind in item.members:
            if kind is not Kind.FILES or self._asked != p.FILES or len(item.members) > 1:
                raise ValueError("a lane takes no such channel")
            self.tunnel.check_new(number)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            FileTalk(self.tunnel, number, ours.detach())
            item.fds.append(theirs.detach())
        return []

    def opened(self, _body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """A command's log, or a connection to a port."""
        if not fds:
            return []
        number = self.tunnel.new_number()
        if self._asked == p.CONNECT:
            Bytes(self.tunnel, number, fds[0], reads=True, writes=True)
            return [(number, Kind.STREAM)]
        over: Callable[[], object] = lambda: None  # noqa: E731
        if len(fds) > 1:
            using = contextlib.ExitStack()
            with contextlib.suppress(Refused):
                # It was looked for when the command was asked for; others may have come meanwhile.
                using.enter_context(self.tunnel.gate.tenant.streaming(self.tunnel.gate.identity))
            over = using.close
        LogSource(self.tunnel, number, fds, live=self._live, over=over)
        return [(number, Kind.LOG if len(fds) > 1 else Kind.LOG_ENDED)]


class FileTalk(_Guarded):
    """With a sandbox's file server."""

    def judge(self, kind: int, payload: bytes) -> None:
        """Raises RametError, ValueError."""
        if kind not in _FILE_KINDS:
            raise ValueError(f"a file server takes no frame of kind {kind}")
        self.tunnel.gate.bound_rate()
        flags = frames.attributes(payload).u32(p.TAG_FLAGS)
        writes = flags & ~(p.FILE_READ | p.FILE_AS_NAMED) if kind == p.FILE_OPEN else kind not in _FILE_READS
        if writes:
            self.tunnel.gate.need("run")

    def opened(self, _body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """Files, and what tells of changes."""
        found = []
        for descriptor in fds:
            number = self.tunnel.new_number()
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                FileSource(self.tunnel, number, descriptor)
                found.append((number, Kind.FILE))
            else:
                Packets(self.tunnel, number, descriptor)
                found.append((number, Kind.EVENTS))
        return found
