"""Roots that hold a few programs and exactly what those need: `ramet root build`.

Planned first, then written: the plan is a table from a path inside the root to what goes there, every path
spelled as on this host, so that loaders, interpreters and symlink chains find each other without
configuration.

No program is run to learn what it needs (see `elf`). A script brings its interpreter, a CPython its standard
library without tests, GUI and site-packages. What a program opens by dlopen is not seen and is added by
`files`.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramet.engine import _etc, _plant
from ramet.engine._entries import Copy, Dir, File, Symlink
from ramet.engine._plant import Plan
from ramet.engine.elf import ElfError, ElfFile, Libraries, is_musl, read_elf
from ramet.errors import InvalidRequest

__all__ = ["BuiltRoot", "build_root"]

# Directories that execvp falls back to, and that a sandbox's PATH has in every root.
_STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_PYTHON = re.compile(r"python(?:3(?:\.\d+t?)?)?")
_STDLIB = re.compile(r"python3\.\d+t?")
_STDLIB_LEFT_OUT = frozenset(
    {"test", "tests", "idlelib", "turtledemo", "tkinter", "site-packages", "dist-packages"}
)
# The kernel reads one buffer of this size and cuts the line there (BINPRM_BUF_SIZE, binfmt_script(5)).
_SHEBANG_BYTES = 256
_SHEBANG_DEPTH = 4  # as the kernel's own limit on interpreters of interpreters


@dataclass(frozen=True, slots=True)
class BuiltRoot:
    """A finished root.

    `files` are the regular files and symlinks in it, as absolute paths inside; `total_bytes` counts file
    contents. `notes` name what was left out or chosen instead of what was asked, one sentence each.
    """

    path: Path
    files: tuple[str, ...]
    total_bytes: int
    notes: tuple[str, ...] = ()


def build_root(
    destination: str | os.PathLike[str],
    binaries: Sequence[str],
    files: Sequence[str] = (),
    *,
    replace: bool = False,
    search_path: str | None = None,
) -> BuiltRoot:
    """Make a root directory that holds `binaries` with all they need, and `files`.

    Args:
        destination: made anew, whole or not at all; may be an empty directory. Its parent must exist.
        binaries: paths, or names looked up in `search_path`. A name found outside of the standard
            directories is also linked into /usr/local/bin.
        files: ``SRC`` or ``SRC:DST``, files or directories, copied without what they need.
        replace: take the place of an older root that this function built; of nothing else.
        search_path: as the variable PATH, which is the default.

    Set-user-id bits are not copied. Times are, because Python's caches are checked against them.

    Raises:
        InvalidRequest: `field` is "bin", "file" or "directory"; nothing was left behind.
    """
    target = _plant.check_destination(destination, replace=replace)
    if not binaries and not files:
        raise InvalidRequest.of("bin", "at least one program or file is needed")
    builder = _Builder(search_path if search_path is not None else os.environ.get("PATH", os.defpath))
    for name in binaries:
        try:
            builder.add_program(_checked(name, "bin"))
        except OSError as error:
            raise InvalidRequest.of("bin", f"{name}: {error.filename or ''}: {error.strerror}") from None
    builder.add_basics()
    for spec in files:
        builder.add_file(_checked(spec, "file"))
    total = _plant.write(builder.plan, target, replace=replace)
    return BuiltRoot(target, builder.plan.names(), total, tuple(dict.fromkeys(builder.notes)))


def _checked(text: str, option: str) -> str:
    if not text:
        raise InvalidRequest.of(option, "is empty")
    if "\0" in text:
        raise InvalidRequest.of(option, "contains a NUL character")
    return text


@dataclass(slots=True)
class _Builder:
    search_path: str
    plan: Plan = field(default_factory=Plan)
    notes: list[str] = field(default_factory=list)
    libraries: Libraries = field(default_factory=Libraries)
    _done: set[str] = field(default_factory=set)
    _links: list[Symlink] = field(default_factory=list)

    # --- programs

    def add_program(self, name: str, *, depth: int = 0, wanted_by: str | None = None) -> None:
        """Add one program by path or by name, with everything it needs."""
        path = os.path.abspath(name) if "/" in name else self._look_up(name, wanted_by)
        real, chain = self._trace(path, wanted_by)
        if "/" not in name and os.path.dirname(path) not in _STANDARD_PATH:
            self._links.append(Symlink(f"/usr/local/bin/{name}", path))
        if real in self._done and not _is_python(chain):
            return
        self._done.add(real)
        try:
            elf = read_elf(real)
        except ElfError as error:
            raise InvalidRequest.of("bin", f"{real}: {error}") from None
        except OSError as error:
            raise InvalidRequest.of("bin", f"{real} cannot be read: {error.strerror}") from None
        if elf is not None:
            self._add_libraries(elf)
            if _is_python([name, *chain]):
                self._add_python(elf, chain)
            return
        interpreter = _interpreter_of(real)
        if interpreter is None:
            return  # left to the shell, as execvp does
        if depth >= _SHEBANG_DEPTH:
            raise InvalidRequest.of("bin", f"{real}: interpreters of interpreters nest too deeply")
        for program in interpreter:
            self.add_program(program, depth=depth + 1, wanted_by=real)

    def _look_up(self, name: str, wanted_by: str | None) -> str:
        hits = list(_hits(name, self.search_path))
        if not hits:
            whose = f", the interpreter of {wanted_by}," if wanted_by else ""
            raise InvalidRequest.of("bin", f"{name!r}{whose} is not in PATH", code="not_found")
        if _is_python([name]) and not _is_elf(hits[0]):
            # A version manager's shim is a shell script: closed over, it would bring bash and no Python.
            programs = [path for path in (_own_python(name), *hits[1:]) if path and _is_elf(path)]
            if programs:
                self.notes.append(f"{name}: {hits[0]} is a script that chooses a Python; took {programs[0]}")
                return programs[0]
        return hits[0]

    def _trace(self, path: str, wanted_by: str | None) -> tuple[str, list[str]]:
        """Put `path` and its symlinks into the plan; return the real path and every spelling on the way."""
        whose = f" (wanted by {wanted_by})" if wanted_by else ""
        try:
            chain = self.plan.add_path(path)
        except FileNotFoundError as error:
            dangling = "" if error.filename == path else f": {error.filename} is missing"
            raise InvalidRequest.of(
                "bin", f"{path} does not exist{whose}{dangling}", code="not_found"
            ) from None
        except OSError as error:
            raise InvalidRequest.of("bin", f"{path} cannot be used{whose}: {error.strerror}") from None
        item = self.plan.items[chain[-1]]
        if not isinstance(item, Copy):
            raise InvalidRequest.of("bin", f"{path} is a directory{whose}")
        if not item.mode & 0o111:
            raise InvalidRequest.of("bin", f"{path} is not executable{whose}")
        return chain[-1], chain

    def _add_libraries(self, program: ElfFile) -> None:
        try:
            closure = self.libraries.closure(program)
        except ElfError as error:
            raise InvalidRequest.of("bin", str(error)) from None
        if closure.missing:
            lost = closure.missing[0]
            raise InvalidRequest.of(
                "bin",
                f"{program.path} needs {lost.name}, which is not on this host (for {lost.needed_by})",
            )
        for path in closure.paths:
            self.plan.add_path(path)
        if program.interpreter is None:
            return
        if is_musl(program):
            name = os.path.basename(program.interpreter).partition(".")[0]
            self._add_if_present(f"/etc/{name}.path")
            return
        # glibc opens libgcc_s by dlopen for pthread_exit and cancellation, and aborts without it.
        unwinder = self.libraries.find("libgcc_s.so.1", program)
        if unwinder:
            self.plan.add_path(unwinder)
        self._add_if_present("/etc/ld.so.cache")

    def _add_if_present(self, path: str) -> None:
        if os.access(path, os.R_OK):
            self.plan.add_path(path)

    # --- Python

    def _add_python(self, program: ElfFile, chain: list[str]) -> None:
        homes = [os.path.dirname(path) for path in chain]
        for path in chain:
            for config in _venv_configs(path):
                self.plan.add_path(config)
                for home in _venv_home(config):
                    self.plan.add_path(home)
                    homes.append(home)
        libraries = _standard_libraries(homes, chain)
        if not libraries:
            self.notes.append(f"{chain[0]} looks like a Python, but no standard library was found beside it")
        for directory in libraries:
            if directory not in self._done:
                self._done.add(directory)
                self.plan.add_path(directory)
                self._add_stdlib(directory, program)

    def _add_stdlib(self, top: str, program: ElfFile) -> None:
        for parent, directories, files in os.walk(top):
            directories[:] = [
                name
                for name in directories
                if name not in _STDLIB_LEFT_OUT and not name.startswith("config-3")
            ]
            for name in files:
                path = f"{parent}/{name}"
                if name.startswith("_tkinter.") or name.endswith((".opt-1.pyc", ".opt-2.pyc", ".a")):
                    continue
                if name.endswith(".so") and not self._add_extension(path, program):
                    continue
                try:
                    self.plan.add_path(path)
                except OSError:
                    self.notes.append(f"{path} was left out: it leads nowhere")
        self.plan.ensure_directory(f"{top}/site-packages")

    def _add_extension(self, path: str, program: ElfFile) -> bool:
        try:
            module = read_elf(path)
            if module is None:
                return True
            # Only the interpreter's loader decides how a module's libraries are searched.
            module = dataclasses.replace(module, interpreter=program.interpreter)
            closure = self.libraries.closure(module)
        except (ElfError, OSError) as error:
            self.notes.append(f"{path} was left out: {error}")
            return False
        if closure.missing:
            self.notes.append(f"{path} was left out: {closure.missing[0].name} is not on this host")
            return False
        for library in closure.paths:
            self.plan.add_path(library)
        return True

    # --- the rest

    def add_basics(self) -> None:
        """What every program may expect: accounts, /tmp, and the merged /usr as this host has it."""
        for name in _MERGED:
            link = f"/{name}"
            if os.path.islink(link) and os.path.realpath(link) in self.plan.items:
                self.plan.add_path(link)
        # Only now is it known which directories are symlinks in this root.
        for alias in self._links:
            self.plan.offer(alias)
        self.plan.offer(Dir(_etc.HOME))
        for name, text in _etc.BASICS.items():
            self.plan.offer(File(f"/etc/{name}", 0o644, text.encode()))
        self.plan.put(Dir(self.plan.locate("/tmp"), 0o1777))  # noqa: S108 -- a path in the new root

    def add_file(self, spec: str) -> None:
        """Add ``SRC`` at its own path, or ``SRC:DST``; a directory with all that is in it."""
        source, colon, destination = spec.rpartition(":")
        if not colon or not destination.startswith("/"):
            source, destination = spec, ""
        source = os.path.abspath(source)
        if destination and ".." in destination.split("/"):
            raise InvalidRequest.of("file", f"{destination} contains '..'")
        try:
            if not destination:
                chain = self.plan.add_path(source)
                source = destination = chain[-1]
            self.plan.add_copy(source, os.path.normpath(destination))
        except FileNotFoundError as error:
            raise InvalidRequest.of("file", f"{error.filename} does not exist", code="not_found") from None
        except OSError as error:
            raise InvalidRequest.of("file", f"{error.filename or source}: {error.strerror}") from None


def _hits(name: str, search_path: str) -> Iterator[str]:
    for directory in search_path.split(os.pathsep):
        path = os.path.join(os.path.abspath(directory), name)
        if directory and os.path.isfile(path) and os.access(path, os.X_OK):
            yield path


def _is_python(chain: Sequence[str]) -> bool:
    return any(_PYTHON.fullmatch(os.path.basename(path)) for path in chain)


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _own_python(name: str) -> str | None:
    """The interpreter that runs this, where its version is one that `name` can mean."""
    version = name.removeprefix("python")
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sys.executable if sys.executable and version in ("", "3", mine) else None


def _interpreter_of(path: str) -> list[str] | None:
    """The programs that a script's first line starts, None when it has no such line.

    ``#!/usr/bin/env -S NAME=value python3 -u`` gives env and python3.
    """
    with open(path, "rb") as file:
        line = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    if not line.startswith(b"#!"):
        return None
    words = os.fsdecode(line[2:]).strip(" \t\r").split(None, 1)
    if not words:
        return None
    programs = [words[0]]
    if os.path.basename(words[0]) == "env" and len(words) == 2:
        named = [
            word
            for word in words[1].removeprefix("-S").split()
            if "=" not in word and not word.startswith("-")
        ]
        programs.extend(named[:1])
    return programs


def _venv_configs(path: str) -> list[str]:
    here = os.path.dirname(path)
    places = (f"{here}/pyvenv.cfg", f"{os.path.dirname(here)}/pyvenv.cfg")
    return [place for place in places if os.path.isfile(place)]


def _venv_home(config: str) -> list[str]:
    with open(config, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            key, equals, value = line.partition("=")
            if equals and key.strip().lower() == "home":
                return [value.strip()]
    return []


def _standard_libraries(homes: Sequence[str], chain: Sequence[str]) -> list[str]:
    """Where the interpreter will look for os.py: beside the directories of its spellings (getpath.py)."""
    found: dict[str, None] = {}
    for home in homes:
        for lib in ("lib", "lib64"):
            directory = os.path.join(os.path.dirname(home), lib)
            try:
                names = [name for name in os.listdir(directory) if _STDLIB.fullmatch(name)]
            except OSError:
                continue
            # "python3.11", where one of the spellings says so; else all that are there.
            exact = [name for name in names if name in {os.path.basename(path) for path in chain}]
            found.update(
                (os.path.realpath(os.path.join(directory, name)), None)
                for name in exact or names
                if os.path.isfile(os.path.join(directory, name, "os.py"))
            )
    return list(found)
