"""A fork takes the place of the sandbox that it was forked from; whoever dies, the id is somebody's."""

import os
import signal
import socket

import pytest

import ramet
from ramet.client import sandboxes
from ramet.errors import SandboxEnded
from ramet.wire import messages
from system._daemons import PATIENCE_S, kill_hard

SHELL = ["bash"]
SLEEP = ["sleep", "10000"]


def ask(shell, line):
    shell.stdin.write(f"{line}\n")
    return shell.stdout.readline(timeout=PATIENCE_S)


def end_commands(sandbox):
    """Those that a fork has of its source too."""
    for one in sandbox.commands.list():
        with sandbox.commands.connect(one.id) as command:
            command.kill()
            command.wait(timeout=PATIENCE_S)
    sandbox.commands.forget()


def test_a_fork_in_the_place_of_its_parent_runs_on_and_is_called_as_that_was():
    events = ramet.events()
    with ramet.Sandbox(command=SHELL, name="box", metadata={"of": "me"}) as parent:
        assert ask(parent, "x=1; echo ready") == b"ready\n"
        place, left = parent.id, parent.commands.start(SLEEP)
        with parent.fork() as child, parent.fork() as sibling:
            own = child.id
            feeding = child.commands.start(["cat"], stdin=True)
            assert ask(child, "x=2; echo $x > /tmp/mark; echo $x") == b"2\n"
            assert child.files.exists("/tmp/mark")
            child.promote()
            told = child.info
            assert (told.id, told.name, told.metadata, told.parent) == (place, "box", {"of": "me"}, None)
            # Streams, commands, files and forks of it are what they were.
            assert ask(child, "echo $x") == b"2\n"
            assert child.files.read("/tmp/mark") == "2\n"
            feeding.send("through\n")
            with child.commands.connect(feeding.id) as again:
                assert again.stdout.readline(timeout=PATIENCE_S) == b"through\n"
            with ramet.Sandbox.connect("box") as found:
                assert found.id == place
                assert found.files.read("/tmp/mark") == "2\n"
            with child.fork() as grandchild:
                assert grandchild.info.parent == place
                assert ask(grandchild, "echo $x") == b"2\n"
                end_commands(grandchild)
            assert ask(sibling, "echo $x") == b"1\n"
            # What was there before has ended, under the id that the fork had, with its commands.
            result = parent.wait(timeout=PATIENCE_S)
            assert result.reason == "killed"
            assert left.wait(timeout=PATIENCE_S).reason == "killed"
            note = f"replaced by its fork, which was {own} until then and is {place} now"
            (ended,) = [one for one in sandboxes.list(ended=True) if one.id == own]
            assert (ended.status, ended.name, ended.note) == ("ended", None, note)
            with pytest.raises(SandboxEnded, match=f"is {place} now"):
                ramet.Sandbox.connect(own)
            nodes = {node.key: node for node in sandboxes.lineage().nodes}
            assert nodes[place].ended is None
            assert nodes[sibling.id].above == place
            promoted = next(one for one in events if one.type == "promoted")
            assert (promoted.sandbox, promoted.name, promoted.note) == (place, "box", f"it was {own}")
            # What its parent ran when it was forked runs in it too.
            assert {one.id for one in child.commands.list()} == {feeding.id, left.id}
            assert [one.id for one in parent.commands.list()] == [left.id]
            for one in (feeding, left):
                one.close()
            for each in (sibling, child):
                end_commands(each)
            parent.commands.forget()
    assert place not in {one.id for one in sandboxes.list()}


def test_a_fork_of_a_fork_takes_the_place_of_the_first_and_a_kernel_keeps_its_state():
    with ramet.Sandbox(kernel="python") as first:
        first.run_code("x = 1")
        place = first.id
        with first.fork() as second, second.fork() as third:
            third.run_code("x = 3")
            third.promote(over=first)
            assert third.id == place
            assert third.run_code("x").text == "3"
            assert second.run_code("x").text == "1"


def test_what_is_no_fork_of_it_or_ends_sooner_or_is_busy_takes_no_place():
    with ramet.Sandbox(command=SHELL, detach=True) as parent, ramet.Sandbox(command=SLEEP) as stranger:
        with pytest.raises(ramet.InvalidRequest) as caught:
            stranger.promote()
        assert caught.value.code == "not_descendant"
        with parent.fork() as owned, parent.fork(detach=True) as child:
            for one, over, code in (
                (child, stranger, "not_descendant"),
                (child, child, "not_descendant"),
                (parent, child, "not_descendant"),
                (owned, None, "not_detached"),
                (child, "no-such", "unknown_sandbox"),
            ):
                with pytest.raises(ramet.InvalidRequest) as caught:
                    one.promote(over)
                assert caught.value.code == code
            assert ask(child, "echo up") == b"up\n"
            with parent.fork(detach=True) as other:
                parent.kill()
                with pytest.raises(SandboxEnded):
                    child.promote()
                other.kill()
            assert ask(child, "echo still") == b"still\n"
            child.kill()


def test_a_detached_fork_has_the_time_to_live_of_the_one_that_it_replaces():
    with ramet.Sandbox(command=SLEEP, detach=True, ttl=77, name="first") as parent:
        child = parent.fork(detach=True, ttl=5, name="second")
    child.promote()
    place = child.id
    assert (place, child.info.ttl, child.name) == (parent.id, 77, "first")
    child.let_go()
    with pytest.raises(SandboxEnded, match="replaced by its fork"):
        ramet.Sandbox.connect("second")
    with ramet.Sandbox.connect("first") as again:
        assert (again.id, again.info.ttl, again.running) == (place, 77, True)
        again.kill()


@pytest.mark.parametrize("asked", [True, False], ids=["core-was-asked", "nobody-was"])
def test_whoever_dies_the_id_is_one_sandboxes_and_the_other_is_not_left(own, asked):
    client = own.client()
    with ramet.Sandbox(command=SLEEP, detach=True, name="box", client=client) as parent:
        parent.files.write("/tmp/which", "parent")
        with parent.fork(detach=True) as child:
            child.files.write("/tmp/which", "child")
    place, other = parent.id, child.id
    daemon, core = own.pids()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(os.path.join(own.place, "daemon.sock"))
        # Core acts on it when the daemon is dead.
        os.kill(core, signal.SIGSTOP)
        try:
            if asked:
                messages.send(asking, {"op": "sandbox.promote", "args": {"sandbox": other}})
                for _ in range(2):  # answered by the daemon alone, behind what came before
                    client.ping()
            kill_hard(daemon)
        finally:
            os.kill(core, signal.SIGCONT)
    with ramet.Sandbox.connect("box", client=client) as found:
        assert found.id == place
        assert found.files.read("/tmp/which") == ("child" if asked else "parent")
        sandboxes.kill(other, client=client)
        (ended,) = [one for one in sandboxes.list(ended=True, client=client) if one.id == other]
        note = f"replaced by a fork of it, which is {place} now"
        assert ended.note == (note if asked else "by request")
        assert [one.id for one in sandboxes.list(client=client)] == [place]
        found.kill()
