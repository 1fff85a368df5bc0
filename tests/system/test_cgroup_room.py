"""A delegated cgroup that processes are in is divided all the same, and is as it was when Ramet is gone."""

import os
import subprocess
from pathlib import Path

import pytest

import ramet
from ramet.native import cgroup_room, cgroups
from ramet.native.cgroup_room import BESIDE, words

PLACE = cgroups.find_place()


def unified() -> tuple[str, set[str]]:
    """A cgroup of version 2 that is this user's to divide, and what it has to give; "" for none."""
    if PLACE.version == 2:
        ramet.run("true")  # where it is all that there is, the session's daemon has made room in it
        return PLACE.parents[0][1], {"memory"}
    mount, _ = cgroups._mounts("/proc/self/mountinfo", "")
    own = cgroups._own_cgroups("/proc/self/cgroup")
    directory = cgroups._below(mount, own[""]) if mount is not None and "" in own else None
    if directory is None or not cgroups._writable(directory):
        return "", set()
    # Others are given to threads too, while processes are there.
    return directory, words(f"{directory}/cgroup.controllers") & {"memory", "io", "hugetlb"}


def divided(directory: str) -> list[str]:
    return [entry.name for entry in os.scandir(directory) if entry.is_dir()]


@pytest.fixture
def sleeper():
    """A process that is in whichever cgroup a test puts it."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process
    process.communicate()


def test_room_is_made_for_controllers_and_given_back(sleeper):
    directory, offered = unified()
    if not offered:
        pytest.skip("no cgroup of version 2 with a controller is this user's")
    (name, *_) = sorted(offered)
    had = words(f"{directory}/cgroup.subtree_control")
    inner = Path(directory, "ramet.test")
    inner.mkdir()
    try:
        if name not in had:
            Path(directory, "cgroup.subtree_control").write_text(f"+{name}")
        (inner / "cgroup.procs").write_text(str(sleeper.pid))
        with pytest.raises(OSError, match="busy"):
            (inner / "cgroup.subtree_control").write_text(f"+{name}")
        assert cgroup_room.make_room(str(inner))
        (inner / "cgroup.subtree_control").write_text(f"+{name}")
        assert words(f"{inner}/{BESIDE}/cgroup.procs") == {str(sleeper.pid)}
        (inner / "other").mkdir()
        cgroup_room.give_back(str(inner))  # not yet: somebody else has what it gives
        assert words(f"{inner}/cgroup.subtree_control") == {name}
        (inner / "other").rmdir()
        cgroup_room.give_back(str(inner))
        assert words(f"{inner}/cgroup.procs") == {str(sleeper.pid)}
        assert divided(str(inner)) == []
        assert words(f"{inner}/cgroup.subtree_control") == set()
    finally:
        sleeper.communicate()
        cgroups._remove_tree(str(inner))
        if name not in had:
            Path(directory, "cgroup.subtree_control").write_text(f"-{name}")


CLIENT = """
import os, sys
with open(f"{sys.argv[1]}/cgroup.procs", "w") as file: file.write("0")
import ramet
where = lambda: open("/proc/self/cgroup").read().strip().rpartition("/")[2]
hog = ["python3", "-S", "-c", "held = []\\nwhile True: held.append(bytearray(1 << 20))"]
result = ramet.run(hog, limits={"memory": "64M"}, timeout=60)
print(where(), result.reason, result.limit, *[result.enforced_by[name] for name in ("memory", "cpus")], sep=",", flush=True)
sys.stdin.readline()
print(where(), flush=True)
sys.stdin.readline()
"""  # noqa: E501


@pytest.mark.skipif(PLACE.version != 2, reason="no place in version 2 of cgroups")
def test_who_has_one_cgroup_and_is_in_it_gets_its_controllers_and_finds_it_whole_again(own):
    """As in systemd's scope or service with Delegate=yes, or as root of a container."""
    directory = Path(unified()[0], "ramet.test")
    directory.mkdir()
    try:
        os.setxattr(directory, cgroup_room.DELEGATED, b"1")
        program = own.program(CLIENT, str(directory))
        found = program.stdout.readline().decode().strip()
        assert found == f"{BESIDE},oom,memory,cgroup v2,cgroup v2", program.stderr
        own.end()
        assert divided(str(directory)) == []
        assert words(f"{directory}/cgroup.subtree_control") == set()
        program.stdin.write(b"\n")
        assert program.stdout.readline() == b"ramet.test\n"
        program.communicate(b"\n")
    finally:
        own.close()
        cgroups._remove_tree(str(directory))
