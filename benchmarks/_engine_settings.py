"""How much of the engine is measured, and what a measurement hands back."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks._measure import Figure, Series


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of everything; MiB and seconds. `small` and `large` stand for the promises' 30 MB and 2 GiB.

    `seconds` bounds each contest, whatever its number of rounds; `slow_seconds` those in which one round may
    take seconds.
    """

    rounds: int = 200
    seconds: float = 24.0
    slow_seconds: float = 7.0
    sizes: tuple[int, ...] = (5, 30, 100, 300, 1024, 2048)
    small: int = 30
    large: int = 2048
    files: int = 100
    file_bytes: int = 10_486
    sources: int = 4
    forks: int = 50
    window: int = 5
    chain: int = 50
    siblings: int = 200
    at_once: tuple[int, ...] = (1, 10, 100)
    at_once_passes: int = 12
    memory_passes: int = 3
    changed: int = 16
    pool: int = 8
    settle_s: float = 0.004
    numpy: bool = True


QUICK = Settings(
    rounds=40,
    seconds=5.0,
    slow_seconds=2.0,
    sizes=(5, 30, 300),
    large=300,
    sources=2,
    chain=20,
    siblings=60,
    at_once_passes=4,
    memory_passes=1,
)
TINY = Settings(
    rounds=2,
    seconds=2.0,
    slow_seconds=1.0,
    sizes=(5, 30),
    small=10,
    large=40,
    files=3,
    sources=1,
    forks=3,
    window=1,
    chain=3,
    siblings=4,
    at_once=(1, 3),
    at_once_passes=1,
    memory_passes=1,
    changed=1,
    pool=2,
    settle_s=0.001,
    numpy=False,
)
SCALES = {"full": Settings(), "quick": QUICK, "tiny": TINY}


@dataclass(frozen=True, slots=True)
class Point:
    """A median over the size of a process: for the picture."""

    line: str
    mib: float
    ms: float


@dataclass(slots=True)
class Outcome:
    """What one measurement found."""

    figures: list[Figure] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
