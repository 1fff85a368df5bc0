"""What came of rollouts: attempts from one state, side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from ramet.errors import InvalidRequest

T = TypeVar("T")

Outcome = Literal["success", "failure", "error", "given_up"]
"""`failure`: the value is no success; `error`: the function raised; `given_up`: another won before."""
OnError = Literal["raise", "keep"]


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """One child's part: `value` is what the function returned in it, `score` what `best` says of that.

    `sandbox` is its id, `number` its place among the children.
    """

    number: int
    sandbox: str
    outcome: Outcome
    value: T | None = None
    error: Exception | None = None
    score: float | None = None
    duration_ms: float = 0.0


class Judge(Generic[T]):
    """Says of each value whether it is a success, and of all together which one wins."""

    def __init__(
        self,
        first_success: bool | Callable[[T], object],  # noqa: FBT001  as the caller was given it
        best: Callable[[T], float] | None,
        on_error: OnError,
    ) -> None:
        """Raises InvalidRequest naming the argument at fault."""
        if first_success is not False and best is not None:
            raise InvalidRequest.of("best", "is for all attempts, and first_success ends them at the first")
        if not isinstance(first_success, bool) and not callable(first_success):
            raise InvalidRequest.of("first_success", "must be true, false, or a function of the value")
        if best is not None and not callable(best):
            raise InvalidRequest.of("best", "must be a function of the value that gives a number")
        if on_error not in {"raise", "keep"}:
            raise InvalidRequest.of("on_error", f"{on_error!r:.40} is neither 'raise' nor 'keep'")
        self.to_first = first_success is not False
        self._succeeds: Callable[[T], object] = first_success if callable(first_success) else is_success
        self._best = best

    def attempt(self, number: int, sandbox: str, value: T, duration_ms: float) -> Attempt[T]:
        """The attempt that gave `value`. Raises what the caller's functions raise."""
        outcome: Outcome = "success" if self._succeeds(value) else "failure"
        score = None if self._best is None else float(self._best(value))
        return Attempt(number, sandbox, outcome, value, None, score, duration_ms)

    def winner(self, attempts: tuple[Attempt[T], ...], first: int | None) -> Attempt[T] | None:
        """The one that wins; of equal scores the first. None when nobody does, or there is no contest."""
        if self.to_first:
            return None if first is None else attempts[first]
        # NaN is neither more nor less than another score.
        scored = [one for one in attempts if one.score is not None and not math.isnan(one.score)]
        if self._best is None or not scored:
            return None
        return max(scored, key=lambda one: (one.score, -one.number))


def is_success(value: Any) -> bool:
    """What is true is a success; of the result of a command or of code, what is `ok`."""
    return bool(getattr(value, "ok", value))
