"""Both clients against the real server over a core made of Python."""

import errno
import io
import os
import select
import signal
import socket
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import ramet
from _daemon import Daemon
from _fake_core import ended, failed, refused, silence
from ramet.client import AsyncClient, Client
from ramet.client._exchange import Connection
from ramet.errors import CommandFailed, DaemonLost, InvalidRequest, ProtocolMismatch, RametError
from ramet.models.runs import RunEnd
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.wire import messages


@pytest.fixture
def daemon(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path).start()
    with daemon.client() as client:
        client.run("true")
    yield daemon
    daemon.stop()
    assert daemon.error is None


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


class Command:
    """What a command would do, as core's answer to a run: gets its stdin, stdout, stderr.

    What `act` returns is the stream that it keeps open.
    """

    def __init__(self, daemon, act, status=0):
        self._act = act
        self._status = status
        self.kept = []
        daemon.core.on[p.RUN] = self

    def __call__(self, core, frame):
        tags = dict(frames.decode(frame.payload))
        streams = [
            os.dup(frame.fds[int.from_bytes(tags[tag], "little")]) if tag in tags else None
            for tag in (p.TAG_STDIN, p.TAG_STDOUT, p.TAG_STDERR)
        ]
        threading.Thread(target=self._live, args=(core, frame.request, streams), daemon=True).start()

    def _live(self, core, request, streams):
        kept = self._act(*streams)
        for stream in streams:
            if stream is not None and stream is not kept:
                os.close(stream)
        core.send(p.ENDED, request, ended(self._status << 8))
        self.kept.append(kept)


def write_all(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_all(descriptor):
    return b"".join(iter(lambda: os.read(descriptor, 65536), b""))


def echo(stdin, stdout, _):
    write_all(stdout, read_all(stdin))


# --- output ------------------------------------------------------------------------------------------------


def test_output_of_both_streams_is_told_apart(daemon, client):
    def act(_, out, err):
        os.write(out, b"out\xff")
        os.write(err, b"err")

    Command(daemon, act)
    result = client.run("x")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"out\xff", b"err")
    assert result.stdout == "out\ufffd"


def test_large_output_on_both_streams_at_once_neither_deadlocks_nor_grows(daemon, client):
    size = 24 << 20

    def flood(_, out, err):
        other = threading.Thread(target=write_all, args=(err, b"e" * size))
        other.start()
        write_all(out, b"o" * size)
        other.join()

    Command(daemon, flood)
    result = client.run("x", limits={"output": "1M"})
    assert (result.stdout_total, result.stderr_total) == (size, size)
    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (1 << 20, 1 << 20)
    assert result.truncated


def test_output_below_the_limit_is_identical(daemon, client):
    data = os.urandom(3 << 20)
    Command(daemon, lambda _, out, err: write_all(out, data))
    result = client.run("x")
    assert result.stdout_bytes == data
    assert not result.truncated


def test_callbacks_hear_every_byte_in_order(daemon, client):
    data = os.urandom(1 << 20)

    def act(_, out, err):
        write_all(out, data)
        write_all(err, b"e")

    Command(daemon, act)
    out, err = [], []
    result = client.run("x", on_stdout=out.append, on_stderr=err.append, limits={"output": 10})
    assert b"".join(out) == data
    assert b"".join(err) == b"e"
    assert result.stdout_total == len(data)


def test_a_callback_hears_output_while_the_command_still_runs(daemon, client):
    heard = threading.Event()

    def act(_, out, _err):
        os.write(out, b"first")
        assert heard.wait(5)
        os.write(out, b"second")

    Command(daemon, act)
    assert client.run("x", on_stdout=lambda _: heard.set()).stdout == "firstsecond"


def test_a_pipe_that_somebody_keeps_open_does_not_delay_the_result(daemon, client):
    def act(_, out, _err):
        os.write(out, b"all there is")
        return out

    command = Command(daemon, act)
    assert client.run("x").stdout == "all there is"
    for kept in command.kept:
        os.close(kept)


