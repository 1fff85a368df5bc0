"""Writable layers survive exactly: kinds, links, holes, times, attributes, permissions, owners, whiteouts."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from ramet.errors import SnapshotError
from ramet.store import IdMap
from ramet.store.access import remove_tree
from unit.store.material import content, is_whiteout, left_in, look, pages, plant, save

ROOT_IDS = IdMap(((0, 0x70000000, 65536),), ((0, 0x70000000, 65536),))


@pytest.fixture
def layer(tmp_path):
    """A layer with one of everything."""
    top = tmp_path / "layer"
    top.mkdir(mode=0o755)
    yield plant(top)
    fd = os.open(tmp_path, os.O_RDONLY)
    remove_tree(fd, "layer")
    os.close(fd)


def path_of(fd: int) -> str:
    return f"/proc/self/fd/{fd}/."


def readable(top: Path) -> Path:
    """The layer, so that a look from outside finds everything. Root needs no permission."""
    if os.geteuid():
        os.chmod(top / "upper/closed", 0o700)
        os.chmod(top / "upper/closed/secret", 0o600)
    return top


def test_a_layer_survives_with_everything_in_it(store, layer):
    before = look(readable(layer))
    save(store, "x", uppers=[layer])
    with store.load("x") as loaded:
        assert look(path_of(loaded.uppers[0])) == before
    assert look(layer) == before


def test_what_its_owner_may_not_read_is_kept_and_stays_closed(store, layer):
    save(store, "x", uppers=[layer])
    assert stat.S_IMODE(os.stat(layer / "upper/closed").st_mode) == 0
    with store.load("x") as loaded:
        closed = f"{path_of(loaded.uppers[0])}/upper/closed"
        assert stat.S_IMODE(os.stat(closed).st_mode) == 0
        os.chmod(closed, 0o700)
        assert stat.S_IMODE(os.stat(f"{closed}/secret").st_mode) == 0
        os.chmod(f"{closed}/secret", 0o600)
        assert Path(f"{closed}/secret").read_bytes() == b"\0\1\2"
        os.chmod(closed, 0)
    assert left_in(store) == []


def test_layers_keep_their_order(store, tmp_path):
    tops = []
    for name in ("top", "middle", "bottom"):
        tops.append(tmp_path / name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    save(store, "x", uppers=tops)
    with store.load("x") as loaded:
        read = [Path(f"{path_of(fd)}/name").read_text() for fd in loaded.uppers]
    assert read == ["top", "middle", "bottom"]


def test_a_layer_that_the_parent_has_is_not_stored_again(store, layer, tmp_path):
    (layer / "upper/large").write_bytes(os.urandom(1 << 20))
    parent = save(store, "parent", uppers=[layer])
    own = tmp_path / "own"
    own.mkdir()
    (own / "a").write_text("a")
    child = save(store, "child", uppers=[own, layer], parent=parent)
    grandchild = save(store, "grandchild", uppers=[own, own, layer], parent=child)
    assert parent.stored_bytes > 1 << 20 > 100_000 > child.stored_bytes
    assert child.layers == 2
    for name, count in (("child", 2), ("grandchild", 3)):
        with store.load(name) as loaded:
            assert len(loaded.uppers) == count
            assert look(path_of(loaded.uppers[0])) == look(own)
            assert (Path(path_of(loaded.uppers[-1])) / "upper/home/user/notes.txt").read_text() == "hello\n"
    assert grandchild.stored_bytes < 100_000
    store.flatten("grandchild")
    with store.load("grandchild") as loaded:
        assert (Path(path_of(loaded.uppers[2])) / "upper/large").stat().st_size == 1 << 20


def test_a_layer_that_only_looks_like_the_parents_is_stored(store, tmp_path):
    def made(name: str, text: str) -> Path:
        top = tmp_path / name
        top.mkdir()
        (top / "f").write_text(text)
        for path in (top / "f", top):
            os.utime(path, ns=(1, 1))
        return top

    first, spoofed = made("first", "aaaa"), made("spoofed", "bbbb")
    parent = save(store, "parent", uppers=[first])
    # Same names, sizes and times: as the topmost layer it is looked into, below another it is the parent's.
    save(store, "same-depth", uppers=[spoofed], parent=parent)
    save(store, "on-top", uppers=[spoofed, first], parent=parent)
    with store.load("same-depth") as loaded:
        assert (Path(path_of(loaded.uppers[0])) / "f").read_text() == "bbbb"
    with store.load("on-top") as loaded:
        assert [(Path(path_of(fd)) / "f").read_text() for fd in loaded.uppers] == ["bbbb", "aaaa"]


def test_a_parents_layer_that_core_has_merged_with_others_is_stored(store, layer, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    parent = save(store, "parent", uppers=[layer])
    (layer / "upper/more").write_text("merged")
    save(store, "child", uppers=[own, layer], parent=parent)
    with store.load("child") as loaded:
        assert (Path(path_of(loaded.uppers[1])) / "upper/more").read_text() == "merged"


def test_thousands_of_whiteouts_are_no_links_of_each_other(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    os.mknod(top / "w0", stat.S_IFCHR, 0)
    for number in range(1, 2000):
        os.link(top / "w0", top / f"w{number}")
    save(store, "x", uppers=[top])
    with store.load("x") as loaded:
        found = [os.lstat(f"{path_of(loaded.uppers[0])}/w{number}") for number in range(2000)]
    assert all(is_whiteout(status) for status in found)


def test_a_device_is_refused_by_its_path(store, tmp_path):
    top = tmp_path / "top"
    (top / "a").mkdir(parents=True)
    made = subprocess.run(["mknod", top / "a/null", "c", "1", "3"], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("devices can be made by root only")
    with pytest.raises(SnapshotError, match="a/null is a device") as caught:
        save(store, "x", uppers=[top])
    assert caught.value.code == "snapshot_not_saved"
    assert left_in(store) == []


def test_depth_has_an_end_that_is_told(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    fds = [os.open(top, os.O_RDONLY)]
    for _ in range(600):
        os.mkdir("d", dir_fd=fds[-1])
        fds.append(os.open("d", os.O_RDONLY, dir_fd=fds[-1]))
    with pytest.raises(SnapshotError, match="nested too deeply"):
        save(store, "x", uppers=[top])
    for fd in fds:
        os.close(fd)
    above = os.open(tmp_path, os.O_RDONLY)
    remove_tree(above, "top")
    os.close(above)
    assert not top.exists()


def test_a_deep_tree_with_long_names_and_links_survives(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    name = "d" * 250
    fds = [os.open(top, os.O_RDONLY)]
    for _ in range(100):
        os.mkdir(name, dir_fd=fds[-1])
        fds.append(os.open(name, os.O_RDONLY, dir_fd=fds[-1]))
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fds[-1]))
    os.link("f", "g", src_dir_fd=fds[-1], dst_dir_fd=fds[-1])
    save(store, "x", uppers=[top])
    with store.load("x") as loaded:
        fd = os.dup(loaded.uppers[0])
        for _ in range(100):
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        assert os.stat("f", dir_fd=fd).st_nlink == 2
        assert os.stat("f", dir_fd=fd).st_ino == os.stat("g", dir_fd=fd).st_ino
        os.close(fd)
    for fd in fds:
        os.close(fd)


# --- owners -----------------------------------------------------------------------------------------------


@pytest.mark.root
def test_owners_are_kept_as_the_sandbox_numbers_them(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    for name, owner in (("root", 0), ("user", 1000)):
        (top / name).write_text(name)
        os.chown(top / name, 0x70000000 + owner, 0x70000000 + owner)
    os.chown(top, 0x70000000, 0x70000000)
    save(store, "x", uppers=[top], ids=ROOT_IDS)
    other = IdMap(((0, 0x70010000, 65536),), ((0, 0x70010000, 65536),))
    with store.load("x", ids=other) as loaded:
        owners = [os.stat(f"{path_of(loaded.uppers[0])}/{name}").st_uid for name in (".", "root", "user")]
    assert owners == [0x70010000, 0x70010000, 0x70010000 + 1000]


def test_an_owner_that_sandboxes_do_not_have_is_refused_by_its_path(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    with pytest.raises(SnapshotError, match="belongs to an id"):
        save(store, "x", uppers=[top], ids=IdMap(((0, 0x60000000, 1),), ((0, 0x60000000, 1),)))


def test_an_owner_that_this_host_has_no_id_for_is_refused_when_it_is_loaded(store, tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    save(store, "x", uppers=[top])
    none = IdMap(((70000, 0, 1),), ((70000, 0, 1),))
    with pytest.raises(SnapshotError, match="belongs to an id") as caught:
        store.load("x", ids=none)
    assert caught.value.code == "snapshot_not_loaded"
    assert left_in(store) == []


def test_ids_in_access_lists_are_kept_as_the_sandbox_numbers_them(store, tmp_path):
    import struct

    top = tmp_path / "top"
    top.mkdir()
    (top / "f").write_text("x")
    uid = os.getuid()
    rows = [
        (0x01, 6, 0xFFFFFFFF),
        (0x02, 4, uid),
        (0x04, 4, 0xFFFFFFFF),
        (0x10, 6, 0xFFFFFFFF),
        (0x20, 4, 0xFFFFFFFF),
    ]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)
    try:
        os.setxattr(top / "f", "system.posix_acl_access", value)
    except OSError:
        pytest.skip("this file system has no access lists")
    ids = IdMap(((500, uid, 1),), ((500, os.getgid(), 1),))
    save(store, "x", uppers=[top], ids=ids)
    with store.load("x", ids=ids) as loaded:
        assert os.getxattr(f"{path_of(loaded.uppers[0])}/f", "system.posix_acl_access") == value


def test_the_map_of_a_process_is_read_from_this_side(tmp_path):
    ids = IdMap.of_process(os.getpid())
    assert ids.inside(*ids.outside(0, 0)) == (0, 0)
    with pytest.raises(LookupError):
        ROOT_IDS.inside(0, 0)
    with pytest.raises(LookupError):
        ROOT_IDS.outside(65536, 0)


def test_loaded_directories_are_gone_when_they_are_closed(store, layer):
    save(store, "x", pages(1), uppers=[layer])
    loaded = store.load("x")
    assert len(left_in(store)) == 1
    assert content(loaded.pages) == pages(1)
    loaded.close()
    assert left_in(store) == []
    loaded.close()
