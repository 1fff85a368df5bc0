"""Forks that go straight to core: all see them as any other, and they end with their owner as any other."""

import contextlib
import errno
import json
import os
import resource

import pytest

import ramet
from ramet._descriptors import close_all
from ramet.client import sandboxes
from ramet.client._forks import CoreLine
from ramet.errors import DaemonLost, InvalidRequest, RametError, SandboxEnded, Unforkable
from ramet.native import _protocol as p
from ramet.native import frames
from system._daemons import PATIENCE_S, kill_hard
from system.sandbox._repl import PYTHON, ask, ask_all, tell
from system.sandbox.test_ownership import until

CLIENT = """
import json, sys
import ramet
for _ in range(3):
    sandbox = ramet.Sandbox("point")
child = sandbox.fork()
print(json.dumps([sandbox.id, child.id]), flush=True)
sys.stdin.read()
"""


def is_past_daemon(sandbox):
    return sandbox._open.held.line is CoreLine


@pytest.fixture
def client(own):
    """A client of a daemon of its own, which has forked the snapshot `point` once."""
    client = own.client()
    with ramet.Sandbox(command=[*PYTHON, "past-the-daemon"], client=client) as source:
        tell(source, "x = 41", "n = open('f', 'w').write('on disk')")
        source.snapshot("point")
    ramet.Sandbox("point", client=client).close()
    yield client
    # A test may have ended the daemon; what is on disk is the next one's.
    ramet.client.snapshots.remove("point", client=client)


def test_a_second_fork_goes_past_the_daemon_which_tells_of_it_at_once(client):
    with ramet.Sandbox("point", metadata={"a": "b"}, client=client) as sandbox:
        assert is_past_daemon(sandbox)
        (told,) = sandboxes.list(client=client)
        assert told == sandbox.info
        assert (told.snapshot, told.metadata, told.detached) == ("point", {"a": "b"}, False)
        assert ask(sandbox, "(x + 1, open('f').read())") == "(42, 'on disk')"
        ended = sandboxes.kill(sandbox.id, client=client)
        result = sandbox.wait(timeout=PATIENCE_S)
    assert (ended.end.reason, ended.note, result.reason) == ("killed", "by request", "killed")


def test_many_are_forked_in_one_request_and_end_one_by_one(client):
    children = ramet.client.fork(snapshot="point", n=70, client=client)
    with children:
        assert all(map(is_past_daemon, children))
        assert len({child.id for child in children}) == 70
        assert set(ask_all(children[::10], "x")) == {"41"}
        children[3].kill()
        assert len(sandboxes.list(client=client)) == 69
    assert sandboxes.list(client=client) == ()


def test_a_live_fork_of_one_goes_past_the_daemon_too_and_its_lineage_is_told(client):
    with ramet.Sandbox("point", client=client) as parent:
        tell(parent, "x = 7")
        with parent.fork(metadata={"n": "1"}) as child, child.fork() as grandchild:
            assert is_past_daemon(child)
            assert is_past_daemon(grandchild)
            tell(child, "x = 8")
            assert ask_all((parent, child, grandchild), "x") == ["7", "8", "7"]
            told = {one.id: one for one in sandboxes.list(client=client)}
            assert told == {one.id: one.info for one in (parent, child, grandchild)}
            assert [told[one.id].parent for one in (child, grandchild)] == [parent.id, child.id]
            assert told[child.id].pause_ms > 0
            point = grandchild.snapshot("of-a-live-fork")
    assert point.sandbox == grandchild.id
    with ramet.Sandbox("of-a-live-fork", client=client) as again:
        assert ask(again, "(x, open('f').read())") == "(7, 'on disk')"
    ramet.client.snapshots.remove("of-a-live-fork", client=client)