def test_a_callback_that_raises_ends_the_sandbox_and_the_next_run_works(daemon, client):
    def act(_, out, _err):
        os.write(out, b"x")
        daemon.core.wait_for(p.KILL)

    Command(daemon, act)

    def refuse(_):
        raise LookupError

    with pytest.raises(LookupError):
        client.run("x", on_stdout=refuse)
    daemon.core.wait_for(p.KILL)
    del daemon.core.on[p.RUN]
    assert client.run("true").ok


# --- input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 20 << 20])
def test_input_of_any_size_comes_back_without_deadlock(daemon, client, size):
    data = os.urandom(size)
    Command(daemon, echo)
    assert client.run("cat", stdin=data, limits={"output": "64M"}).stdout_bytes == data


def test_input_that_nobody_reads_is_no_error(daemon, client):
    Command(daemon, lambda stdin, _, __: None)
    assert client.run("true", stdin=b"x" * (5 << 20)).ok


def test_input_comes_from_files_and_pipes_alike(daemon, client, tmp_path):
    (tmp_path / "input").write_bytes(b"x" * 200_000)
    Command(daemon, echo)
    with open(tmp_path / "input", "rb") as file:
        assert client.run("cat", stdin=file).stdout_bytes == b"x" * 200_000
    assert client.run("cat", stdin=io.StringIO("text")).stdout == "text"
    read, write = os.pipe()
    feeder = threading.Thread(target=lambda: (write_all(write, b"y" * 200_000), os.close(write)))
    feeder.start()
    assert client.run("cat", stdin=read).stdout_bytes == b"y" * 200_000
    feeder.join()
    os.close(read)


def test_a_pipe_that_stays_open_does_not_keep_a_run_that_has_ended(daemon, client):
    read, write = os.pipe()
    Command(daemon, lambda stdin, out, _: write_all(out, os.read(stdin, 100)))
    os.write(write, b"line\n")
    assert client.run("head -1", stdin=read).stdout == "line\n"
    os.write(write, b"still mine\n")
    assert os.read(read, 100) == b"still mine\n"
    os.close(read)
    os.close(write)


def test_without_input_the_command_has_none(daemon, client):
    seen = []
    Command(daemon, lambda stdin, *_: seen.append(stdin))
    client.run("cat")
    assert seen == [None]


# --- lanes -------------------------------------------------------------------------------------------------


def runs_of_the_daemon(daemon):
    return sum(frame.kind == p.RUN and frame.request < 1 << 32 for frame in daemon.core.seen)


def test_from_the_second_run_on_core_is_asked_without_the_daemon(daemon):
    with daemon.client() as client:
        before = runs_of_the_daemon(daemon)
        for _ in range(5):
            assert client.run("true", env={"A": "b"}).ok
        assert runs_of_the_daemon(daemon) == before + 1
    assert daemon.core.kinds().count(p.LANE) == 1


def test_a_run_over_a_lane_says_what_the_same_over_the_daemon_says(daemon):
    with daemon.client() as client:
        for _ in range(2):
            client.run(["a", "b"], env={"A": "b"}, cwd="/tmp", timeout=3, stdin=b"x", limits={"disk": "9M"})
    first, second = [frame for frame in daemon.core.seen if frame.kind == p.RUN][-2:]
    plans = [
        sorted(pair for pair in frames.decode(frame.payload) if pair[0] != p.TAG_SANDBOX)
        for frame in (first, second)
    ]
    assert plans[0] == plans[1]


def test_a_directory_is_compared_by_the_daemon_every_time(daemon, tmp_path):
    (tmp_path / "usr").mkdir()
    with daemon.client() as client:
        for _ in range(3):
            client.run("true", root=str(tmp_path))
    assert p.LANE not in daemon.core.kinds()


