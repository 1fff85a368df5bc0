"""How long a source stands still for a snapshot: as core counts, and as a thread of the source sees it.

The thread spins, looks at a clock and keeps the longest jump. What the machine does to it without any
snapshot is measured alike, in between.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks._engine import MIB, Clock, EngineCore, Failed, Guest, Place
from benchmarks._engine_latency import contest
from benchmarks._engine_settings import Outcome, Settings
from benchmarks._machine import available_kib
from benchmarks._measure import Figure, Series, spin

SMALL_MS, LARGE_MS, FILES_MS = 2.5, 6.0, 8.0
START_S = 0.002
QUIET_S = 0.004


@dataclass(frozen=True)
class Case:
    """A kind of source. `huge`: with huge pages where the source may have them."""

    name: str
    what: str
    mib: int
    bound: float
    huge: bool = False
    files: bool = False


def _cases(settings: Settings) -> list[Case]:
    small, large = settings.small, settings.large
    files = f"{settings.files} files, {settings.files * settings.file_bytes / MIB:.1f} MiB"
    return [
        Case("small", f"{small} MiB", small, SMALL_MS),
        Case("files", f"{small} MiB, {files}", small, FILES_MS, files=True),
        Case("large_huge", f"{large} MiB in huge pages", large, LARGE_MS, huge=True),
        Case("large", f"{large} MiB in ordinary pages", large, LARGE_MS),
    ]


def measure(settings: Settings, place: Place) -> Outcome:
    """Each kind of source, by the general way and by the twin."""
    outcome = Outcome()
    for case in _cases(settings):
        if case.mib * 6 * 1024 > available_kib():
            note = "too little memory here"
            figure = Figure(f"pause_{case.name}", f"pause, {case.what}", "ms", None, case.bound, note=note)
            outcome.figures.append(figure)
            continue
        seconds = settings.seconds if case.mib <= settings.small else settings.slow_seconds
        with _sources(place, case, settings) as (source, child):
            for guest, by_twin in ((source, False), (child, True)):
                pause = Pause(place.core, guest, case, by_twin=by_twin)
                contenders = [(pause.seen, pause.with_snapshot), (pause.quiet, pause.without)]
                contest(contenders, settings.rounds, Clock(seconds), settings.settle_s)
                figure, series = pause.found()
                outcome.figures.append(figure)
                outcome.series += series
    return outcome


@contextlib.contextmanager
def _sources(place: Place, case: Case, settings: Settings) -> Iterator[tuple[Guest, Guest]]:
    source = place.source()
    source.ask(f"grow({case.mib * MIB} - memory()['Rss']{', *HUGE' * case.huge})")
    snapshot = place.core.snapshot(source)
    child, _ = place.core.fork(snapshot)
    if case.files:
        for guest in (source, child):
            guest.ask(f"write_files({settings.files}, {settings.file_bytes})")
    try:
        yield source, child
    finally:
        place.core.end(child, source)
        place.core.drop(snapshot)


@dataclass
class Pause:
    """The pauses of one source."""

    core: EngineCore
    guest: Guest
    case: Case
    by_twin: bool = field(kw_only=True)
    told: Series = field(init=False)
    seen: Series = field(init=False)
    quiet: Series = field(init=False)

    def __post_init__(self) -> None:
        what = f"pause, {self.case.what}, {'parked twin' if self.by_twin else 'general way'}"
        self.told = Series(what, "ms")
        self.seen = Series(f"{what}, from inside", "ms")
        self.quiet = Series(f"{what}, gap without a snapshot", "ms")

    def with_snapshot(self) -> float:
        """The longest gap during a snapshot, in ms."""
        return self._gap(self._snapshot)

    def without(self) -> float:
        """The longest gap in a time as long as a snapshot's, in ms."""
        return self._gap(lambda: spin(QUIET_S))

    def _snapshot(self) -> None:
        snapshot = self.core.snapshot(self.guest)
        self.told.samples.append(snapshot.pause_ms)
        self.core.drop(snapshot)
        if snapshot.by_twin != self.by_twin:
            raise Failed(f"{self.told.name}: by twin: {snapshot.by_twin}")

    def _gap(self, action: Callable[[], None]) -> float:
        self.guest.ask("spin_start()")
        spin(START_S)
        start = time.monotonic_ns()
        action()
        end = time.monotonic_ns()
        gap = self.guest.ask(f"spin_stop({start}, {end})")
        if gap < 0:
            raise Failed("the thread did not spin all the time")
        return float(gap) / 1e6

    def found(self) -> tuple[Figure, list[Series]]:
        """The figure, and what it is from."""
        told, seen, quiet = self.told, self.seen, self.quiet
        del told.samples[: -len(seen.samples)]  # those of the warm-up
        note = f"from inside {seen.p50:.2f} ms, {quiet.p50:.2f} ms without a snapshot"
        note += f"; {len(told.samples)} rounds"
        name = f"pause_{self.case.name}_{'twin' if self.by_twin else 'general'}"
        return Figure(name, told.name, "ms", told.p50, self.case.bound, note=note), [told, seen, quiet]
