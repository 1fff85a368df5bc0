"""Forks of snapshots that go straight to core, and what is said over their sessions.

A client that forks a snapshot for the second time asks the daemon what the plans of all its children have in
common, and for a lane. From then on core is asked by itself, and tells the daemon. Each child brings a
session, over which core answers: closing it gives up the child at any time. Whatever core refuses is asked of
the daemon again, which knows why and says it in the words of users.

Nothing here waits, so both clients share it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import secrets
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from ramet._descriptors import close_all
from ramet.client._held import Held
from ramet.client._kernel import forked
from ramet.errors import RametError
from ramet.kernels import get, names
from ramet.models.commands import FIRST
from ramet.models.forks import ForkLaneInfo, ForkLaneRequest
from ramet.models.limits import without_memory
from ramet.models.sandboxes import ForkWay, SandboxInfo, hostname_of
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.channels import Channel
from ramet.native.frames import raw, text, u32, u64
from ramet.native.runs import run_end

if TYPE_CHECKING:
    from typing import Any, Self

    from ramet.client._lanes import Lane
    from ramet.kernels import Kernel
    from ramet.models.forks import Child, ForkRequest

WINDOW = 64
"""Children of one fork that core makes at once: each has descriptors in flight."""
_json = json.JSONEncoder(separators=(",", ":")).encode
ANSWER_BYTES = 8192
"""More than any answer over a session has."""

Key = tuple[str, tuple[tuple[str, "int | float"], ...]]


def goes_past_daemon(request: ForkRequest) -> bool:
    """Whether core can be asked: names, what is left out or kept are the daemon's."""
    return (
        not request.keep_on
        and request.on_unsupported == "refuse"
        and (request.snapshot is not None or not request.children[0].limits)
        and all(one.name is None and one.limits == request.children[0].limits for one in request.children)
    )


def key_of(request: ForkRequest) -> Key:
    """What the plans of its children have in common follows from this."""
    return request.snapshot or "", tuple(sorted(request.children[0].limits.items()))


def question(request: ForkRequest, *, lane: bool) -> dict[str, Any]:
    """What to ask the daemon about `request`, once for its key."""
    return ForkLaneRequest(request.snapshot, request.children[0].limits, lane, request.sandbox).to_wire()


class Forkable:
    """A sandbox that somebody forks by its id again and again, without holding it."""

    __slots__ = ("forked", "info", "known")

    def __init__(self, info: SandboxInfo) -> None:
        self.info = info
        self.known: KnownFork | None = None
        """As of `Held`."""
        self.forked = True
        """It will be: worth a lane from the first fork on."""


