"""Waiting on any event loop that anyio knows."""

from __future__ import annotations

import inspect
import math
import select
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self, TypeAlias, TypeVar

import anyio
import anyio.to_thread

S = TypeVar("S")
T = TypeVar("T")
Task: TypeAlias = Callable[[S], Awaitable[T]]


async def poll(poller: select.epoll, timeout: float) -> list[tuple[int, int]]:
    """Ready descriptors of `poller`; none after `timeout` seconds (negative: wait for ever)."""
    # An epoll descriptor is readable when one of its own is ready: one wait covers all streams of a run.
    with anyio.move_on_after(timeout if timeout >= 0 else math.inf):
        await anyio.wait_readable(poller)
    return poller.poll(0)


async def ready(descriptor: int, timeout: float, *, write: bool = False) -> bool:
    """Whether `descriptor` can be read (or written) before `timeout` seconds (negative: never) are over."""
    wait = anyio.wait_writable if write else anyio.wait_readable
    with anyio.move_on_after(timeout if timeout >= 0 else math.inf):
        await wait(descriptor)
        return True
    return False


async def deliver(callback: Callable[[T], Any], chunk: T) -> None:
    """Call `callback`, and await what it returns if it is to be awaited."""
    outcome = callback(chunk)
    if inspect.isawaitable(outcome):
        await outcome


async def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which blocks."""
    return await anyio.to_thread.run_sync(call)


async def at_once(count: int, work: Task[int, bool], _stop: Callable[[], object]) -> None:
    """Call `work` with each number below `count`, all at once; the first true answer cancels the others.

    `work` raises nothing but a cancellation.
    """
    async with anyio.create_task_group() as group:

        async def one(number: int) -> None:
            if await work(number):
                group.cancel_scope.cancel()

        for number in range(count):
            group.start_soon(one, number)


class Opening:
    """What is opened by awaiting it, or by entering it."""

    @abstractmethod
    async def start(self) -> Self:
        """Open it, if that has not been done."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    def _made(self) -> None:
        """Called at the end of the constructor, which cannot wait."""
