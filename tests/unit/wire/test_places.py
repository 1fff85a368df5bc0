"""Where client and daemon meet, and what is refused as a place to meet."""

import os
import socket

import pytest

from ramet.errors import DaemonError
from ramet.wire import places


def test_the_named_directory_comes_first(tmp_path):
    named = {"RAMET_RUNTIME_DIR": str(tmp_path), "XDG_RUNTIME_DIR": "/run"}
    assert places.runtime_path(named) == str(tmp_path)


def test_the_users_own_runtime_directory_comes_next(tmp_path):
    assert places.runtime_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"{tmp_path}/ramet"


@pytest.mark.parametrize("path", ["/does/not/exist", "relative", ""])
def test_a_runtime_directory_that_is_not_there_is_passed_over(path):
    assert places.runtime_path({"XDG_RUNTIME_DIR": path}) == f"/tmp/ramet-{os.geteuid()}"


@pytest.mark.root
def test_another_users_runtime_directory_is_passed_over(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    assert places.runtime_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == "/tmp/ramet-0"


def test_the_directory_is_made_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        descriptor = places.make_runtime(str(tmp_path / "run"))
    finally:
        os.umask(before)
    assert os.fstat(descriptor).st_mode & 0o777 == 0o700
    os.close(descriptor)


def test_a_directory_that_does_not_exist_is_no_fault():
    assert places.open_runtime("/does/not/exist") is None
    assert places.connect("/does/not/exist") is None


def test_a_directory_open_to_others_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(DaemonError) as caught:
        places.open_runtime(str(tmp_path))
    assert caught.value.code == "runtime_dir"
    assert "mode 0755" in caught.value.message


def test_a_link_is_refused_even_to_a_good_directory(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(DaemonError):
        places.open_runtime(str(tmp_path / "link"))


def test_a_dangling_link_is_refused_and_not_waited_for(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(DaemonError):
        places.make_runtime(str(tmp_path / "link"))


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DaemonError):
        places.make_runtime(str(tmp_path / "file"))


def test_a_place_without_a_parent_is_refused(tmp_path):
    with pytest.raises(DaemonError):
        places.make_runtime(str(tmp_path / "no" / "parent"))


@pytest.mark.root
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(DaemonError) as caught:
        places.open_runtime(str(tmp_path / "run"))
    assert "uid 12345" in caught.value.message


def listen(directory, name="daemon.sock"):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.open(directory, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{descriptor}/{name}")
    listener.listen()
    os.close(descriptor)
    return listener


def test_a_socket_is_reached_however_long_its_path_is(tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir(mode=0o700)
    with listen(deep), places.connect(str(deep)) as sock:
        assert places.peer(sock) == (os.getpid(), os.geteuid())


def test_a_socket_that_nobody_serves_is_no_fault(tmp_path):
    tmp_path.chmod(0o700)
    listen(tmp_path).close()
    assert places.connect(str(tmp_path)) is None


def test_a_file_that_was_removed_has_lost_its_name(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    lock = os.open("lock", os.O_CREAT | os.O_RDWR, dir_fd=directory)
    assert places.is_named(lock, "lock", directory)
    os.unlink("lock", dir_fd=directory)
    assert not places.is_named(lock, "lock", directory)
    os.close(os.open("lock", os.O_CREAT | os.O_RDWR, dir_fd=directory))
    assert not places.is_named(lock, "lock", directory)
    os.close(lock)
    os.close(directory)
