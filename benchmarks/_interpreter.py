"""An interpreter with the modules of a kernel, that forks itself by `os.fork` when it is asked to.

It is a process of its own, as the one in a sandbox is: a fork write-protects the memory of whoever forks, and
in the program that measures the faults that follow would be paid by whatever is measured next.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

_PROGRAM = """\
import ast, builtins, contextlib, fcntl, functools, json, linecache, os, re, signal, sys, threading, time
import traceback, types, weakref
{warm}

def forked():
    begin = time.perf_counter()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, repr(eval("6 * 7")).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 16)
    took = time.perf_counter() - begin
    os.close(reader)
    os.waitpid(pid, 0)
    if answer != b"42":
        raise RuntimeError(f"6 * 7 gave {{answer!r}}")
    return took

while os.read(0, 1):
    os.write(1, b"%.9f\\n" % forked())
"""


class Interpreter:
    """The process, while this is open."""

    def __init__(self, warm: str) -> None:
        """`warm` is run first, as a template's is."""
        words = [sys.executable, "-c", _PROGRAM.format(warm=warm)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def fork_until_answered(self) -> float:
        """Milliseconds from before `os.fork` until the child's answer is read, as it measures them itself."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._process.stdin.write(b"\n")
        told = self._process.stdout.readline()
        if not told:
            raise RuntimeError(f"the interpreter that forks itself has ended: {self._process.wait()}")
        return float(told) * 1e3

    def __enter__(self) -> Self:
        """Use: `with`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.communicate()
