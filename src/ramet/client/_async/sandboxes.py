"""All sandboxes of the user's daemon, whoever made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramet.client._async.api import current
from ramet.client._async.client import FORK_PATIENCE_S, AsyncClient
from ramet.models.sandboxes import ListRequest, SandboxInfo, SandboxList, SandboxRequest

if TYPE_CHECKING:
    from ramet.models.checks import OnUnsupported
    from ramet.models.lineage import LineageTree
    from ramet.models.snapshots import Snapshot


async def list(  # noqa: A001
    *,
    ended: bool = False,
    name: str | None = None,
    parent: str | None = None,
    snapshot: str | None = None,
    metadata: Mapping[str, str] | None = None,
    client: AsyncClient | None = None,
) -> tuple[SandboxInfo, ...]:
    """Those that live, and with `ended` those of the last minutes; the oldest first.

    Only those of this name, forked from the sandbox `parent` or from `snapshot`, with all of `metadata`.
    """
    request = ListRequest.of(ended=ended, name=name, parent=parent, snapshot=snapshot, metadata=metadata)
    answer = await (client or current()).ask("sandbox.list", request.to_wire())
    return SandboxList.from_wire(answer).sandboxes


async def lineage(
    *,
    ended: bool = False,
    name: str | None = None,
    parent: str | None = None,
    snapshot: str | None = None,
    metadata: Mapping[str, str] | None = None,
    client: AsyncClient | None = None,
) -> LineageTree:
    """Who was forked from what: all that lives or is kept, and its ancestors, earlier daemons' as well.

    With `ended` also what nothing comes from any more, as far as it is known of. The others choose sandboxes
    as in `list`: then these and their ancestors.
    """
    from ramet.models.lineage import LineageTree

    request = ListRequest.of(ended=ended, name=name, parent=parent, snapshot=snapshot, metadata=metadata)
    return LineageTree.from_wire(await (client or current()).ask("lineage", request.to_wire()))


async def kill(sandbox: str, *, client: AsyncClient | None = None) -> SandboxInfo:
    """End the sandbox of this id or name, and return when it has ended.

    Raises InvalidRequest when there is none.
    """
    request = SandboxRequest.from_wire({"sandbox": sandbox})
    return SandboxInfo.from_wire(await (client or current()).ask("sandbox.kill", request.to_wire()))


async def snapshot(
    sandbox: str,
    name: str,
    *,
    on_unsupported: OnUnsupported = "refuse",
    client: AsyncClient | None = None,
) -> Snapshot:
    """Keep the state of the sandbox of this id or name under `name`; else as `AsyncSandbox.snapshot`."""
    from ramet.models.snapshots import Snapshot, SnapshotRequest

    request = SnapshotRequest.of(sandbox, name, on_unsupported=on_unsupported)
    answer = await (client or current()).ask("sandbox.snapshot", request.to_wire(), patience=FORK_PATIENCE_S)
    return Snapshot.from_wire(answer)
