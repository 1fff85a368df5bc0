"""The client's ends of a command's standard streams, without any waiting in them.

All of them are non-blocking, and so only used when there is something to do. Descriptors that callers give
are not: those are shared with others, and are read only when they are ready.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import stat
from typing import IO, TYPE_CHECKING, Any

from ramet.errors import InvalidRequest
from ramet.models.results import Captured

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 16
BIG_CHUNK = 1 << 20
"""Largest pipe an ordinary user may ask for (/proc/sys/fs/pipe-max-size)."""


class Sink:
    """Collects one output stream: its head, its last bytes in a ring, and the count of all.

    Head and ring have half of the limit each, so memory is bounded whatever the volume. With a callback every
    chunk passes through Python; without one, bytes are read straight into the ring.
    """

    __slots__ = (
        "_at",
        "_big",
        "_head_room",
        "_limit",
        "_parts",
        "_ring",
        "callback",
        "chunk",
        "descriptor",
        "total",
    )

    def __init__(self, descriptor: int, limit: int, callback: Callable[[bytes], Any] | None) -> None:
        self.descriptor = descriptor
        self.callback = callback
        self.chunk = b""
        self.total = 0
        self._limit = limit
        self._head_room = limit - limit // 2
        self._parts: list[bytes] = []
        self._ring: bytearray | None = None
        self._at = 0
        self._big = False

    def pull(self) -> int | None:
        """Read once: the number of bytes, 0 at the end of the stream, None when there is nothing now.

        With a callback, `chunk` is what it is to get.
        """
        try:
            if self._head_room or self.callback is not None:
                count = self._pull_chunk()
            else:
                count = self._pull_into_ring()
        except BlockingIOError:
            return None
        self.total += count
        if not self._big and self.total > 4 * CHUNK:
            self._widen()
        return count

    def feed(self, chunk: bytes) -> None:
        """Take bytes that were read elsewhere, as the stream's next."""
        self.total += len(chunk)
        self._keep(chunk)

    def _pull_into_ring(self) -> int:
        ring, at = self._ring_buffer(), self._at
        with memoryview(ring) as view:
            count = os.readv(self.descriptor, [view[at : at + BIG_CHUNK]])
        self._at = (at + count) % len(ring)
        return count

    def _pull_chunk(self) -> int:
        self.chunk = chunk = os.read(self.descriptor, BIG_CHUNK if self._big else CHUNK)
        self._keep(chunk)
        return len(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = self._head_room
        if room:
            part = chunk if len(chunk) <= room else chunk[:room]
            self._parts.append(part)
            self._head_room = room - len(part)
            chunk = chunk[len(part) :]
        if chunk:
            self._turn(chunk)

    def _turn(self, chunk: bytes) -> None:
        ring = self._ring_buffer()
        size = len(ring)
        if len(chunk) >= size:
            # Only its end survives; where it begins in the ring does not matter.
            ring[:] = chunk[-size:]
            self._at = 0
            return
        first = min(len(chunk), size - self._at)
        ring[self._at : self._at + first] = chunk[:first]
        ring[: len(chunk) - first] = chunk[first:]
        self._at = (self._at + len(chunk)) % size

    def _ring_buffer(self) -> bytearray:
        if self._ring is None:
            # Untouched pages of it cost nothing. At least one chunk, so that a limit of 0 needs no case of
            # its own.
            self._ring = bytearray(max(self._limit // 2, CHUNK))
        return self._ring

    def _widen(self) -> None:
        """Give a large stream a large pipe, where the user's quota of pipe pages allows it."""
        self._big = True
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, BIG_CHUNK)

    def captured(self) -> Captured:
        """What was kept."""
        head = b"".join(self._parts)
        if self._ring is None:
            return Captured(head, self.total, len(head))
        rest = self.total - len(head)
        tail = self._tail(min(rest, self._limit // 2))
        return Captured(head + tail, self.total, len(head))

    def _tail(self, count: int) -> bytes:
        ring, at = self._ring or bytearray(), self._at
        if count <= at:
            return bytes(ring[at - count : at])
        return bytes(ring[at - count :]) + bytes(ring[:at]) if count else b""


class Source:
    """Feeds standard input from bytes, a descriptor or a file object.

    A descriptor of the host is read here and never passed on: inside, it could be reopened for writing
    through /proc/self/fd, and a terminal could be typed into (TIOCSTI).
    """

    __slots__ = ("_data", "_file", "consumed", "descriptor", "input")

    def __init__(self, stdin: bytes | str | int | IO[Any], encoding: str) -> None:
        self.descriptor = -1
        self.consumed = False
        """True once something was read that cannot be read again."""
        self._file: IO[Any] | None = None
        self._data = memoryview(b"")
        self.input = -1
        """Descriptor that is read, -1 for data at hand and for files without one."""
        if isinstance(stdin, str):
            self._data = memoryview(encoded(stdin, encoding))
        elif isinstance(stdin, (bytes, bytearray, memoryview)):
            self._data = memoryview(stdin).cast("B")
        elif isinstance(stdin, int):
            self.input = _checked(stdin)
        elif hasattr(stdin, "read"):
            self._open(stdin)
        else:
            kind = type(stdin).__name__
            raise InvalidRequest.of("stdin", f"must be text, bytes, a file or a descriptor, not {kind}")

    def _open(self, file: IO[Any]) -> None:
        try:
            number = file.fileno()
        except (OSError, AttributeError, ValueError):
            self._file = file
        else:
            self.input = _checked(number)

    @property
    def exhausted(self) -> bool:
        """True when there is nothing at hand and nowhere to get more."""
        return not self._data and self.input < 0 and self._file is None

    @property
    def ready(self) -> bool:
        """Whether `refill` finds bytes, or the end, without waiting. A file object without descriptor is."""
        if self.input < 0:
            return True
        poller = select.poll()
        poller.register(self.input, select.POLLIN)
        return bool(poller.poll(0))

    def refill(self, encoding: str) -> None:
        """Get the next piece; blocks if the descriptor was not ready."""
        if self._data:
            return
        if self.input >= 0:
            try:
                piece: Any = os.read(self.input, CHUNK)
            except BlockingIOError:  # another reader of a non-blocking file was faster
                return
        elif self._file is not None:
            piece = self._file.read(CHUNK)
        else:
            return
        self.consumed = True
        if isinstance(piece, str):
            piece = encoded(piece, encoding)
        self._data = memoryview(piece or b"")
        if not piece:
            self.input = -1
            self._file = None

    @property
    def waiting(self) -> bool:
        """True when bytes are at hand that the pipe had no room for."""
        return bool(self._data)

    def piece(self, size: int) -> bytes:
        """Take what is at hand, `size` bytes at most, to be sent elsewhere."""
        piece, self._data = bytes(self._data[:size]), self._data[size:]
        return piece

    def push(self) -> bool:
        """Write what there is room for; False when nobody reads any more."""
        try:
            while self._data:
                self._data = self._data[os.write(self.descriptor, self._data) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        return True


def check_output(encoding: str, callbacks: dict[str, object]) -> None:
    """Refuse an unknown encoding, and callbacks that cannot be called. Raises InvalidRequest."""
    if encoding != "utf-8":
        try:
            codecs.lookup(encoding)
        except (LookupError, TypeError):
            raise InvalidRequest.of("encoding", f"{encoding!r:.80} is not known to Python") from None
    for field, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise InvalidRequest.of(field, f"must be callable, not {type(callback).__name__}")


def encoded(text: str, encoding: str, field: str = "stdin") -> bytes:
    """`text` as bytes. Raises InvalidRequest naming `field`."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise InvalidRequest.of(field, f"cannot be encoded as {encoding}: {error.reason}") from None


def view_of(data: object, encoding: str, field: str = "data") -> memoryview:
    """`data`, text or bytes, as bytes to be written. Raises InvalidRequest naming `field`."""
    if isinstance(data, str):
        return memoryview(encoded(data, encoding, field))
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidRequest.of(field, f"must be text or bytes, not {type(data).__name__}")
    return memoryview(data).cast("B")


def check_timeout(value: object) -> float:
    """`value` as seconds to wait. Raises InvalidRequest naming ``timeout``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124  NaN
        raise InvalidRequest.of("timeout", f"{value!r:.40} is no number of seconds to wait")
    return value


def check_size(value: object) -> None:
    """Raises InvalidRequest unless `value` is how many bytes to read at most. To read none is the end."""
    if type(value) is not int or value < 1:
        raise InvalidRequest.of("size", f"{value!r:.40} is no number of bytes to read")


def _checked(descriptor: int) -> int:
    if isinstance(descriptor, bool):
        raise InvalidRequest.of("stdin", "must be text, bytes, a file or a descriptor, not bool")
    try:
        directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except (OSError, OverflowError):
        raise InvalidRequest.of("stdin", f"{descriptor!r} is not an open descriptor") from None
    if directory or flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_PATH:
        what = "a directory" if directory else "not open for reading"
        raise InvalidRequest.of("stdin", f"descriptor {descriptor} is {what}")
    return descriptor
