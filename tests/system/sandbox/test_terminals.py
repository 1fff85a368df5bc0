"""`Sandbox.terminals`: commands whose streams are a terminal of the sandbox's own."""

import pytest

import ramet
from system.sandbox._repl import PATIENCE_S

SHELL = ["bash", "--norc", "--noediting"]


@pytest.fixture(scope="module")
def sandbox():
    """One for tests that leave it as it was."""
    with ramet.Sandbox(command=["sleep", "10000"], env={"PS1": "$ "}) as made:
        yield made
    made.commands.forget()


@pytest.fixture
def shell(sandbox):
    """A shell in a terminal of 24 rows and 80 columns, at its prompt."""
    with sandbox.terminals.create(SHELL) as terminal:
        terminal.read_until("$ ", PATIENCE_S)
        yield terminal


def said(terminal, line, mark="$ "):
    """What comes after a line that is typed, up to the next prompt."""
    terminal.write(line + "\n", PATIENCE_S)
    terminal.read_until(line + "\r\n", PATIENCE_S)
    return terminal.read_until(mark, PATIENCE_S).decode().removesuffix(mark).replace("\r\n", "\n")


def test_all_three_streams_are_a_terminal_with_a_name_a_size_and_a_user(shell):
    assert said(shell, "test -t 0 -a -t 1 -a -t 2 && tty") == "/dev/pts/0\n"
    assert said(shell, "stty size; echo $TERM; stat -c %u $(tty)") == "24 80\nxterm-256color\n0\n"
    assert said(shell, "echo to >/dev/tty") == "to\n"


def test_its_default_command_is_a_shell_whose_exit_code_is_the_result(sandbox):
    with sandbox.terminals.create(size=(40, 100)) as terminal:
        terminal.write("stty size; exit 7\n", PATIENCE_S)
        result = terminal.wait(PATIENCE_S)
    assert (result.exit_code, result.reason, result.stderr) == (7, "exit", "")
    assert "40 100\r\n" in result.stdout


def test_what_is_written_right_before_the_end_is_in_the_result(sandbox):
    for lines in (1, 20000):
        with sandbox.terminals.create(f"seq {lines}") as terminal:
            assert terminal.wait(PATIENCE_S).stdout_bytes == b"".join(
                b"%d\r\n" % n for n in range(1, lines + 1)
            )


def test_ctrl_c_ends_the_foreground_job_and_not_the_shell(shell):
    shell.write("sh -c 'echo st''arted; exec sleep 911'\n", PATIENCE_S)
    shell.read_until("started\r\n", PATIENCE_S)
    shell.write("\x03")
    assert shell.read_until("$ ", PATIENCE_S) == b"^C\r\n$ "
    assert said(shell, "echo $?") == "130\n"


def test_jobs_are_stopped_listed_and_continued(shell):
    shell.write("cat\n", PATIENCE_S)
    shell.read_until("cat\r\n", PATIENCE_S)
    shell.write("x\n")
    shell.read_until("x\r\nx\r\n", PATIENCE_S)
    shell.write("\x1a")
    assert b"Stopped" in shell.read_until("$ ", PATIENCE_S)
    shell.write("fg\n", PATIENCE_S)
    shell.read_until("cat\r\n", PATIENCE_S)
    shell.write("y\n", PATIENCE_S)
    shell.read_until("y\r\ny\r\n", PATIENCE_S)
    shell.write("\x04")
    shell.read_until("$ ", PATIENCE_S)
    assert said(shell, "jobs; echo none") == "none\n"


def test_a_new_size_is_seen_inside_and_signalled(sandbox, shell):
    shell.write("trap 'stty size' WINCH\n", PATIENCE_S)
    shell.read_until("WINCH\r\n", PATIENCE_S)
    shell.read_until("$ ", PATIENCE_S)
    shell.resize(50, 132)
    # A shell at its prompt runs the trap when something wakes it.
    shell.write("\n", PATIENCE_S)
    assert b"50 132\r\n" in shell.read_until("132\r\n", PATIENCE_S)
    (listed,) = [one for one in sandbox.terminals.list() if one.id == shell.id]
    assert listed.window == (50, 132)


def test_readers_that_come_and_go_read_one_output(sandbox, shell):
    said(shell, "echo some words")
    with ramet.Client() as client:
        again = ramet.Terminals(ramet.Commands(sandbox.id, client=client)).connect(shell.id)
        assert b"some words\r\n" in again.read_until("$ echo some words\r\nsome words\r\n", PATIENCE_S)
        again.read_until("$ ", PATIENCE_S)
        last = ramet.Terminals(ramet.Commands(sandbox.id, client=client)).connect(
            shell.id, cursor=again.cursor
        )
        again.close()
        last.write("echo typed by another\n", PATIENCE_S)
        expected = b"echo typed by another\r\ntyped by another\r\n$ "
        assert last.read_until("r\r\n$ ", PATIENCE_S) == expected
        last.close()
    assert shell.read_until("r\r\n$ ", PATIENCE_S) == expected
    with pytest.raises(ramet.InvalidRequest, match="more than was written") as caught:
        sandbox.terminals.connect(shell.id, cursor=1 << 40)
    assert caught.value.field == "cursor"
    few = sandbox.terminals.connect(shell.id, scrollback=4)
    assert few.read(timeout=PATIENCE_S) == b"\r\n$ "
    few.close()


