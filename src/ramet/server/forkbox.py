"""Forkbox's socket: a line of JSON asks for a command in a sandbox of its own, a line tells how it ended.

Its own daemon lets every user of the machine in; here the socket is its owner's alone. No network can be
given to a command yet, so one that is asked for is refused, and never left out in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from ramet.errors import InvalidRequest, RametError
from ramet.server.lines import LINE_MAX, converse
from ramet.server.sockets import unix_listener
from ramet.server.tenants import Tenants
from ramet.server.tokens import DEFAULT_TENANT
from ramet.wire.places import peer

TIMEOUT_MAX_MS = 7 * 86400 * 1000


class Forkbox:
    """Serves one socket."""

    def __init__(self, tenants: Tenants) -> None:
        self._client = tenants.named(DEFAULT_TENANT).client

    @contextlib.asynccontextmanager
    async def serving(self, path: str) -> AsyncIterator[None]:
        """Listen at `path`, mode 0600. Raises InvalidRequest naming ``forkbox-socket``."""
        with unix_listener(path, "forkbox-socket") as listener:
            server = await asyncio.start_unix_server(self._converse, sock=listener, limit=LINE_MAX)
            try:
                yield
            finally:
                server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(line: bytes) -> dict[str, Any] | None:
            _, uid = peer(writer.get_extra_info("socket"))
            return await self._answer(line) if uid in {os.geteuid(), 0} else None

        await converse(reader, writer, answer)

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            command, timeout = _request(line)
            result = await self._client.run(command, timeout=timeout)
        except RametError as error:
            return {"error": error.message, "code": error.code}
        return {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "stdout": result.stdout,
            "stderr": result.stderr,
            "duration_us": round(result.duration_ms * 1000),
            "reason": result.reason,
            "truncated": result.truncated,
        }


def _request(line: bytes) -> tuple[str, float]:
    """The command, and its seconds. Raises InvalidRequest."""
    try:
        data = json.loads(line)
    except ValueError:
        raise InvalidRequest("malformed", "the line is not JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest("malformed", "the line is no object of JSON")
    command, timeout = data.get("cmd"), data.get("timeout_ms")
    if not isinstance(command, str):
        raise InvalidRequest.of("cmd", "must be text")
    if type(timeout) is not int or not 1 <= timeout <= TIMEOUT_MAX_MS:
        raise InvalidRequest.of("timeout_ms", f"must be a number from 1 to {TIMEOUT_MAX_MS}")
    if data.get("allow_network", False) is not False:
        raise InvalidRequest.of("allow_network", "no network can be given to a command", code="unsupported")
    return command, timeout / 1000
