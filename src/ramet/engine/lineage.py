"""Has the lineage of sandboxes and snapshots written down, soon after it happened, beside everything else."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, NamedTuple

from ramet.errors import RametError
from ramet.models.lineage import LineageNode, LineageTree
from ramet.store.lineage import Born, Ended, Lineage, Removed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ramet.engine.durable import Archive
    from ramet.engine.standing import Sandbox
    from ramet.store import SnapshotInfo
    from ramet.store.lineage import Change

DELAY_S = 0.2
"""What happens in this time is written together: each transaction wakes a thread and syncs a file."""
PENDING_MAX = 10_000


class Past(NamedTuple):
    """A sandbox that has ended."""

    id: str
    ended: float
    how: str


class Ancestry:
    """The database's writer, and who reads it."""

    def __init__(
        self,
        archive: Archive,
        place: str,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
        rebuilt: Callable[[str], object],
    ) -> None:
        """`rebuilt` is told why the database had to be made anew."""
        self._archive = archive
        self._base = Lineage(archive.path, place)
        self._spawn = spawn
        self._living: dict[str, Born] = {}
        self._rebuilt = rebuilt
        self._pending: list[Change] = []
        self._writing = asyncio.Lock()
        self._due: asyncio.TimerHandle | None = None
        self._trouble: str | None = None
        self._told: str | None = None

    def born(self, sandbox: Sandbox) -> None:
        """A sandbox lives, or another under its id."""
        origin = sandbox.origin
        of = (origin.parent, origin.snapshot, _line(origin.command))
        born = self._living[sandbox.id] = Born(sandbox.id, sandbox.name, *of, sandbox.created)
        self._note(born)

    def ended(self, sandbox: Sandbox) -> None:
        """It has ended."""
        self._living.pop(sandbox.id, None)
        self._note(Ended(sandbox.id, sandbox.ended, sandbox.how_it_ended()))

    def kept(self, info: SnapshotInfo) -> None:
        """A snapshot is on disk."""
        from ramet.store.lineage import kept_of

        self._note(kept_of(info))

    def removed(self, name: str) -> None:
        """A snapshot was taken away."""
        self._note(Removed(name, time.time()))

    async def tree(self, *, ended: bool = False) -> LineageTree:
        """All that lives or is kept, with its ancestors, or with `ended` all that is known.

        Raises SnapshotError.
        """
        await self.write(look=True)
        if self._trouble is not None:
            return LineageTree((), self._trouble)
        sandboxes, snapshots = await asyncio.to_thread(self._base.read, ended=ended)
        return LineageTree(_nodes(sandboxes, snapshots), self._told)

    async def past(self, key: str) -> Past | None:
        """What is known of a sandbox that has ended, under an earlier daemon or long ago."""
        await self.write(look=True)
        try:
            found = await asyncio.to_thread(self._base.find, key)
        except RametError:
            return None
        if found is None or found["ended"] is None:
            return None
        return Past(found["id"], found["ended"], found["how"])

    async def write(self, *, look: bool = False) -> None:
        """Write what is to be written; what fails is told by `tree`, and stops nobody.

        `look`: compare with what is so, even when there is nothing.
        """
        if self._due is not None:
            self._due.cancel()
            self._due = None
        async with self._writing:
            if not (self._pending or look):
                return
            changes, self._pending = self._pending, []
            living = list(self._living.values())
            try:
                why = await asyncio.to_thread(self._base.write, changes, living, self._archive.saved_now)
                self._trouble = None
            except RametError as error:
                self._trouble = error.message
                # Told with what comes next.
                self._pending[:0] = changes
                del self._pending[PENDING_MAX:]
                return
        if why is not None:
            self._told = f"the lineage was made anew: {why}; of what had ended before nothing is known"
            self._rebuilt(why)

    async def close(self) -> None:
        """The daemon ends: write what is left."""
        if self._pending or self._due is not None:
            await self.write()
        await asyncio.to_thread(self._base.close)

    def _note(self, change: Change) -> None:
        if len(self._pending) < PENDING_MAX:
            self._pending.append(change)
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(DELAY_S, lambda: self._spawn(self.write()))


@functools.lru_cache(maxsize=64)
def _line(command: tuple[str, ...]) -> str:
    # SQLite takes no lone surrogates, as which bytes that are not UTF-8 are carried.
    line = " ".join(command).replace("\n", " ").encode("utf-8", "replace").decode()
    return f"{line:.120}"


def _nodes(sandboxes: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> tuple[LineageNode, ...]:
    names = {row["number"]: f"{row['name']}@{row['created']:.6f}" for row in snapshots}
    ids = {row["id"] for row in sandboxes}
    nodes = []
    latest: dict[str, str] = {}  # of each name the last one before
    for row in snapshots:
        above = row["sandbox"] if row["sandbox"] in ids else latest.get(row["parent"] or "")
        latest[row["name"]] = names[row["number"]]
        nodes.append(
            LineageNode(
                names[row["number"]], "template" if row["template"] else "snapshot", above=above,
                name=row["template"] or row["name"], created=row["created"], ended=row["removed"],
            )
        )  # fmt: skip
    for row in sandboxes:
        above = names.get(row["snapshot"]) or row["parent"]
        nodes.append(
            LineageNode(
                row["id"], "sandbox", name=row["name"], above=above, created=row["created"],
                ended=row["ended"], how=row["how"], command=row["command"], own=bool(row["own"]),
            )
        )  # fmt: skip
    return tuple(sorted(nodes, key=lambda node: node.created))
