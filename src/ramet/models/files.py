"""Files in a sandbox: how they are named, and what is told of them."""

from __future__ import annotations

import dataclasses
import stat
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import InvalidRequest
from ramet.models.names import check_text

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH_MAX = 4096
MODE_MAX = 0o7777
ID_END = (1 << 32) - 1
"""An id that stands for none."""
MTIME_END = 1 << 33
RENEWED = frozenset({"/etc/hostname", "/etc/hosts", "/etc/machine-id"})
"""What is otherwise in every sandbox: its address by its name, its id as a machine."""
"""No two sandboxes share it, so no comparison tells of it."""
OnConflict = Literal["refuse", "overwrite", "keep"]
ChangeKind = Literal["added", "modified", "deleted"]
FileKind = Literal["file", "directory", "link", "fifo", "socket", "device"]
_KINDS: Mapping[int, FileKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def check_path(value: object, home: str = "/", field: str = "path") -> str:
    """`value` as an absolute path; a relative one begins at `home`. Raises InvalidRequest naming `field`."""
    path = check_text(value, field)
    if not path:
        raise InvalidRequest.of(field, "is empty")
    full = path if path.startswith("/") else f"{home.rstrip('/')}/{path}"
    if len(full.encode("utf-8", "surrogateescape")) >= PATH_MAX:
        raise InvalidRequest.of(field, "is longer than a path may be", code="too_long")
    return full


def check_target(value: object) -> str:
    """`value` as what a link says. Raises InvalidRequest naming ``target``."""
    target = check_text(value, "target")
    if not target:
        raise InvalidRequest.of("target", "is empty")
    if len(target.encode("utf-8", "surrogateescape")) >= PATH_MAX:
        raise InvalidRequest.of("target", "is longer than a path may be", code="too_long")
    return target


def check_mode(value: object, field: str = "mode") -> int | None:
    """`value` as permissions, None for none. Raises InvalidRequest naming `field`."""
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MODE_MAX:
        raise InvalidRequest.of(field, f"{value!r:.40} are no permissions", hint="as 0o644, up to 0o7777")
    return value


def check_owner(value: object) -> tuple[int, int] | None:
    """`value` as uid and gid, None for none. Raises InvalidRequest naming ``owner``."""
    if value is None:
        return None
    good = isinstance(value, (tuple, list)) and len(value) == 2
    if not good or any(type(one) is not int or not 0 <= one < ID_END for one in value):  # type: ignore[attr-defined]
        raise InvalidRequest.of("owner", f"{value!r:.40} is not a uid and a gid")
    return value[0], value[1]  # type: ignore[index]


def check_mtime(value: object) -> int | None:
    """`value`, seconds since the epoch, as nanoseconds; None for none.

    Raises InvalidRequest naming ``mtime``.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MTIME_END:
        raise InvalidRequest.of("mtime", f"{value!r:.40} is no number of seconds since 1970")
    return int(value * 1e9)


def kind_of(mode: int) -> FileKind:
    """What a mode says that a file is."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


@dataclasses.dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a sandbox. `mode` are its permissions, `mtime` seconds since the epoch.

    `path` is absolute; of what `list` tells it is the directory's and the name. `target` is what a link says.
    """

    path: str
    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    inode: int = 0
    links: int = 1
    target: str | None = None

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One file that is otherwise than it was when the sandbox was made. `was` is None for a new one."""

    path: str
    change: ChangeKind
    now: FileInfo | None = None
    was: FileInfo | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class FileEvent:
    """Something that happened below a directory that is watched.

    ``overflow`` says that events were lost, and that what is there has to be looked at anew.
    """

    kind: Literal[
        "created", "modified", "deleted", "moved_from", "moved_to", "attributes", "closed", "overflow"
    ]
    path: str
    is_dir: bool = False
