"""The sandboxes that stay: made, forked, snapshot, ended, and remembered for a while after their end.

What is known of a living sandbox stands in its record in core as well, so that a daemon that comes after this
one can take over those that do not end with it. A sandbox has one command and ends with it. Core tells of the
command's end (EXITED) and, when no process is left, of the sandbox's (ENDED); only then is the result told.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import re
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from ramet._descriptors import close_all, copies
from ramet.engine import plan
from ramet.engine.ahead import Ahead, is_told, wanted_ahead
from ramet.engine.durable import ENVIRONMENT_MAX, Archive, Ground
from ramet.engine.events import Events
from ramet.engine.keeping import Keeper
from ramet.engine.lineage import Ancestry
from ramet.engine.listing import Listing
from ramet.engine.promotion import check_place, swap
from ramet.engine.records import Origin, read_record, shown_command
from ramet.engine.snapshots import Image, Snapshots, told
from ramet.engine.standing import LOST, First, Sandbox
from ramet.errors import (
    DaemonLost,
    InternalError,
    InvalidRequest,
    LimitUnsupported,
    RametError,
    SandboxEnded,
    Unforkable,
)
from ramet.models.commands import FIRST
from ramet.models.events import NOTE_MAX, Event
from ramet.models.forks import ForkLaneInfo, ForkReport, ForkRequest
from ramet.models.limits import BY_NAME
from ramet.models.names import near
from ramet.models.sandboxes import ForkWay, SandboxList
from ramet.models.snapshots import PAUSED
from ramet.models.users import ROOT, single_uid_error
from ramet.native import _protocol as p
from ramet.native.channels import Channel
from ramet.native.frames import Attributes, Frame, FrameError, attributes, raw, u32, u64
from ramet.native.runs import ENDED, end_of, explained
from ramet.native.started import outcome, recorded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ramet.engine.cores import Core, Cores
    from ramet.models.checks import OnUnsupported
    from ramet.models.creation import BeginRequest, CreateRequest
    from ramet.models.events import EventBatch, EventsRequest, Type
    from ramet.models.forks import Child, ForkLaneRequest, PromoteRequest, RollbackRequest
    from ramet.models.limits import Limits
    from ramet.models.lineage import LineageTree
    from ramet.models.packs import UnpackRequest
    from ramet.models.runs import RunEnd
    from ramet.models.sandboxes import KernelRef, ListRequest, SandboxInfo
    from ramet.models.snapshots import ImportRequest, Snapshot, SnapshotRequest
    from ramet.store.models import SnapshotInfo

    Deliver = Callable[[int, Sandbox, Channel], object]
    Wanted = Callable[[], bool]

WINDOW = 64
"""Children of one fork that core makes at once: each has three descriptors in flight."""
RETENTION_S = 300.0
PAST_MAX = 1000
END_TIMEOUT_S = 10.0
DYING_S = 0.3
"""How long the end of a sandbox is awaited whose process was gone, or going, when it was to be stopped."""
_PLACE = re.compile(r"pid (\d+) (.*?): (.*)", re.DOTALL)
_OF_THE_DYING = frozenset({"is exiting", "lives on without its first thread"})
TURN_S = 30.0
"""How long a snapshot waits for others of its sandbox, each of which takes milliseconds."""
TURN_STEP_S = 0.002


class Sandboxes:
    """All of them, of every core that this daemon has had."""

    def __init__(self, cores: Cores) -> None:
        archive = Archive(cores.settings.data)
        self.snapshots = Snapshots(archive, cores.ensure, self._snapshot_kept)
        self.ahead = Ahead(self._make_ahead, cores.spawn, bounded=bool(cores.settings.totals))
        self.events = Events()
        self.events.on_wait = self._await_events
        self.lineage = Ancestry(archive, cores.settings.path, cores.spawn, self._lineage_rebuilt)
        self._cores = cores
        self._keeper = Keeper(self.snapshots, cores.spawn, self._capture, self._finish)
        self._living: dict[int, Sandbox] = {}
        self._past: OrderedDict[int, Sandbox] = OrderedDict()
        self._listing = Listing()
        self._strays: dict[int, list[Frame]] = {}
        self._promoting = asyncio.Lock()

    def __len__(self) -> int:
        """How many live that somebody asked for."""
        return len(self._living) - self.spares

    def _lineage_rebuilt(self, why: str) -> None:
        self.events.note("rebuilt", note=f"the lineage was made anew: {why}")

    @property
    def spares(self) -> int:
        """How many live that were forked ahead."""
        return sum(one.spare for one in self._living.values())

    # --- looking ------------------------------------------------------------------------------------------

    async def find(self, key: str) -> Sandbox:
        """The living sandbox of this id or name.

        Raises SandboxEnded when it has ended, InvalidRequest when there never was one, or not for long.
        """
        found = _found(key, self._living)
        if found is None:
            await self._hear()
            found = _found(key, self._living)
        return found or await self._refuse(key)

    async def _hear(self) -> None:
        """Have core tell of what clients did past us. Whatever it is asked, it tells of that first."""
        for core in self._cores.living():
            with contextlib.suppress(RametError):
                await core.status()

    async def events_after(
        self, request: EventsRequest, when_gone: Callable[[Callable[[], object]], object]
    ) -> EventBatch:
        """As `Events.after`; who does not wait is told of everything up to now."""
        if not request.wait:
            await self._hear()
        return await self.events.after(request, when_gone)

    async def tree(self, request: ListRequest) -> LineageTree:
        """As `Ancestry.tree`, of everything up to now, or of those that fit `request` and their ancestors."""
        chosen = await self.told(request)
        tree = await self.lineage.tree(ended=request.ended)
        return tree.of([one.id for one in chosen]) if request.chooses else tree

    async def look_up(self, key: str, *, ended: bool) -> Sandbox:
        """As `find`; with `ended` also one that is remembered."""
        await self._hear()
        dead = _found(key, self._past) if ended else None
        return _found(key, self._living) or dead or await self._refuse(key)

    async def told(self, request: ListRequest) -> tuple[SandboxInfo, ...]:
        """The living ones, and if asked for those that are remembered; the oldest first."""
        await self._hear()
        self._forget_old()
        chosen = [*self._living.values(), *(self._past.values() if request.ended else ())]
        if request.sandbox is not None:  # to tell of a thousand for one takes 10 ms
            chosen = [one for one in chosen if request.sandbox in {one.id, one.name}]
        named = None
        if request.parent is not None:
            found = _found(request.parent, {**self._past, **self._living})
            named = None if found is None else found.id
        infos = [one.info() for one in sorted(chosen, key=lambda one: one.created) if one.shown]
        return tuple([info for info in infos if request.fits(info, named)] if request.chooses else infos)

    async def listed(self, request: ListRequest) -> SandboxList:
        """As `told`; of a list with a mark what has changed since then."""
        infos = await self.told(request)
        return SandboxList(infos) if request.since is None else self._listing.since(infos, request.since)

    def _of_id(self, key: str | None) -> Sandbox | None:
        return _of_id(key, self._living) or _of_id(key, self._past)

    async def _refuse(self, key: str) -> Sandbox:
        self._forget_old()
        dead = _found(key, self._past)
        if dead is not None:
            raise dead.refusal()
        past = await self.lineage.past(key)
        if past is not None:
            text = f"the sandbox {key} ended {max(0.0, time.time() - past.ended):.1f} s ago: {past.how}"
            raise SandboxEnded(text, sandbox=past.id)
        known = [label for one in self._living.values() for label in (one.id, one.name) if label]
        raise InvalidRequest.of(
            "sandbox", f"there is no sandbox {key!r}", code="unknown_sandbox", hint=near(key, known)
        )

    def _forget_old(self) -> None:
        horizon = time.time() - RETENTION_S
        while self._past:
            oldest = next(iter(self._past.values()))
            if len(self._past) <= PAST_MAX and oldest.ended > horizon:
                return
            self._past.popitem(last=False)

    # --- making -------------------------------------------------------------------------------------------

    async def create(self, request: CreateRequest) -> tuple[Sandbox, Channel]:
        """A sandbox whose command runs, and the near ends of its streams, which are the caller's.

        Raises InvalidRequest, IsolationError, DaemonError.
        """
        self._check_name(request.name)
        run = request.run
        core = await self._cores.ensure()
        if core.single_uid and request.user != ROOT:
            raise single_uid_error()
        root = await core.definitions.get(run.root, run.python, request.tools)
        origin = Origin(shown_command(run.argv), kernel=request.kernel, metadata=request.metadata)
        sandbox = self._begin(core, origin, run.limits, request.name, request.ttl)
        sandbox.keep_on = request.keep_on
        sandbox.ground = Ground(
            root.identity,
            (run.root, run.python, request.tools),
            spec=root.spec,
            environment={**root.environment, **_for_all(run.env)},
            home=root.home,
            user=request.user,
        )
        if request.detach and not sandbox.ground.fits_record():
            self._drop(sandbox)
            text = f"a detached sandbox's environment has at most {ENVIRONMENT_MAX} bytes"
            raise InvalidRequest.of("env", text, code="too_long")
        try:
            channel = Channel(detached=request.detach, kernel=request.kernel, shared=request.user != ROOT)
        except OSError as error:
            self._drop(sandbox)
            raise _no_descriptors(error) from None
        try:
            payload = root.create(run.limits, self._standing(sandbox, request.timeout))
            _learn_birth(sandbox, await self._ask(sandbox, p.CREATE, payload, []))
            streams = plan.streams_part(FIRST, run.limits, channel=request.kernel is not None)
            sandbox.first = First(
                run, root.spawn(run, sandbox.number, streams, request.user), channel.take_theirs()
            )
            self._stands(sandbox, channel)
            if not request.held:
                await self._begin_first(sandbox)
        except RametError as error:
            channel.close()
            self._give_up(sandbox)
            raise explained(error, run, request.user) from None
        return sandbox, channel

    async def begin(self, request: BeginRequest) -> Sandbox:
        """Start the command of a sandbox that was held, and set where later ones begin.

        Raises InvalidRequest, SandboxEnded, IsolationError, DaemonError.
        """
        sandbox = await self.find(request.sandbox)
        if request.home is not None:
            environment, _ = sandbox.ground.beginnings()
            sandbox.ground = dataclasses.replace(sandbox.ground, environment=environment, home=request.home)
        if sandbox.first is not None:
            run = sandbox.first.run
            try:
                await self._begin_first(sandbox)
            except RametError as error:
                self._give_up(sandbox)
                raise explained(error, run, sandbox.ground.user) from None
        elif request.home is not None and sandbox.ttl is not None:
            await self._write_record(sandbox)
        return sandbox

    async def _begin_first(self, sandbox: Sandbox) -> None:
        first, sandbox.first = sandbox.first, None
        assert first is not None  # noqa: S101  the caller's order
        started = await self._ask(sandbox, p.SPAWN, first.payload, first.fds)
        pid = attributes(started.payload).u32(p.TAG_PID)
        sandbox.origin = dataclasses.replace(sandbox.origin, pid=pid)
        if sandbox.ttl is not None:
            # Before anybody hears of it: a daemon that dies now leaves it to one that knows of it.
            await self._write_record(sandbox)
        self._lives("created", sandbox)
        if sandbox.ttl is not None:
            await self.lineage.write()  # so that its loss can be told

    async def fork(self, request: ForkRequest, deliver: Deliver, wanted: Wanted) -> ForkReport:
        """Children, each passed to `deliver` with its number and its streams when it runs.

        `deliver` takes both. `wanted` tells whether anybody waits still. Raises Unforkable, SandboxEnded,
        InvalidRequest, IsolationError, DaemonError when there is nothing to fork; what befalls single
        children is in the report.
        """
        for one in request.children:
            self._check_name(one.name)
        if request.snapshot is not None:
            image = await self.snapshots.find(request.snapshot)
            _check_limits_of(request, image.limits)
            with image.used():
                return ForkReport(errors=await self._children(image, request, [], deliver, wanted))
        sandbox = await self.find(request.sandbox or "")
        _check_limits_of(request, sandbox.limits)
        channels: list[Channel] = []
        sandbox.attach()
        try:
            # While core works on the snapshot.
            kernel = sandbox.origin.kernel
            image = await self._capture(
                sandbox, request.on_unsupported, lambda: channels.extend(_channels(request, kernel))
            )
            with image.used():
                image.drop()  # when the last of them is made
                errors = await self._children(image, request, channels, deliver, wanted)
        finally:
            sandbox.leave()
            for channel in channels:
                channel.close()
        return ForkReport(image.pause_ms, image.memory_bytes, image.file_bytes, image.by_twin, errors)

    async def _children(
        self,
        image: Image,
        request: ForkRequest,
        channels: list[Channel],
        deliver: Deliver,
        wanted: Wanted,
    ) -> tuple[tuple[int, dict[str, object]], ...]:
        window = asyncio.Semaphore(WINDOW)

        async def make(number: int) -> tuple[int, dict[str, object]] | None:
            own = request.children[number]
            async with window:
                if not wanted():
                    return None
                ready = await self.ahead.take(image, own, detach=request.detach)
                if ready is not None:
                    ready[0].hand_out(own.metadata)
                    self._begun(ready[0], image)
                    return _delivered(deliver, number, *ready)
                try:
                    channel = (
                        channels.pop() if channels else Channel(detached=request.detach, kernel=image.kernel)
                    )
                    sandbox = await self._child(image, request, own, channel)
                except OSError as error:
                    return number, _no_descriptors(error).to_wire()
                except RametError as error:
                    return number, error.to_wire()
                self._begun(sandbox, image)
                if request.detach:
                    await self.lineage.write()
                return _delivered(deliver, number, sandbox, channel)

        failed = await asyncio.gather(*[make(number) for number in range(len(request.children))])
        self.ahead.fill(image)
        return tuple([one for one in failed if one is not None])

    async def rollback(self, request: RollbackRequest) -> tuple[Sandbox, Channel]:
        """A sandbox as it was in a snapshot, under the id, name and limits that it has; and its streams.

        Whatever runs in it is ended first. Raises as `fork` does; when the snapshot cannot be forked then,
        the sandbox has ended.
        """
        image = await self.snapshots.find(request.snapshot)
        before = await self.find(request.sandbox)
        detach = before.ttl is not None
        again = ForkRequest.of(
            snapshot=request.snapshot,
            names=None if before.name is None else [before.name],
            metadata=before.origin.metadata,
            detach=detach,
            ttl=before.ttl,
        )
        with image.used():
            try:
                channel = Channel(detached=detach, kernel=image.kernel)
            except OSError as error:
                raise _no_descriptors(error) from None
            try:
                before.kill("it was rolled back")
                await self.wait_gone(before)
                if before.number in self._living:
                    text = f"the sandbox {before.label} was rolled back by another meanwhile"
                    raise InvalidRequest.of("sandbox", text, code="rolled_back")
            except RametError:
                channel.close()
                raise
            sandbox = await self._child(image, again, again.children[0], channel, instead=before)
        self._begun(sandbox, image)
        if detach:
            await self.lineage.write()
        return sandbox, channel

    async def promote(self, request: PromoteRequest) -> Sandbox:
        """A fork in the place of the one that it was forked from, which ends. Both go on if this raises.

        Raises InvalidRequest, SandboxEnded, and RametError with the code ``busy``.
        """
        async with self._promoting:
            sandbox = await self.find(request.sandbox)
            above = request.over or sandbox.origin.parent
            if above is None:
                text = f"the sandbox {sandbox.label} was not forked from another"
                raise InvalidRequest.of("sandbox", text, code="not_descendant")
            over = await self.find(above)
            check_place(sandbox, over, self._of_id)
            async with sandbox.capturing, over.capturing:
                await swap(sandbox, over, self._living)
        note = f"replaced by its fork, which was {over.id} until then and is {sandbox.id} now"
        over.kill(note)
        self.events.tell("promoted", sandbox, f"it was {over.id}")
        self.lineage.born(sandbox)
        sandbox.touch()
        await self.wait_gone(over)
        if sandbox.ttl is not None:
            await self.lineage.write()
        return sandbox

    async def _child(
        self,
        image: Image,
        request: ForkRequest,
        own: Child,
        channel: Channel,
        *,
        spare: bool = False,
        instead: Sandbox | None = None,
    ) -> Sandbox:
        """Takes `channel` when it fails. A `spare` is nobody's yet; the id of `instead` is free."""
        limits = image.limits.replace(**own.limits) if own.limits else image.limits
        origin = _origin_of_child(image, own.metadata)
        number = 0
        if instead is not None:
            limits, number = instead.limits, instead.number
            epoch = max(instead.origin.epoch, image.epoch) + 1
            origin = dataclasses.replace(origin, parent=instead.origin.parent, epoch=epoch)
            self._past.pop(number, None)
        try:
            sandbox = self._begin(image.core, origin, limits, own.name, request.ttl, number=number)
        except RametError:
            channel.close()
            raise
        sandbox.spare = spare
        sandbox.keep_on = request.keep_on
        sandbox.ground = image.ground_of_children()
        try:
            payload = self._standing(sandbox, own.timeout)
            payload += _plan_of_children(image.core, image.number, image.kernel, limits)
            made = await self._ask(sandbox, p.CREATE, payload, channel.take_theirs())
            _learn_birth(sandbox, made)
            self._stands(sandbox, channel)
        except RametError:
            channel.close()
            self._give_up(sandbox)
            raise
        return sandbox

    async def fork_lane(self, request: ForkLaneRequest) -> tuple[Core, ForkLaneInfo]:
        """What a client needs to fork a snapshot, or a sandbox as it runs, past us; and the core it is for.

        Raises InvalidRequest, SnapshotError, SandboxEnded, and what core answers.
        """
        if request.snapshot is None:
            source = await self.find(request.sandbox or "")
            origin = dataclasses.replace(source.origin, metadata={})
            like = Sandbox(source.core, 0, origin, limits=source.limits)
            like.ground = source.ground
            return source.core, _fork_lane(like, 0)
        image = await self.snapshots.find(request.snapshot)
        _check_own(image.limits, request.limits)
        limits = image.limits.replace(**request.limits) if request.limits else image.limits
        child = Sandbox(image.core, 0, _origin_of_child(image, {}), limits=limits)
        child.ground = image.ground_of_children()
        ahead = bool(wanted_ahead(image)) and not request.limits
        told = ahead and image.kernel is not None and is_told(image.kernel)
        return image.core, _fork_lane(child, image.number, ahead=ahead, told=told)

    async def _make_ahead(self, image: Image) -> tuple[Sandbox, Channel]:
        """A child that nobody has asked for yet."""
        request = ForkRequest.of(snapshot=image.name)
        channel = Channel(kernel=image.kernel)
        return await self._child(image, request, request.children[0], channel, spare=True), channel

    async def remove_snapshot(self, name: str) -> Snapshot:
        """Take a snapshot away; what was forked from it goes on. Raises as `Snapshots.remove`."""
        removed = await self.snapshots.remove(name)
        self.ahead.drop(name)
        self.events.note("removed", snapshot=name)
        self.lineage.removed(name)
        return removed

    async def import_snapshot(self, request: ImportRequest) -> Snapshot:
        """Have a snapshot of another store in this one. Raises as `Snapshots.bring`."""
        return self._brought(await self.snapshots.bring(request.name, request.store, request.named))

    async def unpack_snapshot(self, request: UnpackRequest) -> Snapshot:
        """Have a snapshot that is packed in a file. Raises as `Snapshots.unpack`."""
        return self._brought(await self.snapshots.unpack(request.path, request.name))

    def _brought(self, info: SnapshotInfo) -> Snapshot:
        self.events.note("snapshot", snapshot=info.name)
        self.lineage.kept(info)
        return told(info)

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Keep the state of a sandbox under a name. Raises as `fork` does."""
        sandbox = await self.find(request.sandbox)
        async with contextlib.AsyncExitStack() as reserved:
            await reserved.enter_async_context(self.snapshots.reserved(request.name))
            sandbox.attach()
            try:
                image = await self._capture(sandbox, request.on_unsupported)
            finally:
                sandbox.leave()
            image.notes = request.metadata
            if request.wait:
                return await self.snapshots.keep(request.name, image)
            pending = self.snapshots.writing(request.name, image)
            self._cores.spawn(self.snapshots.keep_later(request.name, image, reserved.pop_all()))
            return pending

    def _snapshot_kept(self, image: Image) -> None:
        kind: Type = "paused" if PAUSED in image.notes else "snapshot"
        self.events.note(kind, sandbox=image.parent, snapshot=image.name)
        if image.saved is not None:
            self.lineage.kept(image.saved)

    async def _capture(
        self,
        sandbox: Sandbox,
        on_unsupported: OnUnsupported,
        meanwhile: Callable[[], object] | None = None,
    ) -> Image:
        async with sandbox.capturing:
            core = sandbox.core
            number = core.next_snapshot()
            created = time.time()
            try:
                if sandbox.end is not None:
                    raise sandbox.refusal()
                payload = u64(p.TAG_SANDBOX, sandbox.number) + u32(p.TAG_SNAPSHOT, number)
                payload += u32(p.TAG_DROP, on_unsupported == "drop")
                asked = core.connection.begin(p.SNAPSHOT, payload, [])
                if meanwhile is not None:
                    meanwhile()
                found = attributes((await self._in_turn(core, payload, asked)).payload)
            except RametError as error:
                raise await self._why_not(sandbox, error) from None
        return Image(
            core=core,
            number=number,
            parent=sandbox.id,
            pid=sandbox.origin.pid,
            command=sandbox.origin.command,
            limits=sandbox.limits,
            pause_ms=found.u64(p.TAG_PAUSE_NS) / 1e6,
            memory_bytes=found.u64(p.TAG_MEMORY_BYTES),
            file_bytes=found.u64(p.TAG_FILE_BYTES),
            processes=found.u32(p.TAG_PROCESS_COUNT),
            capture_ms=found.u64(p.TAG_CAPTURE_NS) / 1e6,
            stem_ms=found.u64(p.TAG_STEM_NS) / 1e6,
            by_twin=bool(found.u32(p.TAG_BY_TWIN)),
            ways=ForkWay.parse(found.text(p.TAG_WAYS)),
            left_out=(*sandbox.origin.dropped, *found.text(p.TAG_DROPPED).splitlines()),
            ground=sandbox.ground,
            created=created,
            kernel=sandbox.origin.kernel,
            epoch=sandbox.origin.epoch,
        )

    @staticmethod
    async def _in_turn(core: Core, payload: bytes, asked: Awaitable[Frame]) -> Frame:
        """The answer to a SNAPSHOT, asked again while one is taken over a lane: nobody tells of its end."""
        deadline = time.monotonic() + TURN_S
        while True:
            try:
                return await asked
            except RametError as error:
                if error.code != "capturing" or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(TURN_STEP_S)
            asked = core.connection.begin(p.SNAPSHOT, payload, [])

    async def _why_not(self, sandbox: Sandbox, error: RametError) -> RametError:
        """A snapshot that failed because its sandbox was ending failed for the cause of that."""
        place = _PLACE.fullmatch(error.message) if error.code == "unforkable" else None
        if not isinstance(error, DaemonLost) and (place is None or place[3] in _OF_THE_DYING):
            # Core's word on its end may come after the tracer's, which found no process any more.
            patience = END_TIMEOUT_S if sandbox.ending or error.code == "unknown_sandbox" else DYING_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await sandbox.gone.wait()
        if sandbox.end is not None:
            return sandbox.refusal()
        if error.code != "unforkable":
            return error
        text = f"the sandbox {sandbox.label} cannot be forked: {error.message}"
        if place is None:
            return Unforkable(text)
        return Unforkable(text, pid=int(place[1]), process=place[2], what=place[3])

    # --- ending -------------------------------------------------------------------------------------------

    async def kill(self, key: str) -> SandboxInfo:
        """End a sandbox and wait until it has; one that ended before is told as it is.

        Raises InvalidRequest.
        """
        try:
            sandbox = await self.find(key)
        except SandboxEnded:
            sandbox = _found(key, self._past) or await self._refuse(key)
        sandbox.kill("by request")
        await self.wait_gone(sandbox)
        return sandbox.info()

    @staticmethod
    async def wait_gone(sandbox: Sandbox) -> None:
        """Wait for an end that is under way. Raises InternalError."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await sandbox.gone.wait()
        except TimeoutError:
            raise InternalError("internal", f"the sandbox {sandbox.label} does not end") from None

    def close(self) -> None:
        """The daemon ends, and core with everything in it."""
        self.ahead.close()
        for sandbox in list(self._living.values()):
            sandbox.note = sandbox.note or "the daemon ended"
            sandbox.writing = False
            self._finish(sandbox, sandbox.core.ended_as(LOST, reason="killed"))

    # --- core's words -------------------------------------------------------------------------------------

    def event(self, core: Core, frame: Frame) -> None:
        """CREATED, EXITED or ENDED of some sandbox."""
        try:
            if frame.kind == p.ENDED:
                self._ended(core, frame)
                return
            found = attributes(frame.payload)
            number = found.u64(p.TAG_SANDBOX)
            sandbox = self._living.get(number)
            if frame.kind == p.CREATED:
                self._made_past_us(core, number, found)
            elif sandbox is None:
                self._stray(core, number, frame)
            elif frame.kind in {p.COMMAND_BEGAN, p.COMMAND_OVER}:
                self._command_event(sandbox, frame.kind, found)
            elif frame.kind == p.OVER:
                self._keeper.over(sandbox)
            elif frame.kind == p.LET_GO:
                self._let_go(sandbox)
            elif frame.kind == p.EXITED and found.u32(p.TAG_COMMAND) == FIRST:
                sandbox.command_ended(_exit_of(found, sandbox))
        except FrameError:
            # Core is not believed less for one frame: what depends on it will time out by name.
            return

    def _ended(self, core: Core, frame: Frame) -> None:
        """No process is left in a sandbox. Raises FrameError."""
        number = ENDED.read(frame.payload)[0]
        sandbox = self._living.get(number)
        if sandbox is None:
            self._stray(core, number, frame)
        else:
            self._finish(sandbox, sandbox.core.run_end(frame))

    def _stray(self, core: Core, number: int, frame: Frame) -> None:
        """A core that is being adopted tells of ends before it lists who lives."""
        if not core.listed:
            self._strays.setdefault(number, []).append(frame)

    def _command_event(self, sandbox: Sandbox, kind: int, found: Attributes) -> None:
        """One of its further commands began, or ended. Raises FrameError."""
        number = found.u32(p.TAG_COMMAND)
        if missed := found.u64(p.TAG_MISSED):
            self.events.miss_commands(missed)
        if not sandbox.shown:
            return
        about = Event("", time.time(), "command_began", sandbox=sandbox.id, name=sandbox.name, command=number)
        if kind == p.COMMAND_BEGAN:
            words = " ".join(recorded(found.get(p.TAG_RECORD, b""))["command"])
            self.events.add(dataclasses.replace(about, note=words[:NOTE_MAX] or None))
            return
        reason, code, signal = outcome(found.u32(p.TAG_REASON), found.u32(p.TAG_STATUS))
        self.events.add(
            dataclasses.replace(about, type="command_ended", reason=reason, exit_code=code, signal=signal)
        )

    def _await_events(self) -> None:
        for core in self._cores.living():
            core.await_events(self.events.awaited)

    def _made_past_us(self, core: Core, number: int, found: Attributes) -> None:
        """A client made a sandbox over a lane, or claimed one that was forked ahead."""
        image = self.snapshots.of_number(core, found.u32(p.TAG_SNAPSHOT))
        told = read_record(found.get(p.TAG_RECORD, b""))
        if told is not None and told.name is not None:
            told = None  # names are ours to give
        sandbox = self._living.get(number)
        if sandbox is not None:
            if told is None:
                sandbox.hand_out({}, past_daemon=True)
            else:
                sandbox.hand_out(told.origin.metadata, ttl=told.ttl, past_daemon=True)
            self.ahead.gone(sandbox)
        elif told is not None:
            above = image or self._of_id(told.origin.parent)
            ground = told.ground if above is None else above.ground_of_children()
            sandbox = self._living[number] = Sandbox.past_us(core, number, told, ground)
            sandbox.setup_ms = found.u64(p.TAG_SETUP_NS) / 1e6
            sandbox.watched = bool(found.u64(p.TAG_WATCH))
        if sandbox is not None:
            if sandbox.ttl is not None:
                sandbox.returning = asyncio.Event()
            self._begun(sandbox, image)
        if image is not None:
            self.ahead.fill(image)

    def _let_go(self, sandbox: Sandbox) -> None:
        """Who made it over a lane has closed its session; it goes on."""
        if sandbox.returning is not None:
            sandbox.past_daemon = False
            self._cores.spawn(self._take_back(sandbox))

    async def _take_back(self, sandbox: Sandbox) -> None:
        while True:
            ends: list[int] = []
            number = sandbox.number
            # One that ends meanwhile has none.
            with contextlib.suppress(RametError):
                _, ends = await sandbox.core.connection.fetch(p.HELD, u64(p.TAG_SANDBOX, number))
            if sandbox.number == number and not sandbox.moving:
                break
            close_all(ends)  # which may be another's, who has the number now
        sandbox.returned(ends)

    async def attached(self, key: str) -> Sandbox:
        """As `find`, with the streams of one whose owner has just let go of it."""
        sandbox = await self.find(key)
        if sandbox.returning is not None:
            await self._hear()
        if sandbox.returning is not None and not sandbox.past_daemon:
            await sandbox.returning.wait()
        return sandbox

    def _begun(self, sandbox: Sandbox, image: Image | None) -> None:
        """A fork is somebody's now."""
        paused = image is not None and image.name is not None and PAUSED in image.notes
        self._lives("resumed" if paused else "forked", sandbox)

    def _lives(self, kind: Type, sandbox: Sandbox) -> None:
        self.events.tell(kind, sandbox)
        self.lineage.born(sandbox)
        if sandbox.core.awaits != self.events.awaited:  # it came meanwhile, or nobody waits any more
            sandbox.core.await_events(self.events.awaited)

    def adopt(self, core: Core, told: Attributes) -> bool:
        """Take over a sandbox that an earlier daemon left; False if it is not to stay."""
        number = told.u64(p.TAG_SANDBOX)
        if told.u32(p.TAG_OWNED):
            return False
        sandbox = Sandbox.from_record(core, number, told.get(p.TAG_RECORD, b""))
        if sandbox is None:
            return False
        sandbox.watched = bool(told.u64(p.TAG_WATCH))
        self._living[number] = sandbox
        self._keeper.watch(sandbox)
        sandbox.attach()
        sandbox.leave()
        self._lives("adopted", sandbox)
        if sandbox.replaced is not None:  # the daemon before this one did not come to it
            sandbox.kill(f"replaced by a fork of it, which is {sandbox.replaced} now")
        for frame in self._strays.pop(number, []):
            self.event(core, frame)
        return True

    async def adopted(self, core: Core) -> None:
        """All that there are have been taken over: their streams come along, where nobody else has them.

        What was told of sandboxes that nobody knows is of no use.
        """
        self._strays.clear()
        for sandbox in self.of_core(core):
            # One that ends meanwhile has none.
            with contextlib.suppress(RametError):
                _, ends = await core.connection.fetch(p.HELD, u64(p.TAG_SANDBOX, sandbox.number))
                sandbox.hold(ends)
                sandbox.take_back()

    def core_lost(self, core: Core) -> None:
        """Everything that core had is gone."""
        self.snapshots.core_lost(core)
        for sandbox in self.of_core(core):
            sandbox.note = sandbox.note or "core ended"
            self._finish(sandbox, core.ended_as(LOST))

    def core_ends(self, core: Core, note: str) -> None:
        """It is about to be ended with everything that it has."""
        self.snapshots.core_lost(core)
        for sandbox in self.of_core(core):
            sandbox.note = sandbox.note or note
            sandbox.writing = False
            self._finish(sandbox, core.ended_as(LOST, reason="killed"))

    def of_core(self, core: Core) -> list[Sandbox]:
        """Those that live in it."""
        return [one for one in self._living.values() if one.core is core]

    # --- the list -----------------------------------------------------------------------------------------

    def _check_name(self, name: str | None) -> None:
        if name is not None and _found(name, self._living) is not None:
            raise InvalidRequest.of(
                "name", f"there is a sandbox {name!r} already", code="name_taken",
                hint="take another name, or end that sandbox",
            )  # fmt: skip

    def _begin(
        self,
        core: Core,
        origin: Origin,
        limits: Limits,
        name: str | None,
        ttl: float | None,
        *,
        number: int = 0,
    ) -> Sandbox:
        """`number`: of one that has ended, whose id it gets; 0: a new one."""
        self._check_name(name)  # again: others may have come while the root was worked out
        while not number or number in self._living or number in self._past:
            number = secrets.randbits(48)
        sandbox = self._living[number] = Sandbox(core, number, origin, limits=limits, name=name, ttl=ttl)
        sandbox.attach()  # by whoever asked for it
        return sandbox

    def _stands(self, sandbox: Sandbox, channel: Channel) -> None:
        self._keeper.watch(sandbox)
        if sandbox.ttl is None:
            return
        try:
            sandbox.hold(copies(channel.ours))
        except OSError as error:
            raise _no_descriptors(error) from None

    def _finish(self, sandbox: Sandbox, end: RunEnd) -> None:
        if sandbox.writing:
            sandbox.last = end
            return
        self._living.pop(sandbox.number, None)
        self._past[sandbox.number] = sandbox
        if sandbox.spare:
            self.ahead.gone(sandbox)
        sandbox.finish(end)
        if sandbox.shown:
            self.events.tell("ended", sandbox)
            self.lineage.ended(sandbox)
        self._forget_old()
        if sandbox.core.leaving:
            self._cores.emptied(sandbox.core)

    def _give_up(self, sandbox: Sandbox) -> None:
        """It could not be made. Core may have it still, when its command was refused."""
        self._drop(sandbox)
        if sandbox.core.alive:
            sandbox.core.end_sandbox(sandbox.number)

    def _drop(self, sandbox: Sandbox) -> None:
        sandbox.drop_first()
        self._living.pop(sandbox.number, None)
        self._past.pop(sandbox.number, None)

    @staticmethod
    def _standing(sandbox: Sandbox, timeout: float | None) -> bytes:
        return plan.standing_part(
            sandbox.number,
            hostname=sandbox.hostname,
            wall=Keeper.wall(sandbox, timeout),
            owned=sandbox.ttl is None,
            record=sandbox.record(),
            keep="oom" in sandbox.keep_on,
        )

    @staticmethod
    async def _write_record(sandbox: Sandbox) -> None:
        payload = u64(p.TAG_SANDBOX, sandbox.number) + raw(p.TAG_RECORD, sandbox.record())
        with contextlib.suppress(RametError):  # of one that has ended already there is nothing to keep
            await sandbox.core.connection.begin(p.RECORD, payload, [])

    async def _ask(self, sandbox: Sandbox, kind: int, payload: bytes, fds: list[int]) -> Frame:
        frame = await sandbox.core.connection.begin(kind, payload, fds)
        if frame.kind == p.ENDED:  # before it stood
            self._finish(sandbox, sandbox.core.run_end(frame))
        if sandbox.end is not None:
            raise sandbox.refusal()
        return frame


