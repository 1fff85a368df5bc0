"""Reading and removing what guests have made, whatever its permissions; their extended attributes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
import struct

from ramet.store.ids import INSIDE, OUTSIDE, IdMap, seen
from ramet.store.trees import ACLS, Entry, is_carried

_ACL_USER, _ACL_GROUP = 0x02, 0x08


def names_in(fd: int) -> list[bytes]:
    """What is in an open directory, sorted."""
    return sorted([os.fsencode(name) for name in os.listdir(fd)])


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A descriptor, and the permissions that are given back with it."""

    fd: int
    restore: int | None = None

    def close(self) -> None:
        """Close it."""
        if self.restore is not None:
            os.fchmod(self.fd, self.restore)
        if self.fd >= 0:
            os.close(self.fd)


NOTHING = Opened(-1)


def open_entry(directory: int, name: bytes, mode: int, *, is_directory: bool) -> Opened:
    """Open a file or directory for reading, also one of mode 0. Raises OSError.

    A guest may take all permissions from its own files. This process owns them, and if it is not root gives
    itself the right for as long as it needs it: a file's are looked at when it is opened and not again, a
    directory's at each name that is looked up in it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if is_directory else os.O_NONBLOCK)
    needed = 0o500 if is_directory else 0o400
    if mode & needed == needed or os.geteuid() == 0:
        try:
            return Opened(os.open(name, flags | os.O_NOATIME, dir_fd=directory))
        except PermissionError:  # of another owner
            return Opened(os.open(name, flags, dir_fd=directory))
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    path = f"/proc/self/fd/{handle}"
    try:
        os.chmod(path, mode | needed)
        try:
            fd = os.open(path, (flags | os.O_NOATIME) & ~os.O_NOFOLLOW)
        finally:
            os.chmod(path, mode)
        if is_directory:
            os.chmod(path, mode | needed)
    finally:
        os.close(handle)
    return Opened(fd, mode if is_directory else None)


# --- extended attributes ----------------------------------------------------------------------------------


def read_xattrs(fd: int, ids: IdMap) -> tuple[tuple[str, bytes], ...]:
    """Those that guests and overlays set, sorted. Labels of the host's security modules stay behind."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return ()
        raise
    kept = sorted([name for name in names if is_carried(name)])
    return tuple([(name, _acl(os.getxattr(fd, name), name, ids, INSIDE)) for name in kept])


def write_xattrs(fd: int, entry: Entry, ids: IdMap) -> None:
    """Set those of `entry`. Raises OSError, LookupError."""
    for name, value in entry.xattrs:
        os.setxattr(fd, name, _acl(value, name, ids, OUTSIDE))


def _acl(value: bytes, name: str, ids: IdMap, side: int) -> bytes:
    """Access lists hold ids as numbers of whoever reads them (acl(5), linux/posix_acl_xattr.h)."""
    if name not in ACLS:
        return value
    if len(value) % 8 != 4:
        raise OSError(errno.EINVAL, "has a malformed access list")
    parts = [value[:4]]
    for tag, permissions, number in struct.iter_unpack("<HHI", value[4:]):
        rows = {_ACL_USER: ids.uids, _ACL_GROUP: ids.gids}.get(tag)
        parts.append(
            struct.pack("<HHI", tag, permissions, number if rows is None else seen(rows, number, side))
        )
    return b"".join(parts)


# --- away -------------------------------------------------------------------------------------------------


def remove_tree(directory: int, name: str) -> None:
    """Remove `name` and what is below it, whatever the permissions. What is not there is no error."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=directory)
            return
        _empty(directory, os.fsencode(name))
        os.rmdir(name, dir_fd=directory)


def _empty(directory: int, top: bytes) -> None:
    stack = [_Doomed(directory, top)]
    try:
        while stack:
            at = stack[-1]
            if not at.below:
                stack.pop().close()
                if stack:
                    os.rmdir(at.name, dir_fd=stack[-1].fd)
                continue
            stack.append(_Doomed(at.fd, at.below.pop()))
    finally:
        for at in stack:
            at.close()


class _Doomed:
    """A directory whose files are gone; `below` are its directories."""

    def __init__(self, above: int, name: bytes) -> None:
        self.name = name
        # Search needs a right that the tree's own mode may not give.
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=above)
        self.fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        self.below: list[bytes] = []
        for one in names_in(self.fd):
            try:
                os.unlink(one, dir_fd=self.fd)
            except IsADirectoryError:
                self.below.append(one)

    def close(self) -> None:
        os.close(self.fd)
