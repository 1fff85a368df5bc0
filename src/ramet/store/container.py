"""The container: a file of sections, each cut into blocks with a hash for every one.

    preamble (4096 bytes)   magic, format, where the header is, its hash, and a hash of all this
    section, its table      bytes of the section, then the hashes of its blocks; both begin at multiples of 8
    ...                     (pages at multiples of 4096); what is between them is zero
    header                  JSON, up to the end of the file

The header has the hash of each table, so one hash in the preamble covers every byte, and a block that is
wrong is found when it is read, and named. The header comes last because pages are written while they are
counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, Self

from ramet.errors import SnapshotDamaged, SnapshotUnusable
from ramet.store.blocks import (
    BLOCK,
    HASH_BYTES,
    PAGE,
    Malformed,
    count_blocks,
    digest,
    digests,
    pread_exactly,
    preadv_exactly,
    pwrite_all,
)

MAGIC = b"RAMETIMG"
FORMAT = 1
HEADER_MAX = 16 << 20
CHUNK = 1 << 20
WRITE_BEHIND = 4 << 20
_PREAMBLE = struct.Struct("<8sIIQ16s16s")
_SECTION_FIELDS = {"name", "offset", "length", "block", "table", "hash"}


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Where a section lies, and the hash of its table, which stands for all of its content."""

    name: str
    offset: int
    length: int
    block: int
    table: int
    hash: str

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return count_blocks(self.length, self.block)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """From JSON. Raises Malformed."""
        if not isinstance(data, dict) or data.keys() != _SECTION_FIELDS:
            raise Malformed("a section is not described")
        numbers = [data["offset"], data["length"], data["block"], data["table"]]
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise Malformed("a section lies nowhere")
        if not isinstance(data["name"], str) or not isinstance(data["hash"], str):
            raise Malformed("a section has no name")
        if not 1 <= data["block"] <= CHUNK or len(data["hash"]) != 2 * HASH_BYTES:
            raise Malformed(f"{data['name']}: its blocks are of no size")
        return cls(**data)


def content_hash(data: bytes) -> str:
    """The hash that a section of ordinary blocks with this content has."""
    return digest(b"".join(digests(data, BLOCK))).hex()


# --- writing ----------------------------------------------------------------------------------------------


class Writer:
    """Writes a container into an empty file. Sections are written one after the other."""

    def __init__(self, fd: int) -> None:
        """`fd` stays the caller's."""
        self.fd = fd
        self._at = PAGE  # the preamble's page is written last
        self._sections: dict[str, Section] = {}

    def section(self, name: str, *, block: int = BLOCK, align: int = 8) -> SectionWriter:
        """Begin a section. The one before it must be closed."""
        self._align(align)
        return SectionWriter(self, name, self._at, block)

    def add(self, name: str, data: bytes) -> Section:
        """A whole section."""
        writer = self.section(name)
        writer.write(data)
        return writer.close()

    def closed(self, name: str, offset: int, length: int, block: int, table: bytes) -> Section:
        """A section's bytes are written: its table follows."""
        self._at = offset + length
        self._align(8)
        section = Section(name, offset, length, block, self._at, digest(table).hex())
        pwrite_all(self.fd, table, self._at)
        self._at += len(table)
        self._sections[name] = section
        return section

    def finish(self, header: dict[str, Any]) -> None:
        """Write the header, then the preamble that makes the file an image."""
        header = {**header, "sections": [dataclasses.asdict(one) for one in self._sections.values()]}
        data = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
        self._align(8)
        pwrite_all(self.fd, data, self._at)
        preamble = _PREAMBLE.pack(MAGIC, FORMAT, len(data), self._at, digest(data), bytes(HASH_BYTES))
        preamble = preamble[:-HASH_BYTES] + digest(preamble[:-HASH_BYTES])
        pwrite_all(self.fd, preamble.ljust(PAGE, b"\0"), 0)

    def _align(self, to: int) -> None:
        self._at += -self._at % to


