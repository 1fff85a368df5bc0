"""A client of HTTP that is nearly nothing: one that does more takes longer than the server it measures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 120.0
Asked = tuple[str, str, Any]
"""Method, path, and what is sent as JSON."""


def _head(asked: Asked, host: str) -> bytes:
    method, path, content = asked
    body = b"" if content is None else json.dumps(content).encode()
    kind = "content-type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _parsed(head: bytes) -> tuple[int, int]:
    first, *fields = head.decode("latin-1").split("\r\n")
    named = dict(field.lower().split(": ", 1) for field in fields if field)
    return int(first.split()[1]), int(named.get("content-length", 0))


class Api:
    """One connection, one request at a time."""

    def __init__(self, url: str) -> None:
        """Connect."""
        place = urlsplit(url)
        assert place.hostname
        assert place.port
        self.host, self.port = place.hostname, place.port
        self._sock = socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._sock.makefile("rb")

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """What it answers, which has to be success."""
        return self.timed(method, path, content)[1]

    def timed(self, method: str, path: str, content: Any = None) -> tuple[float, Any]:
        """How many milliseconds an answer took, the reading of its JSON not counted, and the answer."""
        began = time.perf_counter()
        self._sock.sendall(_head((method, path, content), self.host))
        status, size = _parsed(b"".join(iter(self._file.readline, b"\r\n")))
        body = self._file.read(size)
        took = (time.perf_counter() - began) * 1e3
        assert status < 300, (status, body)
        return took, json.loads(body) if body else None

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._sock.close()


@contextlib.contextmanager
def connected(url: str) -> Iterator[Api]:
    """A connection for the time of a `with` block."""
    api = Api(url)
    try:
        yield api
    finally:
        api.close()


async def ask_all(api: Api, all_asked: Sequence[Asked], connections: int) -> list[Any]:
    """The answers of all, asked over so many connections at once."""
    answers: list[Any] = [None] * len(all_asked)
    left = iter(enumerate(all_asked))

    async def work() -> None:
        async with _streams(api) as (reader, writer):
            for number, asked in left:
                writer.write(_head(asked, api.host))
                status, size = _parsed((await reader.readuntil(b"\r\n\r\n"))[:-4])
                body = await reader.readexactly(size)
                assert status < 300, (status, body)
                answers[number] = json.loads(body)

    await asyncio.gather(*[work() for _ in range(connections)])
    return answers


@contextlib.asynccontextmanager
async def _streams(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(api.host, api.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


__all__ = ["PATIENCE_S", "Api", "Asked", "ask_all", "connected"]
