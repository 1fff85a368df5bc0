"""Recipes of roots: what `/` of a sandbox consists of, as plain data that core carries out.

The default root needs no image. `/` is one overlay whose only lower layer is a skeleton of synthetic
entries; on it lie read-only binds of `/usr` and of exactly the interpreter's directories, each at its own
path. An overlay over the host's `/` is refused by the kernel (its mounts are locked together), and copying
up a file whose owner is not mapped fails, so `/usr` is a bind and no layer. Nothing else of the host is in
it: no home, key, socket or process.

`docs/internals/roots.md` tells the rest.
"""

import contextlib
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ramet.engine import _etc
from ramet.engine._entries import Copy, Dir, File, Symlink, Tree
from ramet.engine._etc import HOME, HostEtc
from ramet.engine._interpreter import InterpreterFacts, Placement, candidate, expose, home_environment
from ramet.errors import InvalidRequest

__all__ = [
    "Bind",
    "Dir",
    "Entry",
    "File",
    "InterpreterFacts",
    "RootSpec",
    "Symlink",
    "default_environment",
    "default_root",
    "directory_root",
]

Entry = Dir | Symlink | File

_FORMAT = b"ramet root 1\n"
_STANDARD_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Symlinks to parts of /usr where the host is merged, directories of their own where it is not.
_MERGED = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")

_PRIVATE_IN_HOME = (".aws", ".cache", ".config", ".docker", ".gnupg", ".kube", ".local/share", ".ssh")
_PRIVATE_VARIABLES = (
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)

# Of /sys nothing but what core says there of the own limits: it is the host's hardware, and nothing in it can
# be made private.
_MOUNT_POINTS = (Dir("/dev"), Dir("/proc", 0o555), Dir("/sys"), Dir("/sys/fs"), Dir("/sys/fs/cgroup"))
_TMP = Dir("/tmp", 0o1777)  # noqa: S108 -- a path inside
_SKELETON = (
    Dir("/"),
    *_MOUNT_POINTS,
    Dir("/home"),
    Dir(HOME),
    Dir("/media"),
    Dir("/mnt"),
    Dir("/opt"),
    Dir("/root"),
    Dir("/run"),
    Dir("/run/lock", 0o1777),
    Dir("/srv"),
    _TMP,
    Dir("/var/cache"),
    Dir("/var/lib"),
    Symlink("/var/lock", "/run/lock"),
    Dir("/var/log"),
    Symlink("/var/run", "/run"),
    Dir("/var/spool"),
    Dir("/var/tmp", 0o1777),  # noqa: S108 -- inside
)