def test_the_second_live_fork_of_what_the_daemon_made_goes_past_it(client):
    with ramet.Sandbox("point", name="named", metadata={"of": "it"}, client=client) as parent:
        first, second = parent.fork(), parent.fork(metadata={"a": "b"})
        assert [is_past_daemon(one) for one in (parent, first, second)] == [False, False, True]
        told = {one.id: one for one in sandboxes.list(client=client)}
        assert told[second.id] == second.info
        assert (second.info.parent, second.info.name, second.info.metadata) == (parent.id, None, {"a": "b"})
        assert second.info.epoch == parent.info.epoch + 1
        assert ask_all((parent, first, second), "x") == ["41"] * 3
        first.close()
        second.close()


def test_another_program_forks_one_by_its_id(client, own):
    with ramet.Sandbox("point", client=client) as sandbox:
        tell(sandbox, "x = 5")
        with ramet.client.fork(sandbox=sandbox.id, client=own.client()) as (child,):
            assert (ask(child, "x"), child.info.parent) == ("5", sandbox.id)


def test_what_cannot_be_carried_is_refused_by_name(client):
    with ramet.Sandbox("point", client=client) as sandbox:
        tell(sandbox, "import socket", "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)")
        with pytest.raises(Unforkable, match="netlink"):
            sandbox.fork()
        assert ask(sandbox, "x") == "41"


def test_a_fork_of_the_dead_tells_of_what_they_died(client):
    with ramet.Sandbox("point", client=client) as sandbox:
        sandbox.stdin.write("exec('import os; os._exit(3)')\n")
        until(lambda: not sandbox.running)
        with pytest.raises(SandboxEnded, match="exit code 3"):
            sandbox.fork()
        assert sandbox.wait().exit_code == 3


def test_a_detached_one_is_known_come_back_to_and_ends_with_its_command_or_at_its_time(client):
    kept = ramet.Sandbox("point", detach=True, ttl=60, client=client)
    timed = ramet.Sandbox("point", detach=True, ttl=1, client=client)
    assert is_past_daemon(kept)
    assert list(sandboxes.list(client=client)) == [kept.info, timed.info]
    assert (kept.info.detached, kept.info.ttl) == (True, 60)
    tell(kept, "x = 'kept'")
    for _ in range(3):
        kept.close()
        kept = ramet.Sandbox.connect(kept.id, client=client)
        assert ask(kept, "x") == "'kept'"
    kept.stdin.write("exec('import os; os._exit(3)')\n")
    kept.close()
    timed.close()
    until(lambda: not sandboxes.list(client=client))
    told = {one.id: one for one in sandboxes.list(ended=True, client=client)}
    assert told[kept.id].end.exit_code == 3
    assert told[timed.id].note == "nobody asked for it in 1 s"


def test_a_detached_one_whose_streams_core_cannot_hold_is_refused_and_ends(client, monkeypatch):
    send = frames.send

    def without_hold(sock, kind, *words):
        if kind == p.HOLD:
            raise OSError(errno.ETOOMANYREFS, "too many references")
        return send(sock, kind, *words)

    monkeypatch.setattr(frames, "send", without_hold)
    with pytest.raises(RametError, match="cannot be asked for") as refused:
        ramet.Sandbox("point", detach=True, client=client)
    assert refused.value.errno == errno.ETOOMANYREFS
    until(lambda: not sandboxes.list(client=client))


def test_detached_ones_outlive_a_killed_client_and_then_a_killed_daemon(own, client):
    source = CLIENT.replace('"point"', '"point", detach=True').replace("fork(", "fork(detach=True")
    program = own.program(source)
    ids = json.loads(program.stdout.readline())
    held = ramet.Sandbox("point", detach=True, client=client)
    kill_hard(program.pid)
    with ramet.Sandbox.connect(ids[1], client=client) as child:
        assert ask(child, "x") == "41"
    kill_hard(own.pids()[0])
    with pytest.raises(DaemonLost, match="may live on"):
        held.wait(timeout=PATIENCE_S)
    for number in (*ids, held.id):
        with ramet.Sandbox.connect(number, client=client) as one:
            assert ask(one, "x") == "41"
    held.close()
    assert len(sandboxes.list(client=client)) == 5
    for one in sandboxes.list(client=client):
        sandboxes.kill(one.id, client=client)


