"""Which Python a default root shows, and under which paths.

The interpreter that runs Ramet is shown where the sandbox can read it and nothing private comes with it;
else the system's, and a note says why. Each real directory is bound once, at its real path; every other
spelling by which Python may ask for it (a symlinked parent, the `home` of a pyvenv.cfg, a hop of
bin/python) is a symlink in the skeleton, which costs nothing at hand-out, where a second bind would.

A virtual environment is read-only here and switches Python's user site off, so pip could install nowhere.
The home therefore holds an environment of its own that lies on top: same interpreter, its packages first,
then the host's.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.engine._entries import Dir, File, Symlink, Tree
from ramet.engine._etc import HOME
from ramet.engine.elf import ElfError, Libraries, read_elf

__all__ = ["InterpreterFacts", "Placement", "candidate", "expose", "home_environment"]

ENVIRONMENT = f"{HOME}/.python"

# Prefixes that are more than an interpreter. Python in one of them comes with half the host.
_TOO_WIDE = frozenset(
    f"/{name}"
    for name in (
        *("", "bin", "boot", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "root", "run", "sbin"),
        *("srv", "tmp", "var", "var/cache", "var/lib", "var/tmp"),
    )
)
_PSEUDO = ("/proc", "/sys", "/dev")
_LIB = re.compile(r"python\d+(?:\.\d+t?)?")


@dataclass(frozen=True, slots=True)
class InterpreterFacts:
    """What an interpreter says of itself: `sys.prefix`, `sys.base_prefix` and `sys.executable`."""

    prefix: str
    base_prefix: str
    executable: str

    @classmethod
    def current(cls) -> "InterpreterFacts":
        return cls(sys.prefix, sys.base_prefix, sys.executable or "")


@dataclass(frozen=True, slots=True)
class Placement:
    """An interpreter found fit. All paths are real; `spellings` must be made to lead to them."""

    directories: tuple[str, ...]
    executable: str
    search_path: tuple[str, ...]
    spellings: tuple[str, ...]
    environment: str | None = None  # the host's virtual environment, as it is spelled


def candidate(
    facts: InterpreterFacts, *, private: Sequence[str], covered: Callable[[str], bool], others: bool
) -> Placement | str:
    """Judge an interpreter: how to show it, or the reason why not.

    Args:
        facts: of the interpreter; nothing in them is trusted.
        private: real paths that no shown directory may contain.
        covered: whether the root shows a real path anyway.
        others: judge by the permissions of others, because the sandbox's ids own nothing on this host.
    """
    for text in (facts.prefix, facts.base_prefix, facts.executable):
        if not text.startswith("/") or "\0" in text:
            return f"{text!r} is not an absolute path"
    base = os.path.realpath(facts.base_prefix)
    prefix = os.path.realpath(facts.prefix)
    program = os.path.realpath(facts.executable)
    directories: list[str] = []
    for directory in dict.fromkeys((base, prefix)):
        reason = None if covered(directory) else _refusal(directory, private)
        if reason:
            return reason
        if not covered(directory):
            directories.append(directory)
    # One of them may lie in the other.
    directories = [one for one in directories if not any(_is_below(one, two) for two in directories)]

    def shown(path: str) -> bool:
        return covered(path) or any(path == top or _is_below(path, top) for top in directories)

    reason = _unusable(program, base, prefix, shown, others=others)
    if reason:
        return reason
    spellings = [facts.base_prefix, facts.prefix, *_hops(facts.executable)]
    environment = None
    if os.path.isfile(f"{facts.prefix}/pyvenv.cfg"):
        environment = facts.prefix
        spellings.append(read_config(f"{facts.prefix}/pyvenv.cfg").get("home", ""))
    bins = dict.fromkeys(f"{directory}/bin" for directory in (facts.prefix, facts.base_prefix))
    return Placement(
        directories=tuple(directories),
        executable=facts.executable,
        search_path=tuple(directory for directory in bins if os.path.isdir(directory)),
        spellings=tuple(
            dict.fromkeys(path for path in spellings if path.startswith("/") and "\0" not in path)
        ),
        environment=environment,
    )


def _refusal(directory: str, private: Sequence[str]) -> str | None:
    if directory in _TOO_WIDE or any(directory == top or _is_below(directory, top) for top in _PSEUDO):
        return f"{directory} is more than an interpreter"
    for path in private:
        if path == directory or _is_below(path, directory):
            return f"{directory} contains {path}"
    if not os.path.isdir(directory):
        return f"{directory} is not a directory"
    if not os.path.isfile(f"{directory}/pyvenv.cfg") and _library(directory) is None:
        return f"{directory} holds no Python"
    return None


def _unusable(
    program: str, base: str, prefix: str, shown: Callable[[str], bool], *, others: bool
) -> str | None:
    if not shown(program):
        return f"{program} is outside of {base}"
    library = _library(base)
    if library is None:
        return f"{base} holds no standard library"
    for path in (base, prefix, os.path.dirname(program), program, library, f"{library}/os.py"):
        if not _readable(path, others=others):
            return f"the sandbox could not read {path}"
    return _unlinked(program, base, shown)


def _unlinked(program: str, base: str, shown: Callable[[str], bool]) -> str | None:
    """Which library the program would not find inside, as a reason."""
    try:
        elf = read_elf(program)
        if elf is None:
            return f"{program} is not a program"
        closure = Libraries().closure(elf)
    except (ElfError, OSError) as error:
        return f"{program} cannot be read: {error}"
    if closure.missing:
        return f"{program} needs {closure.missing[0].name}, which is not on this host"
    outside = [path for path in closure.paths if not shown(os.path.realpath(path))]
    return f"{program} needs {outside[0]}, which is outside of {base}" if outside else None


def _library(base: str) -> str | None:
    for lib in ("lib", "lib64"):
        for name in sorted(_names(f"{base}/{lib}"), reverse=True):
            path = f"{base}/{lib}/{name}"
            if _LIB.fullmatch(name) and os.path.isfile(f"{path}/os.py"):
                return path
    return None


def _readable(path: str, *, others: bool) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    execute = stat.S_ISDIR(mode) or bool(mode & 0o111)
    if others:
        return bool(mode & 0o004) and (not execute or bool(mode & 0o001))
    return os.access(path, os.R_OK | (os.X_OK if execute else 0))


def _hops(path: str) -> list[str]:
    """`path` and every path that following the symlink at its end gives."""
    hops = [path]
    while len(hops) < 40 and os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        hops.append(path)
    return hops


def expose(tree: Tree, path: str, shown: Callable[[str], bool]) -> None:
    """Make `path`, as it is spelled on the host, lead inside to the real path that the root shows.

    The topmost symlinked component that leads into something shown becomes a symlink of the tree; the ones
    above it are plain directories inside.
    """
    at = ""
    for name in path.strip("/").split("/"):
        at = f"{at}/{name}"
        if shown(at):
            return
        real = os.path.realpath(at)
        if real != at and shown(real):
            tree.offer(Symlink(at, real))
            return


def read_config(path: str) -> dict[str, str]:
    """A pyvenv.cfg; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            pairs = [line.partition("=") for line in file.read(1 << 16).splitlines()]
    except OSError:
        return {}
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def home_environment(tree: Tree, placement: Placement) -> str | None:
    """Lay an environment of the home over the host's; return the directory of its programs.

    None when the host's is too unusual to lie under another.
    """
    under = placement.environment
    if under is None:
        return None
    libraries = [name for name in sorted(_names(f"{under}/lib")) if _LIB.fullmatch(name)]
    config = read_config(f"{under}/pyvenv.cfg")
    if len(libraries) != 1 or "home" not in config:
        return None
    packages = f"{under}/lib/{libraries[0]}/site-packages"
    kept = ("home", "include-system-site-packages", "version", "version_info")
    text = "".join(f"{key} = {config[key]}\n" for key in kept if key in config)
    tree.put(Dir(ENVIRONMENT))
    tree.put(File(f"{ENVIRONMENT}/pyvenv.cfg", 0o644, text.encode("utf-8", "surrogateescape")))
    tree.put(Symlink(f"{ENVIRONMENT}/bin/python3", placement.executable))
    tree.put(Symlink(f"{ENVIRONMENT}/bin/python", "python3"))
    tree.put(Symlink(f"{ENVIRONMENT}/lib64", "lib"))
    # Not a plain path: the host's environment may have .pth files of its own.
    line = f"import site; site.addsitedir({packages!r})\n"
    own = f"{ENVIRONMENT}/lib/{libraries[0]}/site-packages"
    tree.put(File(f"{own}/host.pth", 0o644, line.encode("utf-8", "surrogateescape")))
    if os.path.isdir(f"{packages}/pip"):
        script = f'#!{ENVIRONMENT}/bin/python3\nimport runpy\nrunpy.run_module("pip", run_name="__main__")\n'
        for name in ("pip", "pip3"):
            tree.put(File(f"{ENVIRONMENT}/bin/{name}", 0o755, script.encode()))
    return f"{ENVIRONMENT}/bin"


def _is_below(path: str, top: str) -> bool:
    return path != top and path.startswith(top.rstrip("/") + "/")


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
