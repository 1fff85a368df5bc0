"""Entries come from one process, core's child, which may die or be slow as any other."""

import contextlib
import os
import signal
import time

import pytest

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames

MANY = 40  # more than are in the making at a time


@pytest.fixture
def bare(starter):
    """A core whose pool is too small for what is asked for."""
    return starter(pool=1)


def lives_beside(pid, core):
    """In core's own pid namespace: an init that was just cloned has the zygote's name for a moment."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{core.pid}/ns/pid")
    except OSError:  # it has ended
        return False


def zygotes(core):
    return [
        one.pid
        for one in _ledger.descendants(core.pid)
        if one.name == "ramet-zygote" and not one.ended and lives_beside(one.pid, core)
    ]


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_when_it_was_killed_another_takes_its_place(bare):
    for _ in range(5):
        bare.settle()
        (first,) = zygotes(bare)
        os.kill(first, signal.SIGKILL)
        assert [bare.run(["true"]).answer.exit_code for _ in range(3)] == [0, 0, 0]
        assert first not in zygotes(bare)


def test_who_waits_for_it_when_it_is_killed_gets_an_entry_from_the_next(bare):
    bare.settle()
    (pid,) = zygotes(bare)
    with stopped(pid):
        runs = [bare.start_run(["true"]) for _ in range(MANY)]
        bare.control.status()  # core has taken all of them
        os.kill(pid, signal.SIGKILL)
        assert [bare.finish(run).answer.exit_code for run in runs] == [0] * MANY
    bare.settle()


def test_where_it_is_killed_again_and_again_the_step_is_told_and_nothing_is_left(bare):
    bare.settle()
    runs = [bare.start_run(["true"]) for _ in range(MANY)]
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        for pid in zygotes(bare):
            os.kill(pid, signal.SIGKILL)
    answers = [bare.finish(run).answer for run in runs]
    failed = [one for one in answers if one.kind == p.ERROR]
    assert {one.error[1] for one in failed} <= {"clone_init"}, "some are made between two kills, perhaps all"
    assert all(one.exit_code == 0 for one in answers if one.kind != p.ERROR)
    assert bare.run(["true"]).answer.exit_code == 0
    bare.settle()


def test_what_was_not_made_yet_ends_at_its_deadline_and_when_it_is_killed(bare):
    bare.settle()
    (pid,) = zygotes(bare)
    with stopped(pid):
        bare.start_run(["true"]).forget()  # has the entry of the pool
        runs = [bare.start_run(["sleep", "1000"], wall_s=0.02) for _ in range(MANY)]
        assert [bare.finish(run).answer.ended[0] for run in runs] == ["timeout"] * MANY
        killed = bare.start_run(["sleep", "1000"])
        bare.control.ok(p.KILL, frames.u64(p.TAG_SANDBOX, killed.sandbox))
    assert bare.finish(killed).answer.ended[0] == "killed"
    bare.settle()
    assert bare.run(["true"]).answer.exit_code == 0
