"""What a detached sandbox writes while nobody reads is read here and dropped, lest it stand still."""

from __future__ import annotations

import asyncio
import contextlib
import os

from ramet._descriptors import close_all

CHUNK = 1 << 16
BURST = 16
PAUSE_S = 0.01


class Drain:
    """Reads and drops what a detached sandbox writes while nobody else reads it."""

    def __init__(self, descriptors: list[int]) -> None:
        """Takes `descriptors`: the near ends of stdout and stderr."""
        self._loop = asyncio.get_running_loop()
        self._descriptors = descriptors
        self._timers: dict[int, asyncio.TimerHandle] = {}
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            self._watch(descriptor)

    def close(self) -> None:
        """Stop reading."""
        close_all(self.release())

    def release(self) -> list[int]:
        """Stop reading; the descriptors are the caller's again."""
        for timer in self._timers.values():
            timer.cancel()
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            self._loop.remove_reader(descriptor)
        return descriptors

    def _watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._readable, descriptor)

    def _readable(self, descriptor: int) -> None:
        # A burst and a pause: a command that writes without end must not have the daemon for itself.
        self._loop.remove_reader(descriptor)
        with contextlib.suppress(BlockingIOError):
            for _ in range(BURST):
                if not os.read(descriptor, CHUNK):
                    return  # the sandbox has gone
        self._timers[descriptor] = self._loop.call_later(PAUSE_S, self._watch, descriptor)
