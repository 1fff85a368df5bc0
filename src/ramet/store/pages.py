"""Pages: a page file of core's becomes an index of extents and those pages that the parent has not.

An extent says of a run of pages that they are zero, that they lie in this image, or that they are pages of
the parent's page file. The parent may say the same of its own parent, so a page is found in as many steps as
there are snapshots between, and a parent may be stored in another way without its children noticing.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from ramet.store.blocks import (
    HASH_BYTES,
    PAGE,
    ZERO_PAGE,
    Malformed,
    data_runs,
    digest,
    preadv_exactly,
)
from ramet.store.container import SectionWriter

ZERO, OWN, PARENT = 0, 1, 2
WINDOW = 256
"""Pages that are in memory at once."""
_EXTENT = struct.Struct("<IIQ")
_COUNT_MAX = (1 << 32) - 1


class Extent(NamedTuple):
    """`length` pages of `kind`, the first of which is number `start` of where they are."""

    kind: int
    length: int
    start: int


class PageIndex:
    """Where each page of a page file is. `count` pages in all."""

    def __init__(self, extents: list[Extent]) -> None:
        self.extents = extents
        self._firsts: list[int] = []
        self.count = 0
        for extent in extents:
            self._firsts.append(self.count)
            self.count += extent.length

    def encode(self) -> bytes:
        """As a section."""
        return b"".join([_EXTENT.pack(*extent) for extent in self.extents])

    @classmethod
    def decode(cls, data: bytes, *, count: int, own: int, parent: int) -> Self:
        """From a section: `count` pages, of `own` that are here and `parent` that the parent has.

        Raises Malformed.
        """
        if len(data) % _EXTENT.size:
            raise Malformed("an extent is cut off")
        extents = [Extent(*row) for row in _EXTENT.iter_unpack(data)]
        room = {ZERO: 1 << 62, OWN: own, PARENT: parent}
        for number, (kind, length, start) in enumerate(extents):
            if kind not in room:
                raise Malformed(f"extent {number} is of no known kind")
            if not length or start + length > room[kind] or (kind == ZERO and start):
                raise Malformed(f"extent {number} leads to pages that are not there")
        index = cls(extents)
        if index.count != count:
            raise Malformed(f"it holds {index.count} pages instead of {count}")
        return index

    def find(self, first: int, count: int) -> Iterator[Extent]:
        """Where the pages from number `first` on are. `first` and `count` lie within."""
        at = bisect.bisect_right(self._firsts, first) - 1
        while count:
            kind, length, start = self.extents[at]
            skip = first - self._firsts[at]
            take = min(length - skip, count)
            yield Extent(kind, take, start + skip if kind != ZERO else 0)
            first += take
            count -= take
            at += 1

    def hashes(self, own: bytes, parent: PageHashes) -> PageHashes:
        """The hash of every page, when those that are here and the parent's are known."""
        found = PageHashes()
        at = 0
        for kind, length, start in self.extents:
            if kind == OWN:
                found.add(at, own[start * HASH_BYTES : (start + length) * HASH_BYTES])
            elif kind == PARENT:
                for first, part in parent.find(start, length):
                    found.add(at + first - start, part)
            at += length
        return found


