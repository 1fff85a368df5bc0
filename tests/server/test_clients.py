"""Clients of others from the package index, unmodified: forkd's, its MCP server, Forkbox's."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ramet
import ramet.client
from ramet.cli.main import invoke
from server._server import ALICE, ALICE_READS, PATIENCE_S, Server, refusal, running, told


def test_forkds_client_goes_through_the_life_of_a_sandbox(server: Server) -> None:
    forkd = pytest.importorskip("forkd", reason="PyPI's forkd is not installed")
    controller = forkd.Controller(server.url, ALICE)
    tags = {one["tag"] for one in controller.list_snapshots()}
    assert tags >= {"python", "bash"}
    made = controller.spawn_sandboxes(
        "python",
        n=2,
        per_child_netns=True,
        memory_limit_mib=256,
        prewarm=True,
        live_fork=True,
        hugepages=True,
    )
    first, second = made[0]["id"], made[1]["id"]
    assert controller.eval_code(first, "6 * 7")["result"] == "42"
    assert controller.exec_command(first, ["sh", "-c", "echo mine >~/f; cat ~/f"])["stdout"] == "mine\n"
    # forkd's children share one writable disk; these do not.
    assert controller.exec_command(second, ["sh", "-c", "cat ~/f"])["exit_code"] == 1
    assert controller.ping_sandbox(first)["pong"]
    assert controller.get_sandbox(first)["memory_limit_mib"] == 256
    for mode in ("full", "diff", "live"):
        taken = controller.branch_sandbox(first, tag=f"forkd-{mode}", mode=mode)
        assert taken["status"] == "ready"
        controller.delete_snapshot(f"forkd-{mode}")
    assert controller.branch_sandbox(first, tag="forkd-now", mode="live", wait=False)["status"] == "writing"
    for one in (first, second):
        controller.kill_sandbox(one)
        assert one not in {left["id"] for left in controller.list_sandboxes()}
    with pytest.raises(forkd.ControllerError) as caught:
        controller.get_sandbox(first)
    assert caught.value.status == 404
    while next(one for one in controller.list_snapshots() if one["tag"] == "forkd-now")["status"] != "ready":
        pass
    controller.delete_snapshot("forkd-now")
    with pytest.raises(forkd.ControllerError) as caught:
        forkd.Controller(server.url, ALICE_READS).spawn_sandboxes("python")
    assert caught.value.status == 403


def test_forkds_sandbox_speaks_to_a_guest_port(server: Server) -> None:
    pytest.importorskip("forkd", reason="PyPI's forkd is not installed")
    with server.client() as api:
        made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}), 201)
        place = f"/v1/sandboxes/{made[0]['id']}"
        address = told(api.post(f"{place}/guest"), 201)["guest_addr"]
        assert told(api.get(place), 200)["guest_addr"] == address
        from forkd import Sandbox

        sandbox = Sandbox(target=address, spawn=False)
        assert sandbox.ping()["pong"]
        assert sandbox.eval("2 ** 10") == "1024"
        result = sandbox.commands.run("echo out; exit 4")
        assert (result.stdout, result.exit_code) == ("out\n", 4)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            sandbox.eval("1/0")
        told(api.delete(place), 204)
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


GUESTS_WRONG = [
    (b"{", "malformed"), (b"[]", "malformed"), (b"{}", "invalid_argument"),
    (b'{"action": "exec"}', "invalid_argument"), (b'{"action": "exec", "args": []}', "invalid_argument"),
    (b'{"action": "exec", "args": [1]}', "invalid_argument"),
    (b'{"action": "exec", "args": ["true"], "timeout": "x"}', "invalid_argument"),
    (b'{"action": "exec", "args": ["true"], "timeout": -1}', "out_of_range"),
    (b'{"action": "eval", "code": 1}', "invalid_argument"), (b'{"action": "eval", "code": "1"}', "no_kernel"),
]  # fmt: skip


Address = tuple[str, int]


def open_guest(api: httpx.Client, sandbox: str) -> Address:
    host, _, port = told(api.post(f"/v1/sandboxes/{sandbox}/guest"), 201)["guest_addr"].rpartition(":")
    return host, int(port)


def ask_guest(address: Address, line: bytes) -> dict[str, object]:
    with socket.create_connection(address, timeout=PATIENCE_S) as asking:
        asking.sendall(line + b"\n")
        asking.shutdown(socket.SHUT_WR)
        return json.loads(asking.makefile("rb").read())


def test_what_a_guest_is_wrongly_asked_is_answered_by_code(api: httpx.Client, shell: str) -> None:
    address = open_guest(api, shell)
    assert open_guest(api, shell) == address
    for line, code in GUESTS_WRONG:
        assert ask_guest(address, line)["code"] == code, line
    told(api.delete(f"/v1/sandboxes/{shell}/guest"), 204)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    refusal(api.delete(f"/v1/sandboxes/{shell}/guest"), 404)


def test_a_guest_port_ends_with_its_sandbox_which_lives_while_it_is_used(api: httpx.Client) -> None:
    body = {"command": ["sleep", "1000"], "names": ["with-a-guest"], "ttl": 3}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]["id"]
    open_guest(api, "with-a-guest")
    told(api.delete("/v1/sandboxes/with-a-guest/guest"), 204)
    address = open_guest(api, "with-a-guest")
    longer = b'{"action": "exec", "args": ["sh", "-c", "sleep 4; echo lived"]}'
    assert ask_guest(address, longer)["stdout"] == "lived\n"
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            break
        assert time.monotonic() < until
    assert told(api.get(f"/v1/sandboxes/{made}?ended=true"), 200)["status"] == "ended"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_forkds_sandbox_starts_what_it_needs_by_our_verbs(tmp_path: Path) -> None:
    pytest.importorskip("forkd", reason="PyPI's forkd is not installed")
    program = tmp_path / "forkd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ramet "$@"\n')
    program.chmod(0o755)
    # It reads its environment when it is imported.
    source = """
