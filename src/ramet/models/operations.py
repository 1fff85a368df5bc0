"""The one table of operations: what a client can ask of a daemon, whatever the transport.

Each row names an operation, its typed request and the dataclass of its result.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ramet.models.runs import LaneInfo, LaneRequest, RunEnd, RunRequest
from ramet.models.status import DaemonStatus, Empty, Pong, Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    OPERATIONS: Mapping[str, Operation]

Streams = Literal["none", "descriptors", "made"]
"""What comes along: nothing, descriptors with the request, or what was made before the answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One row. Only an `idempotent` operation may be sent again when the daemon went away meanwhile."""

    name: str
    request: type[Any]
    result: type[Any]
    streams: Streams = "none"
    idempotent: bool = True


def _table() -> Mapping[str, Operation]:
    # Imported where the table is first read: a run needs none of these classes, and making one takes 0.5 ms.
    from ramet.models import commands, creation, events, forks, lineage, packs, sandboxes, snapshots

    rows = (
        Operation("run", RunRequest, RunEnd, streams="descriptors", idempotent=False),
        Operation("lane", LaneRequest, LaneInfo, streams="made"),
        Operation("doctor", Empty, Report),
        Operation("status", Empty, DaemonStatus),
        Operation("ping", Empty, Pong),
        Operation("shutdown", Empty, Pong),
        Operation("hand_over", Empty, Pong),
        Operation(
            "sandbox.create", creation.CreateRequest, sandboxes.SandboxInfo, streams="made", idempotent=False
        ),
        Operation("sandbox.fork", forks.ForkRequest, forks.ForkReport, streams="made", idempotent=False),
        Operation("sandbox.lane", forks.ForkLaneRequest, forks.ForkLaneInfo, streams="made"),
        Operation("sandbox.snapshot", snapshots.SnapshotRequest, snapshots.Snapshot, idempotent=False),
        Operation("sandbox.kill", sandboxes.SandboxRequest, sandboxes.SandboxInfo),
        Operation("sandbox.list", sandboxes.ListRequest, sandboxes.SandboxList),
        Operation("sandbox.attach", sandboxes.SandboxRequest, sandboxes.SandboxInfo, streams="made"),
        Operation("sandbox.begin", creation.BeginRequest, sandboxes.SandboxInfo, idempotent=False),
        Operation(
            "sandbox.rollback", forks.RollbackRequest, sandboxes.SandboxInfo, streams="made", idempotent=False
        ),
        Operation("sandbox.promote", forks.PromoteRequest, sandboxes.SandboxInfo, idempotent=False),
        Operation("sandbox.commands", commands.SandboxLaneRequest, commands.SandboxLane, streams="made"),
        # Not sent again: a daemon that was stopped is not to be started by who only looks on.
        Operation("events", events.EventsRequest, events.EventBatch, idempotent=False),
        Operation("lineage", sandboxes.ListRequest, lineage.LineageTree),
        Operation("snapshot.list", Empty, snapshots.SnapshotList),
        Operation("snapshot.compact", snapshots.SnapshotName, snapshots.Snapshot),
        Operation("snapshot.import", snapshots.ImportRequest, snapshots.Snapshot, idempotent=False),
        Operation("snapshot.pack", packs.PackRequest, snapshots.Snapshot, idempotent=False),
        Operation("snapshot.unpack", packs.UnpackRequest, snapshots.Snapshot, idempotent=False),
        Operation("snapshot.remove", snapshots.SnapshotName, snapshots.Snapshot, idempotent=False),
    )
    return MappingProxyType({row.name: row for row in rows})


def __getattr__(name: str) -> Any:
    if name != "OPERATIONS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    table = globals()["OPERATIONS"] = _table()
    return table
