"""Children that were forked ahead, of templates that ask for some: handed out at once, and made up for later.

A child has been told that it is one, and has run nothing once, so that its first answer finds memory of its
own (docs/reference/kernels.md). It is handed out once, and is the first to go when memory becomes scarce.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ramet.engine import memory
from ramet.errors import RametError
from ramet.kernels import get, names
from ramet.models.sandboxes import Child
from ramet.models.templates import KEY, WARM_CHILDREN_MAX

if TYPE_CHECKING:
    from ramet.engine.channels import Channel
    from ramet.engine.snapshots import Image
    from ramet.engine.standing import Sandbox

Ready = tuple["Sandbox", "Channel"]
SCARCE = 0.08
"""Share of memory that is available when children are given up."""
WATCH_S = 1.0


def scarce() -> bool:
    """Whether memory is too short for children that nobody has asked for."""
    free, total = memory.available()
    return free < SCARCE * total


class Ahead:
    """The children that are ready, by the name of their template's snapshot."""

    def __init__(
        self,
        make: Callable[[Image], Awaitable[Ready]],
        spawn: Callable[[Coroutine[Any, Any, object]], object],
    ) -> None:
        """`make` gives a child of an image; `spawn` runs a coroutine in the daemon's task group."""
        self._make = make
        self._spawn = spawn
        self._ready: dict[str, deque[Ready]] = {}
        self._filling: set[str] = set()
        self._watching: set[str] = set()
        self._closed = asyncio.Event()

    def take(self, image: Image, own: Child, *, detach: bool) -> Ready | None:
        """A child that is ready, unless one with something of its own is asked for."""
        if detach or own.name is not None or own.limits or own.timeout is not None or image.name is None:
            return None
        ready = self._ready.get(image.name, ())
        while ready:
            sandbox, channel = ready.popleft()
            if not sandbox.ending and sandbox.core is image.core:
                return sandbox, channel
            channel.close()
        return None

    def fill(self, image: Image) -> None:
        """Make up for what was taken, in the background."""
        if image.name is not None and image.name not in self._filling and self._lacks(image):
            self._filling.add(image.name)
            self._spawn(self._fill(image, image.name))

    def _lacks(self, image: Image) -> bool:
        if self._closed.is_set() or image.dropped:
            return False
        return len(self._ready.get(image.name or "", ())) < _wanted(image)

    async def _fill(self, image: Image, name: str) -> None:
        try:
            with image.used():
                while self._lacks(image) and not scarce():
                    made = await self._make(image)
                    if made[0].ending:
                        made[1].close()
                        return
                    # Anew each time: while this one was made the others may have been given up.
                    self._ready.setdefault(name, deque()).append(made)
                    _touch(*made)
        except (RametError, OSError):
            return  # the next one who asks is told why
        finally:
            self._filling.discard(name)
            if self._closed.is_set() or image.dropped:
                self.drop(name)
            elif name not in self._watching and self._ready.get(name):
                self._watching.add(name)
                self._spawn(self._watch(name))

    async def _watch(self, name: str) -> None:
        try:
            while self._ready.get(name) and not self._closed.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_S):
                        await self._closed.wait()
                if scarce():
                    self.drop(name)
        finally:
            self._watching.discard(name)

    def ended(self, sandbox: Sandbox) -> None:
        """One that nobody had asked for has ended."""
        ready = self._ready.get(sandbox.origin.snapshot or "", deque())
        for one in [one for one in ready if one[0] is sandbox]:
            ready.remove(one)
            one[1].close()

    def drop(self, name: str) -> None:
        """Give up the children of a snapshot."""
        for sandbox, channel in self._ready.pop(name, ()):
            channel.close()
            sandbox.kill("it was made ahead and not needed")

    def close(self) -> None:
        """The daemon ends."""
        self._closed.set()
        for name in list(self._ready):
            self.drop(name)


def _touch(sandbox: Sandbox, channel: Channel) -> None:
    """Have the kernel become another than its twin and run nothing, once: what that touches is its own then.

    Who gets the child tells it again, as of a later life; the answers to this mean nothing to them.
    """
    info = sandbox.info()
    if info.kernel is None or info.kernel.name not in names():
        return
    kernel = get(info.kernel.name)
    forked = {
        "op": "forked",
        "epoch": info.epoch,
        "sandbox": info.id,
        "hostname": info.hostname,
        "seed": None,
        "env": {},
    }
    run = {"op": "run", "id": "touch", "code": "", "context": None}
    # Not to be waited for: what has no room in an empty socket goes to no kernel of ours.
    with socket.socket(fileno=os.dup(channel.ours[3])) as near, contextlib.suppress(OSError):
        near.setblocking(False)  # noqa: FBT003
        for data in (*kernel.fresh(forked), *kernel.request(run)):
            near.send(data)


def _wanted(image: Image) -> int:
    told = image.notes.get(KEY)
    wanted = told.get("warm_children", 0) if isinstance(told, dict) else 0
    return min(wanted, WARM_CHILDREN_MAX) if isinstance(wanted, int) and image.kernel is not None else 0
