"""One run over one link, as a state machine.

What to wait for is in its poller, what to do then in `step`. Nothing here waits, so both clients share it.
The order of ends is the point: when the answer is here every process of the sandbox is dead, so what
the pipes hold then is all there will ever be. Their end of file is not awaited: a descriptor that leaked
elsewhere (a fork of this process at the wrong moment) must not delay the result.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import weakref
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet._descriptors import close_all
from ramet.client._streams import Sink, Source
from ramet.errors import DaemonLost, RametError
from ramet.models.results import CommandResult, result_of
from ramet.models.runs import RunEnd, RunRequest
from ramet.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[bytes], Any]

IDLE_MAX = 64
_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT


class Stale(Exception):
    """The daemon went away before it read the request, which may be sent again."""


class Made(NamedTuple):
    """What was made: for a sandbox its number in the request, what is told of it, its session and streams."""

    number: int
    info: dict[str, Any]
    fds: list[int]


class Peer:
    """A socket on which something is asked for, and the poller that watches it. One request at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003
        self.sock = sock
        self.poller = select.epoll()
        try:
            self.poller.register(sock, _READ)
        except OSError as error:  # ENOSPC: this user's processes, those of sandboxes too, have all there are
            self.close()
            text = f"the daemon's answer cannot be waited for: {error.strerror}"
            hint = "a process of this user, perhaps in a sandbox, has all of fs.epoll.max_user_watches"
            raise RametError("busy", text, errno=error.errno, hint=hint) from None
        self.number = sock.fileno()
        self.busy = False
        """True from a request to its answer: then only closing it gives it a known state."""
        _open_links.add(self)

    def _sending(self, send: Callable[[], object]) -> None:
        try:
            send()
        except (BrokenPipeError, ConnectionError):
            raise Stale from None
        except OSError as error:
            # ETOOMANYREFS, EMFILE, ENOMEM: this process is at a limit of its own.
            text = f"the request cannot be sent: {error.strerror or error}"
            raise RametError("busy", text, errno=error.errno) from None

    def is_alive(self) -> bool:
        """False when it was closed at either end, or the peer said something unasked."""
        return not self.poller.closed and not self.poller.poll(0)

    def close(self) -> None:
        """End the connection, and with it whatever was asked for on it."""
        _open_links.discard(self)
        self.poller.close()
        self.sock.close()

    def __del__(self) -> None:
        # A client that nobody holds any more gives up its idle connections; that is no leak to warn of.
        # The set of open ones may be gone already when the interpreter ends.
        if hasattr(self, "poller"):
            self.poller.close()
            self.sock.close()


class Link(Peer):
    """One on which a run can be asked for."""

    @abstractmethod
    def run(self, request: RunRequest, fds: list[int]) -> None:
        """Ask for a run. Raises Stale, RametError."""

    @abstractmethod
    def ended(self) -> RunEnd | None:
        """The end of the run, None if it is not here yet. Raises Stale, or the error in its place."""


class Connection(Link):
    """A connection to the daemon."""

    def send(self, operation: str, arguments: dict[str, Any], fds: list[int]) -> None:
        """Send a request. Raises Stale, RametError."""
        self.busy = True
        self._sending(lambda: messages.send(self.sock, {"op": operation, "args": arguments}, fds))

    def receive(self, made: list[Made] | None = None) -> dict[str, Any] | None:
        """The answer, None if it is not here yet. Raises Stale, or the error that came in its place.

        `made` takes what was made and comes before the answer; its descriptors are the caller's.
        """
        try:
            received = messages.receive(self.sock)
        except BlockingIOError:
            return None
        except ConnectionError:
            # A unix socket closed with unread data says so by ECONNRESET: the daemon never saw the request.
            raise Stale from None
        if received is None:
            raise DaemonLost("daemon_lost", "the daemon ended while it worked on the request")
        message, fds = received
        if made is not None and "made" in message:
            made.append(Made(message["made"], message["info"], fds))
            return None
        close_all(fds)
        self.busy = False
        return messages.answer_of(message)

    def run(self, request: RunRequest, fds: list[int]) -> None:
        """Ask for a run. Raises Stale, RametError."""
        self.send("run", request.to_wire(), fds)

    def ended(self) -> RunEnd | None:
        """The end of the run, None if it is not here yet. Raises Stale, or the error in its place."""
        answer = self.receive()
        return None if answer is None else RunEnd.from_wire(answer)


# A connection that a fork inherits would keep the sandbox of a parent alive that is dead.
_open_links: weakref.WeakSet[Peer] = weakref.WeakSet()


def _close_inherited() -> None:
    for link in list(_open_links):
        link.close()


def keep(idle: list[Any], link: Peer) -> None:
    """Keep a link that is idle for the next run, or close it when there are many."""
    if len(idle) >= IDLE_MAX:
        link.close()
    else:
        idle.append(link)


os.register_at_fork(after_in_child=_close_inherited)


