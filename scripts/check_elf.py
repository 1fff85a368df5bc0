#!/usr/bin/env python3
"""Asserts that a built program is what core must be: static, x86-64, without an executable stack.

    check_elf.py PROGRAM...
    check_elf.py --restorer OBJECT...

The second form reads the compiled restorer (core/pie), which is copied into other processes: its object must
be one section of code and nothing else, without a relocation: nothing in it can refer to anything outside.

`musl-gcc -static-pie` links dynamically without a word, so the linker's word is not enough. Exit status: 0
all are right, 1 a claim does not hold, 2 wrong use. Numbers and layouts are those of elf(5).
"""

import argparse
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
DYNAMIC_ENTRY = struct.Struct("<qQ")

ELFCLASS64_LITTLE = b"\x7fELF\x02\x01"
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
EM_X86_64 = 62
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_GNU_STACK = 1, 2, 3, 0x6474E551
PF_X, PF_W = 1, 2
DT_NULL, DT_NEEDED, DT_TEXTREL = 0, 1, 22
SHT_RELA, SHT_REL = 4, 9
SHF_WRITE, SHF_ALLOC = 1, 2
RELA_ENTRY = struct.Struct("<QQq")
RESTORER = "ramet_restorer"


class Malformed(ValueError):
    """Not an ELF file of the kind this reader knows, or cut short."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header: what the kernel does with the file."""

    kind: int
    flags: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Section:
    """A section header; `applies_to` is the section that a relocation section changes."""

    name: str
    kind: int
    applies_to: int
    flags: int = 0
    address: int = 0
    size: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Elf:
    """The parts of an ELF file that the claims below are about."""

    kind: int
    machine: int
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]

    def dynamic_tags(self) -> Iterator[int]:
        """The tags of PT_DYNAMIC, up to DT_NULL. A static-pie has some: it relocates itself."""
        for segment in self.segments:
            if segment.kind != PT_DYNAMIC:
                continue
            whole = len(segment.data) // DYNAMIC_ENTRY.size * DYNAMIC_ENTRY.size
            for tag, _ in DYNAMIC_ENTRY.iter_unpack(segment.data[:whole]):
                if tag == DT_NULL:
                    break
                yield tag


def parse(blob: bytes) -> Elf:
    """Read a 64-bit little-endian ELF file.

    Raises:
        Malformed: it is none, or its tables reach past its end.
    """
    try:
        ident, kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = (
            ELF_HEADER.unpack_from(blob)
        )
        if not ident.startswith(ELFCLASS64_LITTLE):
            raise Malformed("not a 64-bit little-endian ELF file")
        segments = []
        for index in range(phnum):
            p_type, flags, offset, _, _, filesz, _, _ = PROGRAM_HEADER.unpack_from(
                blob, phoff + index * phentsize
            )
            segments.append(Segment(p_type, flags, blob[offset : offset + filesz]))
        headers = [SECTION_HEADER.unpack_from(blob, shoff + index * shentsize) for index in range(shnum)]
    except struct.error as error:
        raise Malformed(f"cut short: {error}") from error
    names = b""
    if shstrndx < len(headers):
        offset, size = headers[shstrndx][4:6]
        names = blob[offset : offset + size]
    sections = tuple(
        Section(
            name=names[header[0] :].partition(b"\0")[0].decode("ascii", "replace"),
            kind=header[1],
            applies_to=header[7],
            flags=header[2],
            address=header[3],
            size=header[5],
            data=blob[header[4] : header[4] + header[5]] if header[1] == SHT_RELA else b"",
        )
        for header in headers
    )
    return Elf(kind, machine, tuple(segments), sections)


