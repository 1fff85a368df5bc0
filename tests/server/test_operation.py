"""A server in hostile hands, and its end: slow and large requests, clients that go, restarts, refusals."""

import contextlib
import functools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramet
import ramet.client
from ramet.cli.main import invoke
from ramet.client import Client
from ramet.server.settings import Settings
from server._server import (
    ALICE,
    ALICE_RUNS,
    BOB,
    BUSY,
    PATIENCE_S,
    Server,
    end_tenants,
    refusal,
    running,
    told,
)

SHORT_S = 20.0
"""Of what would otherwise be ended after a minute."""


def send(server: Server, head: str, body: bytes = b"") -> socket.socket:
    asking = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    asking.sendall(head.replace("\n", "\r\n").encode() + body)
    return asking


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server, api: httpx.Client) -> None:
    large = Settings("/data").body_max + 1
    head = (
        f"POST /v1/sandboxes HTTP/1.1\nhost: x\nauthorization: Bearer {ALICE}\n"
        f"content-type: application/json\ncontent-length: {large}\n\n"
    )
    with send(server, head) as asking:
        assert asking.recv(100).startswith(b"HTTP/1.1 413")
    answer = api.post(
        "/v1/sandboxes", content=iter([b"x" * (1 << 20)] * 3), headers={"content-type": "application/json"}
    )
    assert refusal(answer, 413)["code"] == "too_large"


def test_who_asks_too_often_is_told_to_wait(server: Server) -> None:
    with server.client(BUSY) as api:
        answers = [api.get("/version") for _ in range(50)]
    refused = [one for one in answers if one.status_code == 429]
    assert refusal(refused[0], 429)["code"] == "rate"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert answers[0].status_code == 200


@pytest.mark.parametrize(
    "path, body",
    [
        ("/exec", {"args": ["sleep", "1000"], "timeout_secs": 900}),
        ("/eval", {"code": "import time; time.sleep(1000)"}),
        ("/fork", {"n": 2}),
        ("/branch", {"tag": "gone"}),
    ],
)
def test_a_client_that_goes_in_the_middle_of_a_call_leaves_the_sandbox_usable(
    server: Server, api: httpx.Client, *, path: str, body: object
) -> None:
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}), 201)[0]["id"]
    text = json.dumps(body)
    head = (
        f"POST /v1/sandboxes/{made}{path} HTTP/1.1\nhost: x\nauthorization: Bearer {ALICE}\n"
        f"content-type: application/json\ncontent-length: {len(text)}\n\n{text}"
    )
    send(server, head).close()
    until = time.monotonic() + PATIENCE_S
    words = {"args": ["sh", "-c", "ls /proc | grep -c '^[0-9]'"]}
    assert told(api.post(f"/v1/sandboxes/{made}/exec", json=words), 200)["exit_code"] == 0
    if path == "/eval":
        told(api.post(f"/v1/sandboxes/{made}/interrupt"), 204)
    assert told(api.post(f"/v1/sandboxes/{made}/eval", json={"code": "6 * 7"}), 200)["result"] == "42"
    while api.get("/v1/sandboxes").json()[-1]["parent"] == made and time.monotonic() < until:
        told(api.delete(f"/v1/sandboxes/{api.get('/v1/sandboxes').json()[-1]['id']}"), 204)
    told(api.delete(f"/v1/sandboxes/{made}"), 204)
    api.delete("/v1/snapshots/gone")


