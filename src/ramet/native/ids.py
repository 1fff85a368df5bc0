"""Which user and group ids core gets for its user namespace.

Real root and an ordinary user are one mode: core lives in a user namespace of its own, in which host uid 0
does not exist. Root is given an unused high range for it; with host root mapped, a guest without capabilities
could still write files of /proc and /sys that root owns, and RLIMIT_NPROC would do nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path

from ramet.errors import DaemonStartError

RANGE = 65536
ROOT_BASE = 0x70000000
"""First host id of root's ranges: above what distributions give to users."""
HELPER_DIRECTORIES = ("/usr/bin", "/bin", "/usr/local/bin")


@dataclasses.dataclass(frozen=True, slots=True)
class Ids:
    """The ids core maps, in the words of ``--uid-map`` and ``--gid-map``.

    `helpers` is the directory of newuidmap, None when the launcher writes the maps itself. `hold` is a socket
    that core keeps open for life: its name reserves the range.
    """

    uids: str
    gids: str
    helpers: str | None = None
    hold: socket.socket | None = None

    def owner(self) -> tuple[int, int]:
        """User and group of the host as whom core acts: those that are 0 inside."""
        return int(self.uids.split()[1]), int(self.gids.split(" ", 2)[1])

    def close(self) -> None:
        """Give up this process's copy of the reservation."""
        if self.hold is not None:
            self.hold.close()


# --- which ids
# -----------------------------------------------------------------------------------------------


def choose_ids() -> Iterator[Ids]:
    """What to try, best first. A reservation that was not used must be closed by the caller."""
    if os.geteuid() == 0:
        yield _reserve(mapped_ranges("/proc/self/uid_map"), mapped_ranges("/proc/self/gid_map"))
        return
    if (ids := delegated_ids()) is not None:
        yield ids
    yield Ids(f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1")


def mapped_ranges(path: str) -> list[tuple[int, int]]:
    """(first, count) of the ids that exist in this process's user namespace."""
    rows = [line.split() for line in Path(path).read_text().splitlines()]
    return [(int(first), int(count)) for first, _, count in rows]


def range_at(ranges: list[tuple[int, int]], index: int) -> tuple[int, int] | None:
    """(first, count) of root's block number `index`, None when there are no more.

    On a host the blocks begin at ROOT_BASE. In a container with fewer ids they are cut from the end of the
    largest range, and never contain its first id, which is the container's own root or user.
    """
    first = ROOT_BASE + index * RANGE
    if any(start <= first and first + RANGE <= start + count for start, count in ranges):
        return first, RANGE
    start, count = max(ranges, key=lambda row: row[1], default=(0, 0))
    if start + count > ROOT_BASE:
        return None
    size = min(RANGE, count // 2)
    first = start + count - (index + 1) * size
    return (first, size) if size and first > start else None


def _reserve(uids: list[tuple[int, int]], gids: list[tuple[int, int]]) -> Ids:
    """The first block that no other core uses: its name is bound while any copy of the socket is open."""
    index = 0
    while (block := range_at(uids, index)) and (group_block := range_at(gids, index)):
        hold = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            hold.bind(f"\0ramet-ids-{index}")
        except OSError:
            hold.close()
            index += 1
            continue
        return Ids(f"0 {block[0]} {block[1]}", f"0 {group_block[0]} {group_block[1]}", hold=hold)
    raise DaemonStartError(
        "no_ids",
        "root has no unused range of user ids for sandboxes here",
        hint="every range is taken by another ramet, or this container maps too few ids",
    )


def delegated_ids() -> Ids | None:
    """The ranges of /etc/subuid and /etc/subgid, when newuidmap and newgidmap can grant them."""
    uid, gid = os.getuid(), os.getgid()
    names = {str(uid)}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(uid).pw_name)
    uids = subordinate_range("/etc/subuid", names)
    gids = subordinate_range("/etc/subgid", names)
    helpers = find_helpers()
    if not (uids and gids and helpers):
        return None
    return Ids(f"0 {uid} 1,1 {uids[0]} {uids[1]}", f"0 {gid} 1,1 {gids[0]} {gids[1]}", helpers)


def subordinate_range(path: str, names: set[str]) -> tuple[int, int] | None:
    """(first, count) of the largest range the file gives to one of `names`, RANGE ids at most."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        owner, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if owner in names and first.isdecimal() and count.isdecimal() and int(count):
            found.append((int(first), min(int(count), RANGE)))
    return max(found, key=lambda row: row[1], default=None)


def find_helpers(directories: tuple[str, ...] = HELPER_DIRECTORIES) -> str | None:
    """The directory of a newuidmap and newgidmap that work: set-uid or with capabilities, and not defused."""
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        return None
    for directory in directories:
        if all(_is_privileged(f"{directory}/{name}") for name in ("newuidmap", "newgidmap")):
            return directory
    return None


def _is_privileged(path: str) -> bool:
    try:
        status = os.stat(path)
        if os.statvfs(path).f_flag & os.ST_NOSUID or status.st_uid != 0 or not status.st_mode & 0o111:
            return False
        if status.st_mode & 0o4000:
            return True
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
