"""Owners: files belong to ids of the sandbox in an image, and to ids of the host in a directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Self

INSIDE, OUTSIDE = 0, 1
"""Columns of a map."""


@dataclasses.dataclass(frozen=True, slots=True)
class IdMap:
    """How core's user namespace numbers users and groups: rows of (inside, outside, count)."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]

    @classmethod
    def identity(cls) -> Self:
        """Every id is itself."""
        return cls(((0, 0, 1 << 32),), ((0, 0, 1 << 32),))

    @classmethod
    def of_process(cls, pid: int) -> Self:
        """That of a process, with the outside as this process numbers it. Raises OSError."""
        return cls(_rows(f"/proc/{pid}/uid_map"), _rows(f"/proc/{pid}/gid_map"))

    def inside(self, uid: int, gid: int) -> tuple[int, int]:
        """Owner and group as the sandbox numbers them. Raises LookupError for one that it does not have."""
        return seen(self.uids, uid, INSIDE), seen(self.gids, gid, INSIDE)

    def outside(self, uid: int, gid: int) -> tuple[int, int]:
        """Owner and group as the host numbers them. Raises LookupError for one that no host id stands for."""
        return seen(self.uids, uid, OUTSIDE), seen(self.gids, gid, OUTSIDE)


def _rows(path: str) -> tuple[tuple[int, int, int], ...]:
    rows = [line.split() for line in Path(path).read_text().splitlines()]
    return tuple([(int(inside), int(outside), int(count)) for inside, outside, count in rows])


def seen(rows: tuple[tuple[int, int, int], ...], number: int, side: int) -> int:
    """An id as it is numbered on `side`. Raises LookupError for one that it does not have."""
    for row in rows:
        if row[1 - side] <= number < row[1 - side] + row[2]:
            return row[side] + number - row[1 - side]
    raise LookupError(number)
