"""The daemon over a core made of Python: requests reach core, and its words reach clients."""

import errno
import os
import signal
import threading
import time

import pytest

from _daemon import Daemon
from _fake_core import FakeCore, ended, failed, silence
from ramet.errors import DaemonError, DaemonLost, InvalidRequest, IsolationError
from ramet.models.limits import Limits
from ramet.models.runs import RunRequest
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.wire import messages, places


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def daemon(place):
    daemon = Daemon(place).start()
    assert daemon.word == b"ready"
    yield daemon
    daemon.stop()
    assert daemon.error is None
    assert os.listdir(place) == []


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client


def plan_of(daemon):
    """The attributes of the last plan that reached core, each tag with all its values."""
    found = {}
    runs = [frame for frame in daemon.core.seen if frame.kind == p.RUN]
    for tag, value in frames.decode(runs[-1].payload):
        found.setdefault(tag, []).append(value)
    return found


def number(value):
    return int.from_bytes(value, "little")


def until(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


# --- runs --------------------------------------------------------------------------------------------------


def test_a_run_reaches_core_as_a_plan_and_its_end_comes_back(daemon, client):
    result = client.run(["echo", "hi"], env={"A": "b"}, cwd="/tmp", timeout=0.5, limits={"disk": "64M"})
    assert (result.exit_code, result.reason, result.duration_ms, result.setup_ms) == (0, "exit", 4.0, 0.5)
    assert (result.usage.user_ms, result.usage.system_ms) == (1.0, 2.0)
    assert (result.usage.peak_rss_bytes, result.usage.disk_bytes) == (3_000_000, 4096)
    assert result.single_uid
    plan = plan_of(daemon)
    assert plan[p.TAG_ARG] == [b"echo", b"hi"]
    assert plan[p.TAG_CWD] == [b"/tmp"]
    assert b"A=b" in plan[p.TAG_ENV]
    assert any(value.startswith(b"PATH=") for value in plan[p.TAG_ENV])
    assert number(plan[p.TAG_WALL_NS][0]) == 500_000_000
    assert number(plan[p.TAG_DISK_BYTES][0]) == 64 << 20
    assert number(plan[p.TAG_OWNED][0]) == 1
    assert p.TAG_STDIN not in plan
    assert [number(plan[tag][0]) for tag in (p.TAG_STDOUT, p.TAG_STDERR)] == [0, 1]


def test_root_and_filter_are_told_to_core_once(daemon, client):
    for _ in range(3):
        client.run("true")
    assert daemon.core.kinds() == [p.DEFINE_FILTER, p.DEFINE_ROOT, p.RUN, p.LANE, p.RUN, p.RUN]


def test_every_sandbox_has_a_number_of_its_own(daemon, client):
    for _ in range(3):
        client.run("true")
    runs = [frame for frame in daemon.core.seen if frame.kind == p.RUN]
    numbers = {plan_number(frame) for frame in runs}
    assert len(numbers) == 3
    assert 0 not in numbers


def plan_number(frame):
    return number(dict(frames.decode(frame.payload))[p.TAG_SANDBOX])


@pytest.mark.parametrize(
    "status, reason, expected",
    [
        (7 << 8, p.REASON_EXIT, (7, "exit", None)),
        (signal.SIGSEGV, p.REASON_SIGNAL, (139, "signal", "SIGSEGV")),
        (signal.SIGKILL, p.REASON_SIGNAL, (137, "signal", "SIGKILL")),
        (signal.SIGKILL, p.REASON_KILLED, (137, "killed", None)),
        (signal.SIGKILL, p.REASON_TIMEOUT, (124, "timeout", None)),
        (0, p.REASON_TIMEOUT, (124, "timeout", None)),
        (0, p.REASON_LOST, (137, "lost", None)),
    ],
)
def test_who_ended_a_command_is_told_apart(daemon, client, status, reason, expected):
    client.run("true")
    daemon.core.on[p.RUN] = lambda core, frame: core.send(p.ENDED, frame.request, ended(status, reason))
    result = client.run("true")
    assert (result.exit_code, result.reason, result.signal) == expected


def test_a_process_that_could_not_be_reaped_is_told(daemon, client):
    client.run("true")
    lingering = frames.u32(p.TAG_LINGERING, 1)
    daemon.core.on[p.RUN] = lambda core, frame: core.send(
        p.ENDED, frame.request, ended(0, p.REASON_EXIT, lingering)
    )
    assert client.run("true").lingering


def test_a_failed_step_arrives_with_name_and_errno(daemon, client):
    client.run("true")
    daemon.core.on[p.RUN] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_PIVOT_ROOT, errno.EINVAL)
    )
    with pytest.raises(IsolationError) as caught:
        client.run("true")
    assert (caught.value.step, caught.value.errno) == ("pivot_root", errno.EINVAL)


