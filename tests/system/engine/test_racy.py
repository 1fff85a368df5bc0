"""Victims that are never at rest: forked many times, each time somewhere else."""

import pytest

from system.engine import _engine
from system.engine._engine import Engine, Victim

RACY = [victim for victim in _engine.victims("racy") if victim.name != "exits"]
TURNS, SOAK_TURNS = 6, 100


def fork_often(engine: Engine, victim: Victim, turns: int) -> None:
    """By copy, by the twin of a fork, and by copy although there is a twin."""
    source = engine.start(victim.argv)
    source.ready()
    for turn in range(turns):
        snapshot = engine.snapshot(source)
        child = snapshot.fork(f"fork {turn}")
        second = engine.snapshot(child, twin=turn % 3 != 2)
        grandchild = second.fork(f"fork of fork {turn}")
        for guest in (child, grandchild):
            guest.go()
            assert guest.verdict() == "OK", guest.about
            guest.end()
        second.drop()
        snapshot.drop()
    source.go()
    assert source.verdict() == "OK"


@pytest.mark.parametrize("victim", RACY, ids=lambda victim: victim.name)
def test_a_victim_that_never_rests_is_right_in_every_fork(engine: Engine, victim: Victim) -> None:
    fork_often(engine, victim, TURNS)


@pytest.mark.slow
@pytest.mark.parametrize("victim", RACY, ids=lambda victim: victim.name)
def test_a_victim_that_never_rests_is_right_in_hundreds_of_forks(engine: Engine, victim: Victim) -> None:
    fork_often(engine, victim, SOAK_TURNS)
