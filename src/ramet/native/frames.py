"""Binary frames to and from core: core/PROTOCOL.md, "Frames".

Encoding is a matter of joining attributes (`u32`, `u64`, `text`, ...); what a plan always carries is encoded
once and kept by its owner. Decoding checks the whole frame before it hands out any of it.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from ramet._descriptors import close_all, received, seal, send_with, unseal
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = struct.Struct("<IHHQIHH")
ATTR = struct.Struct("<HHI")
INLINE_MAX = p.FRAME_BYTES - HEADER.size
# As plain numbers: operations on IntFlag cost microseconds.
CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
# One more than is legal, so that a frame with too many is seen as such and not silently cut (MSG_CTRUNC).
ANCILLARY = socket.CMSG_SPACE(4 * (p.FRAME_FDS + 1))

_U32 = struct.Struct("<HHII").pack
_U64 = struct.Struct("<HHIQ").pack
_PAD = (b"", b"\0\0\0", b"\0\0", b"\0")


class FrameError(Exception):
    """A frame that is not one: magic, version, length, descriptors or an attribute are wrong."""


class Frame(NamedTuple):
    """One received frame. `fds` are the receiver's to close."""

    kind: int
    request: int
    payload: bytes
    fds: list[int]


class Attributes(dict[int, bytes]):
    """The attributes of a payload that repeats none."""

    def u32(self, tag: int, default: int = 0) -> int:
        """The number at `tag`. Raises FrameError if it is not 4 bytes."""
        value = self.get(tag)
        if value is not None and len(value) == 4:
            return int.from_bytes(value, "little")
        return self._absent(tag, value, default)

    def u64(self, tag: int, default: int = 0) -> int:
        """The number at `tag`. Raises FrameError if it is not 8 bytes."""
        value = self.get(tag)
        if value is not None and len(value) == 8:
            return int.from_bytes(value, "little")
        return self._absent(tag, value, default)

    def text(self, tag: int, default: str = "") -> str:
        """The text at `tag`."""
        value = self.get(tag)
        return default if value is None else value.decode("utf-8", "replace")

    @staticmethod
    def _absent(tag: int, value: bytes | None, default: int) -> int:
        if value is None:
            return default
        raise FrameError(f"{p.TAG_NAMES.get(tag, tag)} has {len(value)} bytes")


class Numbers:
    """Numbers that come in every payload of a kind.

    Where they are all there is, in the order in which core writes them, one call reads them; in any other
    they are looked up.
    """

    __slots__ = ("_lengths", "_struct", "_tags", "_zeros")

    def __init__(self, sizes: Mapping[int, int]) -> None:
        """`sizes` has the bytes of each, 4 or 8, by its tag, in core's order."""
        self._tags = tuple(sizes)
        self._lengths = tuple(sizes.values())
        self._zeros = (0,) * len(sizes)
        self._struct = struct.Struct(
            "<" + "".join(["HHIQ" if size == 8 else "HHII" for size in self._lengths])
        )

    def as_written(self, payload: bytes) -> tuple[int, ...] | None:
        """The numbers of a payload that is as core writes it; None for one that is not."""
        if len(payload) != self._struct.size:
            return None
        found = self._struct.unpack(payload)
        if found[0::4] != self._tags or found[1::4] != self._zeros or found[2::4] != self._lengths:
            return None
        return found[3::4]

    def read(self, payload: bytes) -> tuple[int, ...]:
        """The numbers, 0 for one that is not there. Raises FrameError."""
        return self.as_written(payload) or self.of(attributes(payload))

    def of(self, found: Attributes) -> tuple[int, ...]:
        """As `read`, of what was decoded. Raises FrameError."""
        pairs = zip(self._tags, self._lengths, strict=True)
        return tuple([found.u64(tag) if size == 8 else found.u32(tag) for tag, size in pairs])


def u32(tag: int, value: int) -> bytes:
    """An attribute with a 32-bit number."""
    return _U32(tag, 0, 4, value)


def u64(tag: int, value: int) -> bytes:
    """An attribute with a 64-bit number."""
    return _U64(tag, 0, 8, value)


def raw(tag: int, value: bytes) -> bytes:
    """An attribute with bytes."""
    return ATTR.pack(tag, 0, len(value)) + value + _PAD[len(value) & 3]


def text(tag: int, value: str) -> bytes:
    """An attribute with text, which the caller has checked for NUL."""
    return raw(tag, value.encode("utf-8", "surrogateescape"))


