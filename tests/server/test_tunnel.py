"""What `ramet.connect` meets at a server: tokens, scopes, quotas, what is the server's, its absence."""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

import ramet
from ramet.client import Client, sandboxes
from ramet.models.operations import OPERATIONS
from ramet.native import _protocol as p
from ramet.server.operations import REFUSED, SCOPES
from server._server import ALICE, ALICE_READS, ALICE_RUNS, BOB, Server, running

LINES = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i % 30)) = 0 ] && sleep 0.01; done"
OUTPUT = b"".join(b"line %d\n" % number for number in range(3000))
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def alice(server: Server) -> Iterator[Client]:
    with ramet.connect(server.url, ALICE_RUNS, select=False) as client:
        yield client


def test_every_operation_has_its_scope_or_its_refusal():
    assert OPERATIONS.keys() <= SCOPES.keys() | REFUSED.keys()
    assert not SCOPES.keys() & REFUSED.keys()


@pytest.mark.parametrize("token", [None, "wrong-token-0123456789"])
def test_nobody_comes_in_without_a_token(server: Server, token: str | None):
    with ramet.connect(server.url, token, select=False) as client, pytest.raises(ramet.RametError) as refused:
        client.ping()
    assert refused.value.code == "unauthenticated"


def test_a_token_that_only_reads_changes_nothing(server: Server, alice: Client):
    with (
        ramet.connect(server.url, ALICE_READS, select=False) as reader,
        ramet.Sandbox(command=["sleep", "1000"], client=alice) as sandbox,
    ):
        sandbox.files.write("/tmp/seen", "of alice")
        command = sandbox.commands.run("echo out", background=True)
        assert sandbox.id in {one.id for one in sandboxes.list(client=reader)}
        seen = ramet.Commands(sandbox.id, client=reader)
        assert seen.connect(command.id).wait(PATIENCE_S).stdout == "out\n"
        files = ramet.Files(seen)
        assert files.read("/tmp/seen") == "of alice"
        refused = {
            "run": lambda: reader.run("true"),
            "attach": lambda: ramet.Sandbox.connect(sandbox.id, client=reader),
            "start": lambda: seen.run("true"),
            "kill": lambda: sandboxes.kill(sandbox.id, client=reader),
            "write": lambda: files.write("/tmp/seen", "else"),
            "remove": lambda: files.remove("/tmp/seen"),
        }
        for name, call in refused.items():
            with pytest.raises(ramet.RametError) as error:
                call()
            assert error.value.code == "forbidden", name
        assert sandbox.files.read("/tmp/seen") == "of alice"
        files.close()


def test_nobody_names_what_is_the_servers(alice: Client):
    for call in (
        lambda: alice.run("true", root="/"),
        lambda: ramet.Sandbox(command="true", root="/", client=alice),
        lambda: ramet.Sandbox(command="true", tools=["/opt"], client=alice),
        # Past what the client itself refuses.
        lambda: alice.ask("sandbox.create", {"run": {"argv": ["true"], "root": "/"}}),
        lambda: alice.ask("sandbox.create", {"run": {"argv": ["true"]}, "tools": ["/opt"]}),
        lambda: alice.ask("lane", {}),
        alice.shutdown,
    ):
        with pytest.raises(ramet.InvalidRequest) as refused:
            call()
        assert refused.value.code == "not_remote"
    with pytest.raises(ramet.InvalidRequest) as own:
        ramet.Sandbox(command="true", metadata={"ramet.tag": "x"}, client=alice)
    assert own.value.field == "metadata"
    with pytest.raises(ramet.RametError) as admin:
        alice.status()
    assert admin.value.code == "forbidden"
    shown = ["python3", "-c", "import sys; print(sys.base_prefix)"]
    asked = {"run": {"argv": shown, "python": ["/etc/python", "/etc", "/root"]}}
    assert alice.ask("sandbox.create", asked, made=[])["command"] == shown


def test_a_plan_for_core_ends_the_connection_and_nothing_else(server: Server):
    with (
        ramet.connect(server.url, ALICE_RUNS, select=False) as client,
        ramet.Sandbox(command=["sleep", "1000"], detach=True, client=client) as sandbox,
    ):
        link, _ = client.open_link("sandbox.commands", {"sandbox": sandbox.id})
        link.send(p.RUN, b"")
        client.wait_link(link, time.monotonic() + PATIENCE_S)
        with pytest.raises(ramet.DaemonLost):
            link.receive()
        link.close()
        again = ramet.Sandbox.connect(sandbox.id, client=client)
        assert again.commands.run("echo here").stdout == "here\n"
        again.kill()


def test_a_quota_counts_here_too(server: Server):
    with ramet.connect(server.url, BOB, select=False) as bob:
        assert sandboxes.list(client=bob) == ()
        with (
            ramet.Sandbox(command=["sleep", "1000"], client=bob),
            ramet.Sandbox(command=["sleep", "1000"], client=bob),
            pytest.raises(ramet.RametError) as full,
        ):
            bob.run("true")
        assert full.value.code == "quota"
        assert bob.run("true").exit_code == 0


