"""What both clients know of commands in sandboxes, without any waiting: links to core, places in logs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import weakref
from typing import TYPE_CHECKING, Any

from ramet._descriptors import close_all
from ramet.client._exchange import Peer, Stale
from ramet.client._streams import CHUNK
from ramet.errors import DaemonLost, InvalidRequest, RametError
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.faults import error_of
from ramet.native.frames import FrameError
from ramet.native.started import Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.native.started import Header

BIG = 1 << 20


class CoreLink(Peer):
    """A lane on which commands are asked for. One request at a time."""

    def __init__(self, sock: socket.socket, core_id: str) -> None:
        super().__init__(sock)
        self.core_id = core_id
        self._request = 0
        self._buffer = bytearray(p.FRAME_BYTES)

    def send(self, kind: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Send a request; the descriptors stay the caller's. Raises Stale, RametError."""
        self.busy = True
        self._request += 1
        self._sending(lambda: frames.send(self.sock, kind, self._request, payload, list(fds)))

    def abandon(self, payload: bytes) -> None:
        """Have the command killed that was asked for and not answered for, without waiting, and close."""
        with contextlib.suppress(RametError, Stale):
            self.send(p.KILL_COMMAND, payload)
        self.close()

    def receive(self) -> frames.Frame | None:
        """The answer, None if it is not here yet; its descriptors are the caller's.

        Raises Stale, or the error that came in its place.
        """
        try:
            frame = frames.receive(self.sock, self._buffer)
        except BlockingIOError:
            return None
        except ConnectionError:
            raise Stale from None
        except FrameError as error:
            raise DaemonLost("core_lost", f"core sent nonsense: {error}") from None
        if frame is None:
            raise Disconnected
        if frame.kind == p.ERROR or frame.request != self._request:
            close_all(frame.fds)
        if frame.request != self._request:
            raise DaemonLost("core_lost", "core answered a request that was not made")
        self.busy = False
        if frame.kind == p.ERROR:
            raise error_of(frame)
        return frame


class Disconnected(DaemonLost):
    """The lane ended after core had read the request: what became of that is to be asked on another."""

    def __init__(self) -> None:
        super().__init__("core_lost", "core, or the daemon, ended while it worked on the request")


def new_command_id() -> int:
    """A number for a command that no other of its sandbox is likely to have; not 1, which is the first's."""
    return secrets.randbelow((1 << 32) - 2) + 2


def malformed(error: FrameError) -> DaemonLost:
    """The error for a log or an answer that is none."""
    return DaemonLost("core_lost", f"core sent nonsense: {error}")


class Following:
    """A reader's place in a command's log: the file, what tells of changes, and a position in each stream."""

    def __init__(self, fds: list[int], cursor: tuple[int, int] = (0, 0)) -> None:
        """Takes `fds`: the log, and the wakeup of a command that has not ended."""
        self.log = Log(fds[0])
        self.wakeup = fds[1] if len(fds) > 1 else -1
        self.at = list(cursor)
        self.lost = [0, 0]
        """Bytes that were gone before they were read: the reader was too slow."""
        _all_following.add(self)

    @property
    def over(self) -> bool:
        """True when the command has ended, as far as was heard."""
        return self.wakeup < 0

    def hear(self) -> bool:
        """Clear the wakeup; True when the command has ended. Raises DaemonLost when core has gone."""
        while self.wakeup >= 0:
            try:
                if os.read(self.wakeup, CHUNK):
                    continue
            except BlockingIOError:
                return False
            self._close_wakeup()
            if not self._header_ended():
                raise DaemonLost("core_lost", "core ended, and the sandbox with it")
        return True

    def _header_ended(self) -> bool:
        return self._header().ended

    def _header(self) -> Header:
        try:
            return self.log.header()
        except FrameError as error:
            raise malformed(error) from None

    def begin(self, cursor: tuple[int, int]) -> tuple[int, int]:
        """`cursor`, where 0 is the first byte that the log has. Raises DaemonLost, InvalidRequest."""
        header = self._header()
        if cursor[0] > header.total(0) or cursor[1] > header.total(1):
            text = f"{cursor} is more than was written: {(header.total(0), header.total(1))}"
            raise InvalidRequest.of("cursor", text, hint="a cursor is of one command in one sandbox")
        return cursor[0] or header.begin(0), cursor[1] or header.begin(1)

    def take(self, stream: int, size: int = BIG) -> bytes:
        """The next bytes of a stream that are there, `size` at most."""
        try:
            lost, data = self.log.read(stream, self.at[stream], size)
        except FrameError as error:
            raise malformed(error) from None
        self.lost[stream] += lost
        self.at[stream] += lost + len(data)
        return data

    def close(self) -> None:
        """Give it up; the command goes on."""
        _all_following.discard(self)
        self.log.close()
        self._close_wakeup()

    def _close_wakeup(self) -> None:
        wakeup, self.wakeup = self.wakeup, -1
        if wakeup >= 0:
            os.close(wakeup)

    def __del__(self) -> None:
        if hasattr(self, "wakeup"):
            self.log.close()
            self._close_wakeup()