def decode(payload: bytes) -> list[tuple[int, bytes]]:
    """The attributes of a payload in order. Raises FrameError."""
    found = []
    offset, end = 0, len(payload)
    while offset < end:
        if end - offset < ATTR.size:
            raise FrameError("an attribute is cut off")
        tag, zero, length = ATTR.unpack_from(payload, offset)
        start = offset + ATTR.size
        offset = start + length + (-length & 3)
        if zero or offset > end:
            raise FrameError(f"attribute {tag} is malformed")
        found.append((tag, payload[start : start + length]))
    return found


def attributes(payload: bytes) -> Attributes:
    """The attributes of a payload by tag. Raises FrameError, also when one occurs twice."""
    pairs = decode(payload)
    found = Attributes(pairs)
    if len(found) != len(pairs):
        raise FrameError("an attribute is repeated")
    return found


def encode(kind: int, request: int, payload: bytes, fds: int = 0, flags: int = 0) -> bytes:
    """A frame as it goes over the socket; with FLAG_PAYLOAD_FD the header alone."""
    header = HEADER.pack(p.FRAME_MAGIC, p.PROTOCOL_VERSION, kind, request, len(payload), fds, flags)
    return header if flags & p.FLAG_PAYLOAD_FD else header + payload


def send(sock: socket.socket, kind: int, request: int, payload: bytes, fds: list[int]) -> None:
    """Send one frame; the descriptors stay the caller's.

    Raises OSError: BlockingIOError when the socket is full.
    """
    if len(payload) <= INLINE_MAX:
        data = encode(kind, request, payload, len(fds))
        if fds:
            send_with(sock, data, fds)
        else:
            sock.send(data)
        return
    memory = seal(payload)
    try:
        send_with(sock, encode(kind, request, payload, len(fds), p.FLAG_PAYLOAD_FD), [*fds, memory])
    finally:
        os.close(memory)


def receive(sock: socket.socket, buffer: bytearray) -> Frame | None:
    """The next frame, or None at the end of the connection; `buffer` has FRAME_BYTES and is scratch.

    Raises BlockingIOError when there is none yet, FrameError when it is malformed, ConnectionResetError at an
    end before which the peer had not read all that was sent.
    """
    try:
        size, ancillary, flags, _ = sock.recvmsg_into([buffer], ANCILLARY, CLOSE_ON_EXEC)
    except ConnectionResetError:
        # The kernel says once that the peer closed with something unread, before what the peer had sent.
        size, ancillary, flags, _ = sock.recvmsg_into([buffer], ANCILLARY, CLOSE_ON_EXEC)
        if not size:
            raise
    if not size:
        return None
    fds = received(ancillary) if ancillary else []
    try:
        if flags & CUT:
            raise FrameError("a frame is longer than it may be")
        return parse(buffer, size, fds)
    except FrameError:
        close_all(fds)
        raise


def parse(buffer: bytearray | bytes, size: int, fds: list[int]) -> Frame:
    """The frame in the first `size` bytes of `buffer`. Raises FrameError; then `fds` stay the caller's."""
    if size < HEADER.size:
        raise FrameError("a frame is shorter than its header")
    magic, version, kind, request, length, count, flags = HEADER.unpack_from(buffer)
    if magic != p.FRAME_MAGIC:
        raise FrameError("a frame does not begin with the magic number")
    if version != p.PROTOCOL_VERSION:
        raise FrameError(f"core speaks protocol {version}, this is protocol {p.PROTOCOL_VERSION}")
    if flags & ~p.FLAG_PAYLOAD_FD:
        raise FrameError("a frame has unknown flags")
    memory = flags & p.FLAG_PAYLOAD_FD
    if len(fds) != count + bool(memory):
        raise FrameError(f"{len(fds)} descriptors came with a frame that has {count}")
    if not memory:
        if size - HEADER.size != length:
            raise FrameError("a frame's length is wrong")
        return Frame(kind, request, bytes(memoryview(buffer)[HEADER.size : size]), fds)
    if length > p.PAYLOAD_MAX or size != HEADER.size:
        raise FrameError("a payload's length is wrong")
    payload = unseal(fds[-1], length)
    if payload is None:
        raise FrameError("a payload's memory file is not sealed or not of its length")
    os.close(fds.pop())
    return Frame(kind, request, payload, fds)
