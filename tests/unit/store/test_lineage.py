"""The lineage: written down, compared with what is so, made anew when it is lost, never trusted blindly."""

import os
import sqlite3
import time

import pytest

from ramet.errors import SnapshotError
from ramet.store import lineage as store_lineage
from ramet.store.lineage import NAME, Born, Ended, Kept, Lineage, Removed
from ramet.store.models import SnapshotInfo

PLACE = "/run/one"


def born(number, parent=None, snapshot=None):
    return Born(f"{number:012x}", None, parent and f"{parent:012x}", snapshot, "true", float(number))


def ended(number, at=1000.0):
    return Ended(f"{number:012x}", at, "exit code 0")


def saved(name, created=10.0, sandbox=1):
    return SnapshotInfo(name, created=created, metadata={"created": created, "parent": f"{sandbox:012x}"})


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "data" / "ramet")


@pytest.fixture
def write(directory):
    """A daemon's writer; `living` and `there` are what it compares with."""
    lineage = Lineage(directory, PLACE)

    def write(*changes, living=(), there=()):
        return lineage.write(changes, living, lambda: there)

    write.lineage = lineage
    return write


def told(lineage):
    sandboxes, snapshots = lineage.read()
    return (
        [(int(row["id"], 16), row["ended"] is None) for row in sandboxes],
        [(row["name"], row["removed"] is None) for row in snapshots],
    )


def test_ancestors_are_told_while_something_that_comes_from_them_lives(write):
    write(born(1), born(2, parent=1), Kept("point", 3.0, f"{2:012x}", None, None))
    write(born(4, snapshot="point"), born(5, parent=4), born(6))
    write(ended(1), ended(2), ended(4), ended(6), Removed("point", 20.0))
    assert told(write.lineage) == ([(1, False), (2, False), (4, False), (5, True)], [("point", False)])
    write(ended(5))
    assert told(write.lineage)[0] == []


def test_a_name_that_was_used_again_is_another_snapshot(write):
    write(born(1), Kept("point", 2.0, f"{1:012x}", None, None), born(3, snapshot="point"))
    write(Removed("point", 4.0), Kept("point", 5.0, f"{3:012x}", None, None), born(6, snapshot="point"))
    sandboxes, snapshots = write.lineage.read()
    assert [(row["name"], row["created"], row["removed"]) for row in snapshots] == [
        ("point", 2.0, 4.0),
        ("point", 5.0, None),
    ]
    assert [row["snapshot"] for row in sandboxes] == [None, snapshots[0]["number"], snapshots[1]["number"]]


def test_what_an_earlier_daemon_left_living_has_ended_unless_it_was_adopted(write, directory):
    write(born(1), born(2))
    Lineage(directory, "/run/other").write([born(3)], [], list)
    after = Lineage(directory, PLACE)
    assert after.write([], [born(2)], list) is None
    sandboxes, _ = after.read()
    assert [(int(row["id"], 16), row["own"]) for row in sandboxes] == [(2, 1), (3, 0)]


def test_snapshots_are_what_their_files_say(write, directory):
    write(Kept("gone", 1.0, None, None, None))
    after = Lineage(directory, PLACE)
    assert after.write([], [], lambda: [saved("there"), SnapshotInfo("bad", damage="torn")]) is None
    assert told(after)[1] == [("there", True)]


@pytest.mark.parametrize("how", ["lost", "garbage", "torn"])
def test_one_that_is_lost_or_damaged_is_made_anew_of_what_there_is_and_says_so(write, directory, how):
    path = f"{directory}/{NAME}"
    write(*[born(number) for number in range(1, 500)], there=[saved("point")])
    if how == "lost":
        os.unlink(path)
    else:
        write.lineage.close()  # who has it open has what was written last beside it, and mends it by that
        with open(path, "r+b") as file:
            file.seek(0 if how == "garbage" else 100)
            file.write(b"\xff" * 12000)
    why = write(born(900), living=[born(2)], there=[saved("point")])
    assert why is not None
    assert ("gone" in why) == (how == "lost")
    assert told(write.lineage) == ([(2, True), (900, True)], [("point", True)])
    assert os.path.exists(f"{path}.damaged") == (how != "lost")
    assert write(ended(900)) is None


def test_one_that_is_new_is_no_loss(directory):
    lineage = Lineage(directory, PLACE)
    kept_meanwhile = saved("point", created=time.time())
    assert lineage.write([born(1)], [], lambda: [kept_meanwhile]) is None
    assert os.stat(f"{directory}/{NAME}").st_mode & 0o777 == 0o600


def test_one_of_a_later_version_is_left_as_it_is_and_named(write, directory):
    write(born(1))
    with sqlite3.connect(f"{directory}/{NAME}") as base:
        base.execute("PRAGMA user_version = 9")
    base.close()
    with pytest.raises(SnapshotError, match="version 9") as caught:
        write(born(2))
    assert caught.value.code == "lineage_unusable"
    assert not os.path.exists(f"{directory}/{NAME}.damaged")


def test_a_directory_that_others_can_write_is_refused(directory):
    os.makedirs(directory)
    os.chmod(directory, 0o777)
    with pytest.raises(SnapshotError, match="others can write it"):
        Lineage(directory, PLACE).write([born(1)], [], list)


def test_the_past_is_bounded_and_ancestors_are_not_forgotten(write, monkeypatch):
    monkeypatch.setattr(store_lineage, "PAST_MAX", 50)
    monkeypatch.setattr(store_lineage, "PRUNE_AT", 10)
    many = range(2, 64)
    write(born(1), *[born(number) for number in many], born(10_000, parent=1))
    write(ended(1, at=1.0), *[ended(number, at=float(number)) for number in many])
    with write.lineage._opened() as base:
        left = [int(row[0], 16) for row in base.execute("SELECT id FROM sandboxes ORDER BY created")]
    assert left[0] == 1
    assert left[-1] == 10_000
    assert len(left) == 50 + 2
