"""What a client holds of a sandbox that stays, without any waiting in it: its session, and its streams' ends.

All ends are non-blocking. The session is the sandbox's life line: when it is closed the sandbox ends, unless
that is detached. It leads to the daemon, or for what was forked over a lane to core.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import weakref
from typing import TYPE_CHECKING, Any

from ramet._descriptors import close_all
from ramet.client._streams import CHUNK, Sink
from ramet.errors import DaemonError, DaemonLost, InvalidRequest, SandboxEnded
from ramet.models import results
from ramet.models.limits import Limits
from ramet.models.sandboxes import SandboxInfo
from ramet.native.channels import SOCKETS
from ramet.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ramet.client._forks import CoreLine, KnownFork
    from ramet.models.results import Captured, CommandResult


def ended_error(info: SandboxInfo, text: str) -> SandboxEnded:
    """The error `text` about a sandbox that has ended."""
    end = info.end
    return SandboxEnded(
        text,
        sandbox=info.id,
        reason=end and end.reason,
        exit_code=end and end.exit_code,
        signal=end and end.signal,
    )


def elsewhere() -> InvalidRequest:
    """The error for streams that this object does not have."""
    return InvalidRequest(
        "streams_elsewhere",
        "the standard streams of this sandbox are another's, or went with an earlier daemon",
        hint="commands.start gives streams that any number of readers can have",
    )


class Inflow:
    """An output stream of the command, and what was read of it but not asked for yet."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """-1 at the end of the stream."""
        self.buffer = bytearray()
        self.elsewhere = False
        """Whether somebody else has the stream."""
        self._scanned = 0
        self._busy = False

    @property
    def ended(self) -> bool:
        """True when nothing more can come than what is in the buffer."""
        return self.descriptor < 0

    def take_up(self) -> None:
        """One at a time: two readers would each get a part that makes no sense. Raises InvalidRequest."""
        if self.elsewhere:
            raise elsewhere()
        if self._busy:
            raise InvalidRequest("stream_busy", "this stream is being read already, or waited for")
        self._busy = True

    def lay_down(self) -> None:
        """It may be read by another."""
        self._busy = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """`take_up` for as long as this is open."""
        self.take_up()
        try:
            yield
        finally:
            self.lay_down()

    def pull(self) -> bool:
        """Read what is there; False when there is nothing now."""
        try:
            chunk = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            self.buffer += chunk
        else:
            self.close()
        return True

    def take(self, size: int) -> bytes:
        """The next bytes of the buffer, `size` at most."""
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        self._scanned = 0
        return taken

    def line_size(self, most: int) -> int | None:
        """How long the next line is, with its end; `most` if it is longer. None: it is not here yet."""
        end = self.buffer.find(b"\n", self._scanned, most)
        if end >= 0:
            return end + 1
        self._scanned = min(len(self.buffer), most)
        return self._scanned if self.ended or self._scanned >= most else None

    def close(self) -> None:
        """Stop reading; the buffer stays."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Outflow:
    """The way into the command's standard input."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.elsewhere = False
        """Whether somebody else has the stream."""

    def push(self, data: memoryview) -> int | None:
        """Write what there is room for: how many bytes. None when nobody reads any more."""
        if self.elsewhere:
            raise elsewhere()
        if self.descriptor < 0:
            return None
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return None

    def close(self) -> None:
        """The command's standard input ends here."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class DaemonLine:
    """What is said over a session with the daemon."""

    @staticmethod
    def hear(session: socket.socket, info: SandboxInfo) -> SandboxInfo | None:
        """How the sandbox ended, or as it was when a signal was sent; None when nobody can tell.

        Raises BlockingIOError when there is nothing to hear.
        """
        try:
            received = messages.receive(session)
        except DaemonError:
            return None
        if received is None:
            return None
        message, fds = received
        close_all(fds)
        return info if "signalled" in message else SandboxInfo.from_wire(message["ended"])

    @staticmethod
    def ask_end(session: socket.socket) -> None:
        """Have the sandbox ended. Raises OSError."""
        messages.send(session, {"op": "kill"})

    @staticmethod
    def ask_signal(session: socket.socket, _info: SandboxInfo, number: int) -> None:
        """Have its command sent a signal. Raises OSError."""
        messages.send(session, {"op": "signal", "number": number})


