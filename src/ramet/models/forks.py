"""Forks, and what puts one sandbox in another's place: what is asked for, and what is told.

What a child of a fork has from its parent cannot be asked for: its memory, environment, directory and root
are the parent's. Of limits that are resource limits of a process it can have less than its parent, not more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import (
    check_metadata,
    check_on_unsupported,
    check_sandbox,
    checked_timeout,
    checked_ttl,
    flag,
    given,
    only,
    smaller,
)
from ramet.models.keeping import check_keep_on
from ramet.models.limits import BY_NAME, parse_limit, shown, unsupported_limit
from ramet.models.names import check_name, check_text
from ramet.models.sandboxes import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias, TypeVar

    from ramet.models.checks import OnUnsupported

    T = TypeVar("T")
    PerChild: TypeAlias = T | list[T] | tuple[T, ...]

FORK_MAX = 1000
"""Most children of one call."""


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """What one child of a fork has of its own. `limits` are those that it has otherwise than its parent."""

    name: str | None = None
    limits: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout: float | None = None

    @classmethod
    def of(cls, name: object, limits: object, metadata: object, timeout: object) -> Self:
        """A checked one. Raises InvalidRequest."""
        changed = _fork_limits(limits)
        wall = changed.pop("wall", None)
        return cls(
            None if name is None else check_name(check_text(name, "name")),
            changed,
            check_metadata(metadata),
            smaller(checked_timeout(timeout), wall),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return given(
            name=self.name,
            limits=self.limits or None,
            metadata=self.metadata or None,
            timeout=self.timeout,
        )

    @classmethod
    def from_wire(cls, data: object) -> Self:
        """From JSON, checked anew. Raises InvalidRequest."""
        if not isinstance(data, Mapping):
            raise InvalidRequest.of("children", "must be a list of objects")
        only(data, ("name", "limits", "metadata", "timeout"))
        return cls.of(data.get("name"), data.get("limits"), data.get("metadata"), data.get("timeout"))


@dataclasses.dataclass(frozen=True, slots=True)
class ForkRequest:
    """A sandbox for each child, forked from the running sandbox `sandbox` or the snapshot `snapshot`."""

    sandbox: str | None = None
    snapshot: str | None = None
    children: tuple[Child, ...] = (Child(),)
    detach: bool = False
    ttl: float | None = None
    on_unsupported: OnUnsupported = "refuse"
    keep_on: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        sandbox: str | None = None,
        snapshot: str | None = None,
        n: int = 1,
        limits: PerChild[Mapping[str, Any] | None] = None,
        timeout: float | None = None,
        names: Sequence[str] | None = None,
        metadata: PerChild[Mapping[str, str] | None] = None,
        detach: bool = False,
        ttl: float | None = None,
        on_unsupported: object = "refuse",
        keep_on: Sequence[str] = (),
    ) -> Self:
        """The checked request for `n` children, with lists of `n` where they differ.

        Raises InvalidRequest naming the argument at fault.
        """
        if (sandbox is None) == (snapshot is None):
            raise InvalidRequest.of("sandbox", "a fork is of one sandbox or of one snapshot")
        if type(n) is not int or not 1 <= n <= FORK_MAX:
            text = f"{shown(n)} is no number of children: from 1 to {FORK_MAX}"
            raise InvalidRequest.of("n", text, code="out_of_range")
        rows = zip(
            per_child(names, n, "names"),
            per_child(limits, n, "limits"),
            per_child(metadata, n, "metadata"),
            strict=True,
        )
        children = tuple([Child.of(*row, timeout) for row in rows])
        _check_different([child.name for child in children if child.name is not None])
        return cls(
            None if sandbox is None else check_sandbox(sandbox),
            None if snapshot is None else check_name(check_text(snapshot, "snapshot"), "snapshot"),
            children,
            flag(detach, "detach"),
            checked_ttl(ttl, detach=detach),
            check_on_unsupported(on_unsupported, taken=snapshot is not None),
            check_keep_on(keep_on, [child.timeout for child in children]),
        )

    def to_wire(self) -> dict[str, Any]:
        """As JSON; what has its default is left out."""
        return given(
            on_unsupported=None if self.on_unsupported == "refuse" else self.on_unsupported,
            sandbox=self.sandbox,
            snapshot=self.snapshot,
            children=[child.to_wire() for child in self.children],
            detach=self.detach or None,
            ttl=self.ttl,
            keep_on=self.keep_on or None,
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        only(data, [field.name for field in dataclasses.fields(cls)])
        children = data.get("children")
        if not isinstance(children, list):
            raise InvalidRequest.of("children", "must be a list of objects")
        checked = cls.of(
            sandbox=data.get("sandbox"),
            snapshot=data.get("snapshot"),
            n=len(children),
            detach=data.get("detach", False),
            ttl=data.get("ttl"),
            on_unsupported=data.get("on_unsupported", "refuse"),
        )
        made = tuple([Child.from_wire(child) for child in children])
        _check_different([child.name for child in made if child.name is not None])
        kept = check_keep_on(data.get("keep_on", ()), [child.timeout for child in made])
        return dataclasses.replace(checked, children=made, keep_on=kept)


@functools.lru_cache(maxsize=64)
def fork_of(snapshot: str) -> ForkRequest:
    """The request for one child of `snapshot` that has nothing of its own. Raises InvalidRequest."""
    return ForkRequest.of(snapshot=snapshot)


@dataclasses.dataclass(frozen=True, slots=True)
class ForkLaneRequest:
    """What a client needs to have core fork the snapshot, or the running sandbox, past the daemon.

    `limits` are those that the children have otherwise than the snapshot; `socket` asks for a lane, a
    connection to core.
    """

    snapshot: str | None = None
    limits: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    socket: bool = True
    sandbox: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        source = given(snapshot=self.snapshot, sandbox=self.sandbox)
        return source | {"limits": dict(self.limits), "socket": self.socket}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("snapshot", "limits", "socket", "sandbox"))
        limits = _fork_limits(data.get("limits"))
        if "wall" in limits:
            raise InvalidRequest.of("limits.wall", "is each child's own, not what all have in common")
        name, sandbox = data.get("snapshot"), data.get("sandbox")
        if (name is None) == (sandbox is None) or (sandbox is not None and limits):
            raise InvalidRequest.of("sandbox", "a lane is for one snapshot, or for one sandbox as it is")
        return cls(
            None if name is None else check_name(check_text(name, "snapshot"), "snapshot"),
            limits,
            flag(data.get("socket", True), "socket"),
            None if sandbox is None else check_sandbox(sandbox),
        )


def per_child(value: Any, n: int, field: str) -> list[Any]:
    """`value` for each of `n` children: the items of a list of `n`, or the same for all.

    Raises InvalidRequest naming `field`.
    """
    if not isinstance(value, (list, tuple)):
        if field == "names" and value is not None:
            raise InvalidRequest.of(field, f"must be a list of {n}")
        return [value] * n
    if len(value) != n:
        raise InvalidRequest.of(field, f"has {len(value)} items for {n} children")
    return list(value)


def _check_different(names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        raise InvalidRequest.of("names", "one is given twice", code="name_taken")


def _fork_limits(limits: object) -> dict[str, int | float]:
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        kind = type(limits).__name__
        raise InvalidRequest.of("limits", f"must be a mapping of what differs from the parent's, not {kind}")
    parsed = {}
    for name, value in limits.items():
        if not isinstance(name, str):
            raise InvalidRequest.of("limits", f"{name!r} is not the name of a limit")
        if name not in BY_NAME:
            raise unsupported_limit(name)
        parsed[name] = parse_limit(BY_NAME[name], value, f"limits.{name}")
    return parsed


@dataclasses.dataclass(frozen=True, slots=True)
class RollbackRequest:
    """Have `sandbox` be again as it is in `snapshot`."""

    sandbox: str
    snapshot: str

    @classmethod
    def of(cls, sandbox: object, snapshot: object) -> Self:
        """A checked one. Raises InvalidRequest."""
        return cls(check_sandbox(sandbox), check_name(check_text(snapshot, "snapshot"), "snapshot"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "snapshot"))
        return cls.of(data.get("sandbox", ""), data.get("snapshot", ""))


@dataclasses.dataclass(frozen=True, slots=True)
class PromoteRequest:
    """Have `sandbox` take the place of `over`, which it was forked from; None: of the one it is a fork of."""

    sandbox: str
    over: str | None = None

    @classmethod
    def of(cls, sandbox: object, over: object = None) -> Self:
        """A checked one. Raises InvalidRequest."""
        return cls(check_sandbox(sandbox), None if over is None else check_sandbox(over, "over"))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest."""
        only(data, ("sandbox", "over"))
        return cls.of(data.get("sandbox", ""), data.get("over"))


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
class ForkLaneInfo:
    """What the plans of all children of a snapshot have in common, and which core understands it.

    `encoded` is base64 of attributes of core/PROTOCOL.md, SNAPSHOT first, `number` the snapshot's there; of
    a running sandbox there is none yet. `info` is what is told of a child, or of that sandbox, `record` what
    core is to keep of it; both without what is the child's own. `ahead` says whether children are forked
    ahead, and may be claimed; `told`, whether their kernels know by then whose life they live.
    """

    core_id: str
    number: int
    encoded: str
    info: SandboxInfo
    record: Mapping[str, Any]
    ahead: bool
    told: bool

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "info": self.info.to_wire()}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**data, "info": SandboxInfo.from_wire(data["info"])})