def test_clients_that_go_in_the_middle_of_any_call_leave_nothing_open(
    server: Server, api: httpx.Client, shell: str
) -> None:
    place = f"/v1/sandboxes/{shell}"
    process = told(api.post(f"{place}/processes", json={"command": "sleep 1000"}), 201)["id"]
    calls = [
        ("POST", "/v1/sandboxes", {"command": "sleep 1000", "names": ["left-behind"]}),
        ("POST", "/v1/run", {"command": "sleep 1000"}),
        ("POST", f"{place}/ping", {}),
        ("POST", f"{place}/exec", {"args": ["sleep", "1000"], "timeout_secs": 1000}),
        ("POST", f"{place}/processes", {"command": "true"}),
        ("GET", f"{place}/processes/{process}?wait=1000", None),
        ("GET", f"{place}/processes/{process}/stream", None),
        ("GET", f"{place}/files/content?path=/dev/zero", None),
        ("PUT", f"{place}/files/content?path=x", {"half": "a body"}),
        ("GET", "/v1/events?wait=20", None),
        ("GET", "/v1/sandboxes", None),
        ("GET", f"{place}/diff", None),
        ("POST", "/v1/templates", {"name": "left-behind", "warm": "import time; time.sleep(1000)"}),
        ("POST", f"{place}/fork", {"children": [{"name": "left-behind-too"}]}),
        ("POST", f"{place}/branch", {"tag": "left-behind"}),
        ("POST", "/v1/workspaces", {"name": "left-behind", "snapshot_tag": "bash"}),
        ("POST", f"{place}/terminals", {"command": "true"}),
        ("POST", "/v1/snapshots/bash/compact", {"to": "left-behind-copy"}),
        ("GET", "/v1/lineage", None),
        ("GET", f"{place}/patch", None),
    ]
    for method, path, body in calls:
        text = "" if body is None else json.dumps(body)
        head = f"{method} {path} HTTP/1.1\nhost: x\nauthorization: Bearer {ALICE}\n"
        sized = f"content-type: application/json\ncontent-length: {len(text)}\n" if text else ""
        # As soon as it has been asked, and with half of its body; then nothing is begun.
        send(server, f"{head}{sized}\n{text}").close()
        if text:
            send(server, f"{head}{sized}\n{text[: len(text) // 2]}").close()
    until = time.monotonic() + PATIENCE_S
    while told(api.get("/v1/me"), 200)["streams"] or process_count(api, shell) > 1 or active(api) > 1:
        assert time.monotonic() < until
    assert told(api.get(place), 200)["status"] == "running"
    # Who has gone may have gone before anything was begun, and a template may not be built yet.
    assert api.delete("/v1/workspaces/left-behind").status_code in {204, 404}
    for one in told(api.get("/v1/sandboxes"), 200):
        if one["name"] in {"left-behind", "left-behind-too"}:
            told(api.delete(f"/v1/sandboxes/{one['id']}"), 204)
    for tag in ("left-behind", "left-behind-copy"):
        assert api.delete(f"/v1/snapshots/{tag}").status_code in {204, 404}
    told(api.delete(f"{place}/processes/{process}"), 204)


def active(api: httpx.Client) -> int:
    """Requests under way, this one among them."""
    lines = api.get("/metrics").text.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("ramet_requests_active")))


def process_count(api: httpx.Client, sandbox: str) -> int:
    found = told(api.get(f"/v1/sandboxes/{sandbox}/processes"), 200)
    return sum(one["status"] == "running" for one in found)


def test_who_has_no_token_or_none_that_is_known_is_told_so(server: Server) -> None:
    for headers in ({}, {"authorization": "Bearer none-that-is-known"}, {"authorization": f"Basic {ALICE}"}):
        with server.client(None) as api:
            answer = api.get("/v1/me", headers=headers)
        assert refusal(answer, 401)["code"] == "unauthenticated"
        assert answer.headers["www-authenticate"] == "Bearer"


def test_notes_that_are_not_what_was_written_are_not_passed_over(server: Server) -> None:
    token = "broken-token-0123456789"
    place = server.data / "tenants/broken"
    place.mkdir(0o700)
    for text in ("{", '[{"name": "of nothing else"}]'):
        (place / "workspaces.json").write_text(text)
        with (
            server.with_tokens(f'[tenants.broken]\ntokens = [{{ token = "{token}" }}]'),
            server.client(token) as api,
        ):
            assert refusal(api.get("/v1/workspaces"), 500)["code"] == "notes_unusable"
    (place / "workspaces.json").unlink()


