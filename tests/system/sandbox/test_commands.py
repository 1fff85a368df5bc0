"""`Sandbox.commands`: further commands in a sandbox that stands."""

import os
import queue
import threading
import time

import anyio
import pytest

import ramet
from system.sandbox._repl import PATIENCE_S


@pytest.fixture(scope="module")
def sandbox():
    """One for tests that leave it as it was."""
    with ramet.Sandbox(command=["sleep", "10000"], env={"OF_ALL": "yes"}) as made:
        yield made
    made.commands.forget()


def sleepers(sandbox):
    """The arguments of sleeping processes, but the sandbox's own."""
    listed = sandbox.commands.run("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done").stdout
    return sorted(
        line.split()[1] for line in listed.splitlines() if line.startswith("sleep ") and "10000" not in line
    )


def test_a_command_tells_output_exit_code_and_usage(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.reason, result.stdout, result.stderr) == (7, "exit", "out\n", "err\n")
    assert result.usage.peak_rss_bytes > 0
    assert result.duration_ms > result.setup_ms > 0
    with pytest.raises(ramet.CommandFailed):
        sandbox.commands.run("exit 1", check=True)


def test_commands_share_files_and_see_each_other(sandbox):
    sandbox.commands.run("echo kept > /tmp/file", check=True)
    assert sandbox.commands.run(["cat", "/tmp/file"]).stdout == "kept\n"


def test_environment_directory_and_input_are_as_asked_for(sandbox):
    result = sandbox.commands.run("echo $OF_ALL $MINE; pwd; cat", env={"MINE": "too"}, cwd="/tmp", stdin="in")
    assert result.stdout == "yes too\n/tmp\nin"
    assert sandbox.commands.run("echo $MINE; pwd").stdout == "\n/home/user\n"


def test_a_fork_has_the_variables_that_it_was_given():
    with ramet.Sandbox(kernel="bash") as parent, parent.fork(env={"CHILD": "me"}) as child:
        assert child.commands.run("echo $CHILD").stdout == "me\n"
        assert parent.commands.run("echo $CHILD").stdout == "\n"


def test_a_timeout_kills_what_left_the_session_and_takes_its_time_not_theirs(sandbox):
    began = time.monotonic()
    line = "setsid sleep 901 & (sleep 902 &) ; sleep 903"
    result = sandbox.commands.run(line, timeout=0.5)
    assert (result.reason, result.exit_code, result.limit) == ("timeout", 124, "wall")
    assert time.monotonic() - began < PATIENCE_S
    assert sleepers(sandbox) == []


def test_a_grandchild_that_keeps_the_pipe_open_does_not_delay_the_result(sandbox):
    assert sandbox.commands.run("(sleep 904 &) ; exit 3", timeout=30).exit_code == 3
    assert sleepers(sandbox) == ["904"]
    sandbox.commands.run(["pkill", "sleep", "-f", "904"])


def test_callbacks_get_every_byte_in_order(sandbox):
    pieces, errors = [], []
    result = sandbox.commands.run("seq 100000; seq 10 >&2", on_stdout=pieces.append, on_stderr=errors.append)
    assert b"".join(pieces) == result.stdout_bytes == b"".join(b"%d\n" % n for n in range(1, 100001))
    assert b"".join(errors) == result.stderr_bytes


def test_input_of_megabytes_meets_output_of_megabytes(sandbox, tmp_path):
    content = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(content)
    got = []
    with (tmp_path / "file").open("rb") as file:
        result = sandbox.commands.run("cat", stdin=file, on_stdout=got.append)
    assert b"".join(got) == result.stdout_bytes == content
    assert sandbox.commands.run("head -c 10", stdin=content).stdout_bytes == content[:10]


def test_input_from_a_pipe_is_passed_on_as_it_comes(sandbox):
    reader, writer = os.pipe()
    heard = queue.Queue()
    answers = []

    def feed():
        try:
            for line in (b"one\n", b"two\n"):
                answers.append(heard.get(timeout=PATIENCE_S))
                os.write(writer, line)
        finally:
            os.close(writer)

    feeder = threading.Thread(target=feed)
    feeder.start()
    line = "echo zero; while read x; do echo $x; done"
    result = sandbox.commands.run(line, stdin=reader, on_stdout=heard.put)
    feeder.join()
    os.close(reader)
    assert answers == [b"zero\n", b"one\n"]  # each before the next was there to be read
    assert result.stdout == "zero\none\ntwo\n"


