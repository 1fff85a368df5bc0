# Generated from _async/streams.py by scripts/unasync.py. Do not edit.
"""The standard streams of a sandbox's command, from outside."""

from __future__ import annotations

import time
from typing import Self

from ramet.client._backends._sync import ready
from ramet.client._held import Inflow, Outflow
from ramet.client._streams import CHUNK, check_size, check_timeout, view_of
from ramet.errors import RametError, WaitTimeout

LINE_MAX = 8 << 20


def deadline_of(timeout: float | None) -> float | None:
    """The moment when `timeout` seconds are over; None for never. Raises InvalidRequest."""
    return None if timeout is None else time.monotonic() + check_timeout(timeout)


def remaining(deadline: float | None) -> float:
    """Seconds until then, not below 0; negative for ever."""
    return -1.0 if deadline is None else max(0.0, deadline - time.monotonic())


class Reader:
    """An output stream of the command. One reader at a time."""

    def __init__(self, flow: Inflow) -> None:
        self._flow = flow

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        """The next bytes, `size` at most, as soon as there are any; none at the end of the stream.

        Raises WaitTimeout when nothing comes in `timeout` seconds.
        """
        flow, deadline = self._flow, deadline_of(timeout)
        check_size(size)
        with flow.used():
            while not flow.buffer and not flow.ended:
                self._wait(deadline)
            return flow.take(size)

    def readline(self, timeout: float | None = None, size: int = LINE_MAX) -> bytes:
        """The next line with its end. It lacks that at the end of the stream, and after `size` bytes.

        Raises WaitTimeout when the line is not complete in `timeout` seconds; what came of it comes again.
        """
        flow, deadline = self._flow, deadline_of(timeout)
        check_size(size)
        with flow.used():
            while (length := flow.line_size(size)) is None:
                self._wait(deadline)
            return flow.take(length)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next line with its end."""
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def _wait(self, deadline: float | None) -> None:
        flow = self._flow
        if not flow.pull() and not ready(flow.descriptor, remaining(deadline)):
            raise WaitTimeout("wait_timeout", "the command wrote nothing more in this time")


class Writer:
    """The command's standard input."""

    def __init__(self, flow: Outflow, encoding: str) -> None:
        self._flow = flow
        self._encoding = encoding

    def write(self, data: bytes | str, timeout: float | None = None) -> None:
        """Write all of it; waits for as long as the command does not read.

        Raises WaitTimeout when not all of it was taken in `timeout` seconds; the rest is not written. Raises
        RametError, code ``stdin_closed``, when the command does not read any more.
        """
        deadline = deadline_of(timeout)
        left = view_of(data, self._encoding)
        while left:
            count = self._flow.push(left)
            if count is None:
                raise RametError("stdin_closed", "the command's standard input is closed")
            left = left[count:]
            if left and not count and not ready(self._flow.descriptor, remaining(deadline), write=True):
                raise WaitTimeout("wait_timeout", f"{len(left)} bytes were not read in this time")

    def close(self) -> None:
        """The command reads the end of its input from here on."""
        self._flow.close()
