"""The client's ends of the standard streams: what is kept, what is counted, and where input comes from."""

import io
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.client._streams import CHUNK, Sink, Source
from ramet.errors import InvalidRequest


def collect(data, limit, callback=None, piece=CHUNK):
    """What a sink keeps of `data`, written in pieces; each is read before the next is written."""
    read, write = os.pipe()
    sink = Sink(read, limit, callback)
    told = []
    for start in range(0, len(data), piece):
        os.write(write, data[start : start + piece])
        count = sink.pull()
        assert count
        if callback is not None:
            assert len(sink.chunk) == count
            told.append(sink.chunk)
    os.set_blocking(read, False)
    assert sink.pull() is None
    os.close(write)
    assert sink.pull() == 0
    os.close(read)
    return sink.captured(), b"".join(told)


@given(
    data=st.binary(max_size=3000), limit=st.integers(0, 3000), piece=st.integers(1, 700), told=st.booleans()
)
def test_head_and_tail_have_half_of_the_limit_each_and_the_count_is_exact(data, limit, piece, told):
    captured, heard = collect(data, limit, (lambda _: None) if told else None, piece)
    assert captured.total == len(data)
    assert heard == (data if told else b"")
    if len(data) <= limit:
        assert captured.kept == data
        assert not captured.left_out
    else:
        head, tail = limit - limit // 2, limit // 2
        assert captured.head == head
        assert captured.kept == data[:head] + data[len(data) - tail :]
        assert captured.left_out == len(data) - limit


@pytest.mark.parametrize("told", [False, True])
def test_the_tail_is_right_after_many_turns_of_the_ring(told):
    data = b"".join(b"%07d\n" % number for number in range(300_000))
    limit = 3 * CHUNK
    captured, _ = collect(data, limit, (lambda _: None) if told else None)
    assert captured.kept == data[: limit - limit // 2] + data[-(limit // 2) :]
    assert captured.total == len(data)


def test_a_large_stream_is_given_a_large_pipe():
    import fcntl

    read, write = os.pipe()
    sink = Sink(read, 1 << 20, None)
    before = fcntl.fcntl(read, fcntl.F_GETPIPE_SZ)
    for _ in range(8):
        os.write(write, b"x" * CHUNK)
        sink.pull()
    assert fcntl.fcntl(read, fcntl.F_GETPIPE_SZ) > before
    os.close(read)
    os.close(write)


def drain(source, encoding="utf-8"):
    """Everything that a source feeds."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    source.descriptor = write
    got = []
    reader = threading.Thread(target=lambda: got.extend(iter(lambda: os.read(read, 65536), b"")))
    reader.start()
    while not source.exhausted:
        source.refill(encoding)
        assert source.push()
    os.close(write)
    reader.join(5)
    os.close(read)
    return b"".join(got)


@pytest.mark.parametrize(
    "stdin", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", io.BytesIO(b"abc"), io.StringIO("abc")]
)
def test_input_comes_from_whatever_holds_it(stdin):
    assert drain(Source(stdin, "utf-8")) == b"abc"


def test_text_is_encoded_as_asked_for():
    assert drain(Source("é", "latin-1")) == b"\xe9"
    assert drain(Source(io.StringIO("é"), "latin-1"), "latin-1") == b"\xe9"


def test_input_of_any_size_passes_a_pipe_of_64_kib():
    data = os.urandom(1 << 20)
    assert drain(Source(data, "utf-8")) == data


def test_a_file_is_read_from_where_it_stands(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    with open(tmp_path / "file", "rb", buffering=0) as file:
        file.seek(4)
        assert drain(Source(file, "utf-8")) == b"456789"


def test_a_descriptor_is_read_and_left_open():
    read, write = os.pipe()
    os.write(write, b"abc")
    os.close(write)
    assert drain(Source(read, "utf-8")) == b"abc"
    os.close(read)


def test_only_what_cannot_be_read_again_counts_as_consumed():
    source = Source(b"abc", "utf-8")
    source.refill("utf-8")
    assert not source.consumed
    source = Source(io.BytesIO(b"abc"), "utf-8")
    source.refill("utf-8")
    assert source.consumed


def test_nobody_reading_is_no_error():
    read, write = os.pipe()
    os.close(read)
    source = Source(b"abc", "utf-8")
    source.descriptor = write
    assert not source.push()
    os.close(write)


@pytest.mark.parametrize("stdin", [3.5, ["a"], object(), 99_999, -1, 10**30])
def test_what_is_no_input_is_refused_by_name(stdin):
    with pytest.raises(InvalidRequest) as caught:
        Source(stdin, "utf-8")
    assert caught.value.field == "stdin"


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    written = os.open(tmp_path / "written", os.O_WRONLY | os.O_CREAT)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        for stdin in (written, directory, True):
            with pytest.raises(InvalidRequest) as caught:
                Source(stdin, "utf-8")
            assert caught.value.field == "stdin"
    finally:
        os.close(written)
        os.close(directory)