class KnownFork:
    """What the children of a snapshot have in common, in one core."""

    __slots__ = ("_record", "_told", "ahead", "core_id", "encoded", "info", "number", "told")

    def __init__(self, told: ForkLaneInfo) -> None:
        self._told = told
        self.core_id = told.core_id
        self.number = told.number
        self.encoded = base64.b64decode(told.encoded)
        self.info = told.info
        # What is a child's own is appended: to write all of it anew would take longer than to send it.
        rest = {
            name: value for name, value in told.record.items() if name not in {"created", "origin", "ttl"}
        }
        origin = {name: value for name, value in told.record["origin"].items() if name != "metadata"}
        self._record = f'{_json(rest)[:-1]},"origin":{_json(origin)[:-1]},"metadata":'
        self.ahead = told.ahead
        self.told = told.told

    @classmethod
    def of_wire(cls, answer: dict[str, Any]) -> Self:
        """What the daemon said."""
        return cls(ForkLaneInfo.from_wire(answer))

    def of_live(self, source: SandboxInfo, found: frames.Attributes) -> Self:
        """As this, which is `source` or is of its parent's children, for those of a snapshot of it now."""
        number = found.u32(p.TAG_SNAPSHOT)
        origin: dict[str, Any] = {
            "parent": source.id,
            "snapshot": None,
            "pause_ms": found.u64(p.TAG_PAUSE_NS) / 1e6,
            "by_twin": bool(found.u32(p.TAG_BY_TWIN)),
            "ways": ForkWay.parse(found.text(p.TAG_WAYS)),
            "epoch": source.epoch + 1,
        }
        snapshot = u32(p.TAG_SNAPSHOT, number)
        told = self._told
        return type(self)(
            dataclasses.replace(
                told,
                number=number,
                encoded=base64.b64encode(snapshot + self.encoded[len(snapshot) :]).decode("ascii"),
                info=dataclasses.replace(told.info, **origin),
                record={**told.record, "origin": {**told.record["origin"], **origin}},
                ahead=False,
            )
        )

    def record_of(self, child: Child, created: float, ttl: float | None) -> bytes:
        """What core keeps of a child, and tells the daemon. `ttl`: None for one that ends with its owner."""
        metadata = _json(dict(child.metadata)) if child.metadata else "{}"
        own = f'{metadata}}},"created":{created!r},"ttl":{_json(ttl)}}}'
        return raw(p.TAG_RECORD, f"{self._record}{own}".encode("ascii"))

    def claim(self, child: Child, created: float, ttl: float | None) -> bytes:
        """The payload of CLAIM."""
        snapshot = u32(p.TAG_SNAPSHOT, self.number) + u32(p.TAG_OWNED, ttl is None)
        return snapshot + self.record_of(child, created, ttl)

    def plan(self, child: Child, number: int, created: float, ttl: float | None) -> bytes:
        """The payload of CREATE."""
        return b"".join(
            (
                self.encoded,
                u64(p.TAG_SANDBOX, number),
                u64(p.TAG_WALL_NS, int(child.timeout * 1e9) if child.timeout else 0),
                text(p.TAG_HOSTNAME, hostname_of(None, f"{number:012x}")),
                u32(p.TAG_NETWORK, p.NETWORK_NONE),
                u32(p.TAG_OWNED, ttl is None),
                self.record_of(child, created, ttl),
            )
        )


class CoreLine:
    """What is said over a session with core."""

    @staticmethod
    def hear(session: socket.socket, info: SandboxInfo) -> SandboxInfo | None:
        """How the sandbox ended, or as it was when a signal was sent; None when nobody can tell.

        Raises BlockingIOError when there is nothing to hear.
        """
        try:
            frame = frames.receive(session, bytearray(ANSWER_BYTES))
            if frame is None:
                return None
            close_all(frame.fds)
            if frame.kind != p.ENDED:
                return info  # or a signal came when it stood no more: its end follows
            end = run_end(frame, single_uid=info.single_uid, cgroups=info.cgroups)
        except frames.FrameError:
            return None
        note = "by request" if end.reason == "killed" else None
        return dataclasses.replace(info, status="ended", ended=time.time(), end=end, note=note)

    @staticmethod
    def ask_end(session: socket.socket) -> None:
        """Have the sandbox ended. Raises OSError."""
        frames.send(session, p.KILL, 0, b"", [])

    @staticmethod
    def ask_signal(session: socket.socket, info: SandboxInfo, number: int) -> None:
        """Have its command sent a signal. Raises OSError."""
        sandbox = u64(p.TAG_SANDBOX, int(info.id, 16))
        command = u32(p.TAG_COMMAND, FIRST) + u32(p.TAG_SIGNAL, number)
        frames.send(session, p.SIGNAL, 0, sandbox + command, [])


class Taking:
    """A snapshot of a running sandbox that core takes for its forks, and drops when this is closed."""

    def __init__(self, lane: Lane, source: SandboxInfo) -> None:
        """Ask for it. Raises OSError."""
        self.session, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                payload = u64(p.TAG_SANDBOX, int(source.id, 16))
                frames.send(lane.sock, p.SNAPSHOT, 1, payload, [theirs.fileno()])
            self.session.setblocking(False)  # noqa: FBT003
        except BaseException:
            self.session.close()
            raise

    def found(self) -> frames.Attributes | None:
        """What core says of it; None when there is none. Raises BlockingIOError when that is not here yet."""
        try:
            frame = frames.receive(self.session, bytearray(ANSWER_BYTES))
        except BlockingIOError:
            raise
        except (OSError, frames.FrameError):
            return None
        if frame is None:
            return None
        close_all(frame.fds)
        return frames.attributes(frame.payload) if frame.kind == p.OK else None

    def close(self) -> None:
        """Core may forget it. What was forked of it goes on."""
        self.session.close()


