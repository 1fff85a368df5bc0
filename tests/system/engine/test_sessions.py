"""Forks over lanes: each has a session of its own, over which core answers, and with which it ends."""

import contextlib
import itertools
import os
import socket

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.core._core import Connection, until
from system.engine._engine import COUNTER

NUMBERS = itertools.count(7000)


class Child:
    """A fork that was asked for over a lane, with our ends of its session and streams."""

    def __init__(self, lane, kind, payload, *, streams=True):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.session = Connection(ours)
        near, far = [], []
        if streams:
            (i, near_in), (near_out, o), (near_err, e) = os.pipe(), os.pipe(), os.pipe()
            near, far = [near_in, near_out, near_err], [i, o, e]
        with theirs:
            self.request = lane.send(kind, payload, [*far, theirs.fileno()])
        for number in far:
            os.close(number)
        self.streams = near

    def answer(self):
        """What core says first."""
        return self.session.receive()

    def ask(self, line):
        """What the guest says to a line."""
        os.write(self.streams[0], line.encode() + b"\n")
        return os.read(self.streams[1], 4096).decode().strip()

    def close(self):
        self.session.close()
        for number in self.streams:
            os.close(number)
        self.streams = []


def plan_of(snapshot, number, **options):
    given = _payloads.plan(number, **options)
    kept = b"".join(
        frames.raw(tag, value) for tag, value in frames.decode(given) if tag not in {p.TAG_ROOT, p.TAG_FILTER}
    )
    streams = enumerate((p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR))
    return (
        kept
        + frames.u32(p.TAG_SNAPSHOT, snapshot)
        + frames.u32(p.TAG_COMMAND, 1)
        + b"".join(frames.u32(tag, index) for index, tag in streams)
    )


@pytest.fixture
def lane(engine):
    lane = engine.core.lane()
    yield lane
    lane.close()


@pytest.fixture
def snapshot(engine):
    source = engine.start(COUNTER)
    source.ready()
    assert source.ask("") == "1"
    return engine.snapshot(source)


@pytest.fixture
def make(engine, lane, snapshot):
    with contextlib.ExitStack() as made:

        def child(**options):
            number = next(NUMBERS)
            one = Child(lane, p.CREATE, plan_of(snapshot.number, number, **options))
            one.number = number
            made.callback(one.close)
            return one

        yield child
        made.close()
        until(lambda: len(engine.core.control.listing()) == len(engine.guests), "the ends of the children")


def created(engine, number):
    """What the daemon hears of a sandbox that a client made."""
    engine.core.control.status()
    return engine.core.control.event(p.CREATED, number)


def test_a_fork_is_answered_over_its_session_and_runs_on_where_its_snapshot_stood(make):
    child = make()
    answer = child.answer()
    assert (answer.kind, answer.request, answer.found.u64(p.TAG_SANDBOX)) == (
        p.OK,
        child.request,
        child.number,
    )
    assert child.ask("") == "2"


def test_the_daemon_has_heard_of_a_fork_before_anything_that_it_asks_is_answered(engine, snapshot, make):
    child = make(record=b"whose it is")
    assert child.answer().kind == p.OK
    found = created(engine, child.number).found
    assert (found.u32(p.TAG_SNAPSHOT), found[p.TAG_RECORD]) == (snapshot.number, b"whose it is")
    child.session.send(p.KILL)
    assert child.answer().ended[0] == "killed"
    engine.core.control.status()
    assert engine.core.control.event(p.ENDED, child.number).ended[0] == "killed"


def test_a_fork_ends_with_its_session_and_the_daemon_hears_of_it(engine, make):
    child = make()
    assert child.answer().kind == p.OK
    child.session.close()
    assert engine.core.control.event(p.ENDED, child.number).ended[0] == "killed"


def test_a_session_that_closes_before_the_answer_leaves_nothing(engine, make):
    for _ in range(5):
        make().close()
    until(lambda: len(engine.core.control.listing()) == len(engine.guests), "the ends of the children")


def test_the_end_of_the_lane_is_not_the_end_of_its_forks(lane, make):
    child = make()
    assert child.answer().kind == p.OK
    lane.sock.close()
    assert child.ask("") == "2"


def test_a_fork_ends_with_its_command_which_is_told_to_both(engine, make):
    child = make()
    assert child.answer().kind == p.OK
    os.close(child.streams.pop(0))  # the end of its input ends the shell
    assert child.answer().ended == ("exit", 0)
    assert child.answer() is None
    assert engine.core.control.event(p.ENDED, child.number).ended == ("exit", 0)


def test_a_signal_over_a_session_reaches_its_own_sandbox_and_no_other(make):
    one, other = make(), make()
    assert (one.answer().kind, other.answer().kind) == (p.OK, p.OK)

    def signal(number):
        return frames.u64(p.TAG_SANDBOX, number) + frames.u32(p.TAG_COMMAND, 1) + frames.u32(p.TAG_SIGNAL, 9)

    one.session.send(p.SIGNAL, signal(other.number))
    assert one.answer().error[0] == "unknown_sandbox"
    one.session.send(p.SIGNAL, signal(one.number))
    assert one.answer().kind == p.OK
    assert one.answer().ended == ("signal", 9)
    assert other.ask("") == "2"


