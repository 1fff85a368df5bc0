"""Bytes in and out: exact, at any volume, with bounded memory, and never in each other's way."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ramet
from ramet.client import Client
from system._daemons import memory

MIB = 1 << 20


@pytest.fixture(params=["run", "arun"])
def run(request):
    """Both clients, called alike."""
    if request.param == "run":
        return ramet.run

    def call(*words, **options):
        import asyncio

        async def go():
            async with ramet.AsyncClient() as client:
                return await client.run(*words, **options)

        return asyncio.run(go())

    return call


def test_a_mebibyte_on_each_stream_interleaved_and_exit_7(run):
    source = """
import os
out, err = b"o" * 1024, b"e" * 1024
for _ in range(1024):
    os.write(1, out)
    os.write(2, err)
os._exit(7)
"""
    result = run(["python3", "-c", source])
    assert result.exit_code == 7
    assert result.stdout_bytes == b"o" * MIB
    assert result.stderr_bytes == b"e" * MIB
    assert not result.truncated


# The peak of its own memory: getrusage(2) would tell that of the process before exec, too.
PEAK = """
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
"""
VOLUME = f"""{PEAK}
import json, os, sys
import ramet
result = ramet.run("head -c 256M /dev/zero & head -c 256M /dev/zero >&2; wait; exit 3", timeout=50)
print(json.dumps([result.exit_code, result.stdout_total, result.stderr_total, len(result.stdout_bytes),
                  len(result.stderr_bytes), result.truncated,
                  peak(), ramet.status().pid, ramet.status().core.pid]))
"""


def test_256_mib_on_both_streams_at_once_with_bounded_memory(own):
    daemon, core = own.pids()
    before = memory(daemon, "VmRSS")
    out, err = own.program(VOLUME).communicate(timeout=55)
    assert err == b""
    code, out_total, err_total, out_kept, err_kept, truncated, peak, *pids = json.loads(out)
    assert (code, out_total, err_total, truncated) == (3, 256 * MIB, 256 * MIB, True)
    assert (out_kept, err_kept) == (8 * MIB, 8 * MIB)
    assert pids == [daemon, core]
    # The two kept streams of 8 MiB, each at most thrice (ring, joined, as answer), and an interpreter.
    assert peak < 120 * MIB
    assert memory(daemon, "VmHWM") < before + 16 * MIB
    assert memory(core, "VmHWM") < 16 * MIB


def test_live_output_of_any_volume_is_passed_on_whole_with_bounded_memory(own):
    source = f"""{PEAK}
import hashlib, sys
import ramet
digest, count = hashlib.sha256(), 0
def take(chunk):
    global count
    digest.update(chunk)
    count += len(chunk)
