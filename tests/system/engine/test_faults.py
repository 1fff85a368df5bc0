"""Every step of the fork engine, made to fail on purpose: the source runs on, nothing is left.

And held for ever, so that whoever reached it can be killed there, or core: still nothing is left.
"""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import _ledger
from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _core, _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest

NAMES = {number: name for number, name in p.STEP_NAMES.items() if number}
TRACER = [number for number in NAMES if p.STEP_FIND_PROCESSES <= number <= p.STEP_IMAGE]
TRACER.append(p.STEP_COPY_AHEAD)
STEM = [number for number in NAMES if p.STEP_STEM_FORK <= number <= p.STEP_STEM_MM]
CHILD = [
    number
    for number in NAMES
    if p.STEP_CHILD_PIDNS <= number <= p.STEP_CHILD_SECCOMP or number == p.STEP_CHILD_CGROUP
]
FAMILY = [p.STEP_CHILD_FAMILY, p.STEP_CHILD_MEMORY]
"""What only a sandbox of several processes passes."""
INIT = [number for number in NAMES if p.STEP_UPPER <= number <= p.STEP_NETWORK]
COPYING = TRACER + STEM
"""What a snapshot passes that copies memory."""
ADOPTING = [number for number in TRACER if number != p.STEP_FROZEN_TWIN]
ADOPTING += [p.STEP_STEM_REGION, p.STEP_STEM_FILES, p.STEP_STEM_ADOPT]
"""What one passes whose source has a parked twin."""
OTHERS = [p.STEP_PARKED_TWIN, p.STEP_EXPORT, p.STEP_LOAD, p.STEP_FLATTEN]
UNTOUCHED = {p.STEP_COPY_AHEAD, p.STEP_FIND_PROCESSES, p.STEP_SEIZE}
UNTOUCHED |= {p.STEP_MAPPINGS, p.STEP_INJECT, p.STEP_DROP_TWIN, p.STEP_IMAGE}
"""Where no thread of the source has other registers than its own."""
HELD = "held"


