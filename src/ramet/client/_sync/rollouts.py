# Generated from _async/rollouts.py by scripts/unasync.py. Do not edit.
"""Rollouts: one state, many attempts at once, and the best of them kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from ramet.client._backends._sync import Task, at_once
from ramet.client._streams import check_output
from ramet.errors import InvalidRequest
from ramet.models.files import Change
from ramet.models.rollouts import Attempt, Judge, OnError

if TYPE_CHECKING:
    from ramet.models.forks import PerChild

T = TypeVar("T")


@runtime_checkable
class SupportsFork(Protocol):
    """What `rollouts` asks of a sandbox, whatever isolates it and wherever it is."""

    @property
    def id(self) -> str:
        """Its id."""

    def fork(
        self,
        n: int,
        *,
        env: PerChild[Mapping[str, str] | None] = None,
        seed: PerChild[int | None] = None,
        limits: PerChild[Mapping[str, Any] | None] = None,
        metadata: PerChild[Mapping[str, str] | None] = None,
        timeout: float | None = None,
    ) -> Sequence[Self]:
        """`n` children that go on where this one stands, or an exception and none."""

    def commit_to(self, other: Self, /) -> tuple[Change, ...]:
        """Do to the files of `other` what was done to this one's since it was forked."""

    def ask_end(self) -> None:
        """Have it ended, without waiting."""

    def let_go(self) -> None:
        """Close what this process has of it, without waiting: then it ends, if nobody else has it."""

    def close(self) -> None:
        """End it, and let go of it."""


if TYPE_CHECKING:
    from ramet.client._sync.sandbox import Sandbox

    def _satisfied(sandbox: Sandbox) -> SupportsFork:
        return sandbox


S = TypeVar("S", bound=SupportsFork)


@dataclasses.dataclass(frozen=True, slots=True)
class Rollouts(Generic[S, T]):
    """What came of all attempts, by their numbers.

    `sandbox` is the winner's, which lives until this is left as a context, or `close` is called; `committed`
    what was taken from its files.
    """

    attempts: tuple[Attempt[T], ...]
    winner: Attempt[T] | None = None
    sandbox: S | None = None
    committed: tuple[Change, ...] = ()

    def close(self) -> None:
        """End the winner's sandbox, if there is one."""
        if self.sandbox is not None:
            self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rollouts(
    sandbox: S,
    n: int,
    fn: Task[S, T],
    *,
    first_success: bool | Callable[[T], object] = False,
    best: Callable[[T], float] | None = None,
    commit: bool = True,
    on_error: OnError = "raise",
    env: PerChild[Mapping[str, str] | None] = None,
    seed: PerChild[int | None] = None,
    limits: PerChild[Mapping[str, Any] | None] = None,
    metadata: PerChild[Mapping[str, str] | None] = None,
    timeout: float | None = None,
) -> Rollouts[S, T]:
    """Fork `sandbox` into `n`, call `fn` with each child at once, keep the winner, end the others.

    With `first_success` the first attempt that succeeds wins, and those that still run are given up: their
    sandboxes end, and what `fn` waits for in them with that. With `best` all run to their end, and the one
    with the highest score wins. With neither nobody wins: every child is ended, and all values are told.

    Args:
        sandbox: where all attempts begin. It goes on meanwhile.
        n: how many attempts, from 1 to 1000.
        fn: called with each child, in a task or thread of its own.
        first_success: true, or a function that says of a value whether it is a success. By itself a value is
            one when it is true, and the result of a command or of code when it is `ok`.
        best: a function that gives a value its score.
        commit: take over what the winner did to its files into `sandbox`.
        on_error: ``raise`` what `fn` raises, after every child was ended; with ``keep`` it is the `error` of
            its attempt, and the others go on.
        env: as for `fork`, for all children or one for each; so are the others.
        seed: makes what a child's kernel calls random repeat itself.
        limits: those that differ from the parent's.
        metadata: what to note of each child, and for `fn` to tell one from another by.
        timeout: seconds until a child is ended.

    Raises what `fork` raises, and what `fn` raises unless that is kept. Nothing is left then, nor after a
    cancellation.
    """
    check_output("utf-8", {"fn": fn})
    judge = Judge(first_success, best, on_error)
    if not isinstance(sandbox, SupportsFork):
        raise InvalidRequest.of("sandbox", f"{type(sandbox).__name__} cannot be forked")
    children = sandbox.fork(n, env=env, seed=seed, limits=limits, metadata=metadata, timeout=timeout)
    contest = _Contest(children, fn, judge, on_error)
    try:
        contest.run()
        attempts = contest.attempts()
        winner = judge.winner(attempts, contest.first)
        _end([one for number, one in enumerate(children) if winner is None or number != winner.number])
        if winner is None:
            return Rollouts(attempts)
        kept = children[winner.number]
        changes = kept.commit_to(sandbox) if commit else ()
        return Rollouts(attempts, winner, kept, changes)
    except BaseException:
        contest.give_up()
        raise


