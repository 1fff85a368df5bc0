"""Sandboxes that stay, their forks and their snapshots: what is asked for, and what is told of them.

As in `operations`, requests check themselves on both sides. What a child of a fork has from its parent cannot
be asked for: its memory, environment, directory and root are the parent's, and so are the limits that live in
the process (see `FORK_LIMITS`).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.limits import BY_NAME, Limits, parse_limit, parse_seconds, shown
from ramet.models.names import check_name, check_text
from ramet.models.operations import Python, RunEnd, RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.models.operations import Text

FORK_MAX = 1000
"""Most children of one call."""
TTL_S = 300.0
"""How long a detached sandbox lives that nobody is attached to and nobody asks for anything."""
TTL_MAX_S = 7 * 86400.0
FORK_LIMITS = ("disk", "inodes", "wall", "output")
"""Limits that a child can have otherwise than its parent: those that are not in the copied process."""


def near(name: str, known: Iterable[str]) -> str | None:
    """A hint with the names that are most like `name`; None when none is."""
    found = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else None


def _ttl(value: object, *, detach: bool) -> float | None:
    if not detach:
        if value is not None:
            raise InvalidRequest.of("ttl", "is for detached sandboxes; this one ends with its owner")
        return None
    if value is None:
        return TTL_S
    seconds = parse_seconds(value, "ttl")
    if not 1 <= seconds <= TTL_MAX_S:
        text = f"{shown(value)} is out of range: from 1 to {TTL_MAX_S:g} seconds"
        raise InvalidRequest.of("ttl", text, code="out_of_range")
    return float(seconds)


def _timeout(value: object) -> float | None:
    return None if value is None else float(parse_limit(BY_NAME["wall"], value, "timeout"))


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest.of(field, f"{shown(value)} is neither true nor false")
    return value


def _only(data: Mapping[str, Any], known: Iterable[str]) -> None:
    if unknown := data.keys() - set(known):
        raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")


def check_sandbox(value: object, field: str = "sandbox") -> str:
    """`value` as an id or a name of a sandbox. Raises InvalidRequest naming `field`."""
    return check_name(check_text(value, field), field)


@dataclasses.dataclass(frozen=True, slots=True)
class CreateRequest:
    """A sandbox for one command, which stays until the command ends. Made by `of` or `from_wire`.

    `run` holds the command and where it runs; its limit ``wall`` does not count, `timeout` does: seconds
    until everything in the sandbox is killed, None for never. `ttl` is None unless the sandbox is detached.
    """

    run: RunRequest
    name: str | None = None
    timeout: float | None = None
    detach: bool = False
    ttl: float | None = None

    @classmethod
    def of(
        cls,
        command: str | Sequence[Text],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Text | None = None,
        root: Text | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        python: Python | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
    ) -> Self:
        """The request for `command`. Raises InvalidRequest naming the argument at fault."""
        run = RunRequest.of(command, env=env, cwd=cwd, root=root, limits=limits, python=python)
        named = None if name is None else check_name(check_text(name, "name"))
        if timeout is None:
            asked: Mapping[str, Any] = run.limits.asked() if isinstance(limits, Limits) else limits or {}
            timeout = run.limits.wall if asked.get("wall") is not None else None
        return cls(run, named, _timeout(timeout), _flag(detach, "detach"), _ttl(ttl, detach=detach))

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        data: dict[str, Any] = {"run": self.run.to_wire()}
        return data | _given(name=self.name, timeout=self.timeout, detach=self.detach or None, ttl=self.ttl)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        _only(data, ("run", "name", "timeout", "detach", "ttl"))
        run = data.get("run")
        if not isinstance(run, dict) or "streams" in run or "fault" in run:
            raise InvalidRequest.of("run", "must be an object that describes a command")
        name, detach = data.get("name"), _flag(data.get("detach", False), "detach")
        return cls(
            RunRequest.from_wire(run),
            None if name is None else check_name(check_text(name, "name")),
            _timeout(data.get("timeout")),
            detach,
            _ttl(data.get("ttl"), detach=detach),
        )


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class ForkRequest:
    """`n` sandboxes, forked from the running sandbox `sandbox` or from the snapshot `snapshot`.

    `limits` holds those that the children have otherwise than their parent, by name.
    """

    sandbox: str | None = None
    snapshot: str | None = None
    n: int = 1
    limits: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    timeout: float | None = None
    name: str | None = None
    detach: bool = False
    ttl: float | None = None

    @classmethod
    def of(
        cls,
        *,
        sandbox: str | None = None,
        snapshot: str | None = None,
        n: int = 1,
        limits: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
    ) -> Self:
        """The checked request. Raises InvalidRequest naming the argument at fault."""
        if (sandbox is None) == (snapshot is None):
            raise InvalidRequest.of("sandbox", "a fork is of one sandbox or of one snapshot")
        if type(n) is not int or not 1 <= n <= FORK_MAX:
            text = f"{shown(n)} is no number of children: from 1 to {FORK_MAX}"
            raise InvalidRequest.of("n", text, code="out_of_range")
        if name is not None and n != 1:
            raise InvalidRequest.of("name", f"is for one child, not for {n}")
        changed = _fork_limits(limits)
        wall = changed.pop("wall", None)
        return cls(
            None if sandbox is None else check_sandbox(sandbox),
            None if snapshot is None else check_name(check_text(snapshot, "snapshot"), "snapshot"),
            n,
            changed,
            _timeout(wall if timeout is None else timeout),
            None if name is None else check_name(check_text(name, "name")),
            _flag(detach, "detach"),
            _ttl(ttl, detach=detach),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return _given(
            sandbox=self.sandbox,
            snapshot=self.snapshot,
            n=self.n,
            limits=self.limits or None,
            timeout=self.timeout,
            name=self.name,
            detach=self.detach or None,
            ttl=self.ttl,
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        _only(data, [field.name for field in dataclasses.fields(cls)])
        return cls.of(**data)


def _fork_limits(limits: object) -> dict[str, int | float]:
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        kind = type(limits).__name__
        raise InvalidRequest.of("limits", f"must be a mapping of what differs from the parent's, not {kind}")
    parsed = {}
    for name, value in limits.items():
        if name not in FORK_LIMITS:
            _refuse_limit(name)
        parsed[name] = parse_limit(BY_NAME[name], value, f"limits.{name}")
    return parsed


def _refuse_limit(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidRequest.of("limits", f"{name!r} is not the name of a limit")
    if name not in BY_NAME:
        Limits(**{name: None})  # refuses it in the words of the table
    raise LimitUnsupported(
        "limit_unsupported",
        f"limits.{name}: lives in the process, so a fork has its parent's",
        field=f"limits.{name}",
        hint=f"a fork can have its own: {', '.join(FORK_LIMITS)}",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Keep the state of `sandbox` under `name`."""

    sandbox: str
    name: str

    @classmethod
    def of(cls, sandbox: str, name: str) -> Self:
        """The checked request. Raises InvalidRequest."""
        return cls(check_sandbox(sandbox), check_name(check_text(name, "name")))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"sandbox": self.sandbox, "name": self.name}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        _only(data, ("sandbox", "name"))
        return cls.of(data.get("sandbox", ""), data.get("name", ""))


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
        _only(data, ("sandbox",))
        return cls(check_sandbox(data.get("sandbox", "")))


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotName:
    """One snapshot."""

    name: str

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming ``snapshot``."""
        _only(data, ("name",))
        return cls(check_name(check_text(data.get("name", ""), "snapshot"), "snapshot"))


@dataclasses.dataclass(frozen=True, slots=True)
class ListRequest:
    """Which sandboxes to list: those that live, or `ended` ones as well."""

    ended: bool = False

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"ended": self.ended}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        _only(data, ("ended",))
        return cls(_flag(data.get("ended", False), "ended"))


# --- what is told -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox.

    `pid` is that of its command, inside; `created` and `ended` are seconds since the epoch. `parent` is the
    id of the sandbox that it was forked from, `snapshot` the name of the snapshot, where there was one.
    `setup_ms` counts from the request's arrival in core to the moment when the command ran. `pause_ms` tells
    how long the parent stood still for the fork, `by_twin` whether that copied no page of its memory; both
    are None for what was not forked from a running sandbox. `single_uid` is true when only one user id exists
    inside. `end` is how it ended, `note` who ended it, where the command did not.
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
    ended: float | None = None
    end: RunEnd | None = None
    note: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {field: getattr(self, field) for field in _INFO_FIELDS}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        end = data.get("end")
        return cls(
            **{**data, "command": tuple(data["command"]), "end": None if end is None else RunEnd._make(end)}
        )

    def how_it_ended(self) -> str:
        """The end in a few words; nothing while it lives."""
        end = self.end
        if end is None:
            return ""
        if end.reason == "exit":
            return f"exit code {end.exit_code}"
        if end.reason == "timeout":
            return "its time was up"
        return end.signal or f"{end.reason}: {self.note or 'nobody said why'}"

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object for people, with the end by its names."""
        return {**self.to_wire(), "end": None if self.end is None else self.end._asdict()}


