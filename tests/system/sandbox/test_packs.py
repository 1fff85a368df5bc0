"""A snapshot as one file: written whole, made a snapshot again elsewhere, or refused by name."""

import os

import pytest

import ramet
from ramet.client import Client, snapshots
from system.sandbox._repl import PYTHON, ask, tell


@pytest.fixture
def elsewhere(own, tmp_path):
    """Another daemon, with another place for what it keeps: as of another user, or machine."""
    client = Client(own.place, data_dir=str(tmp_path / "data"))
    own.clients.append(client)
    return client


def test_what_was_packed_is_forked_elsewhere_and_damage_and_names_are_refused(elsewhere, tmp_path):
    pack, damaged = tmp_path / "pack", tmp_path / "damaged"
    try:
        with ramet.Sandbox(command=PYTHON) as source:
            tell(source, "x = 41", "n = open('f', 'w').write('on disk')")
            source.snapshot("packed-base")
        with ramet.Sandbox("packed-base") as source:
            tell(source, "x += 1")
            source.snapshot("packed-delta")
        assert snapshots.get("packed-delta").parent == "packed-base"
        assert snapshots.pack("packed-delta", pack).name == "packed-delta"
        assert os.stat(pack).st_mode & 0o777 == 0o600
        with pytest.raises(ramet.SnapshotError, match="File exists") as there:
            snapshots.pack("packed-delta", pack)
        assert there.value.code == "snapshot_not_packed"
        with pytest.raises(ramet.InvalidRequest) as taken:
            snapshots.unpack(pack)
        assert taken.value.code == "name_taken"
    finally:
        for name in ("packed-delta", "packed-base"):
            snapshots.remove(name)
    assert snapshots.unpack(pack, client=elsewhere).parent is None
    for name in ("packed-delta", "renamed"):
        if name == "renamed":
            snapshots.unpack(pack, name, client=elsewhere)
        with ramet.Sandbox(name, client=elsewhere) as fork:
            assert ask(fork, "(x, open('f').read())") == "(42, 'on disk')"
    content = bytearray(pack.read_bytes())
    for place in (100, len(content) // 2, len(content) - 10):
        content[place] ^= 1
        damaged.write_bytes(content)
        content[place] ^= 1
        with pytest.raises(ramet.SnapshotDamaged):
            snapshots.unpack(damaged, "damaged", client=elsewhere)
    for name in ("../x", "/etc/x", "a/b", ".hidden", ""):
        with pytest.raises(ramet.InvalidRequest) as refused:
            snapshots.unpack(pack, name, client=elsewhere)
        assert refused.value.field == "name"
    os.mkfifo(tmp_path / "fifo")
    for path in ("fifo", "absent", "."):
        with pytest.raises(ramet.InvalidRequest) as refused:
            snapshots.unpack(tmp_path / path, client=elsewhere)
        assert refused.value.field == "path"
    assert [one.name for one in snapshots.list(client=elsewhere)] == ["packed-delta", "renamed"]
