"""Sandboxes as the daemon keeps them: their time to live, their record, and who takes them over."""

import asyncio
import json
import os

import pytest

from _fake_core import ended, exited
from ramet.engine.cores import Settings
from ramet.engine.drain import Drain
from ramet.engine.records import COMMAND_SHOWN, Origin, shown_command
from ramet.engine.sandboxes import Sandboxes
from ramet.engine.standing import Sandbox
from ramet.models.limits import Limits
from ramet.models.runs import RunEnd
from ramet.models.sandboxes import ListRequest
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.channels import Channel
from ramet.native.runs import run_end

END = RunEnd(137, "killed", None, 1.0, 1.0, 1.0, 1.0, 1, 1, single_uid=True, lingering=False)
NUMBER = 0xABC


class Connection:
    """Takes note of what core is to hold for the next daemon, and closes it."""

    def __init__(self):
        self.held = []

    def call(self, kind, payload, fds, reply):
        assert kind == p.HOLD
        self.held.append(len(fds))
        for fd in fds:
            os.close(fd)


class Core:
    """Takes note of what it is asked to end."""

    def __init__(self):
        self.alive, self.listed, self.leaving = True, False, False
        self.awaits = "nothing"
        self.connection = Connection()
        self.single_uid = True
        self.cgroups = ""
        self.killed = []

    def run_end(self, frame):
        return run_end(frame, single_uid=True, cgroups="")

    def ended_as(self, end, **changes):
        return end._replace(**changes)

    def end_sandbox(self, number):
        self.killed.append(number)


class Cores:
    """No core is running yet, as while one is adopted."""

    running = None
    settings = Settings(-1, "", -1, 0)

    def living(self):
        return ()

    async def ensure(self):
        raise NotImplementedError

    def spawn(self, work):
        raise NotImplementedError


@pytest.fixture
def core():
    return Core()


def sandbox_of(core, **options):
    return Sandbox(core, NUMBER, Origin(("repl",), 2), limits=Limits(), **options)


async def gone(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  the loop's own timers see to it
            await asyncio.sleep(0)


# --- time to live ------------------------------------------------------------------------------------------


async def test_a_detached_sandbox_ends_when_nobody_asks_for_it_in_its_time(core):
    sandbox = sandbox_of(core, ttl=0.01)
    sandbox.attach()
    sandbox.owner_gone()
    await gone(lambda: core.killed)
    sandbox.finish(END)
    assert sandbox.info().note == "nobody asked for it in 0.01 s"
    assert sandbox.info().detached


async def test_its_time_does_not_run_while_somebody_has_it(core):
    sandbox = sandbox_of(core, ttl=0.01)
    sandbox.attach()
    sandbox.attach()
    sandbox.leave()
    assert sandbox._timer is None
    sandbox.leave()
    assert sandbox._timer is not None
    sandbox.attach()
    assert sandbox._timer is None
    sandbox.leave()
    await gone(lambda: core.killed)


async def test_a_sandbox_that_is_not_detached_ends_with_its_owner(core):
    sandbox = sandbox_of(core)
    sandbox.attach()
    sandbox.owner_gone()
    assert core.killed == [NUMBER]
    assert sandbox.info().note == "its owner went"


async def test_nothing_is_asked_of_a_core_that_is_gone(core):
    sandbox = sandbox_of(core)
    core.alive = False
    sandbox.kill("by request")
    assert not core.killed


async def test_what_ended_first_is_the_cause(core):
    sandbox = sandbox_of(core)
    sandbox.kill("by request")
    sandbox.command_ended(END._replace(reason="exit", exit_code=0))
    sandbox.finish(END)
    assert (sandbox.end.reason, sandbox.note) == ("killed", "by request")

    other = sandbox_of(core)
    other.command_ended(END._replace(reason="exit", exit_code=3))
    other.kill("by request")
    other.finish(END)
    assert (other.end.reason, other.end.exit_code, other.note) == ("exit", 3, None)


# --- what is written while nobody reads --------------------------------------------------------------------


async def test_a_detached_sandbox_can_write_for_ever_and_read_nothing_when_its_owner_is_gone(core):
    channel = Channel(detached=True)
    feed, out, err = channel.take_ours()
    stdin, stdout, stderr = channel.take_theirs()
    os.set_blocking(stdin, False)
    sandbox = sandbox_of(core, ttl=60)
    sandbox.hold([os.dup(feed), os.dup(out), os.dup(err)])
    sandbox.attach()
    for owned in (feed, out, err):
        os.close(owned)
    with pytest.raises(BlockingIOError):
        os.read(stdin, 1)
    sandbox.owner_gone()
    assert core.connection.held == [3]
    for stream in (stdout, stderr):
        await asyncio.wait_for(asyncio.to_thread(os.write, stream, bytes(4 << 20)), 10)
    sandbox.finish(END)
    with pytest.raises(BlockingIOError):
        os.read(stdin, 1)
    for descriptor in (stdin, stdout, stderr):
        os.close(descriptor)


async def test_a_drain_stops_at_the_end_of_a_stream():
    ours, theirs = os.pipe()
    drain = Drain([ours])
    os.write(theirs, b"x")
    os.close(theirs)
    watched = asyncio.get_running_loop()._selector.get_map()
    await gone(lambda: ours not in watched)
    assert not drain._timers
    drain.close()


# --- the record --------------------------------------------------------------------------------------------


def test_a_detached_sandbox_comes_back_from_its_record(core):
    sandbox = sandbox_of(core, name="web", ttl=60)
    sandbox.keep_on, sandbox.until = ("timeout",), 7.5
    sandbox.ground.user = (1000, 1001)
    again = Sandbox.from_record(core, NUMBER, sandbox.record())
    assert again.info() == sandbox.info()
    assert again.limits == sandbox.limits
    assert (again.until, again.ground.user) == (7.5, (1000, 1001))


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2}',
        lambda data: {**data, "ttl": None},
        lambda data: {**data, "origin": {**data["origin"], "pid": 0}},
        lambda data: {**data, "origin": {"pid": 2}},
        lambda data: {**data, "limits": {"disk": "no"}},
        lambda data: {**data, "limits": 3},
        lambda data: {name: value for name, value in data.items() if name != "created"},
    ],
)
def test_what_is_no_record_of_a_detached_sandbox_is_not_taken_over(core, record):
    if callable(record):
        record = json.dumps(record(json.loads(sandbox_of(core, ttl=60).record()))).encode()
    assert Sandbox.from_record(core, NUMBER, record) is None


