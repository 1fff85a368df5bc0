"""Sandboxes of several processes: stopped in whatever they do, stored, and loaded again."""

import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.native import _protocol as p
from ramet.native import frames
from system.core import _payloads
from system.engine import _engine
from system.engine._engine import Engine, Guest

SHELL = ["/bin/sh", "-c", 'echo READY; while read -r line; do eval "$line"; done']


def shell(engine: Engine, *lines: str) -> Guest:
    source = engine.start(SHELL)
    source.ready()
    for line in lines:
        source.ask(f"{line}; echo done")
    return source


def through_the_disk(engine: Engine, snapshot: _engine.Snapshot) -> _engine.Snapshot:
    """What is loaded from what an export gave, in its place."""
    stored = engine.core.control.ask(p.EXPORT_SNAPSHOT, frames.u32(p.TAG_SNAPSHOT, snapshot.number))
    assert stored.kind == p.OK, _engine.describe(stored)
    payload = frames.u32(p.TAG_SNAPSHOT, 77) + frames.u32(p.TAG_ROOT, _payloads.ROOT)
    payload += frames.u32(p.TAG_FILTER, _engine.PRODUCT_FILTER)
    answer = engine.core.control.ask(p.LOAD_SNAPSHOT, payload, stored.fds)
    for fd in stored.fds:
        os.close(fd)
    assert answer.kind == p.OK, _engine.describe(answer)
    snapshot.drop()
    loaded = _engine.Snapshot(engine, 77, snapshot.found)
    engine.snapshots.append(loaded)
    return loaded


@pytest.mark.parametrize("twin", [False, True])
def test_what_the_stem_alone_has_of_further_processes_comes_back_from_the_disk(
    engine: Engine, twin: bool
) -> None:
    source = engine.start(_engine.Victim("kindred", "holdings", "").argv)
    source.ready()
    snapshot = engine.snapshot(engine.snapshot(source).fork("parked"), twin=twin)
    before = snapshot.fork("before")
    loaded = through_the_disk(engine, snapshot)
    _engine.all_right([before, loaded.fork("loaded"), loaded.fork("again"), source])


def test_processes_of_a_snapshot_that_was_stored_run_on_from_the_disk(engine: Engine) -> None:
    parked = engine.snapshot(shell(engine, "sleep 1000 & job=$!", "(exit 7) & ended=$!")).fork("parked")
    parked.ask("mkfifo pipe; (read -r x < pipe; exit $x) & reader=$!; echo done")
    snapshot = engine.snapshot(parked)
    assert snapshot.found.u32(p.TAG_BY_TWIN) == 1
    loaded = through_the_disk(engine, snapshot)
    for _ in range(3):
        child = loaded.fork()
        assert child.ask("wait $ended; echo $?") == "7"
        assert child.ask("kill $job; wait $job; echo $?") == "143"
        assert child.ask("echo 9 > pipe; wait $reader; echo $?") == "9"


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_shell_that_starts_short_programs_all_the_time_is_right_in_every_fork(
    engine: Engine, jobs: int
) -> None:
    """Forks, exec and ends are met in all their moments: by vfork(2) too, as a build does it."""
    text = """
        build() { n=0; while [ ! -e stop$1 ]; do n=$((n + 1)); x=$(/bin/echo $n | /bin/cat)
          [ "$x" = $n ] || { echo "wrong: $x for $n" > wrong; exit 1; }; done; exit 0; }
        for i in JOBS; do build $i & done
        echo READY; read -r go
        for i in JOBS; do touch stop$i; done; wait
        if [ -e wrong ]; then cat wrong; else echo OK; fi
    """.replace("JOBS", " ".join(str(n) for n in range(jobs)))
    source = engine.start(["/bin/sh", "-c", text])
    source.ready()
    for turn in range(3):
        child = engine.snapshot(source).fork(f"child {turn}")
        grandchild = engine.snapshot(child).fork(f"grandchild {turn}")
        for one in (child, grandchild):
            one.go()
            assert one.verdict() == "OK", one.about
            one.end()
    source.go()
    assert source.verdict() == "OK"


def test_the_first_process_stays_stopped_in_the_source_and_in_every_fork(engine: Engine) -> None:
    source = engine.start(_engine.COUNTER)
    source.ready()
    os.kill(source.host_pid, signal.SIGSTOP)
    source.stopped()
    child = engine.snapshot(source).fork("child")
    child.stopped()
    grandchild = engine.snapshot(child).fork("grandchild")
    for one in (source, child, grandchild):
        one.stopped()
        one.say("count")
        assert not one.speaks()
        os.kill(one.host_pid, signal.SIGCONT)
        assert one.line() == "1"
    assert engine.snapshot(grandchild).fork("last").ask("count") == "2"


def _without_waits_for_the_living(parts: list[str]) -> str:
    """Nobody waits for a child that stays."""
    ended, kept = 0, []
    for part in parts:
        ended += part[-2:] in {"x)", "k)"}
        if part != "w" or ended > kept.count("w"):
            kept.append(part)
    return "".join(kept)


def _bodies(body: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    part = st.one_of(st.sampled_from("sgw"), body.map("({})".format))
    parts = st.lists(part, min_size=1, max_size=4).map(_without_waits_for_the_living)
    return st.tuples(parts, st.sampled_from(["", "", "x", "k"])).map("".join)


BODY = st.recursive(st.sampled_from(["", "s", "g", "x", "k"]), _bodies, max_leaves=10)
"""What core/tests/victims/scripted.c carries out."""


@given(bodies=st.lists(BODY, min_size=1, max_size=4))
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_processes_of_any_tree_are_in_a_fork_what_they_were_to_each_other(
    engine: Engine, bodies: list[str]
) -> None:
    source = engine.start([f"{_engine.VICTIMS}/scripted", "tree"], "".join(f"({body})" for body in bodies))
    source.say(source.about)
    source.ready()
    snapshot = engine.snapshot(source)
    child = snapshot.fork(f"child of {source.about}")
    grandchild = engine.snapshot(child).fork(f"grandchild of {source.about}")
    for one in (grandchild, child, source):
        one.go()
        assert one.verdict() == "OK", one.about
    engine.clear()