class _Asked:
    """A child that core was asked for."""

    __slots__ = ("channel", "created", "number", "session", "told")

    def __init__(self, number: int, session: socket.socket, channel: Channel | None, created: float) -> None:
        self.number = number
        self.session = session
        self.channel = channel
        """None: one that was forked ahead brings its own."""
        self.created = created
        self.told = False

    def close(self) -> None:
        self.session.close()
        if self.channel is not None:
            self.channel.close()


class Forking:
    """The children of one request, asked for over `lane`.

    Use: `step` with the sessions that have something to say until it returns True: `only`, or what `poller`
    finds. Then `held` has the sandboxes by their numbers in the request, `errors` what befell single ones
    here, `refused` the numbers that are to be asked of the daemon.
    """

    def __init__(
        self,
        lane: Lane,
        known: KnownFork,
        request: ForkRequest,
        channel: Channel | None = None,
        *,
        plain: bool,
    ) -> None:
        """The lane stays the caller's, who needs it until `step` has returned True. Takes `channel`.

        `plain`: the children have neither seed nor variables of their own, nor what ran in their parent, so
        that their kernels can be told of their lives while core makes them.
        """
        self.held: dict[int, Held] = {}
        self.errors: dict[int, RametError] = {}
        self.refused: list[int] = []
        self.outdated = False
        """Core does not know the snapshot any more, or is gone."""
        self._poller: select.epoll | None = None
        self._lane = lane
        self._known = known
        self._channel = channel
        kernel = known.info.kernel
        self._tells = get(kernel.name) if plain and kernel is not None and kernel.name in names() else None
        self._children = request.children
        self._ttl = request.ttl
        self._to_claim = known.ahead
        self._todo = deque(range(len(request.children)))
        self._asked: dict[int, _Asked] = {}
        self._buffer = bytearray(ANSWER_BYTES)

    @property
    def only(self) -> int | None:
        """The session that is waited for, when it is one; to make a poller for it takes three calls more."""
        return next(iter(self._asked)) if len(self._asked) == 1 and not self._todo else None

    def poller(self) -> select.epoll:
        """What watches all sessions that are waited for."""
        if self._poller is None:
            self._poller = select.epoll()
            for descriptor in self._asked:
                self._poller.register(descriptor, select.EPOLLIN)
        return self._poller

    def step(self, events: list[int]) -> bool:
        """Do what `events` allow; True when nothing is awaited any more."""
        for descriptor in events:
            asked = self._asked.get(descriptor)
            if asked is not None:
                self._hear(asked)
        while self._todo and len(self._asked) < WINDOW and self._ask(self._todo[0]):
            self._todo.popleft()
        return not self._asked and not self._todo

    def close(self) -> None:
        """Give up what is awaited; `held` is the caller's."""
        for asked in self._asked.values():
            asked.close()
        self._asked.clear()
        if self._channel is not None:
            self._channel.close()
        if self._poller is not None:
            self._poller.close()

    def _ask(self, number: int) -> bool:
        """False when the lane has no room now, and something is awaited that will make some."""
        child, created = self._children[number], time.time()
        claims = self._to_claim and child.timeout is None
        channel: Channel | None = None
        try:
            session, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self.errors[number] = _no_descriptors(error)
            return True
        asked = _Asked(number, session, None, created)
        try:
            with theirs:
                if claims:
                    payload = self._known.claim(child, created, self._ttl)
                    fds = [theirs.fileno()]
                    frames.send(self._lane.sock, p.CLAIM, number + 1, payload, fds)
                else:
                    channel, self._channel = self._channel, None
                    detached = self._ttl is not None
                    channel = channel or Channel(detached=detached, kernel=self._known.info.kernel)
                    asked.channel = channel
                    sandbox = secrets.randbits(48) or 1
                    payload = self._known.plan(child, sandbox, created, self._ttl)
                    fds = [*channel.theirs, theirs.fileno()]
                    frames.send(self._lane.sock, p.CREATE, number + 1, payload, fds)
                    close_all(channel.take_theirs())
                    if self._tells is not None:
                        asked.told = self._tell(self._tells, channel, f"{sandbox:012x}")
            session.setblocking(False)  # noqa: FBT003
            if self._poller is not None:
                self._poller.register(session, select.EPOLLIN)
            self._asked[session.fileno()] = asked
        except BlockingIOError:
            asked.close()
            if not self._asked:
                self.refused.append(number)
            return not self._asked
        except (BrokenPipeError, ConnectionError):
            asked.close()
            self.outdated = True
            self.refused.append(number)
        except OSError as error:
            asked.close()
            self.errors[number] = _no_descriptors(error)
        except BaseException:
            asked.close()
            raise
        return True

    def _tell(self, kernel: Kernel, channel: Channel, sandbox: str) -> bool:
        """Whether the kernel will find in its channel, before all else, that it is a child."""
        message = forked(self._known.info.epoch, sandbox, hostname_of(None, sandbox))
        sent = kernel.fresh(message)
        if kernel.channel == "lines":
            sent = [b"".join(sent)]
        # As one write into an empty socket: what is half said could not be said again.
        return len(sent) == 1 and os.write(channel.ours[3], sent[0]) == len(sent[0])

    def _hear(self, asked: _Asked) -> None:
        try:
            frame = frames.receive(asked.session, self._buffer)
        except BlockingIOError:
            return
        except (OSError, frames.FrameError):
            frame = None
        del self._asked[asked.session.fileno()]
        if self._poller is not None:
            self._poller.unregister(asked.session)
        if frame is None:  # core is gone, or has closed the lane with this unread
            asked.close()
            self.outdated = True
            self.refused.append(asked.number)
        elif frame.kind == p.OK:
            self._take(asked, frame)
        else:
            close_all(frame.fds)
            asked.close()
            self._refused(asked.number, frame)

    def _refused(self, number: int, frame: frames.Frame) -> None:
        code = frames.attributes(frame.payload).text(p.TAG_CODE) if frame.kind == p.ERROR else ""
        if code == "none_ready":
            self._to_claim = False
            self._todo.append(number)
            return
        self.outdated = self.outdated or code == "unknown_snapshot"
        self.refused.append(number)

    def _take(self, asked: _Asked, frame: frames.Frame) -> None:
        found = frames.attributes(frame.payload)
        channel = Channel.of_near(frame.fds) if asked.channel is None else asked.channel
        common = self._known.info
        own = {
            "id": f"{found.u64(p.TAG_SANDBOX):012x}",
            "created": asked.created,
            "setup_ms": found.u64(p.TAG_SETUP_NS) / 1e6,
            "metadata": dict(self._children[asked.number].metadata),
            "detached": self._ttl is not None,
            "ttl": self._ttl,
        }
        if found.u64(p.TAG_WATCH):
            own["cgroups"] = without_memory(common.cgroups)
        info = common.with_own(own)
        # What was forked ahead comes with ends that do not block.
        ready = asked.channel is None
        if self._ttl is not None and not self._is_kept(asked, channel):
            return
        held = Held(info, channel.take_ours(), CoreLine, session=asked.session, ready=ready)
        held.known = self._known
        held.told = asked.told or (asked.channel is None and self._known.told)
        self.held[asked.number] = held

    def _is_kept(self, asked: _Asked, channel: Channel) -> bool:
        """Have core hold the streams of one that is to outlive its session; False where it cannot."""
        try:
            frames.send(asked.session, p.HOLD, 0, b"", channel.ours)
        except OSError as error:
            channel.close()
            asked.close()  # which ends it
            self.errors[asked.number] = _no_descriptors(error)
            return False
        return True


def _no_descriptors(error: OSError) -> RametError:
    return RametError("busy", f"the fork cannot be asked for: {error.strerror or error}", errno=error.errno)