@dataclass(frozen=True, slots=True)
class Bind:
    """A host directory shown inside. `recursive` where other file systems are mounted below `source`.

    A plain bind of such a directory is refused in a user namespace, because it would uncover what they hide.
    """

    source: Path
    target: str
    read_only: bool = True
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class RootSpec:
    """The recipe of one root.

    Attributes:
        entries: the skeleton, parents first; "/" is its first entry. Empty: no skeleton layer is needed.
        binds: parents first; every target is a directory of `entries`.
        layers: host directories under the skeleton, topmost first.
        writable: whether a private writable layer lies on top.
        identity: changes whenever the root made from this recipe would.
        search_path: the directories of PATH inside, in order.
        home: the home directory inside.
        python: the interpreter that `python3` means inside, None where there is none or nobody knows.
        environment: variables that belong to this root, in addition to the usual ones.
        notes: decisions that a user may wonder about, one sentence each.
    """

    entries: tuple[Entry, ...]
    binds: tuple[Bind, ...]
    layers: tuple[Path, ...]
    writable: bool
    identity: str
    search_path: tuple[str, ...] = _STANDARD_PATH
    home: str = HOME
    python: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def default_root(
    interpreter: InterpreterFacts | None = None,
    *,
    private: Iterable[str | os.PathLike[str]] = (),
    etc: HostEtc | None = None,
    others: bool | None = None,
    tools: Iterable[str] = (),
) -> RootSpec:
    """The root of a sandbox that asked for none.

    Args:
        interpreter: the Python to show, as its owner describes it; None for the system's.
        private: what must not come in with an interpreter (the runtime directory, say), in addition to the
            user's home and its usual places for keys and settings.
        etc: a stand-in for the host's /etc.
        others: whether the sandbox's ids own nothing on this host, so that only permissions for all count. By
            default as for this process: true for root, whose uid is never mapped.
        tools: further directories to show, each at its own path, those with a ``bin`` in the search path.

    Raises:
        InvalidRequest: `field` is "tools".
    """
    of_others = os.geteuid() == 0 if others is None else others
    forbidden = tuple(os.path.realpath(os.fspath(path)) for path in private)
    tops = ["/usr", *(name for name in _MERGED if os.path.isdir(name) and not os.path.islink(name))]
    notes: list[str] = []

    def shown(path: str) -> bool:
        return any(path == top or path.startswith(top + "/") for top in tops)

    placement = None
    if interpreter is not None:
        placement = _place(
            interpreter,
            notes,
            private=_private(forbidden),
            shown=shown,
            others=of_others,
        )
        if placement is not None:
            tops.extend(placement.directories)
    programs = []
    for tool in sorted({*map(os.path.realpath, tools)}):
        _check_tool(tool, forbidden, others=of_others)
        if not shown(tool):
            # It holds what stands below it.
            tops[:] = [top for top in tops if not top.startswith(f"{tool}/")] + [tool]
        if os.path.isdir(f"{tool}/bin"):
            programs.append(f"{tool}/bin")

    tree = Tree()
    for entry in _SKELETON:
        tree.put(entry)
    for name in _MERGED:
        if os.path.islink(name):
            tree.put(Symlink(name, os.readlink(name)))
    for top in tops:
        tree.ensure_directory(top)
    tree.sealed.update(tops)
    _etc.fill(
        tree,
        etc or HostEtc(covered=shown),
        ("/usr/bin", "/usr/sbin", *(f"/usr/lib/{name}" for name in _python_libraries())),
    )
    search_path, python, environment = _python_inside(tree, placement, shown, notes)
    binds = _binds(tops)
    entries = tuple(item for item in tree.sorted() if not isinstance(item, Copy))
    return RootSpec(
        entries=entries,
        binds=binds,
        layers=(),
        writable=True,
        # An interpreter can be upgraded in place, with no trace in the directories above it.
        identity=_identity(entries, binds, [os.path.realpath(placement.executable)] if placement else ()),
        search_path=(*programs, *search_path),
        python=python,
        environment=environment,
        notes=tuple(notes),
    )


_NO_TOOLS = ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")
_PLAIN = ("/media", "/mnt", "/opt", "/srv")


def _check_tool(path: str, private: Iterable[str], *, others: bool) -> None:
    """Refuse what may not be shown, or would stand in the way of what a root has of its own."""

    def overlaps(other: str) -> bool:
        return path == other or other.startswith(f"{path}/") or path.startswith(f"{other}/")

    for entry in _SKELETON:
        own = entry.path == path and path not in _PLAIN
        if path == "/" or own or entry.path.startswith(f"{path}/"):
            raise InvalidRequest.of("tools", f"{path} is a directory that every sandbox has of its own")
    if any(path.startswith(f"{name}/") or path == name for name in _NO_TOOLS):
        raise InvalidRequest.of("tools", f"{path} is about this host, and not shown in a sandbox")
    if any(overlaps(other) for other in private):
        raise InvalidRequest.of("tools", f"{path} has sockets or state of Ramet in it, or is in them")
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InvalidRequest.of("tools", f"{path}: {error.strerror}", code="not_found") from None
    if not stat.S_ISDIR(mode):
        raise InvalidRequest.of("tools", f"{path} is not a directory")
    if (mode & 0o005) != 0o005 if others else not os.access(path, os.R_OK | os.X_OK):
        raise InvalidRequest.of("tools", f"{path} cannot be read by the user that a sandbox has")


