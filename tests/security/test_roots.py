"""A directory given as root is the sandbox's `/`, not a way to what surrounds it."""

import os
import socket
import stat
import struct
import threading
from pathlib import Path

import pytest

from ramet.errors import InvalidRequest
from system._daemons import build

SECRET = "the secret of the host\n"
CAP_BOTH = 0x2000001
"""VFS_CAP_REVISION_2 with the effective flag: the format of security.capability."""


@pytest.fixture
def top(tmp_path):
    """A small root beside a secret."""
    tmp_path.chmod(0o755)
    (tmp_path / "secret").write_text(SECRET)
    return build(tmp_path / "root", "cat", "ls", "touch", "rm", "mkdir", "chmod", "id", "stat")


@pytest.fixture
def secret(tmp_path):
    return str(tmp_path / "secret")


def tree(top: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_size)
    return found


def test_links_out_of_a_root_lead_into_it(rooted, top, secret):
    for name, target in {
        "absolute": secret,
        "relative": "../secret",
        "far": "../" * 40 + secret,
        "up": "../..",
        "proc-root": "/proc/1/root" + secret,
    }.items():
        (top / name).symlink_to(target)
    result = rooted.run("cat /absolute /relative /far /proc-root; ls /up/", root=top, cwd="/")
    assert SECRET not in result.stdout
    assert "usr" in result.stdout
    assert result.stderr.count("No such file") == 3, result.stderr


@pytest.mark.parametrize("name", ["dev", "proc", "tmp"])
@pytest.mark.parametrize("target", ["/", "../..", "/proc/self/root", "nowhere"])
def test_a_link_in_the_place_of_a_mount_point_is_covered(rooted, top, name, target):
    if (top / name).exists():
        (top / name).rmdir()
    (top / name).symlink_to(target)
    result = rooted.run("stat -c %F /dev /proc /tmp /dev/null /proc/1", root=top, cwd="/")
    kinds = ["directory"] * 3 + ["character special file", "directory"]
    if name == "tmp":  # nothing is mounted there
        kinds[2] = "symbolic link"
    assert result.stdout.splitlines() == kinds, result.stderr


def test_a_link_in_the_place_of_the_home_is_not_followed(rooted, top, tmp_path):
    (top / "etc").mkdir(exist_ok=True)
    (top / "etc" / "passwd").unlink(missing_ok=True)
    (top / "etc" / "passwd").symlink_to("/etc/passwd")
    assert rooted.run("cat /etc/passwd", root=top).exit_code == 1
    for name in ("passwd", "group", "shadow"):
        (top / "etc" / name).unlink(missing_ok=True)
    (top / "etc" / "passwd").write_text(f"root:x:0:0::{tmp_path}:/bin/sh\n")
    result = rooted.run("echo $HOME; ls $HOME", root=top)
    assert SECRET not in result.stdout
    assert "secret" not in result.stdout


@pytest.mark.parametrize("cwd", ["/up", "/proc/1/root", "/proc/1/cwd", "/absolute"])
def test_a_working_directory_that_leads_out_leads_nowhere(rooted, top, tmp_path, cwd):
    (top / "up").symlink_to("../../../..")
    (top / "absolute").symlink_to(tmp_path)
    if cwd == "/up":
        result = rooted.run("ls", root=top, cwd=cwd)
        assert "usr" in result.stdout.split()
        assert "secret" not in result.stdout
        return
    with pytest.raises(InvalidRequest) as caught:
        rooted.run("ls", root=top, cwd=cwd)
    assert caught.value.field == "cwd"


def test_a_path_with_dots_is_no_working_directory(rooted, top):
    with pytest.raises(InvalidRequest) as caught:
        rooted.run("ls", root=top, cwd="/usr/../..")
    assert (caught.value.field, "'..'" in caught.value.message) == ("cwd", True)


def test_nothing_that_a_command_does_to_its_root_reaches_the_directory(rooted, top):
    (top / "note").write_text("as it was\n")
    (top / "full").mkdir()
    (top / "full" / "file").write_text("full")
    before = tree(top)
    script = """
    echo changed >/note; echo new >/new; mkdir /dir; rm -r /full; chmod 0 /note; touch /usr/bin/cat
    rm /usr/bin/id; cat /new; ls -a /full; echo x >>/usr/bin/ls; chmod 0 /usr
    """
    result = rooted.run(script, root=top, cwd="/")
    assert result.stdout == "new\n"
    assert tree(top) == before
    assert rooted.run("cat /note /full/file; ls /new /dir", root=top).stdout == "as it was\nfull"


