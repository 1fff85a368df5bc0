"""`ramet exec`, `ramet logs`, `ramet sandbox ps|attach|signal`."""

import json
import signal
import socket

import pytest


@pytest.fixture(scope="module")
def sandbox(ramet):
    made = ramet("sandbox", "create", "--", "sleep", "10000").stdout.decode().strip()
    yield made
    assert ramet("sandbox", "kill", made).returncode == 0


def test_exec_passes_streams_and_the_exit_code(ramet, sandbox):
    done = ramet("exec", sandbox, "cat; echo err >&2; exit 5", input=b"in")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"in", b"err\n")
    assert ramet("exec", sandbox, "--", "printf", "%s|", "a b", "c").stdout == b"a b|c|"
    assert ramet("exec", "--timeout", "0.2", sandbox, "sleep 1000").returncode == 124


def test_exec_prints_one_json_object(ramet, sandbox):
    told = json.loads(ramet("exec", "-e", "A=b", "--cwd", "/tmp", "--json", sandbox, "echo $A; pwd").stdout)
    assert (told["exit_code"], told["stdout"]) == (0, "b\n/tmp\n")


def test_a_detached_command_is_listed_followed_and_signalled(ramet, sandbox):
    number = (
        ramet("exec", "-d", sandbox, "echo from it; read x < /dev/null; sleep 1000").stdout.decode().strip()
    )
    rows = ramet("sandbox", "ps", sandbox).stdout.decode().splitlines()
    assert rows[0].split() == ["NUMBER", "PID", "AGE", "STATUS", "COMMAND"]
    assert any(row.split()[0] == number and " running " in row for row in rows[1:])
    assert ramet("sandbox", "signal", sandbox, number).returncode == 0
    seen = ramet("sandbox", "attach", sandbox, number)
    assert (seen.returncode, seen.stdout) == (137, b"from it\n")
    told = json.loads(ramet("sandbox", "ps", "--json", sandbox).stdout)["commands"]
    assert {str(one["id"]): one["reason"] for one in told}[number] == "killed"


def test_logs_show_what_the_first_command_has_written_and_go_on_at_a_cursor(ramet):
    made = ramet("sandbox", "create", "echo one; echo two >&2; read x; echo three").stdout.decode().strip()
    told = json.loads(ramet("logs", "--json", made).stdout)
    while told["cursor"] != "4,4":  # it writes when it does
        told = json.loads(ramet("logs", "--json", made).stdout)
    assert (told["stdout"], told["stderr"], told["running"]) == ("one\n", "two\n", True)
    assert ramet("sandbox", "kill", made).returncode == 0
    after = ramet("logs", "-f", "--cursor", "0,2", made)
    assert (after.returncode, after.stdout, after.stderr) == (0, b"one\n", b"o\n")


@pytest.mark.parametrize(
    "words, text",
    [
        (("exec",), b"SANDBOX: is missing"),
        (("exec", "nobody"), b"COMMAND: is missing"),
        (("sandbox", "attach"), b"SANDBOX: is missing"),
        (("sandbox", "attach", "nobody"), b"NUMBER: is missing: which command (ramet sandbox ps"),
        (("sandbox", "signal"), b"SANDBOX: is missing"),
        (("sandbox", "forward"), b"SANDBOX: is missing"),
        (("sandbox", "forward", "nobody"), b"PORT: is missing"),
        (("sandbox", "forward", "nobody", "x"), b"PORT: 'x' is no port"),
        (("exec", "nobody", "true"), b"there is no sandbox 'nobody'"),
        (("sandbox", "attach", "nobody", "x"), b"is not a command's number"),
        (("sandbox", "ps"), b"SANDBOX: is missing"),
        (("logs", "nobody", "--cursor", "5"), b"is not two positions"),
    ],
)
def test_wrong_words_are_refused_by_name(ramet, words, text):
    done = ramet(*words)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_port_is_forwarded_until_interrupted(ramet, start, sandbox):
    program = "import socket; socket.create_server(('127.0.0.1', 8000)).accept()[0].send(b'hi')"
    ramet("exec", "-d", sandbox, "--", "python3", "-c", program)
    forwarding = start("sandbox", "forward", sandbox, "8000")
    host, port = forwarding.stdout.readline().decode().strip().split(":")
    answer = b""
    while not answer:  # the server listens when it does
        with socket.create_connection((host, int(port)), timeout=20) as near:
            answer = near.recv(10)
    assert answer == b"hi"
    forwarding.send_signal(signal.SIGINT)
    assert forwarding.wait(20) == 0
