"""What a client does with a sandbox's streams and session; and what is left when it is cancelled anywhere."""

import asyncio
import gc
import os
import pickle
import signal
import socket
import threading

import pytest

import ramet
from _daemon import Daemon
from _fake_core import answer, exited, failed
from ramet.client import afork
from ramet.client._async import client as async_client
from ramet.client._async import sandbox as async_sandbox
from ramet.client._async import streams as async_streams
from ramet.client._held import Held, Inflow, Outflow
from ramet.client._sync.sandbox import Sandbox
from ramet.client._sync.streams import Reader, Writer
from ramet.errors import DaemonLost, ForkError, InvalidRequest, RametError, WaitTimeout
from ramet.models.runs import RunEnd
from ramet.models.sandboxes import SandboxInfo
from ramet.native import _protocol as p
from ramet.wire import messages

END = RunEnd(0, "exit", None, 1.0, 1.0, 1.0, 1.0, 1, 1, single_uid=True, lingering=False)
INFO = SandboxInfo("abc", None, "running", 2, ("repl",), 0.0)


class Peer:
    """The daemon's end of a session, and the command's ends of its streams."""

    def __init__(self, **changes):
        self.session, session = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stdin, feed = os.pipe()
        out, self.stdout = os.pipe()
        err, self.stderr = os.pipe()
        info = {**INFO.to_wire(), **changes}
        held = Held(info, [session.detach(), feed, out, err])
        self.sandbox = Sandbox._of(held, None, 64 << 10, "utf-8")

    def end(self, **changes):
        """The command is dead: its ends are closed, and the daemon tells."""
        self.close_streams()
        info = {**INFO.to_wire(), "status": "ended", "ended": 1.0, "end": END, **changes}
        messages.send(self.session, {"ended": info})

    def close_streams(self):
        for name in ("stdin", "stdout", "stderr"):
            if (descriptor := getattr(self, name)) >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def close(self):
        self.close_streams()
        self.session.close()
        self.sandbox._open.held.close()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def pipe():
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    flow = Inflow(ours)
    yield Reader(flow), theirs
    flow.close()
    os.close(theirs)


# --- streams -----------------------------------------------------------------------------------------------


def test_lines_come_one_by_one_however_they_were_written(pipe):
    reader, end = pipe
    os.write(end, b"one\ntwo\nthr")
    assert reader.readline() == b"one\n"
    assert reader.readline() == b"two\n"
    os.write(end, b"ee\n")
    assert reader.readline() == b"three\n"


def test_an_unfinished_line_is_not_lost_by_a_timeout(pipe):
    reader, end = pipe
    os.write(end, b"par")
    with pytest.raises(WaitTimeout):
        reader.readline(timeout=0.01)
    with pytest.raises(TimeoutError):
        reader.readline(timeout=0)
    os.write(end, b"tial\n")
    assert reader.readline() == b"partial\n"


def test_the_last_line_may_lack_its_end(peer):
    os.write(peer.stdout, b"a\nb")
    peer.end()
    assert [peer.sandbox.stdout.readline() for _ in range(3)] == [b"a\n", b"b", b""]


def test_a_line_that_is_too_long_comes_in_pieces(pipe):
    reader, end = pipe
    os.write(end, b"x" * 25 + b"\nrest\n")
    assert [len(reader.readline(size=10)) for _ in range(3)] == [10, 10, 6]
    assert reader.readline() == b"rest\n"


def test_read_gives_what_is_there(pipe):
    reader, end = pipe
    os.write(end, b"abcdef")
    assert reader.read(4) == b"abcd"
    assert reader.read() == b"ef"
    with pytest.raises(WaitTimeout):
        reader.read(timeout=0.01)


def test_a_stream_has_one_reader_at_a_time(pipe):
    reader, end = pipe
    with reader._flow.used(), pytest.raises(InvalidRequest) as caught:
        reader.read()
    assert caught.value.code == "stream_busy"
    os.write(end, b"x")
    assert reader.read() == b"x"


def test_input_that_nobody_reads_is_waited_for_no_longer_than_asked():
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    writer = Writer(Outflow(ours), "utf-8")
    with pytest.raises(WaitTimeout):
        writer.write(bytes(1 << 20), timeout=0.02)
    os.close(theirs)
    with pytest.raises(RametError) as caught:
        writer.write("more")
    assert caught.value.code == "stdin_closed"
    writer.close()
    with pytest.raises(RametError):
        writer.write(b"x")


