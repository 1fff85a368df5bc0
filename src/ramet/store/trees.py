"""Trees of files as a stream of bytes, exactly: what an overlay's writable layer can hold, and no more.

A writable layer holds whiteouts (character devices 0:0), opaque marks and redirects (extended attributes),
hard links, holes, fifos, sockets, and times in nanoseconds. Each entry is a record, a directory is followed
by what is in it and an end. There are names and no paths, so nothing in a stream can lead out of its
directory. Names are sorted: one tree has one stream.

tar was rejected: its sparse and extended attribute records are dialects, Python's module rounds times, writes
no holes, and takes five times as long for small files.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import struct
from collections.abc import Iterator
from typing import Protocol

from ramet.store.blocks import Malformed

MAGIC = b"RAMETREE"
DEPTH_MAX = 512
"""As deep as core copies trees."""
NAME_MAX = 255
TARGET_MAX = 4095
XATTRS_MAX = 1024
XATTR_BYTES_MAX = 65536
EXTENTS_MAX = 1 << 20

FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, WHITEOUT, LINK, END = b"f", b"d", b"l", b"p", b"s", b"w", b"h", b"e"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFSOCK: SOCKET,
}
# kind, mode, uid, gid, modified, size, link, length of name, length of target
_WHAT = struct.Struct("<cxHIIqqIHH")
# accessed, extended attributes, extents
_MORE = struct.Struct("<qII")
_XATTR = struct.Struct("<HI")
_EXTENT = struct.Struct("<QQ")
ACLS = ("system.posix_acl_access", "system.posix_acl_default")

_ALL = frozenset((FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, WHITEOUT, LINK, END))


class TreeError(OSError):
    """A file of a tree cannot be read or made; `filename` is its path below the top."""


class Source(Protocol):
    """Where a stream comes from."""

    def read(self, length: int) -> bytes:
        """Exactly `length` bytes. Raises Malformed."""

    def pieces(self, length: int) -> Iterator[memoryview]:
        """`length` bytes in pieces. Raises Malformed."""

    def at_end(self) -> bool:
        """Whether nothing is left."""


@dataclasses.dataclass(slots=True)
class Entry:
    """One file. `link` is not 0 where more than one name leads to it: then all have the same number."""

    kind: bytes
    name: bytes = b""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    atime_ns: int = 0
    size: int = 0
    link: int = 0
    target: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    extents: tuple[tuple[int, int], ...] = ()

    def what(self) -> bytes:
        """What makes it this file and no other, but for its content."""
        fixed = _WHAT.pack(
            self.kind,
            self.mode,
            self.uid,
            self.gid,
            self.mtime_ns,
            self.size,
            self.link,
            len(self.name),
            len(self.target),
        )
        return fixed + self.name + self.target

    def record(self) -> bytes:
        """As it stands in a stream."""
        parts = [self.what(), _MORE.pack(self.atime_ns, len(self.xattrs), len(self.extents))]
        for name, value in self.xattrs:
            label = os.fsencode(name)
            parts += [_XATTR.pack(len(label), len(value)), label, value]
        parts += [_EXTENT.pack(*extent) for extent in self.extents]
        return b"".join(parts)


def is_carried(attribute: str) -> bool:
    """Whether an extended attribute is one that guests or overlays set. Labels of the host stay behind."""
    return attribute.startswith("user.") or attribute in ACLS


class Records:
    """The entries of a stream, each checked. A file's content is read, by `content`, before what follows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._links = 0
        self._before: list[bytes] = [b""]

    def top(self) -> Entry:
        """The first entry, which is the tree's top. Raises Malformed."""
        if self._source.read(len(MAGIC)) != MAGIC:
            raise Malformed("it does not begin as a tree does")
        entry = self._read()
        if entry.kind != DIRECTORY or entry.name:
            raise Malformed("a tree does not begin with its top")
        return entry

    def next(self) -> Entry:
        """The next entry; END ends the directory that was begun last. Raises Malformed."""
        entry = self._read()
        if entry.kind == END:
            self._before.pop()
            return entry
        if entry.name <= self._before[-1] or b"/" in entry.name or entry.name in {b".", b".."}:
            raise Malformed(f"{entry.name!r} is no name, or not in its place")
        self._before[-1] = entry.name
        if entry.kind == DIRECTORY:
            if len(self._before) >= DEPTH_MAX:
                raise Malformed("directories are nested too deeply")
            self._before.append(b"")
        return entry

    def content(self, entry: Entry) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) of what is no hole. Raises Malformed."""
        for offset, length in entry.extents:
            at = offset
            for piece in self._source.pieces(length):
                yield at, piece
                at += len(piece)

    def check(self) -> None:
        """Read to the end. Raises Malformed."""
        self.top()
        while self._before:
            for _ in self.content(self.next()):
                pass
        self.end()

    def end(self) -> None:
        """After the last END nothing may follow. Raises Malformed."""
        if not self._source.at_end():
            raise Malformed("there is something behind the end")

    def _read(self) -> Entry:
        read = self._source.read
        kind, mode, uid, gid, mtime, size, link, name, target = _WHAT.unpack(read(_WHAT.size))
        if kind not in _ALL or mode > 0o7777 or name > NAME_MAX or target > TARGET_MAX or size < 0:
            raise Malformed("an entry is of no known kind")
        entry = Entry(kind, read(name), mode, uid, gid, mtime, 0, size, link, read(target))
        entry.atime_ns, xattrs, extents = _MORE.unpack(read(_MORE.size))
        if xattrs > XATTRS_MAX or extents > EXTENTS_MAX or b"\0" in entry.name + entry.target:
            raise Malformed(f"{entry.name!r} has more than a file can have")
        entry.xattrs = tuple([self._read_xattr(entry) for _ in range(xattrs)])
        entry.extents = self._read_extents(extents, entry)
        self._check(entry)
        return entry

    def _read_xattr(self, entry: Entry) -> tuple[str, bytes]:
        label, length = _XATTR.unpack(self._source.read(_XATTR.size))
        if label > NAME_MAX or length > XATTR_BYTES_MAX:
            raise Malformed(f"{entry.name!r} has an attribute of no size")
        name, value = os.fsdecode(self._source.read(label)), self._source.read(length)
        if not is_carried(name) or "\0" in name:
            raise Malformed(f"{entry.name!r} has an attribute that no guest can set")
        return name, value

    def _read_extents(self, count: int, entry: Entry) -> tuple[tuple[int, int], ...]:
        extents = tuple(_EXTENT.iter_unpack(self._source.read(count * _EXTENT.size)))
        end = 0
        for offset, length in extents:
            if offset < end or not length or offset + length > entry.size:
                raise Malformed(f"the content of {entry.name!r} is in no order")
            end = offset + length
        return extents

    def _check(self, entry: Entry) -> None:
        kind = entry.kind
        if kind in {END, LINK} and entry != Entry(kind, entry.name, link=entry.link):
            raise Malformed(f"{entry.name!r} says of itself what another says of it")
        if kind == END and entry.name:
            raise Malformed("an end has a name")
        if (entry.size and kind != FILE) or (bool(entry.target) != (kind == SYMLINK)):
            raise Malformed(f"{entry.name!r} has what its kind does not have")
        if entry.xattrs and kind not in {FILE, DIRECTORY}:
            raise Malformed(f"{entry.name!r} has attributes that its kind does not have")
        if kind == LINK:
            if not 1 <= entry.link <= self._links:
                raise Malformed(f"{entry.name!r} is a link to nothing")
        elif entry.link:
            if kind in {DIRECTORY, WHITEOUT, END} or entry.link != self._links + 1:
                raise Malformed(f"{entry.name!r} has links that its kind does not have")
            self._links += 1
