"""The one table of limits.

Each has a finite default and a mechanism that enforces it, which every result repeats in `enforced_by`. Some
are enforced by cgroups where core has them, and by something else, or not at all, where it has none. A limit
that is asked for and cannot be enforced is refused by name (LimitUnsupported), never ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.names import near

if TYPE_CHECKING:
    from collections.abc import Mapping

WATCHER = "core watcher"
MACHINE = "machine"
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
WALL_MAX_S = 7 * 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class LimitSpec:
    """One row of the table. `default`, `minimum` and `maximum` are in `unit`.

    `enforced_by` is what enforces it without cgroups; with them it is the cgroup's `controller`, if there is
    one for it.
    """

    name: str
    unit: str
    default: int | float
    minimum: int | float
    maximum: int | float
    enforced_by: str
    summary: str
    option: str
    rlimit: str | None = None
    controller: str | None = None


# memory: the default is there against runaways. It counts what is written too, which is held in RAM.
# cpus: the default is above any machine, and what is not below the machine's needs no enforcing.
# address_space: programs reserve far more than they touch (V8 1 TiB, AddressSanitizer 16 TiB), so the default
# only stops runaways; it is no limit of memory. file_size also counts for memfds, which databases make large
# and sparse.
LIMITS: tuple[LimitSpec, ...] = (
    LimitSpec("memory", "bytes", 4 * GIB, 8 * MIB, 64 * TIB,
              WATCHER, "memory of all processes and of what is written, with swap", "--memory",
              controller="memory"),
    LimitSpec("cpus", "processors", 4096.0, 0.01, 4096.0,
              MACHINE, "processors' worth of time", "--cpus", controller="cpu"),
    LimitSpec("processes", "count", 256, 1, 4_194_304,
              "rlimit", "processes and threads at once", "--pids", "NPROC"),
    LimitSpec("open_files", "count", 4096, 8, 1_048_576,
              "rlimit", "open files of one process", "--open-files", "NOFILE"),
    LimitSpec("file_size", "bytes", 16 * GIB, 0, 8192 * TIB,
              "rlimit", "size of one file", "--file-size", "FSIZE"),
    LimitSpec("disk", "bytes", 1 * GIB, 64 * KIB, 64 * TIB,
              "tmpfs", "bytes written to the root, held in RAM", "--disk"),
    LimitSpec("inodes", "count", 262_144, 16, 1 << 31,
              "tmpfs", "files and directories written to the root", "--inodes"),
    LimitSpec("shm", "bytes", 0, 0, 64 * TIB,
              "tmpfs", "size of /dev/shm, held in RAM; 0: a part of --disk", "--shm"),
    LimitSpec("io", "bytes", 1 * TIB, 64 * KIB, 1 * TIB,
              MACHINE, "bytes a second read from each disk, and written", "--io", controller="io"),
    LimitSpec("address_space", "bytes", 32 * TIB, 16 * MIB, 128 * TIB,
              "rlimit", "address space of one process", "--address-space", "AS"),
    LimitSpec("cpu_seconds", "seconds", 86_400, 1, 365 * 86_400,
              "rlimit and core watcher", "processor time of all processes together", "--cpu-seconds", "CPU"),
    LimitSpec("wall", "seconds", 300.0, 0.001, WALL_MAX_S,
              "core watchdog", "time from the request to the end", "--timeout"),
    LimitSpec("idle", "seconds", 86_400.0, 0.1, WALL_MAX_S,
              WATCHER, "time in which nothing in the sandbox runs", "--idle"),
    LimitSpec("output", "bytes", 8 * MIB, 0, 1 * GIB,
              "client", "bytes kept of each output stream, half head, half tail", "--output"),
)  # fmt: skip
PAGE = 4096
DISK_SHARE = 0.75
"""Of a limit on memory that was asked for, what may be written, unless that was asked for too."""
BY_NAME: Mapping[str, LimitSpec] = MappingProxyType({spec.name: spec for spec in LIMITS})


@functools.cache
@functools.lru_cache(maxsize=16)
def enforced_by(cgroups: str) -> Mapping[str, str]:
    """What enforces each limit on a core with these cgroups: "" for none, else as ``2 cpu memory pids``."""
    version, *controllers = cgroups.split() or [""]
    return MappingProxyType(
        {
            spec.name: f"cgroup v{version}" if spec.controller in controllers else spec.enforced_by
            for spec in LIMITS
        }
    )


@functools.lru_cache(maxsize=8)
def without_memory(cgroups: str) -> str:
    """What of these cgroups holds limits of a sandbox whose memory its init watches."""
    return " ".join([word for word in cgroups.split() if word != "memory"])


ENFORCED_BY = enforced_by("")

_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def shown(value: object) -> str:
    """`value` for an error message: its repr, shortened."""
    try:
        text = repr(value)
    except ValueError:  # int of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 64 else f"{text[:60]}..."


def parse_size(value: object, field: str) -> int:
    """Bytes from an int or from text such as ``"64M"``, ``"1GiB"``, ``"1.5g"``; units are powers of 1024.

    Raises InvalidRequest naming `field`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number, unit = match.groups()
        scale = _UNITS[unit.lower()]
        return int(float(number) * scale) if "." in number else int(number) * scale
    raise InvalidRequest.of(field, f"{shown(value)} is not a size (bytes, or text such as 64M or 1GiB)")


