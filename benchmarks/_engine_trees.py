"""Forks of several processes: how long they stand still, and how long it takes until all of a child run.

The first process has the memory; beside it stand a shell that waits for a line and a sleeping program, or
forks of the first, each with memory of its own. A child's first answer comes when all its processes run: none
runs before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks._engine import MIB, Clock, Failed, Guest, Place
from benchmarks._engine_latency import contest
from benchmarks._engine_settings import Outcome, Settings
from benchmarks._measure import Figure, Series, timed

SMALL_MS, LARGE_MS, RUNNING_MS = 5.0, 12.0, 25.0
LARGE_CHILDREN, LARGE_MIB = 7, 95


@dataclass(frozen=True)
class Case:
    """A tree, by the question that makes it; `mib` is what the first process has in the end."""

    name: str
    what: str
    mib: int
    beside: str
    pause_bound: float


def _cases(settings: Settings) -> list[Case]:
    small = settings.small
    each = LARGE_MIB // (LARGE_CHILDREN + 1) * settings.small // 30
    return [
        Case("small", f"Python of {small} MiB, shell, sleep", small, "start_beside()", SMALL_MS),
        Case(
            "large",
            f"{LARGE_CHILDREN + 1} Pythons, {each * LARGE_CHILDREN + small} MiB",
            small,
            f"fork_beside({LARGE_CHILDREN}, {each * MIB})",
            LARGE_MS,
        ),
    ]


def measure(settings: Settings, place: Place) -> Outcome:
    """Each tree, its first process by the general way and by the twin; the stem copies the others in both."""
    outcome = Outcome()
    for case in _cases(settings):
        with _sources(place, case) as (source, child):
            for guest, way in ((source, "general way"), (child, "parked twin")):
                pause = Series(f"pause, {case.what}, {way}", "ms")
                running = Series(f"call to all running, {case.what}, {way}", "ms")

                def fork(guest: Guest = guest, pause: Series = pause) -> float:
                    return _live(place, guest, pause)

                contest([(running, fork)], settings.rounds, Clock(settings.seconds), settings.settle_s)
                del pause.samples[: -len(running.samples)]  # those of the warm-up
                name = f"tree_{case.name}_{'general' if way == 'general way' else 'twin'}"
                note = f"{len(running.samples)} rounds"
                outcome.figures += [
                    Figure(f"pause_{name}", pause.name, "ms", pause.p50, case.pause_bound, note=note),
                    Figure(f"fork_{name}", running.name, "ms", running.p50, RUNNING_MS, note=note),
                ]
                outcome.series += [pause, running]
    return outcome


def _live(place: Place, guest: Guest, pause: Series) -> float:
    made: list[Guest] = []

    def call() -> None:
        snapshot = place.core.snapshot(guest)
        pause.samples.append(snapshot.pause_ms)
        child, answer = place.core.fork(snapshot, "all_beside()")
        made.append(child)
        place.core.drop(snapshot)
        if answer is not True:
            raise Failed(f"{pause.name}: a child lacks processes")

    took = timed(call)
    place.core.end(*made)
    return took


@contextlib.contextmanager
def _sources(place: Place, case: Case) -> Iterator[tuple[Guest, Guest]]:
    source = place.source()
    source.ask(f"grow({case.mib * MIB} - memory()['Rss'])")
    source.ask(case.beside)
    snapshot = place.core.snapshot(source)
    child, _ = place.core.fork(snapshot)
    try:
        yield source, child
    finally:
        place.core.end(child, source)
        place.core.drop(snapshot)