class SectionWriter:
    """Takes the bytes of one section, or whole blocks whose hashes the caller has."""

    def __init__(self, writer: Writer, name: str, offset: int, block: int) -> None:
        self._writer = writer
        self._name = name
        self._offset = self._at = self._started = offset
        self._block = block
        self._table: list[bytes] = []
        self._buffer = bytearray()
        self.table = b""
        """The hashes of its blocks, once it is closed."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        self._buffer += data
        if len(self._buffer) >= CHUNK:
            whole = len(self._buffer) - len(self._buffer) % self._block
            self._flush(whole)

    def put_blocks(self, blocks: list[memoryview], hashes: list[bytes]) -> None:
        """Append whole blocks, in at most 1024 pieces, of which the hashes are known."""
        self._table += hashes
        length = sum([len(block) for block in blocks])
        done = os.pwritev(self._writer.fd, blocks, self._at)
        if done < length:
            pwrite_all(self._writer.fd, b"".join(blocks)[done:], self._at + done)
        self._at += length
        if self._at - self._started >= WRITE_BEHIND:
            # Has the kernel begin to write what it has (it drops only pages that are on the disk already), so
            # that the sync at the end finds little to wait for. sync_file_range(2) is not in `os`.
            size = self._at - self._started
            os.posix_fadvise(self._writer.fd, self._started, size, os.POSIX_FADV_DONTNEED)
            self._started = self._at

    @property
    def blocks(self) -> int:
        """How many blocks were put."""
        return len(self._table)

    def close(self) -> Section:
        """End the section."""
        self._flush(len(self._buffer))
        self.table = b"".join(self._table)
        length = self._at - self._offset
        return self._writer.closed(self._name, self._offset, length, self._block, self.table)

    def _flush(self, length: int) -> None:
        with memoryview(self._buffer) as view, view[:length] as whole:
            self._table += digests(whole, self._block)
            pwrite_all(self._writer.fd, whole, self._at)
        self._at += length
        del self._buffer[:length]


# --- reading ----------------------------------------------------------------------------------------------


class Container:
    """An open container whose header is the one that was written; sections are checked as they are read.

    `label` is what its readers know it by; it stands in front of what is wrong.
    """

    def __init__(self, fd: int, label: str) -> None:
        """Takes `fd`. Raises SnapshotDamaged; SnapshotUnusable when a newer version of Ramet wrote it."""
        self.fd = fd
        self.label = label
        self.size = os.fstat(fd).st_size
        self._tables: dict[str, bytes] = {}
        try:
            with self.naming("header"):
                self.header = self._read_header()
                self.sections = self._read_sections()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def naming(self, place: str) -> _Naming:
        """Within it Malformed becomes SnapshotDamaged, and names the snapshot and `place`."""
        return _Naming(self.label, place)

    def _read_header(self) -> dict[str, Any]:
        preamble = pread_exactly(self.fd, PAGE, 0)
        magic, version, length, offset, header_hash, own_hash = _PREAMBLE.unpack_from(preamble)
        if magic != MAGIC:
            raise Malformed("it does not begin as an image does")
        if version > FORMAT:
            raise SnapshotUnusable(
                "snapshot_format",
                f"the snapshot {self.label!r} has format {version}, this version reads {FORMAT}",
                snapshot=self.label,
                hint="a newer version of Ramet wrote it",
            )
        head = _PREAMBLE.size - HASH_BYTES
        if (
            digest(preamble[:head]) != own_hash
            or preamble[_PREAMBLE.size :].strip(b"\0")
            or version != FORMAT
        ):
            raise Malformed("the preamble's hash differs")
        if length > HEADER_MAX or offset + length != self.size:
            raise Malformed("the file is not as long as it was")
        data = pread_exactly(self.fd, length, offset)
        if digest(data) != header_hash:
            raise Malformed("its hash differs")
        self._header_at = offset
        return read_json(data, "the header")

    def _read_sections(self) -> dict[str, Section]:
        rows = self.header.get("sections")
        if not isinstance(rows, list):
            raise Malformed("there are no sections")
        sections = [Section.from_json(row) for row in rows]
        spans = [(0, PAGE)]
        for one in sections:
            spans += [(one.offset, one.length), (one.table, one.blocks * HASH_BYTES)]
        spans.append((self._header_at, self.size - self._header_at))
        spans.sort()
        for (start, length), (following, _) in itertools.pairwise(spans):
            gap = following - start - length
            if not 0 <= gap < PAGE:
                raise Malformed("sections overlap or leave room")
            if gap and pread_exactly(self.fd, gap, start + length).strip(b"\0"):
                raise Malformed(f"there is something between the sections, at byte {start + length}")
        return {one.name: one for one in sections}

    def section(self, name: str) -> Section:
        """The section of that name. Raises Malformed."""
        section = self.sections.get(name)
        if section is None:
            raise Malformed("is missing")
        return section

    def table(self, name: str) -> bytes:
        """The hashes of a section's blocks. Raises Malformed."""
        if name not in self._tables:
            section = self.section(name)
            table = pread_exactly(self.fd, section.blocks * HASH_BYTES, section.table)
            if digest(table).hex() != section.hash:
                raise Malformed("the table of its hashes differs")
            self._tables[name] = table
        return self._tables[name]

    def read_blocks(self, name: str, first: int, view: memoryview) -> None:
        """Fill `view` from block `first` on, and check it. Raises Malformed naming the block."""
        section, table = self.section(name), self.table(name)
        if first * section.block + len(view) > section.length:
            raise Malformed("it is shorter than what is looked for")
        preadv_exactly(self.fd, view, section.offset + first * section.block)
        for number, found in enumerate(digests(view, section.block), first):
            if found != table[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
                raise Malformed(f"block {number}: hash differs")

    def chunks(self, name: str) -> Iterator[memoryview]:
        """A section in pieces, each good until the next is asked for. Raises Malformed."""
        section = self.section(name)
        step = max(CHUNK // section.block, 1)
        buffer = memoryview(bytearray(min(step * section.block, section.length)))
        for first in range(0, section.blocks, step):
            view = buffer[: min(step * section.block, section.length - first * section.block)]
            self.read_blocks(name, first, view)
            yield view

    def read(self, name: str, most: int = HEADER_MAX) -> bytes:
        """All of a small section. Raises SnapshotDamaged."""
        with self.naming(name):
            if self.section(name).length > most:
                raise Malformed("it is larger than any of its kind")
            return b"".join([bytes(chunk) for chunk in self.chunks(name)])


class _Naming:
    """Context manager: Malformed becomes SnapshotDamaged."""

    def __init__(self, label: str, place: str) -> None:
        self._label = label
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Malformed):
            text = f"the snapshot {self._label!r} is damaged: {self._place}: {error}"
            raise SnapshotDamaged("snapshot_damaged", text, snapshot=self._label) from None


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """An object of JSON. Raises Malformed."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed(f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise Malformed(f"{what} is no object")
    return found


class Stream:
    """A section as a stream of bytes, each of which was checked."""

    def __init__(self, container: Container, name: str) -> None:
        self._chunks = container.chunks(name)
        self._view = memoryview(b"")

    def read(self, length: int) -> bytes:
        """Exactly `length` bytes. Raises Malformed when there are fewer."""
        if length <= len(self._view):
            data, self._view = bytes(self._view[:length]), self._view[length:]
            return data
        return b"".join([bytes(piece) for piece in self.pieces(length)])

    def pieces(self, length: int) -> Iterator[memoryview]:
        """`length` bytes in pieces, each good until the next is asked for. Raises Malformed."""
        while length:
            if not self._view:
                self._view = next(self._chunks, memoryview(b""))
                if not self._view:
                    raise Malformed("it ends too early")
            piece, self._view = self._view[:length], self._view[length:]
            length -= len(piece)
            yield piece

    def at_end(self) -> bool:
        """Whether nothing is left."""
        if not self._view:
            self._view = next(self._chunks, memoryview(b""))
        return not self._view