def test_a_directory_that_the_sandbox_lacks_is_a_wrong_argument(daemon, client):
    client.run("true")
    daemon.core.on[p.RUN] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_WORKING_DIRECTORY, errno.ENOENT)
    )
    with pytest.raises(InvalidRequest) as caught:
        client.run("true", cwd="/nowhere")
    assert caught.value.field == "cwd"
    assert "/nowhere" in caught.value.message


def test_runs_at_once_get_their_own_ends(daemon):
    with daemon.client() as client:
        client.run("true")

    def by_argument(core, frame):
        code = int(dict(frames.decode(frame.payload))[p.TAG_ARG])
        core.send(p.ENDED, frame.request, ended(code << 8))

    daemon.core.on[p.RUN] = by_argument
    codes = {}

    def one(wanted):
        with daemon.client() as client:
            codes[wanted] = client.run([str(wanted)]).exit_code

    threads = [threading.Thread(target=one, args=(wanted,)) for wanted in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert codes == {wanted: wanted for wanted in range(40)}


def test_a_fault_is_only_for_a_daemon_under_test(daemon, client):
    with pytest.raises(InvalidRequest) as caught:
        client.run_request(RunRequest(("true",), streams=(1, 2), fault="pivot_root"))
    assert caught.value.field == "fault"


def test_a_fault_reaches_core_by_number_and_an_unknown_one_is_refused(place, monkeypatch):
    monkeypatch.setenv("RAMET_TEST_FAULTS", "1")
    daemon = Daemon(place).start()
    with daemon.client() as client:
        client.run_request(RunRequest(("true",), streams=(1, 2), fault="pivot_root"))
        assert number(plan_of(daemon)[p.TAG_FAULT][0]) == p.STEP_PIVOT_ROOT
        with pytest.raises(InvalidRequest) as caught:
            client.run_request(RunRequest(("true",), streams=(1, 2), fault="no_such_step"))
        assert caught.value.field == "fault"
    daemon.stop()


# --- limits ------------------------------------------------------------------------------------------------


def test_every_limit_of_the_table_is_in_the_plan(daemon, client):
    import resource

    client.run("true", limits=Limits(processes=20, open_files=50, file_size="1M", inodes=99, cpu_seconds=7))
    plan = plan_of(daemon)
    rows = {number(value[:4]): (number(value[8:16]), number(value[16:24])) for value in plan[p.TAG_RLIMIT]}
    assert number(plan[p.TAG_PROCESSES][0]) == 20
    assert number(plan[p.TAG_DISK_INODES][0]) == 99
    assert rows[resource.RLIMIT_NOFILE] == (50, 50)
    assert rows[resource.RLIMIT_FSIZE] == (1 << 20, 1 << 20)
    # Core counts the time of all processes; the kernel's own limit is for one alone, in case core is late.
    assert number(plan[p.TAG_CPU_NS][0]) == 7 * 10**9
    assert rows[resource.RLIMIT_CPU] == (7, 19)
    assert resource.RLIMIT_AS in rows
    assert resource.RLIMIT_NPROC not in rows
    assert all(soft <= hard for soft, hard in rows.values())


def test_a_limit_above_the_daemons_own_is_refused_by_name(daemon, client, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(InvalidRequest) as caught:
        client.run("true", limits={"open_files": 51})
    assert caught.value.field == "limits.open_files"
    assert client.run("true", limits={"open_files": 50}).ok


def test_of_what_the_kernel_counts_for_the_user_a_guest_has_a_share(daemon, client, monkeypatch):
    """Half of the descriptors, with which core's in flight are compared; a quarter of signals and queues."""
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    client.run("true")
    rows = {number(value[:4]): number(value[16:24]) for value in plan_of(daemon)[p.TAG_RLIMIT]}
    assert rows[resource.RLIMIT_NOFILE] == 500
    assert rows[resource.RLIMIT_SIGPENDING] == rows[resource.RLIMIT_MSGQUEUE] == 250


# --- roots -------------------------------------------------------------------------------------------------


def test_a_directory_root_is_told_anew_when_another_takes_its_name(daemon, client, tmp_path_factory):
    home = tmp_path_factory.mktemp("roots")
    root = home / "root"
    root.mkdir()
    client.run("true", root=root)
    client.run("true", root=root)
    root.rename(home / "old")
    root.mkdir()
    client.run("true", root=root)
    kinds = daemon.core.kinds()
    assert kinds.count(p.DEFINE_ROOT) == 2
    assert kinds.count(p.DROP_ROOT) == 1


def test_only_so_many_roots_are_kept(daemon, client, tmp_path_factory):
    home = tmp_path_factory.mktemp("roots")
    for index in range(18):
        (home / str(index)).mkdir()
        client.run("true", root=home / str(index))
    kinds = daemon.core.kinds()
    assert kinds.count(p.DEFINE_ROOT) == 18
    assert kinds.count(p.DROP_ROOT) == 2


def test_a_root_that_core_refuses_is_an_error_each_time(daemon, client, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    client.run("true")
    daemon.core.on[p.DEFINE_ROOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_ROOT_LAYER, errno.EINVAL)
    )
    for _ in range(2):
        with pytest.raises(IsolationError) as caught:
            client.run("true", root=root)
        assert caught.value.step == "root_layer"
    assert client.run("true").ok


def test_a_root_that_goes_before_core_opens_it_is_refused_by_name(daemon, client, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    client.run("true")
    daemon.core.on[p.DEFINE_ROOT] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_ROOT_LAYER, errno.ENOENT)
    )
    with pytest.raises(InvalidRequest) as caught:
        client.run("true", root=root)
    assert (caught.value.field, caught.value.code) == ("root", "not_found")


# --- owners and ends ---------------------------------------------------------------------------------------


def test_a_client_that_goes_takes_its_run_along(daemon, client):
    client.run("true")
    daemon.core.on[p.RUN] = silence
    sock = places.connect(daemon.place)
    read, write = os.pipe()
    messages.send(sock, {"op": "run", "args": {"argv": ["sleep"], "streams": [1, 2]}}, [write, write])
    os.close(write)
    until(lambda: daemon.core.kinds().count(p.RUN) == 2)
    sock.close()
    kill = daemon.core.wait_for(p.KILL)
    assert frames.decode(kill.payload) == [(p.TAG_SANDBOX, plan_of(daemon)[p.TAG_SANDBOX][0])]
    os.close(read)


def test_a_client_that_goes_before_core_is_up_starts_nothing(place):
    gate = threading.Event()

    def slow():
        assert gate.wait(5)
        return FakeCore()

    daemon = Daemon(place, slow).start()
    sock = places.connect(daemon.place)
    read, write = os.pipe()
    messages.send(sock, {"op": "run", "args": {"argv": ["sleep"], "streams": [1]}}, [write])
    os.close(write)
    sock.close()
    # Only the daemon's copy of the pipe is left, and it goes with the request.
    assert os.read(read, 1) == b""
    gate.set()
    with daemon.client() as client:
        assert client.run("true").ok
    assert daemon.core.kinds().count(p.RUN) == 1
    daemon.stop()
    os.close(read)


def test_when_core_dies_its_runs_fail_and_the_next_starts_another(daemon, client):
    client.run("true")
    first = daemon.core
    first.on[p.RUN] = lambda core, _: core.die()
    with pytest.raises(DaemonLost) as caught:
        client.run("true")
    assert caught.value.code == "core_lost"
    assert client.run("true").ok
    assert daemon.core is not first
    assert "core lost" in daemon.log.names()


def test_a_core_that_does_not_start_is_told_to_the_one_who_asked_and_tried_again(place):
    answers = iter([IsolationError("isolation_failed", "no", step="clone_core", errno=1), None])

    def make():
        if (error := next(answers)) is not None:
            raise error
        return FakeCore()

    daemon = Daemon(place, make).start()
    with daemon.client() as client:
        with pytest.raises(IsolationError) as caught:
            client.run("true")
        assert caught.value.step == "clone_core"
        assert client.run("true").ok
    daemon.stop()


def test_ending_the_daemon_refuses_what_is_under_way_and_ends_core(daemon, client):
    client.run("true")
    daemon.core.on[p.RUN] = silence
    outcome = []

    def wait():
        with daemon.client() as other:
            try:
                outcome.append(other.run("sleep 100"))
            except DaemonLost as error:
                outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: daemon.core.kinds().count(p.RUN) == 2)
    client.shutdown()
    thread.join(5)
    assert [type(one) for one in outcome] == [DaemonLost]
    assert daemon.ended.wait(5)
    assert p.SHUTDOWN in daemon.core.kinds()


