"""One command from request to end: the plan goes to core, its end comes back.

An owner that goes takes its run along. All of it is callbacks on the daemon's loop; only what waits for a
thread, or for core to learn a root, is a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet._descriptors import close_all
from ramet.errors import DaemonLost, InternalError, RametError
from ramet.native import _protocol as p
from ramet.native.frames import Frame, FrameError, u64
from ramet.native.runs import explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from ramet.engine.cores import Core, Cores
    from ramet.engine.definitions import Defined
    from ramet.models.runs import RunEnd, RunRequest

    Done = Callable[[RunEnd | RametError], object]


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
            root = (
                core.definitions.known(self._request.root, self._request.python) if core is not None else None
            )
            if core is not None and root is not None:
                self._send(core, root)
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
            root = await core.definitions.get(self._request.root, self._request.python)
            if self._done is not None:
                self._send(core, root)
        except RametError as error:
            self._finish(error)
        except BaseException:
            self._finish(DaemonLost("daemon_lost", "the daemon is ending"))
            raise

    def _send(self, core: Core, root: Defined) -> None:
        payload = root.beginning(self._request.limits).plan(self._request, core.next_sandbox())
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
        assert core is not None  # noqa: S101  it is answered once
        core.active -= 1
        if isinstance(answer, RametError):
            self._finish(explained(answer, self._request))
            return
        try:
            self._finish(core.run_end(answer))
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


def kill_payload(sandbox: int) -> bytes:
    """The payload of KILL."""
    return u64(p.TAG_SANDBOX, sandbox)