_INFO_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxInfo))


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sandbox at one instant, kept under a name.

    `memory_bytes` and `file_bytes` are what is kept of memory and of written files; `pause_ms` is how long
    the sandbox stood still, `capture_ms` how long it took to write down, `stem_ms` to be ready to be forked;
    `by_twin` says that no page of memory had to be copied for it.
    `sandbox` is the id of the one it was taken of, `created` seconds since the epoch. `durable` says whether
    it survives the end of the daemon; then `disk_bytes` is what it takes on disk by itself, and `parent` the
    snapshot that it builds upon. `damage` says what is wrong with one that cannot be read.
    """

    name: str
    sandbox: str
    created: float
    pause_ms: float
    memory_bytes: int
    file_bytes: int
    processes: int = 1
    capture_ms: float = 0.0
    stem_ms: float = 0.0
    by_twin: bool = False
    durable: bool = False
    disk_bytes: int = 0
    parent: str | None = None
    damage: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**data)


@dataclasses.dataclass(frozen=True, slots=True)
class ForkReport:
    """What a fork cost, and which children were not made: their number and the error as JSON.

    The first four are None for a fork of a snapshot, which is taken already.
    """

    pause_ms: float | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    by_twin: bool | None = None
    errors: tuple[tuple[int, dict[str, Any]], ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**data, "errors": tuple([(number, error) for number, error in data["errors"]])})


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxList:
    """Sandboxes, the oldest first."""

    sandboxes: tuple[SandboxInfo, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"sandboxes": [one.to_wire() for one in self.sandboxes]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([SandboxInfo.from_wire(one) for one in data["sandboxes"]]))


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotList:
    """Snapshots by name."""

    snapshots: tuple[Snapshot, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"snapshots": [one.to_wire() for one in self.snapshots]}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([Snapshot.from_wire(one) for one in data["snapshots"]]))
