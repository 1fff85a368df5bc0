"""Files of a sandbox as tar streams, of any length: nothing but a piece is held."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterable
from os import PathLike
from typing import IO, TYPE_CHECKING

from ramet.client._async import content
from ramet.client._backends._async import in_thread
from ramet.client._files import Ask, Raw, status_of, unless_gone
from ramet.client._tar import END, Member, Members, header, packable, padding
from ramet.errors import FileError
from ramet.native import _protocol as p

if TYPE_CHECKING:
    from ramet.client._async.files import AsyncFiles


async def packed(files: AsyncFiles, path: str | PathLike[str]) -> AsyncIterator[bytes]:
    """What is at `path`, as pieces of a tar stream."""
    full = await files._path(path)  # noqa: SLF001
    top = (await files.infos(Ask(p.FILE_STAT, full)))[0]
    found = [top._replace(name=full.rpartition("/")[2] or "root")]
    if top.info.is_dir:
        found = sorted(await files.infos(Ask(p.FILE_LIST, full)), key=lambda one: one.name)
    waiting = bytearray()
    for one in found:
        async for piece in _member(files, one):
            waiting += piece
            if len(waiting) >= content.CHUNK:
                yield bytes(waiting)
                waiting.clear()
    yield bytes(waiting) + END


async def _member(files: AsyncFiles, one: Raw) -> AsyncIterator[bytes]:
    """One file. It is as long as when it was opened, whatever is written to it meanwhile."""
    if not packable(one.info):
        return
    if one.info.kind != "file":
        yield header(one.name + "/" * one.info.is_dir, one.info, 0, one.info.mtime)
        return
    file = None
    try:
        with unless_gone():
            file = await files._opened(one.info.path, p.TREE_SANDBOX)  # noqa: SLF001
    except FileError as error:
        if error.code != "not_regular":  # it has become what is left out
            raise
    if file is None:
        return
    with file:
        size, mtime = await content.blocking(lambda: status_of(file), 0, file)
        yield header(one.name, one.info, size, mtime)
        left = size
        while left:
            piece = await content.read(file, min(left, content.CHUNK))
            if not piece:
                text = f"{one.info.path}: it got shorter while it was read"
                raise FileError("changed", text, path=one.info.path)
            left -= len(piece)
            yield piece
        yield padding(size)


async def unpacked(files: AsyncFiles, full: str, data: bytes | IO[bytes] | Iterable[bytes]) -> int:
    """Unpack a tar stream in the directory `full`; how many files and links."""
    members, count = Members(data), 0
    modes: list[tuple[str, Member]] = []
    await files.make_dir(full)
    while (member := await in_thread(members.next)) is not None:
        inside = f"{full.rstrip('/')}/{member.name}" if member.name else full
        if member.kind == "directory":
            await files.make_dir(inside)
            if member.name:
                modes.append((inside, member))
            continue
        count += 1
        if member.kind == "link":
            await files.symlink(inside, member.target, replace=True)
        elif member.kind == "hard link":
            await files.link(f"{full.rstrip('/')}/{member.target}", inside, replace=True)
        else:
            await _file(files, inside, member, members)
    for inside, member in reversed(modes):  # one that takes no files, or whose time they change
        await files.set(inside, mode=member.mode, mtime=member.mtime)
    return count


async def _file(files: AsyncFiles, inside: str, member: Member, members: Members) -> None:
    reader = member.content
    assert reader is not None  # noqa: S101  files have one
    with await _new(files, inside) as out:
        while piece := await in_thread(lambda: members.read(reader, content.CHUNK)):
            await content.write(out, piece, inside)
    await files.set(inside, mode=member.mode, mtime=member.mtime)


async def _new(files: AsyncFiles, inside: str) -> io.RawIOBase:
    """The file to write to. A link in its place is not followed, but goes."""
    try:
        return await files.open(inside, "xb")
    except FileError as error:
        if error.code != "exists":
            raise
    if (await files.stat(inside, follow=False)).kind == "link":
        await files.remove(inside)
    return await files.open(inside, "wb")
