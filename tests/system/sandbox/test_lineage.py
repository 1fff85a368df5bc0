"""Lineage over the deaths of daemons, cores and of its own database."""

import os

import pytest

import ramet
from ramet.client import sandboxes, snapshots
from ramet.errors import SandboxEnded
from system._daemons import kill_hard

SLEEP = ["sleep", "10000"]


@pytest.fixture
def client(own, tmp_path, monkeypatch):
    """A client of a daemon whose store is this test's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    yield own.client()
    own.end()


def nodes(client):
    tree = sandboxes.lineage(client=client)
    return tree.note, {node.key.partition("@")[0]: node for node in tree.nodes}


def test_what_was_lost_with_core_and_daemon_is_told_and_snapshots_know_what_they_are_of(own, client):
    with ramet.Sandbox(command=SLEEP, name="lost", detach=True, client=client) as lost:
        lost.snapshot("point")
        with ramet.Sandbox("point", detach=True, client=client) as child:
            pass
    for pid in own.pids():
        kill_hard(pid)
    with pytest.raises(SandboxEnded, match="lost with its daemon"):
        ramet.Sandbox.connect("lost", client=client)
    with pytest.raises(SandboxEnded):
        sandboxes.kill(child.id, client=client)
    note, known = nodes(client)
    assert (note, set(known)) == (None, {lost.id, "point"})
    assert known["point"].above == lost.id
    assert known[lost.id].how == "lost with its daemon"
    with ramet.Sandbox("point", client=client) as again:
        assert nodes(client)[1][again.id].above == known["point"].key
    snapshots.remove("point", client=client)
    assert nodes(client)[1] == {}


def test_a_database_that_is_damaged_is_made_anew_of_what_lives_and_this_is_told(own, client, tmp_path):
    with ramet.Sandbox(command=SLEEP, detach=True, client=client) as kept:
        kept.snapshot("point")
    daemon, _ = own.pids()
    kill_hard(daemon)
    for name in os.listdir(tmp_path / "ramet"):
        if name.startswith("lineage.db"):
            (tmp_path / "ramet" / name).write_bytes(b"nonsense" * 1000)
    note, known = nodes(client)
    assert "made anew: it could not be read" in note
    assert set(known) == {kept.id, "point"}
    assert known["point"].above == kept.id
    kinds = [event.type for event in ramet.events("start", follow=False, client=client)]
    assert kinds == ["adopted", "rebuilt"]
    sandboxes.kill(kept.id, client=client)
