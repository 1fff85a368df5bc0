"""What goes into the store and comes out of it, besides descriptors' contents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ramet.store.files import MappedFile


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What core exports of a snapshot. The descriptors stay the caller's.

    `description` and `pages` are files, `uppers` directories, the topmost first.
    """

    description: int
    pages: int
    uppers: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Base:
    """What a snapshot's writable layers lie on.

    `recipe` is opaque here: from it the root is defined again. `identity` is the root's. `files` are those of
    the host that processes have mapped: (path inside, path on the host) on the way in.
    """

    identity: str
    recipe: bytes
    files: tuple[tuple[str, str], ...] = ()


class ParentRef(NamedTuple):
    """A snapshot that another was forked from, by name and by what is in it: names can be used again."""

    name: str
    content: str


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One snapshot on disk.

    `content` identifies memory, files and root, however they are stored; `parent` is what it builds upon.
    `memory_bytes` is the size of the page file that it gives back, `stored_bytes` what it takes on disk by
    itself, of which `page_bytes` are pages. `created` is in seconds since the epoch. `damage` says what is
    wrong with one that cannot be read; then the rest is empty.
    """

    name: str
    kind: str = ""
    created: float = 0.0
    content: str = ""
    parent: ParentRef | None = None
    memory_bytes: int = 0
    page_bytes: int = 0
    stored_bytes: int = 0
    layers: int = 0
    kernel: str = ""
    root: str = ""
    filter_hash: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    damage: str | None = None

    @property
    def ref(self) -> ParentRef:
        """What a snapshot that is forked from this one names as its parent."""
        return ParentRef(self.name, self.content)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedBase:
    """A Base as it was saved."""

    identity: str
    recipe: bytes
    files: tuple[MappedFile, ...]
