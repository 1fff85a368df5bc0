"""What users of the library rely on holds over every transport."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ramet
from ramet.client import Client, sandboxes, snapshots
from server._server import Server
from system._interrupting import interrupted

PATIENCE_S = 30.0
LINES = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done"
OUTPUT = b"".join(b"line %d\n" % number for number in range(2000))


def test_a_run_has_its_input_output_and_end(client: Client):
    heard: list[bytes] = []
    done = client.run(
        'cat; echo "$KEY" >&2; exit 3', stdin="fed", env={"KEY": "kept"}, on_stdout=heard.append
    )
    assert (done.stdout, done.stderr.strip(), done.exit_code, done.reason) == ("fed", "kept", 3, "exit")
    assert b"".join(heard) == b"fed"
    assert client.run("sleep 60", timeout=0.2).timed_out
    with pytest.raises(ramet.CommandFailed) as failed:
        client.run("false", check=True)
    assert failed.value.result.exit_code == 1


def test_a_run_tells_of_megabytes_exactly(client: Client):
    done = client.run(["head", "-c", "3000000", "/dev/zero"])
    assert (done.stdout_bytes, done.truncated) == (bytes(3_000_000), False)
    fed = os.urandom(1 << 20)
    assert client.run("cat", stdin=io.BytesIO(fed)).stdout_bytes == fed


def test_arguments_are_refused_by_the_same_words(client: Client):
    refused = {
        "command": lambda: client.run(""),
        "limits.memry": lambda: client.run("true", limits={"memry": "64M"}),
        "sandbox": lambda: ramet.Sandbox.connect("nobody-has-it", client=client),
        "snapshot": lambda: ramet.Sandbox("pythom", client=client),
    }
    for field, call in refused.items():
        with pytest.raises(ramet.InvalidRequest) as error:
            call()
        assert error.value.field == field, error.value
        if field == "snapshot":
            assert error.value.hint is not None
            assert "python" in error.value.hint


def test_code_keeps_its_state_and_tells_what_it_wrote(python: ramet.Sandbox):
    assert python.run_code("x = 41").error is None
    heard: list[bytes] = []
    done = python.run_code("print('w' * 300_000)\nx + 1", on_stdout=heard.append)
    assert (done.text, len(done.stdout), len(b"".join(heard))) == ("42", 300_001, 300_001)
    failed = python.run_code("1 / 0")
    assert failed.error is not None
    assert failed.error.name == "ZeroDivisionError"
    late = python.run_code("import time; time.sleep(60)", timeout=0.3)
    assert (late.reason, late.state_kept) == ("timeout", True)


def test_a_forks_memory_is_its_own(python: ramet.Sandbox):
    python.run_code("y = 1")
    with python.fork(2, metadata={"of": "two"}) as children:
        one, other = children
        assert one.run_code("y += 1; y").text == "2"
        assert other.run_code("y").text == "1"
        assert python.run_code("y").text == "1"
        assert one.info.parent == python.id
        assert one.info.metadata == {"of": "two"}


def test_a_snapshot_is_forked_and_returned_to(python: ramet.Sandbox, client: Client):
    python.run_code("z = 'before'")
    kept = python.snapshot("contract-point")
    try:
        python.run_code("z = 'after'")
        with ramet.Sandbox(kept, client=client) as fork:
            assert fork.run_code("z").text == "'before'"
            fork.run_code("z = 'lost'")
            fork.rollback(kept)
            assert fork.run_code("z").text == "'before'"
            paused = fork.pause()
        with ramet.Sandbox.resume(paused, client=client) as resumed:
            assert resumed.run_code("z").text == "'before'"
        names = [one.name for one in snapshots.list(client=client)]
        assert kept.name in names
        assert paused.name not in names
    finally:
        snapshots.remove(kept, client=client)


def test_commands_are_followed_fed_and_killed(shell: ramet.Sandbox):
    done = shell.commands.run("echo out; echo err >&2; exit 4")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 4)
    with shell.commands.run("cat", background=True, stdin=True) as cat:
        cat.send("one\n")
        assert cat.stdout.readline(timeout=PATIENCE_S) == b"one\n"
        cat.send(b"two\n")
        cat.close_stdin()
        assert cat.wait(PATIENCE_S).stdout == "one\ntwo\n"
    with shell.commands.run("sleep 1000", background=True) as sleeper:
        assert [one.id for one in shell.commands.list() if one.status == "running"] == [sleeper.id]
        sleeper.kill()
        assert sleeper.wait(PATIENCE_S).reason == "killed"
    assert shell.commands.run("sleep 60", timeout=0.2).timed_out


def test_readers_go_on_at_their_cursors(shell: ramet.Sandbox):
    with shell.commands.run(LINES, background=True) as command:
        begun = [command.stdout.readline(timeout=PATIENCE_S) for _ in range(5)]
        with shell.commands.connect(command.id, cursor=command.cursor) as other:
            assert b"".join([*begun, *other.stdout]) == OUTPUT
        assert b"".join([data for _, data in command.output()]) == OUTPUT[len(b"".join(begun)) :]
        heard: list[bytes] = []
        with shell.commands.connect(command.id) as third:
            assert third.wait(PATIENCE_S, on_stdout=heard.append).stdout_bytes == OUTPUT
        assert b"".join(heard) == OUTPUT


def test_a_reader_that_falls_behind_is_told_of_the_gap(shell: ramet.Sandbox):
    with shell.commands.run("head -c 40000000 /dev/zero", background=True) as command:
        command.wait(PATIENCE_S)
        with pytest.raises(ramet.RametError) as gap:
            list(iter(command.stdout.read, b""))
        assert gap.value.code == "output_left_out"
        list(iter(command.stdout.read, b""))
        assert command.stdout.position == 40_000_000


def test_files_go_both_ways(shell: ramet.Sandbox, tmp_path: Path):
    files, content = shell.files, os.urandom(700_000)
    told = files.write("/tmp/tree/data", content, mode=0o600)
    assert (told.size, told.mode) == (len(content), 0o600)
    files.write("/tmp/tree/data", b"more", append=True)
    assert files.read_bytes("/tmp/tree/data") == content + b"more"
    assert b"".join(files.stream("/tmp/tree/data", size=1 << 16)) == content + b"more"
    with files.open("/tmp/tree/data", "rb+") as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"more"
        file.seek(0)
        file.write(b"begins")
        file.truncate(6)
    assert files.read("/tmp/tree/data") == "begins"
    assert [one.path for one in files.list("/tmp/tree")] == ["/tmp/tree/data"]
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "a").write_bytes(content)
    files.upload(tmp_path / "up", "/tmp/up")
    files.download("/tmp/up", tmp_path / "down")
    assert (tmp_path / "down" / "a").read_bytes() == content
    assert {one.path for one in shell.diff()} >= {"/tmp/tree/data", "/tmp/up/a"}
    for path, code in (("/tmp/none", "not_found"), ("/tmp/tree", "is_a_directory")):
        with pytest.raises(ramet.FileError) as refused:
            files.read(path)
        assert (refused.value.code, refused.value.path) == (code, path)


def test_changes_of_files_are_heard(shell: ramet.Sandbox):
    shell.files.make_dir("/tmp/seen")
    events = iter(shell.files.watch("/tmp/seen", timeout=PATIENCE_S))
    heard: list[str] = []
    listening = threading.Thread(target=lambda: heard.append(next(events).path))
    listening.start()
    while listening.is_alive():  # it does not say when it listens
        shell.files.write("/tmp/seen/new", "x")
        listening.join(0.05)
    events.close()
    assert heard == ["/tmp/seen/new"]


def test_a_workspace_is_brought_along(client: Client, tmp_path: Path):
    (tmp_path / "here").write_text("of the caller")
    with ramet.Sandbox(command=["sleep", "1000"], workspace=tmp_path, client=client) as sandbox:
        assert sandbox.commands.run("cat here").stdout == "of the caller"


def test_a_terminal_is_typed_into_and_come_back_to(shell: ramet.Sandbox):
    with shell.terminals.create(["sh"], size=(30, 90)) as terminal:
        terminal.write("stty size; echo $((6 * 7))!\n")
        assert b"30 90" in terminal.read_until(b"42!", PATIENCE_S)
        terminal.resize(20, 70)
        again = shell.terminals.connect(terminal.id, cursor=terminal.cursor)
        again.write("stty size\n")
        assert b"20 70" in again.read_until(b"20 70", PATIENCE_S)
        again.close()


def test_a_port_is_reached_from_this_machine(shell: ramet.Sandbox):
    serve = "import socket; s = socket.create_server(('127.0.0.1', 8080)); print('up', flush=True)\n"
    serve += "while True:\n c, _ = s.accept(); c.sendall(c.recv(99).upper()); c.close()"
    with shell.commands.run(["python3", "-c", serve], background=True) as server:
        assert server.stdout.readline(timeout=PATIENCE_S) == b"up\n"
        with shell.ports.forward(8080) as forward:
            for _ in range(2):
                with socket.create_connection(forward.address, PATIENCE_S) as talk:
                    talk.sendall(b"said")
                    assert talk.recv(99) == b"SAID"
                    assert talk.recv(99) == b""
        with pytest.raises(ramet.RametError) as refused:
            shell.ports.connect(8081)
        assert refused.value.code == "connection_refused"


def test_an_interrupt_ends_what_runs_and_keeps_the_state(python: ramet.Sandbox):
    python.interrupt()  # nothing runs
    code = "kept = 7; print(1, flush=True); import time; time.sleep(60)"
    assert [done.reason for done in interrupted(python, code, PATIENCE_S)] == ["interrupted"]
    assert python.run_code("kept").text == "7"


def test_what_a_fork_did_to_files_is_taken_over_or_refused_where_both_did(shell: ramet.Sandbox):
    shell.files.write("/tmp/both", "before")
    with shell.fork() as fork:
        fork.files.write("/tmp/both", "of the fork")
        fork.files.write("/tmp/new/deep", os.urandom(300_000))
        difference = fork.diff(shell)
        assert {one.path for one in difference.files} == {"/tmp/both", "/tmp/new", "/tmp/new/deep"}
        assert {one.path for one in fork.commit_to(shell)} >= {"/tmp/both", "/tmp/new/deep"}
        assert shell.files.read("/tmp/both") == "of the fork"
        assert shell.files.read_bytes("/tmp/new/deep") == fork.files.read_bytes("/tmp/new/deep")
        fork.files.write("/tmp/both", "again")
        shell.files.write("/tmp/both", "otherwise")
        with pytest.raises(ramet.CommitConflict) as refused:
            fork.commit_to(shell)
        assert refused.value.paths == ("/tmp/both",)
        assert shell.files.read("/tmp/both") == "otherwise"
        fork.commit_to(shell, on_conflict="overwrite")
        assert shell.files.read("/tmp/both") == "again"


def test_its_files_are_exported_to_a_new_place_of_this_machine(shell: ramet.Sandbox, tmp_path: Path):
    content = os.urandom(300_000)
    shell.files.write("/tmp/out/data", content)
    shell.files.write("/tmp/out/of/it", "deep")
    assert shell.export(tmp_path / "new", "/tmp/out") == 2
    assert (tmp_path / "new" / "data").read_bytes() == content
    assert (tmp_path / "new" / "of" / "it").read_text() == "deep"
    with pytest.raises(ramet.InvalidRequest, match="File exists") as refused:
        shell.export(tmp_path / "new", "/tmp/out")
    assert refused.value.field == "local"
    assert (tmp_path / "new" / "data").read_bytes() == content


def test_of_rollouts_the_first_success_is_taken_over_and_nothing_is_left(
    shell: ramet.Sandbox, client: Client
):
    def attempt(child: ramet.Sandbox) -> ramet.CommandResult:
        number = child.info.metadata["number"]
        child.files.write("/tmp/winner", number)
        return child.commands.run("true" if number == "1" else "sleep 1000")

    numbers = [{"number": str(number)} for number in range(3)]
    with ramet.rollouts(shell, 3, attempt, first_success=True, metadata=numbers) as found:
        assert [one.outcome for one in found.attempts] == ["given_up", "success", "given_up"]
        assert [one.path for one in found.committed] == ["/tmp/winner"]
    assert shell.files.read("/tmp/winner") == "1"
    until = time.monotonic() + PATIENCE_S
    while sandboxes.list(parent=shell.id, client=client):
        assert time.monotonic() < until, "a child lives on"


def test_a_detached_one_is_come_back_to_with_its_state(client: Client):
    for number in range(3):  # a local client's second and third are forked by core itself
        left = ramet.Sandbox("python", detach=True, ttl=60, client=client)
        left.run_code(f"number = {number}")
        left.close()
        row = {one.id: one for one in sandboxes.list(client=client)}[left.id]
        assert (row.ttl, row.status) == (60, "running")
        with ramet.Sandbox.connect(left.id, client=client) as again:
            assert again.run_code("number").text == str(number)
            again.kill()


def test_its_end_is_told_with_all_that_it_wrote(client: Client):
    with ramet.Sandbox(command="echo begun; read line; echo $line; exit 5", client=client) as sandbox:
        assert sandbox.stdout.readline(PATIENCE_S) == b"begun\n"
        sandbox.stdin.write("told\n")
        done = sandbox.wait(PATIENCE_S)
        assert (done.stdout, done.exit_code, sandbox.running) == ("told\n", 5, False)
        with pytest.raises(ramet.SandboxEnded) as ended:
            sandbox.commands.run("true")
        assert (ended.value.reason, ended.value.exit_code) == ("exit", 5)


def test_what_there_is_and_what_befalls_it_is_told(client: Client):
    with ramet.Events(client=client) as events:
        with ramet.Sandbox(command=["sleep", "1000"], name="contract-told", client=client) as sandbox:
            (row,) = sandboxes.list(name="contract-told", client=client)
            assert (row.id, row.status) == (sandbox.id, "running")
            assert sandbox.metrics().processes >= 1
        own = []
        while not own or own[-1].type != "ended":
            event = events.next(PATIENCE_S)
            assert event is not None
            if event.sandbox == sandbox.id:
                own.append(event)
        assert own[0].type == "created"
    assert any(one.id == sandbox.id for one in sandboxes.list(ended=True, client=client))
    assert sandboxes.lineage(client=client) is not None


OWNER = """
import sys, ramet
client = ramet.connect(sys.argv[1]) if sys.argv[1] else None
ends = ramet.Sandbox(command=["sleep", "1000"], name="owned-by-it")
stays = ramet.Sandbox(command=["sleep", "1000"], name="left-by-it", detach=True)
print("made", flush=True)
sys.stdin.read()
"""


def test_what_is_not_detached_ends_with_its_process(client: Client):
    url = client.remote.url if client.remote is not None else ""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    with owner.stdin, owner.stdout:
        assert owner.stdout.readline() == b"made\n"
        assert len(sandboxes.list(name="owned-by-it", client=client)) == 1
        owner.send_signal(signal.SIGKILL)
        owner.wait(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while sandboxes.list(name="owned-by-it", client=client):
        assert time.monotonic() < until, "it lives on without its owner"
    with ramet.Sandbox.connect("left-by-it", client=client) as left:
        assert left.commands.run("echo here").stdout == "here\n"
        left.kill()


@pytest.mark.anyio
async def test_the_asynchronous_client_is_the_same(client: Client):
    async with ramet.AsyncClient(**client.beside()) as own:
        assert (await own.run("cat", stdin="fed")).stdout == "fed"
        async with ramet.AsyncSandbox("python", client=own) as sandbox:
            assert (await sandbox.run_code("6 * 7")).text == "42"
            async with await sandbox.commands.run(LINES, background=True) as command:
                assert b"".join([line async for line in command.stdout]) == OUTPUT
            await sandbox.files.write("/tmp/a", b"x" * 100_000)
            assert len(await sandbox.files.read_bytes("/tmp/a")) == 100_000
            async with await sandbox.fork(2) as children:
                assert [(await one.run_code("1 + 1")).text for one in children] == ["2", "2"]


def test_a_unix_socket_carries_the_same(server: Server):
    place = server.options[server.options.index("--socket") + 1]
    with (
        ramet.connect(f"unix://{place}", select=False) as client,
        ramet.Sandbox("python", client=client) as sandbox,
    ):
        assert sandbox.run_code("6 * 7").text == "42"
        assert sandbox.commands.run("echo out").stdout == "out\n"
