"""Who may speak to daemon and core, and what they make of nonsense."""

import errno
import json
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ramet._descriptors import seal
from ramet.client import Client
from ramet.errors import DaemonError
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.wire import messages
from ramet.wire.places import CORE_SOCKET, DAEMON_SOCKET
from system._daemons import Own, kill_hard, wait_gone

OTHER = 1000
PATIENCE_S = 20


def as_other(function: Callable[[], object]) -> object:
    """What `function` returns in a process of another user, or the name of the errno that it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            try:
                said = function()
            except OSError as error:
                said = errno.errorcode.get(error.errno or 0, str(error))
            os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = json.loads(answer.read())
    os.waitpid(child, 0)
    return said


def spoken(path: str, packet: bytes) -> str:
    """What a server at `path` answers to a packet, "" when it closes the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(path)
        with suppress(BrokenPipeError):
            sock.send(packet)
        try:
            return sock.recv(65536).decode("latin-1")
        except ConnectionResetError:
            return ""


def packet(message: object, version: int = messages.VERSION, magic: bytes = messages.MAGIC) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return messages.HEADER.pack(magic, version, 0, len(data)) + data


@pytest.mark.root
def test_another_user_cannot_even_name_the_sockets(shared):
    shared.pids()
    for name in (DAEMON_SOCKET, CORE_SOCKET):
        path = f"{shared.place}/{name}"
        assert os.path.exists(path)
        assert as_other(lambda path=path: spoken(path, packet({"op": "ping"}))) == "EACCES"


def test_the_sockets_and_their_directory_are_the_users_alone(shared):
    shared.pids()
    modes = {name: stat.S_IMODE(os.stat(f"{shared.place}/{name}").st_mode) for name in shared.entries()}
    assert stat.S_IMODE(os.stat(shared.place).st_mode) == 0o700
    assert {DAEMON_SOCKET, CORE_SOCKET} <= modes.keys()
    assert {mode & 0o077 for mode in modes.values()} == {0}


@pytest.mark.root
def test_the_daemon_refuses_another_user_also_where_the_directory_lets_him_in(own):
    daemon, _ = own.pids()
    os.chmod(Path(own.place).parent, 0o755)
    os.chmod(own.place, 0o755)
    os.chmod(f"{own.place}/{DAEMON_SOCKET}", 0o666)
    said = as_other(lambda: spoken(f"{own.place}/{DAEMON_SOCKET}", packet({"op": "ping"})))
    os.chmod(own.place, 0o700)
    assert said == ""
    assert own.client().ping().pid == daemon
    assert '"uid": 1000' in Path(own.place, "daemon.log").read_text()


@pytest.mark.root
def test_the_mode_of_cores_socket_keeps_others_out_also_where_the_directory_lets_them_in(own):
    """Core of real root cannot tell users apart by number, for none of them exists in its user namespace."""
    daemon, core = own.pids()
    kill_hard(daemon)
    os.chmod(Path(own.place).parent, 0o755)
    os.chmod(own.place, 0o755)
    hello = hello_frame()
    said = as_other(lambda: spoken(f"{own.place}/{CORE_SOCKET}", hello))
    os.chmod(own.place, 0o700)
    assert said == "EACCES"
    assert own.pids()[1] == core, "the next daemon of the right user takes core over"


