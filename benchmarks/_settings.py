"""How much is measured, and what a measurement hands back."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks._measure import Figure, Series


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of everything. The defaults are those of the promises; smaller ones only show that it works."""

    true_rounds: int = 300
    python_rounds: int = 60
    runs: int = 2000
    at_once: int = 100
    peer_runs: int = 500
    passes: int = 3
    limit_s: float = 0.5
    limit_rounds: int = 100
    cores: int = 25
    pool: int = 8
    memory_passes: int = 3
    import_rounds: int = 60
    code_rounds: int = 200
    alive: int = 1000
    evaluations: int = 5000
    file_mib: int = 1024
    files: int = 1000
    idle: int = 200
    idle_s: float = 10.0
    settle_s: float = 0.0


QUICK = Settings(
    true_rounds=60,
    python_rounds=15,
    runs=500,
    peer_runs=200,
    passes=1,
    limit_rounds=10,
    memory_passes=1,
    import_rounds=20,
    code_rounds=40,
    alive=200,
    evaluations=300,
    files=200,
    idle_s=5.0,
)
TINY = Settings(
    true_rounds=3,
    python_rounds=2,
    runs=24,
    at_once=8,
    peer_runs=8,
    passes=1,
    limit_s=0.2,
    limit_rounds=2,
    cores=2,
    pool=2,
    memory_passes=1,
    import_rounds=2,
    code_rounds=2,
    alive=5,
    evaluations=3,
    file_mib=4,
    files=5,
    idle=5,
    idle_s=0.1,
)
SCALES = {"full": Settings(), "quick": QUICK, "tiny": TINY}


@dataclass(slots=True)
class Outcome:
    """What one measurement found."""

    figures: list[Figure] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