@pytest.mark.parametrize("kind", [p.HELLO, p.RUN, p.CREATE, p.CLAIM, p.SNAPSHOT, p.STATUS, p.SHUTDOWN, 99])
def test_a_session_carries_nothing_but_its_own_end_and_signals(make, kind):
    child = make()
    assert child.answer().kind == p.OK
    child.session.send(kind)
    code, *_, field = child.answer().error
    assert (code, field) == ("malformed", "kind")
    assert child.ask("") == "2"


def test_what_is_no_fork_is_refused_over_the_session_which_ends_then(engine, lane, snapshot):
    fresh = _payloads.plan(next(NUMBERS))
    gone = plan_of(4321, next(NUMBERS))
    for payload, code, field in (
        (fresh, "malformed", "snapshot"),
        (gone, "unknown_snapshot", ""),
        (b"\1", "malformed", "payload"),
    ):
        child = Child(lane, p.CREATE, payload)
        error = child.answer().error
        assert (error[0], error[3]) == (code, field)
        assert child.answer() is None
        child.close()
    assert len(engine.core.control.listing()) == len(engine.guests)


@pytest.mark.parametrize("held", [True, False], ids=["held", "not-held"])
def test_a_detached_fork_outlives_its_session_once_core_holds_its_streams(engine, lane, snapshot, held):
    number, control = next(NUMBERS), engine.core.control
    child = Child(lane, p.CREATE, plan_of(snapshot.number, number, owned=0))
    assert child.answer().kind == p.OK
    if held:
        child.session.send(p.HOLD, b"", child.streams)
    child.session.close()
    if held:
        assert control.event(p.LET_GO, number)
        assert number in control.listing()
        control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, number))
    assert control.event(p.ENDED, number).ended[0] == "killed"
    child.close()


def test_a_step_that_fails_is_told_over_the_session(make):
    child = make(fault=p.STEP_PIVOT_ROOT)
    assert child.answer().error[1] == "pivot_root"
    assert child.answer() is None


def test_a_request_without_a_session_is_refused_over_the_lane(lane, snapshot):
    code, *_, field = lane.ask(p.CREATE, plan_of(snapshot.number, next(NUMBERS))).error
    assert (code, field) == ("malformed", "session")


def test_the_end_of_the_control_connection_ends_every_session(victims_dir):
    from system.core import _core
    from system.engine._engine import start_engine

    engine = start_engine(victims_dir, options=_core.Options(pool=2, listen=True))
    try:
        source = engine.start(COUNTER)
        source.ready()
        snapshot = engine.snapshot(source)
        lane = engine.core.lane()
        child = Child(lane, p.CREATE, plan_of(snapshot.number, next(NUMBERS)))
        assert child.answer().kind == p.OK
        engine.core.control.close()
        assert child.answer() is None
        assert lane.receive() is None
        child.close()
        lane.close()
        source.close()
        engine.core.control = engine.core.connect()
        engine.core.control.hello()
        until(lambda: not engine.core.control.listing(), "nothing is left")
        assert not [one for one in engine.core.control.events if one.kind == p.CREATED]
        engine.core.shut_down()
    finally:
        engine.core.discard()


def test_the_daemon_hears_of_a_fork_unasked_and_says_what_somebody_waits_for(engine, make):
    control = engine.core.control
    for awaited in (p.AWAIT_NOTHING, p.AWAIT_SANDBOXES, p.AWAIT_EVERYTHING, p.AWAIT_NOTHING):
        control.ok(p.AWAIT_EVENTS, frames.u32(p.TAG_FLAGS, awaited))
        child = make()
        assert child.answer().kind == p.OK
        control.event(p.CREATED, child.number)
        child.close()
        control.event(p.ENDED, child.number)
    assert control.ask(p.AWAIT_EVENTS, frames.u32(p.TAG_FLAGS, 3)).error[3] == "flags"


# --- what was forked ahead ---------------------------------------------------------------------------------


def offer(engine, snapshot):
    """A fork of the daemon's, offered; its number."""
    guest = snapshot.fork()
    payload = frames.u64(p.TAG_SANDBOX, guest.sandbox)
    engine.core.control.ok(p.OFFER, payload, [guest.stdin, guest.stdout, guest.stderr])
    return guest


def claim(lane, snapshot, record=b"mine"):
    payload = frames.u32(p.TAG_SNAPSHOT, snapshot.number) + frames.raw(p.TAG_RECORD, record)
    return Child(lane, p.CLAIM, payload, streams=False)


