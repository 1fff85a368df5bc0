"""Frames to and from core: exact bytes, and refusal of every malformed one."""

import os
import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.native import _protocol as p
from ramet.native import frames


@pytest.fixture
def pair():
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        two.setblocking(False)
        yield one, two


@pytest.fixture
def buffer():
    return bytearray(p.FRAME_BYTES)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_the_header_is_laid_out_as_in_c():
    assert frames.HEADER.size == 24
    assert frames.ATTR.size == 8
    assert frames.encode(p.RUN, 0x1122334455667788, b"") == bytes.fromhex(
        "524d5431 0100 0500 8877665544332211 00000000 0000 0000".replace(" ", "")
    )


@given(st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=40))))
def test_attributes_are_decoded_as_they_were_encoded(pairs):
    payload = b"".join(frames.raw(tag, value) for tag, value in pairs)
    assert len(payload) % 4 == 0
    assert frames.decode(payload) == pairs


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(payload):
    with suppress(frames.FrameError):
        frames.decode(payload)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_frame_or_refused(data):
    with suppress(frames.FrameError):
        frames.parse(data, len(data), [])


def test_what_a_peer_said_before_it_closed_with_something_unread_is_read(pair, buffer):
    one, two = pair
    frames.send(two, p.STATUS, 1, b"", [])
    frames.send(one, p.OK, 7, b"", [])
    one.close()
    assert frames.receive(two, buffer).request == 7
    assert frames.receive(two, buffer) is None


def test_an_end_with_something_unread_says_that_the_request_was_not_seen(pair, buffer):
    one, two = pair
    frames.send(two, p.STATUS, 1, b"", [])
    one.close()
    with pytest.raises(ConnectionResetError):
        frames.receive(two, buffer)


def test_numbers_and_text_are_found_by_tag():
    found = frames.attributes(
        frames.u32(p.TAG_STEP, 7) + frames.u64(p.TAG_CORE_ID, 1 << 60) + frames.text(p.TAG_TEXT, "häh")
    )
    assert found.u32(p.TAG_STEP) == 7
    assert found.u64(p.TAG_CORE_ID) == 1 << 60
    assert found.text(p.TAG_TEXT) == "häh"
    assert found.u32(p.TAG_ERRNO, 5) == 5
    assert found.text(p.TAG_FIELD, "none") == "none"


def test_a_number_of_the_wrong_size_is_refused():
    with pytest.raises(frames.FrameError):
        frames.attributes(frames.u64(p.TAG_STEP, 7)).u32(p.TAG_STEP)


def test_numbers_of_one_kind_are_read_in_cores_order_at_once_and_in_any_other_by_name():
    numbers = frames.Numbers({p.TAG_STEP: 4, p.TAG_CORE_ID: 8})
    step, core = frames.u32(p.TAG_STEP, 7), frames.u64(p.TAG_CORE_ID, 1 << 60)
    assert numbers.as_written(step + core) == numbers.read(step + core) == (7, 1 << 60)
    for payload in (core + step, step + core + frames.text(p.TAG_TEXT, "more")):
        assert numbers.as_written(payload) is None
        assert numbers.read(payload) == (7, 1 << 60)
    assert numbers.read(core) == (0, 1 << 60)
    for malformed in (
        step[:-1] + core,
        b"\1" + core,
        frames.u64(p.TAG_STEP, 7) + frames.u32(p.TAG_CORE_ID, 1),
    ):
        with pytest.raises(frames.FrameError):
            numbers.read(malformed)


def test_a_repeated_attribute_is_refused_where_none_may_be():
    with pytest.raises(frames.FrameError):
        frames.attributes(frames.u32(1, 1) * 2)


def test_bytes_that_are_no_utf8_stay_what_they_are():
    assert frames.text(p.TAG_ARG, os.fsdecode(b"\xff"))[8:9] == b"\xff"


@pytest.mark.parametrize(
    "size", [0, 1, frames.INLINE_MAX - 8, frames.INLINE_MAX, frames.INLINE_MAX + 1, 3 << 20]
)
def test_a_payload_of_any_size_arrives_with_its_descriptors(pair, buffer, size):
    before = open_descriptors()
    payload = os.urandom(size)
    frames.send(pair[0], p.DEFINE_ROOT, 9, payload, [0, 1])
    frame = frames.receive(pair[1], buffer)
    assert (frame.kind, frame.request, frame.payload, len(frame.fds)) == (p.DEFINE_ROOT, 9, payload, 2)
    for descriptor in frame.fds:
        os.close(descriptor)
    assert open_descriptors() == before


def test_the_end_is_told_apart_from_nothing_yet(pair, buffer):
    with pytest.raises(BlockingIOError):
        frames.receive(pair[1], buffer)
    pair[0].close()
    assert frames.receive(pair[1], buffer) is None


def header(magic=p.FRAME_MAGIC, version=p.PROTOCOL_VERSION, length=0, fds=0, flags=0):
    return frames.HEADER.pack(magic, version, p.OK, 1, length, fds, flags)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        header(magic=1),
        header(version=99),
        header(length=4),
        header() + b"1234",
        header(fds=2),
        header(fds=0),
        header(flags=2),
        header(flags=p.FLAG_PAYLOAD_FD, fds=0, length=5),
        header(flags=p.FLAG_PAYLOAD_FD, fds=0, length=p.PAYLOAD_MAX + 1),
    ],
)
def test_a_malformed_frame_is_refused_and_its_descriptors_are_closed(pair, buffer, data):
    before = open_descriptors()
    pair[0].sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
    with pytest.raises(frames.FrameError):
        frames.receive(pair[1], buffer)
    assert open_descriptors() == before


def test_more_descriptors_than_a_frame_may_have_are_refused_and_closed(pair, buffer):
    before = open_descriptors()
    count = p.FRAME_FDS + 5
    pair[0].sendmsg(
        [header(fds=count)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0) * count)]
    )
    with pytest.raises(frames.FrameError):
        frames.receive(pair[1], buffer)
    assert open_descriptors() == before
