"""A conversation with a running core over its control connection.

Requests are answered out of order, so each has a number and a callback; there are no tasks, because a run of
a millisecond cannot afford them. `ask` wraps one request in a future for the rest. Callbacks get the reply
frame, or the error that took its place: what core answered, or DaemonLost when core went away.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ramet._descriptors import close_all
from ramet.errors import DaemonLost, InternalError, RametError
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.faults import error_of

BURST = 64
BUSY = 4

Reply = Callable[["frames.Frame | RametError"], object]


class Pending(NamedTuple):
    """A frame that waits for room in the socket, with descriptors that are closed once it is sent."""

    kind: int
    request: int
    payload: bytes
    fds: list[int]


class CoreConnection:
    """The control connection. Owned by one event loop; every method is called from it.

    `on_event` gets the frames that answer nothing (ENDED and EXITED of standing sandboxes), `on_lost` is
    called once when the connection ended, after every pending request got its error.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_event: Callable[[frames.Frame], object],
        on_lost: Callable[[RametError], object],
    ) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_lost = on_lost
        self._replies: dict[int, Reply] = {}
        self._listings: dict[int, list[frames.Frame]] = {}
        self._fetching: set[int] = set()
        self._queue: deque[Pending] = deque()
        self._buffer = bytearray(p.FRAME_BYTES)
        self._last = 0
        self._closed = False
        self._loop.add_reader(sock, self._readable)

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._replies)

    def call(self, kind: int, payload: bytes, fds: list[int], reply: Reply) -> int:
        """Send a request, whose answer `reply` gets. Takes `fds`. Returns the request's number."""
        if self._closed:
            close_all(fds)
            raise DaemonLost("core_lost", "core has ended")
        self._last = request = self._last + 1
        self._replies[request] = reply
        self._send(Pending(kind, request, payload, fds))
        return request

    async def ask(self, kind: int, payload: bytes = b"", fds: list[int] | None = None) -> frames.Attributes:
        """Send a request and wait for its OK. Takes `fds`. Raises what core answered, or DaemonLost."""
        return frames.attributes((await self._answer(kind, payload, fds or []))[0].payload)

    async def list_sandboxes(self) -> list[frames.Attributes]:
        """Every standing sandbox: its id and record."""
        answers = await self._answer(p.LIST, b"", [], listing=True)
        return [frames.attributes(frame.payload) for frame in answers[:-1]]

    async def fetch(self, kind: int, payload: bytes) -> tuple[frames.Attributes, list[int]]:
        """As `ask`, of what is answered with descriptors, which are the caller's."""
        request, future = self._begin(kind, payload, [])
        self._fetching.add(request)
        try:
            frame = await future
        except asyncio.CancelledError:
            if not future.cancelled():  # answered, and cancelled before the answer was seen
                close_all(future.result().fds)
            raise
        finally:
            self._fetching.discard(request)
        return frames.attributes(frame.payload), frame.fds

    def begin(self, kind: int, payload: bytes, fds: list[int]) -> asyncio.Future[frames.Frame]:
        """Send a request now; the future gets the frame that answers it. Takes `fds`. Raises DaemonLost."""
        return self._begin(kind, payload, fds)[1]

    def _begin(self, kind: int, payload: bytes, fds: list[int]) -> tuple[int, asyncio.Future[frames.Frame]]:
        future: asyncio.Future[frames.Frame] = self._loop.create_future()

        def reply(answer: frames.Frame | RametError) -> None:
            if future.done():
                return
            if isinstance(answer, RametError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        return self.call(kind, payload, fds, reply), future

    async def _answer(
        self, kind: int, payload: bytes, fds: list[int], *, listing: bool = False
    ) -> list[frames.Frame]:
        request, future = self._begin(kind, payload, fds)
        if listing:
            self._listings[request] = []
        last = await future
        return [*self._listings.pop(request, []), last]

    def close(self) -> None:
        """End the conversation: what is pending gets DaemonLost; `on_lost` is not called."""
        self._end(DaemonLost("core_lost", "the conversation with core was ended"), tell=False)

    def _send(self, frame: Pending) -> None:
        if self._queue:
            self._queue.append(frame)
        elif not self._transmit(frame):
            self._queue.append(frame)
            self._loop.add_writer(self._sock, self._writable)

    def _transmit(self, frame: Pending) -> bool:
        """False when the socket is full. A refused frame is answered here, a broken one ends it all."""
        try:
            frames.send(self._sock, *frame)
        except BlockingIOError:
            return False
        except OSError as error:
            close_all(frame.fds)
            if isinstance(error, (BrokenPipeError, ConnectionError)):
                self._end(DaemonLost("core_lost", "core has ended"))
            else:
                # ETOOMANYREFS: more descriptors in flight than RLIMIT_NOFILE; EMFILE, ENOMEM: no memory file.
                self._resolve(frame.request, _refusal(error))
            return True
        close_all(frame.fds)
        return True

    def _writable(self) -> None:
        while self._queue and self._transmit(self._queue[0]):
            if self._queue:
                self._queue.popleft()
        if not self._queue and not self._closed:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        # A read that finds nothing costs as much as a message, so without much under way there is one read;
        # events come several together. A burst is bounded: the daemon's clients must get their turn too.
        busy = len(self._replies) > BUSY
        for _ in range(BURST):
            try:
                frame = frames.receive(self._sock, self._buffer)
            except BlockingIOError:
                return
            except ConnectionError:
                frame = None
            except (frames.FrameError, OSError) as error:
                self._end(DaemonLost("core_lost", f"core sent nonsense: {error}"))
                return
            if frame is None:
                self._end(DaemonLost("core_lost", "core has ended"))
                return
            self._dispatch(frame)
            if self._closed or not (busy or frame.request == 0):
                return

    def _dispatch(self, frame: frames.Frame) -> None:
        if frame.fds and (frame.kind == p.ERROR or frame.request not in self._fetching):
            close_all(frame.fds)
        if not frame.request:
            self._on_event(frame)
        elif frame.kind == p.ERROR:
            try:
                error = error_of(frame)
            except frames.FrameError as malformed:
                error = InternalError("internal", f"core sent a malformed error: {malformed}")
            self._resolve(frame.request, error)
        elif (listed := self._listings.get(frame.request)) is not None and p.TAG_SANDBOX in dict(
            frames.decode(frame.payload)
        ):
            listed.append(frame)
        else:
            self._resolve(frame.request, frame)

    def _resolve(self, request: int, answer: frames.Frame | RametError) -> None:
        reply = self._replies.pop(request, None)
        if reply is not None:
            reply(answer)

    def _end(self, error: RametError, *, tell: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        while self._queue:
            close_all(self._queue.popleft().fds)
        for request in list(self._replies):
            self._resolve(request, error)
        if tell:
            self._on_lost(error)


def _refusal(error: OSError) -> RametError:
    text = error.strerror or str(error)
    return RametError("busy", f"the request could not be passed to core: {text}", errno=error.errno)
