"""Children forked ahead, with made-up children: how many there are, whose they are, and when they go."""

import asyncio
import contextlib
import os
import types

import pytest

from ramet._descriptors import close_all
from ramet.engine import ahead
from ramet.engine.ahead import Ahead
from ramet.errors import DaemonLost, RametError
from ramet.models.forks import Child
from ramet.models.templates import KEY
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.channels import Channel

NOTHING = Child()


class Core:
    """Keeps what it is offered, for who claims it first."""

    alive = True

    def __init__(self):
        self.connection = self
        self.offered = {}
        self.ended = []

    async def ask(self, kind, payload, fds):
        assert kind == p.OFFER
        self.offered[frames.attributes(payload).u64(p.TAG_SANDBOX)] = fds

    async def fetch(self, kind, payload):
        assert kind == p.CLAIM
        assert frames.attributes(payload).u32(p.TAG_SNAPSHOT) == Image.number
        if not self.offered:
            raise RametError("none_ready", "no fork is ready")
        number = next(iter(self.offered))
        return frames.attributes(frames.u64(p.TAG_SANDBOX, number)), self.offered.pop(number)

    def call(self, kind, payload, fds, reply):
        assert (kind, fds) == (p.WITHDRAW, [])
        number = frames.attributes(payload).u64(p.TAG_SANDBOX)
        fds = self.offered.pop(number, None)
        if fds is None:
            reply(RametError("unknown_sandbox", "it is not offered"))
        else:
            close_all(fds)
            self.ended.append(number)
            reply(frames.Frame(p.OK, 1, b"", []))

    def end_sandbox(self, number):
        self.ended.append(number)


class Image:
    """A template's snapshot that asks for three."""

    name = "template"
    number = 9
    kernel = "python"
    notes = {KEY: {"warm_children": 3}}  # noqa: RUF012
    dropped = False

    def __init__(self):
        self.core = Core()

    @contextlib.contextmanager
    def used(self):
        yield


class Sandbox:
    """A child that was made."""

    kernel = None

    def __init__(self, image, number):
        self.core = image.core
        self.number = number
        self.origin = types.SimpleNamespace(snapshot=image.name)
        self.ending = False
        self.note = None

    def info(self):
        return self

    def kill(self, why):
        self.note = why
        self.ending = True
        self.core.end_sandbox(self.number)


class Place:
    """Where children are made, one at a time, when `go` says so."""

    def __init__(self):
        self.made = []
        self.tasks = set()
        self.go = asyncio.Event()
        self.go.set()
        self.error = None
        self.ahead = Ahead(self.make, self.spawn)

    async def make(self, image):
        await self.go.wait()
        if self.error:
            raise self.error
        self.made.append(Sandbox(image, len(self.made) + 1))
        channel = Channel()
        close_all(channel.take_theirs())
        return self.made[-1], channel

    def spawn(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def named(self, name):
        """The tasks that run a function of this name."""
        return [one for one in self.tasks if one.get_coro().__name__ == name]

    async def filled(self):
        """Until no child is being made."""
        while fills := self.named("_fill"):
            await asyncio.wait(fills)

    async def take(self, image, own=NOTHING, *, detach=False):
        """The child that is handed out, whose ends are closed: nothing is asked of it here."""
        ready = await self.ahead.take(image, own, detach=detach)
        if ready is None:
            return None
        sandbox, channel = ready
        assert len(channel.ours) == 3
        channel.close()
        return sandbox


@pytest.fixture
async def place():
    before = len(os.listdir("/proc/self/fd"))
    place = Place()
    yield place
    place.ahead.close()
    async with asyncio.timeout(5):
        while place.tasks:
            await asyncio.wait(place.tasks)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_as_many_are_made_as_the_template_asks_for_and_made_up_for(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3
    assert await place.take(image) is place.made[0]
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 4


async def test_none_is_handed_out_twice_or_to_those_who_ask_for_something_of_their_own(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    assert await place.take(image, Child(name="mine")) is None
    assert await place.take(image, detach=True) is None
    assert len({id(await place.take(image)) for _ in range(3)}) == 3
    assert await place.take(image) is None


async def test_one_that_a_client_claimed_past_the_daemon_is_made_up_for(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    _, fds = await image.core.fetch(p.CLAIM, frames.u32(p.TAG_SNAPSHOT, image.number))
    close_all(fds)
    place.ahead.gone(place.made[0])
    place.ahead.fill(image)
    await place.filled()
    assert [await place.take(image) for _ in range(3)] == place.made[1:]


async def test_one_that_ended_by_itself_is_not_handed_out(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    place.made[0].ending = True
    assert await place.take(image) is None  # core had not heard of it yet
    assert await place.take(image) is place.made[1]


async def test_many_fills_leave_one_watcher(place):
    image = Image()
    for _ in range(5):
        place.ahead.fill(image)
        await place.filled()
        await place.take(image)
    assert len(place.named("_watch")) == 1


async def test_a_template_that_goes_while_a_child_is_made_takes_that_child_along(place):
    image = Image()
    place.go.clear()
    place.ahead.fill(image)
    await asyncio.sleep(0)
    image.dropped = True
    place.ahead.drop(image.name)
    place.go.set()
    await place.filled()
    assert image.core.ended == [place.made[0].number]
    assert not image.core.offered


async def test_one_that_was_claimed_while_all_are_given_up_is_not_ended(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    _, fds = await image.core.fetch(p.CLAIM, frames.u32(p.TAG_SNAPSHOT, image.number))
    place.ahead.drop(image.name)
    assert image.core.ended == [2, 3]
    assert place.made[0].note is None
    assert place.made[1].note == "it was made ahead and not needed"
    close_all(fds)


async def test_all_are_given_up_when_memory_becomes_scarce(place, monkeypatch):
    monkeypatch.setattr(ahead, "WATCH_S", 0.0)
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    monkeypatch.setattr(ahead.memory, "available", lambda: (1, 100))
    async with asyncio.timeout(5):
        await asyncio.wait(place.named("_watch"))
    assert image.core.ended == [1, 2, 3]
    assert await place.take(image) is None
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3


async def test_a_child_that_cannot_be_offered_is_ended_and_leaves_no_descriptor(place, monkeypatch):
    image = Image()

    async def refuse(kind, payload, fds):
        close_all(fds)
        raise DaemonLost("core_lost", "core has ended")

    monkeypatch.setattr(image.core, "ask", refuse)
    place.ahead.fill(image)
    await place.filled()
    assert image.core.ended == [1]
    assert await place.take(image) is None


async def test_a_child_that_cannot_be_made_is_left_to_the_next_who_asks(place):
    image = Image()
    place.error = DaemonLost("core_lost", "core has ended")
    place.ahead.fill(image)
    await place.filled()
    assert await place.take(image) is None
    place.error = None
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3
