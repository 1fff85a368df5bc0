"""Forks through a tunnel: those that the daemon makes, and those that go past it, are told alike."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import ramet
from ramet.client import Client, fork, sandboxes, snapshots
from server._server import ALICE_RUNS, BOB, Server

PATIENCE_S = 60.0
SLEEPS = "print('on', flush=True); import time; time.sleep(1000)"


@pytest.fixture(scope="module")
def alice(server: Server) -> Iterator[Client]:
    """A client of a server that has forked the template before: the second time it asks for a lane."""
    with ramet.connect(server.url, ALICE_RUNS, select=False) as client:
        for _ in range(2):
            ramet.Sandbox("python", client=client).close()
        yield client


@contextmanager
def stopped_daemon(server: Server, tenant: str) -> Iterator[None]:
    """Have a tenant's daemon stand still."""
    with Client(str(server.data / "tenants" / tenant / "run"), start=False) as own:
        pid = own.ping().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_was_forked_before_is_forked_and_ended_without_the_daemon(server: Server, alice: Client):
    with stopped_daemon(server, "alice"):
        with ramet.Sandbox("python", metadata={"of": "it"}, client=alice) as sandbox:
            heard: list[bytes] = []

            def hear(chunk: bytes) -> None:
                heard.append(chunk)
                sandbox.interrupt()

            with ThreadPoolExecutor(1) as pool:
                late = pool.submit(sandbox.run_code, SLEEPS, on_stdout=hear).result(PATIENCE_S)
            assert (heard, late.error and late.error.name) == ([b"on\n"], "KeyboardInterrupt")
            assert sandbox.run_code("6 * 7").text == "42"
        many = fork(snapshot="python", n=70, client=alice)
        assert len({one.id for one in many}) == 70
        many[0].kill()
        assert many[0].wait(PATIENCE_S).reason == "killed"
        assert many[-1].run_code("1 + 1").text == "2"
        ids = {one.id for one in many}
    # It hears of all of them.
    assert {one.id for one in sandboxes.list(client=alice)} & ids == ids - {many[0].id}
    many.close()


def test_a_live_fork_is_of_its_parent_as_it_is_now(alice: Client):
    with ramet.Sandbox("python", client=alice) as parent:
        kept = parent.snapshot("tunnelled")
        for turn in range(3):
            parent.run_code(f"turn = {turn}")
            with parent.fork(2, metadata={"turn": str(turn)}) as children:
                assert [one.run_code("turn").text for one in children] == [str(turn)] * 2
                found = {one.id: one for one in sandboxes.list(client=alice)}
                for one in children:
                    assert found[one.id] == one.info
                    assert (one.info.parent, one.info.epoch) == (parent.id, parent.info.epoch + 1)
                    assert one.info.metadata == {"turn": str(turn)}
                nodes = {one.key: one for one in sandboxes.lineage(client=alice).nodes}
                assert {nodes[one.id].above for one in children} == {parent.id}
            if turn == 1:
                parent.rollback(kept)
        with parent.fork(detach=True, ttl=60) as detached:
            detached.let_go()
        again = ramet.Sandbox.connect(detached.id, client=alice)
        assert again.run_code("turn").text == "2"
        again.kill()
    snapshots.remove("tunnelled", client=alice)


def test_another_snapshot_of_the_same_name_is_forked_for_all_numbers(alice: Client):
    for content in ("first", "second"):
        with ramet.Sandbox("python", client=alice) as source:
            source.run_code(f"content = {content!r}")
            source.snapshot("same-name")
        try:
            for _ in range(2):
                ramet.Sandbox("same-name", client=alice).close()
            seeds = [1, 1, 2]
            code = "import random; content, random.random()"
            with fork(snapshot="same-name", n=3, seed=seeds, client=alice) as children:
                told = [one.run_code(code).text or "" for one in children]
            assert all(content in text for text in told)
            assert told[0] == told[1] != told[2]
        finally:
            snapshots.remove("same-name", client=alice)


def test_what_goes_past_the_daemon_counts_and_is_noted(server: Server):
    with ramet.connect(server.url, BOB, select=False) as bob:
        ramet.Sandbox("python", client=bob).close()
        before = server.audit.stat().st_size
        with fork(snapshot="python", n=2, client=bob), pytest.raises(ramet.RametError) as full:
            ramet.Sandbox("python", client=bob).start()
        assert full.value.code == "quota"
    with server.audit.open() as log:
        log.seek(before)
        assert log.read().count('"sandbox.fork"') == 2
