"""Where cgroups can be made, by what /proc says; what was made is noted, and removed only when empty."""

import os

import pytest

from ramet.native.cgroups import NOTE, NOWHERE, Place, find_place, give, remove_noted

V2 = "30 1 0:6 {shown} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"
V1 = "3{n} 1 0:{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"


class Machine:
    """A directory that stands for /, and one for /proc/self."""

    def __init__(self, top):
        self.top = top
        self.proc = top / "proc"
        self.proc.mkdir()

    def says(self, mounts, cgroup):
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
        (self.proc / "cgroup").write_text(cgroup)

    def cgroup(self, path, enabled="", offered=""):
        directory = self.top / "sys/fs/cgroup" / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("")
        (directory / "cgroup.controllers").write_text(offered or enabled)
        (directory / "cgroup.subtree_control").write_text(enabled)
        return str(directory)

    def place(self):
        return find_place(str(self.proc), str(self.top))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_nearest_that_gives_memory_to_its_children_is_taken(machine):
    machine.says([V2.format(shown="/")], "0::/user/app/own\n")
    machine.cgroup("")
    machine.cgroup("user", enabled="cpu memory pids")
    near = machine.cgroup("user/app", enabled="memory pids")
    machine.cgroup("user/app/own")
    assert machine.place() == Place(2, (("memory", near), ("pids", near)))


def test_what_a_mount_shows_of_the_hierarchy_is_where_it_begins(machine):
    machine.says([V2.format(shown="/docker/x")], "0::/docker/x/own\n")
    top = machine.cgroup("", enabled="memory")
    machine.cgroup("own")
    assert machine.place() == Place(2, (("memory", top),))


@pytest.mark.parametrize("own", ["/../elsewhere", "/other"])
def test_a_cgroup_that_no_mount_shows_is_none(machine, own):
    machine.says([V2.format(shown="/docker/x")], f"0::{own}\n")
    machine.cgroup("", enabled="memory")
    place = machine.place()
    assert place.version == 0
    assert "delegated" in (place.why or "")


def test_one_that_gives_nothing_because_somebody_is_in_it_is_taken_after_all_that_give(machine, monkeypatch):
    machine.says([V2.format(shown="/")], "0::/user/scope\n")
    machine.cgroup("")
    above = machine.cgroup("user", enabled="memory pids")
    own = machine.cgroup("user/scope", offered="cpu memory")
    (machine.top / "sys/fs/cgroup/user/scope/cgroup.procs").write_text("7\n")
    monkeypatch.setattr("ramet.native.cgroups._enable", lambda path: {"memory"} if path == above else set())
    assert machine.place() == Place(2, (("memory", above),))
    # One that systemd says is delegated is not left for one of systemd's own.
    monkeypatch.setattr("ramet.native.cgroup_room.is_marked", lambda path: path == own)
    assert machine.place() == Place(2, (("memory", own), ("cpu", own)))
    monkeypatch.setattr("ramet.native.cgroup_room.is_marked", lambda path: False)
    monkeypatch.setattr("ramet.native.cgroups._enable", lambda path: set())
    assert machine.place() == Place(2, (("memory", own), ("cpu", own)))
    (machine.top / "sys/fs/cgroup/user/scope/cgroup.procs").write_text("")
    assert machine.place().version == 0


def test_version_1_serves_where_version_2_has_nothing_to_give(machine):
    mounts = [V1.format(n=n, name=name) for n, name in enumerate(("memory", "cpu,cpuacct", "freezer"))]
    machine.says([*mounts, V2.format(shown="/")], "2:cpu,cpuacct:/\n1:memory:/mine\n0::/\n")
    machine.cgroup("")
    memory, cpu = machine.cgroup("memory/mine"), machine.cgroup("cpu,cpuacct")
    assert machine.place() == Place(1, (("memory", memory), ("cpu", cpu), ("cpuacct", cpu)))


def test_without_memory_version_1_is_no_place(machine):
    machine.says([V1.format(n=1, name="cpu")], "2:cpu:/\n")
    machine.cgroup("cpu")
    assert machine.place().version == 0


def test_a_machine_without_cgroups_says_so(machine):
    machine.says([], "")
    assert machine.place() == Place(why="no cgroup file system is mounted")