def test_a_root_that_core_does_not_know_any_more_is_asked_for_again(daemon, client):
    client.run("true")
    forgotten = []

    def forget(core, frame):
        if not forgotten:
            forgotten.append(frame)
            core.send(p.ERROR, frame.request, refused("unknown_root", "root 1 is not defined"))
        else:
            core.send(p.ENDED, frame.request, ended())

    daemon.core.on[p.RUN] = forget
    assert client.run("true").ok
    assert len(forgotten) == 1


def test_a_directory_that_cannot_be_entered_is_refused_by_name_over_a_lane_too(daemon, client):
    client.run("true")
    daemon.core.on[p.RUN] = lambda core, frame: core.send(
        p.ERROR, frame.request, failed(p.STEP_WORKING_DIRECTORY, errno.ENOENT)
    )
    with pytest.raises(InvalidRequest) as caught:
        client.run("true", cwd="/nowhere")
    assert caught.value.field == "cwd"


def test_a_core_that_dies_under_a_run_over_a_lane_is_an_error_and_the_run_is_not_repeated(daemon, client):
    client.run("true")
    seen = []

    def die(core, frame):
        seen.append(frame)
        core.lanes[frame.request].shutdown(socket.SHUT_RDWR)

    daemon.core.on[p.RUN] = die
    with pytest.raises(DaemonLost):
        client.run("true")
    assert len(seen) == 1
    del daemon.core.on[p.RUN]
    assert client.run("true").ok


def test_a_run_that_core_closed_its_lane_upon_unread_is_asked_for_again(daemon, client):
    client.run("true")
    asked = daemon.core.kinds().count(p.RUN)
    daemon.core.close_unread = True
    assert client.run("true").ok
    assert not daemon.core.close_unread
    assert daemon.core.kinds().count(p.RUN) == asked + 1
    assert daemon.core.kinds().count(p.LANE) == 2


def test_a_lane_that_was_closed_is_replaced_unnoticed(daemon, client):
    for _ in range(2):
        client.run("true")
    daemon.core.close_lanes()
    assert client.run("true").ok
    assert daemon.core.kinds().count(p.LANE) == 2


def test_what_the_daemon_said_is_used_for_a_while_and_then_asked_again(daemon, client, monkeypatch):
    monkeypatch.setattr("ramet.client._lanes.FRESH_S", 0.0)
    asked = []
    ask = type(client).ask
    monkeypatch.setattr(
        type(client),
        "ask",
        lambda self, name, *rest, **more: asked.append(name) or ask(self, name, *rest, **more),
    )
    for _ in range(4):
        assert client.run("true").ok
    assert asked.count("lane") >= 3


def test_an_answer_to_another_request_ends_the_lane(daemon, client):
    client.run("true")

    def confuse(core, frame):
        lane = core.lanes.pop(frame.request)
        frames.send(lane, p.ENDED, 77, ended(), [])

    daemon.core.on[p.RUN] = confuse
    with pytest.raises(DaemonLost):
        client.run("true")
    del daemon.core.on[p.RUN]
    assert client.run("true").ok


# --- ends --------------------------------------------------------------------------------------------------


def test_check_raises_with_the_result(daemon, client):
    Command(daemon, lambda *_: None, status=3)
    with pytest.raises(CommandFailed) as caught:
        client.run("x", check=True)
    assert caught.value.result.exit_code == 3


def test_runs_leave_no_descriptor_behind(daemon, client):
    Command(daemon, echo)
    for _ in range(2):  # the second opens a lane, which stays
        client.run("x", stdin=b"1")
    before = descriptors()
    for _ in range(20):
        client.run("x", stdin=b"1" * 100_000)
        with pytest.raises(InvalidRequest):
            client.run("x", stdin=b"", cwd="relative")
    assert len(descriptors()) <= len(before)


def test_an_interrupt_ends_the_sandbox_and_leaves_no_descriptor(daemon, client):
    for _ in range(2):
        client.run("true")
    before = descriptors()
    daemon.core.on[p.RUN] = lambda *_: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        client.run("sleep 100")
    daemon.core.wait_for(p.KILL)
    assert len(descriptors()) <= len(before)


