"""A conversation of one line of JSON and one in answer, as forkd's guests and Forkbox's socket have it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

LINE_MAX = 1 << 20
"""The limit of a stream reader that is passed here: bytes."""
LINE_S = 30.0
"""How long a line may take to come."""


async def converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[bytes], Awaitable[dict[str, Any] | None]],
) -> None:
    """Pass a line to `answer`, send what that gives, if anything, and end the connection.

    Who is too slow, sends too long a line or goes is let go without a word.
    """
    try:
        async with asyncio.timeout(LINE_S):
            line = await reader.readline()
        told = await answer(line) if line.strip() else None
        if told is not None:
            writer.write(json.dumps(told).encode() + b"\n")
            await writer.drain()
    except (TimeoutError, ValueError, ConnectionError):
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
