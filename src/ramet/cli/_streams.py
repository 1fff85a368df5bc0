"""This process's own standard streams, byte for byte."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
from collections.abc import Callable

from ramet.cli import _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Output",
    "OutputClosed",
    "OutputFailed",
    "die_of",
    "has_input",
    "open_missing",
    "output_told",
    "passing_on",
    "standard_output",
    "writer",
]


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


def passing_on(work: Callable[[], int]) -> int:
    """The exit code of `work`, which writes to this process's output; or of an output that fails."""
    try:
        return work()
    except OutputClosed:
        # Whatever is behind it ends, or goes on, as it should; the shell sees what it sees of any program.
        return die_of(signal.SIGPIPE)
    except OutputFailed as error:
        _errors.say(str(error))
        return _errors.FAILED


class Output(io.RawIOBase):
    """Standard output, which remembers why it could not be written."""

    failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def isatty(self) -> bool:
        return os.isatty(1)

    def write(self, data: Buffer, /) -> int:
        try:
            return os.write(1, data)
        except BlockingIOError:
            select.select([], [1], [])
            return self.write(data)
        except OSError as error:
            self.failure = error
            raise


def standard_output() -> Output:
    """Have `sys.stdout` write to what is given back, in any case through a buffer."""
    output = Output()
    # There is none where descriptor 1 was closed at the start.
    before = sys.stdout or io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=output.isatty(),
    )
    return output


def output_told(output: Output, code: int) -> int:
    """The exit code of a command of which all that it printed has to be written: its own, if that can be.

    Left alone, Python tries when it ends, and exits with 120.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if output.failure is None:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    if isinstance(output.failure, BrokenPipeError):
        return die_of(signal.SIGPIPE)
    _errors.say(f"standard output: {output.failure.strerror}")
    return _errors.FAILED