def test_an_idle_daemon_ends_and_leaves_nothing(place):
    daemon = Daemon(place, idle_s=0.2).start()
    with daemon.client() as client:
        client.run("true")
        assert daemon.ended.wait(10)
    assert os.listdir(place) == []
    assert "idle" in daemon.log.names()


def test_status_tells_of_daemon_and_core(daemon, client):
    assert client.status().core is None
    client.run("true")
    status = client.status()
    assert status.pid == os.getpid()
    assert status.active == 0
    assert status.connections == 1
    assert status.core.core_id == "000000000000c0de"
    assert (status.core.pool_size, status.core.runs) == (8, 7)


def test_doctor_runs_in_the_daemon(client):
    assert {finding.name for finding in client.doctor().findings} >= {"kernel"}


# --- peers that speak otherwise ----------------------------------------------------------------------------


@pytest.fixture
def sock(daemon):
    with places.connect(daemon.place) as sock:
        yield sock


def answer(sock):
    received = messages.receive(sock)
    return None if received is None else messages.answer_of(received[0])


@pytest.mark.parametrize(
    "message, field",
    [
        ({"op": "dance"}, "op"),
        ({"op": 3}, "op"),
        ({}, "op"),
        ({"op": "run", "args": []}, "args"),
        ({"op": "run", "args": {}}, "command"),
        ({"op": "run", "args": {"argv": ["true"], "streams": [1]}}, "streams"),
        ({"op": "ping", "args": {"loud": True}}, "loud"),
        ({"op": "run", "args": {"argv": ["true"], "cwd": "x"}}, "cwd"),
    ],
)
def test_a_wrong_request_is_refused_by_field_and_the_connection_goes_on(sock, message, field):
    messages.send(sock, message)
    with pytest.raises(InvalidRequest) as caught:
        answer(sock)
    assert caught.value.field == field
    messages.send(sock, {"op": "ping"})
    assert answer(sock)["pid"] == os.getpid()


def test_descriptors_that_nobody_asked_for_are_refused_and_closed(sock):
    read, write = os.pipe()
    messages.send(sock, {"op": "ping"}, [write])
    os.close(write)
    with pytest.raises(InvalidRequest):
        answer(sock)
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_peer_that_speaks_otherwise_is_told_and_left(sock):
    sock.send(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(DaemonError) as caught:
        answer(sock)
    assert caught.value.code == "malformed"
    assert answer(sock) is None


def test_a_second_request_before_the_answer_ends_the_connection(daemon, sock):
    messages.send(sock, {"op": "run", "args": {"argv": ["x"]}})
    messages.send(sock, {"op": "ping"})
    # Either request is answered first or the connection is dropped; it never serves both at once.
    try:
        while messages.receive(sock) is not None:
            pass
    except ConnectionResetError:
        pass
    with daemon.client() as client:
        assert client.ping().pid == os.getpid()