def test_a_server_that_comes_back_finds_every_sandbox_with_its_state(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as server:
        with server.client() as api:
            made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python", "n": 2}), 201)
            body = {"name": "desk", "snapshot_tag": "python"}
            desk = told(api.post("/v1/workspaces", json=body), 201)["live_sandbox_id"]
            known = [one["id"] for one in made] + [desk]
            for number, one in enumerate(known):
                told(api.post(f"/v1/sandboxes/{one}/eval", json={"code": f"x = {number}"}), 200)
            headers = {"idempotency-key": "made-before"}
            keyed = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}, headers=headers), 201)
            place = f"/v1/sandboxes/{known[0]}/processes"
            command = {"command": "echo before; read x; echo after", "stdin": True}
            process = told(api.post(place, json=command), 201)["id"]
        with server.client(BOB) as other:
            told(other.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}), 201)
        server.stop(signal.SIGKILL)
        server.start()
        with server.client() as api:
            assert {one["id"] for one in told(api.get("/v1/sandboxes"), 200)} == {*known, keyed[0]["id"]}
            for number, one in enumerate(known):
                answer = told(api.post(f"/v1/sandboxes/{one}/eval", json={"code": "x"}), 200)
                assert answer["result"] == str(number)
            again = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}, headers=headers), 201)
            assert again[0]["id"] == keyed[0]["id"]
            another = api.post("/v1/sandboxes", json={"snapshot_tag": "bash"}, headers=headers)
            assert refusal(another, 409)["code"] == "idempotency_key"
            another = api.post(f"/v1/sandboxes/{known[0]}/fork", json={}, headers=headers)
            assert refusal(another, 409)["code"] == "idempotency_key"
            told(api.post(f"{place}/{process}/stdin?eof=true", content=b"\n"), 204)
            ended = told(api.get(f"{place}/{process}?wait=60"), 200)
            assert ended["result"]["stdout"] == "before\nafter\n"
            assert told(api.get("/v1/workspaces/desk"), 200)["status"] == "running"
            # bob has not asked this server for anything: it empties what those before it left, too.
            monkeypatch.setenv("RAMET_TOKEN", ALICE)
            assert invoke(["drain", "--url", server.url, "--deadline", "0", "--json"]) == 0
            assert json.loads(capfd.readouterr().out) == {"ended": 5}
            assert invoke(["drain", "--url", server.url]) == 0
            assert capfd.readouterr().out == "the server is empty: no sandboxes ended at the deadline\n"
            refused = api.post("/v1/run", json={"command": "true"})
            assert refusal(refused, 503)["code"] == "draining"
        assert server.stop() == 0


def test_what_a_killed_server_left_out_of_a_request_is_made_when_that_comes_again() -> None:
    asked = ("/v1/sandboxes", {"command": ["sleep", "1000"]})
    with running() as server:
        with server.client() as api:
            parent = told(api.post(asked[0], json=asked[1]), 201)[0]["id"]
            told(api.post(f"/v1/sandboxes/{parent}/branch", json={"tag": "begun"}), 201)
            calls = {
                "spawned": ("/v1/sandboxes", {"snapshot_tag": "begun", "n": 3, "per_child_netns": True}),
                "forked": (f"/v1/sandboxes/{parent}/fork", {"n": 3}),
            }

            def ask(key: str) -> list[dict[str, Any]]:
                path, body = calls[key]
                answer = told(api.post(path, json=body, headers={"idempotency-key": key}), 201)
                return answer["children"] if isinstance(answer, dict) else answer

            spawned, forked = ask("spawned"), ask("forked")
            server.stop(signal.SIGKILL)
            # As if it had been killed before it came to them.
            with Client(str(server.data / "tenants/alice/run"), start=False) as own:
                for one in (spawned[1], forked[1]["sandbox"]):
                    ramet.client.sandboxes.kill(one["id"], client=own)
            server.start()
        with server.client() as api:
            again = ask("spawned")
            assert [one["netns"] for one in again] == [one["netns"] for one in spawned]
            assert [one["id"] == old["id"] for one, old in zip(again, spawned, strict=True)] == [
                True, False, True,
            ]  # fmt: skip
            # What is made of it now would be of another instant.
            rows = ask("forked")
            assert [row.get("sandbox", {}).get("id") for row in rows] == [
                forked[0]["sandbox"]["id"], None, forked[2]["sandbox"]["id"],
            ]  # fmt: skip
            assert rows[1]["error"]["code"] == "unfinished"


