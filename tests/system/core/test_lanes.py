"""Lanes: a client's own connection to core, for runs and nothing else."""

import os
import socket

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core._core import until


@pytest.fixture
def lane(core):
    lane = core.lane()
    yield lane
    lane.close()
    until(lambda: not core.control.status().u32(p.TAG_LANES), "no lane")


def test_a_run_over_a_lane_is_answered_there_and_nowhere_else(core, lane):
    running = core.start_run(["/bin/sh", "-c", "echo here; exit 3"], over=lane)
    result = core.finish(running, lane)
    assert (result.answer.exit_code, result.stdout) == (3, b"here\n")
    assert core.control.ok(p.LIST).found == {}
    assert not core.control.events


def test_requests_over_many_lanes_with_one_number_do_not_meet(core):
    lanes = [core.lane() for _ in range(8)]
    runs = [
        core.start_run(["/bin/sh", "-c", f"exit {number}"], over=lane) for number, lane in enumerate(lanes)
    ]
    assert len({running.request for running in runs}) == 1
    codes = [core.finish(running, lane).answer.exit_code for running, lane in zip(runs, lanes, strict=True)]
    assert codes == list(range(8))
    for lane in lanes:
        lane.close()


@pytest.mark.parametrize(
    "kind", [p.HELLO, p.KILL, p.LIST, p.STATUS, p.SHUTDOWN, p.LANE, p.OFFER, p.WITHDRAW, 99]
)
def test_a_lane_carries_nothing_but_runs_and_forks(core, lane, kind):
    code, *_, field = lane.ask(kind).error
    assert (code, field) == ("malformed", "kind")
    assert core.finish(core.start_run(["true"], over=lane), lane).answer.exit_code == 0


def test_a_refusal_comes_over_the_lane(core, lane):
    assert lane.ask(p.RUN, b"").error[0] == "malformed"
    running = core.start_run(["true"], over=lane, fault=p.STEP_PIVOT_ROOT)
    assert core.finish(running, lane).answer.error[1] == "pivot_root"


def test_the_end_of_a_lane_ends_what_runs_over_it(core):
    lane = core.lane()
    running = core.start_run(["sleep", "1000"], over=lane)
    until(lambda: bool(core.guests("sleep")), "a command that runs")
    lane.close()
    running.forget()
    core.settle()
    assert core.guests("sleep") == []


def test_the_end_of_the_daemon_ends_every_lane_and_what_runs_over_it(starter):
    listening = starter(listen=True)
    lane = listening.lane()
    running = listening.start_run(["sleep", "1000"], over=lane)
    until(lambda: bool(listening.guests("sleep")), "a command that runs")
    listening.control.close()
    assert lane.receive() is None
    running.forget()
    lane.close()
    listening.control = listening.connect()
    listening.control.hello()
    listening.settle()
    assert listening.guests("sleep") == []


def test_lanes_with_a_run_are_not_closed_with_the_idle_ones(core):
    idle, busy = core.lane(), core.lane()
    running = core.start_run(["sleep", "1000"], over=busy)
    until(lambda: bool(core.guests("sleep")), "a command that runs")
    assert core.control.ok(p.CLOSE_LANES).found.u32(p.TAG_LANES) == 1
    assert idle.receive() is None
    core.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, running.sandbox))
    assert core.finish(running, busy).answer.ended[0] == "killed"
    assert core.control.ok(p.CLOSE_LANES).found.u32(p.TAG_LANES) == 0
    assert busy.receive() is None
    for lane in (idle, busy):
        lane.close()


def test_what_is_no_lane_is_refused(core):
    reader, writer = os.pipe()
    stream, other = socket.socketpair()
    with stream, other:
        for fds in ([], [reader], [stream.fileno()], [reader, writer]):
            code, *_, field = core.control.ask(p.LANE, b"", fds).error
            assert (code, field) == ("malformed", "lane")
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert core.control.status().u32(p.TAG_LANES) == 0


def test_bytes_that_are_no_frame_are_refused_and_the_lane_serves_on(core, lane):
    lane.sock.send(b"nonsense")
    answer = lane.receive()
    assert answer is not None
    assert answer.error[0] == "malformed"
    assert core.finish(core.start_run(["true"], over=lane), lane).answer.exit_code == 0


def test_a_client_that_does_not_read_its_answers_loses_its_lane_and_nobody_else_notices(core):
    lane = core.lane()
    lane.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    lane.sock.settimeout(0)
    # More than its queues of answers and requests hold, by far.
    for _ in range(100_000):
        try:
            lane.send(p.KILL)
        except BlockingIOError:
            core.control.status()
        except (BrokenPipeError, ConnectionResetError):
            break
    else:
        pytest.fail("the lane was never lost")
    assert core.run(["true"]).answer.exit_code == 0
    lane.close()