class Exchange:
    """One run. Use: `begin`, then `step` with what the poller found until it returns True, then `result`."""

    def __init__(
        self,
        link: Link,
        request: RunRequest,
        source: Source | None,
        *,
        callbacks: tuple[Callback | None, Callback | None],
        encoding: str,
    ) -> None:
        self.link = link
        self.chunks: list[tuple[Callback, bytes]] = []
        """What callbacks are to get; the driver delivers and clears it after each step."""
        self._request = request
        self._source = source
        self._callbacks = callbacks
        self._encoding = encoding
        self._own: list[int] = []
        self._outputs: list[Sink] = []
        self._watched: dict[int, Sink] = {}
        self._end: RunEnd | None = None

    @property
    def quiet(self) -> bool:
        """True when nobody waits for output before the end, so that `watch` can wait a little.

        Most commands end before that, and then nobody was woken for the end of a pipe.
        """
        return self._callbacks == (None, None)

    def begin(self) -> None:
        """Make the pipes and send the request. Raises Stale, RametError; `close` undoes what was done."""
        count = 2 + (self._source is not None)
        # One call in C from the first pipe to the list: an exception of a signal handler (KeyboardInterrupt)
        # is raised between two calls, and would lose a pair that has no name yet.
        self._own.extend(itertools.chain.from_iterable(map(os.pipe2, (os.O_CLOEXEC,) * count)))
        out, out_end, err, err_end, *more = self._own
        limit = self._request.limits.output
        for number, callback in zip((out, err), self._callbacks, strict=True):
            os.set_blocking(number, False)
            self._outputs.append(Sink(number, limit, callback))
        theirs = [out_end, err_end]
        if self._source is not None:
            in_end, feed = more
            theirs.insert(0, in_end)
            os.set_blocking(feed, False)
            self._source.descriptor = feed
        if os.geteuid() == 0:
            for number in theirs:
                # Root's pipes belong to nobody inside: /dev/stdout, which opens them anew, needs a mode.
                os.fchmod(number, 0o666)
        self.link.run(self._request, theirs)
        if self._source is not None:
            self._begin_feeding(self._source)
        for number in theirs:
            self._close(number)

    def watch(self) -> None:
        """From now on the poller tells of output too."""
        for sink in self._outputs:
            self.link.poller.register(sink.descriptor, _READ)
            self._watched[sink.descriptor] = sink

    def step(self, events: list[tuple[int, int]]) -> bool:
        """Do what `events` allow; True when the run is over.

        Raises the error that came in place of its end.
        """
        for number, _ in events:
            sink = self._watched.get(number)
            if sink is not None:
                self._pull(sink)
            elif number == self.link.number:
                self._end = self.link.ended()
                if self._end is not None:
                    self._finish()
                    return True
            else:
                self._feed(number)
        return False

    def _finish(self) -> None:
        self._stop_feeding()
        for sink in self._outputs:
            while sink.descriptor in self._own and self._pull(sink):
                pass

    def _pull(self, sink: Sink) -> bool:
        """Read once; False when there is nothing to read now."""
        count = sink.pull()
        if count is None:
            return False
        if not count:
            self._drop(sink.descriptor)
        elif sink.callback is not None:
            self.chunks.append((sink.callback, sink.chunk))
        return True

    # --- standard input: either the source is watched, or the pipe to the command -------------------------

    def _begin_feeding(self, source: Source) -> None:
        if source.input < 0:
            source.refill(self._encoding)
            if not source.push() or source.exhausted:
                self._stop_feeding()
                return
        self._watch_source(source)

    def _watch_source(self, source: Source) -> None:
        poller = self.link.poller
        if source.input >= 0 and not source.waiting:
            try:
                poller.register(source.input, _READ)
                return
            except PermissionError:  # a regular file is always ready
                pass
        poller.register(source.descriptor, _WRITE)

    def _feed(self, number: int) -> None:
        source = self._source
        if source is None or source.descriptor < 0:
            return
        poller = self.link.poller
        if number == source.input:
            poller.unregister(number)
            source.refill(self._encoding)
            if source.exhausted:
                self._stop_feeding()
            else:
                self._watch_source(source)
            return
        source.refill(self._encoding)
        if not source.push() or source.exhausted:
            self._stop_feeding()
        elif not source.waiting and source.input >= 0:
            poller.unregister(source.descriptor)
            self._watch_source(source)

    def _stop_feeding(self) -> None:
        source = self._source
        if source is None or source.descriptor < 0:
            return
        if source.input >= 0:
            # It may not be watched, or its owner has closed it.
            with contextlib.suppress(OSError, ValueError):
                self.link.poller.unregister(source.input)
        with contextlib.suppress(OSError, ValueError):
            self.link.poller.unregister(source.descriptor)
        self._close(source.descriptor)
        source.descriptor = -1

    # --- the end ------------------------------------------------------------------------------------------

    def _drop(self, number: int) -> None:
        if self._watched.pop(number, None) is not None:
            # Closing alone leaves it in the poller when a fork of this process has the same pipe.
            self.link.poller.unregister(number)
        self._close(number)

    def _close(self, number: int) -> None:
        # A signal handler's exception may have come right after it was closed.
        if number in self._own:
            self._own.remove(number)
            os.close(number)

    def result(self) -> CommandResult:
        """The result, once `step` returned True."""
        end = self._end
        assert end is not None  # noqa: S101  the driver's order
        out, err = self._outputs
        return result_of(
            end, out.captured(), err.captured(), limits=self._request.limits, encoding=self._encoding
        )

    def close(self) -> None:
        """Close what is still open. The link is the driver's."""
        source = self._source
        if source is not None:
            self._stop_feeding()
        for number in list(self._own):
            self._drop(number)
