"""Snapshots of sandboxes, of which templates are some: what is asked for, and what is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import check_metadata_size, check_on_unsupported, check_sandbox, flag, only
from ramet.models.names import check_name, check_text
from ramet.models.sandboxes import ForkWay, KernelRef

if TYPE_CHECKING:
    from typing import Literal

    from ramet.models.checks import OnUnsupported

SNAPSHOT_METADATA_MAX = 4 << 20
"""As `METADATA_MAX`, of a snapshot: a template has its recipe and its log there."""
PAUSED = "paused"
"""What of a snapshot's metadata says that its sandbox was paused: the name that it had."""
BUILT_IN = {"python": "python", "bash": "bash", "node": "node", "base": "bash"}
"""Names of templates that are made on their first use, and the kernels in them."""


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Keep the state of `sandbox` under `name`.

    Without `wait` the answer comes as soon as the state is taken; it is written to disk after that.
    """

    sandbox: str
    name: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    on_unsupported: OnUnsupported = "refuse"
    wait: bool = True

    @classmethod
    def of(
        cls,
        sandbox: str,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        on_unsupported: object = "refuse",
        *,
        wait: object = True,
    ) -> Self:
        """The checked request. Raises InvalidRequest."""
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidRequest.of("metadata", "must be a mapping")
        noted = dict(metadata or {})
        check_metadata_size(noted, SNAPSHOT_METADATA_MAX)
        named = check_name(check_text(name, "name"))
        if named in BUILT_IN:
            raise InvalidRequest.of("name", f"{named!r} is a built-in template", code="name_taken")
        unsupported = check_on_unsupported(on_unsupported)
        return cls(check_sandbox(sandbox), named, noted, unsupported, flag(wait, "wait"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {**dataclasses.asdict(self), "metadata": dict(self.metadata)}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "name", "metadata", "on_unsupported", "wait"))
        return cls.of(
            data.get("sandbox", ""),
            data.get("name", ""),
            data.get("metadata"),
            data.get("on_unsupported", "refuse"),
            wait=data.get("wait", True),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotName:
    """One snapshot."""

    name: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming ``snapshot``."""
        only(data, ("name",))
        return cls(check_name(check_text(data.get("name", ""), "snapshot"), "snapshot"))


@dataclasses.dataclass(frozen=True, slots=True)
class ImportRequest:
    """Have the snapshot `name` of the store `store`, a directory of this user's.

    Without `named` it is the very file, which takes no room and has to build upon nothing; else a copy under
    that name, which builds upon nothing.
    """

    name: str
    store: str
    named: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("name", "store", "named"))
        store, named = check_text(data.get("store", ""), "store"), data.get("named")
        if not store.startswith("/"):
            raise InvalidRequest.of("store", f"{store[:80]!r} is not an absolute path", code="not_absolute")
        return cls(
            check_name(check_text(data.get("name", ""), "snapshot"), "snapshot"),
            store,
            None if named is None else check_name(check_text(named, "named"), "named"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sandbox at one instant, kept under a name.

    `memory_bytes` and `file_bytes` are what is kept of memory and of written files; `pause_ms` is how long
    the sandbox stood still, `capture_ms` how long it took to write down, `stem_ms` to be ready to be forked;
    `by_twin` says that no page of its first process's memory had to be copied for it, `ways` how the memory
    of each of the first 128 processes came along; `dropped` what was left out, as was asked. `kernel` is that
    of the sandbox, `metadata` what was noted of the snapshot.
    `sandbox` is the id of the one it was taken of, `created` seconds since the epoch. `durable` says whether
    it survives the end of the daemon; then `disk_bytes` is what it takes on disk by itself, and `parent` the
    snapshot that it builds upon. `damage` says what is wrong with one that cannot be read. `status` is
    ``writing`` until it is on disk, then ``ready``, or for some minutes ``failed`` for the reason `damage`.
    """

    name: str
    sandbox: str
    created: float
    pause_ms: float
    memory_bytes: int
    file_bytes: int
    processes: int = 1
    capture_ms: float = 0.0
    stem_ms: float = 0.0
    by_twin: bool = False
    ways: tuple[ForkWay, ...] = ()
    dropped: tuple[str, ...] = ()
    kernel: KernelRef | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    durable: bool = False
    disk_bytes: int = 0
    parent: str | None = None
    damage: str | None = None
    status: Literal["ready", "writing", "failed"] = "ready"

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object for people."""
        return {**self.to_wire(), "ways": [way._asdict() for way in self.ways]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        more = {
            "kernel": KernelRef.from_wire(data.get("kernel")),
            "ways": ForkWay.from_wire(data.get("ways", ())),
            "dropped": tuple(data.get("dropped", ())),
        }
        return cls(**{**data, **more})


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotList:
    """Snapshots by name."""

    snapshots: tuple[Snapshot, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"snapshots": [one.to_wire() for one in self.snapshots]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([Snapshot.from_wire(one) for one in data["snapshots"]]))


def paused_as(name: str, known: Iterable[Snapshot]) -> Snapshot | None:
    """The state that a sandbox was paused to: of this name, or the latest of a sandbox of this id or name.

    None also where a snapshot has this name that nobody paused to.
    """
    latest: Snapshot | None = None
    for one in known:
        if one.name == name:
            return one if PAUSED in one.metadata else None
        if PAUSED in one.metadata and name in {one.sandbox, one.metadata[PAUSED] or one.sandbox}:
            latest = one if latest is None or one.created > latest.created else latest
    return latest
