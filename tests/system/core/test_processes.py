"""What commands start: orphans, zombies, exit codes, and the end of all of them."""

import os
import signal

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core, _payloads

MANY = 1000
STATES = "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1"


def states(core: _core.Core, sandbox: int) -> list[bytes]:
    """The state letters of all processes of a sandbox."""
    output = os.memfd_create("states")
    core.spawn(sandbox, ["/bin/sh", "-c", STATES], [output], number=1, streams=(None, 0, None))
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    found = os.pread(output, 1 << 20, 0).split()
    os.close(output)
    return found


def test_a_thousand_orphans_leave_no_zombie(core):
    sandbox = core.create()
    line = f"i=0; while [ $i -lt {MANY} ]; do (true &); i=$((i+1)); done"
    core.spawn(sandbox, ["/bin/sh", "-c", line])
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    _core.until(lambda: b"Z" not in states(core, sandbox), "no zombie")
    assert len(states(core, sandbox)) < 10


def test_a_thousand_commands_at_once_exit_with_their_own_codes_while_orphans_are_reaped(core):
    """All wait for one pipe to close, and end together."""
    sandbox = core.create()
    gate, hold = os.pipe()
    requests = {}
    for number in range(MANY):
        if len(requests) == 32:
            core.control.answer(requests.pop(min(requests)))
        line = f"read line; (true &); exit {number % 256}"
        payload = frames.u64(p.TAG_SANDBOX, sandbox) + _payloads.command(
            ["/bin/sh", "-c", line], number=number, streams=(0, None, None)
        )
        requests[number] = core.control.send(p.SPAWN, payload, [gate])
    for request in requests.values():
        assert core.control.answer(request).kind == p.OK
    os.close(gate)
    os.close(hold)
    codes = {}
    for _ in range(MANY):
        event = core.control.event(p.EXITED, sandbox)
        codes[event.found.u32(p.TAG_COMMAND)] = event.exit_code
    assert codes == {number: number % 256 for number in range(MANY)}
    _core.until(lambda: b"Z" not in states(core, sandbox), "no zombie")


def test_hundreds_of_runs_at_once_exit_with_their_own_codes(core):
    runs = [core.start_run(["/bin/sh", "-c", f"(true &); exit {turn}"]) for turn in range(256)]
    assert [core.finish(running).answer.exit_code for running in runs] == list(range(256))


@pytest.mark.parametrize("line", ["(sleep 1000 &); exit 5", "setsid sleep 1000 & exit 5"])
def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_end(core, line):
    reader, writer = os.pipe()
    payload = _payloads.plan(next(core.sandboxes)) + _payloads.command(
        ["/bin/sh", "-c", line], streams=(None, 0, 0)
    )
    request = core.control.send(p.RUN, payload, [writer])
    os.close(writer)
    assert core.control.answer(request).exit_code == 5
    # The result was told when nobody of the guest was left: so the pipe is at its end.
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""
    os.close(reader)


TREE = """
setsid sleep 1000 &
(setsid sleep 1000 &)
(sh -c 'kill -STOP $$; sleep 1000' &)
sh -c 'trap "" TERM INT HUP; sleep 1000' &
sleep 1000
"""


def test_at_the_deadline_every_process_dies_however_it_hides(core):
    running = core.start_run(["/bin/sh", "-c", TREE], wall_s=0.4)
    _core.until(lambda: len(core.guests("sleep")) == 4, "the tree")
    answer = core.finish(running).answer
    assert answer.ended == ("timeout", signal.SIGKILL)
    assert answer.found.u64(p.TAG_ELAPSED_NS) >= 400_000_000
    assert answer.found.u32(p.TAG_LINGERING) == 0
    assert not core.guests("sleep")
    assert not core.guests("sh")


def test_when_its_command_ends_a_run_leaves_no_process(core):
    running = core.start_run(["/bin/sh", "-c", TREE.replace("sleep 1000\n", "sleep 0.3\n") + "exit 4"])
    _core.until(lambda: len(core.guests("sleep")) >= 4, "the tree")
    assert core.finish(running).answer.exit_code == 4
    assert not core.guests("sleep")
    assert not core.guests("sh")


def test_a_command_that_forks_without_end_dies_at_the_deadline(core):
    line = "f() { f | f & }; f; wait; sleep 1000"
    answer = core.shell(line, wall_s=0.5, processes=60).answer
    assert answer.ended[0] == "timeout"
    assert not core.guests("sh")


def test_a_busy_loop_is_told_with_its_processor_time(core):
    answer = core.shell("while :; do :; done", wall_s=0.3).answer
    assert answer.ended == ("timeout", signal.SIGKILL)
    assert answer.found.u64(p.TAG_ELAPSED_NS) >= 300_000_000


def test_its_own_sigkill_is_not_the_deadline(core):
    answer = core.shell("kill -KILL $$", wall_s=10).answer
    assert answer.ended == ("signal", signal.SIGKILL)


def test_guests_cannot_end_their_init(core):
    """The kernel drops signals from inside to pid 1; without the filter's help."""
    result = core.shell("for s in KILL STOP TERM INT HUP SEGV; do kill -$s 1 || exit 9; done; echo alive")
    assert result.stdout == b"alive\n"
    assert result.answer.exit_code == 0


def test_a_guest_that_kills_all_it_can_ends_only_itself(core):
    assert core.shell("sleep 1000 & kill -KILL -1; exit 3").answer.exit_code == 3
    assert core.run(["true"]).answer.exit_code == 0
