"""A server with small bounds: what it does at each, and after it."""

import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from ramet.client import Client
from server._server import ALICE, BOB, PATIENCE_S, TOKENS, Server, refusal, running, told

CONNECTIONS = 20
ONE_STREAM = TOKENS.replace("snapshots = 1", "snapshots = 1\nstreams = 1")


@pytest.fixture(scope="module")
def small(machine: Path) -> Iterator[Server]:
    options = ["--allow-root", str(machine), "--connections", str(CONNECTIONS), "--stop-timeout", "1"]
    with running(*options, tokens=ONE_STREAM) as made:
        yield made


@pytest.fixture
def alice(small: Server) -> Iterator[httpx.Client]:
    with small.client() as client:
        yield client


def test_a_directory_that_was_allowed_becomes_a_snapshot_that_is_forked(
    alice: httpx.Client, small: Server, machine: Path
) -> None:
    body = {"tag": "machine", "kernel": f"{machine}/usr/bin/sh", "rootfs": str(machine)}
    for field, path in (("kernel", "none"), ("rootfs", "kept")):
        wrong = alice.post("/v1/snapshots", json=body | {field: f"{machine}/{path}"})
        assert refusal(wrong, 400)["field"] == field
    for field in ("kernel", "rootfs"):
        refused = refusal(alice.post("/v1/snapshots", json=body | {field: f"{machine}/.."}), 403)
        assert (refused["code"], refused["field"]) == ("forbidden", field)
    made = told(alice.post("/v1/snapshots", json=body), 201)
    assert (made["tag"], made["status"], made["bootable"]) == ("machine", "ready", True)
    # As forkd has it: no 409.
    assert refusal(alice.post("/v1/snapshots", json=body), 400)["field"] == "tag"
    (forked,) = told(alice.post("/v1/sandboxes", json={"snapshot_tag": "machine"}), 201)
    place = f"/v1/sandboxes/{forked['id']}"
    assert told(alice.post(f"{place}/exec", json={"args": ["cat", "/kept"]}), 200)["stdout"] == (
        "of the directory\n"
    )
    told(alice.delete(place), 204)
    told(alice.delete("/v1/snapshots/machine"), 204)
    with small.client(BOB) as bob:
        told(bob.post("/v1/snapshots", json=body), 201)
        assert refusal(bob.post("/v1/snapshots", json=body | {"tag": "another"}), 429)["code"] == "quota"
        told(bob.delete("/v1/snapshots/machine"), 204)


def test_a_full_disk_a_full_pipe_and_too_many_streams_have_a_status_each(small: Server) -> None:
    with small.client(BOB) as bob:
        body = {"command": ["sleep", "1000"], "limits": {"disk": "1M"}}
        (made,) = told(bob.post("/v1/sandboxes", json=body), 201)
        place = f"/v1/sandboxes/{made['id']}"
        full = bob.put(f"{place}/files/content?path=/tmp/large", content=b"x" * (2 << 20))
        assert refusal(full, 507)["code"] == "no_space"
        process = told(bob.post(f"{place}/processes", json={"command": "sleep 1000", "stdin": True}), 201)[
            "id"
        ]
        stdin = f"{place}/processes/{process}/stdin?timeout=0.2"
        assert refusal(bob.post(stdin, content=b"x" * (1 << 20)), 504)["code"] == "wait_timeout"
        stream = f"{place}/processes/{process}/stream"
        with bob.stream("GET", stream) as one:
            assert one.status_code == 200
            many = bob.get(stream)
            assert refusal(many, 429)["code"] == "quota"
            assert int(many.headers["retry-after"]) > 0
        until = time.monotonic() + PATIENCE_S
        while told(bob.get("/v1/me"), 200)["streams"]:
            assert time.monotonic() < until
        with bob.stream("GET", stream) as one:
            assert one.status_code == 200
        told(bob.delete(place), 204)


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionError:
        return b""


