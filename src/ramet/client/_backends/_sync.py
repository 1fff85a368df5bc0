"""Waiting by blocking the thread."""

from __future__ import annotations

import select
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self, TypeAlias, TypeVar

S = TypeVar("S")
T = TypeVar("T")
Task: TypeAlias = Callable[[S], T]


def poll(poller: select.epoll, timeout: float) -> list[tuple[int, int]]:
    """Ready descriptors of `poller`; none after `timeout` seconds (negative: wait for ever)."""
    return poller.poll(timeout)


def ready(descriptor: int, timeout: float, *, write: bool = False) -> bool:
    """Whether `descriptor` can be read (or written) before `timeout` seconds (negative: never) are over."""
    poller = select.poll()  # select(2) cannot name descriptors above 1023
    poller.register(descriptor, select.POLLOUT if write else select.POLLIN)
    return bool(poller.poll(timeout * 1000 if timeout >= 0 else None))


def deliver(callback: Callable[[T], Any], chunk: T) -> None:
    """Call `callback`."""
    callback(chunk)


def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which blocks."""
    return call()


def at_once(count: int, work: Task[int, bool], stop: Callable[[], object]) -> None:
    """Call `work` with each number below `count`, all at once, in threads; return when all have ended.

    A thread cannot be cancelled: `stop` has what it waits for ended, when this thread is interrupted or
    there are no more of them.
    """
    import threading

    begun: list[threading.Thread] = []
    raised: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  of this call, not of the thread alone
            raised.append(error)
            stop()

    try:
        for number in range(count):
            thread = threading.Thread(target=one, args=(number,), daemon=True)
            thread.start()
            begun.append(thread)
        for thread in begun:
            thread.join()
    except BaseException:
        stop()
        for thread in begun:
            thread.join()
        raise
    if raised:
        raise raised[0]


class Opening:
    """What is open as soon as it is made."""

    @abstractmethod
    def start(self) -> Self:
        """Open it, if that has not been done."""

    def _made(self) -> None:
        """Called at the end of the constructor."""
        self.start()
