"""Waiting by blocking the thread."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def poll(poller: select.epoll, timeout: float) -> list[tuple[int, int]]:
    """Ready descriptors of `poller`; none after `timeout` seconds (negative: wait for ever)."""
    return poller.poll(timeout)


def deliver(callback: Callable[[bytes], Any], chunk: bytes) -> None:
    """Call `callback`."""
    callback(chunk)


def in_thread(call: Callable[[], T]) -> T:
    """The result of `call`, which blocks."""
    return call()
