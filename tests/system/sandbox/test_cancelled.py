"""A client that goes amid any call of a detached sandbox: the sandbox lives on, and nothing else is left.

A call that is cancelled closes the connection that it waits on, as the kernel does for one that is killed.
"""

import asyncio
import contextlib
import gc
import inspect

import pytest

import ramet
from _stepping import cancelled_at_each_await
from ramet.client import sandboxes
from ramet.errors import InvalidRequest, WaitTimeout
from system.sandbox._repl import PATIENCE_S

ENDING = {"kill", "pause", "resume"}
"""What may end it: it is made anew for each step."""


class Stage:
    """A detached sandbox with a kernel, and what calls need of this machine."""

    def __init__(self, point, place) -> None:
        self.point = point
        self.place = place
        self.count = 0
        self.sandbox = None

    async def make(self) -> None:
        """One that stands."""
        self.close()
        self.sandbox = await ramet.AsyncSandbox(self.point, detach=True)

    async def only(self) -> None:
        """Nothing but the sandbox lives, and that does, unless the daemon does not see to it in time."""
        async with asyncio.timeout(PATIENCE_S):
            while {one.id for one in sandboxes.list()} != {self.sandbox.id}:
                gc.collect()  # what was cancelled may be in a circle
                await asyncio.sleep(0.002)

    async def settle(self) -> None:
        """What now has the id, where the daemon may still be at putting another in its place."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.only()
                self.sandbox.let_go()
                self.sandbox = await ramet.AsyncSandbox.connect(self.sandbox.id)
                await self.only()
                if self.sandbox.running:
                    return

    def new(self):
        """A name that none had before: what was cancelled may have it still."""
        self.count += 1
        return f"step-{self.count}"

    def close(self) -> None:
        if self.sandbox is not None:
            self.sandbox.let_go()
            sandboxes.kill(self.sandbox.id)


async def attached(one):
    (await one).close()


async def closed(one):
    await (await one).aclose()


async def resumed(stage):
    kept = await stage.sandbox.pause(stage.new())
    await closed(ramet.AsyncSandbox.resume(kept))


async def vain(wait):
    with pytest.raises(WaitTimeout):
        await wait


async def running(stage):
    """Code that was forked amid its run, and its end heard in the fork."""
    async with await stage.sandbox.fork() as child:
        await child.run_code("1 + 1")


async def rolled_back(stage):
    """Once more if the daemon is only now at one that was cancelled."""
    while True:
        try:
            return await stage.sandbox.rollback(stage.point)
        except InvalidRequest as error:
            if error.code != "rolled_back":
                raise
            await stage.settle()


async def logged(stage):
    async with ramet.AsyncSandbox(command=["cat"]) as one:
        (await one.logs()).close()


async def packed_and_unpacked(stage):
    data = b"".join([piece async for piece in stage.sandbox.files.download_tar("/tmp/tree")])
    await stage.sandbox.files.upload_tar(data, "/tmp/unpacked")


# Each way to wait that a sandbox has; those of single files are ways of `stat`.
CALLS = {
    "connect": lambda stage: closed(ramet.AsyncSandbox.connect(stage.sandbox.id)),
    # And aclose, which waits for none that is detached.
    "start": lambda _: closed(ramet.AsyncSandbox(command=["cat"])),
    "logs": logged,
    "fork": lambda stage: closed(stage.sandbox.fork(2)),
    "snapshot": lambda stage: stage.sandbox.snapshot(stage.new()),
    "rollback": rolled_back,
    "pause": lambda stage: stage.sandbox.pause(stage.new()),
    "resume": resumed,
    "kill": lambda stage: stage.sandbox.kill(),
    "wait": lambda stage: vain(stage.sandbox.wait(0.01)),
    "run_code": lambda stage: stage.sandbox.run_code("1 + 1"),
    "attach": running,
    "metrics": lambda stage: stage.sandbox.metrics(),
    "processes": lambda stage: stage.sandbox.processes(),
    "diff": lambda stage: stage.sandbox.diff(),
    "export": lambda stage: stage.sandbox.export(stage.place / stage.new(), "/tmp/tree"),
    "commit_to": lambda stage: stage.sandbox.commit_to(stage.sandbox),
    "commands.run": lambda stage: stage.sandbox.commands.run(["true"]),
    "commands.run fed": lambda stage: stage.sandbox.commands.run(["cat"], stdin="x", on_stdout=len),
    "files.write": lambda stage: stage.sandbox.files.write("/tmp/written", "x" * 100_000),
    "files.upload": lambda stage: stage.sandbox.files.upload(stage.place, "/tmp/uploaded"),
    "files as tar streams": packed_and_unpacked,
    "ports.connect": lambda stage: attached(stage.sandbox.ports.connect(8000)),
}


def test_every_way_to_wait_is_cancelled():
    ways = {name for name, one in vars(ramet.AsyncSandbox).items() if inspect.iscoroutinefunction(one)}
    ways |= {
        name
        for name, one in vars(ramet.AsyncSandbox).items()
        if isinstance(one, classmethod) and inspect.iscoroutinefunction(one.__func__)
    }
    # A promotion is one request, which the daemon carries out whether its client is there or not.
    assert {name for name in ways if not name.startswith("_")} - {"aclose", "promote"} <= {*CALLS}


@pytest.fixture(scope="module")
def point(runtime_directory):
    """A kernel, a server that listens, and files."""
    with ramet.Sandbox(kernel="python") as made:
        made.run_code("import socket; s = socket.create_server(('127.0.0.1', 8000))")
        made.files.write("/tmp/tree/one", "1")
        kept = made.snapshot("stepped")
    yield kept
    ramet.snapshots.remove(kept)


@pytest.mark.parametrize("name", CALLS)
async def test_a_detached_sandbox_lives_on_and_nothing_else(point, tmp_path, name):
    stage = Stage(point, tmp_path)
    (tmp_path / "file").write_text("content")
    await stage.make()

    async def clean():
        if name in ENDING:
            await stage.make()
        elif name == "rollback":
            await stage.settle()
        await stage.only()
        assert stage.sandbox.running
        for left in await stage.sandbox.commands.list():
            if left.reason is None:  # it was told to end, which takes a moment
                async with await stage.sandbox.commands.connect(left.id) as command:
                    await command.wait(timeout=PATIENCE_S)

    async def step(_):
        await CALLS[name](stage)

    try:
        # What a kill is answered may be there before it is waited for.
        assert await cancelled_at_each_await(step, clean) >= (name != "kill")
    finally:
        await stage.sandbox.commands.forget()
        stage.close()
        for number in range(1, stage.count + 1):
            with contextlib.suppress(InvalidRequest):  # nobody heard of it, so it was taken away
                ramet.snapshots.remove(f"step-{number}")
