"""What the files of a source add to the time that it stands still, and what a further fork of it stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks._engine import MIB, Clock, EngineCore, Guest, Place
from benchmarks._engine_latency import contest
from benchmarks._engine_settings import Outcome, Settings
from benchmarks._machine import available_kib
from benchmarks._measure import Figure, Series

STORED = 1.5
CHANGED = 10
"""Files that are written again before each snapshot."""


@dataclass(frozen=True)
class Case:
    """So many files, and so much in them together."""

    name: str
    files: int
    mib: int
    bound: float

    @property
    def what(self) -> str:
        """For people."""
        return f"{self.files} files, {self.mib} MiB"


def _cases(settings: Settings) -> list[Case]:
    return [
        Case("few", settings.files, max(1, settings.files * settings.file_bytes // MIB), 2.0),
        Case("some", settings.files * 20, settings.small * 5 // 3, 8.0),
        Case("many", settings.files * 200, settings.large * 250 // 1024, 40.0),
    ]


def measure(settings: Settings, place: Place) -> Outcome:
    """Sources that differ in nothing but their files, snapshot in turn."""
    outcome = Outcome()
    fits = [case for case in _cases(settings) if case.mib * 4 * 1024 < available_kib()]
    with _pauses(place, [None, *fits]) as pauses:
        first = {one.name: one.take() for one in pauses}
        contenders = [(one.told, one.take) for one in pauses]
        contest(contenders, settings.rounds, Clock(settings.seconds), settings.settle_s)
        bare = pauses[0]
        for case, one in zip(fits, pauses[1:], strict=True):
            added = one.told.p50 - bare.told.p50
            note = (
                f"{one.told.p50:.2f} ms, without files {bare.told.p50:.2f}; the first {first[one.name]:.2f}"
            )
            note += f"; {CHANGED} files changed before each; asked to ready {one.whole.p50:.1f} ms"
            name, what = f"pause_of_{case.name}_files", f"added to the pause by {case.what}"
            outcome.figures.append(Figure(name, what, "ms", added, case.bound, note=note))
            if case.name != "few":  # of so little all is copied each time
                name, what = f"stored_of_{case.name}_files", f"a further snapshot stores, of {case.what}"
                note = "of what was changed before it"
                outcome.figures.append(Figure(name, what, "x", one.stored.p50, STORED, note=note))
        outcome.series += [series for one in pauses for series in (one.told, one.whole)]
    return outcome


@dataclass
class _Pause:
    """One source, snapshot again and again."""

    core: EngineCore
    guest: Guest
    name: str
    size: int
    told: Series = field(init=False)
    whole: Series = field(init=False)
    stored: Series = field(init=False)

    def __post_init__(self) -> None:
        self.told = Series(f"pause, {self.name}", "ms")
        self.whole = Series(f"from the request to a snapshot that can be forked, {self.name}", "ms")
        self.stored = Series(f"stored of what was changed, {self.name}", "x")

    def take(self) -> float:
        """The pause, in ms."""
        if self.size:
            self.guest.ask(f"write_files({CHANGED}, {self.size})")
        snapshot = self.core.snapshot(self.guest)
        self.core.drop(snapshot)
        self.whole.samples.append(snapshot.capture_ms + snapshot.stem_ms)
        if self.size:
            self.stored.samples.append(snapshot.file_bytes / (CHANGED * self.size))
        return snapshot.pause_ms


@contextlib.contextmanager
def _pauses(place: Place, cases: list[Case | None]) -> Iterator[list[_Pause]]:
    guests: list[Guest] = []
    pauses = []
    try:
        for case in cases:
            guests.append(place.source())
            size = 0 if case is None else case.mib * MIB // case.files
            if case is not None:
                guests[-1].ask(f"write_files({case.files}, {size})")
            pauses.append(_Pause(place.core, guests[-1], "no files" if case is None else case.what, size))
        yield pauses
    finally:
        place.core.end(*guests)
