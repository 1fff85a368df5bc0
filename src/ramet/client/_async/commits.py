"""What two sandboxes have done to the same files since the state that one of them was forked from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.client._files import Ask, Raw, unless_gone
from ramet.errors import FileError, InvalidRequest
from ramet.models.files import Change, FileInfo, OnConflict
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from ramet.client._async.files import AsyncFiles

CHOICES = ("refuse", "overwrite", "keep")


def check_on_conflict(value: OnConflict) -> None:
    """Raises InvalidRequest."""
    if value not in CHOICES:
        raise InvalidRequest.of("on_conflict", f"{value!r:.40} is none of {', '.join(CHOICES)}")


class AsyncConflicts:
    """The changes of `source` against the files of `target`, by the state that the first began as."""

    def __init__(self, source: AsyncFiles, target: AsyncFiles) -> None:
        self._source = source
        self._target = target

    async def of(self, change: Change) -> tuple[str, ...]:
        """The paths at which `target` is neither as `source` began nor as it is now."""
        there = await self.look(self._target, change.path, p.TREE_SANDBOX)
        if await self.same(there, change.was, p.TREE_ORIGIN):
            if change.was is None:
                return (change.path,) if await self._has_no_place(change.path) else ()
            turned = change.now is None or not change.now.is_dir
            return await self._below(change.path) if change.was.is_dir and turned else ()
        return () if await self.same(there, change.now, p.TREE_SANDBOX) else (change.path,)

    async def _has_no_place(self, path: str) -> bool:
        """Whether `target` has something else where it is new below, or took a directory above it away."""
        above = path.rpartition("/")[0]
        while above:
            now = await self.look(self._target, above, p.TREE_SANDBOX)
            if now is not None:
                return not now.is_dir
            before = await self.look(self._source, above, p.TREE_ORIGIN)
            if before is not None and before.is_dir:
                return True
            above = above.rpartition("/")[0]
        return False

    async def _below(self, path: str) -> tuple[str, ...]:
        """What of a directory that goes is otherwise in `target` than it was."""
        before = await self._tree(self._source, path, p.TREE_ORIGIN)
        now = await self._tree(self._target, path, p.TREE_SANDBOX)
        return tuple(
            [
                one
                for one in sorted(before.keys() | now.keys())
                if not await self.same(now.get(one), before.get(one), p.TREE_ORIGIN)
            ]
        )

    async def _tree(self, files: AsyncFiles, path: str, tree: int) -> dict[str, FileInfo]:
        found: list[Raw] = []
        with unless_gone():
            found = await files.infos(Ask(p.FILE_LIST, path, tree=tree))
        return {one.info.path: one.info for one in found}

    @staticmethod
    async def look(files: AsyncFiles, path: str, tree: int) -> FileInfo | None:
        """What is at a path, a link itself; None: nothing."""
        found: list[Raw] = []
        with unless_gone():
            found = await files.infos(Ask(p.FILE_STAT, path, p.FILE_AS_NAMED, tree=tree))
        return found[0].info if found else None

    async def same(self, there: FileInfo | None, ours: FileInfo | None, tree: int) -> bool:
        """Whether a file of `target` is one of `source`, as that stands in its `tree`."""
        if there is None or ours is None:
            return there is ours
        if _seen(there) != _seen(ours):
            return False
        return there.kind != "file" or await self._same_content(ours.path, tree)

    async def _same_content(self, path: str, tree: int) -> bool:
        try:
            return await self._source.has_content_of(path, tree, self._target)
        except FileError as error:
            if error.code == "not_found":  # it went meanwhile
                return False
            raise


def _seen(info: FileInfo) -> Sequence[object]:
    return info.kind, info.mode, info.uid, info.gid, info.target, info.size if info.kind == "file" else 0
