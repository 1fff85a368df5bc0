"""The budget of snapshots: who is given up for whom, and comes back as he was."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core
from system.engine import _engine
from system.engine._engine import Engine, Guest, Snapshot

MIB = 1 << 20
HOLDER = """
s=$(head -c 3000000 /dev/zero | tr '\\0' x)
n=0
echo READY
while read -r line; do
    n=$((n+1))
    w=$w$line
    echo $n $w $(printf %s "$s" | cksum | tr ' ' -)
done
"""
"""Holds three megabytes that are its own; says how many lines it has heard, and what it holds."""
BUDGET = 8 * MIB
"""Two of those fit, three do not."""


@pytest.fixture
def directory() -> Iterator[int]:
    """Where core may write what is given up; on a disk, if the machine has one."""
    with tempfile.TemporaryDirectory(prefix="ramet-spill-", dir="/var/tmp") as name:
        Path(name).chmod(0o1733 if os.geteuid() == 0 else 0o700)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        yield fd
        os.close(fd)
        assert os.listdir(name) == []


@contextmanager
def budgeted(victims_dir: Path, budget: int = BUDGET, directory: int | None = None) -> Iterator[Engine]:
    before = _ledger.settle(lambda: _core.observe(Path("/nonexistent")), quiet=0.02)
    options = _core.Options(pool=2, snapshot_memory=budget, spill=directory)
    engine = _engine.start_engine(victims_dir, options=options)
    try:
        yield engine
        engine.clear()
        engine.core.shut_down()
    finally:
        for guest in engine.guests:
            guest.close()
        engine.core.discard()
    assert _ledger.drift(before, lambda: _core.observe(Path("/nonexistent"))) == []


def holder(engine: Engine) -> Guest:
    source = engine.start(["/bin/sh", "-c", HOLDER])
    source.ready()
    return source


def used(engine: Engine) -> int:
    status = engine.core.control.status()
    return status.u64(p.TAG_SNAPSHOT_MEMORY)


def stems(engine: Engine) -> set[int]:
    """Stems and spares, by pid; not the parked twins, which are traced."""

    def waits(pid: int) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "tZX"
        return False

    return {one.pid for one in engine.core.descendants() if one.name == "ramet-stem" and waits(one.pid)}


def settled(engine: Engine, count: int) -> None:
    """Wait until no exporter works, and so many stems are left, or spares."""

    def calm() -> bool:
        busy = {one.name for one in engine.core.descendants()} & {"ramet-exporter", "ramet-tracer"}
        return not busy and len(stems(engine)) == count

    _core.until(calm, f"{count} stems")


def new_stem(engine: Engine, guest: Guest) -> tuple[Snapshot, int]:
    """A snapshot that copies, and its stem's pid: the spare is younger."""
    before = stems(engine)
    snapshot = engine.snapshot(guest, twin=False)
    return snapshot, min(stems(engine) - before)


def insist(engine: Engine, guest: Guest) -> Snapshot:
    """A snapshot, as soon as there is room for it."""
    found: list[Snapshot] = []

    def taken() -> bool:
        number, answer = engine.ask_snapshot(guest)
        if answer.kind == p.OK:
            found.append(Snapshot(engine, number, answer.found))
        else:
            assert answer.error[0] == "snapshot_memory", _engine.describe(answer)
        return bool(found)

    _core.until(taken, "room for a snapshot")
    engine.snapshots += found
    return found[0]


def test_status_tells_what_stems_take_and_what_they_may(victims_dir: Path) -> None:
    with budgeted(victims_dir, 1 << 40) as engine:
        assert used(engine) == 0
        snapshot = engine.snapshot(holder(engine))
        assert 3 * MIB <= used(engine) <= 6 * MIB
        assert engine.core.control.status().u64(p.TAG_SNAPSHOT_BUDGET) == 1 << 40
        snapshot.drop()
        assert used(engine) == 0


