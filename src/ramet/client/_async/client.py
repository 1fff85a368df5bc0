"""A client of the user's daemon.

It holds connections, one operation at a time on each, and starts the daemon on demand.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from ramet._descriptors import close_all
from ramet.client._backends._async import deliver, in_thread, poll
from ramet.client._exchange import Connection, Exchange, Link, Made, Peer, Stale, keep
from ramet.client._start import absolute, connect, interpreter, start_daemon
from ramet.client._streams import Source, check_output
from ramet.errors import DaemonLost
from ramet.models.limits import Limits
from ramet.models.operations import DaemonStatus, Pong, Report, RunRequest
from ramet.models.results import CommandResult
from ramet.wire.places import runtime_path

if TYPE_CHECKING:
    from ramet.client._commands import CoreLink
    from ramet.client._lanes import Lanes

# Core ends a command at its deadline; a daemon that does not say so within this time is beyond help.
PATIENCE_S = 30.0
ATTEMPTS = 3
# A command that is done by then costs one wakeup; one that writes more than a pipe holds waits so long once.
QUIET_S = 0.004
ALARM_S = 0.003


def _idempotent(operation: str) -> bool:
    from ramet.models.operations import OPERATIONS

    return OPERATIONS[operation].idempotent


class AsyncClient:
    """Speaks to the user's daemon, which is started when the first request needs it.

    Safe to share between threads and event loops. Closing it ends the runs that are under way on it.
    """

    def __init__(self, runtime_dir: str | None = None, *, start: bool = True) -> None:
        """Make a client; nothing is connected or started yet.

        Args:
            runtime_dir: where the daemon is met; by default the user's own place.
            start: start a daemon when there is none; else a request raises DaemonLost.
        """
        self._runtime_dir = runtime_dir
        self._start = start
        # Each operation on it is atomic; a lock could be left locked by a fork of a threaded program.
        self._idle: list[Connection] = []
        self._lanes: Lanes | None = None
        self._core_links: list[CoreLink] = []
        self._ran = False
        self.templates: dict[str, str] = {}
        """Built-in templates that were seen to be there: the names of their snapshots."""

    @property
    def runtime_dir(self) -> str | None:
        """Where the daemon is met; None: in the user's own place."""
        return self._runtime_dir

    async def run(
        self,
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
        """Run one command in a sandbox of its own; arguments and errors are those of `ramet.run`."""
        streams = (1, 2) if stdin is None else (0, 1, 2)
        check_output(encoding, {"on_stdout": on_stdout, "on_stderr": on_stderr})
        request = RunRequest.of(
            command,
            timeout=timeout,
            env=env,
            cwd=cwd,
            root=absolute(root),
            limits=limits,
            python=interpreter(),
            streams=streams,
        )
        result = await self.run_request(
            request, stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr, encoding=encoding
        )
        return result.check() if check else result

    async def run_request(
        self,
        request: RunRequest,
        *,
        stdin: bytes | str | int | IO[Any] | None = None,
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
        encoding: str = "utf-8",
    ) -> CommandResult:
        """Carry out a request that is made and checked already; else as `run`."""
        for _ in range(ATTEMPTS):
            source = None if stdin is None else Source(stdin, encoding)
            link = await self._link(request)
            exchange = Exchange(link, request, source, callbacks=(on_stdout, on_stderr), encoding=encoding)
            try:
                await self._drive(exchange, request.limits.wall + PATIENCE_S)
                self._ran = True
                return exchange.result()
            except Stale:
                if source is not None and source.consumed:
                    break
            finally:
                exchange.close()
                self._give_back(link)
        raise DaemonLost("daemon_lost", "the daemon ends whenever it is asked")

    async def doctor(self) -> Report:
        """What this machine has of what Ramet needs, seen by the daemon."""
        return Report.from_wire(await self.ask("doctor"))

    async def status(self) -> DaemonStatus:
        """What the daemon and its core are doing."""
        return DaemonStatus.from_wire(await self.ask("status"))

    async def ping(self) -> Pong:
        """The daemon's version and pid; starts it if need be."""
        return Pong.from_wire(await self.ask("ping"))

    async def shutdown(self) -> Pong:
        """End the daemon and every sandbox; with ``start=True`` a missing one is started first."""
        return Pong.from_wire(await self.ask("shutdown"))

    async def ask(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        made: list[Made] | None = None,
        patience: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """The answer to an operation of the table that takes no descriptors.

        `made` takes the sandboxes that come before it, whose descriptors are the caller's, also when this
        raises. `patience`: seconds after which a daemon that says nothing is given up.
        """
        lost = DaemonLost("daemon_lost", "the daemon ends whenever it is asked")
        for _ in range(ATTEMPTS):
            connection = await self._connection()
            try:
                connection.send(name, dict(arguments or {}), [])
                deadline = time.monotonic() + patience
                while (answer := connection.receive(made)) is None:
                    await self._wait(connection, deadline)
                return answer
            except Stale:
                if made:
                    break
            except DaemonLost as error:
                lost = error
                if name == "shutdown" or not _idempotent(name):
                    break
            finally:
                self._give_back(connection)
        raise lost

    # --- links to core, for commands in sandboxes ---------------------------------------------------------

    def idle_link(self, core_id: str) -> CoreLink | None:
        """A link to this core that nobody uses; those to others are closed."""
        while self._core_links:
            try:
                link = self._core_links.pop()
            except IndexError:  # another thread was faster
                return None
            if link.core_id == core_id and link.is_alive():
                return link
            link.close()
        return None

    async def open_link(self, name: str, arguments: Mapping[str, Any]) -> tuple[CoreLink, dict[str, Any]]:
        """A new link, which comes with the answer to this operation."""
        from ramet.client._commands import CoreLink

        made: list[Made] = []
        try:
            answer = await self.ask(name, arguments, made=made)
            if not made or not made[0].fds:
                raise DaemonLost("malformed", "the daemon answered without a lane")
            return CoreLink(socket.socket(fileno=made[0].fds.pop(0)), ""), answer
        finally:
            for one in made:
                close_all(one.fds)

    def give_back_link(self, link: CoreLink) -> None:
        """Keep it for the next request, unless it has one under way."""
        if link.busy:
            link.close()
        elif not link.poller.closed:
            keep(self._core_links, link)

    async def wait_link(self, link: Peer, deadline: float) -> None:
        """Wait for an answer on it. Raises DaemonLost when there is none in time."""
        await self._wait(link, deadline)

    async def _drive(self, exchange: Exchange, patience: float) -> None:
        deadline = time.monotonic() + patience
        exchange.begin()
        over = exchange.quiet and exchange.step(await poll(exchange.link.poller, QUIET_S))
        if not over:
            exchange.watch()
        # A process that slept takes milliseconds to be itself again on some machines: it is woken before the
        # end that is to be expected at the latest.
        alarm = deadline - PATIENCE_S - ALARM_S
        while not over:
            over = exchange.step(await self._wait(exchange.link, deadline, alarm))
            if exchange.chunks:
                chunks, exchange.chunks = exchange.chunks, []
                for callback, chunk in chunks:
                    await deliver(callback, chunk)

    async def _wait(self, link: Peer, deadline: float, alarm: float = 0.0) -> list[tuple[int, int]]:
        now = time.monotonic()
        remaining = deadline - now
        events = await poll(link.poller, max(alarm - now if alarm > now else remaining, 0.0))
        if not events and remaining <= 0:
            raise DaemonLost("daemon_silent", "the daemon does not answer", hint="ramet daemon stop ends it")
        return events

    async def _link(self, request: RunRequest) -> Link:
        """Where to ask for a run: for the first the daemon, which a program with only one then wakes once.

        A directory is compared with what core knows of it, which is the daemon's to do.
        """
        if not self._ran or request.root is not None or request.fault is not None:
            return await self._connection()
        if self._lanes is None:
            from ramet.client._lanes import Lanes

            self._lanes = Lanes()
        lanes = self._lanes
        known = lanes.known(request)
        if lanes.idle and known is None:
            known = lanes.learn(request, await self.ask("lane", lanes.question(request, socket=False)))
        lane = lanes.take(known)
        if lane is not None:
            return lane
        made: list[Made] = []
        try:
            answer = await self.ask("lane", lanes.question(request, socket=True), made=made)
            return lanes.add(request, answer, made)
        finally:
            for one in made:
                close_all(one.fds)

    async def _connection(self) -> Connection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.is_alive():
                return connection
            connection.close()
        place = self._runtime_dir or runtime_path()
        sock = connect(place)
        if sock is None:
            if not self._start:
                raise DaemonLost("daemon_absent", f"no daemon is running in {place}")
            started: list[Connection] = []
            try:
                await in_thread(lambda: started.append(Connection(start_daemon(place))))
            except BaseException:
                # Cancelled: the thread came to its end all the same.
                for connection in started:
                    connection.close()
                raise
            return started[0]
        return Connection(sock)

    def _give_back(self, link: Link) -> None:
        if link.busy:
            link.close()
        elif isinstance(link, Connection):
            keep(self._idle, link)
        elif self._lanes is not None:
            keep(self._lanes.idle, link)

    async def aclose(self) -> None:
        """Close every idle connection."""
        connections, self._idle = self._idle, []
        for connection in connections:
            connection.close()
        links, self._core_links = self._core_links, []
        for link in links:
            link.close()
        if self._lanes is not None:
            self._lanes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
