"""Who was forked from what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self


@dataclasses.dataclass(frozen=True, slots=True)
class LineageNode:
    """A sandbox or a snapshot, living or not.

    `key` is a sandbox's id, and of a snapshot its name and when it was taken: names can be used again.
    `above` is the key of what it comes from. `ended` is when it ended, or was removed; `how` says how a
    sandbox did. `own` is false for sandboxes of another daemon that shares the store.
    """

    key: str
    kind: Literal["sandbox", "snapshot", "template"]
    name: str | None
    above: str | None
    created: float
    ended: float | None = None
    how: str | None = None
    command: str = ""
    own: bool = True

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class LineageTree:
    """Nodes, the oldest first. `note` says what is wrong with what is known, if anything is."""

    nodes: tuple[LineageNode, ...]
    note: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([LineageNode(**node) for node in data["nodes"]]), data["note"])

    def of(self, keys: Iterable[str]) -> LineageTree:
        """The nodes of these keys, and all that they come from."""
        known = {node.key: node for node in self.nodes}
        kept: set[str] = set()
        for key in keys:
            above: str | None = key
            while above in known and above not in kept:
                kept.add(above)
                above = known[above].above
        return LineageTree(tuple([node for node in self.nodes if node.key in kept]), self.note)
