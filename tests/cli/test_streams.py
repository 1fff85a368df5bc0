"""Writing to streams that are slow, closed or full."""

import os
import threading

import pytest

from ramet.cli._streams import OutputClosed, OutputFailed, writer


def test_a_slow_reader_of_a_non_blocking_pipe_gets_every_byte():
    reader, end = os.pipe()
    os.set_blocking(end, False)
    data = os.urandom(1 << 20)
    got = []

    def read():
        while chunk := os.read(reader, 4096):
            got.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    writer(end)(data)
    os.close(end)
    thread.join()
    os.close(reader)
    assert b"".join(got) == data


def test_a_pipe_without_reader_is_told_apart_from_a_full_disk():
    reader, end = os.pipe()
    os.close(reader)
    with pytest.raises(OutputClosed):
        writer(end)(b"x")
    os.close(end)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputFailed, match="No space left"):
        writer(full)(b"x")
    os.close(full)