@pytest.mark.parametrize(
    "options, code, word",
    [
        (["--deadline", "soon"], 2, "deadline"),
        (["--deadline", "2d"], 2, "deadline"),
        (["--deadline", "86401"], 2, "86400"),
        (["--url", "ftp://here"], 2, "url"),
        (["--url", "http://here:port"], 2, "url"),
        (["--url", "http://127.0.0.1:1"], 125, "127.0.0.1:1"),
        (["--socket", "/nothing/here"], 125, "/nothing/here"),
        (["--token-file", "/nothing/here"], 2, "token-file"),
        (["--token-file", "/dev/null"], 2, "token-file"),
        (["--tls-ca", "/x"], 2, "https"),
        (["--url", "https://here", "--tls-ca", "/x"], 2, "tls-ca"),
    ],
)
def test_a_server_is_not_drained_with_what_is_wrong(
    capfd: pytest.CaptureFixture[str], options: list[str], code: int, word: str
) -> None:
    assert invoke(["drain", *options]) == code
    lines = capfd.readouterr().err.splitlines()
    assert word in lines[0]
    assert len(lines) == 1


def test_only_an_administrator_drains_a_server(
    server: Server, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{ALICE_RUNS}\n")
    assert invoke(["drain", "--url", server.url, "--token-file", str(token)]) == 125
    assert "admin" in capfd.readouterr().err
    assert invoke(["drain", "--url", server.url]) == 125
    assert "token" in capfd.readouterr().err


@pytest.mark.parametrize("said", ["FOO /healthz HTTP/1.1\nhost: x\n\n", "no request at all\n\n"])
def test_what_is_no_request_is_told_so_as_json(server: Server, said: str) -> None:
    with send(server, said) as asking:
        head, _, body = b"".join(iter(lambda: asking.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"content-length: {len(body)}" in head.decode()
    assert json.loads(body)["code"] == "malformed"


def test_every_line_of_the_log_is_json_whoever_wrote_it() -> None:
    source = """
import logging
from ramet.server import serve
serve._write_logs_as_json()
logging.getLogger("uvicorn.error").warning("a client is wrong")
try:
    raise ValueError("inside")
except ValueError:
    logging.getLogger("uvicorn.error").exception("a defect\\n")
logging.getLogger("asyncio").error("of the loop")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(one["event"], one["logger"], one["level"]) for one in lines] == [
        ("a defect", "uvicorn.error", "error"), ("of the loop", "asyncio", "error"),
    ]  # fmt: skip
    assert "ValueError: inside" in lines[0]["exception"]


def test_a_head_without_end_is_not_read_on(server: Server) -> None:
    with send(server, "GET /healthz HTTP/1.1\nhost: x\nendless: ") as asking, pytest.raises(ConnectionError):
        asking.sendall(b"a" * (16 << 20))


def test_over_tls_half_a_head_and_half_a_body_are_not_waited_for(tmp_path: Path) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
         "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
         str(tmp_path / "key"), "-out", str(tmp_path / "cert")],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    context = ssl.create_default_context(cafile=str(tmp_path / "cert"))
    path = f"/tmp/ramet-slow-{os.getpid()}.sock"
    options = ["--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key"), "--socket", path]
    body = (
        f"POST /v1/run HTTP/1.1\nhost: x\nauthorization: Bearer {ALICE}\n"
        "content-type: application/json\ncontent-length: 100\n\n{"
    )
    with running("--head-timeout", "1", "--body-timeout", "1", *options) as server:
        with contextlib.ExitStack() as opened:  # all at once: each is kept for a second
            silent = []
            for part in (b"", b"\x16\x03\x01\x02\x00"):
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=SHORT_S)
                silent.append(opened.enter_context(plain))
                plain.sendall(part)
            asked = []
            for half in ("GET /healthz HTTP/1.1\nhost:", "", body):
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
                opened.enter_context(plain)
                asking = opened.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
                asked.append(asking)
                asking.sendall(half.replace("\n", "\r\n").encode())
            assert [plain.recv(4096) for plain in silent] == [b"", b""]
            answers = [b"".join(iter(functools.partial(one.recv, 4096), b"")) for one in asked]
        for answer, code in zip(answers, ("slow_head", "slow_head", "slow_body"), strict=True):
            assert answer.startswith(b"HTTP/1.1 408")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == code
        # Nobody else is kept waiting; without TLS nobody is heard; the socket is its owner's alone.
        transport = httpx.HTTPTransport(uds=path, verify=context)
        with httpx.Client(transport=transport, base_url="https://127.0.0.1") as api:
            told(api.get("/healthz"), 200)
            refusal(api.get("/version"), 401)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.url}/healthz")
        with (
            ramet.connect(server.url, ALICE, select=False) as client,
            pytest.raises(ramet.DaemonLost) as plain_one,
        ):
            client.ping()
        assert plain_one.value.hint == "with TLS its address begins with https"
        place = f"https://127.0.0.1:{server.port}"
        with ramet.connect(place, ALICE, ca=str(tmp_path / "cert"), select=False) as client:
            assert client.ping().pid > 0
        with ramet.connect(place, ALICE, select=False) as client, pytest.raises(ramet.DaemonLost) as foreign:
            client.ping()
        assert foreign.value.code == "server_unverified"
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not os.path.lexists(path)


@pytest.mark.parametrize(
    "options, word",
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "/nothing/here"], "cannot be read"),
        (["--tls-cert", "/x"], "--tls-key"),
        (["--no-tcp"], "socket"),
        (["--socket", "/etc/passwd"], "no socket"),
        (["--audit-log", "/nothing/here"], "audit-log"),
        (["--port", "70000"], "70000"),
    ],
)
def test_it_does_not_start_with_what_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    assert invoke(["serve", "--port", "0", "--data", str(tmp_path / "d"), *options]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert word in lines[0]
    assert len(lines) == 1


def test_other_machines_are_let_in_only_where_limits_hold(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_CGROUPS", "none")
    tokens = tmp_path / "tokens"
    tokens.write_text(BUSY)
    tokens.chmod(0o600)
    words = ["serve", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "d")]
    try:
        assert invoke([*words, "--token-file", str(tokens)]) == 125
    finally:
        end_tenants(tmp_path / "d")
    assert "no cgroup enforces memory and cpus here" in capfd.readouterr().err


def test_a_sandbox_lives_while_something_is_asked_of_it_and_then_for_its_time(api: httpx.Client) -> None:
    body = {"command": ["sleep", "1000"], "ttl": 3, "names": ["short-lived"]}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]["id"]
    words = {"args": ["sh", "-c", "sleep 4; echo lived"]}
    assert told(api.post("/v1/sandboxes/short-lived/exec", json=words), 200)["stdout"] == "lived\n"
    until = time.monotonic() + PATIENCE_S
    while (now := told(api.get(f"/v1/sandboxes/{made}?ended=true"), 200))["status"] == "running":
        assert time.monotonic() < until
    assert now["note"] == "nobody asked for it in 3 s"
    refusal(api.post(f"/v1/sandboxes/{made}/exec", json=words), 404)
