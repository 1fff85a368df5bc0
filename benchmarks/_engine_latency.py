"""From the call to the child's answer: from a stem, and live; beside `os.fork` of the same program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks._engine import MIB, Answering, Clock, EngineCore, Failed, Guest, Peer, Place, Snapshot
from benchmarks._engine_settings import Outcome, Point, Settings
from benchmarks._machine import available_kib
from benchmarks._measure import Action, Figure, Series, alternate, timed

PLAIN = "6 * 7"
NUMPY = "int(numpy.arange(1000).sum())"
SPAWN_MS, LIVE_5_MS, LIVE_30_MS, TWIN_30_MS, GROWTH = 1.1, 15.0, 45.0, 5.0, 3.0
KINDS = {
    "stem": "spawn from a stem",
    "general": "live fork, general way",
    "twin": "live fork, parked twin",
    "fork": "os.fork, no isolation",
}


def contest(contenders: list[tuple[Series, Action]], rounds: int, clock: Clock, settle_s: float) -> None:
    """As `alternate`, for as many rounds as the time allows; three at least."""
    alternate(contenders, 0, warm_up=min(2, rounds))
    done = 0
    while done < rounds and not (done >= 3 and clock.over):
        alternate(contenders, 1, warm_up=0, settle_s=settle_s)
        done += 1


def fork_once(peer: Answering, question: str) -> float:
    """Milliseconds from `os.fork` to the answer, as the parent sees it."""
    took, said = peer.ask(f"fork_once({question.encode()!r})")
    _check(said, peer, question)
    return float(took) / 1e6


def _check(said: bytes, process: Answering, question: str) -> None:
    if said.decode().strip() != str(process.ask(question)):
        raise Failed(f"{question}: {said!r}")


# --- a source and everything that is forked from it


@dataclass
class Family:
    """A source started by a command (general way), a child of it with a twin, the stem, and a peer."""

    core: EngineCore
    source: Guest
    stem: Snapshot
    child: Guest
    peer: Peer
    question: str
    ways: dict[str, list[bool]] = field(default_factory=dict)

    def spawn(self) -> float:
        """Milliseconds: a child of the stem."""
        child: list[Guest] = []
        took = timed(lambda: child.append(self.core.fork(self.stem, self.question)[0]))
        self.core.end(*child)
        return took

    def live(self, source: Guest, name: str) -> float:
        """Milliseconds: a snapshot of the running source and a child of it."""
        made: list[tuple[Snapshot, Guest]] = []

        def call() -> None:
            snapshot = self.core.snapshot(source)
            made.append((snapshot, self.core.fork(snapshot, self.question)[0]))

        took = timed(call)
        ((snapshot, child),) = made
        self.core.end(child)
        self.core.drop(snapshot)
        self.ways.setdefault(name, []).append(snapshot.by_twin)
        return took

    def close(self) -> None:
        """End all of it."""
        self.core.end(self.child, self.source)
        self.core.drop(self.stem)
        self.peer.close()


@contextlib.contextmanager
def family(
    place: Place,
    question: str,
    modules: tuple[str, ...] = (),
    *,
    mib: int = 0,
    huge: bool = False,
) -> Iterator[Family]:
    """A family whose members have `mib` MiB of anonymous memory, if they do not have more by themselves."""
    source, peer = place.source(*modules), place.peer(*modules)
    for process in (source, peer):
        process.ask(question)
        process.ask(f"grow({mib * MIB} - memory()['Anonymous']{', *HUGE' * huge})")
    stem = place.core.snapshot(source)
    child, _ = place.core.fork(stem, question)
    made = Family(place.core, source, stem, child, peer, question)
    try:
        yield made
    finally:
        made.close()


# --- spawn


def measure_spawn(settings: Settings, place: Place) -> Outcome:
    """The promise: numpy imported, one expression answered."""
    modules, question = (("numpy",), NUMPY) if settings.numpy else ((), PLAIN)
    what = "numpy imported" if settings.numpy else "bare Python"
    ours, floor = Series(f"{KINDS['stem']}, {what}", "ms"), Series(f"{KINDS['fork']}, {what}", "ms")
    live = Series(f"{KINDS['twin']}, {what}", "ms")
    with family(place, question, modules) as made:
        contenders: list[tuple[Series, Action]] = [
            (ours, made.spawn),
            (floor, lambda: fork_once(made.peer, question)),
            (live, lambda: made.live(made.child, "twin")),
        ]
        contest(contenders, settings.rounds, Clock(settings.seconds * 2), settings.settle_s)
    times = f"{ours.p50 / floor.p50:.2f} times os.fork"
    note = times if settings.numpy else f"{times}; without NumPy"
    figure = Figure(
        "spawn_p50",
        "spawn from a stem to the child's answer",
        "ms",
        ours.p50 if settings.numpy else None,
        SPAWN_MS,
        note=note,
    )
    return Outcome([figure], [ours, live, floor])


# --- by size


def measure_sizes(settings: Settings, place: Place) -> Outcome:
    """Spawn, live fork both ways and `os.fork`, by the memory of the source. All sizes are alive at once."""
    outcome = Outcome()
    found: dict[tuple[str, int], Series] = {}
    dirty: dict[int, float] = {}
    for mib in settings.sizes:
        if mib * 6 * 1024 > available_kib():
            continue
        with family(place, PLAIN, mib=mib) as made:
            dirty[mib] = int(made.source.ask("memory()['Anonymous']")) / MIB
            contenders = _contenders(made, mib, found)
            fast = [one for one in contenders if one[0] is not found["general", mib]]
            seconds = settings.seconds if mib <= settings.small else settings.slow_seconds
            contest(contenders, settings.rounds, Clock(seconds), settings.settle_s)
            done = len(found["stem", mib].samples)
            if done < settings.rounds:
                # Where the general way takes seconds, the rest is measured without it.
                contest(fast, settings.rounds - done, Clock(settings.slow_seconds), settings.settle_s)
            _note_ways(made, found["twin", mib], outcome)
        rss = dirty[mib]
        outcome.points += [Point(KINDS[kind], rss, found[kind, mib].p50) for kind in KINDS]
    outcome.series = list(found.values())
    outcome.figures += _size_figures(settings, found, dirty)
    return outcome


def _contenders(made: Family, mib: int, found: dict[tuple[str, int], Series]) -> list[tuple[Series, Action]]:
    actions: dict[str, Callable[[], float]] = {
        "stem": made.spawn,
        "general": lambda: made.live(made.source, "general"),
        "twin": lambda: made.live(made.child, "twin"),
        "fork": lambda: fork_once(made.peer, made.question),
    }
    contenders = []
    for kind, action in actions.items():
        found[kind, mib] = Series(f"{KINDS[kind]}, {mib} MiB", "ms")
        contenders.append((found[kind, mib], action))
    return contenders


def _note_ways(made: Family, twin: Series, outcome: Outcome) -> None:
    if any(made.ways.get("general", ())):
        raise Failed("the general way was to be measured, and core took the twin")
    missing = made.ways["twin"].count(False)
    if missing:
        outcome.figures.append(
            Figure("twin_lost", f"{twin.name}: forks that went the general way", "", missing, 0)
        )


def _size_figures(
    settings: Settings, found: dict[tuple[str, int], Series], dirty: dict[int, float]
) -> list[Figure]:
    def value(kind: str, mib: int) -> tuple[float | None, str]:
        series = found.get((kind, mib))
        if series is None:
            return None, "too little memory here" if mib in settings.sizes else "not among the sizes"
        times = series.p50 / found["fork", mib].p50
        return series.p50, f"{dirty[mib]:.1f} MiB, {times:.2f} times os.fork, {len(series.samples)} rounds"

    figures = []
    for name, kind, mib, bound in (
        ("live_general_5", "general", 5, LIVE_5_MS),
        ("live_general_30", "general", 30, LIVE_30_MS),
        ("live_twin_30", "twin", 30, TWIN_30_MS),
    ):
        number, note = value(kind, mib)
        figures.append(Figure(name, f"{KINDS[kind]}, {mib} MiB dirty", "ms", number, bound, note=note))
    return figures


def measure_growth(settings: Settings, place: Place) -> Outcome:
    """Spawn of a large source against a small one, round by round; ordinary memory and huge pages."""
    outcome = Outcome()
    small, large = settings.small, settings.large
    if large * 8 * 1024 > available_kib():
        note = "too little memory here"
        return Outcome([Figure("spawn_growth", "spawn of a large source", "x", None, GROWTH, note=note)])
    for huge, pages in ((False, "ordinary pages"), (True, "huge pages")):
        with (
            family(place, PLAIN, mib=small, huge=huge) as little,
            family(place, PLAIN, mib=large, huge=huge) as much,
        ):
            series = {
                "little": Series(f"{KINDS['stem']}, {small} MiB, {pages}", "ms"),
                "much": Series(f"{KINDS['stem']}, {large} MiB, {pages}", "ms"),
                "fork little": Series(f"{KINDS['fork']}, {small} MiB, {pages}", "ms"),
                "fork much": Series(f"{KINDS['fork']}, {large} MiB, {pages}", "ms"),
            }
            actions: tuple[Action, ...] = (
                little.spawn,
                much.spawn,
                partial(fork_once, little.peer, PLAIN),
                partial(fork_once, much.peer, PLAIN),
            )
            contenders = list(zip(series.values(), actions, strict=True))
            contest(contenders, settings.rounds, Clock(settings.seconds), settings.settle_s)
        pairs = zip(series["much"].samples, series["little"].samples, strict=True)
        times = median(one / other for one, other in pairs)
        beside = series["fork much"].p50 / series["fork little"].p50
        name = "spawn_growth_huge" if huge else "spawn_growth"
        what = f"spawn at {large} MiB against {small} MiB, {pages} in the source"
        note = f"os.fork: {beside:.1f} times"
        outcome.figures.append(Figure(name, what, "x", times, GROWTH, note=note))
        outcome.series += series.values()
    return outcome


# --- many at once


def measure_at_once(settings: Settings, place: Place) -> Outcome:
    """From the first call until the last of `count` children has answered."""
    outcome = Outcome()
    modules, question = (("numpy",), NUMPY) if settings.numpy else ((), PLAIN)
    with family(place, question, modules) as made:
        for count in settings.at_once:
            ours, floor = Series(f"{count} children at once", "ms"), Series(f"{count} by os.fork", "ms")
            contenders: list[tuple[Series, Action]] = [
                (ours, partial(_all_at_once, made, count)),
                (floor, partial(_fork_many, made, count)),
            ]
            passes = max(1, settings.at_once_passes * 4 // count if count < 10 else settings.at_once_passes)
            contest(contenders, passes, Clock(settings.seconds), max(settings.settle_s * 10, 0.01))
            outcome.series += [ours, floor]
    return outcome


def _all_at_once(made: Family, count: int) -> float:
    children: list[Guest] = []

    def call() -> None:
        begun = [made.core.begin_fork(made.stem, made.question) for _ in range(count)]
        children.extend(child for child, _ in begun)
        for child in children:
            child.hear()
        for _, request in begun:
            made.core.answer(request)

    took = timed(call)
    made.core.end(*children)
    return took


def _fork_many(made: Family, count: int) -> float:
    took, said = made.peer.ask(f"fork_many({count}, {made.question.encode()!r})")
    if said != count:
        raise Failed(f"{said} of {count} answered")
    return float(took) / 1e6
