"""Starting core, with programs that behave as core may and as it should not."""

import errno
import os
import signal
import socket
import sys
import textwrap

import pytest

from _fake_core import failed
from ramet.errors import DaemonStartError, IsolationError
from ramet.native import _protocol as p
from ramet.native import frames, launch
from ramet.native.ids import Ids


@pytest.fixture
def program(tmp_path):
    """Writes a program that has the control (or lend) socket as `sock` and its words as `argv`."""

    def write(body):
        path = tmp_path / "core"
        path.write_text(
            f"#!{sys.executable} -I\n"
            "import os, socket, struct, sys\n"
            "argv = sys.argv\n"
            "name = '--control' if '--control' in argv else '--socket'\n"
            "sock = socket.socket(fileno=int(argv[argv.index(name) + 1]))\n" + textwrap.dedent(body)
        )
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def start(tmp_path):
    directory = os.open(tmp_path, os.O_RDONLY)
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        yield lambda program: launch.Start(program, listener, directory, log, grace_ms=1234, pool=3)
    os.close(directory)
    os.close(log)


def sends(frame):
    return f"sock.send({frame!r})"


READY = frames.encode(
    p.READY,
    0,
    frames.u32(p.TAG_VERSION, 1)
    + frames.u64(p.TAG_CORE_ID, 77)
    + frames.u32(p.TAG_SINGLE_UID, 1)
    + frames.text(p.TAG_PROGRAM, "0.1"),
)


def test_a_core_that_is_ready_is_known_by_pid_and_name(program, start):
    launched = launch.start_core(start(program(sends(READY) + "\nsock.send(str(os.getpid()).encode())")))
    with launched.sock:
        assert (launched.core_id, launched.program, launched.single_uid) == (77, "0.1", True)
        assert launched.sock.recv(100) == str(launched.pid).encode()


