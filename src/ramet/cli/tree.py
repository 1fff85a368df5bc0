"""Draws who was forked from what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.models.lineage import LineageNode


def draw(nodes: Sequence[LineageNode]) -> Iterator[str]:
    """Trees, each line one node."""
    kept = {node.key for node in nodes}
    below: dict[str | None, list[LineageNode]] = {}
    for node in nodes:
        below.setdefault(node.above if node.above in kept else None, []).append(node)

    def subtree(node: LineageNode, first: str, rest: str) -> Iterator[str]:
        origin = node.above if node.above is not None and node.above not in kept else None
        yield first + _line(node, origin)
        children = below.get(node.key, [])
        for child in children[:-1]:
            yield from subtree(child, f"{rest}├─ ", f"{rest}│  ")
        for child in children[-1:]:
            yield from subtree(child, f"{rest}└─ ", f"{rest}   ")

    for node in below.get(None, []):
        yield from subtree(node, "", "")


def _line(node: LineageNode, origin: str | None) -> str:
    if node.kind == "sandbox":
        parts = [node.name or node.key, *([node.key] if node.name else [])]
        parts.append("running" if node.ended is None else node.how or "ended")
    else:
        parts = [f"{node.kind} {node.name}", *(["removed"] if node.ended is not None else [])]
    return "  ".join([*parts, *([f"from {origin}"] if origin else [])])
