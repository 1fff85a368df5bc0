"""The daemon's log: JSON lines in a file of bounded size, which core writes to as well."""

from __future__ import annotations

import contextlib
import os
from typing import Any

LOG_MAX = 4 << 20
KEPT = 64 << 10


class Log:
    """Appends events to an open file. structlog is loaded at the first event, not at the daemon's start."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is opened with O_APPEND, and stays the caller's."""
        self._descriptor = descriptor
        self._logger: Any = None

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event."""
        if self._logger is None:
            self._logger = self._make()
        self._logger.info(event, **fields)

    def _make(self) -> Any:
        import structlog

        return structlog.wrap_logger(
            self,
            processors=[
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.BoundLogger,
        ).bind(pid=os.getpid(), source="daemon")

    def info(self, line: str) -> None:
        """What structlog calls with the finished line."""
        # A full disk must not end sandboxes.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line.encode("utf-8", "replace") + b"\n")

    def bound(self) -> None:
        """Cut the file to its last lines when it has become too long.

        In place, because core appends to the same open file.
        """
        size = os.fstat(self._descriptor).st_size
        if size <= LOG_MAX:
            return
        tail = os.pread(self._descriptor, KEPT, size - KEPT)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, tail[tail.find(b"\n") + 1 :])
