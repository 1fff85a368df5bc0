"""Templates that every tenant may fork.

They are in a store of their own, with a daemon of its own that never has a core. What a tenant forks is first
linked into that tenant's store: the same file, which no tenant can write and which stays for what builds upon
it. There it has a name that no user can give, and is shown under the one that it was made public by.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

from ramet.client._async.client import AsyncClient
from ramet.errors import DaemonLost, InvalidRequest
from ramet.models.snapshots import BUILT_IN, ImportRequest, Snapshot, SnapshotList, SnapshotName
from ramet.server.faults import Refused

if TYPE_CHECKING:
    from ramet.models.templates import Template

RESERVED = "ramet."
"""What names of snapshots begin with that are the server's."""
PREFIX = f"{RESERVED}public-"
NAME_MAX = 40
COPY_PATIENCE_S = 600.0


def tag_of(name: str) -> str:
    """What a name is shown as: that of a linked public template as its own."""
    return name.removeprefix(PREFIX).partition("-")[2] if name.startswith(PREFIX) else name


class Public:
    """All of them, by name. The server is the only one that changes them."""

    def __init__(self, data: str) -> None:
        self._place = os.path.join(data, "public")
        self._store = os.path.join(self._place, "data")
        self.client = AsyncClient(os.path.join(self._place, "run"), data_dir=self._store)
        self._known: dict[str, Snapshot] | None = None
        self._turn = asyncio.Lock()

    async def all(self) -> dict[str, Snapshot]:
        """By the names that they are forked by."""
        async with self._turn:
            return await self._all()

    async def _all(self) -> dict[str, Snapshot]:
        if self._known is None:
            # Nobody starts a daemon for what has never been there.
            if not os.path.isdir(self._place):  # noqa: ASYNC240  one look at a local directory
                return {}
            told = SnapshotList.from_wire(await self.client.ask("snapshot.list"))
            found = sorted(told.snapshots, key=lambda one: one.created)
            self._known = {tag_of(one.name): one for one in found if one.damage is None}
        return self._known

    async def publish(self, template: Template, store: str) -> Snapshot:
        """Have a copy of a template of this store be public, in the place of the one before.

        Raises InvalidRequest, SnapshotError.
        """
        name = template.snapshot.name
        if name in BUILT_IN or template.name in BUILT_IN:
            raise InvalidRequest.of("name", f"{template.name!r} is built in: every tenant has it")
        if len(name) > NAME_MAX:
            text = f"has {len(name)} characters; the name of a public template has at most {NAME_MAX}"
            raise InvalidRequest.of("name", text, code="too_long")
        async with self._turn:
            before = (await self._all()).get(name)
            self._known = None
            os.makedirs(self._place, 0o700, exist_ok=True)
            named = f"{PREFIX}{template.hash[:4]}{os.urandom(2).hex()}-{name}"
            request = ImportRequest(name, store, named)
            made = await self.client.ask("snapshot.import", request.to_wire(), patience=COPY_PATIENCE_S)
            if before is not None:
                await self._remove(before.name)
            return Snapshot.from_wire(made)

    async def withdraw(self, name: str) -> None:
        """Have it be public no more. What tenants have forked of it goes on. Raises InvalidRequest."""
        async with self._turn:
            found = (await self._all()).get(name)
            if found is None:
                raise InvalidRequest.of("name", f"there is no public template {name!r}", code="not_found")
            self._known = None
            await self._remove(found.name)

    async def _remove(self, name: str) -> None:
        await self.client.ask("snapshot.remove", SnapshotName(name).to_wire())

    async def link(self, client: AsyncClient, store: str, known: Snapshot) -> str:
        """Have one in a tenant's store; the name that it has there."""
        if not is_in(store, known.name):
            request = ImportRequest(known.name, self._store)
            try:
                await client.ask("snapshot.import", request.to_wire())
            except InvalidRequest as error:
                # Another request has linked it meanwhile.
                if error.code != "name_taken":
                    raise
        return known.name

    async def aclose(self) -> None:
        """Let go of everything."""
        await self.client.aclose()

    async def shut_down(self) -> None:
        """End the daemon, if it runs."""
        async with AsyncClient(self.client.runtime_dir, start=False) as client:
            with contextlib.suppress(DaemonLost):
                await client.shutdown()


def is_in(store: str, name: str) -> bool:
    """Whether a store has a snapshot of this name."""
    return os.path.lexists(os.path.join(store, "snapshots", name))


def shown_as(one: Snapshot, name: str) -> Snapshot:
    """A public template under its own name."""
    return dataclasses.replace(one, name=name)


def read_only(name: str) -> Refused:
    """The refusal to change or remove one."""
    return Refused(
        403, "read_only", f"{name!r} is public, and only an administrator of the server changes it"
    )
