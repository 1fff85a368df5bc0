"""The owner's hold on a sandbox: a socket pair, one end of which goes to the client with the streams.

While that end is open somewhere the sandbox has its owner. It needs no other sign of life: the kernel closes
it when the client dies, and also when it is still on its way to a client that died. The owner may ask for the
end over it, and hears of the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from ramet._descriptors import close_all
from ramet.errors import DaemonError
from ramet.wire import messages

if TYPE_CHECKING:
    from ramet.engine.standing import Sandbox


class Session:
    """The daemon's end."""

    def __init__(self, sandbox: Sandbox, sock: socket.socket, *, owner: bool, streams: bool) -> None:
        """Takes `sock`. One that is not the owner's only attaches; `streams`: it has the sandbox's."""
        self._owner = owner
        self._streams = streams
        sock.setblocking(False)  # noqa: FBT003
        self._sock = sock
        self._sandbox = sandbox
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        sandbox.on_end.append(self._tell_end)
        if not owner:
            sandbox.attach()
        if sandbox.end is not None:
            self._tell_end()

    def _readable(self) -> None:
        try:
            received = messages.receive(self._sock)
        except BlockingIOError:
            return
        except (OSError, DaemonError):
            received = None
        if received is None:
            self._close()
            self._gone()
            return
        message, fds = received
        close_all(fds)
        if message.get("op") == "kill":
            self._sandbox.kill("by request")
        elif (
            message.get("op") == "signal"
            and type(number := message.get("number")) is int
            and 1 <= number <= 64
        ):
            self._sandbox.signal(number, self._tell_signalled)

    def _gone(self) -> None:
        if self._owner:
            self._sandbox.owner_gone()
            return
        if self._streams:
            self._sandbox.take_back()
        self._sandbox.leave()

    def _tell_signalled(self) -> None:
        if self._sock.fileno() >= 0:
            with contextlib.suppress(OSError):  # a full queue is that of a client that does not hear
                messages.send(self._sock, {"signalled": True})

    def _tell_end(self) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._sock, {"ended": self._sandbox.info().to_wire()})
        self._close()

    def _close(self) -> None:
        self._sandbox.on_end.remove(self._tell_end)
        self._loop.remove_reader(self._sock)
        self._sock.close()


def open_session(sandbox: Sandbox, *, owner: bool = True, streams: bool = True) -> int:
    """A new session of `sandbox`; the other end, which is the caller's. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Session(sandbox, ours, owner=owner, streams=streams)
    return theirs.detach()
