"""Who ends a sandbox: its command, its owner, its time. Nothing outlives that, whoever is killed."""

import gc
import json
import os
import signal
import time

import pytest

import ramet
from ramet.client import sandboxes
from ramet.errors import DaemonLost, RametError
from system._daemons import PATIENCE_S, kill_hard, marked, none_left, wait_gone
from system.sandbox._repl import PYTHON, ask, tell

CLIENT = """
import json, sys
import ramet
from system.sandbox._repl import PYTHON
options = json.loads(sys.argv[1])
parent = ramet.Sandbox(command=[*PYTHON, sys.argv[2]], **options)
children = parent.fork(2, **options)
print(json.dumps([parent.id, *[child.id for child in children]]), flush=True)
sys.stdin.read()
"""


def start_client(own, mark, **options):
    """A program with a sandbox and two forks of it; their ids."""
    tests = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    program = own.program(CLIENT, json.dumps(options), mark, PYTHONPATH=path)
    return program, json.loads(program.stdout.readline())


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def test_a_killed_client_takes_its_sandboxes_and_their_forks_along(own):
    client = own.client()
    program, ids = start_client(own, "owned-by-the-killed")
    assert sorted(one.id for one in sandboxes.list(client=client)) == sorted(ids)
    kill_hard(program.pid)
    until(lambda: not sandboxes.list(client=client))
    assert none_left("owned-by-the-killed")
    ended = sandboxes.list(ended=True, client=client)
    assert len(ended) == 3
    for one in ended:  # its input ended in the same moment
        assert one.end.reason == "exit" or one.note == "its owner went"


def test_detached_sandboxes_stay_when_their_client_is_killed(own):
    client = own.client()
    program, ids = start_client(own, "detached-from-the-killed", detach=True)
    kill_hard(program.pid)
    assert sorted(one.id for one in sandboxes.list(client=client)) == sorted(ids)
    assert len(marked("detached-from-the-killed")) >= 3
    for one in ids:
        assert sandboxes.kill(one, client=client).end.reason == "killed"
    assert none_left("detached-from-the-killed")


def test_a_detached_sandbox_ends_when_nobody_asks_for_it(own):
    client = own.client()
    with ramet.Sandbox(command=["sleep", "1000"], detach=True, ttl=1, client=client) as sandbox:
        pass
    until(lambda: not sandboxes.list(client=client))
    (info,) = sandboxes.list(ended=True, client=client)
    assert (info.id, info.note) == (sandbox.id, "nobody asked for it in 1 s")


def test_a_sandbox_that_nobody_can_reach_any_more_ends():
    info = ramet.Sandbox(command=["sleep", "1000"]).info
    gc.collect()
    until(lambda: info.id not in {one.id for one in sandboxes.list()})