class _Contest(Generic[S, T]):
    """The attempts while they run."""

    def __init__(self, children: Sequence[S], fn: Task[S, T], judge: Judge[T], on_error: OnError) -> None:
        self._children = children
        self._fn = fn
        self._judge = judge
        self._on_error = on_error
        self._begun = time.monotonic()
        self._done: dict[int, Attempt[T]] = {}
        self._busy: set[int] = set()
        # Appended to by any thread; what came first counts.
        self._successes: list[int] = []
        self._errors: list[Exception] = []

    @property
    def first(self) -> int | None:
        """The first attempt that succeeded, where the others do not matter any more."""
        return self._successes[0] if self._successes else None

    def run(self) -> None:
        """Until every attempt has ended, or none matters any more. Raises what an attempt raised."""
        at_once(len(self._children), self._try, self._end_all)
        if self._errors:
            raise self._errors[0]

    def attempts(self) -> tuple[Attempt[T], ...]:
        """All of them."""
        numbers = range(len(self._children))
        return tuple([self._done.get(number) or self._ended(number, "given_up") for number in numbers])

    def give_up(self) -> None:
        """Have everything ended, and let go of what no attempt uses any more."""
        for number, child in enumerate(self._children):
            child.ask_end()
            if number not in self._busy:
                child.let_go()

    def _try(self, number: int) -> bool:
        """One attempt; true when nothing else matters any more."""
        self._busy.add(number)
        try:
            child = self._children[number]
            value = self._fn(child)
            attempt = self._judge.attempt(number, child.id, value, self._elapsed())
        except Exception as error:  # noqa: BLE001  the attempt's, or the caller's
            if self._over:
                return True
            if self._on_error == "raise":
                self._errors.append(error)
                self._end_all()
                return True
            attempt = self._ended(number, "error", error)
        finally:
            self._busy.discard(number)
        if self._over:
            return True
        self._done[number] = attempt
        if self._judge.to_first and attempt.outcome == "success":
            self._successes.append(number)
            self._end_all(but=self.first)
        return self._over

    @property
    def _over(self) -> bool:
        return bool(self._errors or self._successes)

    def _ended(self, number: int, outcome: Any, error: Exception | None = None) -> Attempt[T]:
        sandbox = self._children[number].id
        return Attempt(number, sandbox, outcome, error=error, duration_ms=self._elapsed())

    def _elapsed(self) -> float:
        return (time.monotonic() - self._begun) * 1e3

    def _end_all(self, but: int | None = None) -> None:
        # What waits in a thread for one of them hears of the end: it cannot be cancelled otherwise.
        for number, child in enumerate(self._children):
            if number != but:
                child.ask_end()


def _end(children: Sequence[SupportsFork]) -> None:
    """End them all; their ends overlap."""
    for child in children:
        child.ask_end()
    for child in children:
        child.close()
