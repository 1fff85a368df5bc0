"""Tar streams, without any waiting for sandboxes: headers that are written, members that are read.

A stream that ends without the mark of its end was cut off. `tarfile` alone takes it for a whole one.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal, NamedTuple, Self

from ramet.client._trees import CHUNK, pieces
from ramet.errors import InvalidRequest
from ramet.models.files import FileInfo

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
_KINDS = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def packable(info: FileInfo) -> bool:
    """Whether a file is one that tar streams are made of here: fifos, sockets and devices are not."""
    return info.kind in _KINDS


def header(name: str, info: FileInfo, size: int, mtime: float) -> bytes:
    """What stands before the content of a file."""
    member = tarfile.TarInfo(name)
    member.type = _KINDS[info.kind]
    member.mode, member.uid, member.gid = info.mode, info.uid, info.gid
    member.size, member.mtime = size, int(mtime)
    member.linkname = info.target or "" if info.kind == "link" else ""
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What stands behind a content of this size."""
    return bytes(-size % BLOCK)


class Member(NamedTuple):
    """One of a stream that is read. `target` is what a link says, or whose other name a hard link is."""

    name: str
    kind: Literal["file", "directory", "link", "hard link"]
    mode: int
    mtime: float
    target: str
    content: IO[bytes] | None


class _Info(tarfile.TarInfo):
    """A member's header, of which none may be missing."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error) or "cut off") from None


class _Pieces:
    """A file to be read, of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        left = self._left or memoryview(next(self._pieces, b""))
        self._left = left[size:]
        return bytes(left[:size])


class Members:
    """The members of a tar stream, compressed or not, one after the other. Each method may block.

    Raises InvalidRequest naming ``data``.
    """

    def __init__(self, data: bytes | IO[bytes] | Iterable[bytes]) -> None:
        given = pieces(data, "utf-8")
        self._source = _Pieces(iter((given,)) if isinstance(given, bytes) else given)
        self._archive: tarfile.TarFile | None = None

    def next(self) -> Member | None:
        """The next one; None behind the last."""
        found = self._reading(self._next)
        return None if found is None else self._checked(found)

    def read(self, content: IO[bytes], size: int) -> bytes:
        """The next bytes of a member's content."""
        data: bytes = self._reading(lambda: content.read(size))
        return data

    def _next(self) -> tarfile.TarInfo | None:
        if self._archive is None:
            source: Any = self._source
            self._archive = tarfile.open(  # noqa: SIM115  nothing is to be closed: it reads from `source`
                fileobj=source,
                mode="r|*",
                tarinfo=_Info,
                bufsize=CHUNK,
                encoding="utf-8",
                errors="surrogateescape",
            )
        found = self._archive.next()
        self._archive.members.clear()  # type: ignore[attr-defined]  # it keeps all of them
        return found

    def _reading(self, call: Any) -> Any:
        try:
            return call()
        except (tarfile.TarError, EOFError) as error:
            text = f"is no tar stream, or it is cut off: {error}"
            raise InvalidRequest.of("data", text, code="not_tar") from None

    def _checked(self, found: tarfile.TarInfo) -> Member:
        name, archive = _relative(found.name), self._archive
        assert archive is not None  # noqa: S101  one was read
        mode, mtime = found.mode & 0o7777, float(found.mtime)
        if found.isdir():
            return Member(name, "directory", mode, mtime, "", None)
        if not name:
            raise _refused(found.name, "has no name")
        if found.issym():
            return Member(name, "link", mode, mtime, found.linkname, None)
        if found.islnk():
            return Member(name, "hard link", mode, mtime, _relative(found.linkname), None)
        if found.isreg():
            return Member(name, "file", mode, mtime, "", archive.extractfile(found))
        raise _refused(found.name, "is neither a file, a link nor a directory")


def _relative(name: str) -> str:
    """`name` below the directory that the stream is unpacked in; "" is that itself."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise _refused(name, "leads out of the directory that it is unpacked in")
    if "\0" in name:
        raise _refused(name, "contains a NUL character")
    return "/".join(parts)


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest.of("data", f"its member {name!r:.80} {why}", code="not_unpackable")
