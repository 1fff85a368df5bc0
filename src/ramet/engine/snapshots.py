"""Snapshots that have a name, and those that a live fork takes and drops.

Core keeps each under a number, in memory, for as long as it runs. One with a name is on disk before it is
told of; when core does not have it, its first use loads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from ramet.engine.durable import Archive, Ground
from ramet.errors import DaemonLost, InvalidRequest, RametError
from ramet.models.limits import LIMITS, Limits
from ramet.models.sandboxes import ForkWay, KernelRef
from ramet.models.snapshots import Snapshot
from ramet.native import _protocol as p
from ramet.native.frames import u32

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from ramet.engine.cores import Core
    from ramet.engine.root import RootSpec
    from ramet.store import SnapshotInfo

FAILED_S = 600.0
"""How long a snapshot is told of that could not be written, when nobody waited for that."""


@dataclasses.dataclass(slots=True)
class Image:
    """A snapshot that core has, and what its children need to know of the sandbox it was taken of."""

    core: Core
    number: int
    parent: str
    pid: int
    command: tuple[str, ...]
    limits: Limits
    pause_ms: float
    memory_bytes: int
    file_bytes: int
    processes: int
    capture_ms: float
    stem_ms: float
    by_twin: bool
    ways: tuple[ForkWay, ...]
    left_out: tuple[str, ...]
    ground: Ground
    name: str | None = None
    saved: SnapshotInfo | None = None
    created: float = 0.0
    kernel: KernelRef | None = None
    epoch: int = 0
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    users: int = 0
    dropped: bool = False
    _below: tuple[SnapshotInfo | None, Ground] | None = None

    @property
    def serves(self) -> bool:
        """Whether new sandboxes are to be forked from it where it is."""
        return self.core.alive and not self.core.leaving

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep it in core while children are made of it: core refuses those that wait when it is dropped."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self.dropped and not self.users:
                self._drop()

    def drop(self) -> None:
        """Have core forget it, once nobody uses it any more. Its children go on."""
        self.dropped = True
        if not self.users:
            self._drop()

    def _drop(self) -> None:
        if self.core.alive:
            with contextlib.suppress(DaemonLost):
                payload = u32(p.TAG_SNAPSHOT, self.number)
                self.core.connection.call(p.DROP_SNAPSHOT, payload, [], lambda _: None)

    def metadata(self) -> dict[str, Any]:
        """What is kept of it on disk beside its content."""
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "ways": self.ways,
            "limits": {spec.name: getattr(self.limits, spec.name) for spec in LIMITS},
            "beginnings": self.ground.beginnings(),
        }

    def ground_of_children(self) -> Ground:
        """What those that are forked from it stand on."""
        if self._below is None or self._below[0] is not self.saved:
            self._below = self.saved, self.ground.below(None if self.saved is None else self.saved.ref)
        return self._below[1]

    @classmethod
    def of_saved(cls, core: Core, number: int, info: SnapshotInfo, spec: RootSpec) -> Image:
        """One that core has loaded from disk. Raises InvalidRequest for limits of another version."""
        kept = {name: info.metadata[name] for name in _KEPT}
        environment, home = info.metadata["beginnings"]
        return cls(
            **{
                **kept,
                "command": tuple(kept["command"]),
                "left_out": tuple(kept["left_out"]),
                "ways": ForkWay.from_wire(info.metadata.get("ways", ())),
                "kernel": KernelRef.from_wire(kept["kernel"]),
            },
            core=core,
            number=number,
            limits=Limits.of(info.metadata["limits"]),
            ground=Ground(info.root, ancestor=info.parent, spec=spec, environment=environment, home=home),
            name=info.name,
            saved=info,
        )


_KEPT = (
    "parent", "pid", "command", "pause_ms", "memory_bytes", "file_bytes", "processes", "capture_ms",
    "stem_ms", "by_twin", "left_out", "created", "kernel", "epoch", "notes",
)  # fmt: skip


def told(info: SnapshotInfo) -> Snapshot:
    """What users are told of one on disk."""
    kept = info.metadata
    return Snapshot(
        name=info.name,
        sandbox=kept.get("parent", ""),
        created=kept.get("created", info.created),
        pause_ms=kept.get("pause_ms", 0.0),
        memory_bytes=kept.get("memory_bytes", 0) or info.memory_bytes,
        file_bytes=kept.get("file_bytes", 0),
        processes=kept.get("processes", 1),
        capture_ms=kept.get("capture_ms", 0.0),
        stem_ms=kept.get("stem_ms", 0.0),
        by_twin=kept.get("by_twin", False),
        ways=ForkWay.from_wire(kept.get("ways", ())),
        dropped=tuple(kept.get("left_out", ())),
        kernel=KernelRef.from_wire(kept.get("kernel")),
        metadata=kept.get("notes", {}),
        durable=True,
        disk_bytes=info.stored_bytes,
        parent=info.parent and info.parent.name,
        damage=info.damage,
    )


class Snapshots:
    """The named ones: all are on disk, and core knows some of them."""

    def __init__(
        self, archive: Archive, ensure: Callable[[], Awaitable[Core]], kept: Callable[[Image], object]
    ) -> None:
        """`ensure` gives the core that is to know them; `kept` is told of each that is on disk now."""
        self._archive = archive
        self._ensure = ensure
        self._kept = kept
        self._images: dict[str, Image] = {}
        self._taken: set[str] = set()
        self._writing: dict[str, Snapshot] = {}
        self._later: set[asyncio.Task[object]] = set()
        self._busy: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def reserved(self, name: str) -> AsyncIterator[None]:
        """Hold a name while its snapshot is being taken. Raises InvalidRequest."""
        refusal = InvalidRequest.of(
            "name", f"there is a snapshot {name!r} already", code="name_taken",
            hint="take another name, or remove that snapshot",
        )  # fmt: skip
        if self._is_writing(name) or name in self._taken:
            raise refusal
        self._taken.add(name)  # before anything is awaited: another may ask for it meanwhile
        try:
            if await self._archive.has(name):
                raise refusal
            yield
        finally:
            self._taken.discard(name)

    async def keep(self, name: str, image: Image) -> Snapshot:
        """Have an image on disk under a name. If that fails, core forgets it. Raises as Archive.save."""
        try:
            image.saved = await self._archive.save(
                name, image.core, image.number, image.ground, image.metadata()
            )
        except BaseException:
            image.drop()
            raise
        image.name = name
        self._images[name] = image
        self._kept(image)
        return told(image.saved)

    def writing(self, name: str, image: Image) -> Snapshot:
        """What is told of an image that `keep_later` is about to write."""
        pending = self._writing[name] = Snapshot(
            name=name,
            sandbox=image.parent,
            created=image.created,
            pause_ms=image.pause_ms,
            memory_bytes=image.memory_bytes,
            file_bytes=image.file_bytes,
            processes=image.processes,
            capture_ms=image.capture_ms,
            stem_ms=image.stem_ms,
            by_twin=image.by_twin,
            ways=image.ways,
            dropped=image.left_out,
            kernel=image.kernel,
            metadata=image.notes,
            status="writing",
        )
        return pending

    async def keep_later(
        self, name: str, image: Image, reserved: contextlib.AsyncExitStack[bool | None]
    ) -> None:
        """As `keep`, whose failure is remembered for who lists. Takes `reserved`, the hold on the name."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  it is a coroutine of the loop
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        async with reserved:
            try:
                await self.keep(name, image)
                del self._writing[name]
            except (RametError, OSError) as error:
                why = error.message if isinstance(error, RametError) else str(error)
                failed = dataclasses.replace(self._writing[name], status="failed", damage=why)
                self._writing[name] = failed
                asyncio.get_running_loop().call_later(FAILED_S, self._forget_failed, name, failed)

    def failure(self, name: str) -> str | None:
        """Why `keep_later` could not write one of late."""
        pending = self._writing.get(name)
        return None if pending is None else pending.damage

    def _forget_failed(self, name: str, failed: Snapshot) -> None:
        if self._writing.get(name) is failed:
            del self._writing[name]

    def _is_writing(self, name: str) -> bool:
        pending = self._writing.get(name)
        return pending is not None and pending.status == "writing"

    def _check_written(self, name: str) -> None:
        if self._is_writing(name):
            raise InvalidRequest.of(
                "snapshot", f"{name!r} is being written to disk", code="snapshot_writing",
                hint="it is ready when its status says so",
            )  # fmt: skip

    async def find(self, name: str) -> Image:
        """The image of that name, loaded into core if need be.

        Raises InvalidRequest naming ``snapshot``, SnapshotError, and what core answers.
        """
        self._check_written(name)
        known = self._images.get(name)
        if known is not None and known.serves:
            return known
        async with self._alone(name):
            known = self._images.get(name)
            if known is None or not known.serves:
                core = await self._ensure()
                known = Image.of_saved(core, *await self._archive.load(name, core))
                self._images[name] = known
        return known

    def of_number(self, core: Core, number: int) -> Image | None:
        """The named image that `core` has under a number, if it is there still."""
        for one in self._images.values():
            if one.number == number and one.core is core:
                return one
        return None

    async def remove(self, name: str) -> Snapshot:
        """Take it away; what was forked from it goes on. Raises InvalidRequest, SnapshotError."""
        self._check_written(name)
        failed = self._writing.pop(name, None)
        if failed is not None and not await self._archive.has(name):
            return failed
        async with self._alone(name):
            info = await self._archive.remove(name)
            image = self._images.pop(name, None)
            if image is not None:
                image.drop()
        return told(info)

    async def compact(self, name: str) -> Snapshot:
        """Have it build upon nothing. Raises InvalidRequest, SnapshotError."""
        async with self._alone(name):
            return told(await self._archive.compact(name))

    async def bring(self, name: str, store: str, named: str | None) -> SnapshotInfo:
        """Have one of another store: a copy that is `named` so, or the very file.

        Raises InvalidRequest, SnapshotError.
        """
        async with self.reserved(named or name):
            return await self._archive.bring(name, store, named)

    async def pack(self, name: str, path: str) -> SnapshotInfo:
        """Have one as a file. Raises InvalidRequest, SnapshotError."""
        async with self._alone(name):
            return await self._archive.pack(name, path)

    async def unpack(self, path: str, named: str | None) -> SnapshotInfo:
        """Have what is in such a file. Raises InvalidRequest, SnapshotError."""
        if named is None:  # two who unpack the same file: the store has one of them
            return await self._archive.unpack(path, None)
        async with self.reserved(named):
            return await self._archive.unpack(path, named)

    async def all_told(self) -> tuple[Snapshot, ...]:
        """All of them, by name. Raises SnapshotError."""
        before = dict(self._writing)
        saved = {info.name: told(info) for info in await self._archive.saved()}
        for name, pending in before.items():
            # One that was written meanwhile may have been missed by either look.
            if name in self._writing or name not in saved:
                saved[name] = self._writing.get(name, pending)
        return tuple([saved[name] for name in sorted(saved)])

    def core_lost(self, core: Core) -> None:
        """What that core had in memory is gone; the disk still has it."""
        self._images = {name: image for name, image in self._images.items() if image.core is not core}

    async def written(self) -> None:
        """Wait until what nobody waited for is on disk, or has failed."""
        while later := next((one for one in self._later if not one.done()), None):
            await asyncio.wait([later])

    def close(self) -> None:
        """The daemon ends."""
        self._archive.close()

    @contextlib.asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Not beside another that loads or removes the same one."""
        lock = self._busy.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._busy.pop(name, None)
