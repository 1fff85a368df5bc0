"""The files of a fork are those of the instant of its memory, whatever was copied of them before."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.native import _protocol as p
from system.core import _core, _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest

PROGRAM = Path(__file__).with_name("_files_guest.py").read_text()
CLOCK_REALTIME_COARSE = 5
BALLAST = [["fill", "ballast", 5 << 20]]
"""So much that a copy of it is kept for the next snapshot."""

names = st.sampled_from(["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "f", "f/a", "f/e"])
places = st.sampled_from([0, 1, 4095, 5000, 300_000])
texts = st.sampled_from(["x", "yy", "z" * 5000])
dates = st.sampled_from([0, 10**18 + 1, 2 * 10**18])
operations = st.one_of(
    st.tuples(st.just("write"), names, places, texts),
    st.tuples(st.just("mapped"), names, places, texts),
    st.tuples(st.just("truncate"), names, places),
    st.tuples(st.just("make_dir"), names),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("link"), names, names),
    st.tuples(st.just("symlink"), names, texts.map(lambda text: text[:100])),
    st.tuples(st.sampled_from(["fifo", "socket", "touched", "again", "no_attribute"]), names),
    st.tuples(st.just("mode"), names, st.sampled_from([0o700, 0o755, 0o1777, 0o4755])),
    st.tuples(st.just("times"), names, dates, dates),
    st.tuples(st.just("attribute"), names, texts.map(lambda text: text[:20])),
)
before = st.lists(operations, max_size=6)
meanwhile = st.lists(operations.filter(lambda operation: operation[0] != "touched"), max_size=6)
rounds = st.lists(st.tuples(before, meanwhile), min_size=2, max_size=2)
"""Before the copy is begun, and between it and the pause, when reading alone is not told of."""
TREE = [["make_dir", "d"], ["make_dir", "d/e"], ["make_dir", "f"], ["write", "a", 0, "a"]]
TREE += [["write", "d/a", 0, "b" * 5000], ["link", "d/a", "d/e/a"], ["write", "d/e/b", 300_000, "hole"]]
"""Something to change, or hardly anything would be."""


@pytest.fixture(scope="module")
def programs(ledger: None) -> Iterator[Engine]:
    """A core whose sandboxes have Python, and none of the victims."""
    with tempfile.TemporaryDirectory(prefix="ramet-none-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        engine = _engine.start_engine(Path(name), pool=2, python=True)
        yield engine
        _engine.end(engine)


@pytest.fixture
def engine(programs: Engine) -> Iterator[Engine]:
    yield programs
    programs.clear()


def ask(guest: Guest, what: object) -> Any:
    return json.loads(guest.ask(json.dumps(what)))


def start(engine: Engine) -> Guest:
    source = engine.start([_payloads.PYTHON, "-I", "-S", "-c", PROGRAM])
    source.ready()
    return source


def held(engine: Engine) -> list[int]:
    return [one.pid for one in engine.core.descendants() if one.name == "held"]


def late_snapshot(engine: Engine, source: Guest, meanwhile: list[Any]) -> tuple[_engine.Snapshot, Any]:
    """One of a source that does `meanwhile` when its files were copied, before it is stopped; its look."""
    number = next(engine.numbers)
    request = engine.send_snapshot(source, number, fault=p.STEP_FIND_PROCESSES | p.FAULT_HOLD)
    _core.until(lambda: held(engine), "a tracer that has copied")
    ask(source, meanwhile)
    before = ask(source, "look")
    for pid in held(engine):
        os.kill(pid, signal.SIGCONT)
    answer = engine.core.control.answer(request)
    assert answer.kind == p.OK, _engine.describe(answer)
    engine.snapshots.append(_engine.Snapshot(engine, number, answer.found))
    return engine.snapshots[-1], before


def same_in_a_fork(
    engine: Engine, source: Guest, about: str, meanwhile: list[Any] | None = None, *, layered: bool = False
) -> Guest:
    """A child of a snapshot, whose files are those of the source.

    `layered`: the source has files in layers below its own. Of those that it has linked an overlay tells
    different numbers by different names.
    """
    snapshot, before = late_snapshot(engine, source, meanwhile or [])
    child = snapshot.fork(about)
    snapshot.drop()
    for guest, whose in ((child, about), (source, f"the source of {about}")):
        found = ask(guest, "look")
        assert not difference(found["entries"], before["entries"]), whose
        assert layered or found["linked"] == before["linked"], whose
    return child


def difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """By path: what was found, and what was expected."""
    paths = sorted(found.keys() | expected.keys())
    both = {path: (found.get(path), expected.get(path)) for path in paths}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1]}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds)
def test_files_of_forks_are_exactly_those_of_the_source(
    engine: Engine, changes: list[tuple[list[Any], list[Any]]]
) -> None:
    """Of a source that is forked again and again; and of its child, which has them in layers below."""
    source = start(engine)
    ask(source, [*BALLAST, *TREE])
    child = same_in_a_fork(engine, source, "the first child")
    ask(child, BALLAST)
    for guest, about in ((source, "source"), (child, "child")):
        for turn, (early, late) in enumerate(changes):
            ask(guest, early)
            name = f"fork {turn} of the {about}"
            same_in_a_fork(engine, guest, name, late, layered=guest is child).end()
    engine.clear()


def test_what_was_mapped_and_changed_between_two_forks_is_seen(engine: Engine) -> None:
    """Nothing dates a write to a page that was read before."""
    source = start(engine)
    ask(source, [*BALLAST, ["write", "a", 0, "a" * 5000]])
    same_in_a_fork(engine, source, "before")
    ask(source, [["mapped", "a", 17, "b"]])
    same_in_a_fork(engine, source, "after")


def test_a_hole_before_what_was_written_stays_one(engine: Engine) -> None:
    """Memory is given to files in pieces that are larger than a page."""
    source = start(engine)
    ask(source, [*BALLAST, *TREE])
    same_in_a_fork(engine, source, "before")
    same_in_a_fork(engine, source, "after", [["mapped", "d/e/b", 5000, "x"]])


def let_file_times_go_on() -> None:
    """What was written in the same tick of the clock as it was copied is copied once more."""
    for _ in range(2):
        begun = time.clock_gettime(CLOCK_REALTIME_COARSE)
        while time.clock_gettime(CLOCK_REALTIME_COARSE) == begun:
            pass


def test_a_second_fork_stores_what_has_changed_since_the_first(engine: Engine) -> None:
    source = start(engine)
    ask(source, BALLAST)
    let_file_times_go_on()
    first = engine.snapshot(source)
    assert first.found.u64(p.TAG_FILE_BYTES) >= 5 << 20
    ask(source, [["write", "a", 0, "x" * 300_000]])
    for _ in range(3):
        again = engine.snapshot(source)
        assert 300_000 <= again.found.u64(p.TAG_FILE_BYTES) <= 1.5 * 300_000


@pytest.mark.parametrize(
    "forks", [20, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_memory_a_file_shared_memory_and_a_pipe_are_of_one_instant(engine: Engine, forks: int) -> None:
    """A thread counts in all of them, one after the other, and makes and removes files meanwhile."""
    source = start(engine)
    ask(source, BALLAST)
    ask(source, "begin")
    for turn in range(forks):
        snapshot = engine.snapshot(source)
        child = snapshot.fork(f"fork {turn}")
        snapshot.drop()
        told = ask(child, "stop")
        agree(told, f"fork {turn}")
        child.end()
    agree(ask(source, "stop"), "the source")


def agree(told: dict[str, Any], about: str) -> None:
    assert not told["wrong"], (about, told)
    assert len(set(told["numbers"])) == 1, (about, told)
    assert len(set(told["names"])) == 1, (about, told)
