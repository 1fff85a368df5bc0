"""Commands in sandboxes that stand: what is asked for, and what is told of them."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Literal, Self

from ramet.errors import InvalidRequest
from ramet.models.checks import check_sandbox, flag, only
from ramet.models.limits import BY_NAME, DEFAULT_LIMITS, parse_limit, shown
from ramet.models.runs import RunRequest
from ramet.models.users import ROOT, parse_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ramet.models.results import Reason
    from ramet.models.runs import Text

FIRST = 1
"""The id of a sandbox's first command, with whose end it ends."""
RECORD_MAX = 8192
SHOWN_MAX = 2048
"""Most characters of a command that are kept to be listed."""


def check_command_id(value: object) -> int:
    """`value` as the id of a command. Raises InvalidRequest naming ``command``."""
    if type(value) is not int or not 0 < value < 1 << 32:
        raise InvalidRequest.of("command", f"{shown(value)} is not the id of a command")
    return value


def check_window(value: object) -> tuple[int, int]:
    """`value` as rows and columns of a terminal. Raises InvalidRequest naming ``size``."""
    good = isinstance(value, (tuple, list)) and len(value) == 2
    if not good or any(type(one) is not int or not 0 < one < 1 << 16 for one in value):  # type: ignore[attr-defined]
        raise InvalidRequest.of("size", f"{shown(value)} is not rows and columns, each from 1 to 65535")
    return value[0], value[1]  # type: ignore[index]


@dataclasses.dataclass(frozen=True, slots=True)
class CommandRequest:
    """One command. `timeout` None: it has none. Without `stdin` it reads /dev/null.

    With a `window`, its rows and columns, it has a terminal. `user` is a uid and a gid; None: those of the
    sandbox's first command.
    """

    run: RunRequest
    user: tuple[int, int] | None = None
    timeout: float | None = None
    stdin: bool = False
    window: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        command: str | Sequence[Text],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Text | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        window: tuple[int, int] | None = None,
    ) -> Self:
        """The checked request. Raises InvalidRequest naming the argument at fault."""
        seconds = None if timeout is None else float(parse_limit(BY_NAME["wall"], timeout, "timeout"))
        run = RunRequest.of(command, env=env, cwd=cwd)
        size = None if window is None else check_window(window)
        chosen = None if user is None else parse_user(user)
        return cls(run, chosen, seconds, flag(stdin, "stdin"), size)

    def of_user(self, user: tuple[int, int]) -> Self:
        """The same, of that user where none was asked for."""
        return self if self.user is not None else dataclasses.replace(self, user=user)

    def record(self) -> bytes:
        """What core keeps of it for whoever lists it."""
        told: dict[str, Any] = {
            "command": self._shown(),
            "created": time.time(),
            "cwd": self.run.cwd if self.run.cwd is None or len(self.run.cwd) < SHOWN_MAX else None,
            "user": self.user or ROOT,
            "timeout": self.timeout,
        }
        data = json.dumps(told, separators=(",", ":")).encode("ascii")
        if len(data) <= RECORD_MAX:
            return data
        # Six bytes stand for one character that is not ASCII.
        told.update(command=[word[: SHOWN_MAX // 16] for word in told["command"][:8]], cwd=None)
        return json.dumps(told, separators=(",", ":")).encode("ascii")

    def _shown(self) -> list[str]:
        room, words = SHOWN_MAX, []
        for word in self.run.argv:
            words.append(word if len(word) < room else word[: max(room - 1, 0)] + "…")
            room -= len(word) + 1
            if room <= 0:
                break
        return words


@dataclasses.dataclass(frozen=True, slots=True)
class CommandInfo:
    """One command of a sandbox.

    `id` is its number in the sandbox, `pid` that of its first process, inside. `created` is seconds since the
    epoch. `stdin` is true while its standard input takes bytes. `window` is rows and columns of its terminal,
    where it has one, as last asked for. What follows is known at its end: `exit_code`
    and `reason` as of CommandResult. `stdout_total` and `stderr_total` count what it has written so far.
    """

    id: int
    pid: int
    status: Literal["running", "ended"]
    command: tuple[str, ...]
    created: float
    cwd: str | None = None
    user: tuple[int, int] = (0, 0)
    timeout: float | None = None
    stdin: bool = False
    duration_ms: float = 0.0
    stdout_total: int = 0
    stderr_total: int = 0
    exit_code: int | None = None
    reason: Reason | None = None
    signal: str | None = None
    window: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxLaneRequest:
    """How to reach the commands of `sandbox` past the daemon.

    `ended`: also of one that has ended. `ending`: core takes no commands for it any more, so its end is to be
    waited for.
    """

    sandbox: str
    socket: bool = True
    ended: bool = False
    ending: bool = False

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON. Raises InvalidRequest naming the field at fault."""
        only(data, ("sandbox", "socket", "ended", "ending"))
        return cls(
            check_sandbox(data.get("sandbox", "")),
            flag(data.get("socket", True), "socket"),
            flag(data.get("ended", False), "ended"),
            flag(data.get("ending", False), "ending"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxLane:
    """Which core has a sandbox, by which number, and what its commands begin with.

    `limits` are those that differ from the defaults; `cgroups` as in `ramet.models.limits.enforced_by`.
    `user` is whose they are where nobody says otherwise.
    """

    core_id: str
    number: int
    environment: Mapping[str, str]
    home: str
    single_uid: bool
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cgroups: str = ""
    user: tuple[int, int] = ROOT

    @property
    def output(self) -> int:
        """Bytes that are kept of each stream."""
        return int(self.limits.get("output", DEFAULT_LIMITS.output))

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**data, "user": tuple(data["user"])})