class Held:
    """A sandbox in the hands of this process."""

    def __init__(
        self,
        info: SandboxInfo | dict[str, Any],
        fds: list[int],
        line: type[DaemonLine | CoreLine] = DaemonLine,
        *,
        owner: bool = True,
        session: socket.socket | None = None,
        ready: bool = False,
    ) -> None:
        """Takes `fds`: session, stdin, stdout, stderr, and a kernel's channel; or the session alone.

        `line`: who is at its end; `session`: it, where it is a socket and not among `fds`; `ready`: none of
        these blocks any more.
        """
        streams = fds
        if session is None:
            session = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fds[0])
            session.setblocking(False)  # noqa: FBT003
            streams = fds[1:]
        self.owner = owner
        """Whether the sandbox is to end with this, unless it is detached."""
        feed, out, err, *channel = streams or (-1, -1, -1)
        self.session = session
        self.line = line
        self.stdin = Outflow(feed)
        self.stdout = Inflow(out)
        self.stderr = Inflow(err)
        if not streams:
            self.stdin.elsewhere = self.stdout.elsewhere = self.stderr.elsewhere = True
        self.info = info if isinstance(info, SandboxInfo) else SandboxInfo.from_wire(info)
        self.channel = None
        if channel:
            kind = -1 if self.info.kernel is None else SOCKETS[self.info.kernel.channel]
            # Whatever is not told the kernel is asked for.
            self.channel = socket.socket(socket.AF_UNIX, kind, 0, channel[0])
        self.lost = False
        self.signals = 0
        """How many signals were asked for that nobody said were sent."""
        self.known: KnownFork | None = None
        """What core needs to know to fork it, where that is known."""
        self.told = False
        """Whether its kernel knows that it is a child."""
        self.forked = False
        _all_held.add(self)
        if not ready:
            for number in streams:
                os.set_blocking(number, False)

    @property
    def ended(self) -> bool:
        """True when its end was told."""
        return self.info.end is not None

    def hear(self) -> bool:
        """Look whether the end was told. Raises DaemonLost when nobody can any more."""
        if self.ended:
            return True
        if self.session.fileno() < 0:
            raise InvalidRequest("not_held", "this object has let go of the sandbox")
        if self.lost:
            raise self.daemon_lost()
        while True:
            try:
                heard = self.line.hear(self.session, self.info)
            except BlockingIOError:
                return False
            except OSError:
                heard = None
            if heard is None:
                self.lost = True
                raise self.daemon_lost()
            if heard.end is not None:
                self.info = heard
                return True
            self.signals -= 1

    def daemon_lost(self) -> DaemonLost:
        """The error for a sandbox of which nobody tells any more."""
        what = "may live on" if self.info.detached else "ended with it"
        name = self.info.name or self.info.id
        return DaemonLost("daemon_lost", f"the daemon is gone that had the sandbox {name}, which {what}")

    def ask_end(self) -> None:
        """Have it ended, if it has not ended."""
        if not self.ended and self.session.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.line.ask_end(self.session)

    def ask_signal(self, number: int) -> None:
        """Have its command sent a signal, if it has not ended. `hear` notices when that is done."""
        with contextlib.suppress(OSError, DaemonLost, InvalidRequest):
            # What is not read on a session piles up, and costs the session.
            if not (self.hear() if self.signals else self.ended):
                self.line.ask_signal(self.session, self.info, number)
                self.signals += 1

    def take_descriptors(self) -> list[int]:
        """Its session, its streams and its kernel's channel, which are the caller's from now on."""
        _all_held.discard(self)
        taken = [self.session.detach(), self.stdin.descriptor, self.stdout.descriptor, self.stderr.descriptor]
        self.stdin.descriptor = self.stdout.descriptor = self.stderr.descriptor = -1
        if self.channel is not None:
            taken.append(self.channel.detach())
        return taken

    def close(self) -> None:
        """Let go of it."""
        _all_held.discard(self)
        self._close()

    def __del__(self) -> None:
        # A sandbox that nobody can reach any more ends; that is no leak to warn of.
        if hasattr(self, "info"):
            self._close()

    def _close(self) -> None:
        self.session.close()
        self.stdin.close()
        self.stdout.close()
        self.stderr.close()
        if self.channel is not None:
            self.channel.close()


# A fork of this process that had them too would keep sandboxes alive, and their input open.
_all_held: weakref.WeakSet[Held] = weakref.WeakSet()


def _close_inherited() -> None:
    for held in list(_all_held):
        held.close()


os.register_at_fork(after_in_child=_close_inherited)


class Collector:
    """Gathers what is unread of a stream, in bounded memory, so that the command does not stand still."""

    def __init__(self, flow: Inflow, limit: int) -> None:
        self.flow = flow
        self._sink = Sink(flow.descriptor, limit, None)
        self._sink.feed(flow.take(len(flow.buffer)))

    def pull(self) -> bool:
        """Read what is there; False when there is nothing now, or at the end."""
        if self.flow.ended:
            return False
        count = self._sink.pull()
        if count == 0:
            self.flow.close()
        return bool(count)

    def rest(self) -> Captured:
        """All that came, once nobody writes any more."""
        while self.pull():
            pass
        return self._sink.captured()

    def give_back(self) -> None:
        """Put what was gathered where it is read from: the wait was in vain.

        What was beyond the limit is missing in the middle, where a line of its own says how much it was.
        """
        captured = self._sink.captured()
        head, tail = captured.kept[: captured.head], captured.kept[captured.head :]
        mark = f"\n[... {captured.left_out} bytes left out ...]\n" if captured.left_out else ""
        self.flow.buffer[:0] = head + mark.encode() + tail


def result_of(info: SandboxInfo, out: Captured, err: Captured, encoding: str) -> CommandResult:
    """The result of a sandbox that has ended."""
    end = info.end
    assert end is not None  # noqa: S101  the caller's order
    result = results.result_of(end, out, err, limits=Limits.of(info.limits), encoding=encoding)
    if not info.keep_on:
        return result
    return dataclasses.replace(result, kept=info.kept, kept_error=info.kept_error)
