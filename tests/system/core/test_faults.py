"""Every step of a run, made to fail on purpose: the error names it, nothing ran, nothing is left."""

import errno

import pytest

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core, _payloads

NAMES = {number: name for number, name in p.STEP_NAMES.items() if number}
START = [number for number in NAMES if number < p.STEP_ROOT_SKELETON]
DEFINE = [p.STEP_ROOT_SKELETON, p.STEP_ROOT_BIND, p.STEP_ROOT_LAYER]
BIRTH_AND_HAND_OUT = [number for number in NAMES if p.STEP_CLONE_INIT <= number <= p.STEP_NETWORK]
COMMAND = [number for number in NAMES if p.STEP_FORK_COMMAND <= number <= p.STEP_EXEC]


def named(steps: list[int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", steps, ids=[NAMES[step] for step in steps])


def test_every_step_of_a_run_is_in_one_of_the_lists():
    reached = {*START, *DEFINE, *BIRTH_AND_HAND_OUT, *COMMAND}
    assert {number for number in NAMES if number <= p.STEP_EXEC} == reached


@named(START)
def test_a_failing_step_of_the_start_is_told_and_ends_it(runtime_directory, step):
    before = _core.observe(runtime_directory)
    with pytest.raises(_core.StartFailed) as failed:
        _core.start(_core.Options(fault=step), define=False)
    assert failed.value.answer is not None
    assert failed.value.answer.error == ("isolation_failed", NAMES[step], errno.EIO, "")
    assert failed.value.exit_code == 111
    assert _ledger.drift(before, lambda: _core.observe(runtime_directory)) == []


@named(DEFINE)
def test_a_failing_step_of_a_root_leaves_no_part_of_it(shared, step):
    with _core.nothing_left(shared):
        answer = shared.define(9, more=_payloads.layer("/usr"), fault=step)
        assert answer.error == ("isolation_failed", NAMES[step], errno.EIO, "")
        assert shared.run(["true"], root=9).answer.error[0] == "unknown_root"
    assert shared.control.status().u32(p.TAG_ROOTS) == 1


@named(BIRTH_AND_HAND_OUT + COMMAND)
def test_a_failing_step_of_a_run_executes_nothing(shared, step):
    with _core.nothing_left(shared):
        result = shared.shell("echo executed; echo executed >&2", fault=step)
        assert result.answer.error == ("isolation_failed", NAMES[step], errno.EIO, "")
        assert (result.stdout, result.stderr) == (b"", b"")
        assert shared.control.listing() == {}
    assert shared.shell("echo executed").stdout == b"executed\n"


@named(BIRTH_AND_HAND_OUT)
def test_a_failing_step_of_a_create_leaves_no_sandbox(shared, step):
    with _core.nothing_left(shared):
        answer = shared.control.ask(p.CREATE, _payloads.plan(next(shared.sandboxes), fault=step))
        assert answer.error == ("isolation_failed", NAMES[step], errno.EIO, "")
        assert shared.control.listing() == {}
    assert not shared.control.events


@named(COMMAND)
def test_a_failing_step_of_a_spawn_leaves_the_sandbox_standing(shared, step):
    with _core.nothing_left(shared):
        sandbox = shared.create(fault=step)
        for _ in range(3):
            answer = shared.spawn(sandbox, ["/bin/sh", "-c", "echo > /home/user/executed"])
            assert answer.error == ("isolation_failed", NAMES[step], errno.EIO, "")
        assert shared.control.listing() == {sandbox: b""}
        assert not shared.guests("sh")
        assert shared.kill(sandbox).ended[0] == "killed"


def test_a_fault_is_one_requests_own(shared):
    requests = []
    for turn in range(20):
        fault = p.STEP_EXEC if turn % 2 else 0
        requests.append(shared.start_run(["/bin/sh", "-c", "echo ran"], fault=fault))
    for turn, running in enumerate(requests):
        result = shared.finish(running)
        assert (result.answer.kind, result.stdout) == ((p.ERROR, b"") if turn % 2 else (p.ENDED, b"ran\n"))


def test_a_root_that_fails_at_its_last_entry_leaves_no_part_of_it(shared):
    broken = _payloads.bind("/no/such/directory", "/usr")
    for _ in range(5):
        with _core.nothing_left(shared):
            code, step, number, _ = shared.define(9, more=broken).error
            assert (code, step, number) == ("isolation_failed", "root_bind", errno.ENOENT)
    payload = frames.u32(p.TAG_ROOT, 9)
    assert shared.control.ask(p.DROP_ROOT, payload).error[0] == "unknown_root"


def test_binds_that_cannot_be_attached_do_not_fill_the_store(starter):
    """A descriptor that is no mount passes every check but the last."""
    core = starter(pool=0)
    with open("/dev/null", "rb") as null:
        payload = (
            frames.u32(p.TAG_ROOT, 9) + _payloads.directory("/a") + _payloads.bind("", "/a", index=0, flags=0)
        )
        for _ in range(5000):
            answer = core.control.ask(p.DEFINE_ROOT, payload, [null.fileno()])
            assert answer.error[:3] == ("isolation_failed", "root_bind", errno.EINVAL)
    assert core.define(9).kind == p.OK
