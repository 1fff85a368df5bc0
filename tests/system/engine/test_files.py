"""The files of a fork are those of the instant of its memory, whatever became of them since an earlier copy."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.native import _protocol as p
from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest

PROGRAM = Path(__file__).with_name("_files_guest.py").read_text()
BALLAST = [["write", "ballast", 5 << 20, "x"], ["write", "ballast", 0, "y" * (5 << 20)]]
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
rounds = st.lists(st.lists(operations, max_size=8), min_size=2, max_size=3)
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
        reports = engine.core.reports()
        try:
            if engine.core.pid:
                engine.core.shut_down()
        finally:
            engine.core.discard()
        assert not reports


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


def same_in_a_fork(engine: Engine, source: Guest, about: str) -> Guest:
    """A child of a snapshot, whose files are those of the source."""
    before = ask(source, "look")
    snapshot = engine.snapshot(source)
    child = snapshot.fork(about)
    snapshot.drop()
    assert not difference(ask(child, "look"), before), about
    assert not difference(ask(source, "look"), before), f"the source of {about}"
    return child


def difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """By path: what was found, and what was expected."""
    paths = sorted(found.keys() | expected.keys())
    both = {path: (found.get(path), expected.get(path)) for path in paths}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1]}


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds)
def test_files_of_forks_are_exactly_those_of_the_source(engine: Engine, changes: list[list[Any]]) -> None:
    """Of a source that is forked again and again; and of its child, which has them in layers below its own."""
    source = start(engine)
    ask(source, [*BALLAST, *TREE])
    child = same_in_a_fork(engine, source, "the first child")
    ask(child, BALLAST)
    for guest, about in ((source, "source"), (child, "child")):
        for turn, change in enumerate(changes):
            ask(guest, change)
            same_in_a_fork(engine, guest, f"fork {turn} of the {about}").end()
    engine.clear()


def test_what_was_mapped_and_changed_between_two_forks_is_seen(engine: Engine) -> None:
    """Nothing dates a write to a page that was read before."""
    source = start(engine)
    ask(source, [*BALLAST, ["write", "a", 0, "a" * 5000]])
    same_in_a_fork(engine, source, "before")
    ask(source, [["mapped", "a", 17, "b"]])
    same_in_a_fork(engine, source, "after")


def test_a_second_fork_stores_what_has_changed_since_the_first(engine: Engine) -> None:
    source = start(engine)
    ask(source, BALLAST)
    first = engine.snapshot(source)
    assert first.found.u64(p.TAG_FILE_BYTES) >= 5 << 20
    ask(source, [["write", "a", 0, "x" * 300_000]])
    for _ in range(3):
        again = engine.snapshot(source)
        assert 300_000 <= again.found.u64(p.TAG_FILE_BYTES) <= 1.5 * 300_000


@pytest.mark.parametrize("forks", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_a_file_shared_memory_and_a_pipe_are_of_one_instant(engine: Engine, forks: int) -> None:
    """A thread counts in all of them, one after the other, and makes and removes files, while it is copied."""
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
