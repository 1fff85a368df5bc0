"""Snapshots between core and the disk: out of a core when they get a name, into one when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ramet._descriptors import close_all
from ramet.engine.mapped import host_files, mapped_paths
from ramet.engine.recipes import decode_recipe, encode_recipe
from ramet.engine.root import default_environment
from ramet.errors import InternalError, RametError, SnapshotDamaged, SnapshotError
from ramet.models.names import check_environment
from ramet.models.runs import Python
from ramet.models.users import ROOT, parse_user
from ramet.native import _protocol as p
from ramet.native.frames import FrameError, u32
from ramet.store import Base, Exported, IdMap, Loadable, LoadedBase, ParentRef, SnapshotInfo, Store, data_path

if TYPE_CHECKING:
    from ramet.engine.cores import Core
    from ramet.engine.definitions import Key
    from ramet.engine.root import RootSpec


ENVIRONMENT_MAX = 16384
"""Most bytes of a sandbox's environment, as JSON, that its record in core holds."""


def ids_of(core_pid: int) -> IdMap:
    """How a core numbers owners; 0 is one that lives in this process's user namespace, as in tests."""
    return IdMap.of_process(core_pid) if core_pid else IdMap.identity()


async def export_snapshot(core: Core, number: int) -> list[int]:
    """What core has of the snapshot `number`: description, pages, writable layers from the topmost down.

    The descriptors are the caller's. Raises what core answers, DaemonLost.
    """
    _, fds = await core.connection.fetch(p.EXPORT_SNAPSHOT, u32(p.TAG_SNAPSHOT, number))
    if len(fds) < 3:
        close_all(fds)
        raise InternalError("internal", f"core exported {len(fds)} descriptors of a snapshot")
    return fds


def recipe_of(name: str, base: LoadedBase) -> RootSpec:
    """The root of the snapshot `name`. Raises SnapshotDamaged for a recipe that is none."""
    try:
        return decode_recipe(base.recipe)
    except ValueError as error:
        text = f"the snapshot {name!r} is damaged: base: {error}"
        raise SnapshotDamaged("snapshot_damaged", text, snapshot=name) from None


async def load_into(core: Core, loaded: Loadable, spec: RootSpec) -> int:
    """Have core make a stem, on the root `spec`, of what was loaded from disk; its number in core.

    Raises what core answers, DaemonLost.
    """
    number = core.next_snapshot()
    root = await core.definitions.define_once(spec)
    try:
        payload = u32(p.TAG_SNAPSHOT, number) + u32(p.TAG_ROOT, root)
        payload += u32(p.TAG_FILTER, core.definitions.filter_number)
        await core.connection.ask(p.LOAD_SNAPSHOT, payload, [os.dup(fd) for fd in loaded.descriptors])
    finally:
        # What core has loaded holds it.
        await core.definitions.drop(root)
    return number


