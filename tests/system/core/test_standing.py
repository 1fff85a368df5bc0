"""CREATE, SPAWN, KILL, RECORD, LIST: sandboxes that stay."""

import errno
import os
import signal

import pytest

from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.runs import ENDED
from system.core import _core, _payloads


def record(sandbox: int, content: bytes) -> bytes:
    return frames.u64(p.TAG_SANDBOX, sandbox) + frames.raw(p.TAG_RECORD, content)


def test_commands_of_one_sandbox_share_its_files_and_processes(core):
    sandbox = core.create()
    reader, writer = os.pipe()
    core.spawn(sandbox, ["/bin/sh", "-c", "echo kept > file; exec sleep 1000"], number=1)
    _core.until(lambda: len(core.guests("sleep")) == 1, "the first command")
    core.spawn(
        sandbox,
        ["/bin/sh", "-c", "cat file; cat /proc/*/comm"],
        [writer],
        number=2,
        streams=(None, 0, 0),
    )
    os.close(writer)
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    with open(reader, "rb") as output:
        lines = output.read().splitlines()
    assert lines[0] == b"kept"
    assert {b"ramet-init", b"sleep"} <= set(lines)
    assert core.kill(sandbox).ended == ("killed", signal.SIGKILL)
    assert not core.guests("sleep")


def test_each_exit_is_an_event_that_names_its_command(core):
    sandbox = core.create()
    for number in (7, 8, 9):
        answer = core.spawn(sandbox, ["/bin/sh", "-c", f"exit {number}"], number=number)
        assert (answer.kind, answer.found.u32(p.TAG_COMMAND)) == (p.OK, number)
        assert answer.found.u64(p.TAG_SANDBOX) == sandbox
        assert answer.found.u32(p.TAG_PID) > 1
    exits = [core.control.event(p.EXITED, sandbox) for _ in range(3)]
    assert {one.found.u32(p.TAG_COMMAND): one.exit_code for one in exits} == {7: 7, 8: 8, 9: 9}


def test_a_command_that_ends_by_a_signal_is_told_by_its_wait_status(core):
    sandbox = core.create()
    core.spawn(sandbox, ["/bin/sh", "-c", "kill -SEGV $$"])
    status = core.control.event(p.EXITED, sandbox).found.u32(p.TAG_STATUS)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV


def test_a_program_that_does_not_exist_is_exit_127_and_the_sandbox_stands(core):
    sandbox = core.create()
    assert core.spawn(sandbox, ["no-such-program"]).kind == p.OK
    assert core.control.event(p.EXITED, sandbox).exit_code == 127
    assert core.spawn(sandbox, ["true"]).kind == p.OK
    assert core.control.event(p.EXITED, sandbox).exit_code == 0


def test_a_command_that_cannot_start_leaves_the_sandbox_standing(starter):
    core = starter(maps=_single_map())
    assert core.ready.found.u32(p.TAG_SINGLE_UID) == 1
    sandbox = core.create()
    for options in ({"uid": 5}, {"gid": 5}):
        answer = core.spawn(sandbox, ["true"], **options)
        assert answer.error == ("isolation_failed", "switch_user", errno.EINVAL, "")
    assert core.spawn(sandbox, ["true"], cwd="/missing").error[1] == "working_directory"
    assert core.control.listing() == {sandbox: b""}
    assert core.spawn(sandbox, ["true"]).kind == p.OK
    assert core.control.event(p.EXITED, sandbox).exit_code == 0


def _single_map() -> tuple[str, str]:
    if os.geteuid() == 0:
        return "0 1879048192 1", "0 1879048192 1"
    return f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1"


def test_an_orphaned_process_outlives_its_command_and_not_its_sandbox(core):
    sandbox = core.create()
    core.spawn(sandbox, ["/bin/sh", "-c", "setsid sleep 1000 &"])
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    _core.until(lambda: len(core.guests("sleep")) == 1, "the orphan")
    core.kill(sandbox)
    assert not core.guests("sleep")


def test_a_standing_sandbox_ends_at_its_wall_limit(core):
    sandbox = core.create(wall_s=0.2)
    core.spawn(sandbox, ["sleep", "1000"])
    ended = core.control.event(p.ENDED, sandbox)
    assert ended.ended[0] == "timeout"
    assert ended.found.u64(p.TAG_ELAPSED_NS) >= 200_000_000
    assert core.spawn(sandbox, ["true"]).error[0] == "unknown_sandbox"


def test_an_end_is_written_in_the_order_in_which_it_is_read_at_once(core):
    told = core.kill(core.create()).found
    written = b"".join([frames.raw(tag, value) for tag, value in told.items()])
    assert ENDED.as_written(written) == ENDED.of(told)


