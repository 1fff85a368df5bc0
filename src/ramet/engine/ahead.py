"""Children that were forked ahead, of templates that ask for some: handed out at once, and made up for later.

A child has been told that it is one, and has run nothing once: what it owes to a fork is done, and its first
answer finds memory of its own (docs/reference/kernels.md). Then it is offered: core keeps its streams and
gives them to who claims it first, a client over a lane or this daemon for one. So it is handed out once, and
one that is given up, as it is first when memory becomes scarce, is nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ramet.engine import memory
from ramet.errors import DaemonLost, RametError
from ramet.kernels import PACKET, BadEvent, Decoder, get, names
from ramet.models.forks import Child
from ramet.models.templates import KEY, WARM_CHILDREN_MAX
from ramet.native import _protocol as p
from ramet.native.channels import Channel
from ramet.native.frames import u32, u64

if TYPE_CHECKING:
    from ramet.engine.snapshots import Image
    from ramet.engine.standing import Sandbox
    from ramet.models.sandboxes import KernelRef
    from ramet.native.frames import Frame

Ready = tuple["Sandbox", "Channel"]
SCARCE = 0.08
"""Share of memory that is available when children are given up."""
WATCH_S = 1.0
TOUCHED_S = 1.0
"""A kernel that is longer at it, with hooks of its own or amid a piece of code, is offered as it is."""
REST_S = 0.01
"""Making one takes milliseconds of a processor, which who took one needs more while others are left."""

_TOUCH = "touch"


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
        *,
        bounded: bool = False,
    ) -> None:
        """`make` gives a child of an image; `spawn` runs a coroutine in the daemon's task group.

        `bounded`: all sandboxes together are, so none is made that nobody has asked for.
        """
        self._bounded = bounded
        self._make = make
        self._spawn = spawn
        self._ready: dict[str, dict[int, Sandbox]] = {}
        self._filling: set[str] = set()
        self._watching: set[str] = set()
        self._closed = asyncio.Event()

    async def take(self, image: Image, own: Child, *, detach: bool) -> Ready | None:
        """A child that is ready, unless one with something of its own is asked for."""
        if detach or own.name is not None or own.limits or own.timeout is not None or image.name is None:
            return None
        if not self._ready.get(image.name):
            return None
        try:
            found, fds = await image.core.connection.fetch(p.CLAIM, u32(p.TAG_SNAPSHOT, image.number))
        except RametError:
            return None  # clients were faster
        channel = Channel.of_near(fds)
        number = found.u64(p.TAG_SANDBOX)
        sandbox = self._ready.get(image.name, {}).pop(number, None)
        if sandbox is None or sandbox.ending:
            channel.close()
            image.core.end_sandbox(number)
            return None
        return sandbox, channel

    def fill(self, image: Image) -> None:
        """Make up for what was taken, in the background."""
        if image.name is not None and image.name not in self._filling and self._lacks(image):
            self._filling.add(image.name)
            self._spawn(self._fill(image, image.name))

    def _lacks(self, image: Image) -> bool:
        if self._closed.is_set() or self._bounded or image.dropped:
            return False
        return len(self._ready.get(image.name or "", ())) < wanted_ahead(image)

    async def _fill(self, image: Image, name: str) -> None:
        try:
            with image.used():
                while self._lacks(image) and not scarce():
                    if self._ready.get(name):
                        await asyncio.sleep(REST_S)
                    await self._offer(name, *await self._make(image))
        except (RametError, OSError):
            return  # the next one who asks is told why
        finally:
            self._filling.discard(name)
            if self._closed.is_set() or image.dropped:
                self.drop(name)
            elif name not in self._watching and self._ready.get(name):
                self._watching.add(name)
                self._spawn(self._watch(name))

    async def _offer(self, name: str, sandbox: Sandbox, channel: Channel) -> None:
        """Takes `channel`. From core's answer on it may be anybody's."""
        try:
            await _touch(sandbox, channel)
            for number in channel.ours:
                os.set_blocking(number, False)
            # Before the answer: who claims it in between is told of by an event, which finds it here.
            self._ready.setdefault(name, {})[sandbox.number] = sandbox
            payload = u64(p.TAG_SANDBOX, sandbox.number)
            await sandbox.core.connection.ask(p.OFFER, payload, channel.take_ours())
        except BaseException:
            channel.close()
            self._ready.get(name, {}).pop(sandbox.number, None)
            sandbox.kill("it could not be kept ready")
            raise

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

    def gone(self, sandbox: Sandbox) -> None:
        """One that was ready was claimed, or has ended."""
        self._ready.get(sandbox.origin.snapshot or "", {}).pop(sandbox.number, None)

    def drop(self, name: str) -> None:
        """Give up the children of a snapshot, but for those that somebody has claimed meanwhile."""
        for sandbox in self._ready.pop(name, {}).values():
            if sandbox.core.alive:
                payload, reply = u64(p.TAG_SANDBOX, sandbox.number), functools.partial(_withdrawn, sandbox)
                with contextlib.suppress(DaemonLost):
                    sandbox.core.connection.call(p.WITHDRAW, payload, [], reply)

    def close(self) -> None:
        """The daemon ends."""
        self._closed.set()
        for name in list(self._ready):
            self.drop(name)


def _withdrawn(sandbox: Sandbox, answer: Frame | RametError) -> None:
    if not isinstance(answer, RametError):
        sandbox.note = "it was made ahead and not needed"


async def _touch(sandbox: Sandbox, channel: Channel) -> None:
    """Have the kernel become another than its twin and run nothing, once: what that touches is its own then.

    It is told again by those who have a seed for it, or variables. Raises OSError: nobody may have a twin.
    """
    info = sandbox.info()
    if info.kernel is None or not is_told(info.kernel):
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
    run = {"op": "run", "id": _TOUCH, "code": "", "context": None}
    with socket.socket(fileno=os.dup(channel.ours[3])) as near:
        near.setblocking(False)  # noqa: FBT003
        for data in (*kernel.fresh(forked), *kernel.request(run)):
            if near.send(data) < len(data):
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        if kernel.channel == "packets":
            with contextlib.suppress(TimeoutError, OSError, BadEvent):
                async with asyncio.timeout(TOUCHED_S):
                    await _take_answers(near, info.epoch)


async def _take_answers(near: socket.socket, epoch: int) -> None:
    """Take what a kernel says to that, which nobody need read later; errors of hooks are left there."""
    for wanted in (
        {"event": "forked", "epoch": epoch, "errors": []},
        {"event": "done", "id": _TOUCH, "reason": "ok"},
    ):
        await _readable(near)
        packet = near.recv(PACKET, socket.MSG_PEEK)
        events = Decoder("packets").feed(packet)
        if not events or any(events[0].get(name) != value for name, value in wanted.items()):
            return
        near.recv(PACKET)


async def _readable(near: socket.socket) -> None:
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(near, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(near)


def is_told(kernel: KernelRef) -> bool:
    """Whether a child with this kernel has been told that it is one before it is handed out."""
    return kernel.name in names()


def wanted_ahead(image: Image) -> int:
    """How many children of a snapshot are to be ready."""
    told = image.notes.get(KEY)
    wanted = told.get("warm_children", 0) if isinstance(told, dict) else 0
    return min(wanted, WARM_CHILDREN_MAX) if isinstance(wanted, int) and image.kernel is not None else 0
