"""A tenant's sandboxes as its daemon told of them last, and as they were last written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ramet.models.sandboxes import ListRequest

if TYPE_CHECKING:
    from ramet.client._async.client import AsyncClient

Told = dict[str, Any]


class Rows:
    """Of each that lives what the daemon told, by id, the oldest first."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._told: dict[str, Told] = {}
        self._mark = ""
        self._written: dict[str, tuple[Told, tuple[Any, ...], bytes]] = {}
        self._turn = asyncio.Lock()

    async def all(self) -> list[Told]:
        """All that live now: the daemon tells of what has changed since it was asked last."""
        async with self._turn:
            while True:
                answer = await self._client.ask("sandbox.list", ListRequest.of(since=self._mark).to_wire())
                known = self._told | {one["id"]: one for one in answer["sandboxes"]}
                ids = answer["ids"]
                self._mark = answer["mark"]
                try:
                    self._told = {one: known[one] for one in ids}
                except KeyError:  # a daemon that knows less than it was told of
                    self._mark, self._told = "", {}
                    continue
                if len(self._written) > len(ids):
                    self._written = {one: row for one, row in self._written.items() if one in self._told}
                return list(self._told.values())

    def write(
        self, told: Iterable[Told], own: Callable[[str], tuple[Any, ...]], encode: Callable[[Told], bytes]
    ) -> bytes:
        """A list of those, as JSON. One that is as it was in the last one is not encoded again.

        `own` is what besides what was told a row is made of.
        """
        rows = []
        for one in told:
            number = one["id"]
            state = own(number)
            row = self._written.get(number)
            if row is None or row[0] is not one or row[1] != state:
                row = one, state, encode(one)
                if self._told.get(number) is one:
                    self._written[number] = row
            rows.append(row[2])
        return b"[" + b",".join(rows) + b"]"
