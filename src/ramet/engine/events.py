"""The events of a daemon, numbered, the last of them kept.

Nobody subscribes: a reader asks for what comes after a place, and waits if there is nothing. So a reader that
is slow, stuck or gone costs nothing but what it asked last, and stalls nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

from ramet.errors import DaemonLost
from ramet.models.events import BATCH, HISTORY, Event, EventBatch, cursor_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ramet.models.events import EventsRequest, Type
    from ramet.models.sandboxes import SandboxInfo


class Events:
    """The history, and who waits for it to go on."""

    def __init__(self, history: int = HISTORY) -> None:
        """`history`: how many are kept."""
        self.daemon = secrets.token_hex(8)
        self._kept: deque[Event] = deque(maxlen=history)
        self._last = 0
        self._more: asyncio.Future[None] | None = None
        self._closed = False

    def tell(self, kind: Type, info: SandboxInfo, note: str | None = None) -> None:
        """Something befell a sandbox."""
        event = Event.of(kind, info, time.time())
        self.add(event if note is None else dataclasses.replace(event, note=note))

    def note(
        self, kind: Type, *, sandbox: str | None = None, snapshot: str | None = None, note: str | None = None
    ) -> None:
        """Something befell a snapshot, or the daemon itself."""
        self.add(Event("", time.time(), kind, sandbox=sandbox, snapshot=snapshot, note=note))

    def add(self, event: Event) -> None:
        """Give it its place, and wake who waits."""
        self._last += 1
        self._kept.append(dataclasses.replace(event, cursor=cursor_of(self.daemon, self._last)))
        self._wake()

    def close(self) -> None:
        """The daemon ends: nobody waits any longer."""
        self._closed = True
        self._wake()

    async def after(
        self, request: EventsRequest, when_gone: Callable[[Callable[[], object]], object]
    ) -> EventBatch:
        """What `request` asks for. `when_gone` is told what to call when nobody waits for it any more.

        Raises DaemonLost when the daemon ends meanwhile.
        """
        if request.cursor is None:
            return EventBatch((), cursor_of(self.daemon, self._last))
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def leave() -> None:
            if not gone.done():
                gone.set_result(None)

        when_gone(leave)
        found, place = self._found(request, request.place(self.daemon))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.wait):
                while not found and not gone.done():
                    await self._next(gone)
                    found, place = self._found(request, place)
        return EventBatch(tuple(found), cursor_of(self.daemon, place))

    def _found(self, request: EventsRequest, place: int | None) -> tuple[list[Event], int]:
        """What there is after `place`, None for another daemon's, and the place after that."""
        oldest = self._last - len(self._kept)
        found: list[Event] = []
        if place is None or place > self._last:
            found.append(self._gap(oldest, None))
            place = oldest
        elif place < oldest:
            if request.cursor != "start":
                found.append(self._gap(oldest, oldest - place))
            place = oldest
        for number in range(place - oldest, len(self._kept)):
            if len(found) >= BATCH:
                break
            place += 1
            if request.fits(self._kept[number]):
                found.append(self._kept[number])
        return found, place

    def _gap(self, place: int, missed: int | None) -> Event:
        return Event(cursor_of(self.daemon, place), time.time(), "gap", missed=missed)

    async def _next(self, gone: asyncio.Future[None]) -> None:
        if self._closed:
            raise DaemonLost("daemon_lost", "the daemon is ending")
        if self._more is None:
            self._more = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._more, gone], return_when=asyncio.FIRST_COMPLETED)
        if self._closed:
            raise DaemonLost("daemon_lost", "the daemon is ending")

    def _wake(self) -> None:
        more, self._more = self._more, None
        if more is not None:
            more.set_result(None)
