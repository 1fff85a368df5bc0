"""Sandboxes that stay: which one is meant, and what is told of it."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import check_metadata, check_sandbox, flag, given, only
from ramet.models.limits import enforced_by
from ramet.models.names import check_name, check_text
from ramet.models.results import limit_of
from ramet.models.runs import RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Literal

CHANNELS = ("packets", "lines")
"""Kinds of channels: messages that are read whole (SOCK_SEQPACKET), or lines (SOCK_STREAM)."""


class KernelRef(NamedTuple):
    """That a sandbox's command is a kernel: its name, and the kind of channel."""

    name: str
    channel: str

    @classmethod
    def from_wire(cls, data: object) -> Self | None:
        """From JSON. Raises InvalidRequest naming ``kernel``."""
        if data is None:
            return None
        if not isinstance(data, (list, tuple)) or len(data) != 2 or data[1] not in CHANNELS:
            raise InvalidRequest.of("kernel", f"must be a name and one of {', '.join(CHANNELS)}")
        return cls(check_name(check_text(data[0], "kernel"), "kernel"), data[1])


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxRequest:
    """One sandbox, by id or name."""

    sandbox: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"sandbox": self.sandbox}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox",))
        return cls(check_sandbox(data.get("sandbox", "")))


@dataclasses.dataclass(frozen=True, slots=True)
class ListRequest:
    """Which sandboxes to list: those that live, or `ended` ones as well, that fit all that is given.

    `since` is the mark of a list of all that live, and asks for what has changed since then; "" asks for all
    and a mark. `sandbox` is the id or name of one, `parent` an id or name, `snapshot` the name that they were
    forked from, `metadata` what must be noted.
    """

    ended: bool = False
    name: str | None = None
    parent: str | None = None
    snapshot: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sandbox: str | None = None
    since: str | None = None

    @classmethod
    def of(
        cls,
        *,
        ended: bool = False,
        name: str | None = None,
        parent: str | None = None,
        snapshot: str | None = None,
        metadata: Mapping[str, str] | None = None,
        sandbox: str | None = None,
        since: str | None = None,
    ) -> Self:
        """The checked request. Raises InvalidRequest."""
        made = cls(
            flag(ended, "ended"),
            None if name is None else check_sandbox(name, "name"),
            None if parent is None else check_sandbox(parent, "parent"),
            None if snapshot is None else check_sandbox(snapshot, "snapshot"),
            check_metadata(metadata),
            None if sandbox is None else check_sandbox(sandbox),
            None if since is None else check_text(since, "since"),
        )
        if made.since is not None and (made.ended or made.chooses):
            raise InvalidRequest.of("since", "is for a list of all that live")
        return made

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return given(
            ended=self.ended or None,
            name=self.name,
            parent=self.parent,
            snapshot=self.snapshot,
            metadata=self.metadata or None,
            sandbox=self.sandbox,
            since=self.since,
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        return cls.of(**data)

    @property
    def chooses(self) -> bool:
        """Whether only some are meant of those that live, or have ended."""
        return bool(self.name or self.parent or self.snapshot or self.metadata or self.sandbox)

    def fits(self, info: SandboxInfo, parent: str | None) -> bool:
        """Whether a sandbox is meant; `parent` is the id of the one that was named."""
        return (
            self.name in {None, info.name}
            # An unknown one has no id, and neither has what was not forked a parent.
            and (self.parent is None or (info.parent is not None and info.parent in {parent, self.parent}))
            and self.snapshot in {None, info.snapshot}
            and self.sandbox in {None, info.id, info.name}
            and all(info.metadata.get(name) == value for name, value in self.metadata.items())
        )


class ForkWay(NamedTuple):
    """How the memory of one process came into a snapshot, or a live fork.

    `pid` and `name` are as inside. `way` is ``twin``: no page was copied, as the process had a parked twin;
    ``frozen``: a copy-on-write copy of it was made in the pause, and read after that; ``copied``: it was so
    small that its pages were copied in the pause. `why` there was no twin: ``no_twin``: the sandbox comes
    from no fork, or its twin was lost; ``exec``: the process has called exec since; ``unforked``: it has
    memory that it keeps from its forks; ``failed``: the twin could not be forked; ``has_parent``: it is not
    the sandbox's first process. `copied_bytes` of its memory were copied. Of more than 128 processes the
    first 128 are told of.
    """

    pid: int
    name: str
    way: str
    why: str | None = None
    copied_bytes: int = 0

    @classmethod
    def parse(cls, lines: str) -> tuple[Self, ...]:
        """From what core tells: a line for each."""
        # Not splitlines(): names are the guest's, and may hold what that takes for an end.
        return tuple([cls._of_line(line) for line in lines.split("\n") if line])

    @classmethod
    def _of_line(cls, line: str) -> Self:
        pid, way, why, copied, name = line.split(" ", 4)
        return cls(int(pid), name, way, None if why == "-" else why, int(copied))

    @classmethod
    def from_wire(cls, data: Iterable[Sequence[Any]]) -> tuple[Self, ...]:
        """From JSON."""
        return tuple([cls(*one) for one in data])


def hostname_of(name: str | None, sandbox: str) -> str:
    """What a sandbox is called inside: by its name, else by its id."""
    return name or f"ramet-{sandbox[:8]}"


def how_it_ended(end: RunEnd | None, note: str | None, kept: str | None, kept_error: str | None) -> str:
    """An end in a few words; nothing while it lives. The rest is as in `SandboxInfo`."""
    if end is None:
        return ""
    if end.reason == "exit":
        return f"exit code {end.exit_code}" + (f", limit {end.reached}" if end.reached else "")
    if end.reason == "timeout":
        state = "" if kept is None else f", its state is kept as {kept}"
        return f"its time was up{state}" + ("" if kept_error is None else f", to keep it: {kept_error}")
    if end.reason == "idle":
        return "nothing in it ran for too long"
    if limit := limit_of(end.reason, end.reached):
        return f"its limit of {limit} was exceeded"
    return end.signal or f"{end.reason}: {note or 'nobody said why'}"


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox.

    `pid` is that of its command, inside; `created` and `ended` are seconds since the epoch. `parent` is the
    id of the sandbox that it was forked from, `snapshot` the name of the snapshot, where there was one.
    `setup_ms` counts from the request's arrival in core to the moment when the command ran. `pause_ms` tells
    how long the parent stood still for the fork, `by_twin` whether that copied no page of its first
    process's memory; both are None for what was not forked from a running sandbox. `ways` tells of each of
    the first 128 processes how its memory came along. `dropped` is what of its ancestors could not be carried
    and was left out, as was asked: "pid 57 python: fd 9 is a netlink socket".
    `single_uid` is true when only one user id exists
    inside. `end` is how it ended, `note` who ended it, where the command did not. `kernel` tells of one that
    runs code; `epoch` counts the forks from its first ancestor on; `metadata` is what its maker noted of it.
    `limits` are those that differ from the defaults; `cgroups` says which core has for them.
    `keep_on` are the ends before which a snapshot is taken; `kept` is the name of the one that was taken, and
    `kept_error` why there is none, or what is wrong with it.
    """

    id: str
    name: str | None
    status: Literal["running", "ended"]
    pid: int
    command: tuple[str, ...]
    created: float
    parent: str | None = None
    snapshot: str | None = None
    detached: bool = False
    ttl: float | None = None
    single_uid: bool = True
    setup_ms: float = 0.0
    pause_ms: float | None = None
    by_twin: bool | None = None
    ways: tuple[ForkWay, ...] = ()
    dropped: tuple[str, ...] = ()
    ended: float | None = None
    end: RunEnd | None = None
    note: str | None = None
    kernel: KernelRef | None = None
    epoch: int = 0
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cgroups: str = ""
    keep_on: tuple[str, ...] = ()
    kept: str | None = None
    kept_error: str | None = None

    @property
    def enforced_by(self) -> Mapping[str, str]:
        """What enforces each limit."""
        return enforced_by(self.cgroups)

    def with_own(self, own: Mapping[str, Any]) -> Self:
        """As dataclasses.replace(), which takes twice as long, for each child that is made."""
        return type(self)(
            *[own.get(name, value) for name, value in zip(_INFO_FIELDS, _values(self), strict=True)]
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {field: getattr(self, field) for field in _INFO_FIELDS}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        end = data.get("end")
        more = {
            "command": tuple(data["command"]),
            "ways": ForkWay.from_wire(data.get("ways", ())),
            "dropped": tuple(data.get("dropped", ())),
            "keep_on": tuple(data.get("keep_on", ())),
            "end": None if end is None else RunEnd._make(end),
            "kernel": KernelRef.from_wire(data.get("kernel")),
        }
        return cls(**{**data, **more})

    @property
    def hostname(self) -> str:
        """What it is called inside."""
        return hostname_of(self.name, self.id)

    def how_it_ended(self) -> str:
        """The end in a few words; nothing while it lives."""
        return how_it_ended(self.end, self.note, self.kept, self.kept_error)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object for people, with the end by its names."""
        return {
            **self.to_wire(),
            "ways": [way._asdict() for way in self.ways],
            "enforced_by": dict(self.enforced_by),
            "end": None if self.end is None else self.end._asdict(),
        }


_INFO_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxInfo))