def test_a_fork_of_the_clients_process_does_not_keep_its_sandboxes_alive(own):
    client = own.client()
    source = (
        "import os, sys, ramet\n"
        "sandbox = ramet.Sandbox(command=['sleep', '1000'])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.stdin.read()\n    os._exit(0)\n"
        "print(pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    program = own.program(source)
    child = int(program.stdout.readline())
    assert len(sandboxes.list(client=client)) == 1
    kill_hard(program.pid)
    until(lambda: not sandboxes.list(client=client))
    os.kill(child, signal.SIGKILL)


def test_leaving_the_context_ends_the_sandbox_with_all_its_processes():
    with ramet.Sandbox(
        command="sleep 1000 & setsid sleep 1000 & exec sleep 1000 # left-by-context"
    ) as sandbox:
        pass
    assert sandbox.wait().reason == "killed"
    assert none_left("left-by-context")


def test_when_its_command_ends_so_does_what_it_left_behind():
    with ramet.Sandbox(command="sleep 1000 & setsid sleep 1000 & exit 3") as sandbox:
        assert sandbox.wait(timeout=PATIENCE_S).exit_code == 3
    assert sandboxes.list() == ()


def test_a_stopped_daemon_ends_every_sandbox(own):
    client = own.client()
    sandbox = ramet.Sandbox(command="sleep 1000; : stopped-daemon", detach=True, client=client)
    own.end()
    result = sandbox.wait(timeout=PATIENCE_S)
    assert (result.reason, sandbox.info.note) == ("killed", "the daemon ended")
    assert none_left("stopped-daemon")
    sandbox.close()


def test_a_killed_core_ends_every_sandbox_and_no_snapshot(own):
    client = own.client()
    _, core = own.pids()
    sandbox = ramet.Sandbox(command=PYTHON, client=client)
    sandbox.snapshot("point")
    kill_hard(core)
    assert sandbox.wait(timeout=PATIENCE_S).reason == "lost"
    with pytest.raises(ramet.SandboxEnded, match="core ended"):
        sandboxes.snapshot(sandbox.id, "other", client=client)
    with ramet.Sandbox("point", client=client) as again:  # from the disk, in another core
        assert ask(again, "1 + 2") == "3"
    ramet.snapshots.remove("point", client=client)
    with ramet.Sandbox(command=PYTHON, client=client) as other:
        assert ask(other, "1 + 1") == "2"


def test_a_killed_daemon_takes_owned_sandboxes_along_and_leaves_the_detached_to_the_next(own):
    client = own.client()
    daemon, core = own.pids()
    owned = ramet.Sandbox(command=[*PYTHON, "owned"], client=client)
    kept = ramet.Sandbox(command=[*PYTHON, "kept"], detach=True, ttl=60, name="kept", client=client)
    tell(kept, "x = 41", "n = open('f', 'w').write('on disk')")
    kill_hard(daemon)
    with pytest.raises(DaemonLost, match="ended with it"):
        owned.wait(timeout=PATIENCE_S)
    with pytest.raises(DaemonLost, match="may live on"):
        kept.wait(timeout=PATIENCE_S)
    owned.close()

    (info,) = sandboxes.list(client=client)
    assert own.client().status().core.pid == core
    assert (info.id, info.name, info.ttl, info.pid) == (kept.id, "kept", 60, kept.pid)
    with kept.fork() as child:
        assert ask(child, "(x + 1, open('f').read())") == "(42, 'on disk')"
    kept.close()
    assert sandboxes.kill("kept", client=client).end.reason == "killed"
    assert none_left("kept")


def test_what_ends_while_there_is_no_daemon_is_told_by_the_next(own):
    client = own.client()
    daemon, _ = own.pids()
    sandbox = ramet.Sandbox(command="read x; exit 7 # nobody-looks", detach=True, client=client)
    kill_hard(daemon)
    sandbox.stdin.write("\n")
    assert none_left("nobody-looks")
    sandbox.close()
    until(lambda: not sandboxes.list(client=client))
    (info,) = sandboxes.list(ended=True, client=client)
    assert (info.id, info.end.exit_code, info.end.reason) == (sandbox.id, 7, "exit")


def test_a_client_that_is_interrupted_leaves_nothing(own):
    client = own.client()
    program, _ = start_client(own, "interrupted-client")
    program.send_signal(signal.SIGINT)
    wait_gone(program.pid)
    program.wait()
    until(lambda: not sandboxes.list(client=client))
    assert none_left("interrupted-client")


def test_a_detached_sandbox_is_met_again_with_streams_commands_and_files():
    with ramet.Sandbox(command=PYTHON, detach=True, name="meeting") as made:
        assert ask(made, "exec('x = 5')") == "None"
        with ramet.Sandbox.connect("meeting") as second:
            # The maker has the streams.
            assert second.commands.run("echo there").stdout == "there\n"
            with pytest.raises(ramet.InvalidRequest) as caught:
                second.stdout.read(timeout=1)
            assert caught.value.code == "streams_elsewhere"
            with pytest.raises(ramet.InvalidRequest):
                second.stdin.write("1\n", timeout=1)
    with ramet.Sandbox.connect(made.id) as again:
        assert ask(again, "x") == "5"
        with ramet.Sandbox.connect(made.id) as third:
            assert third.files.exists("/etc/passwd")
    with ramet.Sandbox.connect(made.id) as last:
        assert ask(last, "x + 1") == "6"
        last.kill()
        assert last.wait().reason == "killed"
    with pytest.raises(ramet.SandboxEnded):
        ramet.Sandbox.connect(made.id)


def test_streams_and_kernel_of_a_detached_sandbox_outlive_the_daemon_while_nobody_has_them(own):
    client = own.client()
    with ramet.Sandbox(command=PYTHON, detach=True, client=client) as made:
        assert ask(made, "exec('x = 5')") == "None"
    with ramet.Sandbox(kernel="bash", detach=True, client=client) as coding:
        coding.run_code("x=8")
    for turn in range(2):
        kill_hard(client.status().pid)
        client = own.client()
        with ramet.Sandbox.connect(made.id, client=client) as again:
            assert ask(again, f"x + {turn}") == f"{5 + turn}"
        with ramet.Sandbox.connect(coding.id, client=client) as again:
            assert again.run_code("echo $x").stdout == "8\n"
    sandboxes.kill(coding.id, client=client)
    # Who has them keeps them, and nobody else is given any.
    with ramet.Sandbox.connect(made.id, client=client) as last:
        kill_hard(client.status().pid)
        with ramet.Sandbox.connect(made.id, client=own.client()) as second:
            with pytest.raises(ramet.InvalidRequest) as caught:
                second.stdout.read(timeout=1)
            assert caught.value.code == "streams_elsewhere"
            assert ask(last, "x + 7") == "12"
            second.kill()


def test_who_only_attached_ends_nothing_and_hears_of_the_end():
    with ramet.Sandbox(command=PYTHON) as made:
        with ramet.Sandbox.connect(made.id) as other:
            assert other.running
        assert ask(made, "1") == "1"
        with ramet.Sandbox.connect(made.id) as other:
            made.kill()
            assert other.wait(20).reason == "killed"
    with pytest.raises(ramet.InvalidRequest) as caught:
        ramet.Sandbox.connect("nobody")
    assert caught.value.code == "unknown_sandbox"


def test_what_a_sandbox_uses_is_told():
    with ramet.Sandbox(command=["sleep", "10000"], limits={"disk": "64M"}) as made:
        before = made.metrics()
        assert (before.processes, before.threads) == (1, 1)
        made.files.write("/tmp/file", b"x" * (8 << 20))
        busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
        made.commands.run(busy, check=True)
        with made.commands.start(["sleep", "1000"]):
            after = made.metrics()
        assert after.processes == 2
        assert after.disk_bytes - before.disk_bytes >= 8 << 20
        assert after.disk_bytes < after.disk_limit
        assert after.user_ms + after.system_ms > before.user_ms + before.system_ms
        assert after.memory_bytes > before.memory_bytes > 0
        made.commands.forget()


def test_a_paused_sandbox_goes_on_by_its_own_name_or_id_as_well():
    with ramet.Sandbox(command=PYTHON, name="sleeper") as made:
        ask(made, "exec('x = 1')")
        made.pause("elsewhere")
    with ramet.Sandbox.resume("sleeper") as again:
        assert (again.name, ask(again, "x")) == ("sleeper", "1")
        again.pause("elsewhere")
    with ramet.Sandbox.resume(again.id) as once_more:
        assert (once_more.name, ask(once_more, "x")) == ("sleeper", "1")
    assert ramet.snapshots.list() == ()
    with pytest.raises(RametError, match="no snapshot 'sleeper'"):
        ramet.Sandbox.resume("sleeper")


def test_a_paused_sandbox_goes_on_where_it_was_under_its_name():
    with ramet.Sandbox(command=PYTHON, name="sleeper") as made:
        assert ask(made, "exec('x = 41')") == "None"
        made.files.write("note", "kept")
        kept = made.pause()
        assert not made.running
    assert [one.name for one in ramet.snapshots.list()] == [kept.name]
    with ramet.Sandbox.resume(kept) as again:
        assert (again.name, ask(again, "x + 1"), again.files.read("note")) == ("sleeper", "42", "kept")
    assert ramet.snapshots.list() == ()
