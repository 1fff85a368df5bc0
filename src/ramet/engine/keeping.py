"""What is kept of sandboxes before a limit ends them.

The deadline of such a sandbox is the daemon's. Core has a later one, which holds when the daemon is stuck, or
has died and none comes after it: nothing delays the end beyond that. One that exceeds its memory is frozen by
its init, which tells of it, and ends it itself when nobody does in a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from ramet.errors import RametError
from ramet.models.keeping import KEEP_S, kept_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from ramet.engine.snapshots import Image, Snapshots
    from ramet.engine.standing import Sandbox
    from ramet.models.checks import OnUnsupported
    from ramet.models.results import Reason
    from ramet.models.runs import RunEnd

CORE_S = KEEP_S + 2.0
"""How much later than ours core's deadline is."""


class Keeper:
    """Sees to the limits of those whose last state is wanted."""

    def __init__(
        self,
        snapshots: Snapshots,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
        capture: Callable[[Sandbox, OnUnsupported], Awaitable[Image]],
        finish: Callable[[Sandbox, RunEnd], object],
    ) -> None:
        """`capture` takes a snapshot of one that lives; `finish` tells the end of one that has died."""
        self._snapshots = snapshots
        self._spawn = spawn
        self._capture = capture
        self._finish = finish

    @staticmethod
    def wall(sandbox: Sandbox, timeout: float | None) -> float | None:
        """The time that core gives it, which is about to be made. From now on ours runs."""
        if timeout is None or "timeout" not in sandbox.keep_on:
            return timeout
        sandbox.until = time.monotonic() + timeout
        return timeout + CORE_S

    def watch(self, sandbox: Sandbox) -> None:
        """Have its last state kept at its deadline, if it has one that is ours."""
        if sandbox.until is None or sandbox.end is not None:
            return
        left = max(0.0, sandbox.until - time.monotonic())
        timer = asyncio.get_running_loop().call_later(left, lambda: self._begin(sandbox, "timeout"))
        sandbox.on_end.append(timer.cancel)

    def over(self, sandbox: Sandbox) -> None:
        """It exceeds its memory, and stands still."""
        self._begin(sandbox, "oom")

    def _begin(self, sandbox: Sandbox, limit: Reason) -> None:
        if not sandbox.ending and not sandbox.keeping:
            sandbox.keeping = True
            self._spawn(self._keep(sandbox, limit))

    async def _keep(self, sandbox: Sandbox, limit: Reason) -> None:
        if sandbox.ending:
            return
        patience = asyncio.get_running_loop().call_later(KEEP_S, self._give_up, sandbox, limit)
        try:
            await self._take(sandbox, limit)
        except (RametError, OSError) as error:
            if not sandbox.ending:
                sandbox.kept_error = error.message if isinstance(error, RametError) else str(error)
        finally:
            patience.cancel()
            sandbox.end_overdue(limit)
            self._tell(sandbox)

    async def _take(self, sandbox: Sandbox, limit: Reason) -> None:
        name = kept_name(sandbox.id)
        async with contextlib.AsyncExitStack() as reserved:
            await reserved.enter_async_context(self._snapshots.reserved(name))
            image = await self._capture(sandbox, "refuse")
            if sandbox.ending:  # by itself, or it took too long
                image.drop()
                return
            image.notes = {"kept": limit}
            self._snapshots.writing(name, image)
            # What it would do while it is written would be lost.
            sandbox.writing = True
            sandbox.end_overdue(limit)
            await self._snapshots.keep_later(name, image, reserved.pop_all())
        sandbox.kept_error = self._snapshots.failure(name)
        sandbox.kept = name if sandbox.kept_error is None else None

    def _give_up(self, sandbox: Sandbox, limit: Reason) -> None:
        if sandbox.writing:
            sandbox.kept = kept_name(sandbox.id)
            sandbox.kept_error = "it is being written still: its status tells when it is ready"
        elif not sandbox.ending:
            sandbox.kept_error = f"its snapshot could not be taken in {KEEP_S:g} s"
        sandbox.end_overdue(limit)
        self._tell(sandbox)

    def _tell(self, sandbox: Sandbox) -> None:
        sandbox.writing = False
        last, sandbox.last = sandbox.last, None
        if last is not None:
            self._finish(sandbox, last)