def _of_id(key: str | None, among: dict[int, Sandbox]) -> Sandbox | None:
    """The one of this id and no other name, among a thousand in one step: the id is its number."""
    try:
        found = among.get(int(key or "", 16))
    except ValueError:
        return None
    return found if found is not None and found.id == key else None


def _found(key: str, among: dict[int, Sandbox]) -> Sandbox | None:
    """The one of this id, or the last one of this name, which may look like another's id."""
    return _of_id(key, among) or next((one for one in reversed(among.values()) if one.name == key), None)


def _delivered(
    deliver: Deliver, number: int, sandbox: Sandbox, channel: Channel
) -> tuple[int, dict[str, object]] | None:
    try:
        deliver(number, sandbox, channel)
    except RametError as error:
        return number, error.to_wire()
    return None


def _channels(request: ForkRequest, kernel: KernelRef | None) -> list[Channel]:
    made: list[Channel] = []
    try:
        count = min(len(request.children), WINDOW)
        made.extend(Channel(detached=request.detach, kernel=kernel) for _ in range(count))
    except OSError:
        return made  # the first child without one tells of it
    return made


def _origin_of_child(image: Image, metadata: Mapping[str, str]) -> Origin:
    live = image.name is None
    return Origin(
        image.command,
        image.pid,
        image.parent,
        image.name,
        pause_ms=image.pause_ms if live else None,
        by_twin=image.by_twin if live else None,
        ways=image.ways if live else (),
        dropped=image.left_out,
        kernel=image.kernel,
        epoch=image.epoch + 1,
        metadata=metadata,
    )


