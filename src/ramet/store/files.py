"""Files of the host that a snapshot's processes have mapped, and how to tell that they are still the same.

Only their unchanged pages are taken from the host; the changed ones are in the image. So a program or library
that was upgraded in place would give the process half of each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from typing import Any, BinaryIO, Self

from ramet.errors import SnapshotUnusable
from ramet.store.blocks import HASH_BYTES, Malformed

FILES_MAX = 65000
"""As many as there are mappings in a process, at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class MappedFile:
    """`path` is where the sandbox has it, `source` where the host has it.

    `stamp` is (device, inode, size, modification and change time in ns): while it is the same, so is the
    file, for no program can set a change time. `hash` is asked only when the stamp differs: a file that was
    copied or installed again may have the same content. It is empty where the file cannot be read.
    """

    path: str
    source: str
    stamp: tuple[int, int, int, int, int]
    hash: str

    def to_json(self) -> list[Any]:
        """As JSON."""
        return [self.path, self.source, list(self.stamp), self.hash]

    @classmethod
    def from_json(cls, data: object) -> Self:
        """From JSON. Raises Malformed."""
        match data:
            case [str(path), str(source), [int(), int(), int(), int(), int()] as stamp, str(digest)]:
                return cls(path, source, (stamp[0], stamp[1], stamp[2], stamp[3], stamp[4]), digest)
            case _:
                raise Malformed("a mapped file is not described")


class Identifier:
    """Identifies files, and remembers the hashes of those that have not changed since."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int, int], str] = {}

    def identify(self, files: Iterable[tuple[str, str]]) -> tuple[MappedFile, ...]:
        """The identities of (path inside, path on the host). One that is not there is left out."""
        found = []
        for path, source in files:
            try:
                stamp = stamp_of(source)
            except OSError:
                continue
            found.append(MappedFile(path, source, stamp, self._hash(source, stamp)))
        return tuple(found)

    def refuse_changed(self, files: Iterable[MappedFile], name: str) -> None:
        """Raise SnapshotUnusable for the first file that is not what it was."""
        for file in files:
            if fault := self._difference(file):
                raise SnapshotUnusable(
                    "root_changed",
                    f"the snapshot {name!r} has mapped {file.path}, and {file.source} {fault} since",
                    snapshot=name,
                    hint="make it anew from the host's present files",
                )

    def _difference(self, file: MappedFile) -> str | None:
        try:
            stamp = stamp_of(file.source)
        except OSError as error:
            return f"cannot be found ({error.strerror})"
        if stamp == file.stamp:
            return None
        if stamp[2] != file.stamp[2]:
            return f"has changed from {file.stamp[2]} to {stamp[2]} bytes"
        if not file.hash:
            return None if stamp[3] == file.stamp[3] else "has changed"
        return None if self._hash(file.source, stamp) == file.hash else "has changed"

    def _hash(self, source: str, stamp: tuple[int, int, int, int, int]) -> str:
        known = self._known.get(stamp)
        if known is None:
            try:
                with open(source, "rb") as file:
                    known = _digest_of(file)
            except OSError:
                return ""
            self._known[stamp] = known
        return known


def _digest_of(file: BinaryIO) -> str:
    total = hashlib.blake2b(digest_size=HASH_BYTES)
    while data := file.read(1 << 20):
        total.update(data)
    return total.hexdigest()


def stamp_of(path: str) -> tuple[int, int, int, int, int]:
    """What tells a file from others, and from what it was before a change. Raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