def test_its_end_hangs_up_on_what_it_left_behind(sandbox):
    line = "trap '' HUP; (read x </dev/tty; echo $? >/tmp/read-failed) & exit 3"
    with sandbox.terminals.create(["bash", "-c", line]) as terminal:
        assert terminal.wait(PATIENCE_S).exit_code == 3
    wait = "until test -s /tmp/read-failed; do sleep 0.01; done; cat /tmp/read-failed; rm /tmp/read-failed"
    assert sandbox.commands.run(wait, timeout=PATIENCE_S).stdout == "1\n"


def test_a_program_that_never_reads_delays_nobody_and_can_be_killed(sandbox):
    with sandbox.terminals.create("stty raw -echo; echo ready; sleep 912") as terminal:
        terminal.read_until("ready", PATIENCE_S)
        with pytest.raises(ramet.WaitTimeout):
            terminal.write("x" * 300000, 0.2)
        assert sandbox.commands.run("echo others").stdout == "others\n"
        terminal.kill()
        assert terminal.wait(PATIENCE_S).reason == "killed"
        with pytest.raises(ramet.RametError) as caught:
            terminal.write("y")
        assert caught.value.code == "stdin_closed"
        with pytest.raises(ramet.RametError) as caught:
            terminal.resize(10, 10)
        assert caught.value.code == "stdin_closed"


def test_input_of_a_megabyte_comes_through_a_terminal_whole(sandbox):
    line = "stty raw -echo; echo ready; head -c 1000000 | sha256sum"
    with sandbox.terminals.create(line) as terminal:
        terminal.read_until("ready", PATIENCE_S)
        terminal.write("0123456789" * 100000, PATIENCE_S)
        assert terminal.wait(PATIENCE_S).exit_code == 0
        expected = sandbox.commands.run("yes 0123456789 | tr -d '\\n' | head -c 1000000 | sha256sum").stdout
        assert expected.split()[0] in terminal.wait().stdout


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda made: made.terminals.create("true", size=(0, 80)), "size"),
        (lambda made: made.terminals.create("true", size=(24, 70000)), "size"),
        (lambda made: made.terminals.create("true", size="24x80"), "size"),
        (lambda made: made.terminals.create("true", cwd="relative"), "cwd"),
        (lambda made: made.terminals.connect(7), "command"),
        (lambda made: made.terminals.connect(1 << 40), "command"),
        (lambda made: made.terminals.connect(7, scrollback=-1), "scrollback"),
        (lambda made: made.terminals.connect(7, cursor="x"), "cursor"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(sandbox, call, field):
    with pytest.raises(ramet.InvalidRequest) as caught:
        call(sandbox)
    assert caught.value.field == field


def test_a_command_without_a_terminal_is_none(sandbox):
    with sandbox.commands.start(["sleep", "913"], stdin=True) as command:
        with pytest.raises(ramet.InvalidRequest) as caught:
            sandbox.terminals.connect(command.id)
        assert caught.value.field == "terminal"
        assert command.id not in [one.id for one in sandbox.terminals.list()]


def test_a_live_fork_names_the_terminal_that_it_cannot_carry_or_leaves_it_out_and_lists_it():
    with (
        ramet.Sandbox(command=["sleep", "10000"]) as made,
        made.terminals.create(["sleep", "914"]) as held,
    ):
        with pytest.raises(ramet.Unforkable) as caught:
            made.fork()
        assert (caught.value.pid, caught.value.process) == (held.pid, "sleep")
        assert "a terminal" in caught.value.what
        with made.fork(on_unsupported="drop") as child:
            assert child.info.dropped == (
                f"pid {held.pid} sleep: fd 0 is a terminal whose other end is outside",
            )
            assert child.terminals.list() == ()
            with child.terminals.create("tty; echo fine") as own:
                assert "fine" in own.wait(PATIENCE_S).stdout
                child.commands.forget()
        assert held.running
    made.commands.forget()


@pytest.mark.anyio
async def test_an_asynchronous_program_reads_while_it_types():
    line = "read x; echo got $x; read x"
    async with (
        ramet.AsyncSandbox(command=["sleep", "10000"]) as made,
        await made.terminals.create(line) as terminal,
    ):
        await terminal.write("one\n")
        text = b""
        async for piece in terminal.output():
            text += piece
            if text.endswith(b"got one\r\n"):
                await terminal.write("two\n")
        assert text.replace(b"\r\n", b"|") == b"one|got one|two|"
        assert (await terminal.wait(PATIENCE_S)).exit_code == 0
    await made.commands.forget()
