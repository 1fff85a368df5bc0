"""The calls without a client: they share one for the whole process, and for each server one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import IO, TYPE_CHECKING, Any

from ramet.client._async.client import AsyncClient
from ramet.client._chosen import chosen
from ramet.models.limits import Limits
from ramet.models.results import CommandResult

if TYPE_CHECKING:
    from ramet.client._remote import Remote
    from ramet.models.status import DaemonStatus, Pong, Report

shared = AsyncClient()


def current() -> AsyncClient:
    """The client of calls without one: of the server that was chosen, else of the user's own daemon."""
    servers = chosen()
    if not servers:
        return shared
    return of_server(servers[0]) if len(servers) == 1 else spread(servers)


def of_server(remote: Remote) -> AsyncClient:
    """The client of a server that this process has chosen."""
    found: AsyncClient | None = remote.clients.get(AsyncClient)
    if found is None:
        found = remote.clients[AsyncClient] = AsyncClient(remote=remote)
    return found


def spread(servers: Sequence[Remote]) -> AsyncClient:
    """A client of several."""
    from ramet.client._async.spread import AsyncSpread

    return AsyncSpread([of_server(one) for one in servers])


async def run(
    command: str | Sequence[str | bytes | PathLike[str]],
    *,
    timeout: float | None = None,
    stdin: bytes | str | int | IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    root: str | PathLike[str] | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    on_stdout: Callable[[bytes], Any] | None = None,
    on_stderr: Callable[[bytes], Any] | None = None,
    check: bool = False,
    encoding: str = "utf-8",
) -> CommandResult:
    """Run one command in a sandbox made for it and gone after it.

    Args:
        command: text is a line for /bin/sh; a sequence is a program and its arguments.
        timeout: seconds until everything in the sandbox is killed; by default the limit ``wall``, 300.
        stdin: text, bytes, a file or a descriptor to feed the command from; by default it reads /dev/null.
        env: variables to add to the sandbox's own. Nothing of this process's environment goes in.
        cwd: absolute, inside the sandbox; by default its home.
        root: a directory of the host to use as ``/``; writes to it stay in the sandbox.
        limits: Limits, or a mapping such as ``{"disk": "64M"}``.
        on_stdout: called with each piece of bytes as it arrives, and counted in the result all the same.
        on_stderr: as `on_stdout`.
        check: raise CommandFailed unless the command exits with 0.
        encoding: of text given as `stdin`, and of the result's text.

    Raises:
        InvalidRequest: an argument is wrong; `field` names it. Nothing was started.
        IsolationError: the sandbox could not be made; `step` and `errno` say why. Nothing ran.
        DaemonError: the daemon could not be started, or ended meanwhile.
        CommandFailed: only with `check`.
    """
    return await current().run(
        command,
        timeout=timeout,
        stdin=stdin,
        env=env,
        cwd=cwd,
        root=root,
        limits=limits,
        on_stdout=on_stdout,
        on_stderr=on_stderr,
        check=check,
        encoding=encoding,
    )


async def doctor() -> Report:
    """What this machine has of what Ramet needs, seen by the daemon, which is started if need be."""
    return await current().doctor()


async def status() -> DaemonStatus:
    """What the user's daemon and its core are doing; starts the daemon if need be."""
    return await current().status()


async def ping() -> Pong:
    """The daemon's version and pid; starts it if need be."""
    return await current().ping()


async def shutdown() -> Pong:
    """End the user's daemon, core and every sandbox. Raises DaemonLost when none is running."""
    async with AsyncClient(start=False) as client:
        return await (client if not chosen() else current()).shutdown()
