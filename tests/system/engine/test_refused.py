"""What cannot be carried is refused by name; failures at every step leave the source whole."""

import errno
import os

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest, Victim

REFUSED = _engine.victims("refused")


HOARDER = next(victim for victim in REFUSED if victim.name == "pipe_beyond_quota")
"""Leaves its user small pipes only. Root gives each core users of its own."""


def standing(engine: Engine, victim: Victim) -> Guest:
    if victim == HOARDER and os.geteuid() != 0:
        pytest.skip("a user's quota of pages in pipes is that of all tests that run beside")
    guest = engine.start(victim.argv, victim.name)
    try:
        guest.ready()
    except _engine.Missing as missing:
        pytest.skip(str(missing))
    return guest


@pytest.mark.parametrize("victim", REFUSED, ids=lambda victim: victim.name)
def test_what_cannot_be_carried_is_refused_by_name_and_goes_on(engine: Engine, victim: Victim) -> None:
    source = standing(engine, victim)
    for _ in range(3):
        told = engine.refusal(source)
        assert told.startswith("pid "), told
        assert any(words in told for words in victim.proves.split("|")), told
    source.go()
    assert source.verdict() == "OK"


@pytest.mark.parametrize("victim", _engine.victims("moments"), ids=lambda victim: victim.name)
def test_a_moment_in_which_nothing_can_be_taken_ends_with_its_name_and_the_source_goes_on(
    engine: Engine, victim: Victim
) -> None:
    """In vfork(2), in another uninterruptible sleep, traced: which the product's filter does not allow."""
    source = engine.start(victim.argv, filter_id=_payloads.ALLOW_ALL)
    source.ready()
    _, answer = engine.ask_snapshot(source)
    assert answer.error[:3] in {("unforkable", "none", 0), ("isolation_failed", "seize", errno.ETIMEDOUT)}
    assert victim.proves in answer.found.text(p.TAG_TEXT), _engine.describe(answer)
    source.go()
    assert source.verdict() == "OK"


FULL_PIPE = """
mkfifo pipe
exec 3<>pipe
head -c 60000 /dev/zero >&3
echo READY
while read -r line; do head -c 60000 <&3 | wc -c; done
"""


def test_a_child_with_too_little_room_in_its_pipe_is_refused_and_not_cut_short(engine: Engine) -> None:
    source = engine.start(["/bin/sh", "-c", FULL_PIPE])
    source.ready()
    snapshot = engine.snapshot(source)
    hoarder = standing(engine, HOARDER)
    child, answer = engine.ask_fork(snapshot.number, "nobody")
    engine.forget(child)
    assert answer.error[:3] == ("isolation_failed", "child_make_fds", errno.EPERM), _engine.describe(answer)
    assert "room in a pipe" in answer.found.text(p.TAG_TEXT)
    hoarder.end()
    assert snapshot.fork().ask("read") == source.ask("read") == "60000"


def test_a_process_that_is_exiting_is_refused_by_a_code_of_its_own(engine: Engine) -> None:
    """Its threads are ended one by one: all moments between the first and the last may be met."""
    met = set()
    for _ in range(30):
        source = engine.start([f"{_engine.VICTIMS}/racy", "exits"])
        source.ready()
        source.go()
        _, answer = engine.ask_snapshot(source)
        if answer.kind == p.OK:
            continue
        # Without any process there is nothing to name.
        assert answer.error[0] in {"exiting", "unknown_sandbox"} or (
            "no process runs" in answer.found.text(p.TAG_TEXT)
        ), _engine.describe(answer)
        met.add(answer.error[0])
        source.end()
    assert met


def test_an_unknown_snapshot_and_a_taken_number_are_refused(engine: Engine) -> None:
    source = engine.start(_engine.COUNTER)
    source.ready()
    guest, answer = engine.ask_fork(4711, "nobody")
    engine.forget(guest)
    assert answer.error[0] == "unknown_snapshot"
    kept = engine.snapshot(source)
    payload = frames.u64(p.TAG_SANDBOX, source.sandbox) + frames.u32(p.TAG_SNAPSHOT, kept.number)
    assert engine.core.control.ask(p.SNAPSHOT, payload).error[3] == "snapshot"


def test_memory_diverges_both_ways_and_files_too(engine: Engine) -> None:
    source = engine.start(["/bin/sh", "-c", 'echo READY; while read -r line; do eval "$line"; done'])
    source.ready()
    source.ask("x=1; echo first > file; echo done")
    child = engine.snapshot(source).fork()
    assert source.ask("x=2; echo source > file; echo done") == "done"
    assert child.ask('echo "$x $(cat file)"') == "1 first"
    assert child.ask("x=3; echo child > file; echo done") == "done"
    assert source.ask('echo "$x $(cat file)"') == "2 source"
    assert child.ask('echo "$x $(cat file)"') == "3 child"


def test_a_hundred_children_of_one_snapshot_are_all_right(engine: Engine) -> None:
    source = engine.start(_engine.COUNTER)
    source.ready()
    source.ask("count")
    snapshot = engine.snapshot(source)
    started = [engine.send_fork(snapshot.number, f"child {n}") for n in range(100)]
    for guest, request in started:
        answer = engine.core.control.answer(request)
        assert answer.kind == p.OK, _engine.describe(answer)
        guest.say("count")
    assert [guest.line() for guest, _ in started] == ["2"] * 100


DROPPABLE = [victim for victim in REFUSED if victim.proves.startswith("fd ")]


@pytest.mark.parametrize("victim", DROPPABLE, ids=lambda victim: victim.name)
def test_what_cannot_be_carried_is_left_out_and_told_when_that_is_asked_for(
    engine: Engine, victim: Victim
) -> None:
    source = standing(engine, victim)
    number, answer = engine.ask_snapshot(source, drop=True)
    assert answer.kind == p.OK, _engine.describe(answer)
    snapshot = _engine.Snapshot(engine, number, answer.found)
    engine.snapshots.append(snapshot)
    told = answer.found.text(p.TAG_DROPPED).splitlines()
    assert all(line.startswith("pid ") for line in told)
    assert any(words in line for words in victim.proves.split("|") for line in told), told
    child = snapshot.fork()
    child.say("go")  # whatever it says then, it runs
    assert child.verdict() or child.exit()
    source.go()
    assert source.verdict() == "OK"


def test_a_descriptor_that_was_left_out_keeps_its_number_and_is_good_for_nothing(engine: Engine) -> None:
    source = engine.start(["/bin/sh", "-c", 'echo READY; while read -r line; do eval "$line"; done'])
    source.ready()
    source.ask("exec 7<> /dev/ptmx; echo done")
    assert engine.refusal(source).endswith("fd 7 is a terminal that nobody has opened yet")
    number, answer = engine.ask_snapshot(source, drop=True)
    snapshot = _engine.Snapshot(engine, number, answer.found)
    engine.snapshots.append(snapshot)
    assert answer.found.text(p.TAG_DROPPED) == "pid 2 sh: fd 7 is a terminal that nobody has opened yet\n"
    child = snapshot.fork()
    assert child.ask("(echo x >&7) 2> /dev/null || echo closed") == "closed"
    assert child.ask("[ -e /proc/self/fd/7 ] && echo there") == "there"
