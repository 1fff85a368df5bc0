# Generated from _async/snapshots.py by scripts/unasync.py. Do not edit.
"""Snapshots that have a name."""

from __future__ import annotations

from ramet.client._sync.api import shared
from ramet.client._sync.client import Client
from ramet.models.sandboxes import Snapshot, SnapshotList, SnapshotName
from ramet.models.templates import Template


def list(*, client: Client | None = None) -> tuple[Snapshot, ...]:  # noqa: A001
    """All of them, by name, but those of templates (`ramet.templates.all_built`)."""
    told = SnapshotList.from_wire((client or shared).ask("snapshot.list")).snapshots
    return tuple([one for one in told if Template.from_snapshot(one) is None])


def remove(name: str | Snapshot, *, client: Client | None = None) -> Snapshot:
    """Forget one; what was forked from it goes on. Raises InvalidRequest when there is none of that name."""
    asked = name.name if isinstance(name, Snapshot) else name
    request = SnapshotName.from_wire({"name": asked})
    return Snapshot.from_wire((client or shared).ask("snapshot.remove", request.to_wire()))