def test_a_fifo_in_a_root_is_no_channel_to_the_host(rooted, top):
    os.mkfifo(top / "fifo", 0o666)
    reader = os.open(top / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        result = rooted.run("(echo leak >/fifo) & cat </fifo; wait", root=top, timeout=20)
        assert result.stdout == "leak\n"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


def test_a_socket_in_a_root_is_no_channel_to_the_host(rooted, tmp_path):
    tmp_path.chmod(0o755)
    top = build(tmp_path / "root", "python3")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(top)
        listener.bind("socket")
        os.chmod("socket", 0o666)
        listener.listen()
        source = "import socket; socket.socket(socket.AF_UNIX).connect('/socket')"
        result = rooted.run(["python3", "-c", source], root=top, timeout=20)
    assert result.stderr.splitlines()[-1] == "ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.root
def test_a_device_in_a_root_cannot_be_opened(rooted, top):
    os.mknod(top / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(top / "disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))
    result = rooted.run("cat /zero; cat /disk", root=top, cwd="/")
    assert result.stderr.splitlines() == ["cat: /zero: Permission denied", "cat: /disk: Permission denied"]


def test_set_user_id_programs_of_a_root_give_nothing(rooted, top, compiled):
    program = compiled(
        """
        #include <stdio.h>
        #include <unistd.h>
        int main(void)
        {
            char line[256];
            FILE *status = fopen("/proc/self/status", "r");
            printf("%d %d\\n", geteuid(), getegid());
            while (fgets(line, sizeof line, status))
                if (line[0] == 'C' && line[1] == 'a' && line[2] == 'p')
                    fputs(line, stdout);
            return 0;
        }
        """
    )
    inside = top / "program"
    inside.write_bytes(program.read_bytes())
    if os.geteuid() == 0:
        os.chown(inside, 1234, 1234)
        os.setxattr(inside, "security.capability", struct.pack("<5I", CAP_BOTH, *[0xFFFFFFFF] * 4))
    inside.chmod(0o6755)
    result = rooted.run(["/program"], root=top)
    lines = result.stdout.splitlines()
    assert lines[0] == "0 0", result.stderr
    assert [line.split()[1] for line in lines[1:]] == ["0" * 16] * 5


def test_marks_of_overlayfs_in_a_root_are_not_believed(rooted, top, tmp_path):
    """A redirect would take a directory's contents from another place of the layer's file system."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text(SECRET)
    (top / "redirected").mkdir()
    (top / "redirected" / "own").write_text("own\n")
    try:
        for name in ("redirect", "metacopy", "origin"):
            os.setxattr(top / "redirected", f"user.overlay.{name}", b"/../other")
    except OSError as error:
        pytest.skip(f"no extended attributes on this file system: {error.strerror}")
    result = rooted.run("ls -a /redirected; cat /redirected/*", root=top)
    assert SECRET not in result.stdout


def test_a_root_that_is_exchanged_for_another_is_noticed(rooted, tmp_path):
    tmp_path.chmod(0o755)
    for name in ("one", "two"):
        (build(tmp_path / name, "cat") / "name").write_text(name)
    link = tmp_path / "root"
    link.symlink_to("one")
    assert rooted.run("cat /name", root=link).stdout == "one"
    link.unlink()
    link.symlink_to("two")
    assert rooted.run("cat /name", root=link).stdout == "two"


def test_a_root_that_vanishes_meanwhile_is_an_error_that_names_it(rooted, tmp_path):
    """Renamed again and again while runs begin: each run has the whole root, or a refusal that names it."""
    tmp_path.chmod(0o755)
    build(tmp_path / "root", "cat")
    (tmp_path / "root" / "name").write_text("here")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            (tmp_path / "root").rename(tmp_path / "away")
            (tmp_path / "away").rename(tmp_path / "root")

    mover = threading.Thread(target=exchange)
    mover.start()
    try:
        for _ in range(60):
            try:
                assert rooted.run("cat /name", root=tmp_path / "root").stdout == "here"
            except InvalidRequest as error:
                assert error.field == "root"  # noqa: PT017  either will do
    finally:
        stop.set()
        mover.join()


@pytest.mark.parametrize("root", ["/", "//", "/usr/..", "/proc", "/proc/1", "/proc/self", "/proc/self/root"])
def test_the_host_itself_is_no_root(rooted, root):
    with pytest.raises(InvalidRequest) as caught:
        rooted.run("true", root=root)
    assert caught.value.field == "root"