@pytest.fixture
def note(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    yield directory
    os.close(directory)


def test_what_is_given_is_noted_and_removed_when_nobody_has_it(tmp_path, note):
    place = Place(1, (("memory", str(tmp_path)), ("pids", str(tmp_path))))
    given = give(place, (os.getuid(), os.getgid()), note)
    assert given is not None
    assert len(given.directories) == 1
    words = given.option.split()
    assert words == ["1", f"memory={given.descriptors[0]}", f"pids={given.descriptors[0]}"]
    assert (tmp_path / NOTE).read_text().splitlines() == [*given.directories]
    # A core is being started in them.
    assert remove_noted(note) == [*given.directories]
    given.close()
    (tmp_path / given.directories[0] / "s1").mkdir()
    assert remove_noted(note) == []
    assert not os.path.exists(given.directories[0])
    assert not (tmp_path / NOTE).exists()


def test_what_a_core_is_in_stays_with_all_that_is_in_it_and_stays_noted(tmp_path, note):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    given = give(Place(2, (("memory", str(tmp_path)),)), (os.getuid(), os.getgid()), note)
    assert given is not None
    given.close()
    inside = tmp_path / given.directories[0]
    (inside / "core").mkdir()
    (inside / "core/cgroup.procs").write_text("1\n")
    (inside / "s1").mkdir()
    assert remove_noted(note) == [str(inside)]
    assert (inside / "s1").exists()
    assert given.option.split()[1:] == [f"dir={given.descriptors[0]}", "memory"]


def test_a_note_leads_to_nothing_that_is_not_ours(tmp_path, note):
    other = tmp_path / "precious"
    other.mkdir()
    (tmp_path / NOTE).write_text(f"{other}\n")
    assert remove_noted(note) == []
    assert other.exists()


@pytest.mark.parametrize("case", [(1, False, False), (1, True, True), (0, False, True)])
@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_watched_where_swap_is_there_and_not_counted(tmp_path, note, monkeypatch, version, case):
    swap, counted, held = case
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "cgroup.subtree_control").write_text("memory pids")
    (parent / "cpu.shares").write_text("")
    (tmp_path / "swaps").write_text("Filename\n" + swap * "/dev/vdb\n")
    monkeypatch.setattr("ramet.native.cgroups.SWAPS", str(tmp_path / "swaps"))
    if counted:
        monkeypatch.setattr("ramet.native.cgroups.SWAP_FILES", {1: "cgroup.subtree_control", 2: "."})
    place = Place(version, (("memory", str(parent)), ("pids", str(parent))))
    given = give(place, (os.getuid(), os.getgid()), note)
    assert given is not None
    given.close()
    assert [word.partition("=")[0] for word in given.option.split() if "dir" not in word][1:] == [
        *["memory"] * held,
        "pids",
    ]
    assert remove_noted(note) == []


def test_what_cannot_be_made_is_not_given(tmp_path, note):
    assert give(NOWHERE, (0, 0), note) is None
    assert give(Place(2, (("memory", str(tmp_path / "none")),)), (os.getuid(), os.getgid()), note) is None
    assert not (tmp_path / NOTE).exists()


def test_a_cgroup_that_went_or_gives_no_memory_any_more_is_not_given(tmp_path, note):
    owner = (os.getuid(), os.getgid())
    assert give(Place(2, (("memory", str(tmp_path / "gone")),)), owner, note) is None
    (tmp_path / "cgroup.subtree_control").write_text("pids")
    assert give(Place(2, (("memory", str(tmp_path)),)), owner, note) is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.subtree_control"]


def test_what_nobody_is_in_and_no_note_tells_of_is_removed_once_it_is_old(tmp_path, note, monkeypatch):
    for name in ("ramet-old", "ramet-used", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "ramet-used/cgroup.procs").write_text("1\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    place = Place(2, (("memory", str(tmp_path)),))
    give(place, (os.getuid(), os.getgid()), note).close()
    assert (tmp_path / "ramet-old").exists()
    monkeypatch.setattr("ramet.native.cgroups.ABANDONED_S", -1.0)
    give(place, (os.getuid(), os.getgid()), note).close()
    assert not (tmp_path / "ramet-old").exists()
    assert (tmp_path / "ramet-used").exists()
    assert (tmp_path / "other").exists()
