# Generated from _async/archives.py by scripts/unasync.py. Do not edit.
"""Files of a sandbox as tar streams, of any length: nothing but a piece is held."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import IO, TYPE_CHECKING

from ramet.client._backends._sync import in_thread
from ramet.client._files import Ask, Raw, status_of, unless_gone
from ramet.client._sync import content
from ramet.client._tar import END, Member, Members, header, packable, padding
from ramet.errors import FileError
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from ramet.client._sync.files import Files


def packed(files: Files, path: str | PathLike[str]) -> Iterator[bytes]:
    """What is at `path`, as pieces of a tar stream."""
    full = files._path(path)  # noqa: SLF001
    top = (files.infos(Ask(p.FILE_STAT, full)))[0]
    found = [top._replace(name=full.rpartition("/")[2] or "root")]
    if top.info.is_dir:
        found = sorted(files.infos(Ask(p.FILE_LIST, full)), key=lambda one: one.name)
    waiting = bytearray()
    for one in found:
        for piece in _member(files, one):
            waiting += piece
            if len(waiting) >= content.CHUNK:
                yield bytes(waiting)
                waiting.clear()
    yield bytes(waiting) + END


def _member(files: Files, one: Raw) -> Iterator[bytes]:
    """One file. It is as long as when it was opened, whatever is written to it meanwhile."""
    if not packable(one.info):
        return
    if one.info.kind != "file":
        yield header(one.name + "/" * one.info.is_dir, one.info, 0, one.info.mtime)
        return
    file = None
    try:
        with unless_gone():
            file = files._opened(one.info.path, p.TREE_SANDBOX)  # noqa: SLF001
    except FileError as error:
        if error.code != "not_regular":  # it has become what is left out
            raise
    if file is None:
        return
    with file:
        size, mtime = content.blocking(lambda: status_of(file), 0, file)
        yield header(one.name, one.info, size, mtime)
        left = size
        while left:
            piece = content.read(file, min(left, content.CHUNK))
            if not piece:
                text = f"{one.info.path}: it got shorter while it was read"
                raise FileError("changed", text, path=one.info.path)
            left -= len(piece)
            yield piece
        yield padding(size)


def unpacked(files: Files, full: str, data: bytes | IO[bytes] | Iterable[bytes]) -> int:
    """Unpack a tar stream in the directory `full`; how many files and links."""
    members, count = Members(data), 0
    modes: list[tuple[str, Member]] = []
    files.make_dir(full)
    while (member := in_thread(members.next)) is not None:
        inside = f"{full.rstrip('/')}/{member.name}" if member.name else full
        if member.kind == "directory":
            files.make_dir(inside)
            if member.name:
                modes.append((inside, member))
            continue
        count += 1
        if member.kind == "link":
            files.symlink(inside, member.target, replace=True)
        elif member.kind == "hard link":
            files.link(f"{full.rstrip('/')}/{member.target}", inside, replace=True)
        else:
            _file(files, inside, member, members)
    for inside, member in reversed(modes):  # one that takes no files, or whose time they change
        files.set(inside, mode=member.mode, mtime=member.mtime)
    return count


def _file(files: Files, inside: str, member: Member, members: Members) -> None:
    reader = member.content
    assert reader is not None  # noqa: S101  files have one
    with _new(files, inside) as out:
        while piece := in_thread(lambda: members.read(reader, content.CHUNK)):
            content.write(out, piece, inside)
    files.set(inside, mode=member.mode, mtime=member.mtime)


def _new(files: Files, inside: str) -> io.RawIOBase:
    """The file to write to. A link in its place is not followed, but goes."""
    try:
        return files.open(inside, "xb")
    except FileError as error:
        if error.code != "exists":
            raise
    if (files.stat(inside, follow=False)).kind == "link":
        files.remove(inside)
    return files.open(inside, "wb")
