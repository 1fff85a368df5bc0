"""Serves the operations table over the user's socket.

A connection carries one request at a time, and its end is the end of what was asked for on it. `run` is
callbacks from the socket to core and back; the other operations are tasks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ramet._descriptors import close_all
from ramet._version import __version__
from ramet.daemon.lanes import Lanes
from ramet.daemon.sandboxes import SandboxOperations
from ramet.engine.cores import Cores
from ramet.engine.runs import Run
from ramet.errors import DaemonError, DaemonLost, InternalError, InvalidRequest, RametError
from ramet.models.operations import OPERATIONS
from ramet.models.runs import RunEnd, RunRequest
from ramet.models.status import DaemonStatus, Finding, Pong, Report
from ramet.wire import messages
from ramet.wire.places import peer

ACCEPT_BURST = 64


class Server:
    """Everything that clients reach."""

    def __init__(
        self,
        listener: socket.socket,
        cores: Cores,
        *,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
        log: Callable[..., object],
        path: str,
        faults: bool = False,
    ) -> None:
        """`faults`: whether requests may name a step of core that is to fail; for tests."""
        self.cores = cores
        self.spawn = spawn
        self.log = log
        self.faults = faults
        self.stopping = asyncio.Event()
        self.handing_over = False
        """Whether this daemon's end is not that of its sandboxes."""
        self.finishing = False
        self._quiet = asyncio.Event()
        self.connections: set[Connection] = set()
        self.active = 0
        self.last_activity = self._started = time.monotonic()
        self._listener = listener
        self._path = path
        self._operations: dict[str, Callable[[], Awaitable[Any]]] = {
            "doctor": self._doctor,
            "status": self._status,
            "ping": self._ping,
            "shutdown": self._shutdown,
            "hand_over": self._hand_over,
        }
        self.lanes = Lanes(cores)
        self._asked: dict[str, Callable[[Any, Connection], Awaitable[Any]]] = {
            "lane": self.lanes.open,
            **SandboxOperations(cores.sandboxes).table,
        }
        listener.setblocking(False)  # noqa: FBT003
        asyncio.get_running_loop().add_reader(listener, self._accept)

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while there is one, or a sandbox that stays."""
        if self.active or len(self.cores.sandboxes):
            self.last_activity = time.monotonic()
        return time.monotonic() - self.last_activity

    def close(self) -> None:
        """Stop listening, refuse what is under way, close every connection."""
        self._stop_listening()
        for connection in list(self.connections):
            connection.refuse(DaemonLost("daemon_lost", "the daemon is ending"))
            connection.close()

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self.cores.sandboxes.events.close()

    async def finish(self) -> None:
        """Take no more requests, and wait until those under way are answered.

        What was sent and not read is sent again by its client, to the next daemon.
        """
        self._stop_listening()
        self.finishing = True
        for connection in list(self.connections):
            connection.close_if_done()
        self._quiet.clear()
        if self.active:
            await self._quiet.wait()

    def quiet(self) -> None:
        """The last request under way was answered."""
        self._quiet.set()

    async def perform(self, operation: str, request: Any, client: Connection) -> Any:
        """The result of an operation that takes no streams."""
        own = self._operations.get(operation)
        return await (own() if own is not None else self._asked[operation](request, client))

    def _accept(self) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # EMFILE: the client waits in the backlog until descriptors are free
                self.log("connection not accepted", error=str(error))
                return
            _, uid = peer(sock)
            if uid == os.geteuid():
                self.connections.add(Connection(sock, self))
            else:
                self.log("connection refused", uid=uid)
                sock.close()

    async def _ping(self) -> Pong:
        return Pong(__version__, os.getpid())

    async def _status(self) -> DaemonStatus:
        core = self.cores.running
        return DaemonStatus(
            pid=os.getpid(),
            version=__version__,
            protocol=messages.VERSION,
            uptime_s=round(time.monotonic() - self._started, 3),
            idle_s=round(time.monotonic() - self.last_activity, 3),
            connections=len(self.connections),
            active=self.active - 1,  # this request is no work
            runtime_dir=self._path,
            core=await core.status() if core is not None else None,
            older=tuple([await one.status() for one in self.cores.older]),
        )

    async def _doctor(self) -> Report:
        from ramet.doctor import run_checks

        found = await asyncio.to_thread(run_checks)
        return Report(tuple([Finding(one.name, one.status, one.detail, one.fix) for one in found]))

    async def _hand_over(self) -> Pong:
        self.handing_over = True
        return await self._shutdown()

    async def _shutdown(self) -> Pong:
        self.stopping.set()
        return await self._ping()


class Connection:
    """One client's connection."""

    def __init__(self, sock: socket.socket, server: Server) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self._sock = sock
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._run: Run | None = None
        self._busy = False
        self._closed = False
        self._when_closed: Callable[[], object] | None = None
        self._unsent: deque[tuple[dict[str, Any], list[int]]] = deque()
        self._loop.add_reader(sock, self._readable)

    def close_if_done(self) -> None:
        """Close it, unless a request is under way, or an answer on its way."""
        if not self._busy and not self._unsent:
            self.close()

    @property
    def closed(self) -> bool:
        """True once nobody hears an answer any more."""
        return self._closed

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have `call` called when nobody hears the answer to the request under way any more."""
        self._when_closed = call

    def close(self) -> None:
        """End the connection and what was asked for on it."""
        if self._closed:
            return
        self._closed = True
        if self._when_closed is not None:
            self._when_closed()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        while self._unsent:
            close_all(self._unsent.popleft()[1])
        self._server.connections.discard(self)
        if self._run is not None:
            self._run.cancel()
            self._run = None
        self._set_busy(busy=False)

    def refuse(self, error: RametError) -> None:
        """Answer the request under way with an error, if there is one."""
        if self._busy and not self._closed:
            if self._run is not None:
                self._run.cancel()
                self._run = None
            self._answer({"error": error.to_wire()})

    def _set_busy(self, *, busy: bool) -> None:
        if busy != self._busy:
            self._busy = busy
            self._server.active += 1 if busy else -1
            self._server.last_activity = time.monotonic()
            if not self._server.active:
                self._server.quiet()

    def _readable(self) -> None:
        try:
            received = messages.receive(self._sock)
        except BlockingIOError:
            return
        except (OSError, DaemonError) as error:
            self._reject(error)
            return
        if received is None:
            self.close()
            return
        message, fds = received
        if self._busy:
            close_all(fds)
            self._reject(DaemonError("malformed", "a second request came before the answer to the first"))
            return
        self._set_busy(busy=True)
        try:
            self._begin(message, fds)
        except RametError as error:
            self._answer({"error": error.to_wire()})

    def _reject(self, error: Exception) -> None:
        """A peer that speaks otherwise hears why, where it can, and is left."""
        if isinstance(error, RametError) and not self._busy:
            self._set_busy(busy=True)
            self._answer({"error": error.to_wire()})
        self.close()

    def _begin(self, message: dict[str, Any], fds: list[int]) -> None:
        """Start what `message` asks for. Takes `fds`."""
        try:
            name, arguments = message.get("op"), message.get("args", {})
            operation = OPERATIONS.get(name) if isinstance(name, str) else None
            if operation is None:
                raise InvalidRequest("unknown_operation", f"there is no operation {name!r:.80}", field="op")
            if not isinstance(arguments, dict):
                raise InvalidRequest.of("args", "must be an object")
            request = operation.request.from_wire(arguments)
            if operation.streams == "none" and fds:
                raise InvalidRequest.of("streams", f"{operation.name} takes no descriptors")
            if isinstance(request, RunRequest):
                self._check_run(request, fds)
        except BaseException:
            close_all(fds)
            raise
        if isinstance(request, RunRequest):
            self._run = Run(self._server.cores, request, fds, self._ended)
            self._run.start()
        else:
            self._server.spawn(self._perform(operation.name, request))

    def _check_run(self, request: RunRequest, fds: list[int]) -> None:
        if len(fds) != len(request.streams):
            raise InvalidRequest.of("streams", f"{len(request.streams)} are named and {len(fds)} came along")
        if request.fault is not None and not self._server.faults:
            raise InvalidRequest.of("fault", "is only for a daemon under test")

    def _ended(self, outcome: RunEnd | RametError) -> None:
        self._run = None
        if isinstance(outcome, RunEnd):
            self._answer({"ok": outcome.to_wire()})
        else:
            self._answer({"error": outcome.to_wire()})

    async def _perform(self, name: str, request: Any) -> None:
        try:
            result = await self._server.perform(name, request, self)
            message = {"ok": result.to_wire()}
        except RametError as error:
            message = {"error": error.to_wire()}
        except Exception as error:
            message = {"error": InternalError("internal", f"{name}: {error!r}").to_wire()}
            self._answer(message)
            raise
        self._answer(message)

    def pass_on(self, message: dict[str, Any], fds: list[int]) -> None:
        """Say something before the answer to the request under way. Takes `fds`."""
        if self._closed:
            close_all(fds)
        elif self._unsent:
            self._unsent.append((message, fds))
        elif not self._transmit(message, fds):
            self._unsent.append((message, fds))
            self._loop.add_writer(self._sock, self._writable)

    def _answer(self, message: dict[str, Any]) -> None:
        self._when_closed = None
        if self._closed:
            return
        self._set_busy(busy=False)
        self.pass_on(message, [])
        if self._server.finishing:
            self.close_if_done()

    def _transmit(self, message: dict[str, Any], fds: list[int]) -> bool:
        """False when the socket is full, which happens to one that asked for hundreds of sandboxes."""
        try:
            messages.send(self._sock, message, fds)
        except BlockingIOError:
            return False
        except OSError:
            self.close()  # the client has gone
        close_all(fds)
        return True

    def _writable(self) -> None:
        while self._unsent:
            message, fds = self._unsent.popleft()
            if not self._transmit(message, fds):
                self._unsent.appendleft((message, fds))
                return
        if not self._closed:
            self._loop.remove_writer(self._sock)
            if self._server.finishing:
                self.close_if_done()
