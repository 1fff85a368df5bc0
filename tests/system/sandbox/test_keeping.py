"""`keep_on`: the state of a sandbox is kept before a limit ends it."""

import pytest

import ramet
from ramet.client import sandboxes
from ramet.errors import InvalidRequest, SandboxEnded
from system._daemons import Own, kill_hard
from system.sandbox._repl import PATIENCE_S, PYTHON, ask, tell

KEEP = ("timeout",)


def removed(name, client=None):
    assert name is not None
    ramet.snapshots.remove(name, client=client)


def test_what_its_deadline_ends_goes_on_in_forks_of_what_was_kept(python):
    tell(python, "x = 41", "n = open('f', 'w').write('one')")
    with python.fork(2, timeout=0.3, keep_on=KEEP) as children:
        results = [child.wait(timeout=PATIENCE_S) for child in children]
    for child, result in zip(children, results, strict=True):
        assert (result.reason, result.exit_code, result.limit) == ("timeout", 124, "wall")
        assert (result.kept, result.kept_error) == (f"kept-{child.id}", None)
        with ramet.Sandbox(result.kept) as again:
            assert ask(again, "(x + 1, open('f').read())") == "(42, 'one')"
            assert again.info.keep_on == ()
        removed(result.kept)
    assert ask(python, "x") == "41"


def test_its_end_tells_what_is_kept_to_whoever_asks_later():
    sandbox = ramet.Sandbox(command=["cat"], timeout=0.3, keep_on=["timeout", "timeout"])
    assert sandbox.info.keep_on == KEEP
    result = sandbox.wait(timeout=PATIENCE_S)
    with pytest.raises(SandboxEnded, match=f"its time was up, its state is kept as {result.kept}"):
        sandbox.fork()
    (told,) = [one for one in sandboxes.list(ended=True) if one.id == sandbox.id]
    (point,) = [one for one in ramet.snapshots.list() if one.name == result.kept]
    assert (told.kept, point.sandbox, point.durable) == (result.kept, sandbox.id, True)
    removed(result.kept)


def test_what_cannot_be_kept_ends_all_the_same_and_says_why(python):
    with python.fork(timeout=4, keep_on=KEEP) as child:
        tell(child, "import socket", "s = socket.socket(16, 3)")
        result = child.wait(timeout=PATIENCE_S)
    assert (result.reason, result.exit_code, result.kept) == ("timeout", 124, None)
    assert "netlink" in result.kept_error


def test_nothing_is_kept_of_what_ends_before_its_deadline(python):
    with python.fork(timeout=300, keep_on=KEEP) as child:
        child.stdin.close()
        result = child.wait(timeout=PATIENCE_S)
    assert (result.reason, result.kept, result.kept_error) == ("exit", None, None)
    assert ramet.snapshots.list() == ()


def test_a_daemon_that_comes_after_keeps_what_its_predecessor_was_to_keep(own: Own):
    client = own.client()
    daemon, _ = own.pids()
    made = ramet.Sandbox(command=PYTHON, timeout=2, keep_on=KEEP, detach=True, client=client)
    name = f"kept-{made.id}"
    kill_hard(daemon)
    made.let_go()
    client.ping()
    with ramet.events("start", client=client) as stream:
        while (event := stream.next(PATIENCE_S)).type != "ended" or event.sandbox != made.id:
            continue
    (told,) = [one for one in sandboxes.list(ended=True, client=client) if one.id == made.id]
    assert told.end is not None
    assert (told.end.reason, told.kept, told.kept_error) == ("timeout", name, None)
    with ramet.Sandbox(name, client=client) as again:
        assert ask(again, "1 + 1") == "2"
    removed(name, client)


SMALL, LARGE = {"memory": "64M"}, {"memory": "400M"}
GROW = "[data.append(b'x' * 1_000_000) for _ in range(120)] and len(data)"


@pytest.fixture
def small():
    """A Python with little memory, whose state is kept when that is not enough."""
    with ramet.Sandbox(command=PYTHON, limits=SMALL, keep_on=["oom"]) as made:
        tell(made, "data = []", "n = open('f', 'w').write('one')")
        yield made


def out_of_memory(sandbox):
    """The name of what was kept of one that ends so."""
    result = sandbox.wait(timeout=PATIENCE_S)
    assert (result.reason, result.exit_code, result.limit) == ("oom", 137, "memory"), result
    assert (result.kept, result.kept_error) == (f"kept-{sandbox.id}", None)
    return result.kept


def test_what_runs_out_of_memory_goes_on_where_there_is_more(small):
    """Amid the statement that was too much, with all that it had; and so does a fork of a fork."""
    with small.fork(keep_on=["oom"]) as child:
        for one in (small, child):
            one.stdin.write(f"{GROW}\n")
        names = [out_of_memory(one) for one in (small, child)]
    for name in names:
        with ramet.Sandbox(name, limits=LARGE) as again:
            assert again.stdout.readline(timeout=PATIENCE_S) == b"120\n"
            assert ask(again, "(len(data), open('f').read())") == "(120, 'one')"
        removed(name)


def test_a_command_that_takes_all_memory_ends_its_sandbox_which_is_kept_with_it(small):
    hog = small.commands.start(["python3", "-c", f"import time; data = []; {GROW}; time.sleep(1000)"])
    name = out_of_memory(small)
    assert hog.wait(PATIENCE_S).exit_code == 137
    hog.close()
    small.commands.forget()
    with ramet.Sandbox(name, limits=LARGE) as again:
        assert ask(again, "len(data)") == "0"
        assert [one for one in again.processes() if "time.sleep(1000)" in one.command[-1]]
    again.commands.forget()  # the hog is one of its commands
    removed(name)


def test_what_a_signal_had_stopped_before_is_not_kept_and_named(small):
    stopped = int(ask(small, "(p := __import__('subprocess').Popen(['sleep', '1000'])).pid"))
    tell(small, "p.send_signal(19)", f"__import__('os').waitpid({stopped}, 2)")
    small.stdin.write(f"{GROW}\n")
    result = small.wait(timeout=PATIENCE_S)
    assert (result.reason, result.kept) == ("oom", None)
    assert f"pid {stopped} " in result.kept_error
    assert "stopped by a signal" in result.kept_error


@pytest.mark.parametrize(
    "keep_on, timeout, code",
    [
        (["exit"], 5, "invalid_argument"),
        ("timeout", 5, "invalid_argument"),
        (["oom", "timeout"], None, "invalid_argument"),
    ],
)
def test_what_cannot_be_kept_on_is_refused_by_name(python, keep_on, timeout, code):
    for make in (lambda **how: ramet.Sandbox(command=["cat"], **how), python.fork):
        with pytest.raises(InvalidRequest) as caught:
            make(keep_on=keep_on, timeout=timeout)
        assert (caught.value.field, caught.value.code) == ("keep_on", code)
