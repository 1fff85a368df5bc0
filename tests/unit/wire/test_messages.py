"""Messages between client and daemon: what is sent arrives, and what is none of ours is refused whole."""

import fcntl
import os
import socket
import struct

import pytest

from ramet.errors import DaemonError, InvalidRequest, ProtocolMismatch
from ramet.wire import messages


@pytest.fixture
def pair():
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        two.setblocking(False)
        yield one, two


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def packet(body=b"{}", magic=messages.MAGIC, version=messages.VERSION, flags=0, length=None):
    return messages.HEADER.pack(magic, version, flags, len(body) if length is None else length) + body


def test_a_message_arrives_with_its_descriptors(pair, pipe):
    messages.send(pair[0], {"op": "run", "args": {"argv": ["\udcff", "é"]}}, [pipe[0], pipe[1]])
    message, fds = messages.receive(pair[1])
    assert message == {"op": "run", "args": {"argv": ["\udcff", "é"]}}
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(fd).st_ino for fd in pipe]
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in fds)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("size", [100, 65_000, 66_000, 5 << 20])
def test_a_message_of_any_size_arrives(pair, pipe, size):
    before = open_descriptors()
    messages.send(pair[0], {"text": "x" * size}, [pipe[0]])
    message, fds = messages.receive(pair[1])
    assert len(message["text"]) == size
    assert len(fds) == 1
    os.close(fds[0])
    assert open_descriptors() == before


def test_a_closed_connection_is_told_apart_from_an_empty_one(pair):
    with pytest.raises(BlockingIOError):
        messages.receive(pair[1])
    pair[0].close()
    assert messages.receive(pair[1]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        packet(magic=b"HTTP"),
        packet(length=3),
        packet(body=b"[1]"),
        packet(body=b"nonsense"),
        packet(body=b'{"a": "\xff"}'),
        packet(body=b"[" * 60_000),
        packet(body=b"", flags=messages.FLAG_MEMORY, length=3),
        packet() + b"x" * messages.MESSAGE_BYTES,
    ],
    ids=["short", "magic", "length", "list", "text", "bytes", "deep", "no memory file", "long"],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(pair, pipe, data):
    before = open_descriptors()
    rights = [] if data[6:7] == b"\1" else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", pipe[0]))]
    pair[0].sendmsg([data], rights)
    with pytest.raises(DaemonError) as caught:
        messages.receive(pair[1])
    assert caught.value.code == "malformed"
    assert open_descriptors() == before


def test_another_version_is_refused_by_naming_both(pair):
    pair[0].send(packet(version=77))
    with pytest.raises(ProtocolMismatch) as caught:
        messages.receive(pair[1])
    assert "77" in caught.value.message
    assert str(messages.VERSION) in caught.value.message


def test_a_memory_file_that_can_still_be_changed_is_refused(pair):
    memory = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.write(memory, b"{}")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory))]
    pair[0].sendmsg([messages.HEADER.pack(messages.MAGIC, messages.VERSION, messages.FLAG_MEMORY, 2)], rights)
    os.close(memory)
    with pytest.raises(DaemonError):
        messages.receive(pair[1])


def test_too_many_descriptors_are_refused_and_closed(pair, pipe):
    before = open_descriptors()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", pipe[0]) * 40)]
    pair[0].sendmsg([packet()], rights)
    with pytest.raises(DaemonError):
        messages.receive(pair[1])
    assert open_descriptors() == before


def test_an_answer_is_its_result_or_its_error():
    assert messages.answer_of({"ok": {"pid": 1}}) == {"pid": 1}
    with pytest.raises(InvalidRequest) as caught:
        messages.answer_of({"error": InvalidRequest.of("cwd", "is relative").to_wire()})
    assert caught.value.field == "cwd"
    with pytest.raises(DaemonError):
        messages.answer_of({"maybe": 1})
