"""This process's own standard streams, byte for byte."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

__all__ = ["OutputClosed", "OutputFailed", "die_of", "has_input", "open_missing", "writer"]


class OutputClosed(Exception):
    """Nobody reads this process's output any more."""


class OutputFailed(Exception):
    """The output cannot be written: the disk is full, for instance."""


def open_missing() -> None:
    """Put /dev/null where a standard stream is closed, lest a socket of ours get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that is missing.
            os.open("/dev/null", os.O_RDWR)


def has_input() -> bool:
    """Whether standard input is there to be read without anyone typing."""
    return not os.isatty(0)


def writer(number: int) -> Callable[[bytes], None]:
    """A callback that writes all of each piece to descriptor `number`.

    Raises OutputClosed, OutputFailed.
    """

    def write(chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            try:
                left = left[os.write(number, left) :]
            except BlockingIOError:
                # Non-blocking mode belongs to the open file, so a neighbour in a pipeline can have set it.
                select.select([], [number], [])
            except BrokenPipeError:
                raise OutputClosed from None
            except OSError as error:
                name = "standard output" if number == 1 else "standard error"
                raise OutputFailed(f"{name}: {error.strerror}") from None

    return write


def die_of(number: signal.Signals) -> int:
    """End as a program does that the signal ended; the exit code in case that it does not."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
