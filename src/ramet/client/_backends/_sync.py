"""Waiting by blocking the thread."""

from __future__ import annotations

import select
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")


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


class Opening:
    """What is open as soon as it is made."""

    @abstractmethod
    def start(self) -> Self:
        """Open it, if that has not been done."""

    def _made(self) -> None:
        """Called at the end of the constructor."""
        self.start()
