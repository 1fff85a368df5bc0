"""forkd's guest protocol for one sandbox, on a port of this machine's loopback.

One line of JSON in, one out, and the connection ends. It has no authentication: whoever reaches the port has
the sandbox, so it is opened only when it is asked for.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from ramet.client._async.events import AsyncEvents
from ramet.errors import InvalidRequest, RametError
from ramet.server.lines import LINE_MAX, converse

if TYPE_CHECKING:
    from ramet.client._async.client import AsyncClient
    from ramet.models.executions import Execution
    from ramet.models.results import CommandResult
    from ramet.models.sandboxes import SandboxInfo

AGAIN_S = 1.0


class Agent(Protocol):
    """What the protocol asks of a sandbox."""

    async def info(self) -> SandboxInfo:
        """What is known of it."""

    async def run(self, args: list[Any], timeout: float) -> CommandResult:
        """Run a command to its end."""

    async def code(self, code: str) -> Execution:
        """Have its kernel run code."""


class Guest:
    """A listening port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def open(cls, agent: Agent, host: str = "127.0.0.1", port: int = 0) -> Guest:
        """Listen, by default on any free port. Raises OSError."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await converse(reader, writer, functools.partial(_told, agent))

        return cls(await asyncio.start_server(serve, host, port, limit=LINE_MAX))

    @property
    def address(self) -> str:
        """Host and port."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.close()


class Guests:
    """The open ports of a tenant's sandboxes, each until its sandbox ends."""

    def __init__(self, client: AsyncClient, living: Callable[[], Awaitable[set[str]]]) -> None:
        """`living`: the ids of those that do."""
        self._client = client
        self._living = living
        self._open: dict[str, Guest] = {}
        self._watching: asyncio.Task[None] | None = None

    def __contains__(self, sandbox: str) -> bool:
        return sandbox in self._open

    def address(self, sandbox: str) -> str:
        """Host and port; empty where nobody has asked for one."""
        found = self._open.get(sandbox)
        return "" if found is None else found.address

    def add(self, sandbox: str, guest: Guest) -> None:
        """Keep it until then; one that the sandbox has already stays in its place."""
        if self._open.setdefault(sandbox, guest) is not guest:
            guest.close()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def close(self, sandbox: str) -> bool:
        """Stop listening for one; whether anybody did."""
        guest = self._open.pop(sandbox, None)
        if guest is not None:
            guest.close()
        if not self._open and self._watching is not None:
            self._watching.cancel()
        return guest is not None

    def close_all(self) -> None:
        """Stop listening."""
        for sandbox in [*self._open]:
            self.close(sandbox)

    async def _watch(self) -> None:
        while True:
            try:
                async with AsyncEvents(types=["ended"], client=self._client) as events:
                    living = await self._living()
                    for sandbox in self._open.keys() - living:
                        self.close(sandbox)
                    async for event in events:
                        if event.type != "ended":  # a gap
                            break
                        self.close(event.sandbox or "")
            except RametError:
                # Another daemon may have them.
                await asyncio.sleep(AGAIN_S)


async def _told(agent: Agent, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            return {"error": "a request is an object", "code": "malformed", "exit_code": 1}
    except ValueError as error:
        return {"error": f"not JSON: {error}", "code": "malformed", "exit_code": 1}
    try:
        return await answered(agent, request)
    except RametError as error:
        return {"error": error.message, "code": error.code, "exit_code": 1}


async def answered(agent: Agent, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one line. Raises RametError."""
    action = request.get("action")
    if action == "ping":
        info = await agent.info()
        kernel = info.kernel and info.kernel.name
        return {
            "pong": True, "numpy_version": None, "pid": info.pid, "agent_lang": kernel or "none",
            "warmup_ready": kernel is not None,
        }  # fmt: skip
    if action == "exec":
        args, timeout = request.get("args"), request.get("timeout", 30)
        if not isinstance(args, list) or not args:
            raise InvalidRequest.of("args", "must be a list of words")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise InvalidRequest.of("timeout", "must be a number of seconds")
        result = await agent.run(args, timeout)
        told: dict[str, Any] = {
            "stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code,
        }  # fmt: skip
        return told | ({"error": "the command ran out of time"} if result.timed_out else {})
    if action == "eval":
        code = request.get("code")
        if not isinstance(code, str):
            raise InvalidRequest.of("code", "must be text")
        return _of_code(await agent.code(code))
    raise InvalidRequest.of("action", f"{action!r:.40} is none of ping, exec, eval")


def _of_code(done: Execution) -> dict[str, Any]:
    if done.ok:
        return {"result": done.text, "exit_code": 0}
    lines = "\n".join(done.error.traceback) if done.error else ""
    error = f"{done.error.name}: {done.error.value}" if done.error else f"the code ended: {done.reason}"
    return {"error": error, "traceback": lines, "exit_code": 1}