def test_what_is_asked_is_noted_without_its_words(server: Server, alice: Client):
    before = server.audit.stat().st_size
    alice.run("echo not-to-be-noted")
    with ramet.Sandbox(command=["sleep", "1000"], client=alice) as sandbox:
        sandbox.commands.run("echo not-to-be-noted")
    with server.audit.open() as log:
        log.seek(before)
        text = log.read()
    noted = [json.loads(line) for line in text.splitlines()]
    ours = [(one["path"], one["status"], one["tenant"]) for one in noted if one["method"] == "TUNNEL"]
    for wanted in ("run", "sandbox.create", "sandbox.commands", "command.start"):
        assert (wanted, 200, "alice") in ours
    assert "not-to-be-noted" not in text
    assert ALICE_RUNS not in text


def test_tar_streams_and_links_pass_as_they_do_here(alice: Client):
    with ramet.Sandbox(command=["sleep", "1000"], client=alice) as sandbox:
        files = sandbox.files
        files.write("tree/private/file", b"x" * 3_000_000)
        files.make_dir("tree/closed", mode=0o700)
        files.link("tree/private/file", "tree/other")
        files.symlink("tree/way", "other")
        assert files.stat("tree/other").links == 2
        assert files.upload_tar(files.download_tar("tree"), "copy") == 3
        assert files.stat("copy/closed").mode == 0o700
        assert files.read_bytes("copy/way") == b"x" * 3_000_000
        with pytest.raises(ramet.FileError):
            files.copy("tree/other", "tree/other", replace=True)
        with pytest.raises(ramet.InvalidRequest):
            files.upload_tar(b"x" * 2000, "copy")


def test_a_template_is_built_there(alice: Client):
    built = ramet.templates.build("of-the-server", warm="ready = 42", client=alice)
    try:
        with ramet.Sandbox("of-the-server", client=alice) as sandbox:
            assert sandbox.run_code("ready").text == "42"
        with pytest.raises(ramet.InvalidRequest) as refused:
            ramet.templates.build("of-here", from_venv=True, client=alice)
        assert refused.value.code == "not_remote"
    finally:
        ramet.templates.remove(built.name, client=alice)


def test_readers_go_on_after_the_server_was_killed_and_came_again():
    with running() as server:
        with ramet.connect(server.url, ALICE, select=False) as client:
            sandbox = ramet.Sandbox(command=["sleep", "1000"], detach=True, client=client)
            command = sandbox.commands.run(LINES, background=True)
            heard = [command.stdout.readline(timeout=PATIENCE_S) for _ in range(50)]
            server.stop(signal.SIGKILL)
            server.options += ["--port", str(server.port)]
            server.start()
            assert b"".join([*heard, *command.stdout]) == OUTPUT
            assert command.wait(PATIENCE_S).stdout_bytes == OUTPUT
            with pytest.raises(ramet.DaemonLost):
                sandbox.running  # noqa: B018  it looks
            command.close()
            sandbox.let_go()
            with ramet.Sandbox.connect(sandbox.id, client=client) as again:
                assert again.commands.run("echo here").stdout == "here\n"
                again.kill()
        with ramet.connect(server.url, ALICE, select=False) as client:
            server.stop()
            with pytest.raises(ramet.DaemonLost) as absent:
                client.ping()
            assert absent.value.code == "server_unreachable"


SMALL = '[tenants.alice]\nsandboxes = 1\ntokens = [{ token = "' + ALICE + '" }]\n'


def test_what_is_new_goes_where_there_is_room_and_forks_stay_at_home(server: Server):
    with running(tokens=SMALL) as small:
        nobody = "http://127.0.0.1:9"
        with ramet.connect([nobody, small.url, server.url], ALICE, select=False) as client:
            there = [ramet.connect(one.url, ALICE, select=False) for one in (small, server)]
            before = len(sandboxes.list(client=there[1]))
            made = [ramet.Sandbox(command=["sleep", "1000"], client=client) for _ in range(3)]
            try:
                assert [
                    len(sandboxes.list(client=one)) - n for one, n in zip(there, (0, before), strict=True)
                ] == [1, 2]
                assert client.run("echo out").stdout == "out\n"
                child = made[-1].fork()
                assert child.id in {one.id for one in sandboxes.list(client=there[1])}
                with ramet.Sandbox.connect(made[0].id, client=client) as again:
                    assert again.commands.run("echo out").stdout == "out\n"
                child.kill()
                child.let_go()
                # The one that cannot be asked may have it.
                with pytest.raises(ramet.DaemonLost) as absent:
                    ramet.Sandbox.connect("of-nobody", client=client)
                assert absent.value.code == "server_unreachable"
                with (
                    ramet.connect([small.url, server.url], ALICE, select=False) as all_there,
                    pytest.raises(ramet.InvalidRequest) as unknown,
                ):
                    ramet.Sandbox.connect("of-nobody", client=all_there)
                assert unknown.value.code == "unknown_sandbox"
            finally:
                for one in made:
                    one.kill()
                    one.let_go()
                for each in there:
                    each.close()


def test_a_fork_of_the_process_has_a_connection_of_its_own(server: Server, alice: Client):
    with ramet.Sandbox(command=["sleep", "1000"], client=alice) as sandbox:
        child = os.fork()
        if not child:
            code = 1
            try:
                code = alice.run("exit 7").exit_code
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert sandbox.commands.run("echo here").stdout == "here\n"
