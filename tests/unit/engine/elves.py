"""Writes small ELF files: headers and a dynamic section, no code."""

import os
import struct
from pathlib import Path

HEADER, SEGMENT = 64, 56
X86_64, AARCH64 = 62, 183
NEEDED, STRTAB, STRSZ, SONAME, RPATH, RUNPATH, FLAGS_1 = 1, 5, 10, 14, 15, 29, 0x6FFFFFFB
NODEFLIB = 0x800


def write(
    path: Path,
    *,
    interpreter: str | None = None,
    needed: tuple[str, ...] = (),
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    machine: int = X86_64,
    flags: int = 0,
    mode: int = 0o755,
) -> Path:
    """One file, with directories above it. A static one has neither interpreter nor dynamic section."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        image(
            interpreter,
            needed,
            soname=soname,
            rpath=rpath,
            runpath=runpath,
            machine=machine,
            flags=flags,
        )
    )
    path.chmod(mode)
    return path


def image(
    interpreter: str | None = None,
    needed: tuple[str, ...] = (),
    *,
    soname: str | None = None,
    rpath: str | None = None,
    runpath: str | None = None,
    machine: int = X86_64,
    flags: int = 0,
) -> bytes:
    strings = bytearray(b"\0")

    def text(value: str) -> int:
        at = len(strings)
        strings.extend(os.fsencode(value) + b"\0")
        return at

    rows = [(NEEDED, text(name)) for name in needed]
    rows += [(tag, text(one)) for tag, one in ((SONAME, soname), (RPATH, rpath), (RUNPATH, runpath)) if one]
    rows += [(FLAGS_1, flags)] if flags else []
    loader = os.fsencode(interpreter) + b"\0" if interpreter else b""
    dynamic = bool(rows)
    count = 1 + bool(loader) + dynamic
    base = HEADER + count * SEGMENT
    dynamic_at = base + len(loader)
    if dynamic:
        # The string table follows the dynamic section; addresses are offsets.
        rows += [(STRTAB, dynamic_at + 16 * (len(rows) + 3)), (STRSZ, len(strings)), (0, 0)]
    section = b"".join(struct.pack("<QQ", *row) for row in rows)
    body = loader + section + (bytes(strings) if dynamic else b"")
    segments = [_segment(1, 0, base + len(body))]
    if loader:
        segments.append(_segment(3, base, len(loader)))
    if dynamic:
        segments.append(_segment(2, dynamic_at, len(section)))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, HEADER, 0, 0, HEADER, SEGMENT, count, 0, 0, 0)
    return ident + header + b"".join(segments) + body


def _segment(kind: int, offset: int, length: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 4, offset, offset, offset, length, length, 1)


def cache(entries: list[tuple[str, str]], *, old_format_first: bool = False) -> bytes:
    """An ld.so.cache of the new format with (name, path) entries."""
    strings = bytearray()
    rows = []
    start = 48 + 24 * len(entries)
    for name, path in entries:
        key = start + len(strings)
        strings.extend(name.encode() + b"\0")
        value = start + len(strings)
        strings.extend(path.encode() + b"\0")
        rows.append(struct.pack("=iIIIQ", 0x303, key, value, 0, 0))
    head = b"glibc-ld.so.cache1.1" + struct.pack("=II", len(entries), len(strings)) + bytes(20)
    new = head + b"".join(rows) + bytes(strings)
    return b"ld.so-1.7.0\0" + bytes(4) + new if old_format_first else new
