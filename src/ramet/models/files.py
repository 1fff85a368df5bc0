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
MACHINE_ID = "/etc/machine-id"
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
