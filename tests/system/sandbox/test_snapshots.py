"""Snapshots: the state of an instant, kept by name and forked whenever one likes."""

import resource

import pytest

import ramet
from ramet.client import fork, sandboxes
from system.sandbox._repl import PATIENCE_S, PYTHON, ask, ask_all, tell

FEW = 1024
"""Descriptors: less than any machine allows."""


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


def test_a_rolled_back_sandbox_is_as_it_was_under_its_id():
    with ramet.Sandbox(command=["bash"], name="rolled", metadata={"a": "b"}) as shell:
        shell.stdin.write("x=1; mkdir /tmp/own; cd /tmp/own; echo before > file; echo ready\n")
        assert shell.stdout.readline(timeout=PATIENCE_S) == b"ready\n"
        point = shell.snapshot("point")
        with shell.fork() as child:
            for turn in range(2):
                shell.stdin.write("x=2; echo after > file; echo more > new; echo $x\n")
                assert shell.stdout.readline(timeout=PATIENCE_S) == b"2\n"
                before, gone = shell.info, shell.commands.start(["sleep", "1000"])
                shell.rollback(point)
                assert gone.wait(timeout=PATIENCE_S).reason == "killed"
                gone.close()
                shell.commands.forget()
                shell.stdin.write("echo $x $(cat file) $(ls) $PWD\n")
                assert shell.stdout.readline(timeout=PATIENCE_S) == b"1 before file /tmp/own\n", turn
                after = shell.info
                assert (after.id, after.name, after.metadata) == (before.id, "rolled", {"a": "b"})
                assert (after.parent, after.snapshot, after.detached) == (None, "point", False)
                assert shell.commands.run("cat /tmp/own/file", check=True).stdout == "before\n"
                assert shell.files.read("/tmp/own/file") == "before\n"
            child.stdin.write("echo $x\n")
            assert child.stdout.readline(timeout=PATIENCE_S) == b"1\n"
        listed = [one.id for one in sandboxes.list(ended=True) if one.name == "rolled"]
        assert listed == [shell.id]
        with pytest.raises(ramet.InvalidRequest) as caught:
            shell.rollback("nothing")
        assert caught.value.code == "unknown_snapshot"
        shell.stdin.write("echo still\n")
        assert shell.stdout.readline(timeout=PATIENCE_S) == b"still\n"
    assert shell.id not in {one.id for one in sandboxes.list()}


def test_a_kernel_goes_on_from_where_it_is_rolled_back_to():
    with ramet.Sandbox(kernel="python") as sandbox:
        sandbox.run_code("x = 1")
        point = sandbox.snapshot("point")
        sandbox.run_code("x = 2")
        sandbox.rollback(point)
        assert sandbox.run_code("x").text == "1"


def test_a_detached_sandbox_is_rolled_back_by_another_program_and_lives_on():
    with ramet.Sandbox(command=["sleep", "1000"], detach=True) as sandbox:
        sandbox.snapshot("point")
        sandbox.files.write("later", "x")
    other = ramet.Sandbox.connect(sandbox.id)
    other.rollback("point")
    other.let_go()
    again = ramet.Sandbox.connect(sandbox.id)
    assert not again.files.exists("later")
    again.kill()
    again.let_go()


def test_a_snapshot_from_where_more_descriptors_were_allowed_is_forked_with_as_many_as_there_are(own):
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with ramet.Sandbox(command=["cat"]) as made:
        made.snapshot("more-descriptors")
    try:
        program = own.program(
            f"""
import resource, ramet
resource.setrlimit(resource.RLIMIT_NOFILE, ({min(soft, FEW)}, {FEW}))
with ramet.Sandbox("more-descriptors") as child:
    child.stdin.write("goes on\\n")
    print(child.stdout.readline(timeout={PATIENCE_S}).decode(), end="")
"""
        )
        out, err = program.communicate(timeout=2 * PATIENCE_S)
        assert out == b"goes on\n", err.decode()
    finally:
        ramet.snapshots.remove("more-descriptors")
