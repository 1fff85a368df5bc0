"""`Sandbox.logs`: the first command of a sandbox, for any number of readers beside its owner."""

import pytest

import ramet
from system.sandbox._repl import PATIENCE_S

LINE = "echo one; echo two >&2; read word; echo $word; exit 3"


def fed_and_read(sandbox):
    """The lines that its owner reads, who answers."""
    first = sandbox.stdout.readline(PATIENCE_S)
    sandbox.stdin.write("three\n")
    return first + sandbox.stdout.readline(PATIENCE_S)


def test_the_owner_and_readers_of_the_log_each_get_every_byte():
    with ramet.Sandbox(command=LINE) as sandbox:
        early, late = sandbox.logs(), sandbox.logs()
        assert early.stdout.readline(PATIENCE_S) == b"one\n"
        assert fed_and_read(sandbox) == b"one\nthree\n"
        assert early.stdout.readline(PATIENCE_S) == b"three\n"
        result, logged = sandbox.wait(), late.wait(PATIENCE_S)
        early.close()
        late.close()
    assert (result.stdout, result.stderr) == ("", "two\n")
    assert (logged.stdout, logged.stderr) == ("one\nthree\n", "two\n")
    assert (logged.exit_code, logged.reason) == (result.exit_code, result.reason) == (3, "exit")


def test_a_reader_that_comes_back_goes_on_at_its_cursor_also_after_the_end():
    with ramet.Sandbox(command=LINE) as sandbox:
        log = sandbox.logs()
        assert log.stdout.readline(PATIENCE_S) == b"one\n"
        cursor = log.cursor
        log.close()
        fed_and_read(sandbox)
        sandbox.wait()
        again = sandbox.logs(cursor=cursor)
        assert (again.stdout.read(), again.stdout.read()) == (b"three\n", b"")
        assert again.wait().exit_code == 3
        again.close()


def test_a_cursor_of_another_log_is_refused():
    with ramet.Sandbox(command="echo one; read x") as sandbox:
        assert sandbox.stdout.readline(PATIENCE_S) == b"one\n"
        with pytest.raises(ramet.InvalidRequest, match="more than was written") as refused:
            sandbox.logs(cursor=(5, 0))
        assert refused.value.field == "cursor"


def test_it_is_no_further_command_but_is_signalled_as_one_and_takes_no_input_there():
    with ramet.Sandbox(command="trap 'echo heard; exit 5' USR1; echo ready; read x; read y") as sandbox:
        assert sandbox.stdout.readline(PATIENCE_S) == b"ready\n"
        assert sandbox.commands.list() == ()
        log = sandbox.logs()
        assert (log.id, log.pid, log.running) == (1, sandbox.pid, True)
        with pytest.raises(ramet.RametError) as refused:
            log.send("x")
        assert refused.value.code == "stdin_elsewhere"
        log.send_signal("USR1")
        assert log.wait(PATIENCE_S).exit_code == 5
        log.close()


def test_output_that_its_owner_does_not_read_holds_the_command_and_none_of_it_is_lost():
    """More than the pipes on both sides of core hold, and than the log keeps."""
    size = 3 << 20
    with ramet.Sandbox(
        command=f"head -c {size} /dev/zero; echo done >&2", limits={"output": 65536}
    ) as sandbox:
        log = sandbox.logs()
        first = sandbox.stdout.read()
        assert sandbox.running  # the rest has no place yet
        got = len(first)
        while piece := sandbox.stdout.read(timeout=PATIENCE_S):
            got += len(piece)
        assert got == size
        assert sandbox.wait().stderr == "done\n"
        logged = log.wait(PATIENCE_S)
        log.close()
    assert logged.stdout_total == size
    assert len(logged.stdout_bytes) <= 65536


def test_last_words_that_nobody_read_are_in_the_result_however_it_ended():
    with ramet.Sandbox(command="head -c 100000 /dev/zero; echo written >&2; exec sleep 10000") as sandbox:
        assert sandbox.stderr.readline(PATIENCE_S) == b"written\n"
        log = sandbox.logs()
        sandbox.kill()
        assert len(sandbox.wait().stdout_bytes) == 100000
        killed = log.wait()
        log.close()
        assert (len(killed.stdout_bytes), killed.reason) == (100000, "killed")


def test_a_fork_has_a_log_of_its_own_from_the_fork_on():
    with ramet.Sandbox(command="echo before; while read x; do echo $x; done") as parent:
        assert parent.stdout.readline(PATIENCE_S) == b"before\n"
        with parent.fork(2) as children:
            for number, child in enumerate(children):
                log = child.logs()
                child.stdin.write(f"child {number}\n")
                assert log.stdout.readline(PATIENCE_S) == f"child {number}\n".encode()
                child.stdin.close()
                assert log.wait(PATIENCE_S).stdout == f"child {number}\n"
                log.close()
        log = parent.logs()
        assert log.stdout.read() == b"before\n"
        log.close()


def test_what_a_detached_sandbox_writes_while_nobody_has_it_can_be_read_later():
    with ramet.Sandbox(command="read x; echo alone; read y; echo met", detach=True) as made:
        name = made.id
        made.stdin.write("\n")
    with ramet.Sandbox.connect(name) as met:
        log = met.logs()
        assert log.stdout.readline(PATIENCE_S) == b"alone\n"
        met.stdin.write("\n")
        assert log.wait(PATIENCE_S).stdout == "alone\nmet\n"
        log.close()


def test_a_sandbox_that_was_rolled_back_has_the_log_of_its_new_life():
    with ramet.Sandbox(command="while read x; do echo $x; done") as sandbox:
        with_it = sandbox.snapshot("logged-before")
        try:
            sandbox.stdin.write("old\n")
            assert sandbox.stdout.readline(PATIENCE_S) == b"old\n"
            sandbox.rollback(with_it)
            sandbox.stdin.write("new\n")
            assert sandbox.stdout.readline(PATIENCE_S) == b"new\n"
            log = sandbox.logs()
            assert log.stdout.readline(PATIENCE_S) == b"new\n"
            log.close()
        finally:
            ramet.snapshots.remove("logged-before")


def test_a_kernel_has_no_log_and_says_what_has():
    with ramet.Sandbox(kernel="bash") as sandbox:
        with pytest.raises(ramet.InvalidRequest, match="run_code") as refused:
            sandbox.logs()
        assert refused.value.code == "kernel_has_no_log"
