"""Trees of files that come out of sandboxes: written below one directory of the host, and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal, NamedTuple, Self

from ramet.errors import InvalidRequest, RametError

CHUNK = 1 << 20


def pieces(data: str | bytes | IO[Any] | Iterable[bytes], encoding: str) -> bytes | Iterator[bytes]:
    """`data` as bytes, or as pieces of them, none empty. Raises InvalidRequest naming ``data``."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _encoded(data, encoding)
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    read = getattr(data, "read", None)
    if read is not None:
        return _checked(iter(lambda: data.read(CHUNK) or None, None), encoding)  # type: ignore[union-attr]
    if isinstance(data, Iterable):
        return _checked(iter(data), encoding)
    raise InvalidRequest.of(
        "data", f"must be text, bytes, a file or pieces of bytes, not {type(data).__name__}"
    )


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except LookupError:
        raise InvalidRequest.of("encoding", f"{encoding!r:.40} is no encoding") from None
    except UnicodeEncodeError as error:
        raise InvalidRequest.of("data", f"cannot be encoded as {encoding}: {error.reason}") from None


def _checked(given: Iterator[Any], encoding: str) -> Iterator[bytes]:
    for piece in given:
        if isinstance(piece, str):
            yield _encoded(piece, encoding)
        elif not isinstance(piece, (bytes, bytearray, memoryview)):
            raise InvalidRequest.of("data", f"is not all bytes: a piece is {type(piece).__name__}")
        elif len(piece):
            yield bytes(piece)


class Local(NamedTuple):
    """A file of the host: its name below what was asked for, and where a link leads."""

    path: str
    name: str
    kind: Literal["file", "directory", "link"]
    mode: int = 0o644
    target: str | None = None


def local_tree(source: str) -> Iterator[Local]:
    """A file, or a directory and what is in it, directories first. Raises InvalidRequest naming ``local``.

    What others may do in the directory itself is the same wherever it goes: often it is a temporary one.
    """
    try:
        status = os.lstat(source)
        if not os.path.isdir(source):
            yield _local(source, "", status)
            return
        yield Local(source, "", "directory", 0o755)
        for directory, names, files in os.walk(source, onerror=_raise):
            inside = os.path.relpath(directory, source)
            for name in sorted([*names, *files]):
                path = os.path.join(directory, name)
                yield _local(path, name if inside == "." else f"{inside}/{name}", os.lstat(path))
    except OSError as error:
        raise InvalidRequest.of("local", f"{error.filename}: {error.strerror}", code="not_found") from None


def _raise(error: OSError) -> None:
    raise error


def _local(path: str, name: str, status: os.stat_result) -> Local:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        return Local(path, name, "directory", mode & 0o777)
    if stat.S_ISLNK(mode):
        return Local(path, name, "link", target=os.readlink(path))
    if stat.S_ISREG(mode):
        return Local(path, name, "file", mode & 0o777)
    raise InvalidRequest.of("local", f"{path} is neither a file, a link nor a directory")


def check_directory(path: str | os.PathLike[str]) -> None:
    """Raises InvalidRequest naming ``workspace`` unless it is a directory."""
    if not path or not os.path.isdir(path):
        raise InvalidRequest.of("workspace", f"{path} is no directory", code="not_found")


@contextlib.contextmanager
def writing_local(path: str) -> Iterator[None]:
    """What the host refuses is told as InvalidRequest naming ``local``."""
    try:
        yield
    except RametError:  # some are OSErrors as well
        raise
    except OSError as error:
        number = error.errno or 0
        text = f"{path}: {error.strerror or error}"
        raise InvalidRequest.of("local", text, code="no_space" if number == errno.ENOSPC else None) from None


def open_local(path: str) -> IO[bytes]:
    """A file of the host, to be read."""
    return open(path, "rb", buffering=0)


def new_local(path: str, mode: int) -> IO[bytes]:
    """A new file of the host. Raises InvalidRequest naming ``local``."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return open(os.open(path, flags, mode & 0o777), "wb", buffering=0)
    except OSError as error:
        raise InvalidRequest.of("local", f"{path}: {error.strerror}") from None


class Landing:
    """A new directory of the host, into which files are put by names that a guest has chosen.

    Every directory on the way is opened without following a link, so a name leads nowhere else, also when
    what was listed as a directory has become a link meanwhile.
    """

    def __init__(self, path: str) -> None:
        """Raises InvalidRequest naming ``local``."""
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            raise InvalidRequest.of("local", f"{path}: {error.strerror}") from None
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._modes: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for name, mode in reversed(self._modes):
                directory = self._open(name.split("/"))
                try:
                    os.fchmod(directory, mode & 0o777)
                finally:
                    os.close(directory)
        finally:
            os.close(self._root)

    def _open(self, parts: list[str]) -> int:
        at = os.dup(self._root)
        for part in parts:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                below = os.open(part, flags, dir_fd=at)
            finally:
                os.close(at)
            at = below
        return at

    def _parent(self, name: str) -> tuple[int, str]:
        *above, last = name.split("/")
        if not last or any(part in {"", ".", ".."} for part in (*above, last)):
            raise InvalidRequest.of("path", f"{name!r:.80} is no name below a directory")
        return self._open(above), last

    def make_dir(self, name: str, mode: int) -> None:
        """A directory, which gets its mode at the end."""
        parent, last = self._parent(name)
        try:
            os.mkdir(last, 0o700, dir_fd=parent)
        finally:
            os.close(parent)
        self._modes.append((name, mode))

    def make_link(self, name: str, target: str) -> None:
        """A symbolic link, which is followed by nothing here."""
        parent, last = self._parent(name)
        try:
            os.symlink(target, last, dir_fd=parent)
        finally:
            os.close(parent)

    def make_file(self, name: str, mode: int) -> IO[bytes]:
        """A new file to write to."""
        parent, last = self._parent(name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return open(os.open(last, flags, mode & 0o777, dir_fd=parent), "wb", buffering=0)
        finally:
            os.close(parent)
