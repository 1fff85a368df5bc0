"""Files in sandboxes, opened at one end and read and written from the other, as requests and answers.

A request is an operation, a place, a size, and for `WRITE` so many bytes; the answer an errno, a size and so
many bytes.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import struct
from typing import Any

from ramet.tunnel.channels import CHUNK, Channel, Tunnel, What

READ, WRITE, STATUS, CUT = range(1, 5)
_REQUEST = struct.Struct("<BQI")
_ANSWER = struct.Struct("<II")
_STATUS = struct.Struct("<QQ")  # size, time of the last change in ns


class FileSource(Channel):
    """At the end that has the file. Takes its descriptor."""

    def __init__(self, tunnel: Tunnel, number: int, descriptor: int) -> None:
        super().__init__(tunnel, number)
        self._descriptor = descriptor
        self._asked = bytearray()

    def heard(self, what: What, payload: bytes) -> None:
        """Answer what is complete, while there is room for answers."""
        if what is What.END:
            self.close()
            return
        if what is not What.BYTES:
            super().heard(what, payload)
        self._asked += payload
        self.took(len(payload))
        self.resume()

    def resume(self) -> None:
        """Answer the next."""
        while len(self._asked) >= _REQUEST.size and self.may_send and not self.closed:
            operation, place, size = _REQUEST.unpack_from(self._asked)
            if size > CHUNK:
                raise ValueError("a piece of a file is too long")
            end = _REQUEST.size + (size if operation == WRITE else 0)
            if len(self._asked) < end:
                return
            data = bytes(self._asked[_REQUEST.size : end])
            del self._asked[:end]
            try:
                found = self._answer(operation, place, size, data)
                self.say(What.BYTES, _ANSWER.pack(0, len(found)) + found)
            except OSError as error:
                self.say(What.BYTES, _ANSWER.pack(error.errno or errno.EIO, 0))

    def _answer(self, operation: int, place: int, size: int, data: bytes) -> bytes:
        if operation == READ:
            return os.pread(self._descriptor, size, place)
        if operation == WRITE:
            # Of a file that was opened to append to, Linux heeds no place (pwrite(2), BUGS).
            return os.pwrite(self._descriptor, data, place).to_bytes(4, "little")
        if operation == CUT:
            os.ftruncate(self._descriptor, place)
            return b""
        if operation != STATUS:
            raise ValueError("nothing else can be asked of a file")
        status = os.fstat(self._descriptor)
        return _STATUS.pack(status.st_size, status.st_mtime_ns)

    def release(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class RemoteFile(io.RawIOBase):
    """A file at the other end of a tunnel, by way of `sock`, which it takes. Its methods block."""

    def __init__(self, sock: socket.socket, mode: str, *, append: bool = False) -> None:
        super().__init__()
        sock.setblocking(True)  # noqa: FBT003
        self._sock = sock
        self._place = 0
        self._append = append
        self.mode = mode

    def readable(self) -> bool:
        """Whether it was opened to be read."""
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        """Whether it was opened to be written."""
        return self.mode != "r"

    def seekable(self) -> bool:
        """Any place can be gone to."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as one answer goes."""
        with memoryview(buffer).cast("B") as view:
            data = self._ask(READ, self._place, min(len(view), CHUNK))
            view[: len(data)] = data
        self._place += len(data)
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, `size` of them unless the file ends; all without `size`."""
        if size is None or size < 0:
            return self.readall()
        found = bytearray()
        while len(found) < size:
            piece = self._ask(READ, self._place, min(size - len(found), CHUNK))
            if not piece:
                break
            self._place += len(piece)
            found += piece
        return bytes(found)

    def readall(self) -> bytes:
        """All bytes to the end."""
        found = bytearray()
        while piece := self.read(CHUNK):
            found += piece
        return bytes(found)

    def write(self, data: Any, /) -> int:
        """Write the beginning of `data`; how much."""
        with memoryview(data).cast("B") as view:
            piece = bytes(view[:CHUNK])
        count = int.from_bytes(self._ask(WRITE, self._place, len(piece), piece), "little")
        self._place = self.status()[0] if self._append else self._place + count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place}
        place = offset + (self.status()[0] if whence == os.SEEK_END else base[whence])
        if place < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._place = place
        return place

    def truncate(self, size: int | None = None, /) -> int:
        """Give it this size, by default up to the present place."""
        wanted = self._place if size is None else size
        self._ask(CUT, wanted, 0)
        return wanted

    def status(self) -> tuple[int, float]:
        """Its size, and when it was changed."""
        size, changed = _STATUS.unpack(self._ask(STATUS, 0, 0))
        return size, changed / 1e9

    def _ask(self, operation: int, place: int, size: int, data: bytes = b"") -> bytes:
        self._checked().sendall(_REQUEST.pack(operation, place, size) + data)
        number, length = _ANSWER.unpack(self._exactly(_ANSWER.size))
        if number:
            raise OSError(number, os.strerror(number))
        return self._exactly(length)

    def _checked(self) -> socket.socket:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._sock

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._sock.recv(size - len(found))
            if not piece:
                raise OSError(errno.ECONNRESET, "the server has gone")
            found += piece
        return bytes(found)

    def close(self) -> None:
        """Give it up."""
        if not self.closed:
            super().close()
            self._sock.close()
