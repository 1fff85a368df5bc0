"""What befalls sandboxes and snapshots, as a stream that can be taken up again where it was left.

A daemon numbers events and keeps the last ones. A *cursor* is a place in that: which daemon, and the number
of the last event that was had. What a reader missed, because it was too slow or the daemon was another, is
told as an event of its own, ``gap``, in the place of what is missing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, get_args

from ramet.errors import InvalidRequest
from ramet.models.checks import check_sandbox, only
from ramet.models.limits import parse_seconds, shown
from ramet.models.names import check_text

Type = Literal[
    "created",
    "forked",
    "resumed",
    "adopted",
    "promoted",
    "ended",
    "snapshot",
    "paused",
    "removed",
    "rebuilt",
    "command_began",
    "command_ended",
    "gap",
]
TYPES: tuple[str, ...] = get_args(Type)
OF_COMMANDS = frozenset({"command_began", "command_ended"})
HISTORY = 4096
"""Events of commands that a daemon keeps, and of all others: some 2 MiB of each at most."""
NOTE_MAX = 256
"""Most characters of a command that an event tells."""
BATCH = 256
"""Most events in one answer."""
WAIT_MAX_S = 20.0
START = "start"
"""The cursor before the oldest event that is kept."""
_CURSOR = re.compile(r"([0-9a-f]{16})-(\d{1,18})")


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One event; `time` is seconds since the epoch, `cursor` the place right after it.

    ``created``, ``forked`` (of `parent` or of `snapshot`), ``resumed`` (a fork of what was paused) and
    ``adopted`` (by a new daemon) begin a sandbox's life, and ``ended`` tells its cause: `reason`,
    `exit_code`, `signal`, and in `note` who had it ended. ``promoted`` tells that a fork is in the place of
    the one that had this id, and in `note` what its own was. ``snapshot``, ``paused`` and ``removed`` are of
    `snapshot`.
    ``command_began`` and ``command_ended`` are of `command`, a number in `sandbox`: the first tells in `note`
    what it is, the second its cause, as of a sandbox. Of a sandbox's first command its own events tell.
    ``rebuilt`` tells in `note` that what is known of lineage had to be made anew, and why.
    ``gap`` stands for `missed` events that are not kept any more, or for an unknown number of them when it is
    None: those of another daemon.
    """

    cursor: str
    time: float
    type: Type
    sandbox: str | None = None
    name: str | None = None
    parent: str | None = None
    snapshot: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    note: str | None = None
    command: int | None = None
    missed: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what it has not is left out."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in told.items() if value is not None}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**data)


def cursor_of(daemon: str, number: int) -> str:
    """The place after the event `number` of a daemon."""
    return f"{daemon}-{number}"


@dataclasses.dataclass(frozen=True, slots=True)
class EventsRequest:
    """The next events after `cursor`: at least one, unless none comes in `wait` seconds.

    Without a cursor no events, but the cursor of this moment. `types` and `sandbox` (an id or a name) choose.
    """

    cursor: str | None = None
    wait: float = 0.0
    types: tuple[str, ...] = ()
    sandbox: str | None = None

    @classmethod
    def of(
        cls,
        *,
        cursor: str | None = None,
        wait: float = 0.0,
        types: Iterable[str] | None = None,
        sandbox: str | None = None,
    ) -> Self:
        """The checked request. Raises InvalidRequest naming the argument at fault."""
        return cls(
            None if cursor is None else _check_cursor(cursor),
            min(float(parse_seconds(wait, "wait")), WAIT_MAX_S) if wait else 0.0,
            check_types(types),
            None if sandbox is None else check_sandbox(sandbox),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        return cls.of(**data)

    def place(self, daemon: str) -> int | None:
        """The number that the cursor names, 0 for the start; None when it is another daemon's."""
        found = _CURSOR.fullmatch(self.cursor or "")
        if found is None:
            return 0
        return int(found[2]) if found[1] == daemon else None

    def wants(self, *, of_commands: bool) -> bool:
        """Whether events of commands, or others, are asked for at all."""
        return not self.types or any((one in OF_COMMANDS) == of_commands for one in self.types)

    def fits(self, event: Event) -> bool:
        """Whether an event is asked for. A gap always is: what is missing may have been."""
        if event.type == "gap":
            return True
        return (not self.types or event.type in self.types) and self.sandbox in {
            None,
            event.sandbox,
            event.name,
        }


def check_types(value: Iterable[str] | None) -> tuple[str, ...]:
    """`value` as types of events. Raises InvalidRequest naming ``types``."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidRequest.of("types", f"must be a list of types, not {type(value).__name__}")
    chosen = tuple([check_text(one, "types") for one in value])
    for one in chosen:
        if one not in TYPES:
            raise InvalidRequest.of("types", f"{shown(one)} is no type of event: {', '.join(TYPES)}")
    return chosen


def _check_cursor(value: object) -> str:
    text = check_text(value, "cursor")
    if text != START and not _CURSOR.fullmatch(text):
        raise InvalidRequest.of(
            "cursor", f"{shown(text)} is no cursor", hint=f"take that of an event, or {START!r}"
        )
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in their order, and the cursor after the last that was looked at."""

    events: tuple[Event, ...]
    cursor: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"events": [one.to_wire() for one in self.events], "cursor": self.cursor}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([Event.from_wire(one) for one in data["events"]]), data["cursor"])
