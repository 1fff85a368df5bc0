# Generated from _async/snapshots.py by scripts/unasync.py. Do not edit.
"""Snapshots that have a name."""

from __future__ import annotations

from os import PathLike

from ramet.client._start import absolute
from ramet.client._sync.api import current
from ramet.client._sync.client import Client
from ramet.errors import InvalidRequest
from ramet.models.names import check_name, check_text, near
from ramet.models.packs import PackRequest, UnpackRequest
from ramet.models.snapshots import Snapshot, SnapshotList, SnapshotName
from ramet.models.templates import Template

# Gigabytes are written anew.
COMPACT_PATIENCE_S = 600.0


def list(*, client: Client | None = None) -> tuple[Snapshot, ...]:  # noqa: A001
    """All of them, by name, but those of templates (`ramet.templates.all_built`)."""
    told = SnapshotList.from_wire((client or current()).ask("snapshot.list")).snapshots
    return tuple([one for one in told if Template.from_snapshot(one) is None])


def all_kept(*, client: Client | None = None) -> tuple[Snapshot, ...]:
    """All of them, by name, those of templates too."""
    return SnapshotList.from_wire((client or current()).ask("snapshot.list")).snapshots


def get(name: str, *, client: Client | None = None) -> Snapshot:
    """The snapshot, or that of the template, of this name. Raises InvalidRequest when there is none."""
    known: dict[str, Snapshot] = {}
    for one in all_kept(client=client):
        template = Template.from_snapshot(one)
        if template is not None:
            known.setdefault(template.name, one)
        known[one.name] = one
    asked = check_name(check_text(name, "snapshot"), "snapshot")
    if asked not in known:
        raise InvalidRequest.of(
            "snapshot", f"there is no snapshot {asked!r}", code="unknown_snapshot", hint=near(asked, known)
        )
    return known[asked]


def compact(name: str | Snapshot, *, client: Client | None = None) -> Snapshot:
    """Have one build upon no other, so that its ancestors can be removed.

    What is in it stays the same, and what builds upon it does not notice. Raises InvalidRequest when there is
    none of that name, SnapshotError.
    """
    asked = name.name if isinstance(name, Snapshot) else name
    request = SnapshotName.from_wire({"name": asked})
    wire = (client or current()).ask("snapshot.compact", request.to_wire(), patience=COMPACT_PATIENCE_S)
    return Snapshot.from_wire(wire)


def pack(name: str | Snapshot, path: str | PathLike[str], *, client: Client | None = None) -> Snapshot:
    """Have one, or that of a template, in the new file `path`, with all that it builds upon.

    `unpack` makes it a snapshot again, also of another user and on another machine. What was in memory there
    is in the file: it is its owner's alone. Raises InvalidRequest when there is none of that name,
    SnapshotError.
    """
    found = name if isinstance(name, Snapshot) else get(name, client=client)
    request = PackRequest.from_wire({"name": found.name, "path": absolute(path)})
    wire = (client or current()).ask("snapshot.pack", request.to_wire(), patience=COMPACT_PATIENCE_S)
    return Snapshot.from_wire(wire)


def unpack(path: str | PathLike[str], name: str | None = None, *, client: Client | None = None) -> Snapshot:
    """Have what `pack` wrote as a snapshot, under `name` or the name that it had.

    Every byte is compared with its hash, which tells of damage and not of who made it: what is forked from it
    runs as code that its maker wrote. Raises InvalidRequest when the name is taken, SnapshotDamaged,
    SnapshotError; a fork raises SnapshotError where this machine has not what it needs.
    """
    request = UnpackRequest.from_wire({"path": absolute(path), "name": name})
    wire = (client or current()).ask("snapshot.unpack", request.to_wire(), patience=COMPACT_PATIENCE_S)
    return Snapshot.from_wire(wire)


def remove(name: str | Snapshot, *, client: Client | None = None) -> Snapshot:
    """Forget one; what was forked from it goes on. Raises InvalidRequest when there is none of that name."""
    asked = name.name if isinstance(name, Snapshot) else name
    request = SnapshotName.from_wire({"name": asked})
    return Snapshot.from_wire((client or current()).ask("snapshot.remove", request.to_wire()))