def parse_seconds(value: object, field: str) -> float:
    """Seconds from a number, or from text that may end in ms, s, m or h.

    Raises InvalidRequest naming `field`.
    """
    scale = 1.0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h)?\s*", value)
        if not match:
            raise InvalidRequest.of(
                field, f"{shown(value)} is not a time (seconds, or text such as 500ms or 5m)"
            )
        value, scale = float(match[1]), {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(match[2] or "s", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest.of(field, f"{shown(value)} is not a number of seconds")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest.of(field, f"{shown(value)} is not a finite number of seconds")
    return value if scale == 1.0 else value * scale


def _parse_fraction(value: object, field: str) -> float:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,20}(?:\.[0-9]{1,20})?\s*", value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest.of(field, f"{shown(value)} is not a number of processors")
    if not -1e6 < value < 1e6:  # an infinity, none at all, or more than a float holds
        raise InvalidRequest.of(field, f"{shown(value)} is out of range", code="out_of_range")
    return float(value)


def parse_limit(spec: LimitSpec, value: object, field: str) -> int | float:
    """`value` in the unit of `spec`, within its bounds. Raises InvalidRequest naming `field`."""
    number: int | float
    if spec.unit == "seconds":
        number = parse_seconds(value, field)
        if spec.rlimit:
            number = math.ceil(number)
    elif spec.unit == "bytes":
        number = parse_size(value, field)
    elif spec.unit == "processors":
        number = _parse_fraction(value, field)
    elif isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,20}\s*", value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise InvalidRequest.of(field, f"{shown(value)} is not a count")
    if not spec.minimum <= number <= spec.maximum:
        bounds = f"from {spec.minimum} to {spec.maximum} {spec.unit}"
        raise InvalidRequest.of(field, f"{shown(value)} is out of range: {bounds}", code="out_of_range")
    return number


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Limits:
    """The limits of one command: the table's defaults and what was given; sizes may be text (``"64M"``).

    Raises InvalidRequest (field ``limits.NAME``) for a value out of range, LimitUnsupported for a limit that
    is not in the table.
    """

    memory: int
    cpus: float
    processes: int
    open_files: int
    file_size: int
    disk: int
    inodes: int
    shm: int
    io: int
    address_space: int
    cpu_seconds: int
    wall: float
    idle: float
    output: int

    def __init__(
        self,
        *,
        memory: int | str | None = None,
        cpus: float | str | None = None,
        processes: int | str | None = None,
        open_files: int | str | None = None,
        file_size: int | str | None = None,
        disk: int | str | None = None,
        inodes: int | str | None = None,
        shm: int | str | None = None,
        io: int | str | None = None,
        address_space: int | str | None = None,
        cpu_seconds: float | str | None = None,
        wall: float | str | None = None,
        idle: float | str | None = None,
        output: int | str | None = None,
        **unsupported: object,
    ) -> None:
        for name, value in unsupported.items():
            if value is not None:
                raise unsupported_limit(name)
        counts = (memory, cpus, processes, open_files)
        sizes = (file_size, disk, inodes, shm, io, address_space)
        for spec, given in zip(LIMITS, (*counts, *sizes, cpu_seconds, wall, idle, output), strict=True):
            number = spec.default if given is None else parse_limit(spec, given, f"limits.{spec.name}")
            object.__setattr__(self, spec.name, number)
        for name, given in (("disk", disk), ("shm", shm)):
            if memory is not None and given is not None and getattr(self, name) > self.memory:
                text = f"{getattr(self, name)} bytes are more than limits.memory, {self.memory}"
                raise InvalidRequest.of(
                    f"limits.{name}", f"{text}, of which they are a part", code="out_of_range"
                )
        if 0 < self.shm < PAGE:
            raise InvalidRequest.of(
                "limits.shm", f"{self.shm} bytes are less than a page", code="out_of_range"
            )

    @classmethod
    def of(cls, value: Limits | Mapping[str, Any] | None) -> Limits:
        """Limits from what a caller may give: Limits, a mapping by name, or None for the defaults."""
        if value is None:
            return DEFAULT_LIMITS
        if isinstance(value, Limits):
            return value
        try:
            asked = dict(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise InvalidRequest.of("limits", f"must be Limits or a mapping, not {kind}") from None
        for name in asked:
            if not isinstance(name, str):
                raise InvalidRequest.of("limits", f"{name!r} is not the name of a limit")
        return cls(**asked)

    def replace(self, **changes: Any) -> Self:
        """The same limits with some changed; values as for the constructor."""
        return type(self)(**{**self.asked(), **changes})

    @property
    def writable(self) -> int:
        """The bytes that may be written: ``disk``, or less if what was asked for of ``memory`` is less."""
        asked = self.asked()
        if "memory" in asked and "disk" not in asked:
            return min(self.disk, int(self.memory * DISK_SHARE))
        return self.disk

    @property
    def takeable(self) -> int:
        """The memory that may be taken: ``memory``, and ``shm``, and of ``disk`` what exceeds its default."""
        more = max(0, self.disk - int(BY_NAME["disk"].default)) + self.shm
        return self.memory if "memory" in self.asked() else self.memory + more

    def without_deadline(self) -> Self:
        """The same with the default ``wall``."""
        return self if self.wall == DEFAULT_LIMITS.wall else self.replace(wall=DEFAULT_LIMITS.wall)

    def asked(self) -> dict[str, int | float]:
        """The limits that differ from the table's defaults, by name."""
        if self is DEFAULT_LIMITS:
            return {}
        return {spec.name: value for spec in LIMITS if (value := getattr(self, spec.name)) != spec.default}


def unsupported_limit(name: str) -> LimitUnsupported:
    """The refusal of a limit that is not in the table."""
    meant = near(name, BY_NAME)
    known = "; ".join([", ".join(BY_NAME), *([meant] if meant else [])])
    return LimitUnsupported(
        "limit_unsupported",
        f"limits.{name}: there is no such limit",
        field=f"limits.{name}",
        hint=f"supported limits: {known}",
    )


def check_enforceable(limits: Limits, cgroups: str, processors: int) -> None:
    """Refuse what was asked for and cannot be enforced with these cgroups on a machine of `processors`."""
    if limits.cpus < processors and "cpu" not in cgroups.split():
        raise LimitUnsupported(
            "limit_unsupported",
            f"limits.cpus: {limits.cpus:g} of {processors} processors cannot be enforced without cgroups",
            field="limits.cpus",
            hint="`ramet doctor` says what is missing for cgroups; without them a limit below the machine's "
            "processors is refused",
        )
    if limits.io < BY_NAME["io"].default and "io" not in cgroups.split():
        raise LimitUnsupported(
            "limit_unsupported",
            "limits.io: cannot be bounded without a cgroup that controls disks, and a disk",
            field="limits.io",
            hint="what a sandbox writes is in memory and reaches no disk; `ramet doctor` says which cgroups "
            "there are",
        )


DEFAULT_LIMITS = Limits()