def named(steps: list[int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", steps, ids=[NAMES[step] for step in steps])


def test_every_step_of_the_engine_is_in_one_of_the_lists() -> None:
    reached = {*COPYING, *ADOPTING, *CHILD, *FAMILY, *OTHERS}
    assert {number for number in NAMES if number >= p.STEP_FIND_PROCESSES} == reached


def counter(engine: Engine) -> Guest:
    source = engine.start(_engine.COUNTER)
    source.ready()
    return source


def several(engine: Engine) -> Guest:
    source = engine.start(["/bin/sh", "-c", f"sleep 1000 & sleep 1000 & {_engine.COUNTER[2]}"])
    source.ready()
    return source


@pytest.fixture
def parked(engine: Engine) -> Guest:
    """A source that is a fork, so that it has a parked twin."""
    return engine.snapshot(counter(engine)).fork("parked")


# --- failing -----------------------------------------------------------------------------------------------


def snapshots_fail(engine: Engine, source: Guest, step: int) -> None:
    count = int(source.ask("count"))
    with _engine.nothing_left(engine):
        for turn in (1, 2):
            _, answer = engine.ask_snapshot(source, fault=step)
            assert answer.error[:3] == ("isolation_failed", NAMES[step], errno.EIO), _engine.describe(answer)
            assert source.ask("count") == str(count + turn)
    child = engine.snapshot(source).fork()
    assert child.ask("count") == str(count + 3)
    assert source.ask("count") == str(count + 3)


@named(COPYING)
def test_a_failing_step_of_a_copying_snapshot_leaves_the_source_running(engine: Engine, step: int) -> None:
    snapshots_fail(engine, counter(engine), step)


@named(ADOPTING)
def test_a_failing_step_of_a_snapshot_by_twin_leaves_the_source_running(
    engine: Engine, parked: Guest, step: int
) -> None:
    snapshots_fail(engine, parked, step)


@named([p.STEP_PAGES, p.STEP_STEM_FILL, p.STEP_STEM_ADOPT])
def test_a_failing_step_of_a_snapshot_by_twin_of_several_processes_leaves_them_running(
    engine: Engine, step: int
) -> None:
    snapshots_fail(engine, engine.snapshot(several(engine)).fork("parked"), step)


def test_a_twin_that_cannot_be_forked_means_a_copy(engine: Engine, parked: Guest) -> None:
    found = engine.snapshot(parked, twin=False).found
    assert found.u32(p.TAG_BY_TWIN) == 0
    assert parked.ask("count") == "1"


@named(TRACER)
def test_a_failing_step_of_a_snapshot_of_several_processes_leaves_them_running(
    engine: Engine, step: int
) -> None:
    snapshots_fail(engine, several(engine), step)


@named(CHILD + INIT + FAMILY)
def test_a_failing_step_of_a_child_leaves_snapshot_and_source(engine: Engine, step: int) -> None:
    source = several(engine) if step in FAMILY else counter(engine)
    snapshot = engine.snapshot(source)
    # The first sandbox of a root makes mounts ahead for the next, the second child a spare for the third.
    for _ in range(2):
        snapshot.fork("before").end()
    stems = ["ramet-stem"] * 2
    _core.until(
        lambda: [one.name for one in engine.core.descendants() if one.name in stems] == stems, "a spare"
    )
    with _engine.nothing_left(engine):
        for _ in range(2):
            child, answer = engine.ask_fork(snapshot.number, "nobody", fault=step)
            engine.forget(child)
            assert answer.error[:3] == ("isolation_failed", NAMES[step], errno.EIO), _engine.describe(answer)
        assert set(engine.core.control.listing()) == {source.sandbox}
    assert snapshot.fork().ask("count") == "1"
    assert source.ask("count") == "1"


def exported(engine: Engine, snapshot: int, *, fault: int = 0) -> _core.Answer:
    payload = frames.u32(p.TAG_SNAPSHOT, snapshot) + (frames.u32(p.TAG_FAULT, fault) if fault else b"")
    return engine.core.control.ask(p.EXPORT_SNAPSHOT, payload)


def test_a_failing_export_leaves_the_snapshot(engine: Engine, parked: Guest) -> None:
    snapshot = engine.snapshot(parked)
    with _engine.nothing_left(engine):
        failed = exported(engine, snapshot.number, fault=p.STEP_EXPORT)
        assert failed.error[:3] == ("isolation_failed", "export", errno.EIO)
    assert snapshot.fork().ask("count") == "1"


def load(engine: Engine, number: int, fds: tuple[int, ...], fault: int = 0) -> _core.Answer:
    payload = frames.u32(p.TAG_SNAPSHOT, number) + frames.u32(p.TAG_ROOT, _payloads.ROOT)
    payload += frames.u32(p.TAG_FILTER, _engine.PRODUCT_FILTER)
    payload += frames.u32(p.TAG_FAULT, fault) if fault else b""
    return engine.core.control.ask(p.LOAD_SNAPSHOT, payload, fds)


@contextmanager
def image_of(engine: Engine, snapshot: _engine.Snapshot) -> Iterator[tuple[int, ...]]:
    """What an export gives."""
    answer = exported(engine, snapshot.number)
    assert answer.kind == p.OK, _engine.describe(answer)
    yield answer.fds
    for fd in answer.fds:
        os.close(fd)


@pytest.mark.parametrize("by_twin", [False, True], ids=["copied", "by_twin"])
def test_a_failing_load_leaves_nothing_and_the_image_as_it_was(
    engine: Engine, parked: Guest, by_twin: bool
) -> None:
    snapshot = engine.snapshot(parked, twin=by_twin)
    assert snapshot.found.u32(p.TAG_BY_TWIN) == by_twin
    with image_of(engine, snapshot) as image:
        with _engine.nothing_left(engine):
            for step in [p.STEP_LOAD, *STEM] * 2:
                failed = load(engine, 77, image, step)
                assert failed.error[:3] == ("isolation_failed", NAMES[step], errno.EIO), NAMES[step]
        assert load(engine, 77, image).kind == p.OK
    loaded = _engine.Snapshot(engine, 77, snapshot.found)
    engine.snapshots.append(loaded)
    snapshot.drop()
    for _ in range(4):
        assert loaded.fork().ask("count") == "1"
    assert parked.ask("count") == "1"


@named(STEM)
def test_a_failing_step_of_a_stem_that_is_made_again_leaves_the_snapshot(engine: Engine, step: int) -> None:
    snapshot = engine.snapshot(counter(engine))
    with image_of(engine, snapshot):
        pass

    def dead() -> bool:
        for one in engine.core.guests("ramet-stem"):
            with suppress(ProcessLookupError):  # it went with its stem
                os.kill(one.pid, signal.SIGKILL)
        return not engine.core.guests("ramet-stem")

    _core.until(dead, "no stem and no spare")
    with _engine.nothing_left(engine):
        for _ in range(2):
            child, answer = engine.ask_fork(snapshot.number, "nobody", fault=step)
            engine.forget(child)
            assert answer.error[:3] == ("isolation_failed", NAMES[step], errno.EIO), _engine.describe(answer)
    for _ in range(2):
        assert snapshot.fork().ask("count") == "1"


# --- killed ------------------------------------------------------------------------------------------------


def held(core: _core.Core) -> list[int]:
    """Who has reached the step: core itself, or a process of its own."""
    found = [process.pid for process in core.descendants() if process.name == HELD]
    with suppress(OSError):
        if Path(f"/proc/{core.pid}/comm").read_text().strip() == HELD:
            found.append(core.pid)
    return found


@contextmanager
def own_engine(victims_dir: Path) -> Iterator[Engine]:
    """A core that will be killed; afterwards nothing of it may be there."""
    before = _ledger.settle(lambda: _core.observe(Path("/nonexistent")), quiet=0.02)
    engine = _engine.start_engine(victims_dir, pool=2)
    try:
        yield engine
    finally:
        for guest in engine.guests:
            guest.close()
        os.kill(engine.core.pid, signal.SIGKILL)
        engine.core.wait()
        engine.core.discard()

    def look() -> _ledger.Record:
        return _core.observe(Path("/nonexistent"))

    assert _ledger.drift(before, look) == []


def reach(engine: Engine, step: int) -> None:
    """Send what gets to the step, and wait until somebody is held there."""
    source = several(engine) if step in FAMILY else counter(engine)
    armed = step | p.FAULT_HOLD
    if step in CHILD + INIT + FAMILY:
        engine.send_fork(engine.snapshot(source).number, "nobody", fault=armed)
    elif (step in ADOPTING and step not in COPYING) or step == p.STEP_PARKED_TWIN:
        parked = engine.snapshot(source).fork("parked")
        engine.send_snapshot(parked, 99, fault=armed)
    else:
        engine.send_snapshot(source, 99, fault=armed)
    _core.until(lambda: held(engine.core), f"somebody held at {NAMES[step]}")


@named(
    [*COPYING, p.STEP_STEM_ADOPT, p.STEP_PARKED_TWIN, *CHILD, *FAMILY, p.STEP_SEND_PLAN, p.STEP_ATTACH_ROOT]
)
def test_core_killed_at_any_step_leaves_nothing(victims_dir: Path, step: int) -> None:
    with own_engine(victims_dir) as engine:
        reach(engine, step)


@named([*TRACER, *STEM[1:], *CHILD, *FAMILY])
def test_who_is_killed_at_a_step_takes_nobody_else_along(engine: Engine, step: int) -> None:
    """A tracer in the pause takes its source along: nobody knows what it left in the source's registers."""
    bystander = counter(engine)
    counter(engine).end()  # from a root's second sandbox on mounts are made ahead for it
    with _engine.nothing_left(engine):
        source = several(engine) if step in FAMILY else counter(engine)
        armed = step | p.FAULT_HOLD
        if step in CHILD + FAMILY:
            snapshot = engine.snapshot(source)
            child, request = engine.send_fork(snapshot.number, "nobody", fault=armed)
        else:
            snapshot = None
            request = engine.send_snapshot(source, 99, fault=armed)
        _core.until(lambda: held(engine.core), f"somebody held at {NAMES[step]}")
        for pid in held(engine.core):
            with suppress(ProcessLookupError):  # it went with its init
                os.kill(pid, signal.SIGKILL)
        answer = engine.core.control.answer(request)
        # Init makes the descriptors that the child waits for, and moves it: then both are held.
        by_init = step in {p.STEP_CHILD_MAKE_FDS, p.STEP_CHILD_CGROUP}
        assert answer.kind == p.ERROR or (answer.kind == p.ENDED and by_init)
        if step in TRACER:
            assert answer.error[0] == "tracer_lost"
        if step in TRACER and step not in UNTOUCHED:
            engine.core.control.event(p.ENDED, source.sandbox)
            engine.forget(source)
        else:
            assert source.ask("count") == "1"
            source.end()
        if snapshot:
            engine.forget(child)
            snapshot.drop()
    assert bystander.ask("count") == "1"
    assert engine.snapshot(bystander).fork().ask("count") == "2"
