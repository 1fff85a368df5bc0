"""Samples, what is said of them, and how two things are compared.

Machines are noisy and noise comes in waves, so whatever is compared is measured alternately (A B C A B C ...)
and divided pair by pair: a wave then hits both sides of a pair. Medians are judged, never means or minima.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Action = Callable[[], float]
"""Does the thing once; returns what it took."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all values do not exceed; no interpolation."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Series:
    """Samples of one thing, in the order in which they were taken."""

    name: str
    unit: str
    samples: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        """The median."""
        return median(self.samples)

    def to_json(self, *, raw: bool = False) -> dict[str, Any]:
        """Count, extremes and percentiles; with `raw` the samples too."""
        said: dict[str, Any] = {"unit": self.unit, "n": len(self.samples)}
        if self.samples:
            said |= {
                "min": _short(min(self.samples)),
                "p10": _short(percentile(self.samples, 0.10)),
                "p50": _short(self.p50),
                "p90": _short(percentile(self.samples, 0.90)),
                "p99": _short(percentile(self.samples, 0.99)),
                "max": _short(max(self.samples)),
            }
        return said | ({"samples": [_short(sample) for sample in self.samples]} if raw else {})


@dataclass(slots=True)
class Figure:
    """One number with the bound that it must not cross.

    `value` is None where it could not be measured, `bound` where nothing was promised.
    """

    name: str
    what: str
    unit: str
    value: float | None
    bound: float | None
    at_least: bool = False
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the value is on the right side of the bound; None without one of them."""
        if self.value is None or self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def verdict(self) -> str:
        """In one word."""
        if self.reached is None:
            return "not measured" if self.value is None else "no promise"
        return "reached" if self.reached else "missed"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "value": None if self.value is None else _short(self.value),
            "bound": self.bound,
            "relation": ">=" if self.at_least else "<=",
            "verdict": self.verdict,
            **({"note": self.note} if self.note else {}),
        }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def ratio(ours: Series, theirs: Series | None) -> float | None:
    """The median of ours divided by theirs, round by round; None where there is nothing to divide by."""
    if theirs is None or not theirs.samples:
        return None
    return median(one / other for one, other in zip(ours.samples, theirs.samples, strict=True))


def difference(whole: Series, part: Series) -> float:
    """The median of what one takes more than the other, round by round."""
    return median(one - other for one, other in zip(whole.samples, part.samples, strict=True))


def alternate(
    contenders: Sequence[tuple[Series, Action]], rounds: int, *, warm_up: int = 3, settle_s: float = 0.0
) -> None:
    """Take `rounds` samples of each, one after the other in every round.

    `settle_s`: before each sample the processor is kept busy for so long. What the previous one left behind
    (namespaces that the kernel takes apart, a pool that is refilled) is then over, and is on nobody's bill.
    To sleep instead would let a virtual processor halt, and measure how long the host takes to wake it.
    """
    for _ in range(warm_up):
        for _, action in contenders:
            action()
    for _ in range(rounds):
        for series, action in contenders:
            spin(settle_s)
            series.samples.append(action())


def spin(seconds: float) -> None:
    """Do nothing, busily."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def timed(call: Callable[[], object]) -> float:
    """Milliseconds that `call` takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
