"""Field pain 10: create, kill -9, recover, again and again, and everything is as it was.

A few dozen cycles here; as many as RAMET_SOAK_CYCLES says in `make soak`.
"""

import contextlib
import os
import random
import secrets
import threading
from pathlib import Path

import pytest

import _ledger
from ramet.client import Client
from ramet.errors import DaemonLost
from ramet.native.cgroups import NOTE
from system._daemons import Own, kill_hard, none_left, wait_gone

PATIENCE_S = 50
VICTIMS = ("client", "daemon", "core", "daemon and core")
CLIENT = """
import sys, ramet
command = ["sh", "-c", "echo begun; setsid sleep 1000 & sleep 1000", sys.stdin.readline().strip()]
ramet.run(command, on_stdout=lambda _: print("begun", flush=True))
"""


def begin_elsewhere(own: Own, mark: str) -> int:
    """A run of a client in a process of its own; its pid."""
    program = own.program(CLIENT)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mark}\n".encode())
    assert program.stdout.readline() == b"begun\n"
    return program.pid


def begin_here(own: Own, mark: str) -> threading.Thread:
    """A run of a thread, which hears that its daemon was lost."""
    begun = threading.Event()

    def work() -> None:
        with Client(own.place) as client, contextlib.suppress(DaemonLost):
            client.run(
                ["sh", "-c", "echo begun; setsid sleep 1000 & sleep 1000", mark],
                on_stdout=lambda _: begun.set(),
            )

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(PATIENCE_S)
    return thread


def cycle(own: Own, victim: str) -> None:
    mark = f"mark-{secrets.token_hex(6)}"
    daemon, core = own.pids()
    if victim == "client":
        pid = begin_elsewhere(own, mark)
        kill_hard(pid)
    else:
        thread = begin_here(own, mark)
        if "daemon" in victim:
            kill_hard(daemon)
        if "core" in victim:
            kill_hard(core)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert none_left(mark)
    with Client(own.place) as client:
        assert client.run("echo recovered").stdout == "recovered\n"
    for program in own.processes:
        program.wait()
        for stream in (program.stdin, program.stdout, program.stderr):
            if stream is not None:
                stream.close()
    own.processes.clear()
    for client in own.clients:
        client.close()
    own.clients.clear()


def survive(own: Own, runtime: Path, count: int) -> None:
    """So many cycles, after which there is as much of everything as before."""
    choice = random.Random(count)

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime)

    for victim in VICTIMS:
        cycle(own, victim)
    before = _ledger.settle(look)
    files = own.entries()
    for _ in range(count):
        cycle(own, choice.choice(VICTIMS))
    assert _ledger.drift(before, look) == []
    assert own.entries() == files
    with Client(own.place) as client:
        status = client.status()
    assert (status.active, status.connections) == (0, 1)
    assert status.core is not None
    assert (status.core.sandboxes, status.core.roots) == (0, 1)


def test_cycles_of_kill_and_recover_leave_everything_as_it_was(own, runtime_directory):
    survive(own, runtime_directory, 15)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_as_many_cycles_as_asked_for_leave_everything_as_it_was(own, runtime_directory):
    survive(own, runtime_directory, int(os.environ.get("RAMET_SOAK_CYCLES", "500")))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_runs_leave_everything_as_it_was(own, runtime_directory):
    """With timeouts, failures and output among them."""

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime_directory)

    lines = (
        "true",
        "exit 3",
        "head -c 100K /dev/zero",
        "sleep 1000 & exit 0",
        "no-such-command",
        "kill -9 $$",
    )

    def work(client: Client, count: int) -> None:
        for number in range(count):
            client.run(lines[number % len(lines)], timeout=20)

    with Client(own.place) as client:
        work(client, 60)
        before = _ledger.settle(look)
        work(client, 10_000)
        assert _ledger.drift(before, look) == []


def test_mounts_and_control_groups_of_the_host_are_as_they_were(own):
    def mounts() -> list[str]:
        return Path("/proc/self/mountinfo").read_text().splitlines()

    def groups() -> list[str]:
        note = Path(own.place, NOTE)
        return note.read_text().splitlines() if note.exists() else []

    before, made = mounts(), set()
    for victim in ("daemon", "core"):
        own.pids()
        made |= {*groups()}
        cycle(own, victim)
    daemon, core = own.pids()
    made |= {*groups()}
    own.end()
    wait_gone(daemon)
    wait_gone(core)
    assert mounts() == before
    assert [group for group in made if os.path.exists(group)] == []
