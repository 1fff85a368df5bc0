"""`ramet run` as a process: streams, exit codes, signals."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from ramet.client import Client


@pytest.mark.parametrize(
    "words, code",
    [
        (["true"], 0),
        (["exit 7"], 7),
        (["--", "sh", "-c", "exit 3"], 3),
        (["kill -TERM $$"], 143),
        (["kill -KILL $$"], 137),
        (["--", "no-such-program"], 127),
        (["no-such-program"], 127),
        (["--", "/etc/passwd"], 126),
        (["--timeout", "100ms", "sleep 60"], 124),
        (["exit 124"], 124),
    ],
)
def test_the_exit_code_is_the_commands_own(ramet, words, code):
    assert ramet("run", *words).returncode == code


def test_both_streams_are_passed_on_byte_for_byte(ramet):
    done = ramet("run", r"printf 'out\377\0'; printf 'err\376' >&2")
    assert (done.stdout, done.stderr) == (b"out\xff\0", b"err\xfe")


def test_input_and_output_of_any_size_pass_uncut(ramet):
    data = os.urandom(20 << 20)
    assert ramet("run", "cat", input=data).stdout == data


def test_output_arrives_while_the_command_runs_and_input_can_answer_it(start):
    process = start("run", "echo question; read answer; echo got $answer")
    assert process.stdout.readline() == b"question\n"
    process.stdin.write(b"yes\n")
    assert process.stdout.readline() == b"got yes\n"
    assert process.wait(20) == 0


def test_a_command_that_does_not_read_its_input_is_no_failure(ramet):
    assert ramet("run", "exit 5", input=bytes(1 << 20)).returncode == 5


def test_no_stdin_leaves_the_callers_input_alone(program):
    loop = 'while read line; do "$@"; echo "$line"; done'
    words = ["sh", "-c", loop, "sh", *program, "run", "-n", "cat"]
    done = subprocess.run(words, input=b"1\n2\n", capture_output=True, check=True, timeout=50)
    assert done.stdout == b"1\n2\n"


def test_a_terminal_is_not_read_unless_asked_for(ramet):
    ours, theirs = pty.openpty()
    try:
        assert ramet("run", "cat; echo end", stdin=theirs).stdout == b"end\n"
        os.write(ours, b"typed\n\x04")
        assert ramet("run", "-i", "cat", stdin=theirs).stdout == b"typed\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_sandbox_has_no_terminal_even_when_ramet_has_one(ramet):
    ours, theirs = pty.openpty()
    try:
        done = ramet(
            "run", "-i", "test -t 0 || echo none; (: </dev/tty) 2>/dev/null || echo none", stdin=theirs
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"none\nnone\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_like_empty_ones(program, closed):
    words = ["sh", "-c", f'"$@" {closed}', "sh", *program, "run", "echo out; echo err >&2; cat; exit 6"]
    assert subprocess.run(words, capture_output=True, check=False, timeout=50).returncode == 6


def test_output_that_cannot_be_written_is_ramets_failure(start):
    with open("/dev/full", "wb") as full:
        process = start("run", "echo lost", stdout=full)
        assert process.stderr.read() == b"ramet: standard output: No space left on device\n"
        assert process.wait(20) == 125


def test_a_reader_that_leaves_ends_the_sandbox_at_once(start):
    process = start("run", "yes")
    assert process.stdout.read(4) == b"y\ny\n"
    process.stdout.close()
    assert process.wait(20) == -signal.SIGPIPE
    assert process.stderr.read() == b""
    assert_no_sandbox_is_left()


@pytest.mark.parametrize(
    "number, code",
    [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGKILL, -9)],
)
def test_a_signal_to_ramet_ends_the_sandbox(start, number, code):
    process = start("run", "trap '' INT TERM HUP; echo ready; while :; do sleep 1; done")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.wait(20) == code
    assert process.stderr.read() == b""
    assert_no_sandbox_is_left()


def assert_no_sandbox_is_left():
    """The daemon hears of a client's end by itself, so its answer is asked for until it has."""
    deadline = time.monotonic() + 20
    with Client() as client:
        while (core := client.status().core) and core.sandboxes:
            assert time.monotonic() < deadline, f"{core.sandboxes} sandboxes are left"


def test_nothing_of_the_callers_environment_goes_in_but_what_was_named(ramet):
    done = ramet("run", "-e", "NAMED", "env", env={**os.environ, "NAMED": "yes", "SECRET_TOKEN": "s3cret"})
    assert b"NAMED=yes\n" in done.stdout
    assert b"SECRET" not in done.stdout


def test_a_directory_of_the_host_serves_as_root(ramet, tmp_path):
    assert ramet("root", "build", "root", "--bin", "sh", "--bin", "cat", cwd=tmp_path).returncode == 0
    (tmp_path / "root" / "note").write_text("of the host\n")
    done = ramet(
        "run", "--root", "root", "--cwd", "/", "cat note; echo changed >note; cat note", cwd=tmp_path
    )
    assert done.stdout == b"of the host\nchanged\n", done.stderr
    assert (tmp_path / "root" / "note").read_text() == "of the host\n"


def test_json_holds_output_end_and_usage(ramet):
    done = ramet("run", "--json", "cat; echo err >&2; exit 4", input=b"in")
    assert done.returncode == 4
    assert done.stderr == b""
    data = json.loads(done.stdout)
    told = [data[name] for name in ("stdout", "stderr", "exit_code", "reason", "timed_out", "truncated")]
    assert told == ["in", "err\n", 4, "exit", False, False]
    assert data["usage"]["peak_rss_bytes"] > 0
    assert data["duration_ms"] >= data["setup_ms"] > 0


def test_json_tells_a_timeout_and_what_was_cut(ramet):
    done = ramet("run", "--json", "--timeout", "1", "--output", "1K", "head -c 9000 /dev/zero; sleep 60")
    data = json.loads(done.stdout)
    assert done.returncode == data["exit_code"] == 124
    assert (data["reason"], data["limit"], data["timed_out"]) == ("timeout", "wall", True)
    assert (data["truncated"], data["stdout_total"]) == (True, 9000)


def test_a_limit_holds(ramet):
    done = ramet("run", "--disk", "1M", "head -c 5M /dev/zero >file; stat -c %s file")
    assert b"No space left on device" in done.stderr
    assert int(done.stdout) <= 1 << 20


def test_a_failure_of_ramet_is_125_and_one_line(ramet, tmp_path):
    tmp_path.chmod(0o755)
    done = ramet("run", "true", env={**os.environ, "RAMET_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 125
    assert done.stderr.startswith(b"ramet: the runtime directory ")
    assert done.stderr.count(b"\n") == 1


def test_a_run_imports_nothing_that_takes_long():
    heavy = (
        "anyio",
        "asyncio",
        "pydantic",
        "rich",
        "structlog",
        "ramet.daemon",
        "ramet.engine",
        "ramet.doctor",
    )
    script = f"""
import sys
from ramet.cli.main import invoke
codes = [invoke(["--help"]), invoke(["run", "true"])]
print(codes, [name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stderr == "[0, 0] []\n"
