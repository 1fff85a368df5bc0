"""A directory of the host as a sandbox's root."""

import os
from pathlib import Path

import pytest

from ramet.engine.root import Dir, default_environment, directory_root
from ramet.errors import InvalidRequest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir(mode=0o755)
    return path


def refusal(path: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        directory_root(path)
    assert caught.value.field == "root"
    return caught.value


def test_the_directory_is_the_one_layer_and_stays_writable(root):
    spec = directory_root(root)
    assert spec.layers == (root,)
    assert spec.writable
    assert spec.binds == ()


def test_what_is_missing_to_mount_on_is_made_above_the_layer(root):
    assert directory_root(root).entries == (
        Dir("/", 0o755),
        Dir("/dev"),
        Dir("/proc", 0o555),
        Dir("/sys"),
        Dir("/sys/fs"),
        Dir("/sys/fs/cgroup"),
        Dir("/tmp", 0o1777),
    )


def test_what_is_there_is_left_as_it_is(root):
    for name in ("dev", "proc", "tmp", "sys/fs/cgroup"):
        (root / name).mkdir(parents=True)
    assert directory_root(root).entries == ()


def test_the_root_keeps_its_mode_under_a_skeleton(root):
    root.chmod(0o711)
    assert directory_root(root).entries[0] == Dir("/", 0o711)


@pytest.mark.parametrize("name", ["proc", "dev"])
def test_a_symlink_where_core_mounts_is_hidden(root, name):
    (root / name).symlink_to("/etc")
    assert f"/{name}" in [entry.path for entry in directory_root(root).entries]


def test_a_file_where_core_mounts_is_hidden(root):
    (root / "proc").write_text("")
    assert Dir("/proc", 0o555) in directory_root(root).entries


def test_a_symlinked_tmp_is_kept(root):
    (root / "tmp").symlink_to("var/tmp")
    assert "/tmp" not in [entry.path for entry in directory_root(root).entries]


def test_the_home_is_that_of_the_roots_own_uid_0(root):
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("daemon:x:1:1::/:/x\nroot:x:0:0::/data/home:/bin/sh\n")
    (root / "data/home").mkdir(parents=True)
    spec = directory_root(root)
    assert spec.home == "/data/home"
    assert default_environment(spec)["HOME"] == "/data/home"


@pytest.mark.parametrize("home", ["/missing", "relative", "/../../etc", "/link", ""])
def test_a_home_that_does_not_serve_is_not_used(root, home):
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(f"root:x:0:0::{home}:/bin/sh\n")
    (root / "link").symlink_to("/etc")
    assert directory_root(root).home == "/"
    (root / "root").mkdir()
    assert directory_root(root).home == "/root"


def test_symlinks_of_the_root_are_not_followed_to_the_host(root, tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host/passwd").write_text("root:x:0:0::/data:/bin/sh\n")
    (root / "data").mkdir()
    (root / "etc").symlink_to(tmp_path / "host")
    assert directory_root(root).home == "/"


def test_nothing_of_the_host_is_in_its_path(root):
    assert default_environment(directory_root(root))["PATH"] == (
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )


def test_the_identity_follows_the_directory(root, tmp_path):
    first = directory_root(root).identity
    assert directory_root(root).identity == first
    os.utime(root, ns=(5, 5))
    assert directory_root(root).identity != first
    (tmp_path / "other").mkdir()
    assert directory_root(tmp_path / "other").identity != first


def test_a_symlink_is_resolved_once(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert directory_root(tmp_path / "link").layers == (root,)


def test_the_host_itself_is_refused_with_what_to_do_instead(tmp_path):
    assert "without --root" in str(refusal("/"))
    (tmp_path / "link").symlink_to("/")
    assert "this host itself" in refusal(tmp_path / "link").message


@pytest.mark.parametrize(
    "path, words",
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("/nonexistent/root", "does not exist"),
        ("/etc/passwd", "is not a directory"),
        ("x" * 5000, "cannot be opened"),
    ],
)
def test_a_path_that_is_no_directory_is_refused(path, words):
    assert words in refusal(path).message


def test_a_directory_with_mounts_in_it_is_refused_by_the_mounts_name():
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    point = next((point for point in points if os.path.dirname(point) not in ("/", "")), None)
    if point is None or "\\" in point:
        pytest.skip("nothing is mounted two levels deep here")
    error = refusal(os.path.dirname(point))
    assert "is mounted inside" in error.message
    assert error.hint