def directory_root(path: str | os.PathLike[str]) -> RootSpec:
    """A directory of the host as `/`: a layer, so that writes stay in the sandbox and the directory as it is.

    The skeleton lies above the layer and holds only what the directory lacks to be mounted on. An entry
    there hides what the layer has under that name, which is wanted where /proc is a file or a symlink, and
    gives a directory its mode, so directories that exist are not repeated.

    Raises:
        InvalidRequest: `field` is "root".
    """
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidRequest.of("root", "contains a NUL character" if text else "is empty")
    real = os.path.realpath(text)
    if real == "/":
        raise InvalidRequest.of(
            "root",
            "/ is this host itself",
            hint="without --root, a sandbox has its own / with the host's programs",
        )
    if real == "/proc" or real.startswith("/proc/"):
        # Core keeps the mounts of roots where its copy of the host has /proc.
        raise InvalidRequest.of("root", f"{text} is a view of this host's kernel, not a directory of files")
    try:
        status = os.stat(real)
        os.close(os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        raise InvalidRequest.of("root", f"{text} does not exist", code="not_found") from None
    except NotADirectoryError:
        raise InvalidRequest.of("root", f"{text} is not a directory") from None
    except OSError as error:
        raise InvalidRequest.of("root", f"{text} cannot be opened: {error.strerror}") from None
    inner = _mounts_below(real)
    if inner:
        raise InvalidRequest.of(
            "root",
            f"{inner[0]} is mounted inside {text}, and the kernel makes no layer of what has mounts in it",
            hint="unmount it, or copy the directory",
        )
    tree = Tree()
    for entry in _MOUNT_POINTS:
        if not _is_directory(real + entry.path):
            tree.put(entry)
    if not os.path.lexists(f"{real}{_TMP.path}"):
        tree.put(_TMP)
    if tree.items:
        tree.put(Dir("/", stat.S_IMODE(status.st_mode)))
    entries = tuple(item for item in tree.sorted() if not isinstance(item, Copy))
    return RootSpec(
        entries=entries,
        binds=(),
        layers=(Path(real),),
        writable=True,
        identity=_identity(entries, (), (real,)),
        home=_home_in(real),
    )


def default_environment(spec: RootSpec) -> dict[str, str]:
    """The variables a command has when its caller gives none. No variable of the host is among them."""
    return {
        "PATH": ":".join(spec.search_path),
        "HOME": spec.home,
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **dict(spec.environment),
    }


def _place(
    interpreter: InterpreterFacts,
    notes: list[str],
    *,
    private: list[str],
    shown: Callable[[str], bool],
    others: bool,
) -> Placement | None:
    choices = [interpreter]
    if interpreter.prefix != interpreter.base_prefix:
        base, program = interpreter.base_prefix, os.path.realpath(interpreter.executable)
        choices.append(InterpreterFacts(base, base, program))
    for facts in choices:
        placed = candidate(facts, private=private, covered=shown, others=others)
        if isinstance(placed, Placement):
            return placed
        notes.append(f"The Python of {facts.prefix} is not shown: {placed}.")
    return None


def _python_inside(
    tree: Tree, placement: Placement | None, shown: Callable[[str], bool], notes: list[str]
) -> tuple[tuple[str, ...], str | None, tuple[tuple[str, str], ...]]:
    """Finish the tree for the placed Python; return the search path, the Python and its variables."""
    # pip turns to the user's site by itself where the interpreter's is read-only; these only silence its
    # advice about a system that a sandbox does not have.
    variables: tuple[tuple[str, str], ...] = (
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("PIP_ROOT_USER_ACTION", "ignore"),
    )
    first = [f"{HOME}/.local/bin"]
    python: str | None = None
    if placement is not None:
        for spelling in placement.spellings:
            expose(tree, spelling, shown)
        programs = home_environment(tree, placement)
        if programs:
            first.insert(0, programs)
            variables = (("VIRTUAL_ENV", os.path.dirname(programs)),)
        elif placement.environment is not None:
            notes.append(f"pip cannot install for {placement.environment}: its layout is not one we know.")
        first += [path for path in placement.search_path if path not in _STANDARD_PATH]
        python = f"{programs}/python3" if programs else _first_python(placement.search_path)
        if python is None:
            # Only "python3.12", say, or a name of its own.
            python = f"{HOME}/.local/bin/python3"
            tree.offer(Symlink(python, placement.executable))
    path = (*first, *_STANDARD_PATH)
    return path, python or _first_python(_STANDARD_PATH), variables


def _first_python(directories: Iterable[str]) -> str | None:
    return next(
        (path for path in (f"{directory}/python3" for directory in directories) if os.access(path, os.X_OK)),
        None,
    )


def _private(given: Iterable[str | os.PathLike[str]]) -> list[str]:
    homes = {os.environ.get("HOME", "")}
    with contextlib.suppress(KeyError):  # a uid without an account
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    places = [os.fspath(path) for path in given]
    for home in homes:
        if home.startswith("/"):
            places += [home, *(f"{home}/{name}" for name in _PRIVATE_IN_HOME)]
    places += [os.environ[name] for name in _PRIVATE_VARIABLES if os.environ.get(name, "").startswith("/")]
    return [os.path.realpath(place) for place in places if os.path.realpath(place) != "/"]


def _binds(tops: list[str]) -> tuple[Bind, ...]:
    mounts = _mount_points()
    return tuple(
        Bind(Path(top), top, recursive=any(point.startswith(top + "/") for point in mounts))
        for top in sorted(tops)
    )


def _mounts_below(path: str) -> list[str]:
    return [point for point in _mount_points() if point.startswith(path + "/")]


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [_unescaped(line.split(" ", 5)[4]) for line in file]


def _unescaped(text: str) -> str:
    """A path of mountinfo, where blanks and backslashes are written in octal."""
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _home_in(root: str) -> str:
    """Where uid 0 is at home in a foreign root. Nothing there is followed: a symlink would lead out of it."""
    homes = ["/root"]
    with contextlib.suppress(OSError, ValueError):
        if _is_directory(f"{root}/etc"):
            fd = os.open(f"{root}/etc/passwd", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd, encoding="utf-8", errors="surrogateescape") as file:
                rows = [line.split(":") for line in file.read(1 << 16).splitlines()]
            homes = [row[5] for row in rows if len(row) == 7 and row[2] == "0"] + homes
    for home in homes:
        parts = home.strip("/").split("/")
        steps = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        if (
            home.startswith("/")
            and ".." not in parts
            and all(_is_directory(f"{root}/{one}") for one in steps)
        ):
            return home
    return "/"


def _is_directory(path: str) -> bool:
    """Whether `path` itself is one, not what a symlink there leads to."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _python_libraries() -> list[str]:
    try:
        return sorted(name for name in os.listdir("/usr/lib") if name.startswith("python"))
    except OSError:
        return []


def _identity(entries: tuple[Entry, ...], binds: tuple[Bind, ...], files: Iterable[str]) -> str:
    digest = hashlib.sha256(_FORMAT)

    def add(*parts: object) -> None:
        # Lengths keep one sequence of parts from reading like another.
        for part in parts:
            data = part if isinstance(part, bytes) else os.fsencode(str(part))
            digest.update(b"%d:" % len(data) + data)

    for entry in entries:
        match entry:
            case Dir():
                add("dir", entry.path, entry.mode)
            case Symlink():
                add("link", entry.path, entry.target)
            case File():
                add("file", entry.path, entry.mode, entry.content)
    for bind in binds:
        add("bind", bind.target, bind.read_only, bind.recursive, *_stamp(bind.source))
    for name in files:
        add("stamp", name, *_stamp(name))
    return digest.hexdigest()


def _stamp(path: str | Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns
