"""Messages between client and daemon: one JSON object in a SEQPACKET message, descriptors beside it.

Every message begins with a header that holds the protocol version, so that two versions of Ramet that meet
can say so. JSON of more than MESSAGE_BYTES travels in a sealed memory file, the last descriptor. A request is
``{"op": NAME, "args": {...}}``; its answer ``{"ok": RESULT}`` or ``{"error": ERROR}``. A connection carries
one request at a time, and closing it ends the work that was asked for on it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

from ramet._descriptors import close_all, received, seal, send_with, unseal
from ramet.errors import DaemonError, ProtocolMismatch, RametError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
MAGIC = b"RMTd"
MESSAGE_BYTES = 65536
PAYLOAD_MAX = 64 << 20
FDS_MAX = 8
HEADER = struct.Struct("<4sHHI")  # magic, version, flags, length of the JSON
FLAG_MEMORY = 1
# As plain numbers: operations on IntFlag cost microseconds.
CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
ANCILLARY = socket.CMSG_SPACE(4 * (FDS_MAX + 1))

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def encoded(message: dict[str, Any]) -> bytes:
    """A message as it travels elsewhere than over a socket of this machine."""
    return _encode(message).encode("ascii")


def decoded(data: bytes) -> dict[str, Any]:
    """The same again. Raises DaemonError: code ``malformed``: it is no message."""
    try:
        message = _decode(data.decode("ascii"))
    except (ValueError, RecursionError):
        raise _malformed("it is not JSON") from None
    if not isinstance(message, dict):
        raise _malformed("it is not a JSON object")
    return message


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send `message`; the descriptors stay the caller's. Raises OSError."""
    # ASCII: what is not UTF-8 in an argument is a lone surrogate here, and travels escaped.
    data = encoded(message)
    if len(data) <= MESSAGE_BYTES - HEADER.size:
        packet = HEADER.pack(MAGIC, VERSION, 0, len(data)) + data
        if fds:
            send_with(sock, packet, fds)
        else:
            sock.send(packet)
        return
    memory = seal(data)
    try:
        send_with(sock, HEADER.pack(MAGIC, VERSION, FLAG_MEMORY, len(data)), [*fds, memory])
    finally:
        os.close(memory)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors, which are the caller's; None at the end of the connection.

    Raises:
        OSError: BlockingIOError when there is none yet.
        ProtocolMismatch: the peer speaks another version.
        DaemonError: code ``malformed``: it is no message of ours.
    """
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_BYTES, ANCILLARY, CLOSE_ON_EXEC)
    if not data:
        return None
    fds = received(ancillary) if ancillary else []
    try:
        if flags & CUT:
            raise _malformed("it is longer than a message may be")
        message = _parse(data, fds)
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def _parse(data: bytes, fds: list[int]) -> dict[str, Any]:
    if len(data) < HEADER.size:
        raise _malformed("it is shorter than its header")
    magic, version, flags, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _malformed("it does not begin as a message of Ramet")
    if version != VERSION:
        raise ProtocolMismatch(
            "protocol_mismatch",
            f"the peer speaks protocol {version} of Ramet, this is protocol {VERSION}",
            hint="ramet daemon stop ends a daemon of another version",
        )
    if flags & FLAG_MEMORY:
        payload = unseal(fds[-1], length) if fds and length <= PAYLOAD_MAX else None
        if payload is None:
            raise _malformed("its memory file is not sealed or not of its length")
        os.close(fds.pop())
    else:
        payload = data[HEADER.size :]
        if len(payload) != length:
            raise _malformed("its length is wrong")
    return decoded(payload)


def _malformed(why: str) -> DaemonError:
    return DaemonError("malformed", f"a message cannot be read: {why}")


def answer_of(message: dict[str, Any]) -> dict[str, Any]:
    """The result in an answer. Raises the error that came in its place."""
    error = message.get("error")
    if error is not None:
        raise RametError.from_wire(error)
    result = message.get("ok")
    if not isinstance(result, dict):
        raise _malformed("it is no answer")
    return result
