"""The connections: uvicorn's, with a time limit for a request's head and a bound on how many there are.

uvicorn waits without end for the rest of a head; a client that sends a byte a minute would keep a connection
for as long as it likes, and some thousand of those keep everybody out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ramet.server.settings import Settings

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Bounded(HttpToolsProtocol):
    """One connection."""

    most = 0
    head_s = 0.0
    _head: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: Any) -> None:
        """Take it, if there is room."""
        if len(self.connections) >= self.most:
            self._refused = True
            transport.abort()
            return
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._stop_waiting()
        if not self._refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if not self._refused:
            super().data_received(data)

    def eof_received(self) -> None:
        """Nothing more comes."""
        if not self._refused:
            super().eof_received()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._stop_waiting()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._head = self.loop.call_later(self.head_s, self._end_slow)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _end_slow(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.write(_TOO_SLOW)
            self.transport.close()


def protocol_of(settings: Settings) -> type[asyncio.Protocol]:
    """The class of this server's connections."""
    bounds = {"most": settings.connections, "head_s": settings.head_s}
    return type("Bounded", (Bounded,), bounds)
