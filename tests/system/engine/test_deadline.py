"""A snapshot has a time of its own: one that takes longer is given up by name, and its source runs on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramet.native import _protocol as p
from system.core import _core
from system.engine import _engine
from system.engine._engine import Engine, Guest

WRITER = "head -c 64M /dev/urandom > big; " + _engine.COUNTER[2]


@contextmanager
def hasty_engine(victims_dir: Path, milliseconds: int) -> Iterator[Engine]:
    options = _core.Options(pool=2, snapshot_ms=milliseconds)
    engine = _engine.start_engine(victims_dir, options=options)
    try:
        yield engine
    finally:
        engine.clear()
        _engine.end(engine)


def given_up(engine: Engine, source: Guest, *, fault: int = 0) -> str:
    """The step at which time was over."""
    count = int(source.ask("count"))
    _, answer = engine.ask_snapshot(source, fault=fault)
    assert answer.kind == p.ERROR, "it was in time"
    assert answer.error[0] == "snapshot_timeout", _engine.describe(answer)
    assert source.ask("count") == str(count + 1)
    return answer.error[1]


def test_a_snapshot_that_takes_too_long_is_given_up_and_the_source_runs_on(victims_dir: Path) -> None:
    with hasty_engine(victims_dir, 1) as engine:
        source = engine.start(["/bin/sh", "-c", WRITER])
        source.ready()
        with _engine.nothing_left(engine):
            assert given_up(engine, source) == "copy_upper"
            given_up(engine, source)


def test_a_tracer_that_gets_nowhere_is_killed_and_the_source_runs_on(victims_dir: Path) -> None:
    with hasty_engine(victims_dir, 200) as engine:
        source = engine.start(["/bin/sh", "-c", f"sleep 1000 & {_engine.COUNTER[2]}"])
        source.ready()
        with _engine.nothing_left(engine):
            for step in (p.STEP_COPY_AHEAD, p.STEP_SEIZE, p.STEP_MAPPINGS):
                given_up(engine, source, fault=step | p.FAULT_HOLD)
