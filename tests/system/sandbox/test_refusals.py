"""What cannot be done is said by name, before anything changes; what goes wrong half way, for each child."""

import contextlib
import errno
import os
import resource
import threading

import pytest

import _ledger
import ramet
from ramet.client import fork, sandboxes
from ramet.errors import ForkError, InvalidRequest, IsolationError, RametError, SandboxEnded, Unforkable
from system.sandbox._repl import PATIENCE_S, PYTHON, ask, ask_all, tell

NETLINK = "import socket; s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"


def test_what_cannot_be_carried_is_named_with_its_place_and_runs_on(python):
    tell(python, NETLINK, "x = 41")
    number = int(ask(python, "s.fileno()"))
    for call in (python.fork, lambda: python.fork(3), lambda: python.snapshot("uncarried")):
        with pytest.raises(Unforkable) as caught:
            call()
        error = caught.value
        assert (error.pid, error.process) == (python.pid, "python3")
        assert error.what == f"fd {number} is a netlink socket"
        assert error.message.endswith(f"pid {python.pid} python3: fd {number} is a netlink socket")
    assert ask(python, "x + 1") == "42"
    assert "uncarried" not in {point.name for point in ramet.snapshots.list()}
    tell(python, "s.close()")
    with python.fork() as child:
        assert ask(child, "x + 1") == "42"


def test_a_command_that_cannot_be_found_is_its_own_result():
    with ramet.Sandbox(command=["no-such-program"]) as sandbox:
        result = sandbox.wait(timeout=PATIENCE_S)
    assert (result.exit_code, result.reason) == (127, "exit")
    assert "no-such-program" in result.stderr


def test_a_directory_that_is_not_there_is_a_wrong_argument():
    with pytest.raises(InvalidRequest) as caught:
        ramet.Sandbox(command=["true"], cwd="/nowhere")
    assert caught.value.field == "cwd"
    assert sandboxes.list() == ()


def test_a_command_in_the_place_of_a_name_is_told_where_it_goes():
    with pytest.raises(InvalidRequest, match=r"'echo hi' .*command=") as caught:
        ramet.Sandbox("echo hi")
    assert caught.value.field == "snapshot"
    with pytest.raises(InvalidRequest, match=r'Sandbox\("python"\)'):
        ramet.Sandbox()


@pytest.mark.parametrize("n", [0, -1, 1001])
def test_a_number_of_children_out_of_range_is_refused(python, n):
    with pytest.raises(InvalidRequest) as caught:
        python.fork(n)
    assert caught.value.field == "n"


def test_a_fork_of_the_dead_tells_of_what_they_died(python):
    python.stdin.write("__import__('os')._exit(7)\n")
    with pytest.raises(SandboxEnded, match="exit code 7"):
        until_refused(python)
    assert python.wait(timeout=PATIENCE_S).exit_code == 7
    for call in (python.fork, lambda: fork(sandbox=python.id), lambda: python.snapshot("point")):
        with pytest.raises(SandboxEnded, match="exit code 7") as caught:
            call()
        assert (caught.value.reason, caught.value.exit_code) == ("exit", 7)


def until_refused(sandbox):
    """Fork until that is refused: it may live for a moment longer than its last command took to write."""
    for _ in range(1000):
        sandbox.fork().close()


@pytest.mark.parametrize("forks", [0, 1, 2, 5])
def test_a_sandbox_that_is_killed_while_it_is_forked_tells_that_it_was_killed(forks):
    # The one who kills has a client of its own, whose connection goes with it.
    with ramet.Client() as client, ramet.Sandbox(command=PYTHON) as python:
        tell(python, "data = bytes(30 << 20)")
        begun = threading.Semaphore(0)
        killer = threading.Thread(target=lambda: (begun.acquire(), sandboxes.kill(python.id, client=client)))
        killer.start()
        for _ in range(forks):
            python.fork().close()
        begun.release()
        with pytest.raises(SandboxEnded, match="killed") as caught:
            until_refused(python)
        killer.join()
        assert caught.value.reason == "killed"
    assert sandboxes.list() == ()


@contextlib.contextmanager
def few_processes(core, more):
    """Core's user may have only so many more processes: the kernel counts them by user and user namespace."""
    count = 0
    below = _ledger.descendants(core)
    for pid in [core, *(one.pid for one in below)]:
        with contextlib.suppress(OSError):  # it has ended
            count += len(os.listdir(f"/proc/{pid}/task"))
    makers = [core, *(one.pid for one in below if one.name == "ramet-zygote")]
    before = resource.prlimit(core, resource.RLIMIT_NPROC)
    for maker in makers:
        resource.prlimit(maker, resource.RLIMIT_NPROC, (count + more, before[1]))
    try:
        yield
    finally:
        for maker in makers:
            resource.prlimit(maker, resource.RLIMIT_NPROC, before)


def test_when_processes_run_out_half_way_each_child_has_its_own_error(own):
    client = own.client()
    _, core = own.pids()
    with ramet.Sandbox(command=PYTHON, client=client) as python:
        tell(python, "x = 41")
        with few_processes(core, 24), pytest.raises((ForkError, IsolationError)) as caught:
            python.fork(60, on_error="keep")
        assert isinstance(caught.value, ForkError), caught.value
        error = caught.value
        assert len(error.errors) + len(error.sandboxes) == 60
        assert error.errors
        assert {type(one) for one in error.errors.values()} <= {IsolationError}
        assert all(one.step for one in error.errors.values())
        assert {one.errno for one in error.errors.values()} == {errno.EAGAIN}
        for child in error.sandboxes:
            # One that was made with the last process may be refused a thread or a wait of its own later.
            try:
                answer = ask(child, "x + 1")
            except RametError:
                answer = ""
            assert answer == "42" or (
                not answer and child.wait(timeout=PATIENCE_S).reason in {"exit", "signal"}
            )
            child.close()
        assert ask(python, "x") == "41"
        with python.fork(5) as children:
            assert ask_all(children, "x + 1") == ["42"] * 5


def test_survivors_of_a_fork_that_failed_in_part_end_unless_they_are_kept(own):
    client = own.client()
    _, core = own.pids()
    with ramet.Sandbox(command=PYTHON, client=client) as python:
        tell(python, "x = 41")
        with few_processes(core, 24), pytest.raises(ForkError):
            python.fork(60)
        assert [one.id for one in sandboxes.list(client=client)] == [python.id]


def test_input_of_the_dead_is_refused(python):
    python.kill()
    with pytest.raises(ramet.RametError) as caught:
        python.stdin.write("1\n")
    assert caught.value.code == "stdin_closed"
    assert python.stdout.readline(timeout=PATIENCE_S) == b""