def _is_well(sock: socket.socket) -> bool:
    answer = b""
    while piece := _received(sock):
        answer += piece
        if answer.endswith(b'{"ok":true}'):
            return True
    return False


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_who_only_keeps_a_connection_open_makes_room_for_who_asks(small: Server, said: bytes) -> None:
    with ExitStack() as using:
        idle = [
            using.enter_context(socket.create_connection(("127.0.0.1", small.port), timeout=PATIENCE_S))
            for _ in range(CONNECTIONS)
        ]
        for one in idle:
            one.sendall(said)
            assert not said or _is_well(one)
        assert httpx.get(f"{small.url}/healthz").json() == {"ok": True}
        # Heads are waited for ten seconds; the oldest is not waited for.
        assert _received(idle[0]) == b""
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert _is_well(idle[-1])


def test_where_all_ask_one_connection_too_many_is_hung_up_on_and_the_next_is_not(small: Server) -> None:
    half = (
        f"POST /v1/run HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n"
        "content-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n"
    )
    with ExitStack() as using:

        def another() -> socket.socket:
            return using.enter_context(
                socket.create_connection(("127.0.0.1", small.port), timeout=PATIENCE_S)
            )

        for _ in range(CONNECTIONS):
            busy = another()
            busy.sendall(half.encode())
            assert _received(busy).startswith(b"HTTP/1.1 100")
        assert _received(another()) == b""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert httpx.get(f"{small.url}/healthz").json() == {"ok": True}
            return
        except httpx.TransportError:
            assert time.monotonic() < until


def test_after_a_rotation_the_audit_goes_to_the_file_of_that_name(small: Server, alice: httpx.Client) -> None:
    small.audited(alice.get("/v1/me").headers["x-request-id"])
    rotated = small.audit.rename(small.audit.with_suffix(".1"))
    small.process.send_signal(signal.SIGHUP)
    until = time.monotonic() + PATIENCE_S
    while not small.audit.exists():
        assert time.monotonic() < until
    second = alice.get("/v1/me").headers["x-request-id"]
    assert small.audited(second)["status"] == 200
    assert second not in rotated.read_text()
    assert small.audit.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each tenant host ids of its own")
def test_as_root_no_two_tenants_share_an_id_of_the_host(small: Server, alice: httpx.Client) -> None:
    ids = []
    with small.client(BOB) as bob:
        for tenant, api in (("alice", alice), ("bob", bob)):
            assert told(api.post("/v1/run", json={"command": "id -u"}), 200)["exit_code"] == 0
            with Client(str(small.data / "tenants" / tenant / "run"), start=False) as own:
                core = own.status().core
            assert core is not None
            rows = Path(f"/proc/{core.pid}/uid_map").read_text().splitlines()
            ids += [range(int(low), int(low) + int(n)) for _, low, n in map(str.split, rows)]
    ids.sort(key=lambda one: one.start)
    assert ids[0].start > 0
    assert all(one.stop <= other.start for one, other in itertools.pairwise(ids))


def test_a_stop_waits_no_longer_than_it_was_told_and_sandboxes_stay(small: Server) -> None:
    """The last of this module: the server is another one after it."""
    with small.client() as api:
        (made,) = told(api.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}), 201)
    body = json.dumps({"args": ["sleep", "1000"], "timeout_secs": 900})
    head = (
        f"POST /v1/sandboxes/{made['id']}/exec HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection(("127.0.0.1", small.port), timeout=PATIENCE_S) as asking:
        asking.sendall(head.encode())
        with small.client() as api:
            while "ramet_requests_active 2" not in api.get("/metrics").text:
                pass
        assert small.stop() == 0
    small.start()
    with small.client() as api:
        assert told(api.get(f"/v1/sandboxes/{made['id']}"), 200)["status"] == "running"
        told(api.delete(f"/v1/sandboxes/{made['id']}"), 204)