# A fork of this process would keep readers of core's alive that nobody reads.
_all_following: weakref.WeakSet[Following] = weakref.WeakSet()


def _close_inherited() -> None:
    for following in list(_all_following):
        following.close()


os.register_at_fork(after_in_child=_close_inherited)


TYPED_MAX = 1 << 16
"""Bytes that are kept of what was typed and cannot be sent yet."""


class Typing:
    """What goes to a command's input without anybody waiting for it. It has the link."""

    def __init__(self, link: CoreLink, about: bytes) -> None:
        """`about` names the command, as requests do."""
        self._link = link
        self._about = about
        self._left = bytearray()

    def fileno(self) -> int:
        """What gets readable when `step` can go on."""
        return self._link.sock.fileno()

    @property
    def full(self) -> bool:
        """True while no more is to be pushed."""
        return len(self._left) >= TYPED_MAX

    def push(self, data: bytes) -> None:
        """Send it, or as soon as the command has taken what was sent before."""
        self._left += data
        if not self._link.busy:
            self.step()

    def step(self) -> None:
        """Go on as far as nothing has to be waited for. Raises DaemonLost, RametError."""
        try:
            while self._left and (not self._link.busy or self._link.receive() is not None):
                self._send()
        except Stale:
            raise Disconnected from None
        except RametError as error:
            if error.code not in {"stdin_closed", "unknown_sandbox", "unknown_command"}:
                raise
            self._left.clear()  # it takes no more: its end tells the rest

    def _send(self) -> None:
        piece = bytes(self._left[: p.INPUT_MAX])
        del self._left[: p.INPUT_MAX]
        self._link.send(p.INPUT, self._about + frames.raw(p.TAG_BYTES, piece))

    def close(self) -> None:
        """What was not sent is not sent any more."""
        self._link.close()


def check_position(value: object, field: str) -> int:
    """`value` as a number of bytes. Raises InvalidRequest naming `field`."""
    if type(value) is not int or value < 0:
        raise InvalidRequest.of(field, f"{value!r:.40} is no number of bytes")
    return value


def check_cursor(cursor: object) -> tuple[int, int]:
    """`cursor` as positions in both streams. Raises InvalidRequest."""
    good = isinstance(cursor, (tuple, list)) and len(cursor) == 2
    if not good or any(type(at) is not int or at < 0 for at in cursor):  # type: ignore[attr-defined]
        raise InvalidRequest.of(
            "cursor", "must be two positions, of stdout and stderr, as `Command.cursor` gives"
        )
    return cursor[0], cursor[1]  # type: ignore[index]


def signal_of(value: object) -> int:
    """`value`, a number or a name with or without SIG, as a signal. Raises InvalidRequest."""
    import signal

    if isinstance(value, str):
        name = value.upper()
        known: Any = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        value = int(known) if isinstance(known, signal.Signals) else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
        raise InvalidRequest.of("signal", f"{value!r:.40} is no signal")
    return int(value)


def own(fds: list[int]) -> list[int]:
    """`fds`, which become non-blocking where that matters."""
    for number in fds[1:]:
        os.set_blocking(number, False)
    return fds