class Script:
    """A daemon that does to each connection what the next act says."""

    def __init__(self, place, *acts):
        place.chmod(0o700)
        self.place = str(place)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{place}/daemon.sock")
        self._listener.listen()
        self._acts = acts
        self._thread = threading.Thread(target=self._play)

    def __enter__(self):
        self._thread.start()
        return Client(self.place, start=False)

    def __exit__(self, *_):
        self._thread.join(5)
        self._listener.close()

    def _play(self):
        for act in self._acts:
            sock, _ = self._listener.accept()
            with sock:
                act(sock)


def read_and_die(sock):
    messages.receive(sock)


def die_unread(sock):
    """What an idle daemon does that ends: it closes with the request unread."""
    select.select([sock], [], [], 5)


def answer_runs(sock):
    end = RunEnd(0, "exit", None, 1, 1, 1, 1, 1, 1, single_uid=True, lingering=False)
    while (received := messages.receive(sock)) is not None:
        for descriptor in received[1]:
            os.close(descriptor)
        messages.send(sock, {"ok": end.to_wire()})


def test_a_daemon_that_dies_under_a_run_is_an_error_and_the_run_is_not_repeated(tmp_path):
    with Script(tmp_path, read_and_die) as client, pytest.raises(DaemonLost):
        client.run("x")


def test_a_request_that_was_never_read_is_sent_again(tmp_path):
    with Script(tmp_path, die_unread, die_unread, answer_runs) as client:
        assert client.run("x", stdin=b"kept").ok
        client.close()


def test_input_that_cannot_be_read_again_is_not_sent_again(tmp_path):
    file = io.BytesIO(b"x" * 10)
    with Script(tmp_path, die_unread) as client, pytest.raises(DaemonLost):
        client.run("x", stdin=file)
    assert file.tell() == 10


def test_a_daemon_that_always_goes_away_is_an_error(tmp_path):
    with Script(tmp_path, die_unread, die_unread, die_unread) as client, pytest.raises(DaemonLost):
        client.run("x")


def test_a_daemon_of_another_version_is_refused_by_naming_both(tmp_path):
    def other(sock):
        messages.receive(sock)
        sock.send(messages.HEADER.pack(messages.MAGIC, 77, 0, 2) + b"{}")

    with Script(tmp_path, other) as client, pytest.raises(ProtocolMismatch) as caught:
        client.run("x")
    assert "77" in caught.value.message


def test_a_daemon_that_says_nothing_is_an_error_after_the_deadline(tmp_path, monkeypatch):
    from ramet.client._sync import client as module

    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    gate = threading.Event()
    with Script(tmp_path, lambda _: gate.wait(5)) as client:
        with pytest.raises(DaemonLost) as caught:
            client.run("x", timeout=0.1)
        assert caught.value.code == "daemon_silent"
        gate.set()


def test_a_connection_that_went_stale_is_replaced_unnoticed(tmp_path):
    tmp_path.chmod(0o700)
    first = Daemon(tmp_path).start()
    with first.client() as client:
        assert client.run("true").ok
        first.stop()
        second = Daemon(tmp_path).start()
        assert client.run("true", stdin=b"kept").ok
        assert client.ping().pid == os.getpid()
        second.stop()


def test_without_a_daemon_and_without_leave_to_start_one_there_is_an_error(tmp_path):
    for call in (lambda client: client.run("true"), Client.status, Client.shutdown):
        with pytest.raises(DaemonLost) as caught:
            call(Client(str(tmp_path / "none"), start=False))
        assert caught.value.code == "daemon_absent"


