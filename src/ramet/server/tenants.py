"""The tenants: each with a daemon and a core of its own, and what the server knows of its sandboxes.

Nothing here has to survive the server: sandboxes are detached, so their daemon has them, and what the server
notes of one stands in its metadata, under names that begin with ``ramet.`` and are told to nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from ramet._version import __version__
from ramet.client._async.client import AsyncClient
from ramet.client._async.commands import AsyncCommands
from ramet.client._async.files import AsyncFiles
from ramet.client._async.sandbox import AsyncSandbox
from ramet.client._forks import Forkable
from ramet.errors import (
    DaemonError,
    DaemonLost,
    DaemonStartError,
    InvalidRequest,
    RametError,
    SandboxEnded,
    SnapshotError,
)
from ramet.models.checks import check_metadata, check_sandbox
from ramet.models.commands import SandboxLaneRequest
from ramet.models.forks import PromoteRequest
from ramet.models.names import check_name
from ramet.models.sandboxes import ListRequest, SandboxInfo, SandboxList
from ramet.models.snapshots import Snapshot, SnapshotList, SnapshotName
from ramet.native.locate import build_of, find_program
from ramet.server import notes
from ramet.server.faults import Refused
from ramet.server.guests import Guests
from ramet.server.public import RESERVED, Public, is_in, shown_as
from ramet.server.rows import Rows
from ramet.server.settings import Settings
from ramet.server.tokens import DEFAULT_TENANT, Identity
from ramet.server.workspaces import Workspaces
from ramet.wire.places import runtime_path

OWN = "ramet."
"""What names of metadata begin with that are the server's."""
LET_GO_S = 2.0
"""How long a kernel is kept at hand that nobody uses: its sandbox's time to live runs from then on."""
KEPT_ANSWERS = 1000
GOING_S = 30.0
"""How long a daemon may take that hands over."""
BOXES_MAX = 2000
UNKNOWN = 1 << 40
TOUCH_MIN_S, TOUCH_MAX_S = 0.3, 20.0
ENV, TAG, NETNS = f"{OWN}env", f"{OWN}tag", f"{OWN}netns"
KEY, ASKED = f"{OWN}key", f"{OWN}asked"
"""Of requests that may come twice: their key, what they asked, and the number of each child, as digests."""