@dataclasses.dataclass(slots=True)
class Ground:
    """What a sandbox stands on, which has to be known when its state is to be kept.

    `ancestor` is the last snapshot on disk that it descends from. `spec` is not known of a sandbox that was
    taken over from an earlier daemon; then it follows from `key`, what was asked for, or from `ancestor`.
    """

    identity: str = ""
    key: Key | None = None
    ancestor: ParentRef | None = None
    spec: RootSpec | None = None
    environment: Mapping[str, str] | None = None
    """Of commands in the sandbox; None: as the root says."""
    home: str = ""
    user: tuple[int, int] = ROOT
    """Whose they are where nobody says otherwise."""

    def beginnings(self) -> tuple[Mapping[str, str], str]:
        """The variables that every command has, and the directory that it starts in."""
        if self.environment is None and self.spec is not None:
            return default_environment(self.spec), self.spec.home
        return self.environment or {}, self.home or "/"

    def fits_record(self) -> bool:
        """Whether the environment is small enough for core to keep for the next daemon."""
        return len(json.dumps(dict(self.beginnings()[0]))) <= ENVIRONMENT_MAX

    def to_record(self) -> dict[str, Any]:
        """As JSON, without the recipe."""
        python = self.key and self.key[1]
        key = self.key and [self.key[0], python and python.to_wire(), self.key[2]]
        environment, home = self.beginnings()
        if not self.fits_record():
            environment = {}
        return {
            "identity": self.identity,
            "key": key,
            "ancestor": self.ancestor,
            "environment": environment,
            "home": home,
            "user": self.user,
        }

    @classmethod
    def from_record(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises ValueError, KeyError, TypeError, InvalidRequest."""
        told = data["key"]
        return cls(
            str(data["identity"]),
            told and (told[0], told[1] and Python.from_wire(told[1]), tuple(told[2])),
            data["ancestor"] and ParentRef(*data["ancestor"]),
            environment=check_environment(data.get("environment")),
            home=str(data.get("home", "/")),
            user=parse_user("{}:{}".format(*data["user"])),
        )

    def below(self, image: ParentRef | None) -> Ground:
        """What a child stands on; `image` is the snapshot it is forked from, if that is on disk."""
        return dataclasses.replace(self, ancestor=image or self.ancestor)


class Archive:
    """The snapshots of this user's store, for a daemon: nothing here blocks its loop.

    The store's directory is made when the first snapshot is saved.
    """

    def __init__(self, path: str | None = None) -> None:
        """`path` is the store's directory, by default that of the environment."""
        self._path = path or data_path()
        self._store: Store | None = None
        self._opening = threading.Lock()

    @property
    def path(self) -> str:
        """The store's directory, which need not exist."""
        return self._path

    def saved_now(self) -> tuple[SnapshotInfo, ...]:
        """As `saved`; blocks."""
        return self._list()

    async def saved(self) -> tuple[SnapshotInfo, ...]:
        """All that are on disk. Raises SnapshotError."""
        return await asyncio.to_thread(self._list)

    async def has(self, name: str) -> bool:
        """Whether the name is taken on disk."""
        return await asyncio.to_thread(os.path.lexists, f"{self._path}/snapshots/{name}")

    async def save(
        self, name: str, core: Core, number: int, ground: Ground, metadata: Mapping[str, Any]
    ) -> SnapshotInfo:
        """Have core's snapshot `number` on disk under `name` when this returns.

        Raises InvalidRequest when the name is taken, SnapshotError, what core answers, DaemonLost.
        """
        root = await asyncio.to_thread(self._root_of, ground, core, name)
        fds = await export_snapshot(core, number)
        job = _Saving(name, fds, root, ground.ancestor, core.definitions.filter_hash, core.pid, metadata)
        return await asyncio.to_thread(self._write, job)

    async def load(self, name: str, core: Core) -> tuple[int, SnapshotInfo, RootSpec]:
        """Have core know the snapshot `name`: its number there, and what it stands on.

        Raises as Store.load and `load_into` do.
        """
        loaded = await asyncio.to_thread(self._load, name, core.pid)
        try:
            spec = recipe_of(name, loaded.base)
            return await load_into(core, loaded, spec), loaded.info, spec
        finally:
            await asyncio.to_thread(loaded.close)

    async def remove(self, name: str) -> SnapshotInfo:
        """As Store.remove."""
        return await asyncio.to_thread(lambda: self._opened().remove(name))

    async def compact(self, name: str) -> SnapshotInfo:
        """As Store.flatten."""
        return await asyncio.to_thread(lambda: self._opened().flatten(name))

    async def bring(self, name: str, store: str, named: str | None) -> SnapshotInfo:
        """The snapshot `name` of another store, as Store.copy or Store.link have it."""

        def work() -> SnapshotInfo:
            with Store(store) as other:
                return (
                    self._opened().link(name, other)
                    if named is None
                    else self._opened().copy(name, other, named)
                )

        return await asyncio.to_thread(work)

    async def pack(self, name: str, path: str) -> SnapshotInfo:
        """As Store.pack."""
        return await asyncio.to_thread(lambda: self._opened().pack(name, path))

    async def unpack(self, path: str, named: str | None) -> SnapshotInfo:
        """As Store.unpack."""
        return await asyncio.to_thread(lambda: self._opened().unpack(path, named))

    def close(self) -> None:
        """Close the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = Store(self._path)
            return self._store

    def _list(self) -> tuple[SnapshotInfo, ...]:
        if self._store is None and not os.path.isdir(self._path):
            return ()
        return self._opened().list()

    def _write(self, job: _Saving) -> SnapshotInfo:
        try:
            store = self._opened()
        except BaseException:
            close_all(job.fds)
            raise
        return job.write(store)

    def _root_of(self, ground: Ground, core: Core, name: str) -> RootSpec:
        if ground.spec is None and ground.key is not None:
            spec = core.definitions.work_out(ground.key)
            ground.spec = spec if spec.identity == ground.identity else None
        if ground.spec is None and ground.ancestor is not None:
            ancestor = ground.ancestor.name
            with contextlib.suppress(RametError):
                if self._opened().info(ancestor).content == ground.ancestor.content:
                    ground.spec = recipe_of(ancestor, self._opened().base(ancestor))
        if ground.spec is None:
            text = f"the snapshot {name!r} cannot be saved: the host has changed under the sandbox's root"
            hint = "a sandbox that an earlier daemon made can be forked, and kept no more"
            raise SnapshotError("snapshot_not_saved", text, snapshot=name, hint=hint)
        return ground.spec

    def _load(self, name: str, core_pid: int) -> Loadable:
        return self._opened().load(name, ids=ids_of(core_pid))


@dataclasses.dataclass(slots=True)
class _Saving:
    """One snapshot on its way to the disk. Its descriptors are closed by the thread that reads them."""

    name: str
    fds: list[int]
    root: RootSpec
    parent: ParentRef | None
    filter_hash: str
    core_pid: int
    metadata: Mapping[str, Any]

    def write(self, store: Store) -> SnapshotInfo:
        try:
            description, pages, *uppers = self.fds
            paths = mapped_paths(os.pread(description, os.fstat(description).st_size, 0))
            files = host_files(paths, self.root, uppers)
            return store.save(
                self.name,
                Exported(description, pages, uppers),
                base=Base(self.root.identity, encode_recipe(self.root), files),
                filter_hash=self.filter_hash,
                parent=self.parent,
                ids=ids_of(self.core_pid),
                metadata=self.metadata,
            )
        except FrameError as error:
            raise InternalError("internal", f"core's description of a snapshot: {error}") from None
        finally:
            close_all(self.fds)
