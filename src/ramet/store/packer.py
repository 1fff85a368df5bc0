"""From a directory to a stream."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Callable, Iterator

from ramet.store.access import NOTHING, Opened, names_in, open_entry, read_xattrs
from ramet.store.blocks import data_runs, digest
from ramet.store.ids import IdMap
from ramet.store.trees import (
    DEPTH_MAX,
    DIRECTORY,
    END,
    FILE,
    KINDS,
    LINK,
    MAGIC,
    SYMLINK,
    WHITEOUT,
    Entry,
    TreeError,
)

COPY = 1 << 20


class Packer:
    """Reads a tree in the order of its stream."""

    def __init__(self, ids: IdMap, write: Callable[[bytes | memoryview], object] | None) -> None:
        """`write` takes the stream; None: only the fingerprint is wanted."""
        self._ids = ids
        self._write = write
        self._links: dict[tuple[int, int], int] = {}
        self._path: list[bytes] = []
        self._fingerprint: list[bytes] = []
        self._digest = b""
        self.bytes = 0
        """Of file contents, so far."""

    def pack(self, top: int) -> str:
        """Write the tree below the directory `top`; its fingerprint: a hash of everything but contents.

        Raises TreeError.
        """
        with self._naming(b"."):
            entry, opened = self._entry(top, b".")
        if self._write is not None:
            self._write(MAGIC)
        self._put(dataclasses.replace(entry, name=b""))
        self._children(opened)
        return self._close()

    def _close(self) -> str:
        self._fold()
        return self._digest.hex()

    def _put(self, entry: Entry) -> None:
        self._fingerprint.append(entry.what())
        if len(self._fingerprint) > 1000:
            self._fold()
        if self._write is not None:
            self._write(entry.record())

    def _fold(self) -> None:
        self._digest = digest(self._digest + b"".join(self._fingerprint))
        self._fingerprint.clear()

    @contextlib.contextmanager
    def _naming(self, name: bytes) -> Iterator[None]:
        try:
            yield
        except TreeError:
            raise
        except OSError as error:
            path = os.fsdecode(b"/".join([*self._path, name]))
            raise TreeError(error.errno, error.strerror or str(error), path) from None
        except LookupError:
            path = os.fsdecode(b"/".join([*self._path, name]))
            raise TreeError(errno.EOVERFLOW, "belongs to an id that sandboxes do not have", path) from None

    def _children(self, top: Opened) -> None:
        """Walks without recursion: a guest chooses the depth."""
        stack = [(top, iter(names_in(top.fd)))]
        try:
            while stack:
                directory, names = stack[-1]
                name = next(names, None)
                if name is None:
                    self._put(Entry(END))
                    stack.pop()[0].close()
                    if self._path:
                        self._path.pop()
                    continue
                with self._naming(name):
                    entry, opened = self._entry(directory.fd, name)
                    if entry.kind == DIRECTORY:
                        stack.append((opened, iter(names_in(opened.fd))))
                        self._path.append(name)
                        if len(stack) > DEPTH_MAX:
                            raise OSError(errno.ELOOP, "is nested too deeply")
                        self._put(entry)
                    else:
                        self._put_file(entry, opened)
        finally:
            for directory, _ in stack:
                directory.close()

    def _put_file(self, entry: Entry, opened: Opened) -> None:
        try:
            self._put(entry)
            for offset, length in entry.extents:
                self._put_content(opened.fd, offset, length)
        finally:
            opened.close()

    def _put_content(self, fd: int, offset: int, length: int) -> None:
        self.bytes += length
        while length:
            data = os.pread(fd, min(length, COPY), offset)
            if not data:
                raise OSError(errno.EIO, "is shorter than it was")
            if self._write is not None:
                self._write(data)
            offset += len(data)
            length -= len(data)

    def _entry(self, directory: int, name: bytes) -> tuple[Entry, Opened]:
        """An entry, opened where it has content or children."""
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            if not stat.S_ISCHR(status.st_mode) or status.st_rdev:
                raise OSError(errno.ENODEV, "is a device")
            kind = WHITEOUT
        mode = stat.S_IMODE(status.st_mode)
        uid, gid = self._ids.inside(status.st_uid, status.st_gid)
        entry = Entry(kind, name, mode, uid, gid, status.st_mtime_ns, status.st_atime_ns)
        # The kernel makes all whiteouts links of one.
        if status.st_nlink > 1 and kind not in {WHITEOUT, DIRECTORY}:
            known = self._links.get((status.st_dev, status.st_ino))
            if known is not None:
                return Entry(LINK, name, link=known), NOTHING
            entry.link = self._links[status.st_dev, status.st_ino] = len(self._links) + 1
        if kind == SYMLINK:
            entry.target = os.fsencode(os.readlink(name, dir_fd=directory))
        elif kind == FILE:
            entry.size = status.st_size
        if kind == DIRECTORY or (kind == FILE and self._write is not None):
            return entry, self._opened(directory, entry)
        return entry, NOTHING

    def _opened(self, directory: int, entry: Entry) -> Opened:
        opened = open_entry(directory, entry.name, entry.mode, is_directory=entry.kind == DIRECTORY)
        try:
            if self._write is not None:
                entry.xattrs = read_xattrs(opened.fd, self._ids)
                if entry.kind == FILE:
                    entry.extents = tuple(data_runs(opened.fd, entry.size))
        except BaseException:
            opened.close()
            raise
        return opened
