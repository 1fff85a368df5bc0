"""kill -9 of core at any moment: the kernel takes everything down with it."""

import os
import random
from collections.abc import Callable

import pytest

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core
from system.core._core import Core

SOAK_CYCLES = int(os.environ.get("RAMET_SOAK_CYCLES", "500"))


def idle(core: Core) -> None:
    """The pool is full."""


def running(core: Core) -> None:
    """Commands run, with processes of their own."""
    for _ in range(3):
        core.start_run(["/bin/sh", "-c", "setsid sleep 1000 & (sleep 1000 &); sleep 1000"]).forget()
    _core.until(lambda: len(core.guests("sleep")) == 9, "nine processes")


def standing(core: Core) -> None:
    """Sandboxes stand, with commands in them."""
    for owned in (True, False):
        core.spawn(core.create(owned=owned), ["sleep", "1000"])


def handing_out(core: Core) -> None:
    """More requests than the pool holds; nobody waits for their answers."""
    for turn in range(40):
        core.start_run(["sleep", "1000"], wall_s=5 if turn % 2 else 0).forget()


def ending(core: Core) -> None:
    """Everything was told to end just now."""
    standing(core)
    for sandbox in core.control.listing():
        core.control.send(p.KILL, frames.u64(p.TAG_SANDBOX, sandbox))


def abandoned(core: Core) -> None:
    """The daemon is gone, the grace runs."""
    standing(core)
    core.control.close()


MOMENTS: list[Callable[[Core], None]] = [idle, running, standing, handing_out, ending, abandoned]


def cycle(moment: Callable[[Core], None], before: _ledger.Record) -> None:
    """Start, get there, kill, count."""
    core = _core.start(_core.Options(listen=True))
    try:
        moment(core)
        os.kill(core.pid, 9)
        assert core.wait() == -9
        assert not core.reports()
    finally:
        core.discard()
    found = _ledger.drift(before, lambda: _core.observe(core.home))
    assert not found, f"{moment.__name__}: {'; '.join(found)}"


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_nothing_outlives_a_killed_core(moment, runtime_directory):
    cycle(moment, _ledger.settle(lambda: _core.observe(runtime_directory), quiet=0.05))


def test_a_hundred_killed_cores_leave_what_there_was(runtime_directory):
    before = _ledger.settle(lambda: _core.observe(runtime_directory), quiet=0.05)
    for turn in range(100):
        cycle(MOMENTS[turn % len(MOMENTS)], before)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_cores_killed_at_random_moments_leave_what_there_was(runtime_directory):
    before = _ledger.settle(lambda: _core.observe(runtime_directory), quiet=0.05)
    choice = random.Random(SOAK_CYCLES)
    for _ in range(SOAK_CYCLES):
        cycle(choice.choice(MOMENTS), before)


def test_the_end_of_an_init_ends_its_sandbox_alone(core):
    """As the host's out-of-memory killer would: from outside, where pid 1 is a process like any other."""
    other = core.create()
    running = core.start_run(["sleep", "1000"])
    _core.until(lambda: len(core.guests("sleep")) == 1, "the command")
    os.kill(core.guests("sleep")[0].parent, 9)
    assert core.finish(running).answer.ended[0] == "lost"
    assert list(core.control.listing()) == [other]
    assert core.run(["true"]).answer.exit_code == 0


def test_a_killed_pool_entry_is_replaced(core):
    for _ in range(5):
        core.settle()
        inits = {one.pid for one in core.guests("ramet-init")}
        for pid in inits:
            os.kill(pid, 9)

        def replaced(old: set[int] = inits) -> bool:
            new = {one.pid for one in core.guests("ramet-init")}
            return len(new) == core.options.pool and not new & old

        _core.until(replaced, "new entries")
        core.control.settle()
        assert core.run(["true"]).answer.exit_code == 0