class PageHashes:
    """The hashes of a page file's pages, in runs between pages of zeros, which take no room."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[bytes] = []

    def add(self, first: int, hashes: bytes) -> None:
        """Append those of the pages from number `first` on."""
        self._firsts.append(first)
        self._runs.append(hashes)

    def find(self, first: int, count: int) -> Iterator[tuple[int, bytes]]:
        """(number of the first, hashes) of what is not zero among `count` pages."""
        end = first + count
        at = max(bisect.bisect_right(self._firsts, first) - 1, 0)
        while at < len(self._firsts) and self._firsts[at] < end:
            start = self._firsts[at]
            skip, stop = max(first - start, 0), end - start
            part = self._runs[at][skip * HASH_BYTES : stop * HASH_BYTES]
            if part:
                yield start + skip, part
            at += 1

    def places(self) -> dict[bytes, int]:
        """A page by its hash; the first of those that are alike."""
        found: dict[bytes, int] = {}
        for first, run in zip(reversed(self._firsts), reversed(self._runs), strict=True):
            for at in range(len(run) // HASH_BYTES - 1, -1, -1):
                found[run[at * HASH_BYTES : (at + 1) * HASH_BYTES]] = first + at
        return found

    def digest(self) -> bytes:
        """One hash of all, however they are cut into runs."""
        end = 0
        borders: list[int] = []
        for first, run in zip(self._firsts, self._runs, strict=True):
            if first != end or not borders:
                borders += [end, first]
            end = first + len(run) // HASH_BYTES
        borders.append(end)
        return digest(digest(b"".join(self._runs)) + b"".join([one.to_bytes(8, "little") for one in borders]))


class ExtentList:
    """Extents that are being made; neighbours become one."""

    def __init__(self) -> None:
        self.done: list[Extent] = []
        self._kind = ZERO
        self._start = self._count = 0

    def add(self, kind: int, start: int, count: int = 1) -> None:
        """Add `count` pages."""
        follows = kind == ZERO or start == self._start + self._count
        if kind != self._kind or not follows or self._count + count > _COUNT_MAX:
            self.close()
            self._kind, self._start = kind, start
        self._count += count

    def add_zeros(self, count: int) -> None:
        """Add `count` pages of zeros."""
        while count > 0:
            self.add(ZERO, 0, min(count, _COUNT_MAX))
            count -= _COUNT_MAX

    def close(self) -> list[Extent]:
        """All of them."""
        if self._count:
            self.done.append(Extent(self._kind, self._count, self._start))
            self._count = 0
        return self.done


class PageWriter:
    """Reads a page file and writes what is neither zero nor the parent's."""

    def __init__(self, out: SectionWriter, parent: PageHashes | None = None) -> None:
        """`parent` are the hashes of the parent's pages."""
        self._out = out
        self._places = parent.places() if parent else {}
        self._extents = ExtentList()
        self._written = 0
        self._last = b""

    def write(self, fd: int, size: int) -> PageIndex:
        """All `size` bytes of `fd`; the last page is filled up with zeros."""
        buffer = bytearray(WINDOW * PAGE)
        at = 0
        for offset, length in data_runs(fd, size):
            first, end = offset // PAGE, -(-(offset + length) // PAGE)
            first = max(first, at)  # holes of other file systems are not whole pages
            self._extents.add_zeros(first - at)
            for window in range(first, end, WINDOW):
                count = min(WINDOW, end - window)
                self._window(fd, buffer, window * PAGE, count, size)
            at = max(at, end)
        self._extents.add_zeros(-(-size // PAGE) - at)
        return PageIndex(self._extents.close())

    def _window(self, fd: int, buffer: bytearray, offset: int, count: int, size: int) -> None:
        length = min(count * PAGE, size - offset)
        with memoryview(buffer) as view:
            preadv_exactly(fd, view[:length], offset)
            if length < count * PAGE:
                view[length : count * PAGE] = bytes(count * PAGE - length)
            runs: list[tuple[int, int]] = []
            hashes: list[bytes] = []
            for at in range(0, count * PAGE, PAGE):
                if not buffer[at] and buffer[at : at + PAGE] == ZERO_PAGE:
                    self._extents.add(ZERO, 0)
                    continue
                found = digest(view[at : at + PAGE])
                known = self._places.get(found)
                if known is not None:
                    self._extents.add(PARENT, known)
                    continue
                if found == self._last:  # memory that was filled with one value
                    self._extents.add(OWN, self._written - 1)
                    continue
                self._last = found
                self._extents.add(OWN, self._written)
                self._written += 1
                hashes.append(found)
                if runs and runs[-1][1] == at:
                    runs[-1] = (runs[-1][0], at + PAGE)
                else:
                    runs.append((at, at + PAGE))
            if runs:
                self._out.put_blocks([view[start:end] for start, end in runs], hashes)


def copy_out(view: memoryview, fd: int, page: int, size: int) -> None:
    """Write whole pages into a page file of `size` bytes, at page number `page`."""
    offset = page * PAGE
    view = view[: size - offset]
    while view:
        done = os.pwrite(fd, view, offset)
        offset += done
        view = view[done:]
