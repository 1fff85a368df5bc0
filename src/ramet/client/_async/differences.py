"""How the files and processes of two sandboxes differ, whatever forks they come from.

Two that stand on one root can differ only where somebody wrote above it: they themselves, or those that they
were forked from. So what is looked at are the names in all of those layers, and never the root itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.client._async.commits import AsyncConflicts
from ramet.client._files import Ask, Raw, unless_gone
from ramet.errors import FileError, InvalidRequest
from ramet.models.differences import Difference, differing
from ramet.models.files import RENEWED, Change, ChangeKind, FileInfo
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from ramet.client._async.files import AsyncFiles

# It is a file system of its own, so no layer has what is in it.
SHM = "/dev/shm"  # noqa: S108


class AsyncComparison:
    """What is otherwise in one sandbox than in another."""

    def __init__(self, ours: AsyncFiles, theirs: AsyncFiles) -> None:
        self._ours = ours
        self._theirs = theirs
        self._alike = AsyncConflicts(ours, theirs)
        self._changes: dict[str, Change] = {}
        self._told: set[str] = set()

    async def difference(self) -> Difference:
        """All of it. Raises InvalidRequest, FileError, SandboxEnded."""
        if await self._ours.base() != await self._theirs.base():
            raise InvalidRequest(
                "other_root",
                "the two sandboxes do not stand on the same root",
                field="other",
                hint="forks of one sandbox do, and sandboxes of one root since the daemon started",
            )
        processes = differing(await self._ours.processes(), await self._theirs.processes())
        # The parts of paths, so that a directory comes before what is in it.
        for parts in sorted([tuple(path.split("/")) for path in await self._names()]):
            await self._compare("/".join(parts))
        return Difference(tuple([self._changes[path] for path in sorted(self._changes)]), processes)

    async def _names(self) -> set[str]:
        names: set[str] = set()
        for files in (self._ours, self._theirs):
            names.update([one.path for one in await _listed(files, SHM)])
            for one in await self._written(files):
                names.add(one.info.path)
                if one.opaque:  # what it hides may stand in the root, and in no layer
                    for side in (self._ours, self._theirs):
                        names.update([below.path for below in await _listed(side, one.info.path)])
        names -= RENEWED
        return names

    @staticmethod
    async def _written(files: AsyncFiles) -> list[Raw]:
        """What is in its writable layer, and in those of its ancestors."""
        found = await files.infos(Ask(p.FILE_LIST, "/", tree=p.TREE_WRITTEN))
        layer = p.TREE_INHERITED
        while layer < p.TREE_INHERITED + p.LAYERS_MAX:
            try:
                found += await files.infos(Ask(p.FILE_LIST, "/", tree=layer))
            except FileError as error:
                if error.code == "not_found":  # it has no more
                    break
                raise
            layer += 1
        return found

    async def _compare(self, path: str) -> None:
        if self._is_told(path):
            return
        now = await self._alike.look(self._ours, path, p.TREE_SANDBOX)
        was = await self._alike.look(self._theirs, path, p.TREE_SANDBOX)
        if now is None and was is None:
            return
        if not await self._alike.same(was, now, p.TREE_SANDBOX):
            kind: ChangeKind = "added" if was is None else "deleted" if now is None else "modified"
            self._changes[path] = Change(path, kind, now, was)
        if _is_dir(now) != _is_dir(was):
            self._told.add(path)
            if _is_dir(now):
                for one in await _listed(self._ours, path):
                    self._changes[one.path] = Change(one.path, "added", one, None)

    def _is_told(self, path: str) -> bool:
        """Whether it is in a directory that only one of the two has."""
        parts = path.split("/")
        return any("/".join(parts[:length]) in self._told for length in range(2, len(parts)))


def _is_dir(info: FileInfo | None) -> bool:
    return info is not None and info.is_dir


async def _listed(files: AsyncFiles, path: str) -> list[FileInfo]:
    """What is below a path, at all levels; nothing where that is no directory."""
    found: list[Raw] = []
    with unless_gone():
        found = await files.infos(Ask(p.FILE_LIST, path, p.FILE_AS_NAMED))
    return [one.info for one in found]
