"""What a daemon tells of itself, its core and its machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Empty:
    """A request without arguments."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest when there is an argument."""
        if data:
            raise InvalidRequest.of(min(data), "is not known to this operation", code="unknown_option")
        return cls()


@dataclasses.dataclass(frozen=True, slots=True)
class CoreStatus:
    """A running core. `ids` is ``single`` or ``range``; `lanes` are clients' connections to it.

    `snapshot_memory` are the bytes that snapshots take in memory, `snapshot_budget` those that they may take;
    0: any.
    """

    pid: int
    core_id: str
    program: str
    protocol: int
    ids: str
    pool_size: int
    pool_ready: int
    sandboxes: int
    roots: int
    runs: int
    lanes: int
    idle_s: float
    snapshot_memory: int = 0
    snapshot_budget: int = 0
    cgroups: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonStatus:
    """A running daemon. `core` is None until the first run, and after core ended.

    `older` are cores of earlier programs, which are kept for the sandboxes that they have.
    """

    pid: int
    version: str
    protocol: int
    uptime_s: float
    idle_s: float
    connections: int
    active: int
    runtime_dir: str
    core: CoreStatus | None = None
    older: tuple[CoreStatus, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        core = data.get("core")
        older = tuple([CoreStatus(**one) for one in data.get("older", ())])
        return cls(**{**data, "core": CoreStatus(**core) if core else None, "older": older})


@dataclasses.dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ping."""

    version: str
    pid: int

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**data)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What `doctor` says of one thing: ``pass``, ``warn`` or ``fail``; `fix` is one shell command."""

    name: str
    status: str
    detail: str
    fix: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What `doctor` found, in the order of its checks, as the daemon sees the machine."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """False when sandboxes do not work here."""
        return all(finding.status != "fail" for finding in self.findings)

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(tuple([Finding(**finding) for finding in data["findings"]]))
