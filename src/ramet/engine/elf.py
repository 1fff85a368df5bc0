"""What a dynamically linked program needs, read from the files alone.

ldd answers the same question by starting the file's own loader, and a hostile file names a hostile loader.
So the program headers and the dynamic section are read here, and the loader's search is followed on paper:
ld.so(8) for glibc, ldso/dynlink.c for musl. Every offset and length comes from an untrusted file and is
bounded before use.

Not seen, as with ldd: what a program opens by dlopen. Not followed: LD_LIBRARY_PATH, which does not exist
in a sandbox, and the glibc-hwcaps variants of a library, beside which the plain one is always installed.
"""

import os
import stat
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

__all__ = ["Closure", "ElfError", "ElfFile", "Libraries", "Missing", "is_musl", "read_elf"]

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 14, 15, 29
_DT_FLAGS_1 = 0x6FFFFFFB
_DF_1_NODEFLIB = 0x800

_MAX_SEGMENTS = 1024
_MAX_DYNAMIC = 1 << 20
_MAX_STRINGS = 16 << 20
_MAX_CACHE = 64 << 20

_MULTIARCH = {
    3: "i386-linux-gnu",
    40: "arm-linux-gnueabihf",
    62: "x86_64-linux-gnu",
    183: "aarch64-linux-gnu",
    243: "riscv64-linux-gnu",
}
_PLATFORM = {3: "i686", 40: "v7l", 62: "x86_64", 183: "aarch64"}

# musl's loader is its libc: it never opens a file for these names (dynlink.c, `reserved`).
_MUSL_RESERVED = frozenset({"c", "pthread", "rt", "m", "dl", "util", "xnet"})


class ElfError(ValueError):
    """The file begins as ELF and is damaged, or lies about itself."""


@dataclass(frozen=True, slots=True)
class ElfFile:
    """The loader-relevant part of one file. `rpath` and `runpath` are unexpanded."""

    path: str
    bits: int
    machine: int
    interpreter: str | None = None
    needed: tuple[str, ...] = ()
    soname: str | None = None
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    default_directories: bool = True


@dataclass(frozen=True, slots=True)
class Missing:
    """A library that `needed_by` asks for and that is nowhere the loader would look."""

    name: str
    needed_by: str


@dataclass(frozen=True, slots=True)
class Closure:
    """Everything the loader would map for one program, beside the program itself.

    `paths` are spelled as the loader would open them, the loader first.
    """

    paths: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()


def read_elf(path: str) -> ElfFile | None:
    """Read one file; None when it is not ELF.

    Raises:
        ElfError: the file is damaged.
        OSError: it cannot be read.
    """
    # O_NONBLOCK: opening a fifo without a writer would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _parse(fd, path, status.st_size)
    finally:
        os.close(fd)


class _Image:
    """Bounded reads of one file in its own byte order."""

    def __init__(self, fd: int, size: int, order: str) -> None:
        self._fd = fd
        self._size = size
        self.order = order

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise ElfError("a header points outside of the file")
        data = os.pread(self._fd, length, offset)
        if len(data) != length:
            raise ElfError("the file is cut off")
        return data

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        layout = self.order + layout
        return struct.unpack(layout, self.read(offset, struct.calcsize(layout)))


def _parse(fd: int, path: str, size: int) -> ElfFile | None:
    ident = os.pread(fd, 16, 0)
    if ident[:4] != b"\x7fELF":
        return None
    if len(ident) < 16 or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("the ELF header is damaged")
    wide = ident[4] == 2
    image = _Image(fd, size, "<" if ident[5] == 1 else ">")
    (machine,) = image.unpack("H", 18)
    (segments_at,) = image.unpack("Q", 32) if wide else image.unpack("I", 28)
    entry_size, count = image.unpack("HH", 54 if wide else 42)
    if count > _MAX_SEGMENTS or (count and entry_size < (56 if wide else 32)):
        raise ElfError("the program headers are damaged")

    loads: list[tuple[int, int, int]] = []
    interpreter: str | None = None
    dynamic: tuple[int, int] | None = None
    for index in range(count):
        at = segments_at + index * entry_size
        if wide:
            kind, _, offset, address, _, length = image.unpack("IIQQQQ", at)
        else:
            kind, offset, address, _, length = image.unpack("IIIII", at)
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_INTERP and interpreter is None:
            if not 1 < length <= 4096:
                raise ElfError("the loader's name is damaged")
            interpreter = _text(image.read(offset, length), 0)
        elif kind == _PT_DYNAMIC and dynamic is None:
            dynamic = (offset, length)
    header = ElfFile(path, 64 if wide else 32, machine, interpreter)
    return _with_dynamic(image, header, loads, dynamic) if dynamic else header


