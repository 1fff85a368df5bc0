"""Commands that run at a fork go on in the child, under their numbers, with logs of their own."""

import pytest

import ramet
from ramet.client import snapshots
from system._daemons import PATIENCE_S

# Says what it is told, with a count, and has a child that left its session. A thread waits for signals: of
# one that comes between the interpreter's last look and read(2) a handler in Python runs after the next line.
ECHO = r"""
import os, signal, subprocess, sys, threading
null = {"stdin": -3, "stdout": -3, "stderr": -3}
left = subprocess.Popen(["tail", "-f", "/dev/null"], start_new_session=True, **null)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def listen():
    while signal.sigwait([signal.SIGUSR1]):
        os.write(1, b"signal\n")
threading.Thread(target=listen, daemon=True).start()
count = 0
print("ready", flush=True)
while line := sys.stdin.readline():
    count += 1
    print(count, line.strip(), flush=True)
    print("error", line.strip(), file=sys.stderr, flush=True)
sys.exit(count)
"""


@pytest.fixture
def source():
    with ramet.Sandbox(command=["sleep", "10000"]) as sandbox:
        yield sandbox
        sandbox.commands.forget()


@pytest.fixture
def echo(source):
    with source.commands.start(["python3", "-c", ECHO], stdin=True) as command:
        assert line_of(command) == b"ready\n"
        command.send("before\n")
        assert line_of(command) == b"1 before\n"
        yield command


def line_of(command):
    return command.stdout.readline(timeout=PATIENCE_S)


def end(command, sandbox):
    """It ends at the end of its input; what it has made besides with the sandbox."""
    command.close_stdin()
    result = command.wait(timeout=PATIENCE_S)
    sandbox.commands.forget()
    return result


def test_a_command_goes_on_in_each_child_with_its_number_streams_and_end(source, echo):
    written = len(b"ready\n1 before\n")
    with source.fork(2) as children:
        for number, child in enumerate(children):
            (info,) = child.commands.list()
            assert (info.id, info.pid, info.status, info.stdin) == (echo.id, echo.pid, "running", True)
            assert info.command == ("python3", "-c", ECHO)
            with child.commands.connect(echo.id, cursor=(written, 0)) as there:
                there.send(f"child {number}\n")
                assert line_of(there) == f"2 child {number}\n".encode()
                there.send_signal("USR1")
                assert line_of(there) == b"signal\n"
                with child.fork() as grandchild, grandchild.commands.connect(echo.id) as below:
                    below.send("below\n")
                    assert line_of(below) == b"3 below\n"
                    assert end(below, grandchild).exit_code == 3
                there.send("last\n")
                result = end(there, child)
                assert result.exit_code == 3
                assert result.stdout == f"2 child {number}\nsignal\n3 last\n"
                assert result.stderr.endswith("error last\n")
                assert result.stdout_total == len(result.stdout)
        # The parent has heard of nothing.
        echo.send("after\n")
        assert line_of(echo) == b"2 after\n"
        result = end(echo, source)
        assert (result.exit_code, result.stdout) == (2, "ready\n1 before\n2 after\n")


def test_a_command_of_a_child_is_killed_with_all_that_it_started_and_no_other_is(source, echo):
    with source.fork() as child:
        with child.commands.connect(echo.id) as there:
            left = "cat /proc/[0-9]*/comm | grep -c tail"
            assert child.commands.run(left).stdout == "1\n"
            there.kill()
            assert there.wait(timeout=PATIENCE_S).reason == "killed"
            assert child.commands.run(left).stdout == "0\n"
        assert source.commands.run(left).stdout == "1\n"
        child.commands.forget()
    assert end(echo, source).exit_code == 1


def test_what_was_written_and_not_read_at_the_fork_is_in_one_place_of_each_log(source):
    """Nothing is lost or twice, wherever in core the output was: the child's log goes on at the same byte."""
    line = "n=0; while :; do n=$((n+1)); echo $n; done"
    with source.commands.start(["bash", "-c", line]) as counting:
        assert line_of(counting) == b"1\n"
        for _ in range(5):
            with source.fork() as child, child.commands.connect(counting.id) as there:
                head = there.stdout.readline(timeout=PATIENCE_S)
                first = there.stdout.readline(timeout=PATIENCE_S)
                cursor = there.cursor[0]
                # Where the bytes up to here end in a log that has all of them.
                number = int(first)
                total = sum(len(str(one)) + 1 for one in range(1, number + 1))
                assert head.endswith(b"\n")
                assert cursor == total
                there.kill()
                there.wait(timeout=PATIENCE_S)
                child.commands.forget()
        counting.kill()
        counting.wait(timeout=PATIENCE_S)


def test_input_that_nobody_has_read_is_read_in_the_child_and_its_end_stays_an_end(source):
    script = "read first; echo $first; read -r wait < /tmp/fifo; cat"
    source.commands.run("mkfifo /tmp/fifo", check=True)
    with source.commands.start(["sh", "-c", script], stdin=True) as command:
        command.send("one\n")
        assert line_of(command) == b"one\n"
        command.send("two\n")
        command.close_stdin()
        with source.fork() as child, child.commands.connect(command.id) as there:
            child.commands.run("echo > /tmp/fifo", check=True)
            assert there.wait(timeout=PATIENCE_S).stdout == "two\n"
            child.commands.forget()
        source.commands.run("echo > /tmp/fifo", check=True)
        assert command.wait(timeout=PATIENCE_S).stdout == "one\ntwo\n"


def test_commands_of_a_named_snapshot_go_on_in_each_fork_of_it(source, echo):
    source.snapshot("with-commands")
    try:
        for _ in range(3):
            with ramet.Sandbox("with-commands") as child, child.commands.connect(echo.id) as there:
                there.send("again\n")
                assert line_of(there) == b"2 again\n"
                assert end(there, child).exit_code == 2
        echo.send("in vain\n")
        source.rollback("with-commands")
        with source.commands.connect(echo.id) as there:
            there.send("once more\n")
            assert line_of(there) == b"2 once more\n"
            assert end(there, source).exit_code == 2
    finally:
        snapshots.remove("with-commands")
    assert echo.wait(timeout=PATIENCE_S).reason == "killed"


def test_the_time_that_a_command_had_left_is_left_to_it_in_the_child(source):
    with source.commands.start(["sleep", "1000"], timeout=1) as command:
        with source.fork() as child, child.commands.connect(command.id) as there:
            assert there.wait(timeout=PATIENCE_S).reason == "timeout"
            child.commands.forget()
        assert command.wait(timeout=PATIENCE_S).reason == "timeout"
