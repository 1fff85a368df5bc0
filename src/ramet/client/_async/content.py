"""The content of open files of sandboxes.

A regular file is always ready, so it is read in a thread where that can take long; one elsewhere always.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any

from ramet.client._backends._async import in_thread
from ramet.client._files import file_error, status_of

CHUNK = 1 << 20


async def blocking(call: Callable[[], Any], size: int, file: io.RawIOBase | IO[bytes]) -> Any:
    """What `call` gives, which reads or writes `size` bytes of `file`."""
    return await in_thread(call) if size > CHUNK // 4 or not isinstance(file, io.FileIO) else call()


async def read_all(file: io.RawIOBase) -> bytes:
    """All of it that has not been read."""
    size = status_of(file)[0] if isinstance(file, io.FileIO) else 0
    found: bytes = await blocking(file.readall, size, file)
    return found


async def read(file: io.RawIOBase, size: int) -> bytes:
    """The next bytes, `size` at most; none at its end."""
    found: bytes = await blocking(lambda: file.read(size), size, file)
    return found


async def same(one: io.RawIOBase, other: io.RawIOBase) -> bool:
    """Whether both have the same content."""
    piece = b"x"
    while piece:
        piece = await read(one, CHUNK)
        if piece != await read(other, CHUNK):
            return False
    return True


async def write(file: io.RawIOBase, piece: bytes | memoryview, path: str) -> None:
    """Write all of `piece`. Raises FileError for `path`."""
    left = memoryview(piece).cast("B")
    try:
        while left:
            view = left
            left = left[await blocking(lambda: file.write(view), len(view), file) :]  # noqa: B023
    except OSError as error:
        raise file_error(path, error.errno or 0, f"write: {error.strerror}") from None


async def replace(file: io.RawIOBase, data: bytes, former: int, path: str) -> None:
    """Write `data` in the place of the `former` bytes. Raises FileError for `path`.

    What goes beyond them is written first: it alone takes room, and where there is none they are still there.
    """
    if not former:
        return await write(file, data, path)
    whole = memoryview(data)
    try:
        if len(data) > former:
            await blocking(lambda: file.seek(former), 0, file)
            try:
                await write(file, whole[former:], path)
            except BaseException:
                await blocking(lambda: file.truncate(former), 0, file)
                raise
            await blocking(lambda: file.seek(0), 0, file)
        await write(file, whole[:former], path)
        if len(data) < former:
            await blocking(lambda: file.truncate(len(data)), 0, file)
    except OSError as error:
        raise file_error(path, error.errno or 0, f"write: {error.strerror}") from None
    return None


async def copy(file: io.RawIOBase, out: IO[bytes] | io.RawIOBase) -> None:
    """Write to `out` all of `file` that has not been read."""
    while piece := await read(file, CHUNK):
        left = memoryview(piece)
        while left:
            view = left
            left = left[await blocking(lambda: out.write(view), len(view), out) :]  # noqa: B023
