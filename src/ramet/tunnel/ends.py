"""The client's end: what the server has is here a descriptor that gives the same."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from ramet.native import _protocol as p
from ramet.native.frames import Attributes, decode
from ramet.tunnel.channels import Bytes, Group, Item, Kind, Packets, Tunnel, What
from ramet.tunnel.conversations import FRAME_HEAD, Frames, Messages, SessionMessages, pair
from ramet.tunnel.logs import LogCopy, Origin
from ramet.wire import messages


class ClientTunnel(Tunnel):
    """It begins the conversations with the daemon, and mirrors what comes of them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], object], names: dict[int, str]
    ) -> None:
        """`names` becomes what sandboxes are called that core has by number."""
        super().__init__(loop, send, first=1)
        self.names = names

    def begin(self, descriptor: int, adopting: LogCopy | None = None) -> None:
        """Have a conversation with the daemon, whose end here is `descriptor`.

        `adopting`: the log that the lane is asked for which comes of it goes on as this one.
        """
        number = self.new_number()
        self.put(What.OPEN, number)
        Daemon(self, number, descriptor).adopting = adopting

    def leave_logs(self) -> list[LogCopy]:
        """Logs that somebody reads, which can go on over another tunnel."""
        found = [one for one in self.channels.values() if isinstance(one, LogCopy) and one.orphaned]
        for one in found:
            one.leave()
        return found

    def pipe(self, number: int, kind: Kind, group: Group | None = None) -> int:
        """The end of a pipe to pass on, whose other end is the channel."""
        far, near = os.pipe2(os.O_CLOEXEC)
        if kind is Kind.OUT:
            Bytes(self, number, near, reads=False, writes=True, group=group)
            return far
        Bytes(self, number, far, reads=True, writes=False)
        return near

    def socketed(
        self, number: int, make: Callable[[Tunnel, int, int], object], kind: int = socket.SOCK_SEQPACKET
    ) -> int:
        """The end of a socket to pass on, whose other end `make` takes."""
        ours, theirs = pair(kind)
        make(self, number, ours)
        return theirs


def _stream(tunnel: Tunnel, number: int, descriptor: int) -> Bytes:
    return Bytes(tunnel, number, descriptor, reads=True, writes=True)


class Daemon(Messages):
    """With the daemon."""

    tunnel: ClientTunnel
    adopting: LogCopy | None = None
    _sandbox: str | None = None

    def take(self) -> tuple[bytes, list[int]] | None:
        """The next request; which sandbox a lane is asked for is noted."""
        taken = super().take()
        if taken is not None:
            asked = messages.decoded(taken[0])
            about = asked.get("op") == "sandbox.commands"
            self._sandbox = asked.get("args", {}).get("sandbox") if about else None
        return taken

    def give(self, item: Item) -> None:
        """Say an answer; what core calls a sandbox is noted."""
        if self._sandbox is not None:
            told = messages.decoded(item.body).get("ok")
            if isinstance(told, dict) and isinstance(told.get("number"), int):
                self.tunnel.names[told["number"]] = self._sandbox
        super().give(item)

    def opened(self, body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """The streams of a run: those that it writes to belong before its answer."""
        self.group = Group()
        found = []
        streams = messages.decoded(body).get("args", {}).get("streams", ())
        for stream, descriptor in zip(streams, fds, strict=True):
            kind = Kind.OUT if stream else Kind.IN
            number = self.tunnel.new_number()
            if kind is Kind.OUT:
                Bytes(self.tunnel, number, descriptor, reads=False, writes=True, group=self.group)
            else:
                Bytes(self.tunnel, number, descriptor, reads=True, writes=False, own=False)
            found.append((number, kind))
        return found

    def mirror(self, item: Item) -> list[LogCopy]:
        """What was made comes with its session, its streams, its kernel."""
        group = Group()
        for number, kind in item.members:
            item.fds.append(self._one(number, kind, group))
        return []

    def _one(self, number: int, kind: Kind, group: Group) -> int:
        tunnel = self.tunnel
        if kind in {Kind.IN, Kind.OUT}:
            return tunnel.pipe(number, kind, group)
        if kind is Kind.SESSION:
            return tunnel.socketed(number, lambda t, n, end: SessionMessages(t, n, end, group))
        if kind is Kind.LANE:
            return tunnel.socketed(number, self._lane)
        if kind is Kind.KERNEL_PACKETS:
            return tunnel.socketed(number, lambda t, n, end: Packets(t, n, end, group))
        if kind is Kind.KERNEL_STREAM:
            return tunnel.socketed(number, lambda t, n, end: Packets(t, n, end, group), socket.SOCK_STREAM)
        raise ValueError(f"a daemon makes no {kind.name}")

    def _lane(self, tunnel: Tunnel, number: int, descriptor: int) -> Lane:
        lane = Lane(tunnel, number, descriptor)
        lane.adopting = self.adopting
        return lane


class Lane(Frames):
    """With core, about commands."""

    tunnel: ClientTunnel
    adopting: LogCopy | None = None
    _asked = Origin(0, 0, 0)

    def take(self) -> tuple[bytes, list[int]] | None:
        """The next request; which command it is about is noted."""
        taken = super().take()
        if taken is not None:
            kind, _ = FRAME_HEAD.unpack_from(taken[0])
            if kind in {p.START, p.ATTACH}:
                # Arguments and variables of a START come more than once.
                found = Attributes(decode(taken[0][FRAME_HEAD.size :]))
                flags = found.u32(p.TAG_FLAGS) & p.START_CHANGES
                self._asked = Origin(found.u64(p.TAG_SANDBOX), found.u32(p.TAG_COMMAND), flags)
        return taken

    def opened(self, _body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """The conversation with a file server that is asked for."""
        found = []
        for descriptor in fds:
            number = self.tunnel.new_number()
            FileTalk(self.tunnel, number, descriptor)
            found.append((number, Kind.FILES))
        return found

    def mirror(self, item: Item) -> list[LogCopy]:
        """A command's log, or a connection to a port."""
        logs = []
        for number, kind in item.members:
            if kind is Kind.STREAM:
                item.fds.append(self.tunnel.socketed(number, _stream, socket.SOCK_STREAM))
            elif kind in {Kind.LOG, Kind.LOG_ENDED}:
                if self.adopting is not None:
                    self.adopting.go_on(self.tunnel, number)
                    continue
                log = LogCopy(self.tunnel, number, self._asked, ended=kind is Kind.LOG_ENDED)
                log.when_ready = self.flush
                item.fds += log.fds
                logs.append(log)
            else:
                raise ValueError(f"core gives no {kind.name}")
        return logs


class FileTalk(Frames):
    """With a sandbox's file server."""

    tunnel: ClientTunnel

    def mirror(self, item: Item) -> list[LogCopy]:
        """Open files, and what tells of changes."""
        for number, kind in item.members:
            if kind is Kind.FILE:
                item.fds.append(self.tunnel.socketed(number, _stream, socket.SOCK_STREAM))
            elif kind is Kind.EVENTS:
                item.fds.append(self.tunnel.socketed(number, Packets))
            else:
                raise ValueError(f"a file server gives no {kind.name}")
        return []