def restorer_faults(elf: Elf) -> list[str]:
    """What is wrong with `elf` as the restorer's object; empty if nothing is."""
    found = []
    if elf.kind != ET_REL:
        found.append(f"type {elf.kind}, not an object")
    if not any(section.name == RESTORER and section.size for section in elf.sections):
        found.append(f"has no section {RESTORER}")
    # A debugger reads those of other sections; nothing loads them.
    loaded = {at for at, section in enumerate(elf.sections) if section.flags & SHF_ALLOC}
    for section in elf.sections:
        if section.kind in (SHT_RELA, SHT_REL):
            if section.applies_to in loaded:
                found.append(f"has relocations ({section.name}): its code refers to something outside")
        elif section.flags & SHF_ALLOC and section.size and section.name != RESTORER:
            found.append(f"has {section.size} bytes in {section.name}, which are not copied with it")
        elif section.name == RESTORER and section.flags & SHF_WRITE:
            found.append(f"{section.name} is writable")
    return found


def relocated(elf: Elf, section: Section) -> bool:
    """Whether a relocation of the linked program lies inside `section`."""
    end = section.address + section.size
    for table in elf.sections:
        whole = len(table.data) // RELA_ENTRY.size * RELA_ENTRY.size
        for offset, _, _ in RELA_ENTRY.iter_unpack(table.data[:whole]):
            if section.address <= offset < end:
                return True
    return False


def foreign_faults(elf: Elf, foreign: str) -> list[str]:
    """What is wrong with the sections of a program whose names start with `foreign`."""
    found = []
    for section in elf.sections:
        if section.kind not in (SHT_RELA, SHT_REL) or section.applies_to >= len(elf.sections):
            continue
        target = elf.sections[section.applies_to].name
        if target.startswith(foreign):
            found.append(f"has relocations against {target}, which runs inside other processes")
    for section in elf.sections:
        if not section.name.startswith(foreign):
            continue
        if section.flags & SHF_WRITE:
            found.append(f"{section.name} is writable")
        if section.size and relocated(elf, section):
            found.append(f"has relocations inside {section.name}, which runs inside other processes")
    return found


def faults(elf: Elf, *, foreign: str = RESTORER) -> list[str]:
    """What is wrong with `elf` as core; empty if nothing is.

    A section whose name starts with `foreign` holds code that runs inside another process. It is copied to
    wherever there is room, so a relocation against it would be a jump to nowhere.
    """
    found = []
    if elf.machine != EM_X86_64:
        found.append(f"machine {elf.machine}, not x86-64 ({EM_X86_64})")
    if elf.kind not in (ET_EXEC, ET_DYN):
        found.append(f"type {elf.kind}, not a program")
    kinds = [segment.kind for segment in elf.segments]
    if PT_INTERP in kinds:
        found.append("has an interpreter (PT_INTERP): it is linked dynamically")
    tags = set(elf.dynamic_tags())
    if DT_NEEDED in tags:
        found.append("needs shared libraries (DT_NEEDED)")
    if DT_TEXTREL in tags:
        found.append("has relocations in its code (DT_TEXTREL)")
    stacks = [segment.flags for segment in elf.segments if segment.kind == PT_GNU_STACK]
    if not stacks:
        found.append("has no PT_GNU_STACK: the kernel would give it an executable stack")
    elif stacks[0] & PF_X:
        found.append("asks for an executable stack")
    if any(s.kind == PT_LOAD and s.flags & PF_W and s.flags & PF_X for s in elf.segments):
        found.append("has a segment both writable and executable")
    return found + foreign_faults(elf, foreign)


def main(arguments: list[str] | None = None) -> int:
    """Check each program named; print one line for each fault."""
    parser = argparse.ArgumentParser(description="check that programs are static and hardened")
    parser.add_argument("program", nargs="+", type=Path)
    parser.add_argument("--restorer", action="store_true", help="they are the restorer's objects")
    given = parser.parse_args(arguments)
    judge = restorer_faults if given.restorer else faults
    status = 0
    for path in given.program:
        try:
            found = judge(parse(path.read_bytes()))
        except (OSError, Malformed) as error:
            found = [str(error)]
        for fault in found:
            print(f"{path}: {fault}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