def test_large_input_is_written_as_it_is_read():
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    data = os.urandom(3 << 20)
    parts = []

    def read():
        while part := os.read(theirs, 65536):
            parts.append(part)

    thread = threading.Thread(target=read)
    thread.start()
    writer = Writer(Outflow(ours), "utf-8")
    writer.write(data)
    writer.close()
    thread.join(10)
    os.close(theirs)
    assert b"".join(parts) == data


# --- the end -----------------------------------------------------------------------------------------------


def test_the_result_holds_what_nobody_read(peer):
    os.write(peer.stdout, b"one\ntwo\n")
    assert peer.sandbox.stdout.readline() == b"one\n"
    os.write(peer.stderr, b"err")
    peer.end()
    result = peer.sandbox.wait()
    assert (result.stdout, result.stderr, result.exit_code) == ("two\n", "err", 0)
    assert peer.sandbox.stdout.read() == b""


def test_waiting_reads_so_that_the_command_can_go_on(peer):
    def write():
        os.write(peer.stdout, b"x" * (1 << 20))
        peer.end()

    thread = threading.Thread(target=write)
    thread.start()
    result = peer.sandbox.wait(timeout=10)
    thread.join()
    assert result.stdout_total == 1 << 20
    assert result.truncated
    assert len(result.stdout_bytes) == 64 << 10


def test_a_wait_in_vain_leaves_everything_to_be_read(peer):
    os.write(peer.stdout, b"one\n")
    for _ in range(2):
        with pytest.raises(WaitTimeout):
            peer.sandbox.wait(timeout=0.01)
    os.write(peer.stdout, b"two\n")
    assert [peer.sandbox.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]


def test_what_a_wait_in_vain_had_to_drop_is_told_where_it_is_missing(peer):
    thread = threading.Thread(target=lambda: os.write(peer.stdout, b"x" * (256 << 10)))
    thread.start()
    with pytest.raises(WaitTimeout):
        peer.sandbox.wait(timeout=0.3)
    thread.join()
    assert b"\n[... 196608 bytes left out ...]\n" in peer.sandbox.stdout.read(1 << 20)


def test_a_wait_can_leave_the_streams_to_others(peer):
    os.write(peer.stdout, b"out")
    peer.end()
    assert peer.sandbox.wait(drain=False).stdout == ""
    assert peer.sandbox.stdout.read() == b"out"


def test_a_wait_and_a_read_do_not_share_a_stream(peer):
    with peer.sandbox._open.held.stdout.used(), pytest.raises(InvalidRequest):
        peer.sandbox.wait(timeout=0)


def test_a_wait_that_leaves_the_streams_goes_together_with_a_read(peer):
    with peer.sandbox._open.held.stdout.used(), pytest.raises(WaitTimeout):
        peer.sandbox.wait(timeout=0, drain=False)


def test_an_interrupted_wait_loses_nothing(peer):
    os.write(peer.stdout, b"out")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            peer.sandbox.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert peer.sandbox.stdout.read() == b"out"


def test_a_daemon_that_died_is_told_and_closing_is_quiet(peer):
    peer.session.close()
    for call in (peer.sandbox.wait, peer.sandbox.kill, lambda: peer.sandbox.running):
        with pytest.raises(DaemonLost, match="ended with it"):
            call()
    peer.sandbox.close()


def test_of_a_detached_sandbox_whose_daemon_died_nothing_is_claimed():
    peer = Peer(detached=True)
    peer.session.close()
    with pytest.raises(DaemonLost, match="may live on"):
        peer.sandbox.wait()
    peer.close()


def test_kill_asks_the_daemon_and_waits_for_its_word(peer):
    def serve():
        assert messages.receive(peer.session)[0] == {"op": "kill"}
        peer.end(end=END._replace(reason="killed", exit_code=137))

    os.write(peer.stdout, b"last words")
    thread = threading.Thread(target=serve)
    thread.start()
    peer.sandbox.kill()
    thread.join()
    peer.sandbox.kill()
    result = peer.sandbox.wait()
    assert (result.reason, result.stdout) == ("killed", "last words")


def test_a_sandbox_that_was_let_go_says_so():
    peer = Peer(detached=True)
    peer.sandbox.close()
    assert messages.receive(peer.session) is None
    with pytest.raises(InvalidRequest) as caught:
        peer.sandbox.wait()
    assert caught.value.code == "not_held"
    peer.sandbox.close()
    peer.close()


def test_a_fork_of_this_process_holds_nothing(peer):
    pid = os.fork()
    if pid == 0:
        held = peer.sandbox._open.held
        os._exit(held.session.fileno() != -1 or held.stdin.descriptor != -1 or held.stdout.descriptor != -1)
    assert os.waitpid(pid, 0)[1] == 0
    assert peer.sandbox.running


