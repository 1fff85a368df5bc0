"""The conversation with core: answers find their request, and an end is told to all."""

import asyncio
import errno
import os

import pytest

from _fake_core import FakeCore, ended, failed, silence
from ramet.errors import (
    DaemonLost,
    InternalError,
    InvalidRequest,
    IsolationError,
    ProtocolMismatch,
    RametError,
)
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.core import CoreConnection
from ramet.native.faults import error_of


class Heard:
    """What a connection told besides answers."""

    def __init__(self):
        self.events = []
        self.lost = []
        self.gone = asyncio.Event()

    def on_lost(self, error):
        self.lost.append(error)
        self.gone.set()


@pytest.fixture
async def talk():
    core = FakeCore()
    heard = Heard()
    connection = CoreConnection(core.daemon_end, on_event=heard.events.append, on_lost=heard.on_lost)
    yield core, connection, heard
    connection.close()
    core.close()


async def test_a_question_gets_its_answer(talk):
    _, connection, _ = talk
    found = await connection.ask(p.STATUS)
    assert found.u32(p.TAG_POOL_SIZE) == 8


async def test_answers_out_of_order_find_their_requests(talk):
    core, connection, _ = talk
    held = []

    def hold(core, frame):
        held.append(frame.request)
        if len(held) == 3:
            for request in reversed(held):
                core.send(p.OK, request, frames.u64(p.TAG_RUNS, request))

    core.on[p.STATUS] = hold
    answers = await asyncio.gather(*(connection.ask(p.STATUS) for _ in range(3)))
    assert [answer.u64(p.TAG_RUNS) for answer in answers] == [1, 2, 3]


async def test_an_error_arrives_as_an_exception_with_step_and_errno(talk):
    core, connection, _ = talk
    core.on[p.DEFINE_ROOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_ROOT_BIND, errno.EACCES, "/usr")
    )
    with pytest.raises(IsolationError) as caught:
        await connection.ask(p.DEFINE_ROOT)
    assert caught.value.step == "root_bind"
    assert caught.value.errno == errno.EACCES
    assert "/usr" in caught.value.message


async def test_descriptors_are_passed_and_closed_here(talk):
    core, connection, _ = talk
    read, write = os.pipe()
    await connection.ask(p.SET_POOL, b"", [write])
    assert len(core.wait_for(p.SET_POOL).fds) == 1
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_listing_ends_with_the_answer_without_a_sandbox(talk):
    core, connection, _ = talk

    def several(core, frame):
        for number in (5, 6):
            core.send(p.OK, frame.request, frames.u64(p.TAG_SANDBOX, number))
        core.send(p.OK, frame.request)

    core.on[p.LIST] = several
    assert [one.u64(p.TAG_SANDBOX) for one in await connection.list_sandboxes()] == [5, 6]


async def test_events_go_to_their_listener(talk):
    core, connection, heard = talk
    core.send(p.ENDED, 0, ended())
    await connection.ask(p.STATUS)
    assert [frame.kind for frame in heard.events] == [p.ENDED]


async def test_when_core_dies_every_request_hears_of_it_before_the_listener(talk):
    core, connection, heard = talk
    core.on[p.RUN] = silence
    answers = []
    connection.call(p.RUN, b"", [], answers.append)
    question = asyncio.ensure_future(connection.ask(p.RUN))
    await asyncio.to_thread(core.wait_for, p.RUN)
    core.close()
    with pytest.raises(DaemonLost):
        await question
    await heard.gone.wait()
    assert [type(answer) for answer in answers] == [DaemonLost]
    assert len(heard.lost) == 1


async def test_after_the_end_requests_are_refused_and_their_descriptors_closed(talk):
    core, connection, heard = talk
    core.close()
    await heard.gone.wait()
    read, write = os.pipe()
    with pytest.raises(DaemonLost):
        connection.call(p.RUN, b"", [write], lambda _: None)
    assert os.read(read, 1) == b""
    os.close(read)


async def test_closing_tells_what_is_pending_but_not_the_listener(talk):
    core, connection, heard = talk
    core.on[p.RUN] = silence
    answers = []
    connection.call(p.RUN, b"", [], answers.append)
    connection.close()
    assert [type(answer) for answer in answers] == [DaemonLost]
    assert heard.lost == []


async def test_nonsense_ends_the_conversation(talk):
    core, connection, heard = talk
    core.on[p.STATUS] = lambda core, _: core.sock.send(b"nonsense")
    with pytest.raises(DaemonLost):
        await connection.ask(p.STATUS)
    await heard.gone.wait()


async def test_a_full_socket_delays_requests_and_keeps_their_order(talk):
    core, connection, _ = talk
    payload = frames.raw(p.TAG_BYTES, b"x" * 60_000)
    answers = await asyncio.gather(*(connection.ask(p.DEFINE_FILTER, payload) for _ in range(100)))
    assert len(answers) == 100
    assert [frame.request for frame in core.seen] == list(range(1, 101))


@pytest.mark.parametrize(
    "payload, kind, field",
    [
        (frames.text(p.TAG_CODE, "malformed") + frames.text(p.TAG_FIELD, "arg"), InternalError, "arg"),
        (frames.text(p.TAG_CODE, "version") + frames.u32(p.TAG_VERSION, 9), ProtocolMismatch, None),
        (frames.text(p.TAG_CODE, "out_of_range") + frames.text(p.TAG_FIELD, "disk"), InvalidRequest, "disk"),
        (frames.text(p.TAG_CODE, "unknown_sandbox"), RametError, None),
    ],
)
def test_the_class_of_an_error_follows_its_code(payload, kind, field):
    error = error_of(frames.Frame(p.ERROR, 1, payload, []))
    assert type(error) is kind
    assert error.field == field


def test_a_version_that_is_refused_is_named_beside_ours():
    payload = frames.text(p.TAG_CODE, "version") + frames.u32(p.TAG_VERSION, 9)
    message = error_of(frames.Frame(p.ERROR, 1, payload, [])).message
    assert "9" in message
    assert str(p.PROTOCOL_VERSION) in message