result = ramet.run("seq 10000000", on_stdout=take, limits={{"output": 1000}})
print(count, digest.hexdigest(), result.stdout_total, peak() >> 20)
"""
    out, err = own.program(source).communicate(timeout=55)
    assert err == b""
    count, digest, total, peak = out.split()
    expected = hashlib.sha256()
    for first in range(1, 10_000_001, 100_000):
        expected.update(b"".join(b"%d\n" % number for number in range(first, first + 100_000)))
    assert (digest.decode(), count) == (expected.hexdigest(), total)
    assert int(peak) < 80


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65535, 65536, 65537, 262144, 262145, 3 * MIB + 1])
def test_output_below_the_cap_is_byte_for_byte(run, size):
    data = os.urandom(size)
    result = run("tee /dev/stderr", stdin=data)
    assert result.stdout_bytes == data
    assert result.stderr_bytes == data
    assert (result.stdout_total, result.truncated) == (size, False)


@pytest.mark.parametrize("limit", [0, 1, 2, 999, 1000, 65536, 131073, 1 * MIB])
@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 70000, 2 * MIB + 7])
def test_above_the_cap_head_and_tail_are_kept_and_counts_are_exact(limit, size):
    data = os.urandom(size)
    result = ramet.run("cat", stdin=data, limits={"output": limit})
    assert result.stdout_total == size
    assert result.truncated == (size > limit)
    if size <= limit:
        assert result.stdout_bytes == data
        return
    head = limit - limit // 2
    assert len(result.stdout_bytes) == limit
    assert result.stdout_bytes[:head] == data[:head]
    assert result.stdout_bytes[head:] == (data[-(limit // 2) :] if limit // 2 else b"")
    assert f"[... {size - limit} bytes left out ...]" in result.stdout


def test_one_stream_over_the_cap_leaves_the_other_whole():
    result = ramet.run("head -c 5000 /dev/zero; echo small >&2", limits={"output": 100})
    assert (result.stdout_total, len(result.stdout_bytes)) == (5000, 100)
    assert result.stderr_bytes == b"small\n"
    assert result.truncated


def test_64_mib_pass_through_a_command(run):
    data = os.urandom(MIB) * 64
    result = run("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_64_mib_go_in_and_come_out_at_once():
    data = os.urandom(MIB) * 64
    digest = hashlib.sha256()
    result = ramet.run("cat", stdin=data, on_stdout=digest.update)
    assert digest.digest() == hashlib.sha256(data).digest()
    assert result.stdout_total == len(data)


@pytest.mark.parametrize(
    "line", ["exit 5", "head -c 10 >/dev/null; exit 5", "exec <&-; exit 5", "sleep 0.05; exit 5"]
)
def test_input_that_is_not_read_is_no_failure(run, line):
    result = run(line, stdin=b"x" * (8 * MIB))
    assert (result.exit_code, result.reason) == (5, "exit")


def test_a_command_that_closes_its_streams_early_goes_on(run):
    result = run("echo before; exec >&- 2>&-; sleep 0.05; exit 6")
    assert (result.exit_code, result.stdout) == (6, "before\n")


def test_streams_that_are_closed_at_once_are_empty(run):
    result = run(["sh", "-c", "exec 0<&- 1>&- 2>&-; exit 4"], stdin="never read")
    assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (4, b"", b"")


def test_input_comes_from_text_bytes_files_descriptors_and_objects(run, tmp_path):
    path = tmp_path / "input"
    path.write_bytes(b"from a file\n")
    assert run("cat", stdin="häß\n").stdout == "häß\n"
    assert run("cat", stdin="h\xe4\xdf", encoding="latin-1").stdout_bytes == b"h\xe4\xdf"
    assert run("cat", stdin=memoryview(b"bytes")).stdout == "bytes"
    assert run("cat", stdin=io.BytesIO(b"y" * 200_000)).stdout_total == 200_000
    assert run("cat", stdin=io.StringIO("text\n" * 50_000)).stdout_total == 250_000
    with path.open("rb") as file:
        assert run("cat", stdin=file).stdout == "from a file\n"
    with path.open("rb") as file:
        assert run("cat", stdin=file.fileno()).stdout == "from a file\n"
    assert run("cat").stdout == ""


def test_a_file_given_as_input_cannot_be_written_through_proc(tmp_path):
    """The descriptor stays outside: inside there is a pipe."""
    path = tmp_path / "input"
    path.write_bytes(b"original")
    with path.open("r+b") as file:
        result = ramet.run("readlink /proc/self/fd/0; (echo changed >/proc/self/fd/0) 2>&1; cat", stdin=file)
    assert result.stdout.startswith("pipe:")
    assert path.read_bytes() == b"original"


def test_input_from_a_slow_pipe_arrives_as_it_comes():
    reader, writer = os.pipe()
    lines: list[bytes] = []
    feed = iter([b"one\n", b"two\n", b"three\n"])

    def line(chunk: bytes) -> None:
        lines.append(chunk)
        piece = next(feed, None)
        if piece is None:
            os.close(writer)
        else:
            os.write(writer, piece)

    try:
        result = ramet.run("echo ready; while read x; do echo got $x; done", stdin=reader, on_stdout=line)
    finally:
        os.close(reader)
    assert lines == [b"ready\n", b"got one\n", b"got two\n", b"got three\n"]
    assert result.ok


def test_output_is_called_back_while_the_command_runs():
    """The command waits for what the callback answers."""
    reader, writer = os.pipe()
    heard: list[tuple[str, bytes]] = []

    def out(chunk: bytes) -> None:
        heard.append(("out", chunk))
        os.write(writer, b"go\n")

    def err(chunk: bytes) -> None:
        heard.append(("err", chunk))
        os.close(writer)

    try:
        result = ramet.run(
            "echo asking; read x; echo $x >&2; cat", stdin=reader, on_stdout=out, on_stderr=err, timeout=20
        )
    finally:
        os.close(reader)
    assert heard == [("out", b"asking\n"), ("err", b"go\n")]
    assert (result.stdout, result.stderr) == ("asking\n", "go\n")


async def test_callbacks_of_the_async_client_may_be_awaited():
    import anyio

    heard: list[bytes] = []

    async def take(chunk: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(chunk)

    async with ramet.AsyncClient() as client:
        await client.run("echo one; sleep 0.05; echo two", on_stdout=take)
    assert b"".join(heard) == b"one\ntwo\n"


def test_an_exception_in_a_callback_ends_the_run_and_comes_out():
    class OurError(Exception):
        pass

    def take(_: bytes) -> None:
        raise OurError

    with Client() as client:
        with pytest.raises(OurError):
            client.run("echo x; sleep 1000", on_stdout=take)
        assert client.run("echo next").stdout == "next\n"


def test_a_command_that_reads_its_own_output_back_does_not_stop_the_client():
    """It may open its pipe for reading: what the poller announced is gone then, and no read may wait for more."""
    source = """
