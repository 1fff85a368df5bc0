"""What is told of sandboxes and snapshots over HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ramet.models.sandboxes import SandboxInfo
from ramet.models.snapshots import BUILT_IN, Snapshot
from ramet.models.templates import Template
from ramet.server.encoding import encoded
from ramet.server.public import tag_of
from ramet.server.tenants import NETNS, TAG, Tenant, shown_metadata

MIB = 1 << 20


def tag_of_snapshot(snapshot: Snapshot) -> str:
    """The name that it is forked by: a built-in template's snapshot has another one on disk."""
    template = Template.from_snapshot(snapshot)
    return template.name if template is not None and template.name in BUILT_IN else snapshot.name


def directory_of(tag: str) -> str:
    """Where it is, below the tenant's own directory."""
    return f"snapshots/{tag}"


def sandbox(tenant: Tenant, info: SandboxInfo) -> dict[str, Any]:
    """One sandbox, with forkd's fields and ours."""
    memory = info.limits.get("memory")
    end = info.end
    return {
        "id": info.id,
        "snapshot_tag": info.metadata.get(TAG) or tag_of(info.snapshot or ""),
        "netns": info.metadata.get(NETNS),
        "guest_addr": tenant.guests.address(info.id),
        "created_at_unix": int(info.created),
        "pid": info.pid or None,
        "memory_limit_mib": None if memory is None else int(memory) // MIB,
        "has_branched": tenant.branches.get(info.id, 0) > 0,
        "last_branch_memory_path": None,
        "branch_count": tenant.branches.get(info.id, 0),
        "name": info.name,
        "status": info.status,
        "parent": info.parent,
        "kernel": info.kernel and info.kernel.name,
        "metadata": shown_metadata(info),
        "ttl": info.ttl,
        "limits": dict(info.limits),
        "enforced_by": dict(info.enforced_by),
        "epoch": info.epoch,
        "pause_ms": info.pause_ms,
        "setup_ms": info.setup_ms,
        "single_uid": info.single_uid,
        "ways": [way._asdict() for way in info.ways],
        "dropped": list(info.dropped),
        "command": list(info.command),
        "ended": info.ended,
        "end": None if end is None else end._asdict(),
        "note": info.note,
    }


def page(tenant: Tenant, told: Iterable[dict[str, Any]]) -> bytes:
    """A list of sandboxes, each as the daemon told it, as JSON."""
    return tenant.rows.write(
        told,
        lambda number: (tenant.branches.get(number, 0), tenant.guests.address(number)),
        lambda one: encoded(sandbox(tenant, SandboxInfo.from_wire(one))),
    )


def snapshot(one: Snapshot, *, public: bool = False) -> dict[str, Any]:
    """One snapshot. What is absent is left out, as forkd does. `public`: every tenant may fork it."""
    tag = tag_of_snapshot(one)
    told = {
        "tag": tag,
        "dir": directory_of(one.name),
        "created_at_unix": int(one.created),
        "branched_from": one.sandbox or None,
        "pause_ms": math.ceil(one.pause_ms),
        "pause_us": round(one.pause_ms * 1000),
        "warning": one.damage,
        "status": one.status,
        "bootable": one.status == "ready" and one.damage is None,
        "parent_tag": one.parent and tag_of(one.parent),
        "memory_bytes": one.memory_bytes,
        "file_bytes": one.file_bytes,
        "disk_bytes": one.disk_bytes,
        "processes": one.processes,
        "by_twin": one.by_twin,
        "durable": one.durable,
        "kernel": one.kernel and one.kernel.name,
        "template": Template.from_snapshot(one) is not None,
        "ways": [way._asdict() for way in one.ways] or None,
        "dropped": list(one.dropped) or None,
        "public": public or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def unbuilt(tag: str) -> dict[str, Any]:
    """A built-in template that its first use makes."""
    return {
        "tag": tag, "dir": directory_of(tag), "created_at_unix": 0, "status": "ready", "bootable": True,
        "kernel": BUILT_IN[tag], "template": True,
    }  # fmt: skip
