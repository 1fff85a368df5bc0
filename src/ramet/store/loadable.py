"""A snapshot that was read from disk: what core is given."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from ramet.store.models import LoadedBase, SnapshotInfo


class Loadable:
    """Descriptors as core exported them: `description` and `pages` are files, `uppers` directories.

    The topmost upper is the first. They and the directories on disk are there until `close`, by when core
    must have read them.
    """

    def __init__(self, info: SnapshotInfo, base: LoadedBase) -> None:
        self.info = info
        self.base = base
        self.description = -1
        self.pages = -1
        self.uppers: list[int] = []
        self.cleanup = contextlib.ExitStack()
        """What else goes with it."""

    @property
    def descriptors(self) -> list[int]:
        """All of them, in the order of core's LOAD_SNAPSHOT."""
        return [self.description, self.pages, *self.uppers]

    def close(self) -> None:
        """Close the descriptors and remove the directories."""
        for fd in self.descriptors:
            if fd >= 0:
                os.close(fd)
        self.description = self.pages = -1
        self.uppers.clear()
        self.cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
