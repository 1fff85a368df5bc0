"""`ramet fork --settle-secs`: children that end with this program, each with forkd's guest protocol.

forkd's Python class `Sandbox()` starts such a program, as `forkd`, and speaks to what is at FORKD_TARGET.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.cli import _errors
from ramet.cli._target import address_of, default_target
from ramet.errors import InvalidRequest, RametError

if TYPE_CHECKING:
    from ramet.client._async.sandbox import AsyncSandbox
    from ramet.models.executions import Execution
    from ramet.models.results import CommandResult
    from ramet.models.sandboxes import SandboxInfo
    from ramet.server.guests import Guest


class _Agent:
    """A sandbox of this program's own, as the guest protocol has it."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._turn = asyncio.Lock()

    async def info(self) -> SandboxInfo:
        return self._sandbox.info

    async def run(self, args: list[Any], timeout: float) -> CommandResult:
        return await self._sandbox.commands.run(args, timeout=timeout)

    async def code(self, code: str) -> Execution:
        async with self._turn:  # a kernel does one thing at a time
            return await self._sandbox.run_code(code)


def stand(tag: str, n: int, seconds: float, limits: dict[str, Any] | None, *, keep: bool) -> int:
    """Fork `tag`, and serve the children's guests until a signal, or the time is up; then all of it ends.

    `keep`: their working directories are copied to this machine's directory for such things before.
    """
    return asyncio.run(_stand(tag, n, seconds, limits, keep=keep))


async def _stand(tag: str, n: int, seconds: float, limits: dict[str, Any] | None, *, keep: bool) -> int:
    from ramet.client._async.sandbox import fork

    host, port = address_of(default_target(), "FORKD_TARGET")
    ended = asyncio.Event()
    for word in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(word, ended.set)
    async with await fork(snapshot=tag, n=n, limits=limits) as made:
        with contextlib.ExitStack() as opened:
            for number, one in enumerate(made):
                guest = await _open(_Agent(one), host, port + number)
                opened.callback(guest.close)
                print(f"{one.id} {guest.address}", flush=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
        if not keep:
            return 0
        return max([await _keep(one) for one in made])


async def _keep(child: AsyncSandbox) -> int:
    """Copy its working directory; the exit code. One that has ended meanwhile has none any more."""
    place = Path(tempfile.gettempdir(), f"ramet-fork-{child.id}")
    try:
        await child.export(place)
    except RametError as error:
        return _errors.report(error)
    print(f"{child.id} {place}", flush=True)
    return 0


async def _open(agent: _Agent, host: str, port: int) -> Guest:
    from ramet.server.guests import Guest

    try:
        return await Guest.open(agent, host, port)
    except OSError as error:
        text = f"{host}:{port} cannot be listened at: {error.strerror}"
        hint = "set it to an address of this machine, as 127.0.0.1:8888, for both programs"
        raise InvalidRequest.of("FORKD_TARGET", text, hint=hint) from None