def test_what_was_forked_least_recently_is_written_out_and_comes_back(
    victims_dir: Path, directory: int
) -> None:
    with budgeted(victims_dir, directory=directory) as engine:
        source = holder(engine)
        first, oldest = new_stem(engine, source)
        expected = [source.ask("a")]
        second, kept = new_stem(engine, source)
        expected.append(source.ask("a"))
        assert {oldest, kept} <= stems(engine)
        assert first.fork().ask("a") == expected[0]
        # Now the second is the one that was used least recently.
        third, _ = new_stem(engine, source)
        _core.until(lambda: kept not in stems(engine), "the second stem given up")
        assert oldest in stems(engine)
        expected.append(source.ask("a"))
        assert used(engine) <= BUDGET
        for snapshot, answer in zip(
            (second, third, first, second), [*expected[1:], *expected[:2]], strict=True
        ):
            child = snapshot.fork()
            assert child.ask("a") == answer
            grandchild = engine.snapshot(child).fork()
            assert grandchild.ask("b").split()[0] == str(int(answer.split()[0]) + 1)
        assert source.ask("a").split()[0] == "4"


def test_spares_go_before_stems(victims_dir: Path) -> None:
    with budgeted(victims_dir) as engine:
        source = holder(engine)
        first, oldest = new_stem(engine, source)
        for _ in range(2):
            first.fork().end()
        settled(engine, 2)
        _, second = new_stem(engine, source)
        _, third = new_stem(engine, source)
        settled(engine, 3)
        assert stems(engine) == {oldest, second, third}
        # Nor is there room for another.
        for _ in range(3):
            assert first.fork().ask("a") == "1 a 4215545058-3000000"
        settled(engine, 3)


def test_a_delta_outlives_its_parents_stem(victims_dir: Path, directory: int) -> None:
    with budgeted(victims_dir, directory=directory) as engine:
        source = holder(engine)
        parent, stem = new_stem(engine, source)
        child = parent.fork()
        answer = child.ask("a")
        delta = engine.snapshot(child)
        assert delta.found.u32(p.TAG_BY_TWIN) == 1
        delta.fork().end()
        others = [engine.snapshot(source, twin=False) for _ in range(3)]
        _core.until(lambda: stem not in stems(engine), "the parent's stem given up")
        assert delta.fork().ask("b") == child.ask("b")
        assert parent.fork().ask("a") == answer
        assert others[0].fork().ask("a") == answer
        # Of its child, too, by the twin of old.
        assert engine.snapshot(child).fork().ask("b").split()[0] == "3"


def test_a_delta_that_was_written_out_comes_back(victims_dir: Path, directory: int) -> None:
    with budgeted(victims_dir, 1, directory) as engine:
        source = holder(engine)
        child = engine.snapshot(source).fork()
        delta = insist(engine, child)
        assert delta.found.u32(p.TAG_BY_TWIN) == 1
        for _ in range(3):
            insist(engine, source)
        settled(engine, 1)
        answer = child.ask("a")
        for _ in range(3):
            assert delta.fork().ask("a") == answer


def test_without_a_directory_new_ones_are_refused_by_name(victims_dir: Path) -> None:
    with budgeted(victims_dir) as engine:
        source = holder(engine)
        kept = [engine.snapshot(source, twin=False)]
        while len(kept) < 9:
            _, answer = engine.ask_snapshot(source)
            if answer.kind == p.ERROR:
                break
            kept.append(Snapshot(engine, answer.found.u32(p.TAG_SNAPSHOT), answer.found))
            engine.snapshots.append(kept[-1])
        assert answer.error[0] == "snapshot_memory"
        words = re.search(
            r"take (\d+) of (\d+) bytes of memory, and there is no directory", _engine.describe(answer)
        )
        assert words
        assert int(words[1]) > int(words[2]) == BUDGET
        assert int(words[1]) == used(engine)
        assert source.ask("a").split()[0] == "1"
        assert kept[0].fork().ask("a").split()[0] == "1"
        kept[-1].drop()
        assert engine.snapshot(source).fork().ask("a").split()[0] == "2"


