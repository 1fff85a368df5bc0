"""How exactly a time limit is kept, for a command that would never end."""

from __future__ import annotations

import ramet
from benchmarks._measure import Action, Figure, Series, alternate, percentile, timed
from benchmarks._peers import Bubblewrap, spawn_until
from benchmarks._settings import Outcome, Settings

LOOP = "while :; do :; done"


def measure(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """A busy loop under a limit: when every process of it was dead, and when the caller had the result."""
    limit = settings.limit_s
    ours = Series("busy loop under a limit, ramet", "ms")
    inside = Series("busy loop under a limit, ramet, as core counts", "ms")
    peer = Series("busy loop under a limit, bubblewrap and a kill", "ms")

    def run() -> None:
        result = ramet.run(LOOP, timeout=limit)
        if result.reason != "timeout":
            raise RuntimeError(f"{LOOP}: {result}")
        inside.samples.append(result.duration_ms)

    contenders: list[tuple[Series, Action]] = [(ours, lambda: timed(run))]
    if bubblewrap is not None:
        words = bubblewrap.plain(["/bin/sh", "-c", LOOP], die_with_parent=True)
        contenders.append((peer, lambda: spawn_until(words, limit)))
    alternate(contenders, settings.limit_rounds, warm_up=1)
    del inside.samples[:1]
    milliseconds = limit * 1e3
    what = f"limit of {milliseconds:g} ms: killed, and dead"
    figures = [
        Figure("limit_p50", f"{what}, p50", "ms", inside.p50, milliseconds + 1),
        Figure("limit_p99", f"{what}, p99", "ms", percentile(inside.samples, 0.99), milliseconds + 3),
        Figure("limit_min", f"{what}, never early", "ms", min(inside.samples), milliseconds, at_least=True),
        Figure("limit_return_p50", "  call to return, p50", "ms", ours.p50, None),
    ]
    return Outcome(figures, [series for series in (ours, inside, peer) if series.samples])
