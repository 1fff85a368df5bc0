"""`a.diff(b)`: how two running sandboxes differ."""

import json
import time

import pytest

import ramet
from system._daemons import build
from system.sandbox._repl import PATIENCE_S

HOME = "/home/user/"


def files_of(difference):
    return {one.path.removeprefix(HOME): one.change for one in difference.files}


def opposite(changes):
    """What the other one of the two has to say of single files."""
    turned = {"added": "deleted", "deleted": "added", "modified": "modified"}
    return {path: turned[change] for path, change in changes.items()}


@pytest.fixture(scope="module")
def family():
    """A parent, its child, and a child of that; the first two have written something."""
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("all", "x")
        parent.files.write("gone/of/parent", "x")
        with parent.fork() as child:
            child.files.write("of-child", "x")
            with child.fork() as grandchild:
                parent.files.write("late", "x")
                yield parent, child, grandchild


def test_a_fork_is_as_its_parent_until_one_of_them_does_something():
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("kept", "x")
        with parent.fork() as child:
            # The copy of the parent's memory may still be read, and is a process there until then.
            end = time.monotonic() + PATIENCE_S
            while (found := child.diff(parent)) and time.monotonic() < end:
                assert not found.files
            assert not found
            child.files.write("kept", "y")
            child.files.write("kept", "x")
            child.files.set("kept", mtime=1.0)
            assert not child.diff(parent)
            child.files.set("kept", mode=0o600)
            assert files_of(child.diff(parent)) == {"kept": "modified"}


def test_what_an_ancestor_wrote_before_a_fork_is_told_of_those_that_it_is_not_common_to(family):
    parent, child, grandchild = family
    assert files_of(grandchild.diff(child)) == {}
    found = files_of(grandchild.diff(parent))
    assert found == {"of-child": "added", "late": "deleted"}
    assert files_of(parent.diff(grandchild)) == opposite(found)


def test_directories_are_told_with_what_only_the_first_has_in_them(family):
    parent = family[0]
    with parent.fork() as one, parent.fork() as other:
        one.commands.run(
            "rm -r gone; mkdir -p new/deep; echo x > new/deep/file; rm all; ln -s late all;"
            "echo x > /dev/shm/here;"
            "rm -r /etc/ssl; mkdir /etc/ssl; echo x > /etc/ssl/only",
            check=True,
        )
        there = {path.path for path in other.files.list("/etc/ssl", depth=0)}
        found, back = files_of(one.diff(other)), files_of(other.diff(one))
    expected = {
        "gone": "deleted", "new": "added", "new/deep": "added", "new/deep/file": "added", "all": "modified",
        "/dev/shm/here": "added", "/etc/ssl/only": "added",
    }  # fmt: skip
    top = {path for path in there if path.count("/") == 3}
    assert found == expected | dict.fromkeys(top, "deleted")
    assert {path for path in back if path.startswith("/etc/ssl/")} == there | {"/etc/ssl/only"}
    assert {path: back[path] for path in back if path.startswith(("gone", "new"))} == {
        "gone": "added", "gone/of": "added", "gone/of/parent": "added", "new": "deleted",
    }  # fmt: skip


def test_processes_are_told_by_number_parent_and_words():
    with ramet.Sandbox(command=["sh", "-c", "read x; exec sleep 10000"]) as parent, parent.fork() as child:
        (before,) = parent.processes()
        assert (before.pid, before.parent, before.command[:2], before.uid) == (2, 1, ("sh", "-c"), 0)
        child.stdin.write("go\n")
        with child.commands.start(["sh", "-c", "sleep 5000 & echo $!; wait"]) as command:
            number = int(command.stdout.readline(PATIENCE_S))
            # A child of the shell is the shell until it has executed its program; the first command, too.
            programs = {("sleep", "5000"), ("sleep", "10000")}
            while not programs <= {one.command for one in child.processes()}:
                child.commands.run("true")
            difference = child.diff(parent)
            changes = {one.pid: one for one in difference.processes}
            assert {pid: one.change for pid, one in changes.items()} == {
                2: "modified", command.pid: "added", number: "added",
            }  # fmt: skip
            assert changes[2].now.command == ("sleep", "10000")
            assert changes[2].was == before
            assert (changes[number].now.parent, changes[number].now.name) == (command.pid, "sleep")
            assert [one.change for one in parent.diff(child).processes].count("deleted") == 2
            assert json.loads(json.dumps(difference.to_dict()))["processes"][0]["pid"] == 2
            command.kill()
            command.wait(timeout=PATIENCE_S)
        child.commands.forget()


def test_a_zombie_has_no_words_and_differs_from_the_living():
    script = "sleep 10000 & echo $!; exec sleep 20000"
    with ramet.Sandbox(command=["sh", "-c", script]) as parent:
        number = int(parent.stdout.readline(PATIENCE_S))
        with parent.fork() as child:
            child.commands.run(f"kill -9 {number}", check=True)
            while {one.pid: one for one in child.processes()}[number].state != "Z":
                child.commands.run("true")
            (change,) = [one for one in child.diff(parent).processes if one.pid == number]
    assert (change.change, change.now.command, change.was.command[-1]) == ("modified", (), "10000")


def test_sandboxes_on_different_roots_are_not_compared(tmp_path, own):
    client = own.client()
    with (
        ramet.Sandbox(command=["sleep", "10000"], client=client) as one,
        ramet.Sandbox(command=["sleep", "10000"], client=client) as same,
    ):
        one.files.write("mine", "x")
        assert files_of(one.diff(same)) == {"mine": "added"}
        tmp_path.chmod(0o755)
        top = build(tmp_path / "root", "sleep")
        with (
            ramet.Sandbox(command=["sleep", "10000"], root=top, cwd="/", client=client) as other,
            pytest.raises(ramet.InvalidRequest) as caught,
        ):
            one.diff(other)
    assert (caught.value.code, caught.value.field) == ("other_root", "other")
