"""A command in a sandbox of its own: what is asked for, and how it ended.

Requests check themselves when they are made (`RunRequest.of` by a client, `from_wire` by the daemon), so that
a wrong argument is refused by name before anything is started, and by the same words on both sides.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ramet.errors import InvalidRequest
from ramet.models.limits import BY_NAME, DEFAULT_LIMITS, Limits, parse_limit
from ramet.models.names import check_environment, check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import TypeAlias

    from ramet.models.results import Reason

    Text: TypeAlias = str | bytes | PathLike[str]

SHELL = "/bin/sh"
TEXT_MAX = 131_071
"""MAX_ARG_STRLEN of Linux without its NUL: longest single argument or NAME=value, in bytes."""
TEXTS_MAX = 6 << 20
"""Most bytes of arguments and environment together; Linux allows no more for any stack limit (execve(2))."""


@dataclasses.dataclass(frozen=True, slots=True)
class Python:
    """The interpreter whose files the default root shows: the client's own."""

    executable: str
    prefix: str
    base_prefix: str

    def to_wire(self) -> list[str]:
        """As JSON."""
        return [self.executable, self.prefix, self.base_prefix]

    @classmethod
    def from_wire(cls, data: object) -> Self:
        """From JSON. Raises InvalidRequest naming ``python``."""
        if not isinstance(data, list) or len(data) != 3:
            raise InvalidRequest.of("python", "must be three paths")
        executable, prefix, base_prefix = (check_text(part, "python") for part in data)
        return cls(executable, prefix, base_prefix)