def test_a_create_that_times_out_before_it_stands_is_answered(core):
    """Its fault makes an entry of its own necessary, so that the deadline comes first."""
    payload = _payloads.plan(55, wall_s=1e-9, fault=p.STEP_NETWORK)
    answer = core.control.ask(p.CREATE, payload)
    assert answer.kind == p.ENDED
    assert answer.ended[0] == "timeout"
    assert answer.found.u64(p.TAG_SANDBOX) == 55


def test_limits_of_the_sandbox_hold_for_every_command(core):
    sandbox = core.create(rlimits=[(7, 33, 33)], processes=8)
    for number in (1, 2):
        answer = core.spawn(sandbox, ["/bin/sh", "-c", "[ $(ulimit -n) = 33 ]"], number=number)
        assert answer.kind == p.OK
        assert core.control.event(p.EXITED, sandbox).exit_code == 0
    core.spawn(sandbox, ["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done"])
    assert core.control.event(p.EXITED, sandbox).exit_code != 0


def test_an_end_takes_every_command_with_it(core):
    sandbox = core.create()
    for number in range(5):
        core.spawn(sandbox, ["sleep", "1000"], number=number)
    assert len(core.guests("sleep")) == 5
    ended = core.kill(sandbox)
    assert (ended.ended[0], ended.request) == ("killed", 0)
    assert not core.guests("sleep")
    assert core.control.ask(p.KILL, frames.u64(p.TAG_SANDBOX, sandbox)).error[0] == "unknown_sandbox"


def test_the_list_shows_every_sandbox_with_its_record(core):
    assert core.control.listing() == {}
    first = core.create(record=b"\0first\xff")
    second = core.create()
    assert core.control.listing() == {first: b"\0first\xff", second: b""}
    core.control.ok(p.RECORD, record(second, b"x" * p.RECORD_MAX))
    core.control.ok(p.RECORD, record(first, b""))
    assert core.control.listing() == {first: b"", second: b"x" * p.RECORD_MAX}
    core.kill(first)
    assert list(core.control.listing()) == [second]


def test_a_record_may_be_left_out_and_is_then_empty(core):
    sandbox = core.create(record=b"something")
    core.control.ok(p.RECORD, frames.u64(p.TAG_SANDBOX, sandbox))
    assert core.control.listing() == {sandbox: b""}


@pytest.mark.parametrize("kind", [p.KILL, p.RECORD, p.SPAWN], ids=["kill", "record", "spawn"])
def test_a_sandbox_that_does_not_exist_is_refused_by_code(core, kind):
    payload = frames.u64(p.TAG_SANDBOX, 4242)
    if kind == p.SPAWN:
        payload += _payloads.command(["true"], streams=(None, None, None))
    assert core.control.ask(kind, payload).error[0] == "unknown_sandbox"


def test_a_number_is_one_sandboxes_while_it_lives(core):
    sandbox = core.create()
    code, _, _, field = core.control.ask(p.CREATE, _payloads.plan(sandbox)).error
    assert (code, field) == ("malformed", "sandbox")
    core.kill(sandbox)
    core.control.ok(p.CREATE, _payloads.plan(sandbox))
    assert list(core.control.listing()) == [sandbox]


def test_a_run_is_no_standing_sandbox(core):
    running = core.start_run(["sleep", "1000"])
    _core.until(lambda: len(core.guests("sleep")) == 1, "the command")
    assert core.spawn(running.sandbox, ["true"]).error[0] == "unknown_sandbox"
    core.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, running.sandbox))
    assert core.finish(running).answer.ended == ("killed", signal.SIGKILL)


def test_the_pool_grows_and_shrinks_as_asked(core):
    core.control.ok(p.SET_POOL, frames.u32(p.TAG_POOL_SIZE, 6))
    core.control.settle()
    assert core.control.status().u32(p.TAG_POOL_READY) == 6
    code, _, _, field = core.control.ask(p.SET_POOL, frames.u32(p.TAG_POOL_SIZE, p.POOL_MAX + 1)).error
    assert (code, field) == ("malformed", "pool_size")
    core.control.ok(p.SET_POOL, frames.u32(p.TAG_POOL_SIZE, 0))
    for _ in range(10):
        assert core.run(["true"]).answer.exit_code == 0


def test_without_a_pool_everything_works_too(starter):
    core = starter(pool=0)
    assert core.run(["true"]).answer.exit_code == 0
    sandbox = core.create()
    assert core.spawn(sandbox, ["true"]).kind == p.OK
    assert core.control.event(p.EXITED, sandbox).exit_code == 0
    assert core.control.status().u32(p.TAG_POOL_READY) == 0


def test_more_runs_at_once_than_the_pool_holds_are_all_served(core):
    runs = [core.start_run(["/bin/sh", "-c", f"echo {turn}; exit {turn % 100}"]) for turn in range(60)]
    for turn, running in enumerate(runs):
        result = core.finish(running)
        assert (result.answer.exit_code, result.stdout) == (turn % 100, f"{turn}\n".encode())
