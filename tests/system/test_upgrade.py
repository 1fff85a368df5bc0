"""A daemon hands over to the next; a core of another program gets nothing new, and ends when it is empty."""

import threading
from pathlib import Path

import pytest

import ramet
from _core_program import another_build
from ramet.client import Client, sandboxes, snapshots
from ramet.errors import DaemonLost
from ramet.native.locate import build_of, find_program
from system._daemons import Own, wait_gone


@pytest.fixture
def next_program(tmp_path: Path) -> Path:
    """A later core."""
    path = tmp_path / "next"
    path.mkdir()
    tmp_path.chmod(0o755)
    return another_build(path)


def hand_over(client: Client) -> None:
    wait_gone(client.hand_over().pid)


def detached(client: Client, **options: object) -> "ramet.Sandbox":
    return ramet.Sandbox("python", client=client, detach=True, **options)


def test_creates_go_to_the_new_program_and_the_old_one_ends_when_it_is_empty(
    own: Own, next_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = own.client()
    with detached(client) as before:
        before.run_code("x = 41")
        first = client.status().core
        assert first is not None
        assert first.program.endswith(f"+{build_of(find_program())}")
    monkeypatch.setenv("RAMET_CORE", str(next_program))
    hand_over(client)
    status = client.status()
    assert (status.core, [one.pid for one in status.older]) == (None, [first.pid])
    with detached(client) as after:
        status = client.status()
        assert status.core is not None
        assert status.core.program.endswith(f"+{build_of(next_program)}")
        assert [one.pid for one in status.older] == [first.pid]
        assert {one.id for one in sandboxes.list(client=client)} == {before.id, after.id}
        after.kill()
    # A second change of daemons finds both again.
    hand_over(client)
    status = client.status()
    assert status.core is not None
    assert [one.pid for one in status.older] == [first.pid]
    with ramet.Sandbox.connect(before.id, client=client) as again:
        # Its forks and what is kept of it are where it is; what is made of that is in the new core.
        with again.fork(detach=True) as child:
            assert child.run_code("x + 1").text == "42"
            assert [one.sandboxes for one in client.status().older] == [2]
            child.kill()
        point = again.snapshot("before-the-end")
        with detached(client) as other, ramet.Sandbox(point, client=client) as forked:
            assert forked.run_code("x").text == "41"
            assert [one.sandboxes for one in client.status().older] == [1]
            other.kill()
        again.kill()
    wait_gone(first.pid)
    status = client.status()
    assert (status.core is not None, status.older) == (True, ())
    assert sorted(name for name in own.entries() if name.startswith("core")) == ["core.sock"]
    snapshots.remove("before-the-end", client=client)


def test_at_its_deadline_an_old_program_ends_with_what_it_has(
    own: Own, next_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = own.client()
    with detached(client) as before:
        before.run_code("x = 41")
        first = client.status().core
        assert first is not None
    monkeypatch.setenv("RAMET_CORE", str(next_program))
    monkeypatch.setenv("RAMET_UPGRADE_DEADLINE_S", "0.5")
    hand_over(client)
    client.ping()
    wait_gone(first.pid)
    ended = next(one for one in sandboxes.list(ended=True, client=client) if one.id == before.id)
    assert (ended.status, ended.note) == ("ended", "an upgrade's deadline came")
    assert client.status().older == ()


def test_the_same_program_goes_on_and_what_is_under_way_is_answered(own: Own) -> None:
    client = own.client()
    with detached(client) as sandbox:
        sandbox.run_code("x = 41")
    first = client.status().core
    assert first is not None
    begun, results = threading.Event(), []

    def work() -> None:
        # By the daemon: a client's first run goes over no lane.
        with Client(own.place) as other:
            results.append(other.run("echo begun; sleep 1; echo done", on_stdout=lambda _: begun.set()))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    asked = [threading.Thread(target=lambda: results.append(own.client().ping())) for _ in range(8)]
    for one in asked:
        one.start()
    hand_over(client)
    for one in (thread, *asked):
        one.join(30)
    assert sorted(type(one).__name__ for one in results) == ["CommandResult"] + ["Pong"] * 8
    assert next(one.stdout for one in results if hasattr(one, "stdout")) == "begun\ndone\n"
    status = client.status()
    assert status.core is not None
    assert (status.core.pid, status.older) == (first.pid, ())
    with ramet.Sandbox.connect(sandbox.id, client=client) as again:
        assert again.run_code("x").text == "41"
        again.kill()


def test_no_daemon_is_started_to_hand_over(own: Own) -> None:
    with pytest.raises(DaemonLost):
        own.client(start=False).hand_over()
    assert own.entries() == set()
