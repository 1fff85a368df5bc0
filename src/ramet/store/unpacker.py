"""From a stream to a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import NoReturn

from ramet.store.access import write_xattrs
from ramet.store.blocks import pwrite_all
from ramet.store.ids import IdMap
from ramet.store.trees import (
    DIRECTORY,
    END,
    FIFO,
    FILE,
    LINK,
    SOCKET,
    SYMLINK,
    Entry,
    Records,
    Source,
    TreeError,
)


class Unpacker:
    """Makes a tree from its stream."""

    def __init__(self, source: Source, ids: IdMap) -> None:
        self._records = Records(source)
        self._ids = ids
        self._scratch = -1
        self._path: list[bytes] = []

    def unpack(self, directory: int, scratch: int) -> None:
        """Fill the empty directory `directory`. `scratch`, of the same file system, holds links meanwhile.

        Raises Malformed, TreeError.
        """
        self._scratch = scratch
        stack = [(os.dup(directory), self._records.top())]
        try:
            while stack:
                fd, above = stack[-1]
                entry = self._records.next()
                with self._naming(entry.name):
                    if entry.kind == DIRECTORY:
                        os.mkdir(entry.name, 0o700, dir_fd=fd)
                        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                        stack.append((os.open(entry.name, flags, dir_fd=fd), entry))
                        self._path.append(entry.name)
                    elif entry.kind == END:
                        self._finish(fd, above)
                        os.close(stack.pop()[0])
                        if self._path:
                            self._path.pop()
                    else:
                        self._make(fd, entry)
        finally:
            for fd, _ in stack:
                os.close(fd)
        self._records.end()

    @contextlib.contextmanager
    def _naming(self, name: bytes) -> Iterator[None]:
        try:
            yield
        except LookupError:
            self._refuse(name, errno.EOVERFLOW, "belongs to an id that no id of this host stands for")
        except OverflowError:
            self._refuse(name, errno.EOVERFLOW, "has times that this host does not have")
        except OSError as error:
            self._refuse(name, error.errno or errno.EIO, error.strerror or str(error))

    def _refuse(self, name: bytes, number: int, text: str) -> NoReturn:
        raise TreeError(number, text, os.fsdecode(b"/".join([*self._path, name]))) from None

    def _make(self, directory: int, entry: Entry) -> None:
        name = entry.name
        if entry.kind == LINK:
            os.link(
                str(entry.link), name, src_dir_fd=self._scratch, dst_dir_fd=directory, follow_symlinks=False
            )
            return
        if entry.kind == FILE:
            self._make_file(directory, entry)
        else:
            if entry.kind == SYMLINK:
                os.symlink(entry.target, name, dir_fd=directory)
            elif entry.kind == FIFO:
                os.mkfifo(name, 0o600, dir_fd=directory)
            else:
                node = stat.S_IFSOCK if entry.kind == SOCKET else stat.S_IFCHR
                os.mknod(name, node | 0o600, 0, dir_fd=directory)
            self._finish_name(directory, entry)
        if entry.link:
            os.link(
                name, str(entry.link), src_dir_fd=directory, dst_dir_fd=self._scratch, follow_symlinks=False
            )

    def _make_file(self, directory: int, entry: Entry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(entry.name, flags, 0o600, dir_fd=directory)
        try:
            if entry.size:
                os.ftruncate(fd, entry.size)
            for offset, piece in self._records.content(entry):
                pwrite_all(fd, piece, offset)
            self._finish(fd, entry)
        finally:
            os.close(fd)

    def _finish(self, fd: int, entry: Entry) -> None:
        """Owner, permissions, attributes, times, in this order: each changes those after it."""
        write_xattrs(fd, entry, self._ids)
        owner = self._ids.outside(entry.uid, entry.gid)
        status = os.fstat(fd)
        if owner != (status.st_uid, status.st_gid):
            os.fchown(fd, *owner)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.atime_ns, entry.mtime_ns))

    def _finish_name(self, directory: int, entry: Entry) -> None:
        owner = self._ids.outside(entry.uid, entry.gid)
        if owner != (os.geteuid(), os.getegid()):
            os.chown(entry.name, *owner, dir_fd=directory, follow_symlinks=False)
        if entry.kind != SYMLINK:
            # No link can be here: the name was made a moment ago in a directory of ours.
            os.chmod(entry.name, entry.mode, dir_fd=directory)
        os.utime(entry.name, ns=(entry.atime_ns, entry.mtime_ns), dir_fd=directory, follow_symlinks=False)
