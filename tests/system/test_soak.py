"""Random work, and whoever may die dying at random moments: nothing is left, and what comes next works.

The short versions are for every day; `make soak` runs the long ones.
"""

import contextlib
import gc
import json
import os
import random
import time
from pathlib import Path

import pytest

import _ledger
from ramet.client import sandboxes, snapshots
from ramet.errors import InvalidRequest
from system._daemons import Own, kill_hard, memory

PATIENCE_S = 50.0
DRIFT_S = 20.0
KEPT_LOGS = 256
CLIENT = Path(__file__).with_name("_soaking.py").read_text()
VICTIMS = ("client", "daemon", "core", "daemon and core", "client and daemon")
LONG = float(os.environ.get("RAMET_SOAK_SECONDS", "60"))
KILLS = int(os.environ.get("RAMET_SOAK_KILLS", "200"))


def begin(own: Own, seed: int, seconds: float, threads: int):
    program = own.program(CLIENT, str(seed), str(seconds), str(threads))
    first = program.stdout.readline()
    assert first == b"begun\n", program.stderr.read()
    return program


def finish(program, patience: float) -> dict[str, dict[str, int]]:
    """What a client says at its end; it has to be fine."""
    out, err = program.communicate(timeout=patience)
    assert program.returncode == 0, err.decode()
    return json.loads(out)


def unexpected(told: dict[str, dict[str, int]]) -> list[str]:
    return [what for what in told["refused"] if what.startswith("unexpected")]


def clear(own: Own) -> None:
    """Take away what was kept on purpose: detached sandboxes, and snapshots whose maker was killed."""
    with own.client() as client:
        assert client.run("echo next").stdout == "next\n"
        for one in sandboxes.list(client=client):
            if one.detached:
                sandboxes.kill(one.id, client=client)
        for one in snapshots.list(client=client):
            with contextlib.suppress(InvalidRequest):  # the daemon takes away what nobody heard of
                snapshots.remove(one, client=client)
        assert snapshots.list(client=client) == ()
        end = time.monotonic() + PATIENCE_S
        while left := sandboxes.list(client=client):
            assert time.monotonic() < end, [one.to_dict() for one in left]
            time.sleep(0.01)
    own.clients.clear()
    own.processes.clear()
    gc.collect()


def die(own: Own, choice: random.Random, victim: str, threads: int) -> None:
    """Work, and at a random moment the end of somebody."""
    daemon, core = own.pids()
    program = begin(own, choice.randrange(1 << 30), 0.5, threads)
    time.sleep(choice.random() * 0.4)
    if "client" in victim:
        kill_hard(program.pid)
    if "daemon" in victim:
        kill_hard(daemon)
    if "core" in victim:
        kill_hard(core)
    if "client" in victim:
        for stream in (program.stdin, program.stdout, program.stderr):
            stream.close()
        program.wait()
    else:
        told = finish(program, PATIENCE_S)
        assert unexpected(told) == [], (victim, told)


def soak_kills(own: Own, runtime: Path, count: int, threads: int) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    choice = random.Random(seed)

    def look() -> _ledger.Record:
        _ledger.reap_adopted()
        return _ledger.observe(runtime)

    before = _ledger.settle(look)
    for number in range(count):
        victim = choice.choice(VICTIMS)
        die(own, choice, victim, threads)
        clear(own)
        own.end()
        found = _ledger.drift(before, look, deadline=DRIFT_S)
        assert found == [], (number, victim, found)
        assert own.entries() == set()


def soak_clients(own: Own, runtime: Path, seconds: float, programs: int, threads: int) -> None:
    def look() -> _ledger.Record:
        return _ledger.observe(runtime)

    daemon, core = own.pids()
    marks = []
    for _ in range(3):
        running = [begin(own, 1000 * number + len(marks), seconds / 3, threads) for number in range(programs)]
        for program in running:
            told = finish(program, seconds + PATIENCE_S)
            assert told["refused"] == {}, told
            assert sum(told["done"].values()) > 0
        clear(own)
        with contextlib.closing(own.client()) as client:
            client.run("true")
        sizes = [memory(pid, "VmRSS") for pid in (daemon, core)]
        # The logs of commands that have ended are kept for a while, of no more than 256.
        assert _ledger.links(f"/proc/{core}/fd").count(_ledger.KEPT_LOG) <= KEPT_LOGS
        marks.append((sizes, _ledger.settle(look)))
    _, (middle, before), (last, _) = marks
    # What core made ahead for a root that is out of use it keeps for a second.
    assert _ledger.drift(before, look, deadline=DRIFT_S) == []
    assert own.pids() == (daemon, core)
    for name, old, new in zip(("daemon", "core"), middle, last, strict=True):
        assert new <= old + old // 10 + (4 << 20), f"{name}: {old} -> {new}"


def test_whoever_dies_at_a_random_moment_leaves_nothing(own, runtime_directory):
    soak_kills(own, runtime_directory, 2, 2)


def test_clients_at_once_with_random_work_leave_everything_as_it_was(own, runtime_directory):
    soak_clients(own, runtime_directory, 1.5, 2, 2)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_deaths_at_random_moments_leave_nothing(own, runtime_directory):
    soak_kills(own, runtime_directory, KILLS, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_clients_for_a_minute_leave_everything_as_it_was(own, runtime_directory):
    soak_clients(own, runtime_directory, LONG, 5, 10)