def test_a_directory_that_fails_keeps_the_stems(victims_dir: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ramet-spill-", dir="/var/tmp") as name:
        place = Path(name) / "gone"
        place.mkdir()
        place.chmod(0o1733 if os.geteuid() == 0 else 0o700)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        with budgeted(victims_dir, 1, fd) as engine:
            place.rmdir()
            source = holder(engine)
            snapshot = engine.snapshot(source, twin=False)

            def refused() -> bool:
                return engine.ask_snapshot(source)[1].kind == p.ERROR

            _core.until(refused, "a refusal")
            _, answer = engine.ask_snapshot(source)
            assert answer.error[0] == "snapshot_memory"
            assert snapshot.fork().ask("a").split()[0] == "1"
        os.close(fd)


def exported(engine: Engine, snapshot: Snapshot) -> os.stat_result:
    """Have core write its image into a file; that of its pages."""
    answer = engine.core.control.ok(p.EXPORT_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    pages = os.fstat(answer.fds[1])
    for fd in answer.fds:
        os.close(fd)
    return pages


def test_an_export_into_memory_is_charged_until_the_snapshot_goes(victims_dir: Path) -> None:
    with budgeted(victims_dir, 1 << 40) as engine:
        snapshot = engine.snapshot(holder(engine))
        before = used(engine)
        pages = exported(engine, snapshot)
        assert pages.st_blocks * 512 >= 3 * MIB
        assert used(engine) >= before + pages.st_blocks * 512
        snapshot.drop()
        assert used(engine) == 0


def test_an_export_goes_where_there_is_room_for_what_is_given_up(victims_dir: Path, directory: int) -> None:
    with budgeted(victims_dir, 1 << 40, directory) as engine:
        source = holder(engine)
        snapshot = engine.snapshot(source)
        before = used(engine)
        pages = exported(engine, snapshot)
        assert pages.st_dev == os.fstat(directory).st_dev
        assert used(engine) <= before
        assert snapshot.fork().ask("a") == source.ask("a")


@pytest.mark.parametrize("by_twin", [False, True], ids=["copied", "by_twin"])
def test_a_stem_that_is_killed_is_made_again_of_an_image(victims_dir: Path, by_twin: bool) -> None:
    with budgeted(victims_dir, 1 << 40) as engine:
        source = holder(engine)
        if by_twin:
            source = engine.snapshot(source).fork()
            source.ask("a")
        before = stems(engine)
        lost, image = engine.snapshot(source), engine.snapshot(source)
        exported(engine, image)
        for pid in stems(engine) - before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _core.until(lambda: not (stems(engine) - before), "dead stems")
        answer = source.ask("b")
        for _ in range(2):
            child, told = engine.ask_fork(lost.number, "nobody")
            engine.forget(child)
            assert told.error[0] == "stem_lost"
        children = [image.fork() for _ in range(3)]
        assert [child.ask("b") for child in children] == [answer] * 3
        grandchild = engine.snapshot(children[-1]).fork()
        assert grandchild.ask("c") == children[-1].ask("c")


def test_many_snapshots_of_many_sources_within_a_small_budget(victims_dir: Path, directory: int) -> None:
    with budgeted(victims_dir, directory=directory) as engine:
        sources = [holder(engine) for _ in range(3)]
        taken: list[tuple[Snapshot, int]] = []
        for turn in range(4):
            for source in sources:
                taken.append((insist(engine, source), turn))
                source.ask("x")
        for snapshot, turn in [*taken, *reversed(taken)]:
            child = snapshot.fork()
            assert child.ask("y").split()[0] == str(turn + 1)
            child.end()
        _core.until(lambda: used(engine) <= BUDGET, "the budget kept")
