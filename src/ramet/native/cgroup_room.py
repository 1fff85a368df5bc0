"""Has a delegated cgroup give controllers although processes are in it, and undoes that.

A cgroup with processes gives none to its children (cgroups(7), "no internal processes"). Where a user has
one cgroup alone, that of a systemd scope or service or of a container, this program and those beside it are
in it. So they go into a child that bounds nothing, and come back when nothing else is left. All that is
remembered is the child itself: whoever comes later finds it and goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BESIDE = "ramet.beside"
ROUNDS_MAX = 100
"""What is forked while others are moved is found in the next round; who forks faster is left alone."""
DELEGATED = "user.delegate"
"""The attribute by which systemd (251) tells a user which cgroup is his to divide."""


def words(path: str) -> set[str]:
    """Those of a file of a cgroup; none when it cannot be read."""
    try:
        return set(Path(path).read_text().split())
    except OSError:
        return set()


def is_marked(directory: str) -> bool:
    """Whether systemd says that this cgroup is delegated: those above are systemd's own to write to."""
    try:
        return os.getxattr(directory, DELEGATED) == b"1"
    except OSError:
        return False


@contextlib.contextmanager
def held(directory: str) -> Iterator[None]:
    """Nobody else makes room in the cgroup, makes a core's in it, or undoes it, meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a copy may be in a child that is not executed yet
        os.close(descriptor)


def make_room(directory: str) -> bool:
    """Put everybody who is in the cgroup into a child; False, and all as it was, when that cannot be done."""
    beside = f"{directory}/{BESIDE}"
    try:
        if not _children(directory):
            # What it gives now is for threads, and no process could be in a child.
            _give_nothing(directory)
        with contextlib.suppress(FileExistsError):
            os.mkdir(beside, 0o755)
    except OSError:
        return False
    if _move_all(directory, beside):
        return True
    give_back(directory)
    return False


def give_back(directory: str) -> None:
    """Undo `make_room`, unless the cgroup has other children, which may need what it gives them."""
    beside = f"{directory}/{BESIDE}"
    if _children(directory) != [BESIDE] or _children(beside):
        return
    with contextlib.suppress(OSError):
        _give_nothing(directory)  # as before: processes were in it
        if _move_all(beside, directory):
            os.rmdir(beside)


def _give_nothing(directory: str) -> None:
    control = f"{directory}/cgroup.subtree_control"
    for name in words(control):
        Path(control).write_text(f"-{name}")


def _children(directory: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _move_all(source: str, target: str) -> bool:
    for _ in range(ROUNDS_MAX):
        pids = words(f"{source}/cgroup.procs")
        if not pids:
            return True
        if "0" in pids:  # of a pid namespace that is not ours; to write 0 would move this process
            return False
        for pid in pids:
            try:
                Path(target, "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                continue  # it has ended
            except OSError:
                return False
    return False
