"""Which ids a sandbox has, and that a result says so."""

import os
from pathlib import Path

import pytest

import ramet
from ramet.client import Client
from ramet.native.ids import ROOT_BASE, delegated_ids


def ids(line: str = "cat /proc/self/uid_map") -> list[list[int]]:
    return [[int(word) for word in row.split()] for row in ramet.run(line).stdout.splitlines()]


def test_uid_0_inside_and_no_group_besides():
    result = ramet.run("id -u; id -g; id -un")
    assert result.stdout.split() == ["0", "0", "root"]


def test_a_result_and_the_status_say_whether_there_is_one_id():
    single = sum(count for _, _, count in ids()) == 1
    assert ramet.run("true").single_uid == single
    with Client() as client:
        core = client.status().core
    assert core is not None
    assert core.ids == ("single" if single else "range")


@pytest.mark.root
def test_root_gives_a_high_range_and_never_itself(shared):
    _, core = shared.pids()
    text = Path(f"/proc/{core}/uid_map").read_text()
    rows = [[int(word) for word in row.split()] for row in text.splitlines()]
    assert rows[0][0] == 0
    assert all(first > 0 for _, first, _ in rows)
    if int(Path("/proc/self/uid_map").read_text().split()[2]) == 2**32 - 1:
        assert rows[0][1] >= ROOT_BASE
        assert rows[0][2] == 65536


@pytest.mark.root
def test_two_cores_of_root_share_no_id(own, shared):
    maps = [Path(f"/proc/{daemon.pids()[1]}/uid_map").read_text() for daemon in (own, shared)]
    assert maps[0] != maps[1]


@pytest.mark.rootless
def test_an_ordinary_user_without_subordinate_ids_has_one(shared):
    if delegated_ids() is not None:
        pytest.skip("this user has subordinate ids")
    _, core = shared.pids()
    row = Path(f"/proc/{core}/uid_map").read_text().split()
    assert row == ["0", str(os.getuid()), "1"]
    assert shared.client().run("true").single_uid
    result = shared.client().run(["python3", "-c", "import os; os.setuid(1)"])
    assert "Invalid argument" in result.stderr


@pytest.mark.rootless
def test_subordinate_ids_are_used_where_newuidmap_grants_them(shared):
    if (granted := delegated_ids()) is None:
        pytest.skip("no subordinate ids for this user, or no newuidmap that works")
    _, core = shared.pids()
    rows = [row.split() for row in Path(f"/proc/{core}/uid_map").read_text().splitlines()]
    assert ",".join(" ".join(row) for row in rows) == granted.uids
    assert not shared.client().run("true").single_uid


def test_other_ids_cannot_be_taken_without_the_capability_even_where_there_is_a_range():
    result = ramet.run(["python3", "-c", "import os; os.setuid(12)"])
    assert result.stderr.splitlines()[-1].split("]")[0] in {
        "OSError: [Errno 22",
        "PermissionError: [Errno 1",
    }