def test_a_sandbox_tells_what_it_is(peer):
    assert repr(peer.sandbox) == "<Sandbox abc, running>"
    peer.end()
    peer.sandbox.wait()
    assert repr(peer.sandbox) == "<Sandbox abc, ended>"


def test_a_fork_error_survives_pickling():
    error = ForkError("no", ["a sandbox"], {1: RametError("busy", "b", errno=24)})
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.sandboxes, again.errors[1].code, again.errno) == ("no", [], "busy", 24)


# --- asynchronous, and cancelled ---------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path).start()
    yield daemon
    daemon.stop()
    assert "defect" not in daemon.log.names()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  another thread sees to it
            await asyncio.sleep(0.001)


async def test_an_asynchronous_sandbox_is_started_by_await_or_by_entering_it(daemon):
    async with ramet.AsyncClient(daemon.place, start=False) as client:
        lazy = ramet.AsyncSandbox(command=["repl"], client=client)
        assert repr(lazy) == "<AsyncSandbox not started>"
        with pytest.raises(InvalidRequest) as caught:
            lazy.stdout  # noqa: B018
        assert caught.value.code == "not_started"
        await lazy.aclose()
        assert not daemon.cores
        parent = await lazy
        assert await parent.start() is parent
        async with await parent.fork(2) as children, await parent.fork() as child:
            assert [one.info.parent for one in (*children, child)] == [parent.id] * 3
            assert await children[0].stdout.read() == b""
        await parent.snapshot("point")
        async with ramet.AsyncSandbox("point", client=client) as again:
            assert again.info.snapshot == "point"
        assert [one.name for one in await ramet.asnapshots.list(client=client)] == ["point"]
        async with await afork(sandbox=parent.id, n=2, client=client) as children:
            assert len(children) == 2
        daemon.core.send(p.EXITED, 0, exited(int(parent.id, 16), 3 << 8))
        assert (await parent.wait(timeout=5)).exit_code == 3
        await parent.aclose()
    assert not daemon.core.standing


async def session(client, name):
    """Everything that an asynchronous sandbox can wait for."""
    async with ramet.AsyncSandbox(command=["repl"], client=client) as parent:
        with pytest.raises(RametError):
            await parent.stdin.write(bytes(1 << 20), timeout=0.001)
        await parent.stdout.readline()
        await parent.snapshot(name)
        async with await parent.fork(3) as children:
            await children[0].kill()
        async with ramet.AsyncSandbox(name, client=client) as child:
            await child.kill()
            await child.wait()
        await ramet.asnapshots.remove(name, client=client)
        with pytest.raises(ForkError):
            await parent.fork(2)


async def test_a_cancellation_at_any_await_leaves_nothing(daemon, monkeypatch):
    async with ramet.AsyncClient(daemon.place, start=False) as client:
        async with ramet.AsyncSandbox(command=["first"], client=client):
            pass
        waits = Waits(monkeypatch)
        places = 0
        while not waits.completed:
            prepare(daemon.core)
            waits.cancel_at(places)
            task = asyncio.create_task(session(client, f"point{places}"))
            waits.task = task
            await asyncio.wait([task])
            waits.completed = not task.cancelled()
            if waits.completed:
                task.result()
            gc.collect()
            await until(lambda: not daemon.core.standing)
            # Who does not wait for a snapshot finds it by its name, once it is on disk.
            places += 1
    assert places >= 8
    assert "work failed" not in daemon.log.names()


def prepare(core):
    """Six children are made of each session, and none after them."""
    left = iter(range(5))

    def create(core, frame):
        if next(left, None) is None:
            core.send(p.ERROR, frame.request, failed(p.STEP_CLONE_INIT, 11))
        else:
            answer(core, frame)

    core.on[p.CREATE] = create


class Waits:
    """Counts the places where the asynchronous client waits, and cancels the task at one of them."""

    def __init__(self, monkeypatch):
        self.completed = False
        self.task = None
        self._count = self._at = -1
        for module, name in (
            (async_client, "poll"),
            (async_client, "in_thread"),
            (async_sandbox, "poll"),
            (async_streams, "ready"),
        ):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def cancel_at(self, place):
        self._count, self._at = 0, place

    def _counted(self, wait):
        async def counted(*words, **options):
            if asyncio.current_task() is self.task:
                self._count += 1
                if self._count - 1 == self._at:
                    self.task.cancel()
            return await wait(*words, **options)

        return counted


@pytest.mark.parametrize("field", ["command", "cwd", "root", "kernel", "python"])
def test_what_belongs_to_the_snapshot_cannot_be_given_to_its_fork(field):
    with pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox("a-snapshot", **{field: "x"})
    assert caught.value.field == field
