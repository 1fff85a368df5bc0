"""The events of a daemon, numbered, the last of them kept.

Nobody subscribes: a reader asks for what comes after a place, and waits if there is nothing. So a reader that
is slow, stuck or gone costs nothing but what it asked last, and stalls nobody.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import heapq
import operator
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ramet.errors import DaemonLost
from ramet.models.events import BATCH, HISTORY, OF_COMMANDS, START, Event, EventBatch, cursor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ramet.engine.standing import Sandbox
    from ramet.models.events import EventsRequest, Type

Awaited = Literal["nothing", "sandboxes", "everything"]
"""``everything``: commands that begin and end as well."""
Told: TypeAlias = "tuple[Any, ...]"
"""What an event tells: its fields after the cursor."""
_told = operator.attrgetter(*[name for name in Event.__slots__ if name != "cursor"])


class Events:
    """The history, and who waits for it to go on."""

    def __init__(self, history: int = HISTORY) -> None:
        """`history`: how many are kept."""
        self.daemon = secrets.token_hex(8)
        # There are as many commands as clients like: they take no room of what befalls sandboxes.
        # Most are never read, so what they tell is kept, and who reads them makes them.
        self._kept: dict[bool, deque[tuple[int, Told]]] = {
            of_commands: deque(maxlen=history) for of_commands in (False, True)
        }
        self._forgotten = {False: 0, True: 0}
        self._last = 0
        self.awaited: Awaited = "nothing"
        """What somebody waits for. Who reads goes and comes again with each event."""
        self.on_wait: Callable[[], object] = lambda: None
        """Called when somebody begins to wait for what nobody waited for."""
        self._waiting = {False: 0, True: 0}
        self._more: asyncio.Future[None] | None = None
        self._closed = False

    def tell(self, kind: Type, sandbox: Sandbox, note: str | None = None) -> None:
        """Something befell a sandbox."""
        origin, end = sandbox.origin, sandbox.end
        why = (None, None, None) if end is None else (end.reason, end.exit_code, end.signal)
        note = sandbox.note if note is None else note
        of = (sandbox.id, sandbox.name, origin.parent, origin.snapshot)
        self._add((time.time(), kind, *of, *why, note, None, None), of_commands=False)

    def note(
        self, kind: Type, *, sandbox: str | None = None, snapshot: str | None = None, note: str | None = None
    ) -> None:
        """Something befell a snapshot, or the daemon itself."""
        self.add(Event("", time.time(), kind, sandbox=sandbox, snapshot=snapshot, note=note))

    def add(self, event: Event) -> None:
        """Give it its place, and wake who waits."""
        self._add(_told(event), of_commands=event.type in OF_COMMANDS)

    def miss_commands(self, count: int) -> None:
        """So many events of commands were never heard of."""
        self._add(_told(self._gap(0, count)), of_commands=True)

    def _add(self, told: Told, *, of_commands: bool) -> None:
        self._last += 1
        kept = self._kept[of_commands]
        if len(kept) == kept.maxlen:
            self._forgotten[of_commands] = kept[0][0]
        kept.append((self._last, told))
        if self._more is not None:
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
        if not found and request.wait:
            with self._waits(of_commands=request.wants(of_commands=True)), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.wait):
                    while not found and not gone.done():
                        await self._next(gone)
                        found, place = self._found(request, place)
        return EventBatch(tuple(found), cursor_of(self.daemon, place))

    @contextlib.contextmanager
    def _waits(self, *, of_commands: bool) -> Iterator[None]:
        before = self.awaited
        self._waiting[of_commands] += 1
        self._count()
        if self.awaited != before:
            self.on_wait()
        try:
            yield
        finally:
            self._waiting[of_commands] -= 1
            self._count()

    def _count(self) -> None:
        if self._waiting[True]:
            self.awaited = "everything"
        else:
            self.awaited = "sandboxes" if self._waiting[False] else "nothing"

    def _found(self, request: EventsRequest, place: int | None) -> tuple[list[Event], int]:
        """What there is after `place`, None for another daemon's, and the place after that."""
        kinds = [of_commands for of_commands in (False, True) if request.wants(of_commands=of_commands)]
        found: list[Event] = []
        told = request.cursor == START  # all that is kept: nothing is missing in that
        if place is None or place > self._last:
            found.append(self._gap(0, None))
            place, told = 0, True
        if len(kinds) == 1 and place < self._forgotten[kinds[0]]:
            if not told:
                found.append(self._gap(self._forgotten[kinds[0]], self._missed(place, of_commands=kinds[0])))
            place = self._forgotten[kinds[0]]
        for number, kept in heapq.merge(
            *[self._after(place, of_commands=kind) for kind in kinds], key=_number
        ):
            if len(found) >= BATCH:
                return found, place
            # Where all kinds are asked for, a number that is not there was an event.
            if len(kinds) == 2 and number > place + 1 and not told:
                found.append(self._gap(number - 1, number - place - 1))
            place = number
            event = Event(cursor_of(self.daemon, number), *kept)
            if request.fits(event):
                found.append(event)
        return found, self._last

    def _missed(self, place: int, *, of_commands: bool) -> int | None:
        """How many of one kind are not kept any more after `place`; None where that cannot be told."""
        if self._forgotten[not of_commands] > place:
            return None
        oldest = self._forgotten[of_commands]
        others = [number for number, _ in self._after(place, of_commands=not of_commands) if number <= oldest]
        return oldest - place - len(others)

    def _after(self, place: int, *, of_commands: bool) -> list[tuple[int, Told]]:
        kept = self._kept[of_commands]
        return [kept[one] for one in range(bisect.bisect(kept, place, key=_number), len(kept))]

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


def _number(kept: tuple[int, Told]) -> int:
    return kept[0]