@pytest.mark.parametrize(
    "field, arguments",
    [
        ("command", {"command": ""}),
        ("command", {"command": "a\0"}),
        ("env", {"env": {"A=": ""}}),
        ("cwd", {"cwd": "here"}),
        ("root", {"root": "/does/not/exist"}),
        ("timeout", {"timeout": -1}),
        ("limits.memory", {"limits": {"memory": 1}}),
        ("stdin", {"stdin": 3.5}),
        ("stdin", {"stdin": "\ud800"}),
        ("encoding", {"encoding": "no-such"}),
        ("encoding", {"encoding": 3}),
        ("on_stdout", {"on_stdout": 3}),
        ("on_stderr", {"on_stderr": "x"}),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_started(field, arguments, tmp_path):
    place = tmp_path / "none"
    with pytest.raises(InvalidRequest) as caught:
        Client(str(place)).run(**{"command": "true", **arguments})
    assert caught.value.field == field
    assert not place.exists()


def test_a_fork_speaks_over_a_connection_of_its_own(daemon, client):
    Command(daemon, echo)
    assert client.run("cat", stdin=b"parent").stdout == "parent"
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if client.run("cat", stdin=b"child").stdout == "child" else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.run("cat", stdin=b"parent again").stdout == "parent again"


def test_threads_share_a_client(daemon, client):
    Command(daemon, echo)
    told = {}

    def one(number):
        told[number] = client.run("cat", stdin=str(number)).stdout

    threads = [threading.Thread(target=one, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert told == {number: str(number) for number in range(30)}


# --- asynchronous ------------------------------------------------------------------------------------------


async def test_the_async_client_does_the_same(daemon):
    Command(daemon, echo, status=3)
    heard = []

    async def hear(chunk):
        await anyio.lowlevel.checkpoint()
        heard.append(chunk)

    async with AsyncClient(daemon.place, start=False) as client:
        result = await client.run("cat", stdin=b"x" * 300_000, on_stdout=hear)
        assert (result.exit_code, result.stdout_total) == (3, 300_000)
        assert b"".join(heard) == b"x" * 300_000
        assert (await client.ping()).pid == os.getpid()
        assert (await client.status()).core is not None


async def test_many_at_once_on_one_loop(daemon):
    Command(daemon, echo)
    told = {}
    async with AsyncClient(daemon.place, start=False) as client:

        async def one(number):
            told[number] = (await client.run("cat", stdin=str(number))).stdout

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)
    assert told == {number: str(number) for number in range(50)}


async def test_cancelling_ends_the_sandbox_and_leaves_no_descriptor(daemon):
    started = anyio.Event()
    async with AsyncClient(daemon.place, start=False) as client:
        await client.ping()
        before = descriptors()
        daemon.core.on[p.RUN] = silence
        async with anyio.create_task_group() as tasks:

            async def run():
                started.set()
                await client.run("sleep 100", stdin=b"x" * 100_000)

            tasks.start_soon(run)
            await started.wait()
            await anyio.to_thread.run_sync(lambda: wait_for_second_run(daemon))
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(daemon.core.wait_for, p.KILL)
        assert len(descriptors()) <= len(before) + 1  # the event loop's thread pipe may be new


def wait_for_second_run(daemon):
    with daemon.core.arrived:
        assert daemon.core.arrived.wait_for(lambda: daemon.core.kinds().count(p.RUN) == 2, 5)


# --- the public face ---------------------------------------------------------------------------------------


def test_every_public_name_can_be_had_and_is_listed():
    assert sorted(ramet.__all__) == list(ramet.__all__)
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None
        assert name in dir(ramet)
    with pytest.raises(AttributeError):
        ramet.no_such_name  # noqa: B018


def test_names_that_type_checkers_see_are_those_that_exist():
    import ast

    tree = ast.parse(Path(ramet.__file__).read_text())
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert seen == set(ramet.__all__)


def test_a_connection_that_cannot_be_waited_for_is_refused_with_what_is_lacking(monkeypatch):
    class Full:
        def register(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            pass

    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr("select.epoll", Full)
    with far, pytest.raises(RametError) as caught:
        Connection(near)
    assert (caught.value.code, caught.value.errno) == ("busy", errno.ENOSPC)
    assert "max_user_watches" in (caught.value.hint or "")
    assert near.fileno() == -1
