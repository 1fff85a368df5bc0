"""A server elsewhere, in place of the user's daemon: one connection to it, in a thread of its own.

The thread has the far ends of the descriptors that this process is given. A process that ends, or loses the
connection, ends with it what it has on the server and did not detach.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from ramet._descriptors import close_all
from ramet.client._websocket import WebSocket, request
from ramet.errors import DaemonLost, InvalidRequest, RametError
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.faults import error_of
from ramet.native.frames import u32, u64
from ramet.tunnel.channels import PATH, VERSION, What
from ramet.tunnel.ends import ClientTunnel
from ramet.tunnel.logs import LogCopy
from ramet.wire import messages

T = TypeVar("T")
CONNECT_S = 20.0
RECOVER_S = 30.0
"""How long those who read a command's output wait for a server that is gone."""
HEARTBEAT_S = 15.0
NAMES_MAX = 4096
SILENT_S = 60.0
"""After so long without a word the other end is given up, at both ends."""
_UNPRINTABLE = "is no token: one word of printable ASCII"


class Remote:
    """One server. Nothing is connected before the first request, and anew after a loss by the next."""

    def __init__(self, url: str, token: str | None = None, *, ca: str | None = None) -> None:
        """`ca`: a file of certificates to trust instead of the system's. Raises InvalidRequest."""
        self.url, self._place = url, _parsed(url)
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise InvalidRequest.of("token", _UNPRINTABLE)
        self._token = token
        secured = self._place.scheme == "https" or (self._place.scheme == "unix" and ca is not None)
        self._ssl = _trusting(ca) if secured else None
        if ca is not None and self._ssl is None:
            raise InvalidRequest.of("ca", "is for https, or for a unix socket whose server has a certificate")
        self.clients: dict[type, Any] = {}
        """The client of each kind that calls share which name none."""
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._socket: WebSocket | None = None
        self._tunnel: ClientTunnel | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._opening = asyncio.Lock()
        self._names: dict[int, str] = {}
        self._orphans: list[LogCopy] = []
        self._recovering: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether a conversation can begin without waiting."""
        return self._tunnel is not None

    def begin(self) -> socket.socket:
        """A conversation with the daemon there; connects if need be, and blocks then. Raises RametError."""
        with self._lock:
            if self._tunnel is None:
                self._connect()
            loop, tunnel = self._loop, self._tunnel
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if loop is None or tunnel is None:
            ours.close()
            theirs.close()
            raise DaemonLost("server_lost", f"the connection to {self.url} was closed")
        loop.call_soon_threadsafe(self._adopt, tunnel, ours.detach())
        return theirs

    def _adopt(self, tunnel: ClientTunnel, descriptor: int) -> None:
        if tunnel is self._tunnel:
            tunnel.begin(descriptor)
        else:
            os.close(descriptor)

    # --- the thread ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="ramet-remote", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
        try:
            future.result(CONNECT_S + 1)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise _unreachable(self.url, "it does not answer") from None

    async def _open(self) -> None:
        async with self._opening:
            if self._tunnel is None:
                await self._open_one()

    async def _open_one(self) -> None:
        loop = asyncio.get_running_loop()
        path, host = self._place.path, self._place.netloc.rpartition("@")[2] or "localhost"
        unix = self._place.scheme == "unix"
        head, key = request(
            PATH if unix else path.rstrip("/") + PATH, "localhost" if unix else host, self._token, VERSION
        )

        def make() -> WebSocket:
            return WebSocket(head, key, lambda message: self._heard(sock, message))

        try:
            async with asyncio.timeout(CONNECT_S):
                made: tuple[Any, WebSocket]
                if unix:
                    name = "localhost" if self._ssl else None
                    made = await loop.create_unix_connection(
                        make, unquote(path), ssl=self._ssl, server_hostname=name
                    )
                else:
                    port = self._place.port or (443 if self._ssl else 80)
                    made = await loop.create_connection(make, self._place.hostname, port, ssl=self._ssl)
                sock = made[1]
                await sock.opened
        except TimeoutError:
            raise _unreachable(self.url, "it does not answer") from None
        except ssl.SSLCertVerificationError as error:
            raise DaemonLost(
                "server_unverified", f"{self.url}: {error.verify_message}", hint="ca= names who is trusted"
            ) from None
        except OSError as error:
            # Also of names that do not resolve.
            raise _unreachable(self.url, error.strerror or str(error)) from None
        _now(made[0].get_extra_info("socket"))
        self._socket = sock
        self._tunnel = tunnel = ClientTunnel(loop, sock.send, self._names)
        sock.when_full, sock.when_free = tunnel.congest, tunnel.relieve
        sock.when_lost = lambda: self._lost(tunnel)
        self._beat(sock)

    def _heard(self, sock: WebSocket, message: bytes) -> None:
        if self._tunnel is not None and sock is self._socket:
            self._tunnel.heard(message)

    def _lost(self, tunnel: ClientTunnel) -> None:
        if self._tunnel is tunnel:
            self._tunnel = self._socket = None
        self._orphans += tunnel.leave_logs()
        tunnel.close()
        if self._orphans and self._recovering is None:
            self._recovering = tunnel.loop.create_task(self._recover())

    # --- readers of logs, whose command may go on there ---------------------------------------------------

    async def _recover(self) -> None:
        """Have those who read go on where they were, once the server is there again."""
        loop = asyncio.get_running_loop()
        until, wait = loop.time() + RECOVER_S, 0.05
        try:
            while self._orphans and loop.time() < until:
                try:
                    await self._open()
                    if self._tunnel is not None:
                        await self._attach_again(self._tunnel, self._orphans[0])
                        self._orphans.pop(0)
                        continue
                except InvalidRequest:  # there is no such command any more
                    self._orphans.pop(0).close(tell=False)
                    continue
                except (RametError, OSError):
                    pass
                await asyncio.sleep(wait)
                wait = min(2 * wait, 1.0)
        finally:
            self._recovering = None
            while self._orphans:
                self._orphans.pop().close(tell=False)

    async def _attach_again(self, tunnel: ClientTunnel, log: LogCopy) -> None:
        """Ask for a log anew. Raises InvalidRequest when there is none, RametError, OSError to try again."""
        sandbox, command, flags = log.origin
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tunnel.begin(ours.detach(), adopting=log)
        with theirs:
            theirs.setblocking(False)  # noqa: FBT003
            args = {"sandbox": self._names.get(sandbox, ""), "socket": True, "ended": True, "ending": False}
            messages.send(theirs, {"op": "sandbox.commands", "args": args})
            made: list[int] = []
            try:
                while not made:
                    message, fds = await _next(lambda: messages.receive(theirs), theirs)
                    made += fds
                    if "made" not in message:
                        messages.answer_of(message)
                        raise DaemonLost("malformed", "the server answered without a lane")
                with socket.socket(fileno=made.pop()) as lane:
                    lane.setblocking(False)  # noqa: FBT003
                    payload = u64(p.TAG_SANDBOX, sandbox) + u32(p.TAG_COMMAND, command)
                    frames.send(lane, p.ATTACH, 1, payload + u32(p.TAG_FLAGS, flags), [])
                    buffer = bytearray(p.FRAME_BYTES)
                    frame = await _next(lambda: frames.receive(lane, buffer), lane)
                    if frame.kind == p.ERROR:
                        error = error_of(frame)
                        raise InvalidRequest(error.code, error.message)
            finally:
                close_all(made)

    def _beat(self, sock: WebSocket) -> None:
        """Say now and then that this process is there, and look whether the server is."""
        tunnel = self._tunnel
        if tunnel is None or sock is not self._socket:
            return
        if tunnel.loop.time() - sock.last_heard > SILENT_S:
            sock.abort()
            return
        if len(self._names) > NAMES_MAX:
            for number in list(self._names)[:-NAMES_MAX]:
                del self._names[number]
        tunnel.put(What.CREDIT, 0, bytes(4))
        self._beating = tunnel.loop.call_later(HEARTBEAT_S, self._beat, sock)

    # --- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection, and what is not detached there. A later request makes another."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is None or thread is None:
                return
            loop.call_soon_threadsafe(self._part)
            thread.join()
            loop.close()

    def _part(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._recovering is not None:
            self._recovering.cancel()
        sock, tunnel, loop = self._socket, self._tunnel, asyncio.get_running_loop()
        self._socket = self._tunnel = None
        if sock is None or tunnel is None:
            loop.call_soon(loop.stop)
            return
        tunnel.close()
        sock.when_lost = loop.stop
        sock.bid_farewell()
        # Who does not take the rest is not waited for.
        loop.call_later(1.0, sock.abort)

    def forget(self) -> None:
        """In a fork of this process: its descriptors are the parent's, and what waits on them too."""
        tunnel, sock = self._tunnel, self._socket
        channels = [*self._orphans, *(() if tunnel is None else tunnel.channels.values())]
        held = [one for each in channels for one in each.held()]
        if sock is not None and sock.transport is not None:
            raw = sock.transport.get_extra_info("socket")
            held += [raw.fileno()] if raw is not None else []
        for descriptor in held:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        _of_parents.append((self._loop, tunnel, sock))
        self._start()


