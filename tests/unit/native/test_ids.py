"""Which ids core gets: delegated ranges, one id, or an unused high range for root."""

import os

import pytest

from ramet.errors import DaemonStartError
from ramet.native import ids

HOST = [(0, 4_294_967_295)]


def test_root_of_a_host_takes_blocks_from_the_high_base():
    assert ids.range_at(HOST, 0) == (0x70000000, 65536)
    assert ids.range_at(HOST, 3) == (0x70000000 + 3 * 65536, 65536)


def test_no_block_ever_holds_host_uid_0():
    for ranges in (HOST, [(0, 65537)], [(0, 1), (1, 65536)], [(0, 200_000)]):
        index = 0
        while (block := ids.range_at(ranges, index)) and index < 40:
            assert block[0] > 0
            index += 1
        assert index > 0


def test_blocks_end_where_the_ids_end():
    assert ids.range_at(HOST, (4_294_967_295 - 0x70000000) // 65536) is None


def test_root_of_a_container_takes_blocks_from_the_end_of_what_is_mapped():
    assert ids.range_at([(0, 65536)], 0) == (32768, 32768)
    assert ids.range_at([(0, 65536)], 1) is None
    assert ids.range_at([(0, 1_000_000)], 0) == (1_000_000 - 65536, 65536)


@pytest.mark.parametrize("ranges", [[], [(0, 1)], [(1000, 1)]])
def test_one_id_is_no_range(ranges):
    assert ids.range_at(ranges, 0) is None


def test_a_reserved_block_is_not_given_twice():
    first = ids._reserve(HOST, HOST)
    second = ids._reserve(HOST, HOST)
    assert first.uids != second.uids
    first.close()
    third = ids._reserve(HOST, HOST)
    assert third.uids == first.uids
    second.close()
    third.close()


def test_too_few_ids_are_an_error_that_says_so():
    with pytest.raises(DaemonStartError) as caught:
        ids._reserve([(0, 1)], [(0, 1)])
    assert caught.value.code == "no_ids"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("me:100000:65536\n", (100000, 65536)),
        ("1000:200000:1000\nother:1:1\n", (200000, 1000)),
        ("me:100000:10\nme:500000:70000\n", (500000, 65536)),
        ("other:100000:65536\n", None),
        ("me:x:65536\nme:1\n\nme::\nme:5:0\n", None),
    ],
)
def test_the_largest_range_of_the_user_is_found(tmp_path, text, expected):
    (tmp_path / "subuid").write_text(text)
    assert ids.subordinate_range(str(tmp_path / "subuid"), {"me", "1000"}) == expected


def test_no_file_means_no_range():
    assert ids.subordinate_range("/does/not/exist", {"me"}) is None


def test_helpers_without_privilege_are_of_no_use(tmp_path):
    for name in ("newuidmap", "newgidmap"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert ids.find_helpers((str(tmp_path),)) is None
    assert ids.find_helpers(("/does/not/exist",)) is None


def test_the_ids_of_this_process_are_read_from_the_kernel():
    ranges = ids.mapped_ranges("/proc/self/uid_map")
    assert any(first <= os.getuid() < first + count for first, count in ranges)


@pytest.mark.rootless
def test_an_ordinary_user_can_always_map_itself_alone():
    *_, last = ids.choose_ids()
    assert (last.uids, last.gids) == (f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1")
