"""Lanes: runs and forks that go straight to core.

A client that runs a second command asks the daemon for a lane, a connection to core, and for the beginning
that all its plans have in common. After that a run wakes one process less. The daemon is asked again when the
beginning may be out of date, and whenever core does not know it any more. Forks: `_forks`.
"""

from __future__ import annotations

import base64
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Self

from ramet._descriptors import close_all
from ramet.client._exchange import Link, Made, Stale
from ramet.errors import DaemonLost, RametError
from ramet.models.runs import LaneInfo, LaneRequest, RunEnd
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.faults import error_of
from ramet.native.runs import Beginning, explained, run_end

if TYPE_CHECKING:
    from ramet.client._forks import Key as ForkKey
    from ramet.client._forks import KnownFork
    from ramet.models.limits import Limits
    from ramet.models.runs import Python, RunRequest

# The daemon looks for changes of the host this often, if it is asked (engine/definitions.py).
FRESH_S = 30.0
BEGINNINGS_MAX = 64
_UNKNOWN = frozenset({"unknown_root", "unknown_filter"})

Key = tuple["Python | None", "Limits"]


class Known:
    """A beginning, the core that understands it, and until when it is used without asking."""

    __slots__ = ("beginning", "cgroups", "core_id", "single_uid", "until")

    def __init__(self, answer: dict[str, Any]) -> None:
        info = LaneInfo.from_wire(answer)
        self.core_id = info.core_id
        self.single_uid = info.single_uid
        self.cgroups = info.cgroups
        self.beginning = Beginning(base64.b64decode(info.encoded), info.environment, info.home)
        self.until = time.monotonic() + FRESH_S


class Lane(Link):
    """A lane in use or idle. One run at a time, or the requests of one fork."""

    def __init__(self, sock: socket.socket, core_id: str) -> None:
        super().__init__(sock)
        self.core_id = core_id
        self.known: Known | None = None
        self._request: RunRequest | None = None
        # Numbers are core's to refuse when they meet; random ones of this size do not.
        self._sandbox = int.from_bytes(os.urandom(7), "little") << 4
        self._buffer = bytearray(p.FRAME_BYTES)

    def of(self, known: Known | KnownFork) -> Self:
        """Itself, for what a run needs to know."""
        if isinstance(known, Known):
            self.known = known
        return self

    def run(self, request: RunRequest, fds: list[int]) -> None:
        """Ask for a run. Raises Stale, RametError."""
        assert self.known is not None  # noqa: S101  the client's order
        self.busy = True
        self._request = request
        self._sandbox += 1
        payload = self.known.beginning.plan(request, self._sandbox)
        self._sending(lambda: frames.send(self.sock, p.RUN, self._sandbox, payload, fds))

    def ended(self) -> RunEnd | None:
        """The end of the run, None if it is not here yet. Raises Stale, or the error in its place."""
        assert self.known is not None and self._request is not None  # noqa: S101, PT018
        try:
            frame = frames.receive(self.sock, self._buffer)
        except BlockingIOError:
            return None
        except ConnectionError:
            raise Stale from None
        except frames.FrameError as error:
            raise DaemonLost("core_lost", f"core sent nonsense: {error}") from None
        if frame is None:
            raise DaemonLost("core_lost", "core ended while it ran the command")
        close_all(frame.fds)
        if frame.request != self._sandbox:
            raise DaemonLost("core_lost", "core answered a request that was not made")
        self.busy = False
        try:
            if frame.kind == p.ERROR:
                raise self._explained(error_of(frame))
            return run_end(frame, single_uid=self.known.single_uid, cgroups=self.known.cgroups)
        except frames.FrameError as error:
            raise DaemonLost("core_lost", f"core sent a malformed end: {error}") from None

    def _explained(self, error: RametError) -> Exception:
        assert self.known is not None and self._request is not None  # noqa: S101, PT018
        if error.code in _UNKNOWN:
            self.known.until = 0.0
            return Stale()
        return explained(error, self._request)


class Lanes:
    """What one client knows: idle lanes, beginnings by interpreter and limits, snapshots by their keys.

    Each operation on the collections is atomic; a lock could be left locked by a fork of a threaded program.
    """

    def __init__(self) -> None:
        self.idle: list[Lane] = []
        self._known: dict[Key, Known] = {}
        self._forks: dict[ForkKey, KnownFork] = {}
        self._forked: set[ForkKey] = set()

    def known(self, request: RunRequest) -> Known | None:
        """The beginning for `request`, unless it is not known or out of date."""
        known = self._known.get(_key(request))
        return known if known is not None and known.until > time.monotonic() else None

    def question(self, request: RunRequest, *, socket: bool) -> dict[str, Any]:
        """What to ask the daemon about `request`."""
        return LaneRequest(*_key(request), socket).to_wire()

    def learn(self, request: RunRequest, answer: dict[str, Any]) -> Known:
        """Remember what the daemon said of `request`."""
        if len(self._known) >= BEGINNINGS_MAX:
            self._known.clear()
        known = self._known[_key(request)] = Known(answer)
        return known

    def take(self, known: Known | KnownFork | None) -> Lane | None:
        """An idle lane to the core that `known` is of."""
        while known is not None and self.idle:
            try:
                lane = self.idle.pop()
            except IndexError:  # another thread was faster
                return None
            if lane.core_id == known.core_id and lane.is_alive():
                return lane.of(known)
            lane.close()
        return None

    def add(self, known: Known | KnownFork, made: list[Made]) -> Lane:
        """A lane that came with what the daemon said."""
        if not made or not made[0].fds:
            raise DaemonLost("malformed", "the daemon answered without a lane")
        return Lane(socket.socket(fileno=made[0].fds.pop(0)), known.core_id).of(known)

    def forked_before(self, key: ForkKey) -> bool:
        """Whether a snapshot is forked again. A program that forks once would wake two processes for it."""
        if key in self._forked:
            return True
        if len(self._forked) >= BEGINNINGS_MAX:
            self._forked.clear()
        self._forked.add(key)
        return False

    def known_fork(self, key: ForkKey) -> KnownFork | None:
        """What the plans of a snapshot's children have in common, if the daemon was asked."""
        return self._forks.get(key)

    def learn_fork(self, key: ForkKey, known: KnownFork) -> KnownFork:
        """Remember what the daemon said of a snapshot."""
        if len(self._forks) >= BEGINNINGS_MAX:
            self._forks.clear()
        self._forks[key] = known
        return known

    def forget_fork(self, key: ForkKey) -> None:
        """It is not true any more."""
        self._forks.pop(key, None)

    def close(self) -> None:
        """Close every idle lane."""
        idle, self.idle = self.idle, []
        for lane in idle:
            lane.close()


def _key(request: RunRequest) -> Key:
    return request.python, request.limits.without_deadline()