_all: weakref.WeakSet[Remote] = weakref.WeakSet()
_of_parents: list[Any] = []
"""A fork's part in its parent's connections: dropped, it would take them from the parent's epoll(7)."""


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


def _close_all() -> None:
    for one in list(_all):
        one.close()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    asyncio.set_event_loop(None)


def _settle(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)


async def _next(receive: Callable[[], T | None], sock: socket.socket) -> T:
    """What comes next. Raises DaemonLost at the end."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        while True:
            came: asyncio.Future[None] = loop.create_future()
            loop.add_reader(sock.fileno(), _settle, came)
            try:
                await came
            finally:
                loop.remove_reader(sock.fileno())
            with contextlib.suppress(BlockingIOError):
                found = receive()
                if found is None:
                    raise DaemonLost("server_lost", "the server closed the conversation")
                return found


def _now(sock: socket.socket | None) -> None:
    """Have small messages leave at once."""
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _parsed(url: str) -> Any:
    if not isinstance(url, str):
        raise InvalidRequest.of("url", f"must be text, not {type(url).__name__}")
    place = urlsplit("")
    try:
        place = urlsplit(url)
        good = place.hostname is not None and (place.port is None or place.port > 0)
    except ValueError:
        good = False
    else:
        good = good and not place.query and not place.fragment and place.username is None
    if not good and url.startswith("unix:///"):
        place, good = urlsplit(url), True
    if not good or place.scheme not in {"http", "https", "unix"}:
        raise InvalidRequest.of(
            "url", f"{url!r:.120} is no server's address", hint="http://, https:// or unix:///path"
        )
    return place


def _trusting(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InvalidRequest.of("ca", f"{ca}: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _unreachable(url: str, why: str) -> RametError:
    return DaemonLost("server_unreachable", f"{url} cannot be reached: {why}", hint="ramet serve runs one")