def test_a_deadline_ends_one(client):
    with ramet.Sandbox("point", timeout=0.2, client=client) as sandbox:
        assert is_past_daemon(sandbox)
        assert sandbox.wait(timeout=PATIENCE_S).reason == "timeout"


def test_names_are_the_daemons(client):
    with ramet.Sandbox("point", name="one", client=client) as named:
        assert not is_past_daemon(named)
        with pytest.raises(InvalidRequest, match="'one' already"):
            ramet.Sandbox("point", name="one", client=client)


def test_a_snapshot_that_was_removed_is_unknown_and_one_of_the_same_name_is_another(client):
    ramet.Sandbox("point", client=client).close()
    ramet.client.snapshots.remove("point", client=client)
    with pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox("point", client=client)
    assert caught.value.code == "unknown_snapshot"
    with ramet.Sandbox(command=PYTHON, client=client) as source:
        tell(source, "x = 'other'")
        source.snapshot("point")
    for _ in range(2):
        with ramet.Sandbox("point", client=client) as sandbox:
            assert ask(sandbox, "x") == "'other'"


def test_a_killed_client_takes_along_what_it_forked_past_the_daemon(own, client):
    program = own.program(CLIENT)
    ids = json.loads(program.stdout.readline())
    assert set(ids) <= {one.id for one in sandboxes.list(client=client)}
    kill_hard(program.pid)
    until(lambda: not sandboxes.list(client=client))
    ended = [one for one in sandboxes.list(ended=True, client=client) if one.id in ids]
    assert len(ended) == 2
    for one in ended:  # its input ended in the same moment
        assert one.end.reason == "exit" or one.note == "its owner had it ended, or went"


def test_a_fork_of_the_clients_process_does_not_keep_one_alive(client):
    sandbox = ramet.Sandbox("point", client=client)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    sandbox.close()
    until(lambda: not sandboxes.list(client=client))
    os.close(reader)
    os.close(writer)
    os.waitpid(child, 0)


def test_a_killed_daemon_takes_them_along_and_the_next_knows_none(own, client):
    daemon, core = own.pids()
    sandbox = ramet.Sandbox("point", client=client)
    kept = ramet.Sandbox("point", detach=True, ttl=60, client=client)
    assert is_past_daemon(sandbox)
    kill_hard(daemon)
    with pytest.raises(DaemonLost, match="ended with it"):
        sandbox.wait(timeout=PATIENCE_S)
    sandbox.close()
    assert [one.id for one in sandboxes.list(client=client)] == [kept.id]
    assert own.client().status().core.pid == core
    kept.close()
    sandboxes.kill(kept.id, client=client)
    for _ in range(3):
        with ramet.Sandbox("point", client=client) as again:
            assert ask(again, "x") == "41"
    assert is_past_daemon(again)


def test_a_killed_core_ends_them_and_the_next_fork_is_of_another(own, client):
    sandbox = ramet.Sandbox("point", client=client)
    kill_hard(own.pids()[1])
    with pytest.raises(DaemonLost):
        sandbox.wait(timeout=PATIENCE_S)
    sandbox.close()
    for _ in range(3):
        with ramet.Sandbox("point", client=client) as again:
            assert ask(again, "x") == "41"
    assert is_past_daemon(again)
    assert sandboxes.list(client=client) == ()


def test_a_client_without_descriptors_is_told_so_and_leaves_nothing(client):
    ramet.Sandbox("point", client=client).close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(4):
            os.close(held.pop())
        with pytest.raises(RametError) as caught:
            ramet.Sandbox("point", client=client)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        close_all(held)
    assert caught.value.code == "busy"
    until(lambda: not sandboxes.list(client=client))
    with ramet.Sandbox("point", client=client) as again:
        assert ask(again, "x") == "41"
