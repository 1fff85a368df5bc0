"""The conversations that a tunnel carries: with the daemon, and in frames with core and file servers."""

from __future__ import annotations

import os
import socket
import struct

from ramet.native import _protocol as p
from ramet.native import frames
from ramet.tunnel.channels import Group, Item, Packets, Tunnel
from ramet.wire import messages

FRAME_HEAD = struct.Struct("<HQ")  # the frame's kind, and the request's number


class _Socketed(Packets):
    """One whose socket takes and gives descriptors."""

    def __init__(self, tunnel: Tunnel, number: int, descriptor: int, group: Group | None = None) -> None:
        self.sock: socket.socket | None = None
        super().__init__(tunnel, number, descriptor, group)

    def attach(self, descriptor: int) -> None:
        """Take the descriptor."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)
        super().attach(descriptor)

    def release(self) -> None:
        """Close it."""
        if self.sock is not None:
            self.sock.detach()
        super().release()


class Messages(_Socketed):
    """In JSON, as with the daemon."""

    def take(self) -> tuple[bytes, list[int]] | None:
        """The next message of the local end."""
        assert self.sock is not None  # noqa: S101  it was readable
        received = messages.receive(self.sock)
        if received is None:
            return None
        message, fds = received
        return messages.encoded(message), fds

    def give(self, item: Item) -> None:
        """Say a message to the local end."""
        assert self.sock is not None  # noqa: S101  it was attached
        messages.send(self.sock, messages.decoded(item.body), item.fds)


class SessionMessages(Messages):
    """Of a session, whose end is told whether output is read or not."""

    at_end_alone = True


class Frames(_Socketed):
    """In frames, as with core."""

    def __init__(self, tunnel: Tunnel, number: int, descriptor: int) -> None:
        self._buffer = bytearray(p.FRAME_BYTES)
        super().__init__(tunnel, number, descriptor)

    def take(self) -> tuple[bytes, list[int]] | None:
        """The next frame of the local end."""
        assert self.sock is not None  # noqa: S101  it was readable
        try:
            frame = frames.receive(self.sock, self._buffer)
        except frames.FrameError:
            return None
        return None if frame is None else (packed(frame.kind, frame.request, frame.payload), frame.fds)

    def give(self, item: Item) -> None:
        """Say a frame to the local end."""
        assert self.sock is not None  # noqa: S101  it was attached
        kind, request = FRAME_HEAD.unpack_from(item.body)
        frames.send(self.sock, kind, request, item.body[FRAME_HEAD.size :], item.fds)


def packed(kind: int, request: int, payload: bytes) -> bytes:
    """A frame as a packet has it."""
    return FRAME_HEAD.pack(kind, request) + payload


def pair(kind: int = socket.SOCK_SEQPACKET) -> tuple[int, int]:
    """Both ends of a socket: ours, and the one to pass on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    return ours.detach(), theirs.detach()


def type_of(descriptor: int) -> int:
    """What kind of socket it is."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)


__all__ = ["FRAME_HEAD", "Frames", "Messages", "SessionMessages", "packed", "pair", "type_of"]
