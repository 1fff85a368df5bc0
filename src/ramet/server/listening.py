"""The connections: uvicorn's, with a time limit for a request's head and a bound on how many there are.

uvicorn waits without end for the rest of a head; a client that sends a byte a minute would keep a connection
for as long as it likes, and some thousand of those keep everybody out.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ramet.server.faults import Refused, response_of
from ramet.server.settings import Settings

HEAD_MAX = 1 << 16
"""Bytes of a head, and of the piece that it began in, which is 256 KiB at most."""
_TOO_SLOW = Refused(408, "slow_head", "the head of the request did not come in time")
_TOO_LARGE = Refused(431, "too_large", f"the head of the request has more than {HEAD_MAX} bytes")
_NO_HTTP = Refused(400, "malformed", "what came is no request of HTTP/1.1")


class Bounded(HttpToolsProtocol):
    """One connection."""

    most = 0
    head_s = 0.0
    fresh: ClassVar[dict[Bounded, None]]
    """Those that have not asked for anything yet, the oldest first."""
    idle: ClassVar[dict[Bounded, None]]
    """Those that ask for nothing now, the longest first."""
    _head: asyncio.TimerHandle | None = None
    _in_head = False
    _size = 0
    _refused = False

    def connection_made(self, transport: Any) -> None:
        """Take it, if there is room. Who only keeps a connection open makes room, who asks keeps it."""
        if len(self.connections) >= self.most and not self._make_room():
            self._refused = True
            transport.abort()
            return
        super().connection_made(transport)
        self.fresh[self] = None
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._stop_waiting()
        self._is_busy()
        if not self._refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._refused:
            return
        before = self._head
        super().data_received(data)
        if self not in self.connections or self.transport.is_closing():
            return  # a web socket has it now, or it ends
        if self._head is None:
            if getattr(self.cycle, "response_complete", False):
                # uvicorn has stopped its own clock at these bytes, which begin no request.
                self._await_head()
        elif self._in_head and self._head is before:
            # The parser joins what comes of a field to what it has: the time for that grows with the square.
            self._size += len(data)
            if self._size > HEAD_MAX:
                self._stop_waiting()
                self._refuse(_TOO_LARGE)

    def eof_received(self) -> None:
        """Nothing more comes."""
        if not self._refused:
            super().eof_received()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head, self._size = True, 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._stop_waiting()
        self._in_head = False
        self._is_busy()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An answer is whole."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.pipeline and self in self.connections:
            self.idle[self] = None

    def _is_busy(self) -> None:
        self.fresh.pop(self, None)
        self.idle.pop(self, None)

    def _make_room(self) -> bool:
        oldest = next(iter(self.fresh or self.idle), None)
        if oldest is None:
            return False
        oldest._is_busy()  # noqa: SLF001  one of this class
        oldest.transport.abort()
        return True

    def _await_head(self) -> None:
        self._stop_waiting()
        self._head = self.loop.call_later(self.head_s, self._end_slow)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end_slow(self) -> None:
        self._head = None
        self._refuse(_TOO_SLOW)

    def send_400_response(self, _msg: str) -> None:
        """What came is nothing that can be read."""
        self._refuse(_NO_HTTP)

    def _refuse(self, error: Refused) -> None:
        """Tell of what is wrong with a request that reaches no application, and hang up."""
        if not self.transport.is_closing():
            answer = response_of(error)
            status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"
            fields = [status, *[f"{name}: {value}" for name, value in answer.headers.items()]]
            head = "\r\n".join([*fields, "connection: close", "", ""])
            self.transport.write(head.encode("latin-1") + bytes(answer.body))
            self.transport.close()


class Patient(WebSocketsSansIOProtocol):
    """One web socket: uvicorn's, which gives up who does not answer a ping in time.

    While the application takes nothing uvicorn reads nothing, and the answer is behind what is not read yet:
    so who has been heard since, or could not be, is asked again.
    """

    _heard = False

    def data_received(self, data: bytes) -> None:
        """Bytes of frames."""
        self._heard = True
        super().data_received(data)

    def keepalive_timeout(self) -> None:
        """No answer has come in time."""
        heard, self._heard = self._heard or self.read_paused, False
        if heard and self.ping_timeout is not None:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            super().keepalive_timeout()


def protocol_of(settings: Settings) -> type[asyncio.Protocol]:
    """The class of this server's connections."""
    bounds = {"most": settings.connections, "head_s": settings.head_s, "fresh": {}, "idle": {}}
    return type("Bounded", (Bounded,), bounds)
