"""The store's directory: where it is, and that nobody else can write it."""

import os
from pathlib import Path

import pytest

from ramet.errors import SnapshotError
from ramet.store import Store, data_path, places


def test_it_is_in_the_users_data_directory():
    assert data_path({"XDG_DATA_HOME": "/data", "HOME": "/home/x"}) == "/data/ramet"
    assert data_path({"HOME": "/home/x"}) == "/home/x/.local/share/ramet"
    assert data_path({"XDG_DATA_HOME": "relative", "HOME": "/home/x"}) == "/home/x/.local/share/ramet"


def test_it_is_made_for_its_user_alone(tmp_path):
    with Store(str(tmp_path / "a/b")) as store:
        for name in (".", "snapshots", "tmp"):
            assert os.stat(Path(store.root) / name).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", [".", "snapshots", "tmp"])
def test_a_directory_that_others_can_write_is_refused(tmp_path, name):
    Store(str(tmp_path / "s")).close()
    os.chmod(tmp_path / "s" / name, 0o770)
    with pytest.raises(SnapshotError, match="others can write it") as caught:
        Store(str(tmp_path / "s"))
    assert caught.value.code == "store_unusable"


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(SnapshotError):
            Store(str(tmp_path / name))


@pytest.mark.root
def test_another_users_directory_is_refused(tmp_path):
    (tmp_path / "s").mkdir()
    os.chown(tmp_path / "s", 1000, 1000)
    with pytest.raises(SnapshotError, match="belongs to uid 1000"):
        Store(str(tmp_path / "s"))


@pytest.mark.rootless
def test_a_place_that_cannot_be_made_is_told():
    with pytest.raises(SnapshotError, match="Permission denied"):
        Store("/nowhere-at-all/store")


def test_files_are_closed_to_others(tmp_path):
    from unit.store.material import image_of, save

    with Store(str(tmp_path / "s")) as store:
        save(store, "x")
        assert image_of(store, "x").stat().st_mode & 0o777 == 0o600
        assert image_of(store, "x").parent.stat().st_mode & 0o777 == 0o700


def test_a_place_for_what_exceeds_memory_is_made_once_and_is_core_s_to_write(tmp_path):
    place = tmp_path / "data/ramet"
    for _ in range(2):
        made = places.make_overflow(str(place))
        assert made is not None
        assert os.fstat(made).st_mode & 0o7777 == (0o1733 if os.geteuid() == 0 else 0o700)
        os.close(made)
    assert place.stat().st_mode & 0o077 == 0


def test_where_there_can_be_no_such_place_there_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    assert places.make_overflow(str(tmp_path / "file/ramet")) is None
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert places.make_overflow(str(tmp_path / "open")) is None