def hello_frame() -> bytes:
    """The bytes of a HELLO, as a daemon sends them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        frames.send(ours, p.HELLO, 1, frames.u32(p.TAG_VERSION, p.PROTOCOL_VERSION), [])
        return theirs.recv(p.FRAME_BYTES)


@pytest.mark.root
def test_a_client_refuses_a_socket_that_another_user_serves(tmp_path):
    """The credentials are those of listen(2)."""
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            os.chdir(place)
            listener.bind(DAEMON_SOCKET)
            os.setresuid(OTHER, OTHER, OTHER)
            listener.listen()
            os.write(ready[1], b"x")
            os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        with Client(str(place)) as client, pytest.raises(DaemonError) as caught:
            client.run("true")
        assert (caught.value.code, f"uid {OTHER}" in caught.value.message) == ("peer", True)
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)


# --- nonsense -----------------------------------------------------------------------------------------------


@pytest.fixture
def peer(shared: Own) -> Iterator[socket.socket]:
    """A connection to the daemon without a client behind it. Whatever is sent, the daemon must live on."""
    daemon, core = shared.pids()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(f"{shared.place}/{DAEMON_SOCKET}")
        yield sock
    assert shared.pids() == (daemon, core)


def answer(sock: socket.socket) -> dict[str, object]:
    """The error that came, or the result."""
    received = messages.receive(sock)
    assert received is not None, "closed without an answer"
    message, fds = received
    assert fds == []
    found = message.get("error") or message.get("ok")
    assert isinstance(found, dict)
    return found


RUN = {"argv": ["true"]}


@pytest.mark.parametrize(
    "sent, code",
    [
        (b"", "malformed"),
        (b"x", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (packet({"op": "ping"}, magic=b"RMTx"), "malformed"),
        (packet({"op": "ping"}) + b"more", "malformed"),
        (packet({"op": "ping"})[:-1], "malformed"),
        (packet(b"{"), "malformed"),
        (packet(b"\xff\xfe"), "malformed"),
        (packet(b"[" * 30000), "malformed"),
        (packet(b'{"op":' * 9000), "malformed"),
        (packet([1, 2]), "malformed"),
        (packet("ping"), "malformed"),
        (packet(None), "malformed"),
        (packet(b"NaN"), "malformed"),
        (packet(b"1" * 5000), "malformed"),
        (messages.HEADER.pack(messages.MAGIC, messages.VERSION, messages.FLAG_MEMORY, 10), "malformed"),
        (packet({"op": "ping"}, version=messages.VERSION + 1), "protocol_mismatch"),
        (packet({"op": "ping"}, version=0), "protocol_mismatch"),
    ],
)
def test_what_is_no_message_is_answered_with_an_error_and_left(peer, sent, code):
    if sent == b"":
        # An empty message is the end of a connection to the one who reads.
        peer.send(sent)
        assert peer.recv(100) == b""
        return
    peer.send(sent)
    assert answer(peer)["code"] == code
    assert peer.recv(100) == b""


@pytest.mark.parametrize(
    "message, field",
    [
        ({}, "op"),
        ({"op": None}, "op"),
        ({"op": ["run"]}, "op"),
        ({"op": "destroy"}, "op"),
        ({"op": "run\0"}, "op"),
        ({"op": "ping", "args": []}, "args"),
        ({"op": "ping", "args": {"x": 1}}, "x"),
        ({"op": "run"}, "command"),
        ({"op": "run", "args": {"argv": "true"}}, "command"),
        ({"op": "run", "args": {"argv": []}}, "command"),
        ({"op": "run", "args": {"argv": [""]}}, "command"),
        ({"op": "run", "args": {"argv": [1]}}, "command"),
        ({"op": "run", "args": {"argv": ["a\0b"]}}, "command"),
        ({"op": "run", "args": {"argv": ["x" * 200_000]}}, "command"),
        ({"op": "run", "args": {**RUN, "env": [1]}}, "env"),
        ({"op": "run", "args": {**RUN, "env": {"A": 1}}}, "env"),
        ({"op": "run", "args": {**RUN, "env": {"A=B": "1"}}}, "env"),
        ({"op": "run", "args": {**RUN, "env": {"A": "\0"}}}, "env"),
        ({"op": "run", "args": {**RUN, "cwd": "relative"}}, "cwd"),
        ({"op": "run", "args": {**RUN, "cwd": 3}}, "cwd"),
        ({"op": "run", "args": {**RUN, "root": "/no/such/directory"}}, "root"),
        ({"op": "run", "args": {**RUN, "root": {}}}, "root"),
        ({"op": "run", "args": {**RUN, "limits": {"memory": 1}}}, "limits.memory"),
        ({"op": "run", "args": {**RUN, "limits": {"disk": -1}}}, "limits.disk"),
        ({"op": "run", "args": {**RUN, "limits": {"wall": 1e400}}}, "limits.wall"),
        ({"op": "run", "args": {**RUN, "streams": [1]}}, "streams"),
        ({"op": "run", "args": {**RUN, "limits": 7}}, "limits"),
        ({"op": "run", "args": {**RUN, "python": ["a"]}}, "python"),
        ({"op": "run", "args": {**RUN, "streams": [0, 0]}}, "streams"),
        ({"op": "run", "args": {**RUN, "streams": [3]}}, "streams"),
        ({"op": "run", "args": {**RUN, "streams": [1, 2]}}, "streams"),
        ({"op": "run", "args": {**RUN, "fault": "pivot_root"}}, "fault"),
        ({"op": "run", "args": {**RUN, "unheard_of": 1}}, "unheard_of"),
    ],
)
def test_a_wrong_request_is_answered_with_the_field_at_fault_and_the_connection_serves_on(
    peer, message, field
):
    data = json.dumps(message).encode()
    if len(data) > 60000:
        messages.send(peer, message)
    else:
        peer.send(packet(data))
    assert answer(peer)["field"] == field
    peer.send(packet({"op": "ping"}))
    assert "pid" in answer(peer)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_descriptors_that_nobody_asked_for_are_closed(shared, peer):
    daemon, _ = shared.pids()
    peer.send(packet({"op": "ping"}))
    answer(peer)
    before = descriptors(daemon)
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        for message, count in [
            ({"op": "ping"}, 1),
            ({"op": "run", "args": RUN}, 3),
            ({"op": "run", "args": {**RUN, "streams": [0, 1, 2]}}, 2),
            ({"op": "nothing"}, 8),
            ({}, 8),
        ]:
            messages.send(peer, message, [null] * count)
            assert answer(peer)["code"] in {"invalid_argument", "unknown_operation"}
    finally:
        os.close(null)
    assert descriptors(daemon) == before


def test_more_descriptors_than_a_message_may_have_end_the_connection(shared, peer):
    daemon, _ = shared.pids()
    before = descriptors(daemon)
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("200i", *[null] * 200))]
        peer.sendmsg([packet({"op": "ping"})], rights)
    finally:
        os.close(null)
    assert answer(peer)["code"] == "malformed"
    assert peer.recv(10) == b""
    assert descriptors(daemon) <= before


@pytest.mark.parametrize("kind", ["not sealed", "too long", "a pipe", "a directory", "huge", "missing"])
def test_a_payload_in_a_file_is_believed_only_when_it_is_sealed_and_of_its_length(peer, kind):
    data = json.dumps({"op": "ping"}).encode()
    length = len(data)
    fds = []
    if kind == "not sealed":
        fds = [os.memfd_create("payload", os.MFD_ALLOW_SEALING)]
        os.write(fds[0], data)
    elif kind == "too long":
        fds = [seal(data + b" ")]
    elif kind == "a pipe":
        fds = list(os.pipe())
        os.write(fds[1], data)
        fds.reverse()
    elif kind == "a directory":
        fds = [os.open("/", os.O_RDONLY)]
    elif kind == "huge":
        fds = [seal(data)]
        length = 0xFFFFFFFF
    head = messages.HEADER.pack(messages.MAGIC, messages.VERSION, messages.FLAG_MEMORY, length)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    peer.sendmsg([head], rights)
    for descriptor in fds:
        os.close(descriptor)
    assert answer(peer)["code"] == "malformed"


def test_a_second_request_before_the_answer_ends_the_connection_and_its_run(shared, peer):
    ours, theirs = os.pipe()
    request = {"argv": ["sleep", "1000"], "streams": [1]}
    messages.send(peer, {"op": "run", "args": request}, [theirs])
    messages.send(peer, {"op": "run", "args": request}, [theirs])
    os.close(theirs)
    assert peer.recv(65536) == b""
    assert select.select([ours], [], [], PATIENCE_S)[0], "the command still holds its stream"
    assert os.read(ours, 1) == b""
    os.close(ours)


def test_half_a_connection_and_silence_cost_others_nothing(shared):
    """Some say nothing, some shut down one way, some never read; all at once, while another works."""
    daemon, _ = shared.pids()
    socks = []
    try:
        for number in range(300):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socks.append(sock)
            sock.connect(f"{shared.place}/{DAEMON_SOCKET}")
            if number % 3 == 1:
                sock.shutdown(socket.SHUT_WR)
            elif number % 3 == 2:
                sock.send(packet({"op": "status"}))
        with shared.client() as client:
            assert client.run("echo served").stdout == "served\n"
            assert client.ping().pid == daemon
    finally:
        for sock in socks:
            sock.close()


def test_a_client_that_does_not_take_its_answers_is_left(shared, peer):
    """A request at a time: the answers fill the socket's buffer, which must not stop the daemon."""
    peer.setblocking(False)
    sent = 0
    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
        for _ in range(5000):
            peer.send(packet({"op": "unknown"}))
            sent += 1
    assert sent > 0
    with shared.client() as client:
        assert client.run("echo served").stdout == "served\n"