def test_a_background_command_is_fed_read_and_waited_for(sandbox):
    with sandbox.commands.run("while read x; do echo got $x; done", background=True, stdin=True) as command:
        command.send("a\n")
        assert command.stdout.readline(PATIENCE_S) == b"got a\n"
        assert command.running
        with pytest.raises(ramet.WaitTimeout):
            command.wait(timeout=0.01)
        with pytest.raises(ramet.WaitTimeout):
            command.stdout.read(timeout=0.01)
        command.send("b\nc\n")
        command.close_stdin()
        assert list(command.stdout) == [b"got b\n", b"got c\n"]
        assert command.wait().stdout == "got a\ngot b\ngot c\n"
        assert not command.running


def test_output_of_both_streams_comes_as_one_iteration(sandbox):
    with sandbox.commands.start("echo a; echo b >&2") as command:
        found = {"stdout": b"", "stderr": b""}
        for name, piece in command.output():
            found[name] += piece
    assert found == {"stdout": b"a\n", "stderr": b"b\n"}


def test_ten_readers_that_come_and_go_read_one_output_byte_by_byte(sandbox):
    line = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); seq 1000; done; exit 9"
    started = sandbox.commands.start(line)
    read, cursor = b"", (0, 0)
    for _ in range(10):
        # Each is another program's: a client with connections of its own.
        with ramet.Client() as client:
            command = ramet.Commands(sandbox.id, client=client).connect(started.id, cursor=cursor)
            piece = command.stdout.read(12345, timeout=PATIENCE_S)
            read, cursor = read + piece, command.cursor
            command.close()
    last = ramet.Commands(sandbox.id).connect(started.id, cursor=cursor)
    read += b"".join(last.stdout)
    assert last.wait().exit_code == 9
    assert read == b"".join(b"%d\n" % n for n in range(1, 1001)) * 40
    assert last.wait().stdout_bytes == started.wait().stdout_bytes == read


def test_commands_are_listed_and_ended(sandbox):
    with sandbox.commands.start(["sleep", "905"]) as command:
        (info,) = [one for one in sandbox.commands.list() if one.id == command.id]
        assert (info.status, info.command, info.pid) == ("running", ("sleep", "905"), command.pid)
        command.kill()
        assert command.wait().reason == "killed"
    (info,) = [one for one in sandbox.commands.list() if one.id == command.id]
    assert (info.status, info.reason, info.exit_code) == ("ended", "killed", 137)


def test_a_signal_is_sent_by_name(sandbox):
    with sandbox.commands.start("trap 'exit 6' TERM; echo ready; while :; do sleep 0.01; done") as command:
        assert command.stdout.readline(PATIENCE_S) == b"ready\n"
        command.send_signal("TERM")
        assert command.wait(PATIENCE_S).exit_code == 6


