"""The plan of a built root, and the writing of it.

The tree is written beside its destination and renamed into place: it is there whole, or not at all.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ramet.engine._entries import MAX_LINKS, Copy, Dir, File, Item, Symlink, Tree
from ramet.errors import InvalidRequest

__all__ = ["Plan", "check_destination", "write"]

# Only a directory that carries this file is ever replaced, so that a wrong argument cannot cost a home.
_MARKER = ".ramet-root"
_MARKER_TEXT = b"Built by `ramet root build`. With this file here, --replace may replace the directory.\n"


@dataclass(slots=True)
class Plan(Tree):
    """A tree filled from paths of the host."""

    def names(self) -> tuple[str, ...]:
        """All files and symlinks, sorted."""
        return tuple(item.path for item in self.sorted() if not isinstance(item, Dir))

    def add_path(self, path: str) -> list[str]:
        """Add what is at `path` on the host, with every symlink on the way as it is there.

        Returns:
            The spellings of the last component, from `path` itself to the real path.

        Raises:
            OSError: something on the way is missing, unreadable, no file or directory, or loops.
        """
        todo = deque(path.split("/"))
        spellings = [os.path.normpath(path)]
        at, links = "/", 0
        while todo:
            name = todo.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                at = os.path.dirname(at)
                continue
            here = os.path.join(at, name)
            status = os.lstat(here)
            last = all(part in ("", ".") for part in todo)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(here)
                self.put(Symlink(here, target))
                if last and here not in spellings:
                    spellings.append(here)
                todo.extendleft(reversed(target.split("/")))
                at = "/" if target.startswith("/") else at
                continue
            if stat.S_ISDIR(status.st_mode):
                self.ensure_directory(here)
            elif not last:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
            elif here not in self.items:
                self.put(_copy_of(here, here, status))
            at = here
        if at not in spellings:
            spellings.append(at)
        return spellings

    def add_copy(self, source: str, destination: str) -> None:
        """Put a file or directory of the host somewhere else; a file planned there before gives way.

        Raises:
            OSError: `source` cannot be read, is a device, socket or fifo, or `destination` lies below a file.
        """
        status = os.stat(source)
        where = self.locate(destination)
        if not stat.S_ISDIR(status.st_mode):
            self.put(_copy_of(where, source, status))
            return
        self.ensure_directory(where)
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                inside = os.path.join(where, entry.name)
                if entry.is_symlink():
                    self.put(Symlink(inside, os.readlink(entry.path)))
                else:
                    self.add_copy(entry.path, inside)


def _copy_of(path: str, source: str, status: os.stat_result) -> Copy:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "is neither a file nor a directory", source)
    return Copy(path, status.st_mode & 0o777, source)


def check_destination(destination: str | os.PathLike[str], *, replace: bool) -> Path:
    """The absolute path of a destination that `write` may fill.

    Raises:
        InvalidRequest: `field` is "directory".
    """
    text = os.fspath(destination)
    if not text or "\0" in text:
        raise InvalidRequest.of("directory", "contains a NUL character" if text else "is empty")
    path = Path(os.path.abspath(text))
    if not path.parent.is_dir():
        raise InvalidRequest.of(
            "directory", f"{path.parent} is not a directory", hint=f"mkdir -p {path.parent}"
        )
    if not os.path.lexists(path):
        return path
    if path.is_symlink() or not path.is_dir():
        raise InvalidRequest.of("directory", f"{path} exists and is not a directory")
    if any(path.iterdir()):
        if not (path / _MARKER).is_file():
            raise InvalidRequest.of("directory", f"{path} is not empty, and is no root built before")
        if not replace:
            raise InvalidRequest.of("directory", f"{path} holds a root already", hint="--replace replaces it")
    return path


def write(plan: Plan, target: Path, *, replace: bool) -> int:
    """Write `plan` to `target`; return the bytes of file contents.

    Raises:
        InvalidRequest: a file cannot be read, or `target` cannot be written; nothing was left behind.
    """
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InvalidRequest.of("directory", f"{target.parent} cannot be written: {error.strerror}") from None
    with _removed_on_failure(scratch):
        try:
            total = sum(_write_item(scratch, item) for item in plan.sorted())
            (scratch / _MARKER).write_bytes(_MARKER_TEXT)
            # Only now: a directory without its write bit takes no children.
            for item in plan.items.values():
                if isinstance(item, Dir):
                    os.chmod(f"{scratch}{item.path}", item.mode)
            scratch.chmod(0o755)
            _move_into_place(scratch, target, replace=replace)
        except OSError as error:
            # An error that names another file is about reading it; the rest is about the destination.
            name = os.fspath(error.filename or target)
            option = "directory" if name.startswith(os.fspath(target.parent) + "/") else "bin"
            raise InvalidRequest.of(option, f"{name}: {error.strerror}") from None
    return total


@contextlib.contextmanager
def _removed_on_failure(scratch: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _move_into_place(scratch: Path, target: Path, *, replace: bool) -> None:
    if not replace or not target.exists():
        os.rename(scratch, target)  # rename itself replaces an empty directory, and refuses a filled one
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    os.rename(target, old)
    try:
        os.rename(scratch, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old)


def _write_item(top: Path, item: Item) -> int:
    path = f"{top}{item.path}"
    match item:
        case Dir():
            if item.path != "/":
                os.mkdir(path, 0o755)
            return 0
        case Symlink():
            os.symlink(item.target, path)
            return 0
        case File():
            with open(path, "xb") as file:
                os.fchmod(file.fileno(), item.mode)
                return file.write(item.content)
        case Copy():
            return _copy(item, path)


def _copy(item: Copy, path: str) -> int:
    with open(item.source, "rb", buffering=0) as source, open(path, "xb", buffering=0) as copy:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "changed while it was copied", item.source)
        size = _copy_bytes(source.fileno(), copy.fileno())
        os.fchmod(copy.fileno(), item.mode)
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        return size


def _copy_bytes(source: int, copy: int) -> int:
    total = 0
    try:
        # Shares the blocks where the file system can.
        while count := os.copy_file_range(source, copy, 1 << 30):
            total += count
    except OSError as error:
        if total or error.errno not in (
            errno.EXDEV,
            errno.EINVAL,
            errno.ENOSYS,
            errno.EOPNOTSUPP,
            errno.EPERM,
        ):
            raise
        while data := os.read(source, 1 << 20):
            view = memoryview(data)
            while view:
                view = view[os.write(copy, view) :]
            total += len(data)
    return total