import forkd
with forkd.Sandbox("python", timeout=30) as sb:
    print(sb.commands.run("echo hi; exit 3"), sb.eval("(x := 6 * 7)"), sb.eval("x"), sb.ping()["pong"])
    print(sb._fork_proc.pid)
try:
    forkd.Sandbox("absent-tag")
except RuntimeError as error:
    print("absent-tag" in str(error))
"""
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FORKD_TARGET": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], lines[2]) == (
        0, "CommandResult(stdout='hi\\n', stderr='', exit_code=3) 42 42 True", "True",
    ), done.stderr  # fmt: skip
    assert not os.path.exists(f"/proc/{lines[1]}")
    # Its children have ended with it.
    assert ramet.client.sandboxes.list() == ()


@pytest.mark.parametrize(
    "words, target, code, word",
    [
        (["--tag", "python"], "127.0.0.1", 2, "FORKD_TARGET"),
        (["--tag", "python"], "192.0.2.1:80", 2, "192.0.2.1:80"),
        (["some-sandbox"], "127.0.0.1:80", 2, "--tag"),
        (["--tag", "python", "--ttl", "9"], "127.0.0.1:80", 2, "ttl"),
    ],
)
def test_what_cannot_stand_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    words: list[str],
    target: str,
    code: int,
    word: str,
) -> None:
    monkeypatch.setenv("FORKD_TARGET", target)
    assert invoke(["fork", *words, "--settle-secs", "60"]) == code
    assert word in capfd.readouterr().err


@pytest.fixture
def allowing(machine: Path) -> Iterator[Server]:
    with running("--allow-root", str(machine)) as made:
        yield made


MCP_TOOLS = {
    "list_snapshots", "spawn_sandboxes", "list_sandboxes", "branch_sandbox", "create_snapshot",
    "exec_command", "eval_code", "wait_for_text", "get_sandbox", "ping_sandbox", "kill_sandbox",
}  # fmt: skip


def test_forkds_mcp_server_calls_each_of_its_tools(allowing: Server, machine: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="PyPI's mcp is not installed")
    pytest.importorskip("forkd_mcp", reason="PyPI's forkd-mcp is not installed")
    from mcp.client.stdio import stdio_client

    async def converse() -> None:
        parameters = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-c", "from forkd_mcp.server import main; main()"],
            env={"FORKD_URL": allowing.url, "FORKD_TOKEN": ALICE, "PATH": os.environ.get("PATH", "")},
        )
        async with stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
            assert {tool.name for tool in (await session.list_tools()).tools} == MCP_TOOLS

            async def calls(tool: str, **arguments: object) -> list[dict[str, object]]:
                answer = await session.call_tool(tool, arguments)
                assert not answer.isError, answer.content
                called.add(tool)
                # Of a list each is a piece of its own.
                return [json.loads(one.text) for one in answer.content]

            async def call(tool: str, **arguments: object) -> dict[str, object]:
                (told,) = await calls(tool, **arguments)
                return told

            assert {one["tag"] for one in await calls("list_snapshots")} >= {"python", "bash"}
            assert await calls("list_sandboxes") == []
            machines = {"tag": "by-mcp-too", "kernel": f"{machine}/usr/bin/sh", "rootfs": str(machine)}
            assert (await call("create_snapshot", **machines))["bootable"]
            assert "by-mcp-too" in {one["tag"] for one in await calls("list_snapshots")}
            made = await calls("spawn_sandboxes", snapshot_tag="python", n=2)
            assert {one["id"] for one in await calls("list_sandboxes")} == {one["id"] for one in made}
            sandbox, other = [str(one["id"]) for one in made]
            assert (await call("eval_code", sandbox_id=sandbox, code="6 * 7"))["result"] == "42"
            words = ["sh", "-c", "echo ready >/tmp/log"]
            assert (await call("exec_command", sandbox_id=sandbox, args=words))["exit_code"] == 0
            found = await call("wait_for_text", sandbox_id=sandbox, path="/tmp/log", marker="ready")
            assert found["found"]
            assert (await call("ping_sandbox", sandbox_id=sandbox))["pong"]
            assert (await call("get_sandbox", sandbox_id=sandbox))["memory_limit_mib"] == 256
            assert (await call("branch_sandbox", sandbox_id=sandbox, tag="by-mcp"))["status"] == "ready"
            refused = await session.call_tool("create_snapshot", machines | {"tag": "x", "rootfs": "/"})
            assert refused.isError
            for one in (sandbox, other):
                assert (await call("kill_sandbox", sandbox_id=one))["killed"]
            assert await calls("list_sandboxes") == []

    called: set[str] = set()
    asyncio.run(converse())
    assert called == MCP_TOOLS
    with allowing.client() as api:
        for tag in ("by-mcp", "by-mcp-too"):
            told(api.delete(f"/v1/snapshots/{tag}"), 204)


def test_forkboxs_client_runs_on_its_socket(tmp_path: Path) -> None:
    forkbox = pytest.importorskip("forkbox", reason="PyPI's forkbox is not installed")
    path = f"/tmp/ramet-fb-{os.getpid()}.sock"
    # No tenants: the server's sandboxes are those of its user.
    with running("--forkbox-socket", path, tokens=None) as own:
        assert os.stat(path).st_mode & 0o777 == 0o600
        for run in (
            forkbox.Forkbox.run,
            ramet.Forkbox.run,
        ):
            done = run("echo out; echo err >&2; exit 3", socket_path=path)
            assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (3, "out\n", "err\n", False)
            late = run("sleep 100", timeout_ms=200, socket_path=path)
            assert (late.exit_code, late.timed_out, late.ok) == (124, True, False)
        with pytest.raises(ramet.RametError):
            ramet.Forkbox.run("true", allow_network=True, socket_path=path)
        for line, code in ((b"{\n", "malformed"), (b'{"cmd": 1, "timeout_ms": 1}\n', "invalid_argument")):
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(path)
                asking.sendall(line)
                assert json.loads(asking.makefile().readline())["code"] == code
        _refuse_pages(own)
        _stop_amid_a_request(own)
    assert not os.path.lexists(path)


def _refuse_pages(server: Server) -> None:
    """A browser on the machine reaches a server without tokens, and so does whatever page is open in it."""
    pages = ({"host": "page.example"}, {"origin": "http://page.example"}, {"origin": "null"})
    with server.client(None) as api:
        assert api.get("/v1/sandboxes").status_code == 200
        for headers in pages:
            refused = api.post("/v1/drain?deadline=0", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "foreign_page")


def _stop_amid_a_request(server: Server) -> None:
    """A stop waits for what was asked before it."""
    body = json.dumps({"command": "sleep 0.5; echo done"})
    head = "POST /v1/run HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as asking,
        server.client(None) as api,
    ):
        asking.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        while "ramet_requests_active 2" not in api.get("/metrics").text:
            pass
        assert server.stop() == 0
        assert b"done" in b"".join(iter(lambda: asking.recv(4096), b""))


def test_forkboxs_call_needs_no_server() -> None:
    done = ramet.Forkbox.run("echo here", timeout_ms=5000)
    assert (done.stdout, done.ok, done.duration_us > 0) == ("here\n", True, True)
    with pytest.raises(ConnectionError):
        ramet.Forkbox.run("true", socket_path="/tmp/nothing-listens-here.sock")
