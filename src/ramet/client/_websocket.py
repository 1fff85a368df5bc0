"""The client's end of a web socket (RFC 6455): as much of it as carries binary messages, and no more."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import struct
from collections.abc import Callable
from typing import Any

from ramet.errors import DaemonLost, RametError

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
HEAD_MAX = 1 << 16
BODY_MAX = 1 << 20
_BINARY, _CLOSE, _PING, _PONG = 0x2, 0x8, 0x9, 0xA


class WebSocket(asyncio.Protocol):
    """One, from the request on. Everything happens on the loop."""

    def __init__(self, head: bytes, key: str, heard: Callable[[bytes], object]) -> None:
        """`head` is the request, `heard` gets messages."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is open; otherwise the error that the server gave instead."""
        self.when_lost: Callable[[], object] = lambda: None
        self.when_full: Callable[[], object] = lambda: None
        self.when_free: Callable[[], object] = lambda: None
        self.transport: asyncio.Transport | None = None
        self.last_heard = asyncio.get_running_loop().time()
        self._head = head
        self._accept = base64.b64encode(hashlib.sha1(key.encode() + _MAGIC).digest())  # noqa: S324  as told
        self._heard = heard
        self._buffer = bytearray()
        self._message = bytearray()
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  of a stream
        self.transport = transport
        transport.write(self._head)

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        plain = self.transport is not None and self.transport.get_extra_info("ssl_object") is None
        # One that expects TLS takes the request for a broken handshake, and says nothing.
        hint = "with TLS its address begins with https" if plain and not self._buffer else None
        text = f"the server closed the connection{_why(error)}"
        self._refuse(DaemonLost("server_lost", text, hint=hint))
        self.when_lost()

    def pause_writing(self) -> None:
        """More than enough waits to be sent."""
        self.when_full()

    def resume_writing(self) -> None:
        """There is room again."""
        self.when_free()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.last_heard = asyncio.get_running_loop().time()
        self._buffer += data
        try:
            if not self._is_open and not self._answered():
                return
            while self._frame():
                pass
        except (ValueError, RametError) as error:
            self._refuse(DaemonLost("server_lost", f"the server speaks no tunnel: {error}"))
            self.abort()

    def _answered(self) -> bool:
        head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_MAX:
                raise ValueError("its answer has no end")
            return False
        status, *lines = head.decode("latin-1").split("\r\n")
        told = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        code = status.split(" ")[1] if status.count(" ") else ""
        if code != "101":
            return self._not_open(code, told, rest)
        if told.get("sec-websocket-accept", "").encode() != self._accept:
            raise ValueError("it has not heard the key")
        self._buffer[:] = rest
        self._is_open = True
        if not self.opened.done():
            self.opened.set_result(None)
        return True

    def _not_open(self, code: str, told: dict[str, str], body: bytes) -> bool:
        length = told.get("content-length", "")
        if length.isdigit() and len(body) < min(int(length), BODY_MAX):
            return False
        self._refuse(refusal(code, body))
        self.abort()
        return False

    def _refuse(self, error: RametError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)

    def _frame(self) -> bool:
        """Take the next frame; False when it is not all here."""
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        first, size, start = buffer[0], buffer[1], 2
        if size & 0x80 or first & 0x70:
            raise ValueError("a frame of it is masked, or has an extension that was not asked for")
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            start += struct.calcsize(form)
            if len(buffer) < start:
                return False
            (size,) = struct.unpack_from(form, buffer, 2)
        if size > 1 << 24:
            raise ValueError("a frame of it is too long")
        if len(buffer) < start + size:
            return False
        payload = bytes(memoryview(buffer)[start : start + size])
        del buffer[: start + size]
        self._take(first & 0xF, payload, last=bool(first & 0x80))
        return True

    def _take(self, kind: int, payload: bytes, *, last: bool) -> None:
        if kind == _PING:
            self._send(_PONG, payload)
        elif kind == _CLOSE:
            self.abort()
        elif kind in {0, 1, _BINARY}:
            if last and not self._message:
                self._heard(payload)
                return
            self._message += payload
            if last:
                whole = bytes(self._message)
                self._message.clear()
                self._heard(whole)

    def send(self, message: bytes) -> None:
        """Say a message."""
        self._send(_BINARY, message)

    def _send(self, kind: int, payload: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        size = len(payload)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
        mask = os.urandom(4)
        # As one large number: a loop over bytes would cost a hundred times as much.
        whole = int.from_bytes(payload, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        self.transport.write(head + mask + whole.to_bytes(size, "big"))

    def bid_farewell(self) -> None:
        """Close it as one does, when what was said has been sent."""
        self._send(_CLOSE, (1000).to_bytes(2, "big"))
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()


def _why(error: Exception | None) -> str:
    return "" if error is None else f": {error}"


def request(path: str, host: str, token: str | None, version: int) -> tuple[bytes, str]:
    """The request that opens one, and its key."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", f"X-Ramet-Tunnel: {version}",
        "User-Agent: ramet",
    ]  # fmt: skip
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), key


def refusal(status: str, body: bytes) -> RametError:
    """The error that a server answered with."""
    try:
        told: Any = json.loads(body)
        return RametError.from_wire({**told, "message": told["error"]})
    except (ValueError, KeyError, TypeError):
        return DaemonLost(
            "server_lost",
            f"what answers there is no server of Ramet, or an older one: status {status or '?'}",
        )
