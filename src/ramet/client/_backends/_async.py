"""Waiting on any event loop that anyio knows."""

from __future__ import annotations

import inspect
import math
import select
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


async def poll(poller: select.epoll, timeout: float) -> list[tuple[int, int]]:
    """Ready descriptors of `poller`; none after `timeout` seconds (negative: wait for ever)."""
    # An epoll descriptor is readable when one of its own is ready: one wait covers all streams of a run.
    with anyio.move_on_after(timeout if timeout >= 0 else math.inf):
        await anyio.wait_readable(poller)
    return poller.poll(0)


async def deliver(callback: Callable[[bytes], Any], chunk: bytes) -> None:
    """Call `callback`, and await what it returns if it is to be awaited."""
    outcome = callback(chunk)
    if inspect.isawaitable(outcome):
        await outcome


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which blocks."""
    return await anyio.to_thread.run_sync(call)
