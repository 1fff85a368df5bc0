"""The history of events: places in it, gaps, and who waits for it to go on."""

import asyncio

import pytest

from ramet.engine.events import Events
from ramet.errors import DaemonLost, InvalidRequest
from ramet.models.events import BATCH, Event, EventsRequest, cursor_of

PATIENCE_S = 20.0


def after(events, cursor, wait=0.0, gone=lambda _: None, **chosen):
    return events.after(EventsRequest.of(cursor=cursor, wait=wait, **chosen), gone)


def told(batch):
    return [(one.type, one.snapshot or one.missed) for one in batch.events]


async def test_a_reader_goes_on_where_it_was_and_loses_nothing():
    events = Events()
    here = (await after(events, None)).cursor
    for number in range(BATCH + 10):
        events.note("snapshot", snapshot=f"s{number}")
    first = await after(events, here)
    second = await after(events, first.cursor)
    assert [one.snapshot for one in first.events + second.events] == [f"s{n}" for n in range(BATCH + 10)]
    assert (await after(events, second.cursor)).events == ()
    assert (await after(events, first.events[-2].cursor)).events[0] == first.events[-1]


async def test_what_a_slow_reader_missed_is_told_in_its_place_and_the_start_misses_nothing():
    events = Events(history=3)
    here = (await after(events, None)).cursor
    for number in range(5):
        events.note("snapshot", snapshot=f"s{number}")
    late = await after(events, here)
    assert told(late) == [("gap", 2), ("snapshot", "s2"), ("snapshot", "s3"), ("snapshot", "s4")]
    assert told(await after(events, late.events[0].cursor)) == told(late)[1:]
    assert told(await after(events, "start")) == told(late)[1:]


async def test_events_of_commands_take_no_room_of_others_and_each_hole_is_told_where_it_is():
    events = Events(history=2)
    here = (await after(events, None)).cursor

    def command(number):
        events.add(Event("", 0.0, "command_began", command=number))

    events.note("snapshot", snapshot="s0")
    for number in range(3):
        command(number)
    events.note("snapshot", snapshot="s1")
    for number in range(3, 5):
        command(number)

    def seen(batch):
        return [(one.type, one.snapshot or one.missed or one.command) for one in batch.events]

    everything = [
        ("snapshot", "s0"), ("gap", 3), ("snapshot", "s1"), ("command_began", 3), ("command_began", 4),
    ]  # fmt: skip
    assert seen(await after(events, here)) == everything
    assert seen(await after(events, "start")) == [one for one in everything if one[0] != "gap"]
    assert seen(await after(events, here, types=["snapshot"])) == [("snapshot", "s0"), ("snapshot", "s1")]
    assert seen(await after(events, here, types=["command_began"])) == [("gap", 3), *everything[3:]]
    # Of what neither is kept nobody can say how much was of which kind.
    events.note("snapshot", snapshot="s2")
    assert seen(await after(events, here, types=["command_began"])) == [("gap", None), *everything[3:]]


async def test_core_is_told_when_somebody_begins_to_wait_and_for_what():
    events = Events()
    here = (await after(events, None)).cursor
    heard = []
    events.on_wait = lambda: heard.append(events.awaited)
    await after(events, here, types=["command_ended"])  # who does not wait needs nothing sooner
    assert not heard
    await after(events, here, 0.01, types=["ended"])
    assert (heard, events.awaited) == (["sandboxes"], "nothing")
    both = [asyncio.create_task(after(events, here, PATIENCE_S, types=["command_ended"])) for _ in range(2)]
    other = asyncio.create_task(after(events, here, 0.01, types=["ended"]))
    await other
    assert (heard, events.awaited) == (["sandboxes", "everything"], "everything")
    events.add(Event("", 0.0, "command_ended", command=5))
    await asyncio.gather(*both)
    assert events.awaited == "nothing"


@pytest.mark.parametrize("number", [1, 9])
async def test_another_daemons_cursor_and_one_from_the_future_are_gaps_of_unknown_size(number):
    events = Events()
    events.note("snapshot", snapshot="s")
    daemon = "0" * 16 if number == 1 else events.daemon
    assert told(await after(events, cursor_of(daemon, number))) == [("gap", None), ("snapshot", "s")]


async def test_a_reader_waits_for_the_event_that_it_chose():
    events = Events()
    here = (await after(events, None)).cursor
    waiting = asyncio.create_task(after(events, here, PATIENCE_S, types=["removed"]))
    await asyncio.sleep(0)
    events.note("snapshot", snapshot="s")
    await asyncio.sleep(0)
    assert not waiting.done()
    events.note("removed", snapshot="s")
    async with asyncio.timeout(PATIENCE_S):
        batch = await waiting
    assert told(batch) == [("removed", "s")]
    assert batch.cursor == cursor_of(events.daemon, 2)


async def test_nobody_waits_for_a_reader_that_has_gone_nor_longer_than_the_daemon_lives():
    events = Events()
    here = (await after(events, None)).cursor
    calls = []
    gone = asyncio.create_task(after(events, here, PATIENCE_S, gone=calls.append))
    other = asyncio.create_task(after(events, here, PATIENCE_S))
    await asyncio.sleep(0)
    calls[0]()
    async with asyncio.timeout(PATIENCE_S):
        assert (await gone).events == ()
        events.close()
        with pytest.raises(DaemonLost):
            await other
        with pytest.raises(DaemonLost):
            await after(events, here, PATIENCE_S)


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("cursor", {"cursor": "yesterday"}),
        ("types", {"types": ["created", "born"]}),
        ("types", {"types": "created"}),
        ("sandbox", {"sandbox": "a/b"}),
        ("wait", {"wait": "soon"}),
    ],
)
def test_a_wrong_argument_is_named(field, arguments):
    with pytest.raises(InvalidRequest) as caught:
        EventsRequest.of(**arguments)
    assert caught.value.field == field