import os, threading, time
reader = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
def steal():
    while True:
        try:
            os.read(reader, 65536)
        except BlockingIOError:
            pass
threading.Thread(target=steal, daemon=True).start()
end = time.monotonic() + 0.7
while time.monotonic() < end:
    os.write(1, b"x" * 10)
os.write(2, b"done")
os._exit(5)
"""
    result = ramet.run(["python3", "-c", source], timeout=20)
    assert (result.exit_code, result.stderr) == (5, "done")


def test_the_streams_can_be_opened_again_by_name(run):
    result = run("echo out >/dev/stdout; echo err >/dev/stderr; cat </dev/stdin; tee /dev/fd/2", stdin="in\n")
    assert (result.stdout, result.stderr) == ("out\nin\n", "err\n")


@pytest.mark.parametrize("mode", ["O_NONBLOCK", "O_APPEND", "O_ASYNC"])
def test_flags_that_a_command_sets_on_its_streams_are_its_own(mode):
    source = f"""
import fcntl, os
for number in (0, 1, 2):
    fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.{mode})
os.write(1, b"out"); os.write(2, b"err")
"""
    result = ramet.run(["python3", "-c", source], stdin=b"in" * 100_000)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out", "err")


def test_text_is_decoded_as_asked_and_bytes_stay_bytes():
    data = "ä€".encode() + b"\xff\xfe\x00end"
    result = ramet.run("cat", stdin=data)
    assert result.stdout_bytes == data
    assert result.stdout == "ä€\ufffd\ufffd\x00end"
    assert ramet.run("cat", stdin=b"\xe4", encoding="latin-1").stdout == "ä"


def test_a_pipe_that_is_closed_by_its_reader_ends_the_cli_and_the_sandbox():
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -P -m ramet run "yes" | head -n 2'],
        capture_output=True,
        check=False,
        timeout=50,
        env=os.environ,
    )
    assert done.stdout == b"y\ny\n"


def test_many_threads_have_their_own_streams():
    wrong: list[int] = []

    def work(number: int) -> None:
        with Client() as client:
            for turn in range(5):
                word = f"{number}-{turn}-" + "z" * (number * 500)
                result = client.run("cat; echo $WORD >&2", stdin=word, env={"WORD": str(number)})
                if (result.stdout, result.stderr) != (word, f"{number}\n"):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_descriptor_of_the_streams_kept_elsewhere_does_not_delay_the_result():
    """A fork of this process at the wrong moment has the command's ends of the pipes too."""
    for _ in range(5):
        reader, writer = os.pipe()
        child = None

        def fork_now(_: bytes) -> None:
            nonlocal child
            if child is None:
                child = os.fork()
                if child == 0:
                    os.close(writer)  # noqa: B023
                    os.read(reader, 1)  # noqa: B023
                    os._exit(0)

        with Client() as client:
            result = client.run("echo x; (sleep 1000 &) ; exit 3", on_stdout=fork_now, timeout=20)
        os.close(writer)
        os.close(reader)
        assert child
        os.waitpid(child, 0)
        assert (result.exit_code, result.timed_out) == (3, False)


def test_nothing_of_a_run_is_written_to_disk(tmp_path):
    """Above the cap, too, and with a root of one's own."""
    before = sorted(Path(tmp_path).rglob("*"))
    with Client() as client:
        place = Path(client.status().runtime_dir)
    log = place / "daemon.log"
    size = log.stat().st_size
    ramet.run("head -c 50M /dev/zero; head -c 20M /dev/zero >file")
    assert sorted(Path(tmp_path).rglob("*")) == before
    assert log.stat().st_size - size < 4096
