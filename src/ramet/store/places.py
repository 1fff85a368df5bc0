"""Where snapshots are: ``$XDG_DATA_HOME/ramet``, else ``~/.local/share/ramet``.

A snapshot becomes a running process, so its directory must be the user's own and closed to others: what
another user could write there would run as this one. Anything else is refused, and never repaired.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from ramet.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Mapping

SNAPSHOTS = "snapshots"
SCRATCH = "tmp"
OVERFLOW = "memory"
LOCK = "lock"
IMAGE = "image"


def data_path(environment: Mapping[str, str] = os.environ) -> str:
    """The path of the store, which need not exist."""
    shared = environment.get("XDG_DATA_HOME", "")
    if not os.path.isabs(shared):  # the XDG specification has relative ones ignored
        shared = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".local/share")
    return os.path.join(shared, "ramet")


def make_overflow(path: str) -> int | None:
    """A directory in the store `path` for files without a name, which core makes; None where there is none.

    The core of real root is nobody of the host: it may write there, and nobody else gets there.
    """
    place = f"{path}/{OVERFLOW}"
    try:
        os.makedirs(os.path.dirname(path) or ".", 0o700, exist_ok=True)
        for name in (path, place):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700)
        check(path)
        made = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, SnapshotError):
        return None
    try:
        if os.geteuid() == 0:
            os.fchmod(made, 0o1733)
    except OSError:
        os.close(made)
        return None
    return made


def make_store(path: str) -> int:
    """A descriptor of the directory `path`, made if need be and checked, as are the directories in it.

    Raises:
        SnapshotError: code ``store_unusable``.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", 0o700, exist_ok=True)
        for name in (path, f"{path}/{SNAPSHOTS}", f"{path}/{SCRATCH}"):
            try:
                os.mkdir(name, 0o700)
            except FileExistsError:
                check(name)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags)
    except OSError as error:
        raise _refused(error.filename or path, f"cannot be used: {error.strerror}") from None


def check(path: str) -> None:
    """Refuse a directory that is not this user's alone. Raises SnapshotError, OSError."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(path, "is not a directory")
    if status.st_uid != os.geteuid():
        raise _refused(path, f"belongs to uid {status.st_uid}")
    if status.st_mode & 0o022:
        raise _refused(path, f"has mode {stat.S_IMODE(status.st_mode):04o}: others can write it")


def _refused(path: str, fault: str) -> SnapshotError:
    return SnapshotError(
        "store_unusable",
        f"the directory of snapshots, {path}, {fault}",
        hint="set XDG_DATA_HOME to a directory of your own",
    )


def sync_directory(fd: int) -> None:
    """Have names that were made, moved or removed in the directory survive a power cut."""
    os.fsync(fd)