def _with_dynamic(
    image: _Image, header: ElfFile, loads: list[tuple[int, int, int]], dynamic: tuple[int, int]
) -> ElfFile:
    offset, length = dynamic
    if length > _MAX_DYNAMIC:
        raise ElfError("the dynamic section is damaged")
    pair = struct.Struct(image.order + ("QQ" if header.bits == 64 else "II"))
    table: dict[int, list[int]] = {}
    data = image.read(offset, length - length % pair.size)
    for tag, value in pair.iter_unpack(data):
        if tag == 0:
            break
        table.setdefault(tag, []).append(value)
    if _DT_STRTAB not in table or _DT_STRSZ not in table:
        if _DT_NEEDED in table:
            raise ElfError("the dynamic section has no string table")
        return header

    size = table[_DT_STRSZ][0]
    if size > _MAX_STRINGS:
        raise ElfError("the string table is damaged")
    strings = image.read(_file_offset(loads, table[_DT_STRTAB][0]), size)

    def texts(tag: int) -> list[str]:
        return [_text(strings, value) for value in table.get(tag, [])]

    def directories(tag: int) -> tuple[str, ...]:
        return tuple(part for text in texts(tag) for part in text.split(":") if part)

    return replace(
        header,
        needed=tuple(texts(_DT_NEEDED)),
        soname=next(iter(texts(_DT_SONAME)), None),
        rpath=directories(_DT_RPATH),
        runpath=directories(_DT_RUNPATH),
        default_directories=not any(flags & _DF_1_NODEFLIB for flags in table.get(_DT_FLAGS_1, [])),
    )


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, length in loads:
        if start <= address < start + length:
            return offset + address - start
    raise ElfError("an address of the dynamic section is in no segment")


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    if not 0 <= start < len(data) or end < 0:
        raise ElfError("a string is not terminated")
    return os.fsdecode(data[start:end])


@dataclass(slots=True)
class _Node:
    file: ElfFile
    parent: "_Node | None" = None


@dataclass(slots=True)
class Libraries:
    """Follows the loader's search on this host. One object may serve many programs; files are read once."""

    cache_file: str = "/etc/ld.so.cache"
    musl_directory: str = "/etc"
    _files: dict[str, ElfFile | None] = field(default_factory=dict)
    _cache: dict[str, list[str]] | None = None

    def closure(self, program: ElfFile) -> Closure:
        """The loader and every library of `program`, transitively, in the loader's own (breadth-first) order.

        Raises:
            ElfError: a library found on the way is damaged.
        """
        root = _Node(program)
        found: dict[str, None] = {}
        known: set[str] = set()
        missing: list[Missing] = []
        musl = is_musl(program)
        if program.interpreter is not None:
            loader = self._matching(program.interpreter, program)
            if loader is None:
                missing.append(Missing(program.interpreter, program.path))
            else:
                found[loader.path] = None
                known |= {os.path.basename(loader.path), loader.soname or ""}
        queue = deque([root])
        while queue:
            node = queue.popleft()
            for name in node.file.needed:
                if name in known or (musl and _musl_provides(name)):
                    continue
                known.add(name)
                library = self._find(name, node, root.file)
                if library is None:
                    missing.append(Missing(name, node.file.path))
                    continue
                # A later DT_NEEDED is also satisfied by the name a loaded library gives itself.
                known.add(library.soname or name)
                if library.path not in found:
                    found[library.path] = None
                    queue.append(_Node(library, node))
        return Closure(tuple(found), tuple(missing))

    def find(self, name: str, program: ElfFile) -> str | None:
        """Where the loader would find `name` if `program` asked for it by dlopen."""
        library = self._find(name, _Node(program), program)
        return library.path if library else None

    def _find(self, name: str, node: _Node, program: ElfFile) -> ElfFile | None:
        if "/" in name:
            # Relative to the working directory, which is unknown, unless it begins with a root or a token.
            return self._matching(_expand(name, node), program) if name.startswith(("/", "$")) else None
        for path in self._candidates(name, node, program):
            library = self._matching(path, program)
            if library is not None:
                return library
        return None

    def _candidates(self, name: str, node: _Node, program: ElfFile) -> Iterator[str]:
        if is_musl(program):
            yield from (f"{directory}/{name}" for directory in _musl_chain(node))
            yield from (f"{directory}/{name}" for directory in self._musl_defaults(program))
            return
        if not node.file.runpath:
            # DT_RPATH is inherited from the whole chain of loaders, DT_RUNPATH is not.
            ancestor: _Node | None = node
            while ancestor is not None:
                if not ancestor.file.runpath:
                    yield from (f"{_expand(text, ancestor)}/{name}" for text in ancestor.file.rpath)
                ancestor = ancestor.parent
        yield from (f"{_expand(text, node)}/{name}" for text in node.file.runpath)
        if node.file.default_directories:
            if self._cache is None:
                self._cache = _read_cache(self.cache_file)
            yield from self._cache.get(name, ())
            yield from (f"{directory}/{name}" for directory in _defaults(program))

    def _musl_defaults(self, program: ElfFile) -> list[str]:
        # "ld-musl-x86_64.so.1" reads "/etc/ld-musl-x86_64.path".
        name = os.path.basename(program.interpreter or "").partition(".")[0]
        try:
            with open(
                f"{self.musl_directory}/{name}.path", encoding="utf-8", errors="surrogateescape"
            ) as file:
                return [part for part in file.read(1 << 16).replace("\n", ":").split(":") if part]
        except OSError:
            return ["/lib", "/usr/local/lib", "/usr/lib"]

    def _matching(self, path: str, program: ElfFile) -> ElfFile | None:
        """The file at `path` if the loader of `program` would accept it; others are skipped, as it does."""
        if path not in self._files:
            try:
                self._files[path] = read_elf(path)
            except OSError:
                self._files[path] = None
            except ElfError as error:
                raise ElfError(f"{path}: {error}") from None
        file = self._files[path]
        return file if file and (file.bits, file.machine) == (program.bits, program.machine) else None