def test_two_clients_share_nothing_but_the_daemon(shared):
    """The end of the one, and all it can ask, does not touch the run of the other."""
    begun = threading.Event()
    reader, writer = os.pipe()
    results = []

    def work() -> None:
        with shared.client() as client:
            results.append(
                client.run("echo begun; cat", stdin=reader, on_stdout=lambda _: begun.set(), timeout=50)
            )

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert begun.wait(PATIENCE_S)
        with shared.client() as other:
            status = other.status()
            assert (status.active, status.core is not None and status.core.sandboxes) == (1, 1)
            assert not hasattr(other, "kill")
            assert other.run("ps -ef | grep -c '[c]at$'").stdout == "0\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(f"{shared.place}/{DAEMON_SOCKET}")
            for name in ("kill", "list", "end", "attach"):
                sock.send(packet({"op": name, "args": {"sandbox": 1}}))
                assert answer(sock)["code"] == "unknown_operation"
        os.write(writer, b"still here\n")
    finally:
        os.close(writer)
        worker.join()
        os.close(reader)
    assert results[0].stdout == "begun\nstill here\n"
    assert results[0].ok


def test_a_frame_from_a_stranger_does_not_reach_a_core_that_serves(own):
    """While a daemon is connected core takes nobody else: the stranger waits, and is left when core ends."""
    _, core = own.pids()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(f"{own.place}/{CORE_SOCKET}")
        sock.settimeout(PATIENCE_S)
        with suppress(BrokenPipeError):
            sock.send(hello_frame())
        assert own.client().run("echo fine").stdout == "fine\n"
        own.end()
        wait_gone(core)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""


@pytest.mark.parametrize("kind", ["nonsense", "version", "truncated", "silence"])
def test_nonsense_at_a_core_that_waits_leaves_it_to_the_next_daemon(own, kind):
    daemon, core = own.pids()
    kill_hard(daemon)
    said = {
        "nonsense": b"\xff" * 64,
        "version": hello_frame().replace(
            frames.u32(p.TAG_VERSION, p.PROTOCOL_VERSION), frames.u32(p.TAG_VERSION, 999)
        ),
        "truncated": hello_frame()[:10],
        "silence": b"",
    }[kind]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(f"{own.place}/{CORE_SOCKET}")
        if said:
            sock.send(said)
            with suppress(ConnectionResetError):
                sock.recv(65536)
        assert own.pids()[1] == core
