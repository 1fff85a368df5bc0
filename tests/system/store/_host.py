"""A daemon's engine without its socket: a core of one's own, sandboxes in it, and a store on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from ramet._descriptors import close_all
from ramet.engine.cores import Core, Cores, Settings
from ramet.engine.standing import Sandbox
from ramet.models.creation import CreateRequest
from ramet.models.forks import ForkRequest
from ramet.models.runs import Python
from ramet.models.snapshots import Snapshot, SnapshotRequest

DEADLINE_S = 30.0
REPL = """
import sys
names = {}
for line in sys.stdin:
    try:
        try:
            answer = repr(eval(line, names))
        except SyntaxError:
            exec(line, names)
            answer = "ok"
    except BaseException as error:
        answer = repr(error)
    print(answer, flush=True)
"""


@dataclass
class Repl:
    """A Python that answers one line with one line."""

    sandbox: Sandbox
    streams: list[int]
    _buffer: bytearray = field(default_factory=bytearray)

    def ask(self, line: str) -> str:
        """What it says to a line."""
        os.write(self.streams[0], line.encode() + b"\n")
        end = time.monotonic() + DEADLINE_S
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.streams[1]], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no answer to {line!r}"
            data = os.read(self.streams[1], 65536)
            assert data, (bytes(self._buffer), os.read(self.streams[2], 65536))
            self._buffer += data
        answer, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return answer.decode()

    def close(self) -> None:
        """Close our ends."""
        close_all(self.streams)
        self.streams.clear()


class Host:
    """One core at a time; what is saved outlives it."""

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.repls: list[Repl] = []

    async def core(self) -> Core:
        """The running core."""
        return await self.cores.ensure()

    async def repl(self) -> Repl:
        """A Python in a sandbox of its own."""
        python = Python(sys.executable, sys.prefix, sys.base_prefix)
        request = CreateRequest.of(["python3", "-c", REPL], python=python)
        sandbox, channel = await self.cores.sandboxes.create(request)
        repl = self._kept(sandbox, channel.take_ours())
        assert repl.ask("0") == "0"  # it has started
        return repl

    async def snapshot(self, repl: Repl, name: str) -> Snapshot:
        """Keep its state."""
        return await self.cores.sandboxes.snapshot(SnapshotRequest.of(repl.sandbox.id, name))

    async def fork(self, of: Repl | str) -> Repl:
        """One child of a running one, or of a snapshot."""
        made: list[Repl] = []
        names = {"snapshot": of} if isinstance(of, str) else {"sandbox": of.sandbox.id}
        report = await self.cores.sandboxes.fork(
            ForkRequest.of(**names),
            lambda _number, sandbox, channel: made.append(self._kept(sandbox, channel.take_ours())),
            lambda: True,
        )
        assert report.errors == (), report.errors
        return made[0]

    def _kept(self, sandbox: Sandbox, streams: list[int]) -> Repl:
        self.repls.append(Repl(sandbox, streams))
        return self.repls[-1]


@contextlib.asynccontextmanager
async def host(store: Path) -> AsyncIterator[Host]:
    """Everything but the store is gone afterwards, as after a reboot."""
    with tempfile.TemporaryDirectory(prefix="ramet-host-", dir="/tmp") as place:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        log = os.open(f"{place}/core.log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            async with asyncio.TaskGroup() as tasks:
                settings = Settings(directory, place, log, 1000, 2, (place,), data=str(store))
                cores = Cores(settings, tasks.create_task, lambda *_, **__: None)
                made = Host(cores)
                try:
                    yield made
                finally:
                    for repl in made.repls:
                        repl.close()
                    await cores.close()
        finally:
            os.close(directory)
            os.close(log)
