"""Snapshots: the state of an instant, kept by name and forked whenever one likes."""

import pytest

import ramet
from ramet.client import fork, sandboxes
from system.sandbox._repl import PYTHON, ask, ask_all, tell


@pytest.fixture(autouse=True)
def no_snapshots_left():
    yield
    # The youngest first: a snapshot that others build upon is not removed.
    for point in sorted(ramet.snapshots.list(), key=lambda one: -one.created):
        ramet.snapshots.remove(point)


def test_a_snapshot_holds_the_state_of_its_instant_whatever_becomes_of_the_sandbox(python):
    tell(python, "x = 1", "n = open('f', 'w').write('one')")
    point = python.snapshot("before-risk")
    tell(python, "x = 2", "n = open('f', 'w').write('two')")
    assert ask(python, "x") == "2"
    python.kill()
    with ramet.Sandbox("before-risk") as first:
        assert ask(first, "(x, open('f').read())") == "(1, 'one')"
        tell(first, "x = 3", "n = open('f', 'w').write('three')")
    with ramet.Sandbox(point) as second:
        assert ask(second, "(x, open('f').read())") == "(1, 'one')"
        assert second.info.snapshot == "before-risk"
    assert point.memory_bytes > 0
    assert point.file_bytes >= 3
    assert point.pause_ms > 0


def test_a_removed_snapshot_leaves_its_forks_alone(python):
    tell(python, "x = 41")
    python.snapshot("point")
    with ramet.Sandbox("point") as child:
        ramet.snapshots.remove("point")
        assert ask(child, "x + 1") == "42"
        with pytest.raises(ramet.InvalidRequest):
            ramet.Sandbox("point")
        with child.fork() as grandchild:
            assert ask(grandchild, "x + 2") == "43"


def test_many_are_forked_of_one_snapshot_at_once(python):
    tell(python, "x = 41")
    python.snapshot("point")
    with fork(snapshot="point", n=10) as children:
        assert ask_all(children, "x + 1") == ["42"] * 10


def test_snapshots_of_forks_and_forks_of_snapshots_alternate(python):
    tell(python, "path = []")
    python.snapshot("p0")
    for step in range(1, 4):
        with ramet.Sandbox(f"p{step - 1}") as sandbox:
            tell(sandbox, f"path.append({step})", f"n = open('f{step}', 'w').write('x')")
            sandbox.snapshot(f"p{step}")
    with ramet.Sandbox("p3") as last:
        assert ask(last, "path") == "[1, 2, 3]"
        assert (
            ask(last, "sorted(n for n in __import__('os').listdir('.') if n[0] == 'f')")
            == "['f1', 'f2', 'f3']"
        )
    assert [point.name for point in ramet.snapshots.list()] == ["p0", "p1", "p2", "p3"]


def test_an_unknown_snapshot_is_told_with_names_like_it(python):
    python.snapshot("before-risk")
    with pytest.raises(ramet.InvalidRequest) as caught:
        ramet.Sandbox("before_risk")
    assert caught.value.code == "unknown_snapshot"
    assert "'before-risk'" in caught.value.hint


def test_a_name_is_taken_once(python):
    python.snapshot("point")
    with pytest.raises(ramet.InvalidRequest) as caught:
        python.snapshot("point")
    assert caught.value.field == "name"


def test_a_snapshot_can_be_taken_by_another_program():
    with ramet.Sandbox(command=PYTHON, name="worker") as worker:
        tell(worker, "x = 41")
        assert sandboxes.snapshot("worker", "point").sandbox == worker.id
        with ramet.Sandbox("point") as child:
            assert ask(child, "x") == "41"
