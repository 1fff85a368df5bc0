"""A command's log at both ends: the file is copied as it grows, and the reader at the other end is woken.

One batch is under way at a time, and the next begins when the reader has heard of the last: who reads slowly
finds gaps, as at the log itself, and nothing is sent that nobody looks at.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from ramet.native import _protocol as p
from ramet.native.frames import FrameError
from ramet.native.started import TURN, TURN_PLACE, Header, Log
from ramet.tunnel.channels import FRAME, Channel, Tunnel, What
from ramet.tunnel.conversations import pair

_PLACE = struct.Struct("<Q")
_AWAKE = bytes(2048)
_SMALL = 4608
"""The least buffer that a socket can have (socket(7)): then one wakeup fills it until it is read."""


class LogSource(Channel):
    """At the end that has the log. Takes its descriptors."""

    def __init__(
        self,
        tunnel: Tunnel,
        number: int,
        fds: list[int],
        *,
        live: bool,
        over: Callable[[], object] = lambda: None,
    ) -> None:
        """`live`: what is written is wanted before the end. `over` is called when nobody wants more."""
        super().__init__(tunnel, number)
        self._log = Log(fds[0])
        self._wakeup = fds[1] if len(fds) > 1 else -1
        self._sent = [0, 0]
        self._live = live
        self._over = over
        self._batch = False
        self._stale = True
        if self._wakeup >= 0:
            os.set_blocking(self._wakeup, False)
            tunnel.loop.add_reader(self._wakeup, self._changed)
        tunnel.loop.call_soon(self._perhaps_send)

    def _changed(self) -> None:
        self._stale = self._stale or self._live
        try:
            while os.read(self._wakeup, 1 << 16):
                pass
            self._stop_listening()
            self._stale = True
        except BlockingIOError:
            pass
        self._perhaps_send()

    def _stop_listening(self) -> None:
        wakeup, self._wakeup = self._wakeup, -1
        if wakeup >= 0:
            self.tunnel.loop.remove_reader(wakeup)
            os.close(wakeup)

    def credited(self, count: int) -> None:
        """The reader has heard of the last batch."""
        self._under_way -= count
        self._batch = False
        self._perhaps_send()

    def resume(self) -> None:
        """There is room again."""
        self._perhaps_send()

    def _perhaps_send(self) -> None:
        if self.closed or self._batch or not self._stale or self.tunnel.congested:
            return
        self._batch, self._stale = True, False
        ended = self._wakeup < 0
        try:
            self._send(whole=self._live or ended)
        except FrameError:
            self.close()
            return
        if ended:
            self.tunnel.put(What.END, self.number)
            self.close(tell=False)

    def _send(self, *, whole: bool) -> None:
        raw = os.pread(self._log.descriptor, p.LOG_HEADER, 0)
        header = self._log.header()
        for stream in (0, 1) if whole else ():
            start = self._log.oldest(header, stream, self._sent[stream])
            self._copy(header, stream, start)
            self._sent[stream] = header.total(stream)
        # Behind what it tells of. What was written meanwhile comes with the next one.
        self.say(What.LOG, _PLACE.pack(0) + raw)

    def _copy(self, header: Header, stream: int, at: int) -> None:
        for place, part in self._log.pieces(header, stream, at, header.total(stream) - at, FRAME):
            self.say(What.LOG, _PLACE.pack(place) + part)

    def release(self) -> None:
        """Close the descriptors."""
        self._stop_listening()
        self._log.close()
        self._over()


class Origin(NamedTuple):
    """Which command's log it is: core's number of the sandbox, that of the command, flags of `ATTACH`."""

    sandbox: int
    command: int
    flags: int


class LogCopy(Channel):
    """At the end that has a reader: `fds` are what that gets."""

    def __init__(self, tunnel: Tunnel, number: int, origin: Origin, *, ended: bool) -> None:
        """`ended`: the command is over, and its log has no wakeup."""
        super().__init__(tunnel, number)
        self.origin = origin
        self._changes: list[tuple[int, memoryview]] = []
        self._turn = 0
        self.ready = False
        """Whether the log begins as one, and can be passed on."""
        self.when_ready: Callable[[], object] = lambda: None
        self._memory = os.memfd_create("ramet-log", os.MFD_CLOEXEC)
        self.fds = [os.open(f"/proc/self/fd/{self._memory}", os.O_RDONLY | os.O_CLOEXEC)]
        self._wakeup: socket.socket | None = None
        self._owed = 0
        self._ending = False
        if not ended:
            ours, theirs = pair(socket.SOCK_STREAM)
            self._wakeup = socket.socket(fileno=ours)
            self._wakeup.setblocking(False)  # noqa: FBT003
            self._wakeup.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)
            self.fds.append(theirs)
            tunnel.loop.add_reader(ours, self._reader_gone)

    def heard(self, what: What, payload: bytes) -> None:
        """Write it where it stands in the log; behind the header the reader is woken."""
        if what is What.END:
            self._ending = True
            self.close(tell=False)
            self._now_ready()
            return
        if what is not What.LOG or len(payload) < _PLACE.size:
            super().heard(what, payload)
        (place,) = _PLACE.unpack_from(payload)
        self._changes.append((place, memoryview(payload)[_PLACE.size :]))
        self._owed += len(payload)
        if place == 0:  # the header, which is the last of a batch
            self._change()
            self._wake()
            self._now_ready()

    def _change(self) -> None:
        """Make all changes of a batch, between two turns that readers look at."""
        self._count_turn()
        for place, view in self._changes:
            at, left = place, view if place else view[:TURN_PLACE]
            while left:
                count = os.pwrite(self._memory, left, at)
                at, left = at + count, left[count:]
        self._changes.clear()
        self._count_turn()

    def _count_turn(self) -> None:
        self._turn += 1
        os.pwrite(self._memory, TURN.pack(self._turn), TURN_PLACE)

    @property
    def orphaned(self) -> bool:
        """Whether somebody reads it who has not heard of the end."""
        return not self.closed and self.ready and self._wakeup is not None

    def leave(self) -> None:
        """The tunnel is lost; it is to go on over another."""
        self.tunnel.channels.pop(self.number, None)
        if self._wakeup is not None:
            self.tunnel.loop.remove_writer(self._wakeup.fileno())
        self._owed = 0
        self._changes.clear()

    def go_on(self, tunnel: Tunnel, number: int) -> None:
        """Over this one."""
        self.tunnel, self.number = tunnel, number
        tunnel.channels[number] = self

    def _now_ready(self) -> None:
        if not self.ready:
            self.ready = True
            self.when_ready()

    def _wake(self) -> None:
        if self._wakeup is None:
            return
        try:
            self._wakeup.send(_AWAKE)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        # It can be written to when the reader has heard.
        self.tunnel.loop.add_writer(self._wakeup.fileno(), self._was_heard)

    def _was_heard(self) -> None:
        if self._wakeup is not None:
            self.tunnel.loop.remove_writer(self._wakeup.fileno())
        owed, self._owed = self._owed, 0
        self.tunnel.put(What.CREDIT, self.number, owed.to_bytes(4, "little"))

    def _reader_gone(self) -> None:
        self.close()

    def held(self) -> list[int]:
        """The file, and the way to wake its reader."""
        return [self._memory] + ([] if self._wakeup is None else [self._wakeup.fileno()])

    def release(self) -> None:
        """Close what is ours; the reader finds the end, and in the header whether it is the command's."""
        os.close(self._memory)
        if self._wakeup is not None:
            self.tunnel.loop.remove_reader(self._wakeup.fileno())
            self.tunnel.loop.remove_writer(self._wakeup.fileno())
            self._wakeup.close()