def _check_limits_of(request: ForkRequest, parents: Limits) -> None:
    """Before anything is made. Raises LimitUnsupported."""
    for child in request.children:
        _check_own(parents, child.limits)


def _check_own(parents: Limits, own: Mapping[str, int | float]) -> None:
    """Refuse more than a copied process can have. Raises LimitUnsupported."""
    for name, value in own.items():
        if BY_NAME[name].rlimit and value > getattr(parents, name):
            raise LimitUnsupported(
                "limit_unsupported",
                f"limits.{name}: {value} are more than its parent's, {getattr(parents, name)}, "
                "which are a limit of each process that a fork copies",
                field=f"limits.{name}",
                hint="give the parent more, or the fork as much or less",
            )


def _plan_of_children(core: Core, snapshot: int, kernel: KernelRef | None, limits: Limits) -> bytes:
    """What the plans of all children of a snapshot with these limits have in common."""
    return b"".join(
        (
            u32(p.TAG_SNAPSHOT, snapshot),
            plan.streams_part(FIRST, limits, channel=kernel is not None),
            plan.limits_part(limits, core.cgroups),
        )
    )


def _fork_lane(like: Sandbox, snapshot: int, *, ahead: bool = False, told: bool = False) -> ForkLaneInfo:
    encoded = _plan_of_children(like.core, snapshot, like.origin.kernel, like.limits)
    return ForkLaneInfo(
        core_id=f"{like.core.core_id:016x}",
        number=snapshot,
        encoded=base64.b64encode(encoded).decode("ascii"),
        info=like.info(),
        record=like.told(),
        ahead=ahead,
        told=told,
    )


def _no_descriptors(error: OSError) -> RametError:
    return RametError("busy", f"no pipes can be made: {error.strerror}", errno=error.errno)


def _learn_birth(sandbox: Sandbox, made: Frame) -> None:
    found = attributes(made.payload)
    sandbox.setup_ms = found.u64(p.TAG_SETUP_NS) / 1e6
    sandbox.watched = bool(found.u64(p.TAG_WATCH))


def _for_all(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that later commands have as well: all but the number of the kernel's channel."""
    return {name: value for name, value in env.items() if name != "RAMET_CHANNEL"}


def _exit_of(found: Attributes, sandbox: Sandbox) -> RunEnd:
    """How a command ended of which core told by EXITED. Raises FrameError."""
    return end_of(found)._replace(
        duration_ms=max(0.0, (time.time() - sandbox.created) * 1e3),
        setup_ms=sandbox.setup_ms,
        memory_limit=sandbox.limits.takeable,
        disk_limit=sandbox.limits.writable,
        single_uid=sandbox.core.single_uid,
        cgroups=sandbox.cgroups,
    )
