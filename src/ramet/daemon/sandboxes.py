"""The operations on sandboxes and snapshots: what a client asks for becomes the engine's work.

Each sandbox that is made goes to the client in a message of its own, as soon as it runs, and before the
answer: ``{"made": NUMBER, "info": {...}}`` with four descriptors, its session and the near ends of stdin,
stdout and stderr; a fifth is that of a kernel's channel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ramet._descriptors import close_all
from ramet.daemon.lanes import open_lane
from ramet.daemon.sessions import open_session
from ramet.engine.plan import environment_of
from ramet.engine.snapshots import told
from ramet.errors import RametError
from ramet.models.commands import SandboxLane
from ramet.models.sandboxes import SandboxInfo
from ramet.models.snapshots import SnapshotList

if TYPE_CHECKING:
    from ramet.daemon.server import Connection
    from ramet.engine.sandboxes import Sandboxes
    from ramet.engine.standing import Sandbox
    from ramet.models.commands import SandboxLaneRequest
    from ramet.models.creation import BeginRequest, CreateRequest
    from ramet.models.events import EventBatch, EventsRequest
    from ramet.models.forks import (
        ForkLaneInfo,
        ForkLaneRequest,
        ForkReport,
        ForkRequest,
        PromoteRequest,
        RollbackRequest,
    )
    from ramet.models.lineage import LineageTree
    from ramet.models.packs import PackRequest, UnpackRequest
    from ramet.models.sandboxes import ListRequest, SandboxList, SandboxRequest
    from ramet.models.snapshots import ImportRequest, Snapshot, SnapshotName, SnapshotRequest
    from ramet.models.status import Empty
    from ramet.native.channels import Channel

Perform = Callable[[Any, "Connection"], Awaitable[Any]]


class SandboxOperations:
    """The rows of the table that are about sandboxes that stay."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        self.table: dict[str, Perform] = {
            "sandbox.create": self._create,
            "sandbox.fork": self._fork,
            "sandbox.lane": self._lane,
            "sandbox.snapshot": self._snapshot,
            "sandbox.kill": self._kill,
            "sandbox.list": self._list,
            "sandbox.commands": self._commands,
            "sandbox.begin": self._begin,
            "sandbox.attach": self._attach,
            "sandbox.rollback": self._rollback,
            "sandbox.promote": self._promote,
            "events": self._events,
            "lineage": self._lineage,
            "snapshot.list": self._list_snapshots,
            "snapshot.compact": self._compact_snapshot,
            "snapshot.import": self._import_snapshot,
            "snapshot.pack": self._pack_snapshot,
            "snapshot.unpack": self._unpack_snapshot,
            "snapshot.remove": self._remove_snapshot,
        }

    async def _create(self, request: CreateRequest, client: Connection) -> SandboxInfo:
        sandbox, channel = await self._sandboxes.create(request)
        _deliver(client, 0, sandbox, channel)
        return sandbox.info()

    async def _fork(self, request: ForkRequest, client: Connection) -> ForkReport:
        def deliver(number: int, sandbox: Sandbox, channel: Channel) -> None:
            _deliver(client, number, sandbox, channel)

        return await self._sandboxes.fork(request, deliver, lambda: not client.closed)

    async def _lane(self, request: ForkLaneRequest, client: Connection) -> ForkLaneInfo:
        core, info = await self._sandboxes.fork_lane(request)
        if request.socket:
            client.pass_on({"made": 0, "info": {}}, [await open_lane(core)])
        return info

    async def _snapshot(self, request: SnapshotRequest, client: Connection) -> Snapshot:
        taken = await self._sandboxes.snapshot(request)
        if client.closed:
            # Nobody hears of it, so nobody would ever take it away.
            await self._sandboxes.remove_snapshot(request.name)
        return taken

    async def _kill(self, request: SandboxRequest, _client: Connection) -> SandboxInfo:
        return await self._sandboxes.kill(request.sandbox)

    async def _list(self, request: ListRequest, _client: Connection) -> SandboxList:
        return await self._sandboxes.listed(request)

    async def _events(self, request: EventsRequest, client: Connection) -> EventBatch:
        return await self._sandboxes.events_after(request, client.when_closed)

    async def _lineage(self, request: ListRequest, _client: Connection) -> LineageTree:
        return await self._sandboxes.tree(request)

    async def _begin(self, request: BeginRequest, _client: Connection) -> SandboxInfo:
        return (await self._sandboxes.begin(request)).info()

    async def _rollback(self, request: RollbackRequest, client: Connection) -> SandboxInfo:
        sandbox, channel = await self._sandboxes.rollback(request)
        _deliver(client, 0, sandbox, channel, known=True)
        return sandbox.info()

    async def _promote(self, request: PromoteRequest, _client: Connection) -> SandboxInfo:
        return (await self._sandboxes.promote(request)).info()

    async def _attach(self, request: SandboxRequest, client: Connection) -> SandboxInfo:
        sandbox = await self._sandboxes.attached(request.sandbox)
        fds: list[int] = []
        try:
            fds = sandbox.lend()
            fds.insert(0, open_session(sandbox, owner=False, streams=bool(fds)))
        except OSError as error:
            if fds:
                close_all(fds)
                sandbox.take_back()
            text = f"no descriptor is left for the sandbox's streams: {error.strerror}"
            raise RametError("busy", text, errno=error.errno) from None
        client.pass_on({"made": 0, "info": sandbox.info().to_wire()}, fds)
        return sandbox.info()

    async def _commands(self, request: SandboxLaneRequest, client: Connection) -> SandboxLane:
        sandbox = await self._sandboxes.look_up(request.sandbox, ended=request.ended)
        if request.ending:
            await self._sandboxes.wait_gone(sandbox)
        if not sandbox.core.alive or (sandbox.end is not None and not request.ended):
            raise sandbox.refusal()
        sandbox.touch()
        if request.socket:
            client.pass_on({"made": 0, "info": {}}, [await open_lane(sandbox.core)])
        environment, home = sandbox.ground.beginnings()
        return SandboxLane(
            core_id=f"{sandbox.core.core_id:016x}",
            number=sandbox.number,
            environment={**environment_of(sandbox.limits), **environment},
            home=home,
            single_uid=sandbox.core.single_uid,
            limits=sandbox.limits.asked(),
            cgroups=sandbox.cgroups,
            user=sandbox.ground.user,
        )

    async def _list_snapshots(self, _request: Empty, _client: Connection) -> SnapshotList:
        return SnapshotList(await self._sandboxes.snapshots.all_told())

    async def _compact_snapshot(self, request: SnapshotName, _client: Connection) -> Snapshot:
        return await self._sandboxes.snapshots.compact(request.name)

    async def _import_snapshot(self, request: ImportRequest, _client: Connection) -> Snapshot:
        return await self._sandboxes.import_snapshot(request)

    async def _pack_snapshot(self, request: PackRequest, _client: Connection) -> Snapshot:
        return told(await self._sandboxes.snapshots.pack(request.name, request.path))

    async def _unpack_snapshot(self, request: UnpackRequest, _client: Connection) -> Snapshot:
        return await self._sandboxes.unpack_snapshot(request)

    async def _remove_snapshot(self, request: SnapshotName, _client: Connection) -> Snapshot:
        return await self._sandboxes.remove_snapshot(request.name)


def _deliver(
    client: Connection, number: int, sandbox: Sandbox, channel: Channel, *, known: bool = False
) -> None:
    """Takes `channel`. Nobody would ever hear of a sandbox whose client has gone, so that one is ended.

    Of one that is `known` others have heard: it lives on where it is detached. Raises RametError when its
    client cannot have it.
    """
    fds = channel.take_ours()
    lives_on = known and sandbox.ttl is not None
    try:
        if client.closed:
            _let_go(sandbox, "its owner went", lives_on=lives_on)
            return
        fds.insert(0, open_session(sandbox))
        client.pass_on({"made": number, "info": sandbox.info().to_wire()}, fds)
        fds = []
    except OSError as error:
        _let_go(sandbox, "the daemon had no descriptor left for its owner", lives_on=lives_on)
        text = f"no descriptor is left for the sandbox's streams: {error.strerror}"
        raise RametError("busy", text, errno=error.errno) from None
    finally:
        close_all(fds)


def _let_go(sandbox: Sandbox, note: str, *, lives_on: bool) -> None:
    if lives_on:
        sandbox.owner_gone()
    else:
        sandbox.kill(note)
