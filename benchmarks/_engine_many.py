"""Many forks: of one source, of forks of forks, side by side; what an idle child and a snapshot cost."""

from __future__ import annotations

from functools import partial
from statistics import median

from benchmarks._engine import MIB, Failed, Guest, Place, Snapshot, rollup
from benchmarks._engine_latency import NUMPY, PLAIN
from benchmarks._engine_settings import Outcome, Settings
from benchmarks._measure import Figure, Series, spin, timed
from benchmarks._memory import settled_kib

LATER, CHILD_MIB, PRIVATE_MIB, STORED = 1.2, 2.0, 1.2, 1.5


# --- the fiftieth fork


def measure_fiftieth(settings: Settings, place: Place) -> Outcome:
    """Live forks of one source, all children and snapshots kept; the last ones against the first ones."""
    outcome = Outcome()
    last = settings.forks
    for way in ("general way", "parked twin"):
        first, late = Series(f"first {settings.window} forks, {way}", "ms"), Series("", "ms")
        late.name = f"forks {last - settings.window + 1} to {last}, {way}"
        for number in range(settings.sources + 1):
            took = _forks(place, settings, by_twin=way == "parked twin")
            if number:  # the first source warms up
                first.samples += took[: settings.window]
                late.samples += took[-settings.window :]
        name = f"fork_{last}_{'twin' if way == 'parked twin' else 'general'}"
        what = f"fork {last} of one source against the first, {way}"
        note = f"{settings.sources} sources, {settings.window} forks at each end; all children alive"
        outcome.figures.append(Figure(name, what, "x", late.p50 / first.p50, LATER, note=note))
        outcome.series += [first, late]
    return outcome


def _forks(place: Place, settings: Settings, *, by_twin: bool) -> list[float]:
    core = place.core
    source = place.source()
    source.ask(f"grow({settings.small * MIB} - memory()['Anonymous'])")
    kept: list[Guest] = [source]
    snapshots: list[Snapshot] = []
    if by_twin:
        snapshots.append(core.snapshot(source))
        source, _ = core.fork(snapshots[0])
        kept.append(source)
    source.ask("number = 0")
    took = []
    for number in range(settings.forks):
        source.ask(f"number = {number}")
        spin(settings.settle_s)
        took.append(timed(partial(_live, place, source, number, kept, snapshots)))
        if snapshots[-1].by_twin != by_twin:
            raise Failed(f"fork {number}: by twin: {snapshots[-1].by_twin}, not {by_twin}")
    core.end(*kept)
    core.drop(*snapshots)
    return took


def _live(place: Place, source: Guest, number: int, kept: list[Guest], snapshots: list[Snapshot]) -> None:
    snapshot = place.core.snapshot(source)
    snapshots.append(snapshot)
    child, said = place.core.fork(snapshot, "number")
    kept.append(child)
    if said != number:
        raise Failed(f"fork {number} says {said}")


# --- generations


def measure_chain(settings: Settings, place: Place) -> Outcome:
    """A fork of a fork of a fork; every generation adds one and stays."""
    core = place.core
    source = place.source()
    source.ask(f"grow({settings.small * MIB} - memory()['Anonymous'])")
    source.ask("number = 0")
    kept, snapshots = [source], []
    took = Series("fork of a fork", "ms")
    right = by_twin = 0
    for generation in range(1, settings.chain + 1):
        spin(settings.settle_s)

        def fork() -> None:
            snapshots.append(core.snapshot(kept[-1]))
            kept.append(core.fork(snapshots[-1])[0])

        took.samples.append(timed(fork))
        by_twin += snapshots[-1].by_twin
        kept[-1].ask("number += 1")
        kept[-1].ask(f"change(16 * 4096, {generation})")
        right += kept[-1].ask("number") == generation
    # The ancestors are as they were.
    right = min(right, sum(guest.ask("number") == age for age, guest in enumerate(kept[1:], 1)))
    core.end(*kept)
    core.drop(*snapshots)
    note = f"{by_twin} by the twin; all generations alive"
    figure = Figure(
        "chain", "forks of forks that answer right", "", right, settings.chain, at_least=True, note=note
    )
    return Outcome([figure], [took])


