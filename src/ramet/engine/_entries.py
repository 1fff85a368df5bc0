"""What a root is made of, and a tree of it whose paths are safe to make one after the other."""

import contextlib
import errno
import os
from collections import deque
from dataclasses import dataclass, field, replace

__all__ = ["MAX_LINKS", "Copy", "Dir", "File", "Item", "Symlink", "Tree"]

MAX_LINKS = 40  # as the kernel's MAXSYMLINKS


@dataclass(frozen=True, slots=True)
class Dir:
    path: str
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Symlink:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class File:
    path: str
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """A regular file that is read from the host's `source` when the tree is written."""

    path: str
    mode: int
    source: str


Item = Dir | Symlink | File | Copy


@dataclass(slots=True)
class Tree:
    """Items by path. Paths are absolute and normal, and no item lies below a file or a symlink.

    So whoever makes the items in the order of `sorted` makes parents first and never follows a symlink.
    Nothing is put below a path in `sealed`, where something else will be mounted.
    """

    items: dict[str, Item] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)

    def sorted(self) -> list[Item]:
        return [self.items[path] for path in sorted(self.items)]

    def put(self, item: Item) -> None:
        """Add `item` and the missing directories above it, or replace one of its kind.

        Raises:
            OSError: the path is taken by a directory where a file is to go, or the other way round.
        """
        if item.path == "/":
            self.items["/"] = item
            return
        parent = os.path.dirname(item.path)
        if parent in self.sealed:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), item.path)
        above = self.items.get(parent)
        if above is None:
            self.put(Dir(parent))
        elif not isinstance(above, Dir):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent)
        present = self.items.get(item.path)
        if isinstance(present, Dir) and not isinstance(item, Dir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), item.path)
        if present is not None and isinstance(item, Dir) and not isinstance(present, Dir):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), item.path)
        self.items[item.path] = item

    def ensure_directory(self, path: str) -> None:
        """Have a directory at `path`, of whatever mode.

        Raises:
            OSError: something else is there.
        """
        if not isinstance(self.items.get(path), Dir):
            self.put(Dir(path))

    def offer(self, item: Item) -> bool:
        """Add `item` where its directory leads, unless something is in the way; say whether it was added."""
        with contextlib.suppress(OSError):
            where = os.path.join(self.locate(os.path.dirname(item.path)), os.path.basename(item.path))
            if where not in self.items:
                self.put(replace(item, path=where))
                return True
        return False

    def locate(self, path: str) -> str:
        """`path` with the tree's own symlinks followed in every component.

        Raises:
            OSError: ELOOP.
        """
        todo = deque(path.split("/"))
        at, links = "/", 0
        while todo:
            name = todo.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                at = os.path.dirname(at)
                continue
            here = os.path.join(at, name)
            item = self.items.get(here)
            if not isinstance(item, Symlink):
                at = here
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            todo.extendleft(reversed(item.target.split("/")))
            at = "/" if item.target.startswith("/") else at
        return at
