"""The program's verbs and its exit codes."""

import os
import socket
import subprocess

import pytest

from ramet.errors import IsolationError
from ramet.native import _protocol as p
from ramet.native import frames, ids, launch
from ramet.native.locate import find_program
from system.core import _core, _payloads

USAGE, SYSTEM = 100, 111


def run(*arguments: str, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_program(), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        pass_fds=fds,
        env=_core.SANITIZER_OPTIONS,
    )


def test_version_names_the_protocol():
    done = run("version")
    assert done.returncode == 0
    assert done.stdout.startswith("ramet-core ")
    assert done.stdout.endswith(f" protocol {p.PROTOCOL_VERSION}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("serve",),
        ("serve", "--control", "1"),
        ("serve", "--uid-map", "0 0 1", "--gid-map", "0 0 1"),
        ("serve", "--control", "x", "--uid-map", "0 0 1", "--gid-map", "0 0 1"),
        ("serve", "--control", "777", "--uid-map", "0 0 1", "--gid-map", "0 0 1"),
        ("serve", "--control", "1", "--uid-map", "0 0 1", "--gid-map", "0 0 1", "--pool", "65"),
        ("serve", "--control", "1", "--uid-map", "0 0 1", "--gid-map", "0 0 1", "--pool", "-1"),
        ("serve", "--control", "1", "--uid-map", "0 0 1", "--gid-map", "0 0 1", "--grace-ms", "1x"),
        ("serve", "--control", "1", "--uid-map", "0 0 1", "--gid-map", "0 0 1", "extra"),
        ("serve", "--control", "1", "--uid-map", "0 0 1", "--gid-map", "0 0 1", "--unknown"),
        ("lend",),
        ("lend", "--socket", "1", "--", "/usr"),
        ("lend", "--socket", "3"),
        ("lend", "--socket", "3", "--idmap", "1/..", "--", "/usr"),
    ],
)
def test_wrong_use_is_exit_code_100_and_starts_nothing(arguments):
    done = run(*arguments)
    assert done.returncode == USAGE
    assert done.stdout == ""


def test_probe_says_a_line_for_each_thing_it_tried():
    done = run("probe")
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert all(len(row) == 3 and (row[1] == "ok" or row[1].isdigit()) for row in rows), done.stdout
    assert {"userns", "mntns", "pidns", "seccomp-filter", "overlay-userxattr"} <= {row[0] for row in rows}


@pytest.mark.parametrize("maps", ["", "0 0", "a b c", "0 4294967295 2", "0 1 1," * 200])
def test_an_id_map_that_the_kernel_refuses_fails_the_start_by_name(maps):
    with pytest.raises(_core.StartFailed) as failed:
        _core.start(_core.Options(maps=(maps, maps)), define=False)
    assert failed.value.exit_code == SYSTEM
    assert failed.value.answer is not None
    code, step, _, field = failed.value.answer.error
    assert (code, step) == ("isolation_failed", "map_ids") or (code, field) == ("malformed", "uid_map")


def test_a_core_whose_starter_dies_at_once_ends_with_its_grace():
    """The control connection is closed before READY is read."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    maps = next(ids.choose_ids())
    with ours, theirs:
        arguments = ["--control", str(theirs.fileno()), "--uid-map", maps.uids, "--gid-map", maps.gids]
        if maps.helpers:
            arguments += ["--newidmap", maps.helpers]
        launcher = subprocess.Popen(
            [find_program(), "serve", *arguments, "--grace-ms", "1"],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            env=_core.SANITIZER_OPTIONS,
        )
    maps.close()
    with launcher.stdout as pipe:
        pid = int(pipe.readline())
    launcher.wait(20)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in {0, 125}


# --- lend --------------------------------------------------------------------------------------------------


def lent(*paths: str) -> list[int]:
    return launch.lend_mounts(find_program(), list(paths))


needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="to lend a mount takes CAP_SYS_ADMIN on the host")


@needs_mounts
def test_a_lent_mount_serves_as_a_bind(core, tmp_path):
    """`tmp_path` is closed to core's ids: only what was opened by its owner can be given."""
    tmp_path.chmod(0o711)
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o755)
    (inner / "file").write_text("lent\n")
    tmp_path.chmod(0o700)
    assert core.define(5, more=_payloads.directory("/in") + _payloads.bind(str(inner), "/in")).kind == p.ERROR
    (fd,) = lent(str(inner))
    payload = frames.u32(p.TAG_ROOT, 6) + _payloads.root_entries()[0]
    payload += _payloads.directory("/in") + _payloads.bind("", "/in", index=0)
    core.control.ok(p.DEFINE_ROOT, payload, [fd])
    os.close(fd)
    result = core.shell("cat /in/file; touch /in/x", root=6)
    assert result.stdout == b"lent\n"
    assert b"Read-only file system" in result.stderr


@needs_mounts
def test_a_lent_mount_serves_as_a_layer(core, tmp_path):
    (tmp_path / "layered").write_text("below\n")
    tmp_path.chmod(0o755)
    (fd,) = lent(str(tmp_path))
    payload = frames.u32(p.TAG_ROOT, 6) + _payloads.root_entries()[0] + _payloads.layer("", index=0)
    core.control.ok(p.DEFINE_ROOT, payload, [fd])
    os.close(fd)
    result = core.shell("cat /layered; echo above > /new && cat /new", root=6)
    assert result.stdout == b"below\nabove\n"
    assert not (tmp_path / "new").exists()


@needs_mounts
def test_a_path_that_cannot_be_lent_is_named(tmp_path):
    with pytest.raises(IsolationError, match="nowhere") as failed:
        lent("/usr", str(tmp_path / "nowhere"))
    assert failed.value.errno == 2


def test_without_the_right_to_mount_lending_is_refused():
    if os.geteuid() == 0:
        pytest.skip("root may lend")
    with pytest.raises(IsolationError) as failed:
        lent("/usr")
    assert failed.value.errno == 1
