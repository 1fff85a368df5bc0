"""What core keeps of a sandbox for its callers: JSON that the daemon writes, or a client that had it made.

The records of one snapshot's children differ in what comes last (`KnownFork.record_of`): what they were told
by their maker, when they were made, how long they are to live. What comes before that is read once, and what
was read of it is the same objects for all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.engine.durable import Ground
from ramet.errors import InvalidRequest
from ramet.models.limits import Limits
from ramet.models.sandboxes import ForkWay, KernelRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND_SHOWN = 4096
"""Most characters of its command that are kept of a sandbox."""
_OWN = ',"metadata":'
_BEGINNING = '{"origin":{"metadata":'
_NAMES = ["origin", "created", "ttl"]
_decode = json.JSONDecoder().raw_decode
_KINDS = 64
"""Of how many snapshots, and limits, what their children have in common is kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a sandbox comes from, and the process that it began with.

    `parent` is the id of the sandbox, `snapshot` the name of the snapshot that it was forked from;
    `pause_ms`, `by_twin` and `ways` are of the live fork that made it; `dropped` is what it lacks.
    `epoch` counts forks from its first ancestor on.
    """

    command: tuple[str, ...]
    pid: int = 0
    parent: str | None = None
    snapshot: str | None = None
    pause_ms: float | None = None
    by_twin: bool | None = None
    ways: tuple[ForkWay, ...] = ()
    dropped: tuple[str, ...] = ()
    kernel: KernelRef | None = None
    epoch: int = 0
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


def shown_command(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a command as far as they are kept."""
    room = COMMAND_SHOWN
    words = []
    for word in argv:
        if len(word) >= room:
            words.append(word[: max(room - 1, 0)] + "…")
            break
        words.append(word)
        room -= len(word) + 1
    return tuple(words)


class Record(NamedTuple):
    """What a record says. `ground` is not to be changed: others may stand on it."""

    origin: Origin
    limits: Limits
    ground: Ground
    name: str | None
    keep_on: tuple[str, ...]
    until: float | None
    replaced: str | None
    created: float
    ttl: float | None


def read_record(record: bytes) -> Record | None:
    """What `record` says; None if that is nonsense."""
    try:
        text = record.decode()
        head, mark, rest = text.rpartition(_OWN)
        own = _own(rest) if mark else None
        if own is None:
            return _read(json.loads(text))
        common = _common(head)
        metadata, created, ttl = own
        origin = dataclasses.replace(common.origin, metadata=metadata) if metadata else common.origin
        return Record(origin, *common[1:-2], created, ttl)
    except (ValueError, KeyError, TypeError, InvalidRequest, RecursionError):
        return None


def _own(rest: str) -> tuple[dict[str, str], float, float | None] | None:
    """What a child's own is, from its metadata on; None where a record does not end with that."""
    try:
        told, end = _decode(_BEGINNING + rest)
        if end == len(_BEGINNING) + len(rest) and [*told] == _NAMES and [*told["origin"]] == ["metadata"]:
            return _metadata(told["origin"]["metadata"]), float(told["created"]), _seconds(told["ttl"])
    except (ValueError, TypeError):
        pass
    return None


@functools.lru_cache(maxsize=_KINDS)
def _common(head: str) -> Record:
    """What records with this beginning have in common. Raises what `_read` raises."""
    data = json.loads(f'{head}{_OWN}{{}}}},"created":0,"ttl":null}}')
    if [*data][-3:] != _NAMES:
        raise ValueError("what is a child's own is elsewhere")
    return _read(data)


def _read(data: dict[str, Any]) -> Record:
    """Raises ValueError, KeyError, TypeError, InvalidRequest."""
    told = data["origin"]
    if data["version"] != 1 or not told["pid"]:
        raise ValueError("it is of another version, or of what never began")
    own = {
        "command": tuple(told["command"]),
        "dropped": tuple(told["dropped"]),
        "kernel": KernelRef.from_wire(told["kernel"]),
        "ways": ForkWay.from_wire(told.get("ways", ())),
        "metadata": _metadata(told["metadata"]),
    }
    return Record(
        Origin(**{**told, **own}),
        Limits.of(data["limits"] or None),
        Ground.from_record(data["ground"]),
        data["name"],
        tuple(data["keep_on"]),
        _seconds(data["until"]),
        data["replaced"],
        float(data["created"]),
        _seconds(data["ttl"]),
    )


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("metadata is no object")
    return value


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)
