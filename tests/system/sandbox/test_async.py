"""The asynchronous client over a real daemon: the same, awaited; and what a cancellation leaves, nothing."""

import asyncio
import gc

import ramet
from ramet.client import sandboxes
from ramet.client._async import client as async_client
from ramet.client._async import sandbox as async_sandbox
from ramet.client._async import streams as async_streams
from system.sandbox._repl import PATIENCE_S, PYTHON


async def ask(sandbox, line):
    await sandbox.stdin.write(f"{line}\n", timeout=PATIENCE_S)
    return (await sandbox.stdout.readline(timeout=PATIENCE_S)).decode().strip()


async def test_forks_of_forks_run_side_by_side():
    async with ramet.AsyncSandbox(command=PYTHON) as parent:
        assert await ask(parent, "exec('x = 41')") == "None"
        async with await parent.fork(8) as children:
            answers = await asyncio.gather(*[ask(one, f"x + {n}") for n, one in enumerate(children)])
            assert answers == [str(41 + n) for n in range(8)]
            grandchildren = await asyncio.gather(*[one.fork() for one in children])
            assert await asyncio.gather(*[ask(one, "x") for one in grandchildren]) == ["41"] * 8
            for one in grandchildren:
                await one.aclose()


async def test_the_lines_of_a_stream_can_be_iterated_over():
    async with ramet.AsyncSandbox(command="printf 'a\\nb'; echo c >&2") as sandbox:
        assert [line async for line in sandbox.stdout] == [b"a\n", b"b"]
        assert [line async for line in sandbox.stderr] == [b"c\n"]


async def test_a_reader_and_a_wait_go_together_when_the_wait_leaves_the_streams_alone():
    async with ramet.AsyncSandbox(command="seq 20000; exit 3") as sandbox:

        async def count():
            lines = 0
            while await sandbox.stdout.readline():
                lines += 1
            return lines

        lines, result = await asyncio.gather(count(), sandbox.wait(drain=False))
    assert (lines, result.exit_code) == (20000, 3)


async def session(name):
    """One of everything that can be waited for."""
    async with ramet.AsyncSandbox(command=PYTHON) as parent:
        await ask(parent, "exec('x = 41')")
        point = await parent.snapshot(name)
        async with await parent.fork(3) as children:
            await ask(children[0], "x")
            await children[1].kill()
        for _ in range(2):  # the second goes past the daemon, and so does a fork of it
            async with ramet.AsyncSandbox(point) as child:
                await (await child.fork()).aclose()
                child.stdin.close()
                await child.wait()
        await ramet.asnapshots.remove(point)


async def test_a_cancellation_at_any_await_leaves_nothing(monkeypatch):
    count = at = -1
    task = None

    def counted(wait):
        async def call(*words, **options):
            nonlocal count
            if asyncio.current_task() is task:
                count += 1
                if count == at:
                    task.cancel()
            return await wait(*words, **options)

        return call

    for module, name in (
        (async_client, "poll"),
        (async_client, "ready"),
        (async_client, "in_thread"),
        (async_sandbox, "poll"),
        (async_sandbox, "ready"),
        (async_streams, "ready"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    cancelled = 0
    while True:
        count, at = -1, cancelled
        task = asyncio.create_task(session(f"point-{cancelled}"))
        await asyncio.wait([task])
        gc.collect()
        async with asyncio.timeout(PATIENCE_S):
            while sandboxes.list():  # noqa: ASYNC110  the daemon sees to it
                await asyncio.sleep(0.002)
        for one in ramet.snapshots.list():
            ramet.snapshots.remove(one)
        if not task.cancelled():
            task.result()
            break
        cancelled += 1
    assert cancelled >= 16


async def test_a_cancelled_fork_leaves_the_source_unharmed_and_no_children():
    async with ramet.AsyncSandbox(command=PYTHON) as parent:
        await ask(parent, "exec('x = 41')")
        for number in range(10):
            task = asyncio.create_task(parent.fork(4))
            await asyncio.sleep(number / 1000)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().aclose()
        assert await ask(parent, "x + 1") == "42"
        async with asyncio.timeout(PATIENCE_S):
            while len(sandboxes.list()) > 1:  # noqa: ASYNC110  the daemon sees to it
                await asyncio.sleep(0.002)
