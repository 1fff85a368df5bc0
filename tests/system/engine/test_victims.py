"""Every victim that must come through: frozen and let go, forked five times, forked from a fork of a fork."""

import pytest

from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine, Victim

PROGRAMS = [
    "registers",
    "waits",
    "signals",
    "threads",
    "memory",
    "process",
    "descriptors",
    "channels",
    "terminals",
    "trees",
    "kindred",
    "stopped",
]
VICTIMS = [victim for program in PROGRAMS for victim in _engine.victims(program)]
BUSY = {"general", "x87", "sse", "avx", "avx512", "amx", "computing_threads", "churn", "detached_churn"}
"""They compute all the time: there is no moment at which all their threads wait."""


@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: f"{victim.program}-{victim.name}")
def test_a_victim_is_right_in_the_source_and_in_every_fork(engine: Engine, victim: Victim) -> None:
    source = engine.start(victim.argv)
    try:
        source.ready()
    except _engine.Missing as missing:
        pytest.skip(str(missing))
    asleep = victim.name not in BUSY
    siblings = 1 if victim.name == "large" else 5
    _engine.all_right(_engine.family(engine, source, siblings=siblings, asleep=asleep), asleep=asleep)


def test_memory_of_a_process_whose_personality_implies_execution_is_as_it_was(engine: Engine) -> None:
    """What the product's filter does not allow."""
    victim = next(victim for victim in VICTIMS if victim.name == "personality")
    source = engine.start(victim.argv, filter_id=_payloads.ALLOW_ALL)
    source.ready()
    _engine.all_right(_engine.family(engine, source))
