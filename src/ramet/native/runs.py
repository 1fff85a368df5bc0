"""The plan of a run and its end, as core reads and tells them; also for a client with a lane."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ramet.errors import InvalidRequest, IsolationError, RametError
from ramet.models.limits import without_memory
from ramet.models.results import EXIT_TIMEOUT, Reason, signal_name
from ramet.models.runs import RunEnd
from ramet.models.users import ROOT
from ramet.native import _protocol as p
from ramet.native.frames import Attributes, Frame, FrameError, Numbers, text, u32, u64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ramet.models.runs import RunRequest

STREAM_TAGS = (p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR)
_STEP_NUMBERS = {name: number for number, name in p.STEP_NAMES.items()}
_KILLED = 128 + 9
_REASONS: dict[int, Reason] = {
    p.REASON_EXIT: "exit",
    p.REASON_SIGNAL: "signal",
    p.REASON_TIMEOUT: "timeout",
    p.REASON_KILLED: "killed",
    p.REASON_LOST: "lost",
    p.REASON_OOM: "oom",
    p.REASON_DISK: "disk",
    p.REASON_CPU: "cpu",
    p.REASON_IDLE: "idle",
}
_LIMITS = {
    p.LIMIT_CPU_SECONDS: "cpu_seconds",
    p.LIMIT_FILE_SIZE: "file_size",
    p.LIMIT_DISK: "disk",
    p.LIMIT_SHM: "shm",
    p.LIMIT_IN_FLIGHT: "descriptors_in_flight",
    p.LIMIT_EPOLL_WATCHES: "epoll_watches",
}
ENDED = Numbers(
    {
        p.TAG_SANDBOX: 8,
        p.TAG_REASON: 4,
        p.TAG_STATUS: 4,
        p.TAG_USER_NS: 8,
        p.TAG_SYSTEM_NS: 8,
        p.TAG_PEAK_BYTES: 8,
        p.TAG_DISK_PEAK: 8,
        p.TAG_MEMORY_PEAK: 8,
        p.TAG_OOM_KILLS: 8,
        p.TAG_SHM_PEAK: 8,
        p.TAG_CPU_PEAK_NS: 8,
        p.TAG_LIMIT: 4,
        p.TAG_WALL_NS: 8,
        p.TAG_MEMORY: 8,
        p.TAG_DISK_BYTES: 8,
        p.TAG_WATCH: 8,
        p.TAG_ELAPSED_NS: 8,
        p.TAG_SETUP_NS: 8,
        p.TAG_LINGERING: 4,
    }
)
"""What ENDED tells, as `put_end()` in core/src/sandbox.c writes it."""
_OWN_END = frozenset({"exit", "oom"})
_CWD_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})


def environment_part(environment: Mapping[str, str]) -> bytes:
    """ENV attributes."""
    return b"".join([text(p.TAG_ENV, f"{name}={value}") for name, value in environment.items()])


class Beginning:
    """What the plans of all runs on one root with the same limits have in common.

    `encoded` are their first attributes; `environment` and `home` hold unless a request says otherwise.
    """

    __slots__ = ("_variables", "encoded", "environment", "home")

    def __init__(self, encoded: bytes, environment: Mapping[str, str], home: str) -> None:
        self.encoded = encoded
        self.environment = environment
        self.home = home
        self._variables = environment_part(environment)

    def plan(self, request: RunRequest, sandbox: int) -> bytes:
        """The payload of RUN. Raises InvalidRequest naming ``fault``."""
        variables = environment_part({**self.environment, **request.env}) if request.env else self._variables
        return b"".join((self.encoded, variables, command_part(request, sandbox, self.home)))


def command_part(request: RunRequest, sandbox: int, cwd: str) -> bytes:
    """What is this run's own."""
    parts = [u64(p.TAG_SANDBOX, sandbox), u64(p.TAG_WALL_NS, int(request.limits.wall * 1e9))]
    parts += [text(p.TAG_ARG, word) for word in request.argv]
    parts.append(text(p.TAG_CWD, request.cwd or cwd))
    parts += [u32(STREAM_TAGS[stream], index) for index, stream in enumerate(request.streams)]
    if request.fault is not None:
        parts.append(u32(p.TAG_FAULT, step_number(request.fault)))
    return b"".join(parts)


def step_number(name: str) -> int:
    """The number of a step. Raises InvalidRequest naming ``fault``."""
    if name not in _STEP_NUMBERS:
        raise InvalidRequest.of("fault", f"{name[:80]!r} is no step of core")
    return _STEP_NUMBERS[name]


def run_end(frame: Frame, *, single_uid: bool, cgroups: str) -> RunEnd:
    """The end of a run or a sandbox as core told it by ENDED. Raises FrameError."""
    return _end(ENDED.read(frame.payload), single_uid=single_uid, cgroups=cgroups)


def end_of(found: Attributes) -> RunEnd:
    """What ENDED and EXITED tell alike. Raises FrameError."""
    return _end(ENDED.of(found))


def _end(numbers: tuple[int, ...], *, single_uid: bool = True, cgroups: str = "") -> RunEnd:
    (
        _, reason_number, status, user, system, peak, disk_peak, memory_peak, oom_kills, shm_peak, cpu_peak,
        limit, wall, memory, disk, watched, elapsed, setup, lingering,
    ) = numbers  # fmt: skip
    reason = _REASONS.get(reason_number)
    if reason is None:
        raise FrameError("unknown reason")
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if reason in {"timeout", "idle"}:
        code = EXIT_TIMEOUT
    elif signal:
        code = 128 + signal
    else:
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) and reason in _OWN_END else _KILLED
    return RunEnd(
        exit_code=code,
        reason=reason,
        signal=signal_name(signal) if signal and reason == "signal" else None,
        duration_ms=elapsed / 1e6,
        setup_ms=setup / 1e6,
        user_ms=user / 1e6,
        system_ms=system / 1e6,
        peak_rss_bytes=peak,
        disk_bytes=disk_peak,
        single_uid=single_uid,
        lingering=bool(lingering),
        memory_peak=memory_peak,
        oom_kills=oom_kills,
        memory_limit=memory,
        disk_limit=disk,
        cgroups=without_memory(cgroups) if watched else cgroups,
        reached=_LIMITS.get(limit),
        cpu_peak_ms=cpu_peak / 1e6,
        shm_bytes=shm_peak,
        wall=wall / 1e9,
    )


def reached(number: int) -> str | None:
    """The limit of this number, as core tells which was reached; None for none."""
    return _LIMITS.get(number)


def explained(error: RametError, request: RunRequest, user: tuple[int, int] = ROOT) -> RametError:
    """A step that failed for what the caller asked becomes a refusal of that argument."""
    if not isinstance(error, IsolationError):
        return error
    if error.step == "switch_user" and error.errno == errno.EINVAL:  # setresuid(2): not mapped
        text = f"{user[0]}:{user[1]} does not exist in the sandbox: {os.strerror(errno.EINVAL)}"
        return InvalidRequest.of("user", text, code="not_found")
    if error.step == "working_directory" and error.errno in _CWD_ERRNOS:
        where = request.cwd or "the home directory"
        why = os.strerror(error.errno or 0)
        return InvalidRequest.of("cwd", f"{where} cannot be entered in the sandbox: {why}", code="not_found")
    return error