# --- siblings, and what they cost


def measure_siblings(settings: Settings, place: Place) -> Outcome:
    """Children of one snapshot, all alive, each asked; the memory that is gone with them, for each."""
    outcome = Outcome()
    count = settings.siblings
    cost, private = Series("idle child, all in", "MiB"), Series("idle child, private", "MiB")
    floor, beside = Series("child of os.fork, all in", "MiB"), Series("child of os.fork, private", "MiB")
    modules, question = (("numpy",), NUMPY) if settings.numpy else ((), PLAIN)
    source, peer = place.source(*modules), place.peer(*modules)
    for process in (source, peer):
        process.ask(question)
        process.ask("number = 0")
    snapshot = place.core.snapshot(source)
    first, _ = place.core.fork(snapshot, question)
    right = count
    unreadable = ""
    for _ in range(settings.memory_passes):
        place.core.fill(settings.pool)
        others = set(place.core.processes())
        before = settled_kib()
        children = [place.core.fork(snapshot, question)[0] for _ in range(count)]
        place.core.fill(settings.pool)
        after = settled_kib()
        cost.samples.append((before - after) / 1024 / count)
        try:
            private.samples += [_private(pid) for pid in place.core.processes() if pid not in others]
        except OSError as error:
            unreadable = f"/proc/PID/smaps_rollup: {error.strerror}"
        for number, child in enumerate(children):
            child.ask(f"number = {number}")
        answered = sum(child.ask("number") == number for number, child in enumerate(children))
        right = min(right, answered)
        place.core.end(*children)
        before = settled_kib()
        pids = peer.ask(f"fork_and_keep({count}, {question.encode()!r})")
        floor.samples.append((before - settled_kib()) / 1024 / count)
        beside.samples += [_private(pid) for pid in pids]
        peer.ask("end_kept()")
    place.core.end(first, source)
    place.core.drop(snapshot)
    peer.close()
    passes = f"{count} children, {settings.memory_passes} times"
    outcome.figures = [
        Figure("siblings", "siblings alive at once that answer right", "", right, count, at_least=True),
        Figure("child_mib", "an idle child, all in", "MiB", cost.p50, CHILD_MIB,
               note=f"{passes}; os.fork {floor.p50:.2f} MiB"),
        Figure("child_private_mib", "an idle child, private memory", "MiB",
               private.p50 if private.samples else None, PRIVATE_MIB,
               note=unreadable or f"os.fork {beside.p50:.2f} MiB"),
    ]  # fmt: skip
    outcome.series = [one for one in (cost, private, floor, beside) if one.samples]
    return outcome


def _private(pid: int) -> float:
    rows = rollup(pid)
    return (rows["Private_Clean"] + rows["Private_Dirty"]) / 1024


# --- what a grandchild's snapshot keeps


def measure_stored(settings: Settings, place: Place) -> Outcome:
    """Snapshots of a grandchild that changes some memory in between: what of the machine's each takes."""
    core, changed = place.core, settings.changed
    source = place.source()
    source.ask(f"grow({changed * 4 * MIB})")
    first = core.snapshot(source)
    child, _ = core.fork(first)
    second = core.snapshot(child)
    grandchild, _ = core.fork(second)
    grandchild.ask(f"change({changed * MIB}, 1)")
    kept = [core.snapshot(grandchild)]
    stored = Series(f"snapshot of a grandchild that changed {changed} MiB", "MiB")
    for value in range(2, 2 + max(2, settings.window)):
        before = settled_kib()
        grandchild.ask(f"change({changed * MIB}, {value})")
        kept.append(core.snapshot(grandchild))
        stored.samples.append((before - settled_kib()) / 1024)
    core.end(grandchild, child, source)
    core.drop(first, second, *kept)
    by_twin = sum(one.by_twin for one in kept)
    note = f"all in, {changed} MiB changed; {by_twin} of {len(kept)} by the twin"
    figure = Figure(
        "grandchild_stored",
        "a grandchild's snapshot against what it changed",
        "x",
        median(stored.samples) / changed,
        STORED,
        note=note,
    )
    return Outcome([figure], [stored])