def test_what_is_offered_is_claimed_once_with_its_streams_and_is_its_claimers_from_then_on(
    engine, lane, snapshot
):
    offered = [offer(engine, snapshot) for _ in range(2)]
    claimed = [claim(lane, snapshot) for _ in range(3)]
    for one, guest in zip(claimed[:2], offered, strict=True):
        answer = one.answer()
        assert (answer.kind, answer.found.u64(p.TAG_SANDBOX)) == (p.OK, guest.sandbox)
        one.streams = list(answer.fds)
        assert one.ask("") == "2"
        assert created(engine, guest.sandbox).found[p.TAG_RECORD] == b"mine"
    assert claimed[2].answer().error[0] == "none_ready"
    for one, guest in zip(claimed, offered, strict=False):
        one.session.close()
        assert engine.core.control.event(p.ENDED, guest.sandbox).ended[0] == "killed"
    for one in claimed:
        one.close()


def test_what_was_claimed_is_not_withdrawn_and_what_was_withdrawn_is_not_claimed(engine, lane, snapshot):
    first, second = offer(engine, snapshot), offer(engine, snapshot)
    one = claim(lane, snapshot)
    answer = one.answer()
    one.streams = list(answer.fds)
    withdraw = [frames.u64(p.TAG_SANDBOX, guest.sandbox) for guest in (first, second)]
    assert engine.core.control.ask(p.WITHDRAW, withdraw[0]).error[0] == "unknown_sandbox"
    engine.core.control.ok(p.WITHDRAW, withdraw[1])
    late = claim(lane, snapshot)
    assert late.answer().error[0] == "none_ready"
    late.close()
    engine.core.control.event(p.ENDED, second.sandbox)
    assert one.ask("") == "2"
    one.close()
    engine.core.control.event(p.ENDED, first.sandbox)


def test_the_daemon_claims_for_those_who_have_no_lane(engine, snapshot):
    guest = offer(engine, snapshot)
    answer = engine.core.control.ok(p.CLAIM, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    assert answer.found.u64(p.TAG_SANDBOX) == guest.sandbox
    assert len(answer.fds) == 3
    for number in answer.fds:
        os.close(number)
    assert guest.ask("") == "2"
    again = engine.core.control.ask(p.CLAIM, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    assert again.error[0] == "none_ready"


def test_what_is_no_offer_is_refused(engine, snapshot):
    guest, fresh = snapshot.fork(), engine.start(COUNTER)
    streams = [guest.stdin, guest.stdout, guest.stderr]
    for sandbox, fds, code in (
        (guest.sandbox, streams[:2], "malformed"),
        (fresh.sandbox, streams, "unknown_sandbox"),
        (4321, streams, "unknown_sandbox"),
    ):
        payload = frames.u64(p.TAG_SANDBOX, sandbox)
        assert engine.core.control.ask(p.OFFER, payload, fds).error[0] == code
    engine.core.control.ok(p.OFFER, frames.u64(p.TAG_SANDBOX, guest.sandbox), streams)
    again = engine.core.control.ask(p.OFFER, frames.u64(p.TAG_SANDBOX, guest.sandbox), streams)
    assert again.error[0] == "malformed"


# --- live forks --------------------------------------------------------------------------------------------


def take(lane, sandbox):
    return Child(lane, p.SNAPSHOT, frames.u64(p.TAG_SANDBOX, sandbox), streams=False)


def test_a_snapshot_over_a_lane_lives_as_long_as_its_session_and_its_forks_longer(engine, lane):
    source = engine.start(COUNTER)
    source.ready()
    assert source.ask("") == "1"
    taken = take(lane, source.sandbox)
    number = taken.answer().found.u32(p.TAG_SNAPSHOT)
    assert number >= 1 << 31
    child = Child(lane, p.CREATE, plan_of(number, next(NUMBERS)))
    assert child.answer().kind == p.OK
    taken.close()
    gone = frames.u32(p.TAG_SNAPSHOT, number)
    until(lambda: engine.core.control.ask(p.DROP_SNAPSHOT, gone).kind == p.ERROR, "the snapshot is gone")
    assert (child.ask(""), source.ask("")) == ("2", "2")
    child.close()


def test_a_snapshot_that_is_given_up_while_it_is_taken_leaves_the_source_as_it_was(engine, lane):
    source = engine.start(COUNTER)
    source.ready()
    for _ in range(5):
        take(lane, source.sandbox).close()
    assert source.ask("") == "1"

    def taken():
        one = take(lane, source.sandbox)
        kind = one.answer().kind
        one.close()
        return kind == p.OK

    until(taken, "a snapshot when none is being taken any more")


def test_what_cannot_be_taken_is_refused_over_its_session(engine, lane):
    one = take(lane, 4321)
    assert one.answer().error[0] == "unknown_sandbox"
    assert one.answer() is None
    one.close()
    source = engine.start(COUNTER)
    source.ready()
    payload = frames.u64(p.TAG_SANDBOX, source.sandbox) + frames.u32(p.TAG_SNAPSHOT, 5)
    chosen = Child(lane, p.SNAPSHOT, payload, streams=False)
    assert chosen.answer().error[3] == "snapshot"
    chosen.close()