def is_musl(program: ElfFile) -> bool:
    return program.interpreter is not None and os.path.basename(program.interpreter).startswith("ld-musl-")


def _musl_provides(name: str) -> bool:
    return name.startswith("lib") and name[3:].partition(".")[0] in _MUSL_RESERVED


def _musl_chain(node: _Node) -> Iterator[str]:
    ancestor: _Node | None = node
    while ancestor is not None:
        yield from (_expand(text, ancestor) for text in ancestor.file.runpath or ancestor.file.rpath)
        ancestor = ancestor.parent


def _defaults(program: ElfFile) -> Iterator[str]:
    triple = _MULTIARCH.get(program.machine)
    if triple:
        yield from (f"/lib/{triple}", f"/usr/lib/{triple}")
    if program.bits == 64:
        yield from ("/lib64", "/usr/lib64")
    yield from ("/lib", "/usr/lib")


def _expand(text: str, node: _Node) -> str:
    """Replace the dynamic string tokens of ld.so(8).

    The kernel tells the loader the program's real path, while a library is where it was opened.
    """
    own = node.file.path if node.parent else os.path.realpath(node.file.path)
    triple = _MULTIARCH.get(node.file.machine, "")
    multiarch = bool(triple) and os.path.isdir(f"/lib/{triple}")
    values = {
        "ORIGIN": os.path.dirname(own),
        "LIB": f"lib/{triple}" if multiarch else "lib64" if node.file.bits == 64 else "lib",
        "PLATFORM": _PLATFORM.get(node.file.machine, ""),
    }
    for token, value in values.items():
        text = text.replace(f"${{{token}}}", value).replace(f"${token}", value)
    return os.path.normpath(text)


def _read_cache(path: str) -> dict[str, list[str]]:
    """Names and paths of ld.so.cache, in order; empty when there is none (glibc dl-cache.h, "1.1")."""
    magic = b"glibc-ld.so.cache1.1"
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_CACHE)
    except OSError:
        return {}
    # Before glibc 2.32 the old format precedes this one in the same file.
    base = data.find(magic)
    if base < 0 or len(data) < base + 48:
        return {}
    (count,) = struct.unpack_from("=I", data, base + len(magic))
    table: dict[str, list[str]] = {}
    for index in range(min(count, (len(data) - base - 48) // 24)):
        _, key, value, _, hardware = struct.unpack_from("=iIIIQ", data, base + 48 + index * 24)
        if hardware:
            continue
        try:
            table.setdefault(_text(data, base + key), []).append(_text(data, base + value))
        except ElfError:
            continue
    return table
