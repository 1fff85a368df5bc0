"""Descriptors as both protocols pass them, and payloads in sealed memory files."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
INT_BYTES = array.array("i").itemsize


def close_all(descriptors: Iterable[int]) -> None:
    """Close each; none of them may be open elsewhere under the same number."""
    for descriptor in descriptors:
        os.close(descriptor)


def copies(descriptors: Iterable[int]) -> list[int]:
    """A copy of each, the caller's. Raises OSError, and leaves none then."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))  # noqa: PERF401  what was made before an error is closed
    except OSError:
        close_all(made)
        raise
    return made


def received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors of a received message, in order. The caller owns them."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % INT_BYTES])
    return descriptors.tolist()


def rights(descriptors: Iterable[int]) -> list[tuple[int, int, array.array[int]]]:
    """The control message that passes `descriptors`."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


_raising = threading.Lock()


def send_with(sock: socket.socket, data: bytes, descriptors: Iterable[int]) -> None:
    """Send `data` as one message that passes `descriptors`; they stay the caller's. Raises OSError.

    The kernel compares the descriptors that all of this user's processes have sent and nobody has received,
    those of sandboxes too, with this process's soft RLIMIT_NOFILE (ETOOMANYREFS). A program that may not have
    more than 1,024 open, because it uses select(2), is to send all the same: for that moment its limit is the
    hard one.
    """
    message = rights(descriptors)
    try:
        sock.sendmsg([data], message)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        _send_at_hard_limit(sock, data, message)


def _send_at_hard_limit(
    sock: socket.socket, data: bytes, message: list[tuple[int, int, array.array[int]]]
) -> None:
    import resource

    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            sock.sendmsg([data], message)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def seal(payload: bytes) -> int:
    """A memory file with `payload` that nobody can change any more. The caller owns the descriptor.

    Sealed, because the receiver would otherwise check one content and use another.
    """
    descriptor = os.memfd_create("ramet-payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unseal(descriptor: int, length: int) -> bytes | None:
    """The content of a sealed memory file of exactly `length` bytes; None if it is anything else."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # not a memory file
        return None
    if seals & SEALS != SEALS or os.fstat(descriptor).st_size != length:
        return None
    parts = []
    offset = 0
    while offset < length:
        part = os.pread(descriptor, length - offset, offset)
        if not part:
            return None
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
