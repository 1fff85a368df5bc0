"""What a command leaves behind: its output, its end, and what it used."""

from __future__ import annotations

import dataclasses
import signal as _signal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import CommandFailed
from ramet.models.limits import DEFAULT_LIMITS, ENFORCED_BY, Limits, enforced_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ramet.models.runs import RunEnd

Reason = Literal["exit", "signal", "timeout", "oom", "disk", "cpu", "idle", "killed", "lost"]
EXIT_TIMEOUT = 124
"""Exit code of a command that ran out of time, as of timeout(1)."""

_LIMIT_OF_REASON = MappingProxyType(
    {"timeout": "wall", "oom": "memory", "disk": "disk", "cpu": "cpu_seconds", "idle": "idle"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Captured:
    """One output stream, as far as it was kept.

    `kept` holds all bytes when `total` does not exceed the limit ``output``. Otherwise it is the first `head`
    bytes and the last ``len(kept) - head`` bytes of the stream, back to back.
    """

    kept: bytes = b""
    total: int = 0
    head: int = 0
    _texts: dict[tuple[str, str], str] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def left_out(self) -> int:
        """Bytes that are not in `kept`."""
        return self.total - len(self.kept)

    def text(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        """The stream decoded; where bytes were left out, a line of its own says how many."""
        cached = self._texts.get((encoding, errors))
        if cached is None:
            cached = self._texts[encoding, errors] = self._decode(encoding, errors)
        return cached

    def _decode(self, encoding: str, errors: str) -> str:
        if not self.left_out:
            return self.kept.decode(encoding, errors)
        head, tail = self.kept[: self.head], self.kept[self.head :]
        first = head.decode(encoding, errors)
        newline = "" if not first or first.endswith("\n") else "\n"
        return f"{first}{newline}[... {self.left_out} bytes left out ...]\n{tail.decode(encoding, errors)}"


_SHOWN = 400


def brief(value: Any, first: tuple[str, ...]) -> str:
    """A dataclass as repr() shows it: `first`, then what is not as usual; long texts by both ends."""
    usual = {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        for one in dataclasses.fields(value)
        if one.repr
    }
    names = [*first, *(name for name in usual if name not in first and getattr(value, name) != usual[name])]
    return (
        f"{type(value).__name__}({', '.join([f'{name}={_brief(getattr(value, name))}' for name in names])})"
    )


def _brief(value: Any) -> str:
    if not isinstance(value, str) or len(value) <= _SHOWN:
        return repr(value)
    half = _SHOWN // 2
    return f"{value[:half]!r}...[{len(value) - _SHOWN} more]...{value[-half:]!r}"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What the command and its descendants used.

    `peak_rss_bytes` is the largest resident set of any one process, not their sum; `peak_memory_bytes` is the
    most that all of them and what was written took together, as far as that was looked at; `disk_bytes` is
    what the writable layer held at the end. `oom_kills` counts processes that the limit ``memory`` killed.
    """

    user_ms: float = 0.0
    system_ms: float = 0.0
    peak_rss_bytes: int = 0
    disk_bytes: int = 0
    peak_memory_bytes: int = 0
    oom_kills: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of one command.

    `exit_code` is the command's own; 124 when it ran out of time; 128+n when signal n ended it. `reason` says
    who ended it: ``exit`` (itself), ``signal`` (a signal of its own making or the kernel's, named in
    `signal`), ``timeout``, ``oom`` (it was killed for the limit ``memory``, or ended with 137 at once after
    what it waited for was), ``disk`` (SIGBUS ended it while nothing more could be written: a file that it had
    mapped could not grow), ``cpu`` (it went on after SIGXCPU), ``idle`` (nothing in its sandbox ran for so
    long), ``killed`` (by request or because its owner went), ``lost`` (the sandbox's init was killed from
    outside).

    `limit` names the limit that ended it, where that is known, `limit_value` is what it was, and `peak` what
    was used of it, if measured. Shells end with 128+n when signal n ended what they waited for: with such a
    code of a limit's signal `reason` is ``exit``, and `limit` names that limit if it was reached. Without
    `limit` nobody knows whether a signal, or such a code, was the program's own. `limit_value` is None for
    ``descriptors_in_flight`` and ``epoll_watches``: all sandboxes share these, and this one had most.

    `duration_ms` counts from the request's arrival in core to the end of the command, `setup_ms` to its exec.
    `enforced_by` tells the mechanism behind each limit. `lingering` is true when a process could not be
    reaped in time (uninterruptible sleep); it is dead to the sandbox but holds its memory still.
    `kept` names the snapshot that was taken of its sandbox before its end, where that was asked for
    (`keep_on`); `kept_error` says why there is none, or what is wrong with it.
    """

    exit_code: int
    reason: Reason = "exit"
    signal: str | None = None
    duration_ms: float = 0.0
    setup_ms: float = 0.0
    out: Captured = dataclasses.field(default_factory=Captured, repr=False)
    err: Captured = dataclasses.field(default_factory=Captured, repr=False)
    usage: Usage = dataclasses.field(default_factory=Usage)
    limit_value: float | None = None
    peak: int | None = None
    enforced_by: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(ENFORCED_BY), repr=False)
    single_uid: bool = True
    lingering: bool = False
    kept: str | None = None
    kept_error: str | None = None
    reached: str | None = dataclasses.field(default=None, repr=False)
    encoding: str = dataclasses.field(default="utf-8", repr=False)
    errors: str = dataclasses.field(default="replace", repr=False)

    @property
    def ok(self) -> bool:
        """True when the command ended by itself with exit code 0."""
        return self.exit_code == 0 and self.reason == "exit"

    @property
    def timed_out(self) -> bool:
        """True when the limit ``wall`` (the timeout) ended it."""
        return self.reason == "timeout"

    @property
    def limit(self) -> str | None:
        """Name of the limit that ended the command, or that goes with its signal or exit code; or None."""
        return limit_of(self.reason, self.reached)

    @property
    def stdout(self) -> str:
        """Standard output as text. Undecodable bytes become U+FFFD; left out bytes are marked by a line."""
        return self.out.text(self.encoding, self.errors)

    @property
    def stderr(self) -> str:
        """Standard error as text, as `stdout`."""
        return self.err.text(self.encoding, self.errors)

    @property
    def stdout_bytes(self) -> bytes:
        """Standard output, byte for byte; when `truncated`, head and tail back to back without a mark."""
        return self.out.kept

    @property
    def stderr_bytes(self) -> bytes:
        """Standard error, as `stdout_bytes`."""
        return self.err.kept

    @property
    def stdout_total(self) -> int:
        """Bytes the command wrote to standard output, kept or not."""
        return self.out.total

    @property
    def stderr_total(self) -> int:
        """Bytes the command wrote to standard error, kept or not."""
        return self.err.total

    @property
    def truncated(self) -> bool:
        """True when either stream exceeded the limit ``output``."""
        return bool(self.out.left_out or self.err.left_out)

    def __repr__(self) -> str:
        return brief(self, ("exit_code", "reason", "stdout", "stderr"))

    def check(self) -> CommandResult:
        """This result, or CommandFailed (which carries it) unless `ok`."""
        if not self.ok:
            raise CommandFailed(f"the command {self._end()}", self)
        return self

    def _end(self) -> str:
        if self.reason == "timeout":
            return "ran out of time"
        if self.reason == "signal":
            return f"was ended by {self.signal}" + (f", its limit of {self.limit}" if self.limit else "")
        if self.reason in _LIMIT_OF_REASON:
            return f"exceeded its limit of {self.limit}"
        if self.reason != "exit":
            return f"was ended from outside ({self.reason})"
        reached = f", its limit of {self.limit} being reached" if self.limit else ""
        return f"ended with exit code {self.exit_code}{reached}"

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON object; streams as text, with exact counts."""
        return {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "signal": self.signal,
            "timed_out": self.timed_out,
            "limit": self.limit,
            "limit_value": self.limit_value,
            "peak": self.peak,
            "duration_ms": self.duration_ms,
            "setup_ms": self.setup_ms,
            "truncated": self.truncated,
            "stdout_total": self.stdout_total,
            "stderr_total": self.stderr_total,
            "usage": dataclasses.asdict(self.usage),
            "enforced_by": dict(self.enforced_by),
            "single_uid": self.single_uid,
            "lingering": self.lingering,
            "kept": self.kept,
            "kept_error": self.kept_error,
        }


def limit_of(reason: str, reached: str | None = None) -> str | None:
    """Name of the limit that ends a command for this reason, or of `reached`; None when none does."""
    return reached or _LIMIT_OF_REASON.get(reason)


def result_of(
    end: RunEnd, out: Captured, err: Captured, *, limits: Limits = DEFAULT_LIMITS, encoding: str = "utf-8"
) -> CommandResult:
    """The result of a command with these limits, which ended so and wrote that."""
    limit = limit_of(end.reason, end.reached)
    peaks = {
        "memory": end.memory_peak,
        "disk": end.disk_bytes,
        "shm": end.shm_bytes,
        "cpu_seconds": round(max(end.user_ms + end.system_ms, end.cpu_peak_ms) / 1e3),
    }
    return CommandResult(
        exit_code=end.exit_code,
        reason=end.reason,
        signal=end.signal,
        duration_ms=end.duration_ms,
        setup_ms=end.setup_ms,
        out=out,
        err=err,
        usage=Usage(
            end.user_ms, end.system_ms, end.peak_rss_bytes, end.disk_bytes, end.memory_peak, end.oom_kills
        ),
        limit_value=_value_of(limit, end, limits),
        peak=peaks.get(limit or ""),
        enforced_by=dict(enforced_by(end.cgroups)),
        single_uid=end.single_uid,
        lingering=end.lingering,
        reached=end.reached,
        encoding=encoding,
    )


def _value_of(limit: str | None, end: RunEnd, limits: Limits) -> float | None:
    if limit is None:
        return None
    # Core says what it was: a default may be more than the machine has, and a `timeout` is no limit of those.
    told = {"memory": end.memory_limit, "disk": end.disk_limit, "wall": end.wall}.get(limit)
    # What all sandboxes share is no limit of this one.
    return told or getattr(limits, limit, None)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; real-time and unknown signals as ``SIG40``."""
    try:
        return _signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
