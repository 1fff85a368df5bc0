"""Children forked ahead, with made-up children: how many there are, whose they are, and when they go."""

import asyncio
import contextlib
import types

import pytest

from ramet.engine import ahead
from ramet.engine.ahead import Ahead
from ramet.errors import DaemonLost
from ramet.models.sandboxes import Child
from ramet.models.templates import KEY

NOTHING = Child()


class Image:
    """A template's snapshot that asks for three."""

    name = "template"
    core = "core"
    kernel = "python"
    notes = {KEY: {"warm_children": 3}}  # noqa: RUF012
    dropped = False

    @contextlib.contextmanager
    def used(self):
        yield


class Sandbox:
    """A child that was made."""

    kernel = None

    def __init__(self, image):
        self.core = image.core
        self.origin = types.SimpleNamespace(snapshot=image.name)
        self.ending = False
        self.killed = False

    def info(self):
        return self

    def kill(self, why):
        self.killed = True
        self.ending = True


class Channel:
    """Its descriptors."""

    closed = False

    def close(self):
        self.closed = True


class Place:
    """Where children are made, one at a time, when `go` says so."""

    def __init__(self):
        self.made = []
        self.taken = []
        self.tasks = set()
        self.go = asyncio.Event()
        self.go.set()
        self.error = None
        self.ahead = Ahead(self.make, self.spawn)

    async def make(self, image):
        await self.go.wait()
        if self.error:
            raise self.error
        self.made.append((Sandbox(image), Channel()))
        return self.made[-1]

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


@pytest.fixture
async def place():
    place = Place()
    yield place
    place.ahead.close()
    async with asyncio.timeout(5):
        while place.tasks:
            await asyncio.wait(place.tasks)
    assert all(channel.closed for sandbox, channel in place.made if sandbox not in place.taken)


def take(place, image, own=NOTHING, *, detach=False):
    ready = place.ahead.take(image, own, detach=detach)
    if ready is not None:
        place.taken.append(ready[0])
    return ready


async def test_as_many_are_made_as_the_template_asks_for_and_made_up_for(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3
    assert take(place, image)[0] is place.made[0][0]
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 4


async def test_none_is_handed_out_twice_or_to_those_who_ask_for_something_of_their_own(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    assert take(place, image, Child(name="mine")) is None
    assert take(place, image, detach=True) is None
    assert len({id(take(place, image)[0]) for _ in range(3)}) == 3
    assert take(place, image) is None


async def test_one_that_ended_by_itself_is_not_handed_out_and_its_channel_is_closed(place):
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    sandbox, channel = place.made[0]
    sandbox.ending = True
    place.ahead.ended(sandbox)
    assert channel.closed
    assert take(place, image)[0] is place.made[1][0]


async def test_many_fills_leave_one_watcher(place):
    image = Image()
    for _ in range(5):
        place.ahead.fill(image)
        await place.filled()
        take(place, image)
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
    assert [(sandbox.killed, channel.closed) for sandbox, channel in place.made] == [(True, True)]


async def test_all_are_given_up_when_memory_becomes_scarce(place, monkeypatch):
    monkeypatch.setattr(ahead, "WATCH_S", 0.0)
    image = Image()
    place.ahead.fill(image)
    await place.filled()
    monkeypatch.setattr(ahead.memory, "available", lambda: (1, 100))
    async with asyncio.timeout(5):
        await asyncio.wait(place.named("_watch"))
    assert all(sandbox.killed for sandbox, _ in place.made)
    assert take(place, image) is None
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3


async def test_a_child_that_cannot_be_made_is_left_to_the_next_who_asks(place):
    image = Image()
    place.error = DaemonLost("core_lost", "core has ended")
    place.ahead.fill(image)
    await place.filled()
    assert take(place, image) is None
    place.error = None
    place.ahead.fill(image)
    await place.filled()
    assert len(place.made) == 3
