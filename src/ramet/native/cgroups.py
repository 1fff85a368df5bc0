"""Where a core's cgroups can be, and who makes and removes them.

Core's user owns a cgroup below this process's own, in version 2 or below the nearest that has controllers to
give; in it core makes one for each sandbox. What exists is written down in the runtime directory, so that
whoever comes after a daemon that was killed removes it. Nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.native import cgroup_room
from ramet.native.cgroup_room import words

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTE = "cgroups"
"""File in the runtime directory: one directory a line."""
WANTED = ("memory", "cpu", "pids", "io")
OLD_NAMES = {"io": "blkio"}
"""What version 1 calls a controller, where that is something else."""
COUNTS_TIME = "cpuacct"
"""Version 1's, which bounds nothing. In version 2 each cgroup counts what has been run in it."""
PREFIX = "ramet-"
ABANDONED_S = 60.0
SWAPS = "/proc/swaps"
SWAP_FILES = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
"""Not there where the kernel keeps no account of who has what in swap (``swapaccount=0``)."""
SHARES = 4 * 1024
"""Of processor time, for all sandboxes of a core together: as many as of 4 processes."""
_young: set[str] = set()
"""What was made and no core is in yet."""
_noting = threading.RLock()
"""One core may be buried while the next is started."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Directories in which a core's own can be made: by controller in version 1, the same one in version 2.

    `why` says what is lacking, where there is no place at all, or not for all of WANTED.
    """

    version: int = 0
    parents: tuple[tuple[str, str], ...] = ()
    why: str | None = None


NOWHERE = Place()


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What is given to a core: its option, the descriptors in it, and the directories."""

    option: str
    descriptors: tuple[int, ...]
    directories: tuple[str, ...]

    def close(self) -> None:
        """Core is in them, or will never be. Closes this process's descriptors."""
        _young.difference_update(self.directories)
        for descriptor in self.descriptors:
            os.close(descriptor)


def find_place(proc: str = "/proc/self", root: str = "") -> Place:
    """Where cgroups can be made here: version 2 if it has something to give, else version 1.

    `proc` and `root` are for tests: the directory of this process, and what stands before all other paths.
    """
    own = _own_cgroups(f"{proc}/cgroup")
    unified, legacy = _mounts(f"{proc}/mountinfo", root)
    reason = "no cgroup file system is mounted"
    if unified is not None and "" in own:
        place = _second_version(unified, own[""])
        if place.version:
            return place
        reason = place.why or reason
    parents = []
    for controller in [*[OLD_NAMES.get(name, name) for name in WANTED], COUNTS_TIME]:
        if (mount := legacy.get(controller)) is not None and controller in own:
            directory = _below(mount, own[controller])
            if directory is not None and _writable(directory):
                parents.append((controller, directory))
    if not any(name == "memory" for name, _ in parents):
        if legacy:
            reason = "version 1, whose cgroups belong to root alone" if os.geteuid() else reason
        return Place(why=reason)
    return Place(1, tuple(parents))


def _second_version(mount: tuple[str, str], own: str) -> Place:
    directory = _below(mount, own)
    top = mount[1]
    crowded = NOWHERE
    reason = f"version 2: {own} is not delegated to this user"
    while directory is not None and directory.startswith(top):
        if not _writable(directory):
            break
        enabled = _enable(directory)
        if "memory" in enabled:
            return Place(2, _all_in(directory, enabled))
        offered = words(f"{directory}/cgroup.controllers")
        if not crowded.version and "memory" in offered and words(f"{directory}/cgroup.procs"):
            crowded = Place(2, _all_in(directory, offered))
        reason = f"version 2: {directory} has no controller to give"
        if directory == top or cgroup_room.is_marked(directory):
            break
        directory = os.path.dirname(directory)
    # One that gives nothing only because somebody is in it: give() makes room.
    return crowded if crowded.version else Place(why=reason)