def test_core_inherits_what_it_is_given_and_no_environment(program, start, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    text = """
    import json
    told = {"argv": argv[1:], "fds": sorted(map(int, os.listdir("/proc/self/fd"))), "env": sorted(os.environ)}
    told["cwd"] = os.getcwd()
    sock.send(json.dumps(told).encode())
    """
    launched = launch.start_core(start(program(sends(READY) + textwrap.dedent(text))))
    import json

    with launched.sock:
        told = json.loads(launched.sock.recv(65536))
    words = told["argv"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "serve"
    assert options["--grace-ms"] == "1234"
    assert options["--pool"] == "3"
    assert {"--uid-map", "--gid-map", "--control", "--listen", "--runtime-dir", "--log"} <= options.keys()
    numbers = [int(options[name]) for name in ("--control", "--listen", "--runtime-dir", "--log")]
    assert set(numbers) <= set(told["fds"])
    assert "SECRET" not in told["env"]
    assert told["cwd"] == "/"


def test_a_failed_step_of_the_start_arrives_with_its_errno(program, start):
    frame = frames.encode(p.ERROR, 0, failed(p.STEP_MAP_IDS, errno.EPERM))
    with pytest.raises(IsolationError) as caught:
        launch.start_core(start(program(sends(frame))))
    assert (caught.value.step, caught.value.errno) == ("map_ids", errno.EPERM)


def test_a_core_whose_start_failed_is_ended_and_collected(program, start, tmp_path):
    # The launcher's child stands in for its sibling.
    body = f"""
    pid = os.fork()
    if not pid:
        import signal
        signal.pause()
    print(pid, flush=True)
    open({str(tmp_path / "pid")!r}, "w").write(str(pid))
    sock.send({frames.encode(p.ERROR, 0, failed(p.STEP_CORE_PROC, errno.EPERM))!r})
    """
    with pytest.raises(IsolationError):
        launch.start_core(start(program(body)))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    "body, code",
    [
        ("pass", "core_start_failed"),
        ("sock.send(b'nonsense')", "core_start_failed"),
        (sends(frames.encode(p.OK, 0, b"")), "core_start_failed"),
        ("import signal; signal.pause()", "core_silent"),
    ],
)
def test_a_core_that_does_not_come_up_is_a_start_error(program, start, monkeypatch, body, code):
    monkeypatch.setattr(launch, "START_TIMEOUT_S", 0.3)
    with pytest.raises(DaemonStartError) as caught:
        launch.start_core(start(program(body)))
    assert caught.value.code == code


def test_what_cannot_be_executed_is_a_start_error(tmp_path, start):
    (tmp_path / "core").write_text("")
    with pytest.raises(DaemonStartError) as caught:
        launch.start_core(start(tmp_path / "core"))
    assert caught.value.code == "core_not_executable"
    assert caught.value.errno == errno.EACCES


def test_delegated_ids_that_are_refused_give_way_to_a_single_id(program, start, monkeypatch):
    choices = [Ids("0 1 1,1 5 5", "0 1 1,1 5 5", "/usr/bin"), Ids("0 1 1", "0 1 1")]
    monkeypatch.setattr(launch, "choose_ids", lambda: iter(choices))
    refusal = frames.encode(p.ERROR, 0, failed(p.STEP_MAP_IDS, errno.EPERM))
    body = f"sock.send({refusal!r} if '--newidmap' in argv else {READY!r})"
    launched = launch.start_core(start(program(body)))
    launched.sock.close()
    assert launched.core_id == 77


def test_the_first_refusal_is_told_when_nothing_works(program, start, monkeypatch):
    choices = [Ids("0 1 1", "0 1 1", "/usr/bin"), Ids("0 1 1", "0 1 1")]
    monkeypatch.setattr(launch, "choose_ids", lambda: iter(choices))
    first = frames.encode(p.ERROR, 0, failed(p.STEP_MAP_IDS, errno.EPERM))
    second = frames.encode(p.ERROR, 0, failed(p.STEP_CLONE_CORE, errno.ENOSPC))
    body = f"sock.send({first!r} if '--newidmap' in argv else {second!r})"
    with pytest.raises(IsolationError) as caught:
        launch.start_core(start(program(body)))
    assert caught.value.step == "map_ids"


LEND = f"""
paths = argv[argv.index("--") + 1:]
for path in paths:
    fd = os.open(path, os.O_PATH)
    header = struct.pack("<IHHQIHH", {p.FRAME_MAGIC}, {p.PROTOCOL_VERSION}, {p.OK}, 0, 0, 1, 0)
    sock.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))])
"""


def test_lent_mounts_arrive_in_order(program, tmp_path):
    (tmp_path / "a").mkdir()
    paths = ["/usr", str(tmp_path / "a"), "/"]
    fds = launch.lend_mounts(program(LEND), paths)
    assert [os.fstat(fd).st_ino for fd in fds] == [os.stat(path).st_ino for path in paths]
    for fd in fds:
        os.close(fd)


def test_a_mount_that_is_refused_closes_those_that_came(program):
    before = len(os.listdir("/proc/self/fd"))
    refusal = frames.encode(p.ERROR, 0, failed(p.STEP_ROOT_BIND, errno.EACCES, "/root"))
    body = LEND.replace("for path in paths:", "for path in paths[:1]:") + sends(refusal)
    with pytest.raises(IsolationError) as caught:
        launch.lend_mounts(program(body), ["/usr", "/root"], id_map_pid=1)
    assert (caught.value.step, caught.value.errno) == ("root_bind", errno.EACCES)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lender_that_ends_early_is_an_error_that_names_the_path(program):
    body = LEND.replace("for path in paths:", "for path in paths[:1]:")
    with pytest.raises(IsolationError) as caught:
        launch.lend_mounts(program(body), ["/usr", "/var/lib"])
    assert "/var/lib" in caught.value.message


def test_reaping_collects_only_what_has_ended():
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    assert launch.reap(child) is None
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert launch.reap(child) == signal.SIGKILL
    assert launch.reap(child) is None