_values = operator.attrgetter(*_INFO_FIELDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """What a sandbox uses at the moment.

    Times are of its processes, those that ended too. `memory_bytes` is the sum of what is resident of each:
    pages that processes share count for each of them. `shared_bytes` of it others have as well: the snapshot
    that it was forked from, its other forks, whoever runs the same programs. `disk_bytes` of `disk_limit` are
    written to its files, which are `files` of `files_limit` files and directories; the like with `shm_` are
    those of a /dev/shm with a size of its own (the limit ``shm``), else 0: then they are among the others.
    """

    user_ms: float
    system_ms: float
    memory_bytes: int
    processes: int
    threads: int
    disk_bytes: int
    disk_limit: int
    files: int = 0
    files_limit: int = 0
    shared_bytes: int = 0
    shm_bytes: int = 0
    shm_limit: int = 0
    shm_files: int = 0
    shm_files_limit: int = 0

    @property
    def disk_full(self) -> bool:
        """Whether nothing more can be written, or no file be made: ``ENOSPC`` inside."""
        return self.disk_bytes >= self.disk_limit or 0 < self.files_limit <= self.files

    @property
    def shm_full(self) -> bool:
        """The same of a /dev/shm with a size of its own; of any other `disk_full` tells."""
        full = self.shm_bytes >= self.shm_limit or 0 < self.shm_files_limit <= self.shm_files
        return self.shm_limit > 0 and full

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**dataclasses.asdict(self), "disk_full": self.disk_full, "shm_full": self.shm_full}


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxList:
    """Sandboxes, the oldest first.

    To a request with a mark those that have changed since then, with the `ids` of all, and the next `mark`.
    """

    sandboxes: tuple[SandboxInfo, ...]
    ids: tuple[str, ...] | None = None
    mark: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        told = {"sandboxes": [one.to_wire() for one in self.sandboxes]}
        return told | given(ids=self.ids, mark=self.mark)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        ids = data.get("ids")
        told = tuple([SandboxInfo.from_wire(one) for one in data["sandboxes"]])
        return cls(told, None if ids is None else tuple(ids), data.get("mark"))