@dataclasses.dataclass(frozen=True, slots=True)
class RunRequest:
    """One command in a sandbox of its own. Made by `of` or `from_wire`, which check everything.

    `env` is added to the sandbox's own small environment. `cwd` and `root` are absolute; None means the
    root's home and the default root. `streams` names the standard streams (0, 1, 2) that come along as
    descriptors, in order; the others are /dev/null. `fault` names a step of core that is to fail; only a
    daemon under test accepts it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cwd: str | None = None
    root: str | None = None
    limits: Limits = DEFAULT_LIMITS
    python: Python | None = None
    streams: tuple[int, ...] = ()
    fault: str | None = None

    @classmethod
    def of(
        cls,
        command: str | Sequence[Text],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Text | None = None,
        root: Text | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        python: Python | None = None,
        streams: tuple[int, ...] = (),
    ) -> Self:
        """The request for `command`: text is a line for /bin/sh, a sequence the program and its arguments.

        `timeout` (seconds) stands for the limit ``wall``; of both the smaller counts. Raises InvalidRequest
        naming the argument at fault.
        """
        argv = _argv(command)
        variables = check_environment(env) if env else {}
        _check_size(argv, variables)
        checked = Limits.of(limits)
        if timeout is not None:
            wall = parse_limit(BY_NAME["wall"], timeout, "timeout")
            if "wall" in checked.asked():
                wall = min(wall, checked.wall)
            if wall != checked.wall:
                checked = checked.replace(wall=wall)
        return cls(
            argv,
            variables,
            None if cwd is None else _directory(cwd, "cwd"),
            None if root is None else _root(root),
            checked,
            python,
            streams,
        )

    def to_wire(self) -> dict[str, Any]:
        """The request as JSON; what has its default is left out."""
        data: dict[str, Any] = {"argv": self.argv}
        if self.env:
            data["env"] = self.env
        if self.cwd is not None:
            data["cwd"] = self.cwd
        if self.root is not None:
            data["root"] = self.root
        if self.limits is not DEFAULT_LIMITS:
            data["limits"] = self.limits.asked()
        if self.python is not None:
            data["python"] = self.python.to_wire()
        if self.streams:
            data["streams"] = self.streams
        if self.fault is not None:
            data["fault"] = self.fault
        return data

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """The request from JSON, checked anew. Raises InvalidRequest naming the field at fault."""
        unknown = data.keys() - _RUN_FIELDS
        if unknown:
            raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")
        command = data.get("argv")
        if not isinstance(command, list):
            raise InvalidRequest.of("command", "must be a list of text")
        python, fault = data.get("python"), data.get("fault")
        request = cls.of(
            command,
            env=data.get("env"),
            cwd=data.get("cwd"),
            root=data.get("root"),
            limits=data.get("limits"),
            python=None if python is None else Python.from_wire(python),
            streams=_streams(data.get("streams", ())),
        )
        return request if fault is None else dataclasses.replace(request, fault=check_text(fault, "fault"))


_RUN_FIELDS = frozenset(field.name for field in dataclasses.fields(RunRequest))


def _argv(command: object) -> tuple[str, ...]:
    if isinstance(command, str):
        if not command.strip():
            raise InvalidRequest.of("command", "is empty", code="empty_command")
        return SHELL, "-c", check_text(command, "command")
    if isinstance(command, (bytes, dict)) or not isinstance(command, Iterable):
        kind = type(command).__name__
        raise InvalidRequest.of("command", f"must be text or a sequence of text, not {kind}")
    argv = tuple([check_text(part, "command") for part in command])
    if not argv or not argv[0]:
        raise InvalidRequest.of("command", "is empty", code="empty_command")
    return argv


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _check_size(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    sizes = {
        "command": [_size(text) for text in argv],
        "env": [_size(name) + 1 + _size(value) for name, value in env.items()],
    }
    total = 0
    for field, lengths in sizes.items():
        # Each string costs its NUL and a pointer besides.
        total += sum(lengths) + 9 * len(lengths)
        if lengths and max(lengths) > TEXT_MAX:
            raise InvalidRequest.of(
                field, f"one string has {max(lengths)} bytes; Linux takes {TEXT_MAX}", code="too_long",
                hint="pass large data by stdin or in a file",
            )  # fmt: skip
        if total > TEXTS_MAX:
            raise InvalidRequest.of(
                field, f"arguments and environment have more than {TEXTS_MAX} bytes", code="too_long"
            )


def _directory(value: object, field: str) -> str:
    path = check_text(value, field)
    if not path.startswith("/"):
        raise InvalidRequest.of(field, f"{path[:80]!r} is not an absolute path", code="not_absolute")
    if _size(path) >= 4096 or any(_size(part) > 255 for part in path.split("/")):
        raise InvalidRequest.of(field, "is longer than a path may be", code="too_long")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        # What it means depends on links inside the sandbox; core takes only what means one thing.
        raise InvalidRequest.of(field, f"{path[:80]!r} contains '..'")
    return "/" + "/".join(parts)


def _root(value: object) -> str:
    path = _directory(value, "root")
    if not os.path.isdir(path):
        fault = "is not a directory" if os.path.lexists(path) else "does not exist"
        raise InvalidRequest.of("root", f"{path} {fault}", code="not_found")
    return path


def _streams(value: object) -> tuple[int, ...]:
    streams = tuple(value) if isinstance(value, (list, tuple)) else (-1,)
    numbers = all(type(number) is int and 0 <= number <= 2 for number in streams)
    if not numbers or len({*streams}) < len(streams):
        raise InvalidRequest.of("streams", "must be different numbers of 0, 1, 2")
    return streams


class RunEnd(NamedTuple):
    """What the daemon knows of a command that ended; the client adds the output and makes a CommandResult.

    On the wire it is a list in this order: it crosses once per run, and names would cost more than all else.
    """

    exit_code: int
    reason: Reason
    signal: str | None
    duration_ms: float
    setup_ms: float
    user_ms: float
    system_ms: float
    peak_rss_bytes: int
    disk_bytes: int
    single_uid: bool
    lingering: bool
    memory_peak: int = 0
    oom_kills: int = 0
    memory_limit: int = 0
    disk_limit: int = 0
    cgroups: str = ""
    reached: str | None = None
    """The limit that goes with its signal, or by a shell's exit code with that of what it waited for."""
    cpu_peak_ms: float = 0.0
    shm_bytes: int = 0
    wall: float = 0.0

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {"end": self}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls._make(data["end"])


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRequest:
    """What a client needs to run commands on the default root past the daemon.

    `socket` asks for a lane, a connection to core, besides the beginning of plans with these limits.
    """

    python: Python | None = None
    limits: Limits = DEFAULT_LIMITS
    socket: bool = True

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        python = None if self.python is None else self.python.to_wire()
        return {"python": python, "limits": self.limits.asked(), "socket": self.socket}

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        unknown = data.keys() - {"python", "limits", "socket"}
        if unknown:
            raise InvalidRequest.of(min(unknown), "is not known to this version", code="unknown_option")
        python, socket = data.get("python"), data.get("socket", True)
        if not isinstance(socket, bool):
            raise InvalidRequest.of("socket", "must be true or false")
        return cls(
            None if python is None else Python.from_wire(python), Limits.of(data.get("limits")), socket
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LaneInfo:
    """The beginning of every plan with the limits asked for, and which core understands it.

    `encoded` is base64 of attributes of core/PROTOCOL.md; `cgroups` as in `ramet.models.limits.enforced_by`.
    """

    core_id: str
    encoded: str
    environment: Mapping[str, str]
    home: str
    single_uid: bool
    cgroups: str = ""

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**data)
