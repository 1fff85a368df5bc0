# Generated from _async/events.py by scripts/unasync.py. Do not edit.
"""What befalls sandboxes, as it happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ramet.client._backends._sync import Opening
from ramet.client._sync.api import current
from ramet.client._sync.client import PATIENCE_S, Client
from ramet.client._sync.streams import deadline_of, remaining
from ramet.errors import WaitTimeout
from ramet.models.events import WAIT_MAX_S, Event, EventBatch, EventsRequest


def events(
    since: str | None = None,
    *,
    types: Iterable[str] | None = None,
    sandbox: str | None = None,
    follow: bool = True,
    client: Client | None = None,
) -> Events:
    """What befalls sandboxes from now on, or after the cursor `since`; else as `Events`."""
    return Events(since, types=types, sandbox=sandbox, follow=follow, client=client)


class Events(Opening):
    """Events of the user's daemon, one after the other, for as long as it runs.

    What happens while nobody reads is kept, within bounds: a reader that comes late is told of what it missed
    by an event of type ``gap``.
    """

    def __init__(
        self,
        since: str | None = None,
        *,
        types: Iterable[str] | None = None,
        sandbox: str | None = None,
        follow: bool = True,
        client: Client | None = None,
    ) -> None:
        """Read from now on, or from where another reader was.

        Args:
            since: the cursor of an event, to go on right after it; ``start`` for all that is kept.
            types: only these.
            sandbox: only of the sandbox of this id or name.
            follow: wait for more; else end when there are none.
            client: whose daemon to ask; by default the user's own.

        Raises InvalidRequest when an argument is wrong.
        """
        self._client = client or current()
        self._types = None if types is None else tuple(types)
        self._sandbox = sandbox
        self._follow = follow
        self._since = since
        self._request(0.0)  # refuses what is wrong before anything is asked
        self._waiting: deque[Event] = deque()
        self._made()

    def start(self) -> Self:
        """Take the place to read from, if that has not been done; returns itself."""
        if self._since is None:
            self._since = (self._ask(0.0)).cursor
        return self

    @property
    def cursor(self) -> str | None:
        """The place after the event that was given last; None before it was opened."""
        return self._since

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event; None at the end, which there is only without `follow`.

        Raises WaitTimeout when there is none in `timeout` seconds, DaemonLost when the daemon has ended:
        another begins with a gap.
        """
        self.start()
        deadline = deadline_of(timeout)
        while not self._waiting:
            wait = remaining(deadline) if deadline is not None else WAIT_MAX_S
            batch = self._ask(min(wait, WAIT_MAX_S) if self._follow else 0.0)
            self._waiting.extend(batch.events)
            if not batch.events:
                self._since = batch.cursor
                if not self._follow:
                    return None
                if deadline is not None and not remaining(deadline):
                    raise WaitTimeout("wait_timeout", "no event has come in this time")
        event = self._waiting.popleft()
        self._since = event.cursor
        return event

    def _request(self, wait: float) -> EventsRequest:
        return EventsRequest.of(cursor=self._since, wait=wait, types=self._types, sandbox=self._sandbox)

    def _ask(self, wait: float) -> EventBatch:
        answer = self._client.ask("events", self._request(wait).to_wire(), patience=wait + PATIENCE_S)
        return EventBatch.from_wire(answer)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing is held between two events.
        return
