"""forkd's guest protocol for one sandbox, on a port of this machine's loopback.

One line of JSON in, one out, and the connection ends. It has no authentication: whoever reaches the port has
the sandbox, so it is opened only when it is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ramet.errors import RametError
from ramet.server.lines import LINE_MAX, converse

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Guest:
    """A listening port."""

    def __init__(self, server: asyncio.Server, answer: Answer) -> None:
        self._server = server
        self._answer = answer

    @classmethod
    async def open(cls, answer: Answer, host: str = "127.0.0.1", port: int = 0) -> Guest:
        """Listen, by default on any free port. Raises OSError."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await converse(reader, writer, functools.partial(_told, answer))

        return cls(await asyncio.start_server(serve, host, port, limit=LINE_MAX), answer)

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


async def _told(answer: Answer, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            return {"error": "a request is an object", "code": "malformed", "exit_code": 1}
    except ValueError as error:
        return {"error": f"not JSON: {error}", "code": "malformed", "exit_code": 1}
    try:
        return await answer(request)
    except RametError as error:
        return {"error": error.message, "code": error.code, "exit_code": 1}
