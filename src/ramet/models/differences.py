"""Processes of a sandbox, and how two sandboxes differ."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ramet.models.files import Change, ChangeKind

ZOMBIE = "Z"


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process in a sandbox, with the numbers that the sandbox sees.

    `parent` is 1, init, for the commands themselves, and 0 where the parent has just ended. `command` are its
    words, 4096 bytes at most, and none of a zombie; `state` is the letter that ps shows.
    """

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    uid: int
    threads: int
    state: str

    def is_as(self, other: Process) -> bool:
        """Whether it is what a process of another sandbox is, whatever both do at the moment."""
        return self._seen() == other._seen()

    def _seen(self) -> tuple[object, ...]:
        return self.pid, self.parent, self.name, self.command, self.uid, self.state == ZOMBIE

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessChange:
    """One process that is otherwise in a sandbox than in another: `now` is in the first, `was` in the other.

    ``modified``: the same number, with another parent, program, words or user, or ended in one of them.
    """

    pid: int
    change: ChangeKind
    now: Process | None = None
    was: Process | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """What is otherwise in a sandbox than in another: `now` is in the first, `was` in the other.

    Of a directory that only the first has everything in it is told; of one that only the other has the
    directory alone. /etc/machine-id, hostname and hosts, which no two sandboxes share, are left out.
    """

    files: tuple[Change, ...]
    processes: tuple[ProcessChange, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.files or self.processes)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "changes": [one.to_dict() for one in self.files],
            "processes": [one.to_dict() for one in self.processes],
        }


def differing(ours: Iterable[Process], theirs: Iterable[Process]) -> tuple[ProcessChange, ...]:
    """The processes of two sandboxes that are not in both alike, by number."""
    now = {one.pid: one for one in ours}
    was = {one.pid: one for one in theirs}
    found = []
    for pid in sorted(now.keys() | was.keys()):
        one, other = now.get(pid), was.get(pid)
        if other is None:
            found.append(ProcessChange(pid, "added", one, None))
        elif one is None:
            found.append(ProcessChange(pid, "deleted", None, other))
        elif not one.is_as(other):
            found.append(ProcessChange(pid, "modified", one, other))
    return tuple(found)