class Box:
    """One sandbox, as far as the server has it at hand."""

    def __init__(self, sandbox: str) -> None:
        self.id = sandbox
        self.turn = asyncio.Lock()
        """Held by the one that runs code: a kernel does one thing at a time."""
        self.held: AsyncSandbox | None = None
        self.commands: AsyncCommands | None = None
        self.files: AsyncFiles | None = None
        self.users = 0
        self.kept = 0
        """How many have it live on while what they asked takes its time."""
        self.touching: asyncio.Task[None] | None = None
        self.ttl = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Somebody uses it."""
        self.users += 1
        self._stop_timer()

    def leave(self) -> None:
        """One of them is done."""
        self.users -= 1
        if not self.users:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(LET_GO_S, self.let_go)

    def let_go(self) -> None:
        """The daemon has the kernel's channel now, for whoever asks next."""
        self._stop_timer()
        held, self.held = self.held, None
        if held is not None:
            held.let_go()
        if self.files is not None:
            self.files.close()

    def close(self) -> None:
        """Close all of it that is open here."""
        self.let_go()
        self.files = self.commands = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Tenant:
    """One tenant's sandboxes."""

    def __init__(
        self, name: str, settings: Settings, public: Public | None, draining: Callable[[], bool]
    ) -> None:
        """Without `public` the sandboxes are those of the user who runs the server, in the user's daemon."""
        self.name = name
        self.public = public
        self.draining = draining
        self.settings = settings
        self.branches: OrderedDict[str, int] = OrderedDict()
        """How many snapshots were taken of a sandbox, by its id."""
        self.branching = 0
        self.streams = 0
        self.turns: dict[str, asyncio.Lock] = {}
        """Of workspaces, by name."""
        self.made = 0
        """How many sandboxes are being made."""
        self._kept_now: set[str] = set()
        """The names of snapshots that are being taken."""
        self._most = UNKNOWN
        self._grown = 0
        """At most so many live: each that is made counts, and ends are looked at when it is too many."""
        self.answers: OrderedDict[str, tuple[str, asyncio.Future[Any]]] = OrderedDict()
        self._boxes: OrderedDict[str, Box] = OrderedDict()
        place = os.path.join(settings.data, "tenants", name)
        self.store = os.path.join(place, "data")
        if public is None:
            # By its path: RAMET_URL is for clients, and could lead back here.
            self.client = AsyncClient(runtime_path())
        else:
            for path in (settings.data, os.path.dirname(place), place):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
            self.client = AsyncClient(os.path.join(place, "run"), data_dir=self.store)
        self.rows = Rows(self.client)
        self.guests = Guests(self.client, self._ids)
        os.makedirs(place, 0o700, exist_ok=True)
        self._removed_path = os.path.join(place, "removed.json")
        self._removed = set(notes.read(self._removed_path, []))
        self.workspaces = Workspaces(os.path.join(place, "workspaces.json"))

    # --- looking ------------------------------------------------------------------------------------------

    async def all(self, **chosen: Any) -> tuple[SandboxInfo, ...]:
        """Sandboxes, the oldest first."""
        return SandboxList.from_wire({"sandboxes": await self.told(**chosen)}).sandboxes

    async def told(self, **chosen: Any) -> list[dict[str, Any]]:
        """The same, as the daemon tells of them."""
        if all(value is None or value is False for value in chosen.values()):
            return await self.rows.all()
        answer = await self.client.ask("sandbox.list", ListRequest.of(**chosen).to_wire())
        found: list[dict[str, Any]] = answer["sandboxes"]
        return found

    async def _ids(self) -> set[str]:
        return {one["id"] for one in await self.told()}

    async def find(self, sandbox: str, *, ended: bool = False) -> SandboxInfo:
        """The one of this id or name. Raises InvalidRequest with the code ``unknown_sandbox``."""
        key = check_sandbox(sandbox)
        found = await self.all(ended=ended, sandbox=key)
        chosen = next((one for one in found if one.id == key), found[-1] if found else None)
        if chosen is None:
            raise InvalidRequest.of("sandbox", f"there is no sandbox {key!r}", code="unknown_sandbox")
        return chosen

    async def snapshots(self) -> tuple[Snapshot, ...]:
        """All, also those of templates; not those that are kept for what builds upon them alone."""
        return tuple(
            [
                one
                for one in await self._kept()
                if one.name not in self._removed and not one.name.startswith(RESERVED)
            ]
        )

    async def seen(self) -> tuple[Snapshot, ...]:
        """As `snapshots`, and the public templates; a name of one's own counts more."""
        own = await self.snapshots()
        if self.public is None:
            return own
        names = {one.name for one in own}
        public = await self.public.all()
        return (*own, *[shown_as(one, name) for name, one in public.items() if name not in names])

    async def chains(self) -> dict[str, Snapshot]:
        """By name all that is seen and what is kept for others alone, so also what each builds upon."""
        return {one.name: one for one in (*await self.seen(), *await self._kept())}

    async def is_public(self, tag: str) -> bool:
        """Whether it is a public template, and none of the tenant's own."""
        return self.public is not None and tag in await self.public.all() and not is_in(self.store, tag)

    async def source(self, tag: str) -> str:
        """What to fork for `tag`: a public template is linked first. Raises InvalidRequest."""
        if tag in self._removed or tag.startswith(RESERVED):
            raise InvalidRequest.of("snapshot", f"there is no snapshot {tag!r}", code="unknown_snapshot")
        if self.public is None or not await self.is_public(tag):
            return tag
        return await self.public.link(self.client, self.store, (await self.public.all())[tag])

    async def check_free(self, tag: str, field: str = "tag") -> str:
        """`tag` as a name for a new snapshot. Raises InvalidRequest."""
        if tag.startswith(RESERVED):
            raise InvalidRequest.of(field, f"begins with {RESERVED!r}, which is the server's")
        if await self.is_public(check_name(tag, field)):
            raise InvalidRequest.of(field, f"there is a public template {tag!r}", code="name_taken")
        if tag in self._removed:
            raise InvalidRequest.of(
                field, f"{tag!r} was removed by force, and is kept for what builds upon it",
                code="name_taken", hint="take another name, or compact or remove what builds upon it",
            )  # fmt: skip
        return tag

    async def _kept(self) -> tuple[Snapshot, ...]:
        return SnapshotList.from_wire(await self.client.ask("snapshot.list")).snapshots

    async def remove_snapshot(self, tag: str, *, force: bool = False) -> None:
        """Take one away; with `force` nobody sees it any more while others build upon it."""
        try:
            await self.client.ask("snapshot.remove", SnapshotName.from_wire({"name": tag}).to_wire())
        except SnapshotError as error:
            if error.code != "snapshot_in_use" or not force:
                raise
            self._note_removed({*self._removed, tag})
            return
        await self.reap_removed()

    async def reap_removed(self) -> None:
        """What was kept for others alone goes with the last of those."""
        public = {} if self.public is None else await self.public.all()
        current = {one.name for one in public.values()}
        while True:
            kept = await self._kept()
            linked = {one.name for one in kept if one.name.startswith(RESERVED)} - current
            free = (self._removed | linked) - {one.parent for one in kept}
            if not free:
                return
            for tag in free:
                with contextlib.suppress(InvalidRequest):
                    await self.client.ask("snapshot.remove", SnapshotName.from_wire({"name": tag}).to_wire())
            if self._removed & free:
                self._note_removed(self._removed - free)

    def _note_removed(self, tags: set[str]) -> None:
        notes.write(self._removed_path, sorted(tags))
        self._removed = tags

    # --- one sandbox --------------------------------------------------------------------------------------

    def box(self, sandbox: str) -> Box:
        """What is at hand of a sandbox."""
        found = self._boxes.get(sandbox)
        if found is None:
            found = self._boxes[sandbox] = Box(sandbox)
            if len(self._boxes) > BOXES_MAX:
                self._drop_oldest()
        else:
            self._boxes.move_to_end(sandbox)
        return found

    def at_hand(self, sandbox: object) -> tuple[Box, ...]:
        """What is at hand of a sandbox that is told by id or name, without asking for it."""
        return tuple([
            box for box in self._boxes.values()
            if sandbox in {box.id, box.held.name if box.held is not None else None}
        ])  # fmt: skip

    def _drop_oldest(self) -> None:
        boxes = self._boxes.values()
        idle = next((one for one in boxes if not one.users and one.id not in self.guests), None)
        if idle is not None:
            self.forget(idle.id)

    def take(self, sandbox: AsyncSandbox) -> SandboxInfo:
        """Have one at hand that was just made."""
        box = self.box(sandbox.id)
        info = sandbox.info
        if info.kernel is None:
            sandbox.let_go()
        else:
            box.let_go()
            box.held = sandbox
            box.hold()
            box.leave()
        self._know(box, info)
        return info

    def let_fork(self, info: SandboxInfo) -> Forkable:
        """Have its next forks go past the daemon, as far as core can be asked."""
        known = self.client.forkables.get(info.id)
        # After a rollback it is another one.
        if known is None or known.info.epoch != info.epoch:
            self.box(info.id)  # which is forgotten some time
            known = self.client.forkables[info.id] = Forkable(info)
        return known

    def _know(self, box: Box, info: SandboxInfo) -> None:
        """What is asked of it needs no more than this of the daemon."""
        if box.commands is None:
            box.commands = AsyncCommands(info.id, client=self.client, env=noted_env(info))
            box.ttl = info.ttl or 0.0

    def forget(self, sandbox: str) -> None:
        """It has ended, or is not asked for any more."""
        self.guests.close(sandbox)
        self.client.forkables.pop(sandbox, None)
        box = self._boxes.pop(sandbox, None)
        if box is not None:
            box.close()

    async def known(self, sandbox: str) -> Box:
        """What is at hand of the sandbox of this id or name. Raises InvalidRequest when there is none."""
        found = self._boxes.get(check_sandbox(sandbox))
        if found is not None and found.commands is not None:
            return found
        # Results of commands can be had for some minutes after their sandbox's end.
        info = await self.find(sandbox, ended=True)
        box = self.box(info.id)
        self._know(box, info)
        return box

    async def commands(self, sandbox: str) -> AsyncCommands:
        """Its commands. Raises InvalidRequest when there is no such sandbox."""
        commands = (await self.known(sandbox)).commands
        assert commands is not None  # noqa: S101  it was just made
        return commands

    async def files(self, sandbox: str) -> AsyncFiles:
        """Its files."""
        commands = await self.commands(sandbox)
        box = self.box(commands.sandbox)
        if box.files is None:
            box.files = AsyncFiles(commands)
        box.hold()
        box.leave()
        return box.files

    @contextlib.asynccontextmanager
    async def kept(self, sandbox: str) -> AsyncIterator[None]:
        """Have its time to live not run out while something that is asked of it takes its time."""
        box = await self.known(sandbox)
        box.kept += 1
        # One of hundreds of streams of a sandbox touches it for all.
        if box.touching is None:
            box.touching = asyncio.ensure_future(self._touch(box))
        try:
            yield
        finally:
            box.kept -= 1
            if not box.kept:
                touching, box.touching = box.touching, None
                touching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await touching

    async def _touch(self, box: Box) -> None:
        request = SandboxLaneRequest(box.id, socket=False).to_wire()
        while True:
            await asyncio.sleep(min(max(box.ttl / 3, TOUCH_MIN_S), TOUCH_MAX_S))
            # One that has ended says so to who waits for it.
            with contextlib.suppress(RametError):
                await self.client.ask("sandbox.commands", request)

    @contextlib.asynccontextmanager
    async def kernel(self, sandbox: str) -> AsyncIterator[AsyncSandbox]:
        """The sandbox with its kernel, for one at a time."""
        box = await self.known(sandbox)
        box.hold()
        try:
            async with box.turn:
                yield await self._held(box)
        except SandboxEnded:
            self.forget(box.id)
            raise
        finally:
            box.leave()

    async def _held(self, box: Box) -> AsyncSandbox:
        held = box.held
        if held is not None:
            try:
                if held.running:
                    return held
            except DaemonLost:
                pass  # another daemon may have it
            box.let_go()
        try:
            box.held = await AsyncSandbox.connect(box.id, client=self.client)
        except InvalidRequest:
            self.forget(box.id)
            raise
        return box.held

    async def rollback(self, sandbox: str, snapshot: str) -> SandboxInfo:
        """Have it be again as it was in a snapshot. Raises Refused while its kernel runs code."""
        box = await self.known(sandbox)
        if box.turn.locked():
            raise Refused(409, "kernel_busy", "its kernel runs code", hint="interrupt that, or wait")
        async with self.kernel(box.id) as held:
            await held.rollback(snapshot)
            if box.files is not None:
                box.files.close()
            box.files = box.commands = None
            return held.info

    async def promote(self, sandbox: str, over: str | None) -> SandboxInfo:
        """Have a fork take the place of another. Raises Refused while a kernel of the two runs code."""
        fork = await self.find(sandbox)
        place = await self.find(over or fork.parent or fork.id)
        for one in (fork, place):
            if (box := self._boxes.get(one.id)) is not None and box.turn.locked():
                raise Refused(409, "kernel_busy", "its kernel runs code", hint="interrupt that, or wait")
        request = PromoteRequest.of(fork.id, over and place.id)
        promoted = SandboxInfo.from_wire(await self.client.ask("sandbox.promote", request.to_wire()))
        # What is at hand was opened under the ids that they had.
        for number in (fork.id, place.id):
            self.forget(number)
            self.branches.pop(number, None)
        return promoted

    async def kill(self, sandbox: str) -> SandboxInfo:
        """End it, and return when it has ended."""
        ended = SandboxInfo.from_wire(
            await self.client.ask("sandbox.kill", {"sandbox": check_sandbox(sandbox)})
        )
        self.forget(ended.id)
        self.branches.pop(ended.id, None)
        return ended

    # --- what bounds a tenant -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def making(self, identity: Identity, n: int) -> AsyncIterator[None]:
        """Room for `n` more sandboxes. Raises Refused."""
        self.made += n
        try:
            living = self._most
            if living + self.made > identity.quota.sandboxes:
                # So many there are at most: some of those that were made have ended.
                before = self._grown
                living = len(await self.all())
                # Others may have made some while this was counted.
                living = self._most = living + self._grown - before
            if living + self.made > identity.quota.sandboxes:
                raise Refused(
                    429, "quota", f"the tenant {self.name} may have {identity.quota.sandboxes} sandboxes,"
                    f" has {living}, and {self.made} are being made",
                    hint="end some, or wait until they end", retry_after=5,
                )  # fmt: skip
            yield
            self._most += n
            self._grown += n
        finally:
            self.made -= n

    @contextlib.asynccontextmanager
    async def keeping(self, identity: Identity, name: str = "") -> AsyncIterator[None]:
        """Room for one more snapshot, which is to have that name, if it is known. Raises Refused."""
        found = {one.name for one in await self.snapshots()}
        # Those that are being taken count, once: they are listed before their makers hear of them.
        if len((found | self._kept_now) - {name}) >= identity.quota.snapshots:
            text = f"the tenant {self.name} has {identity.quota.snapshots} snapshots, and may have no more"
            raise Refused(429, "quota", text, hint="remove some")
        self._kept_now.add(name)
        try:
            yield
        finally:
            self._kept_now.discard(name)

    async def check_snapshots(self, identity: Identity) -> None:
        """As `keeping`, for one that may be taken later."""
        async with self.keeping(identity):
            pass

    @contextlib.contextmanager
    def streaming(self, identity: Identity) -> Iterator[None]:
        """Room for one more stream. Raises Refused."""
        if self.streams >= identity.quota.streams:
            raise Refused(
                429, "quota", f"the tenant {self.name} has {self.streams} streams open", retry_after=5
            )
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    @contextlib.contextmanager
    def branch_of(self, most: int) -> Iterator[None]:
        """Room for one more snapshot under way. Raises Refused."""
        if self.branching >= most:
            raise Refused(503, "busy", f"{most} snapshots are being taken already", retry_after=1)
        self.branching += 1
        try:
            yield
        finally:
            self.branching -= 1

    # --- the same request again ---------------------------------------------------------------------------

    async def once(self, key: str | None, request: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of `work`, or for a key that was heard before what it answered then.

        Raises Refused when the key came with another request.
        """
        if key is None:
            return await work()
        request = hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest()
        known = self.answers.get(key)
        if known is not None:
            asked, future = known
            if asked != request:
                raise key_taken()
            return await asyncio.shield(future)
        task = asyncio.ensure_future(work())
        self.answers[key] = (request, task)
        while len(self.answers) > KEPT_ANSWERS:
            done = next((one for one, (_, told) in self.answers.items() if told.done()), None)
            if done is None:
                break
            del self.answers[done]
        try:
            # Whoever asked may go: the answer is for the next who asks with this key.
            return await asyncio.shield(task)
        except Exception:
            self.answers.pop(key, None)
            raise

    async def aclose(self) -> None:
        """Let go of everything. Sandboxes live on."""
        self.guests.close_all()
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        await self.client.aclose()

    async def stands(self) -> bool:
        """Whether its daemon runs; none is started."""
        async with AsyncClient(self.client.runtime_dir, start=False) as client:
            try:
                await client.ping()
            except DaemonLost:
                return False
            return True

    async def upgrade(self) -> bool:
        """Have a daemon of this version take over from an earlier one's, if that runs; whether it did.

        Raises RametError when it does not go.
        """
        async with AsyncClient(self.client.runtime_dir, start=False) as client:
            try:
                found = await client.status()
                if found.version == __version__ and (found.core is None or is_ours(found.core.program)):
                    return False
                await wait_gone((await client.hand_over()).pid)
            except DaemonLost:
                return False
        # At once: core ends what nobody takes over.
        await self.client.ping()
        return True

    async def shut_down(self) -> None:
        """End the tenant's daemon with every sandbox, if it runs."""
        async with AsyncClient(self.client.runtime_dir, start=False) as client:
            with contextlib.suppress(DaemonLost):
                await client.shutdown()


class Tenants:
    """All of them, made when they first ask."""

    def __init__(self, settings: Settings, names: Callable[[], frozenset[str]]) -> None:
        """`names` are those who have tokens."""
        self._settings = settings
        self.names = names
        self._known: dict[str, Tenant] = {}
        self.public = None if settings.token_file is None else Public(settings.data)
        self.draining = False

    def of(self, identity: Identity) -> Tenant:
        """Who asks."""
        return self.named(identity.tenant)

    def named(self, name: str) -> Tenant:
        """The tenant of this name."""
        found = self._known.get(name)
        if found is None:
            found = Tenant(name, self._settings, self.public, lambda: self.draining)
            self._known[name] = found
        return found

    def all(self) -> tuple[Tenant, ...]:
        """Those that have asked."""
        return tuple(self._known.values())

    async def standing(self) -> tuple[Tenant, ...]:
        """Those that have a daemon, be it of a server before this one, or of a tenant without tokens now."""
        names = {DEFAULT_TENANT} if self._settings.token_file is None else set(self._left_behind())
        known = [self.named(name) for name in sorted(names | set(self._known))]
        return tuple([tenant for tenant in known if await tenant.stands()])

    def _left_behind(self) -> Iterator[str]:
        above = os.path.join(self._settings.data, "tenants")
        with contextlib.suppress(FileNotFoundError), os.scandir(above) as found:
            for one in found:
                if os.path.isdir(os.path.join(one.path, "run")):
                    yield one.name

    async def aclose(self) -> None:
        """Let go of everything."""
        for tenant in self._known.values():
            await tenant.aclose()
        if self.public is not None:
            await self.public.aclose()


def key_taken() -> Refused:
    """The refusal of a key that stands for another request."""
    text = "this key came with another request before"
    return Refused(409, "idempotency_key", text, field="Idempotency-Key")


# --- programs ---------------------------------------------------------------------------------------------


def is_ours(program: str) -> bool:
    """Whether a core that says this of its program is of the one that is installed here."""
    try:
        return program.partition("+")[2] == build_of(find_program())
    except (OSError, DaemonStartError):
        return True  # there is none to be started in its place


async def wait_gone(pid: int) -> None:
    """Wait for the end of a daemon. Raises DaemonError."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, gone.set)
        async with asyncio.timeout(GOING_S):
            await gone.wait()
    except TimeoutError:
        raise DaemonError("daemon_stays", f"the daemon, pid {pid}, does not hand over") from None
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


# --- what the server notes of a sandbox -------------------------------------------------------------------


def user_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """What a user may note. Raises InvalidRequest."""
    found = check_metadata(metadata)
    if own := next((name for name in found if name.startswith(OWN)), None):
        raise InvalidRequest.of("metadata", f"{own!r} begins with {OWN!r}, which is the server's")
    return found


def shown_metadata(info: SandboxInfo) -> dict[str, str]:
    """What a user noted."""
    return {name: text for name, text in info.metadata.items() if not name.startswith(OWN)}


def noted_env(info: SandboxInfo) -> dict[str, str]:
    """The variables that a fork was given."""
    text = info.metadata.get(ENV)
    return {} if text is None else dict(json.loads(text))


def new_id(prefix: str) -> str:
    """An id that nobody guesses."""
    return f"{prefix}-{secrets.token_hex(12)}"


def replace_env(request: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata that tells of these variables."""
    return {ENV: json.dumps(dict(request))} if request else {}