@pytest.mark.parametrize(
    "arguments, field",
    [
        ({"command": ""}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": "true", "cwd": "relative"}, "cwd"),
        ({"command": "true", "cwd": "/nowhere"}, "cwd"),
        ({"command": "true", "timeout": -1}, "timeout"),
        ({"command": "true", "user": "nobody at all"}, "user"),
        ({"command": "true", "env": {"A=B": "c"}}, "env"),
        ({"command": "true", "encoding": "klingon"}, "encoding"),
        ({"command": "true", "background": True, "check": True}, "background"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(sandbox, arguments, field):
    with pytest.raises(ramet.InvalidRequest) as caught:
        sandbox.commands.run(**arguments)
    assert caught.value.field == field


def test_later_commands_are_whose_the_sandbox_is_unless_they_say_otherwise(sandbox):
    user = "0:0" if sandbox.info.single_uid else "1000:1001"
    line = "read x; id -u; id -g; echo > /dev/stdout"
    with ramet.Sandbox(command=line, user=user, detach=True) as mine:
        with ramet.Sandbox.connect(mine.id) as other:
            assert other.commands.run("echo $(id -u):$(id -g)").stdout == f"{user}\n"
            with other.terminals.create("echo $(id -u):$(id -g)") as terminal:
                assert terminal.wait(timeout=PATIENCE_S).stdout == f"{user}\r\n"
            other.commands.forget()  # what has ended is kept for some minutes
        assert mine.commands.run("id -u", user="root").stdout == "0\n"
        mine.stdin.write("\n")
        assert mine.wait(timeout=PATIENCE_S).stdout == user.replace(":", "\n") + "\n\n"


def test_a_sandbox_of_another_user_is_refused_by_name_where_there_is_none(sandbox):
    with pytest.raises(ramet.InvalidRequest) as caught:
        ramet.Sandbox(command="id", user=1000 if sandbox.info.single_uid else 2**31)
    assert caught.value.field == "user"
    with pytest.raises(ramet.InvalidRequest) as caught:
        ramet.Sandbox("python", user=0)
    assert (caught.value.field, caught.value.code) == ("user", "invalid_argument")


def test_another_user_runs_where_there_is_one_and_is_refused_by_name_where_not(sandbox):
    if sandbox.info.single_uid:
        with pytest.raises(ramet.InvalidRequest) as caught:
            sandbox.commands.run("id -u", user=1000)
        assert (caught.value.field, caught.value.code) == ("user", "single_uid")
    else:
        assert (
            sandbox.commands.run("id -u; id -g; echo > /dev/stdout", user="1000:1001").stdout
            == "1000\n1001\n\n"
        )


def test_what_is_no_number_is_no_command(sandbox):
    with pytest.raises(ramet.InvalidRequest):
        sandbox.commands.connect(True)


def test_the_dead_sandbox_says_of_what_it_died_and_results_can_still_be_had():
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        running = made.commands.start("echo before; sleep 906")
        assert running.stdout.readline(PATIENCE_S) == b"before\n"
    with pytest.raises(ramet.SandboxEnded) as caught:
        made.commands.run("true")
    assert caught.value.reason == "killed"
    assert running.wait().reason == "killed"
    again = ramet.Commands(made.id).connect(running.id)
    assert (again.wait().stdout, again.wait().exit_code) == ("before\n", 137)
    assert [one.id for one in made.commands.list()] == [running.id]
    with pytest.raises(ramet.SandboxEnded):
        ramet.Commands(made.id).run("true")
    again.close()
    running.close()
    made.commands.forget()
    assert made.commands.list() == ()


def test_a_command_that_ends_its_sandbox_is_told_as_killed():
    with ramet.Sandbox(command="read x", name="short") as made:
        command = made.commands.start("sleep 907")
        made.stdin.close()
        assert made.wait(PATIENCE_S).exit_code == 1
        assert command.wait(PATIENCE_S).reason == "killed"
        command.close()
    made.commands.forget()


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_no_process():
    async with ramet.AsyncSandbox(command=["sleep", "10000"]) as made:
        for arguments in ({}, {"on_stdout": print}, {"stdin": "x" * 300000}):
            with anyio.move_on_after(0.3) as scope:
                await made.commands.run("setsid sleep 908 & sleep 909", **arguments)
            assert scope.cancelled_caught
            left = "x"
            with anyio.fail_after(PATIENCE_S):
                while left:
                    # Not one of them is left as soon as core and init have heard of it.
                    left = (await made.commands.run("pgrep -f 'sleep 90[89]' | grep -v $$")).stdout
                    left = "".join(left.split())
    await made.commands.forget()


@pytest.mark.anyio
async def test_many_commands_run_at_once():
    async with ramet.AsyncSandbox(command=["sleep", "10000"]) as made, anyio.create_task_group() as group:
        codes = {}

        async def one(number):
            codes[number] = (await made.commands.run(f"exit {number}")).exit_code

        for number in range(60):
            group.start_soon(one, number)
    assert codes == {number: number for number in range(60)}
