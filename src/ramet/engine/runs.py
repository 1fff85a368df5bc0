"""One command from request to end: the plan goes to core, its end comes back.

An owner that goes takes its run along. All of it is callbacks on the daemon's loop; only what waits for a
thread, or for core to learn a root, is a task.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ramet._descriptors import close_all
from ramet.errors import DaemonLost, InternalError, InvalidRequest, IsolationError, RametError
from ramet.models.operations import RunEnd
from ramet.models.results import EXIT_TIMEOUT, Reason, signal_name
from ramet.native import _protocol as p
from ramet.native.frames import Frame, FrameError, attributes, u64

if TYPE_CHECKING:
    from collections.abc import Callable

    from ramet.engine.cores import Core, Cores
    from ramet.models.operations import RunRequest

    Done = Callable[[RunEnd | RametError], object]

_KILLED = 128 + 9
_REASONS: dict[int, Reason] = {
    p.REASON_EXIT: "exit",
    p.REASON_SIGNAL: "signal",
    p.REASON_TIMEOUT: "timeout",
    p.REASON_KILLED: "killed",
    p.REASON_LOST: "lost",
}
_CWD_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})


class Run:
    """A command that was asked for. `done` is called once, unless the run is cancelled first."""

    __slots__ = ("_cores", "_descriptors", "_done", "_request", "core", "sandbox")

    def __init__(self, cores: Cores, request: RunRequest, descriptors: list[int], done: Done) -> None:
        """Takes `descriptors`: the command's streams, in the order of `request.streams`."""
        self._cores = cores
        self._request = request
        self._descriptors = descriptors
        self._done: Done | None = done
        self.core: Core | None = None
        self.sandbox = 0

    def start(self) -> None:
        """Go ahead, at once where core is up and knows the root. A refusal arrives at `done` like an end."""
        try:
            core = self._cores.running
            root = core.definitions.known(self._request) if core is not None else None
            if core is not None and root is not None:
                self._send(core, root.plan(self._request, core.next_sandbox()))
            else:
                self._cores.spawn(self._start_slowly())
        except RametError as error:
            self._finish(error)

    def cancel(self) -> None:
        """The owner went: end the sandbox if there is one, and tell nobody."""
        self._done = None
        self._release()
        if self.core is not None and self.core.alive:
            self.core.end_sandbox(self.sandbox)

    async def _start_slowly(self) -> None:
        try:
            core = await self._cores.ensure()
            root = core.definitions.known(self._request) or await core.definitions.define(self._request)
            if self._done is not None:
                self._send(core, root.plan(self._request, core.next_sandbox()))
        except RametError as error:
            self._finish(error)
        except BaseException:
            self._finish(DaemonLost("daemon_lost", "the daemon is ending"))
            raise

    def _send(self, core: Core, payload: bytes) -> None:
        descriptors, self._descriptors = self._descriptors, []
        self.core = core
        self.sandbox = core.last_sandbox
        core.active += 1
        try:
            core.connection.call(p.RUN, payload, descriptors, self._answered)
        except DaemonLost:
            core.active -= 1
            raise

    def _answered(self, answer: Frame | RametError) -> None:
        core, self.core = self.core, None
        if core is not None:
            core.active -= 1
        if isinstance(answer, RametError):
            self._finish(explained(answer, self._request))
            return
        try:
            self._finish(run_end(answer, single_uid=core is None or core.single_uid))
        except FrameError as error:
            self._finish(InternalError("internal", f"core sent a malformed end: {error}"))

    def _finish(self, outcome: RunEnd | RametError) -> None:
        self._release()
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _release(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        close_all(descriptors)


def run_end(frame: Frame, *, single_uid: bool) -> RunEnd:
    """The end of a command as core told it. Raises FrameError."""
    found = attributes(frame.payload)
    status = found.u32(p.TAG_STATUS)
    reason = _REASONS.get(found.u32(p.TAG_REASON))
    if reason is None:
        raise FrameError("unknown reason")
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if reason == "timeout":
        code = EXIT_TIMEOUT
    elif signal:
        code = 128 + signal
    else:
        code = os.WEXITSTATUS(status) if reason == "exit" else _KILLED
    return RunEnd(
        exit_code=code,
        reason=reason,
        signal=signal_name(signal) if signal and reason == "signal" else None,
        duration_ms=found.u64(p.TAG_ELAPSED_NS) / 1e6,
        setup_ms=found.u64(p.TAG_SETUP_NS) / 1e6,
        user_ms=found.u64(p.TAG_USER_NS) / 1e6,
        system_ms=found.u64(p.TAG_SYSTEM_NS) / 1e6,
        peak_rss_bytes=found.u64(p.TAG_PEAK_BYTES),
        disk_bytes=found.u64(p.TAG_DISK_PEAK),
        single_uid=single_uid,
        lingering=bool(found.u32(p.TAG_LINGERING)),
    )


def explained(error: RametError, request: RunRequest) -> RametError:
    """A step that failed for what the caller asked becomes a refusal of that argument."""
    if not isinstance(error, IsolationError):
        return error
    if error.step == "working_directory" and error.errno in _CWD_ERRNOS:
        where = request.cwd or "the home directory"
        why = os.strerror(error.errno or 0)
        return InvalidRequest.of("cwd", f"{where} cannot be entered in the sandbox: {why}", code="not_found")
    return error


def kill_payload(sandbox: int) -> bytes:
    """The payload of KILL."""
    return u64(p.TAG_SANDBOX, sandbox)