def test_a_long_command_is_kept_in_part():
    assert shown_command(["a", "b"]) == ("a", "b")
    words = shown_command(["a", "b" * 10_000, "c"])
    assert words[0] == "a"
    assert words[1].endswith("b…")
    assert len(words) == 2
    assert sum(map(len, words)) <= COMMAND_SHOWN
    core = Core()
    long = Sandbox(core, NUMBER, Origin(shown_command(["\N{SNOWMAN}" * 10_000]), 2), limits=Limits(), ttl=1)
    assert len(long.record()) < p.RECORD_MAX


# --- taking over -------------------------------------------------------------------------------------------


def told(record, *, owned=0):
    payload = frames.u64(p.TAG_SANDBOX, NUMBER) + frames.u32(p.TAG_OWNED, owned)
    return frames.attributes(payload + frames.raw(p.TAG_RECORD, record))


async def test_a_sandbox_of_an_earlier_daemon_is_found_by_its_name(core):
    everything = Sandboxes(Cores())
    record = sandbox_of(core, name="web", ttl=60).record()
    assert everything.adopt(core, told(record))
    assert (await everything.find("web")).id == f"{NUMBER:012x}"
    assert not everything.adopt(core, told(record, owned=1))
    assert not everything.adopt(core, told(b"somebody else's"))
    assert len(everything) == 1
    everything.close()


async def test_an_end_that_core_tells_before_the_list_is_not_lost(core):
    everything = Sandboxes(Cores())
    everything.event(core, frames.Frame(p.EXITED, 0, exited(NUMBER, 3 << 8), []))
    assert everything.adopt(core, told(sandbox_of(core, ttl=60).record()))
    assert core.killed == [NUMBER]
    payload = ended(9, p.REASON_KILLED, frames.u64(p.TAG_SANDBOX, NUMBER))
    everything.event(core, frames.Frame(p.ENDED, 0, payload, []))
    (info,) = await everything.told(ListRequest(ended=True))
    assert (info.end.reason, info.end.exit_code) == ("exit", 3)


async def test_a_malformed_word_of_core_changes_nothing(core):
    everything = Sandboxes(Cores())
    everything.adopt(core, told(sandbox_of(core, ttl=60).record()))
    everything.event(core, frames.Frame(p.ENDED, 0, b"\1", []))
    everything.event(core, frames.Frame(p.ENDED, 0, frames.u32(p.TAG_SANDBOX, 1), []))
    assert len(everything) == 1
    everything.close()


async def test_the_dead_are_forgotten_after_a_while(core, monkeypatch):
    everything = Sandboxes(Cores())
    everything.adopt(core, told(sandbox_of(core, ttl=60).record()))
    everything.close()
    assert len(await everything.told(ListRequest(ended=True))) == 1
    monkeypatch.setattr("ramet.engine.sandboxes.RETENTION_S", -1.0)
    assert await everything.told(ListRequest(ended=True)) == ()
