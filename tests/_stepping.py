"""Cancelling a coroutine at each of its suspensions, one after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class _At:
    """Runs a coroutine and cancels its task at its n-th suspension."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coroutine.__await__()
        suspensions = 0
        sent: Any = None
        raised: BaseException | None = None
        while True:
            try:
                waited = inner.send(sent) if raised is None else inner.throw(raised)
            except StopIteration as end:
                return end.value
            sent = raised = None
            if suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            suspensions += 1
            try:
                sent = yield waited
            except BaseException as error:  # noqa: BLE001  what is thrown in belongs to the coroutine
                raised = error


async def cancelled_at_each_await(
    make: Callable[[int], Coroutine[Any, Any, Any]], clean: Callable[[], Awaitable[None]]
) -> int:
    """Run what `make` gives, cancelled at its first suspension, then at its second, until it ends before.

    `clean` is awaited after each, and has to find nothing left. How many times it was cancelled.
    """
    times = 0
    while True:

        async def run(at: int = times) -> None:
            await _At(make(at), at)

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        await clean()
        if not task.cancelled():
            task.result()
            return times
        times += 1
