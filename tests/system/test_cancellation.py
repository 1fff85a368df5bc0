"""Whoever stops waiting for a run ends it, at whatever moment, and nothing is left."""

import asyncio
import contextlib
import os
import secrets
import signal
import threading
import time

import anyio
import pytest

import ramet
from ramet.client import Client
from system._daemons import marked, none_left, wait_gone

PATIENCE_S = 20


def no_sandbox_is_left(client: Client) -> None:
    """The daemon is asked until it has heard of everything."""
    end = time.monotonic() + PATIENCE_S
    while (status := client.status()).active or (status.core and status.core.sandboxes):
        assert time.monotonic() < end, status


async def test_a_task_that_is_cancelled_ends_its_run():
    mark = f"mark-{secrets.token_hex(6)}"
    begun = asyncio.Event()
    async with ramet.AsyncClient() as client:
        command = ["sh", "-c", "echo begun; setsid sleep 1000 & sleep 1000", mark]
        task = asyncio.create_task(client.run(command, on_stdout=lambda _: begun.set()))
        await begun.wait()
        assert marked(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with Client() as client:
        no_sandbox_is_left(client)
    assert none_left(mark)


async def test_a_timeout_around_a_run_ends_it():
    mark = f"mark-{secrets.token_hex(6)}"
    async with ramet.AsyncClient() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.run(["sh", "-c", "sleep 1000; :", mark])
        with anyio.move_on_after(0.3) as scope:
            await client.run(["sh", "-c", "sleep 1000; :", mark])
        assert scope.cancelled_caught
        assert (await client.run("echo next")).stdout == "next\n"
    with Client() as client:
        no_sandbox_is_left(client)
    assert none_left(mark)


class Steps:
    """Runs a coroutine and cancels it at its n-th suspension."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def cancel(self, coroutine) -> bool:
        """Whether it was still running at that point."""
        task = asyncio.ensure_future(coroutine)
        for _ in range(self.number):
            if task.done():
                break
            await asyncio.sleep(0)
        alive = not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return alive


@pytest.mark.parametrize("stdin", [None, b"x" * 300_000])
async def test_a_run_can_be_cancelled_at_any_await(stdin):
    """After so many turns of the event loop, from before the connection to after the end."""
    mark = f"mark-{secrets.token_hex(6)}"
    before = len(os.listdir("/proc/self/fd"))
    turns, cancelled = 0, 0
    async with ramet.AsyncClient() as client:
        while turns < 400:
            run = client.run(["sh", "-c", "cat; exit 3", mark], stdin=stdin, timeout=50)
            alive = await Steps(turns).cancel(run)
            cancelled += alive
            turns += 1 if turns < 40 else 7
            if turns > 100 and not alive:
                break
        assert cancelled >= 5
        assert (await client.run("echo next")).stdout == "next\n"
    with Client() as sync:
        no_sandbox_is_left(sync)
    assert none_left(mark)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_cancelling_many_at_once_leaves_the_others_alone():
    mark = f"mark-{secrets.token_hex(6)}"
    async with ramet.AsyncClient() as client:
        doomed = [asyncio.create_task(client.run(["sh", "-c", "sleep 1000; :", mark])) for _ in range(30)]
        others = [asyncio.create_task(client.run(f"sleep 0.2; exit {number}")) for number in range(30)]
        await asyncio.sleep(0.1)
        for task in doomed:
            task.cancel()
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert [(await task).exit_code for task in others] == list(range(30))
    with Client() as sync:
        no_sandbox_is_left(sync)
    assert none_left(mark)


def test_an_interrupt_ends_the_run():
    """Control-C in the thread that waits."""
    mark = f"mark-{secrets.token_hex(6)}"

    def interrupt(_: bytes) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with Client() as client:
        with pytest.raises(KeyboardInterrupt):
            client.run(["sh", "-c", "echo begun; sleep 1000", mark], on_stdout=interrupt)
        assert none_left(mark)
        assert client.run("echo next").stdout == "next\n"
        no_sandbox_is_left(client)


INTERRUPTED = """
import gc, os, signal, sys, warnings
from ramet.client import Client
warnings.simplefilter("ignore")
mark = sys.stdin.readline().strip()
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm
hit = 0
signal.signal(signal.SIGALRM, ring)
with Client() as client:
    client.run("true")
    before = len(os.listdir("/proc/self/fd"))
    for microseconds in range(20, 6000, 60):
        try:
            signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
            client.run(["sh", "-c", "cat >/dev/null", mark], stdin=b"x" * 100_000, timeout=50)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            hit += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert client.run("echo next").stdout == "next\\n"
    gc.collect()
    print(hit, len(os.listdir("/proc/self/fd")) - before, flush=True)
    sys.stdin.read()
"""


def test_an_interrupt_at_any_moment_leaves_no_sandbox(own):
    """By a timer, from before the request is sent to after the end.

    A number that a system call has just returned can be lost to an exception before it has a name, so a few
    descriptors out of a hundred interrupts are forgiven.
    """
    mark = f"mark-{secrets.token_hex(6)}"
    own.pids()
    program = own.program(INTERRUPTED)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mark}\n".encode())
    hit, lost = map(int, program.stdout.readline().split())
    assert hit > 10
    assert lost <= 4
    assert none_left(mark)
    no_sandbox_is_left(own.client())


def test_a_client_that_is_closed_ends_its_runs(own):
    mark = f"mark-{secrets.token_hex(6)}"
    client, other = own.client(), own.client()
    begun = threading.Event()
    ends: list[BaseException] = []

    def work() -> None:
        try:
            client.run(["sh", "-c", "echo begun; sleep 1000", mark], on_stdout=lambda _: begun.set())
        except BaseException as error:  # noqa: BLE001
            ends.append(error)

    other.run("true")
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(PATIENCE_S)
    own.end()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert isinstance(ends[0], ramet.DaemonLost)
    assert none_left(mark)


def test_a_fork_of_the_client_neither_ends_nor_keeps_the_parents_run():
    """The child's copy of the connection is closed at the fork."""
    mark = f"mark-{secrets.token_hex(6)}"
    reader, writer = os.pipe()
    children: list[int] = []

    def fork_once(_: bytes) -> None:
        if not children:
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.close(writer)
                code = 1
                try:
                    with Client() as own:
                        code = own.run("exit 6").exit_code
                finally:
                    os._exit(code)
            children.append(child)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 6
            os.close(writer)

    with Client() as client:
        result = client.run(["sh", "-c", "echo begun; cat; exit 5", mark], stdin=reader, on_stdout=fork_once)
        assert result.exit_code == 5
    os.close(reader)
    assert none_left(mark)


def test_a_fork_that_outlives_its_parent_does_not_keep_the_parents_run(own):
    """The client is killed, and a child that it forked meanwhile lives on."""
    mark = f"mark-{secrets.token_hex(6)}"
    own.pids()
    source = """
import os, sys
import ramet
mark = sys.stdin.readline().strip()
def fork(_):
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    print("forked", child, flush=True)
ramet.run(["sh", "-c", "echo begun; sleep 1000", mark], on_stdout=fork)
"""
    program = own.program(source)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mark}\n".encode())
    word, child = program.stdout.readline().split()
    assert word == b"forked"
    assert marked(mark)
    program.kill()
    program.wait()
    assert none_left(mark)
    program.stdin.close()
    wait_gone(int(child))


def test_threads_and_forks_may_use_the_shared_client_together():
    results: list[int] = []

    def work(number: int) -> None:
        with Client() as client:
            results.extend(client.run(f"exit {number + turn}").exit_code - turn for turn in range(3))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            code = 99
            try:
                with Client() as client:
                    code = client.run(f"exit {number}").exit_code
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for thread in threads:
        thread.join()
    assert codes == list(range(6))
    assert sorted(results) == sorted(number for number in range(12) for _ in range(3))
