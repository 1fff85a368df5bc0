"""What is kept of a sandbox at its deadline never delays its end beyond a bound."""

import asyncio
import contextlib

import pytest

from ramet.engine import keeping
from ramet.engine.keeping import CORE_S, Keeper
from ramet.engine.records import Origin
from ramet.engine.standing import Sandbox
from ramet.errors import Unforkable
from ramet.models.limits import Limits
from ramet.models.runs import RunEnd

KILLED = RunEnd(137, "killed", None, 1.0, 1.0, 1.0, 1.0, 1, 1, single_uid=True, lingering=False)
NUMBER = 0xABC
NAME = "kept-000000000abc"


class Core:
    """Ends what it is asked to end, at once."""

    single_uid, cgroups, alive = True, "", True

    def __init__(self):
        self.ended = lambda: None

    def end_sandbox(self, number):
        assert number == NUMBER
        self.ended()


class Image:
    """A snapshot in core."""

    notes = None
    dropped = False

    def drop(self):
        self.dropped = True


class Snapshots:
    """Writes one when it may."""

    def __init__(self):
        self.may_write = asyncio.Event()
        self.why = None

    @contextlib.asynccontextmanager
    async def reserved(self, name):
        assert name == NAME
        yield

    def writing(self, name, image):
        assert name == NAME
        assert image.notes["kept"] in {"timeout", "oom"}

    async def keep_later(self, _name, _image, reserved):
        async with reserved:
            await self.may_write.wait()

    def failure(self, _name):
        return self.why


class Stage:
    """One sandbox at its deadline."""

    def __init__(self):
        self.core = Core()
        self.sandbox = Sandbox(self.core, NUMBER, Origin(("x",), 2), limits=Limits())
        self.sandbox.keep_on = ("timeout",)
        self.snapshots = Snapshots()
        self.image = Image()
        self.capturing, self.may_capture = asyncio.Event(), asyncio.Event()
        self.refusal = None
        self.tasks = []
        self.keeper = Keeper(self.snapshots, self.spawn, self.capture, self.finish)
        self.core.ended = lambda: self.finish(self.sandbox, KILLED)

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    async def capture(self, _sandbox, on_unsupported):
        assert on_unsupported == "refuse"
        self.capturing.set()
        await self.may_capture.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.image

    def finish(self, sandbox, end):
        if sandbox.writing:
            sandbox.last = end
        else:
            sandbox.finish(end)

    async def end(self):
        """What is told of its end, from its deadline on."""
        self.keeper.wall(self.sandbox, 0.0)
        self.keeper.watch(self.sandbox)
        async with asyncio.timeout(10):
            await self.sandbox.gone.wait()
        return self.sandbox.end.reason, self.sandbox.kept, self.sandbox.kept_error

    async def rest(self):
        """Everything that was begun ends."""
        self.may_capture.set()
        self.snapshots.may_write.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks)


@pytest.fixture
async def stage():
    made = Stage()
    yield made
    await made.rest()


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(keeping, "KEEP_S", 0.01)


async def test_its_end_is_told_when_its_state_is_on_disk(stage):
    stage.may_capture.set()
    asyncio.get_running_loop().call_soon(stage.snapshots.may_write.set)
    assert await stage.end() == ("timeout", NAME, None)
    assert (stage.sandbox.end.exit_code, stage.image.notes) == (124, {"kept": "timeout"})


async def test_one_that_cannot_be_captured_in_time_ends_without(stage, hasty):
    assert await stage.end() == ("timeout", None, "its snapshot could not be taken in 0.01 s")
    await stage.rest()
    assert stage.image.dropped


async def test_one_that_is_written_too_slowly_has_ended_before(stage, hasty):
    stage.may_capture.set()
    reason, kept, error = await stage.end()
    assert (reason, kept) == ("timeout", NAME)
    assert "being written still" in error
    await stage.rest()
    assert (stage.sandbox.kept, stage.sandbox.kept_error) == (NAME, None)


async def test_one_that_cannot_be_forked_says_so(stage):
    stage.refusal = Unforkable("pid 2 x: fd 3 is a netlink socket")
    stage.may_capture.set()
    assert await stage.end() == ("timeout", None, "pid 2 x: fd 3 is a netlink socket")


async def test_a_disk_that_is_full_is_the_reason_why_nothing_is_kept(stage):
    stage.snapshots.why = "no space is left"
    stage.may_capture.set()
    stage.snapshots.may_write.set()
    assert await stage.end() == ("timeout", None, "no space is left")


async def test_one_that_ended_while_it_was_captured_has_ended_by_itself(stage):
    stage.keeper.wall(stage.sandbox, 0.0)
    stage.keeper.watch(stage.sandbox)
    async with asyncio.timeout(10):
        await stage.capturing.wait()
    stage.sandbox.exit = KILLED._replace(reason="exit", exit_code=3)
    stage.sandbox.finish(KILLED)
    await stage.rest()
    assert (stage.sandbox.end.reason, stage.sandbox.kept, stage.image.dropped) == ("exit", None, True)


async def test_core_has_a_later_deadline_and_ends_what_nobody_came_to(stage):
    assert stage.keeper.wall(stage.sandbox, 2.0) == 2.0 + CORE_S
    stage.sandbox.finish(KILLED._replace(reason="timeout", exit_code=124))
    assert (stage.sandbox.kept, stage.sandbox.kept_error) == (None, "the daemon did not come to it in time")
    stage.sandbox.keep_on = ()
    assert stage.keeper.wall(stage.sandbox, 2.0) == 2.0


async def test_one_that_exceeds_its_memory_is_kept_once_whatever_else_it_exceeds_meanwhile(stage):
    stage.sandbox.keep_on = ("timeout", "oom")
    stage.keeper.over(stage.sandbox)
    stage.may_capture.set()
    stage.snapshots.may_write.set()
    assert await stage.end() == ("oom", NAME, None)
    assert (stage.sandbox.end.exit_code, len(stage.tasks), stage.image.notes) == (137, 1, {"kept": "oom"})