def _all_in(directory: str, controllers: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple([(name, directory) for name in WANTED if name in controllers])


def _enable(directory: str) -> set[str]:
    """The controllers that children of `directory` have, after those that can be had were asked for.

    A cgroup with processes of its own cannot give any, unless it is the root of all: cgroups(7). Others are
    not asked for without memory: to threads it may give `cpu` and `pids`, and then no process can be in a
    child (EOPNOTSUPP).
    """
    control = f"{directory}/cgroup.subtree_control"
    offered = words(f"{directory}/cgroup.controllers")
    for name in WANTED:
        if name in offered - words(control):
            with contextlib.suppress(OSError):
                Path(control).write_text(f"+{name}")
        if "memory" not in words(control):
            break
    return words(control)


def _own_cgroups(path: str) -> dict[str, str]:
    """This process's cgroup by controller; by "" in version 2."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            _, controllers, cgroup = line.split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), cgroup))
    return found


def _mounts(path: str, root: str) -> tuple[tuple[str, str] | None, dict[str, tuple[str, str]]]:
    """(what of it is shown, where) of version 2, and of each hierarchy of version 1 by controller."""
    unified, legacy = None, {}
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            words = line.split(" ")
            at = words.index("-", 6)
            shown, point, kind, options = words[3], root + words[4], words[at + 1], words[at + 3]
            if kind == "cgroup2":
                unified = (shown, point)
            elif kind == "cgroup":
                legacy.update(dict.fromkeys(options.split(","), (shown, point)))
    return unified, legacy


def _below(mount: tuple[str, str], cgroup: str) -> str | None:
    """The directory of `cgroup`; None when the mount shows another part of the hierarchy."""
    shown, point = mount
    if shown != "/" and not f"{cgroup}/".startswith(f"{shown}/"):
        return None
    if "/.." in cgroup:  # above the root of this process's cgroup namespace
        return None
    inside = cgroup.removeprefix(shown) if shown != "/" else cgroup
    return os.path.normpath(f"{point}/{inside}")


def _writable(directory: str) -> bool:
    return os.access(directory, os.W_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


# --- making and removing ----------------------------------------------------------------------------------


def give(place: Place, owner: tuple[int, int], note: int) -> Given | None:
    """Make what a core gets, for the user and group `owner`; None when there is no place for it, or no more.

    It is noted in the directory `note` first, so that it is found whatever happens.
    """
    if not place.version:
        return None
    with _noting:
        given = (
            _give_in_second(place.parents[0][1], owner, note)
            if place.version == 2
            else _give(place, owner, note)
        )
        if given is None:
            remove_noted(note)
        return given


def _give_in_second(directory: str, owner: tuple[int, int], note: int) -> Given | None:
    try:
        with cgroup_room.held(directory):
            place = _with_room(directory)
            return _give(place, owner, note) if place.version else None
    except FileNotFoundError:
        return None


def _with_room(directory: str) -> Place:
    """The place in version 2 again: what it gives now, if need be for room that is made."""
    enabled = _enable(directory)
    if "memory" not in enabled and words(f"{directory}/cgroup.procs") and cgroup_room.make_room(directory):
        enabled = _enable(directory)
        if "memory" not in enabled:
            cgroup_room.give_back(directory)
    return Place(2, _all_in(directory, enabled)) if "memory" in enabled else NOWHERE


def _sweep(parent: str) -> None:
    """Remove cores' cgroups in which nobody is, and whose note is lost: no core takes so long to start."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            named = entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
            if named and time.time() - entry.stat().st_ctime > ABANDONED_S and not _is_used(entry.path):
                _remove_tree(entry.path)


def _give(place: Place, owner: tuple[int, int], note: int) -> Given | None:
    for parent in {parent for _, parent in place.parents}:
        _sweep(parent)
    if place.version == 1:
        place = Place(1, _counted(place.parents, 1, {parent: parent for _, parent in place.parents}))
    name = f"{PREFIX}{secrets.token_hex(6)}"
    made = {parent: f"{parent}/{name}" for _, parent in place.parents}
    _young.update(made.values())
    _write_note(note, [*_read_note(note), *made.values()])
    descriptors: list[int] = []
    try:
        opened = {parent: _make(directory, owner) for parent, directory in made.items()}
        descriptors = [*opened.values()]
        _weigh(place, made)
    except OSError:
        _young.difference_update(made.values())
        return None
    if place.version == 1:
        option = [f"{controller}={opened[parent]}" for controller, parent in place.parents]
    else:
        held = _counted(place.parents, 2, made)
        option = [f"dir={descriptors[0]}", *[controller for controller, _ in held]]
    return Given(" ".join([str(place.version), *option]), tuple(descriptors), tuple(made.values()))


def _counted(
    parents: tuple[tuple[str, str], ...], version: int, places: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Without memory where swap is not counted and there is some.

    Who is at the limit would have more by being swapped out. So init watches, who counts it. `places` are
    where to look for each parent.
    """
    uncounted = {name for name, at in parents if not os.path.exists(f"{places[at]}/{SWAP_FILES[version]}")}
    return tuple([row for row in parents if row[0] != "memory" or "memory" not in uncounted or not _swaps()])


def _swaps() -> int:
    try:
        return max(0, len(Path(SWAPS).read_text().splitlines()) - 1)
    except OSError:
        return 0


def _weigh(place: Place, made: dict[str, str]) -> None:
    """In version 1 a cgroup beside processes counts as one of them, and this one holds all sandboxes."""
    for controller, parent in place.parents:
        if place.version == 1 and controller == "cpu":
            Path(made[parent], "cpu.shares").write_text(str(SHARES))


def _make(directory: str, owner: tuple[int, int]) -> int:
    os.mkdir(directory, 0o755)
    names = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
    for path in (directory, *[f"{directory}/{name}" for name in names]):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, *owner)
    return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def remove_noted(note: int) -> list[str]:
    """Remove what is noted in the directory `note`, and the note; the directories that somebody is in still.

    Those stay noted.
    """
    with _noting:
        noted = _read_note(note)
        left = [path for path in noted if not _remove_core(path)]
        if left:
            _write_note(note, left)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(NOTE, dir_fd=note)
        return left


def _remove_core(directory: str) -> bool:
    """False, and nothing was done, while somebody has it. With the last goes the room that was made."""
    if directory in _young:
        return False
    parent = os.path.dirname(directory)
    try:
        with cgroup_room.held(parent):
            if _is_used(directory) or not _remove_tree(directory):
                return False
            cgroup_room.give_back(parent)
    except FileNotFoundError:
        return True  # with all that was in it
    except OSError:
        return False
    return True


def _read_note(note: int) -> list[str]:
    try:
        with open(os.open(NOTE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=note), encoding="utf-8") as file:
            noted = file.read().splitlines()
    except FileNotFoundError:
        return []
    # Only names that are ours: the note stands where its owner may write.
    return [path for path in noted if os.path.basename(path).startswith(PREFIX)]


def _is_used(directory: str) -> bool:
    """Whether a core is in it. Then one that is empty now may be of an entry that is being born."""
    return any(words(f"{place}/cgroup.procs") for place in (directory, f"{directory}/core"))


def _write_note(note: int, directories: list[str]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(NOTE, flags, 0o600, dir_fd=note), "w", encoding="utf-8") as file:
        file.write("".join(f"{directory}\n" for directory in directories))


def _remove_tree(directory: str) -> bool:
    """rmdir(2) of a cgroup refuses one that has processes or children."""
    try:
        children = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    left = [child for child in children if not _remove_tree(child)]
    if left:
        return False
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
