"""Hashes of blocks: what every byte of an image is checked with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

HASH_BYTES = 16
PAGE = 4096
FORMAT_NAME = "ramet image 1"
BLOCK = 65536
"""Bytes of what is not pages that one hash covers."""
ZERO_PAGE = bytes(PAGE)


class Malformed(ValueError):
    """Bytes that no writer of this format writes. Who knows the snapshot's name makes it SnapshotDamaged."""


def digest(data: bytes | bytearray | memoryview) -> bytes:
    """blake2b of 128 bits.

    Two pages with one hash would be taken for one, so it has to resist who looks for such pages; of those
    hashes it is the fastest in the standard library that needs no instructions of its own.
    """
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def digests(data: bytes | bytearray | memoryview, block: int) -> list[bytes]:
    """The hash of each `block` bytes; the last may be shorter."""
    view = memoryview(data)
    return [digest(view[at : at + block]) for at in range(0, len(view), block)]


def count_blocks(length: int, block: int) -> int:
    """How many blocks hold `length` bytes."""
    return -(-length // block)


def split(hashes: bytes, first: int, count: int) -> list[bytes]:
    """`count` hashes from number `first` on."""
    ends = range(first * HASH_BYTES, (first + count) * HASH_BYTES, HASH_BYTES)
    return [hashes[at : at + HASH_BYTES] for at in ends]


def pread_exactly(fd: int, length: int, offset: int) -> bytes:
    """`length` bytes at `offset`. Raises Malformed when the file ends before."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise Malformed("the file is cut off")
        data += more
    return data


def preadv_exactly(fd: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset`. Raises Malformed when the file ends before."""
    while view:
        got = os.preadv(fd, [view], offset)
        if not got:
            raise Malformed("the file is cut off")
        offset += got
        view = view[got:]


def pwrite_all(fd: int, view: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of `view` at `offset`."""
    view = memoryview(view)
    while view:
        done = os.pwrite(fd, view, offset)
        offset += done
        view = view[done:]


def data_runs(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of what is no hole, in order."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: a hole up to the end
            return
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start >= size:
            return
        yield start, end - start
        at = end
