"""The client's end: what the server has is here a descriptor that gives the same."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from ramet.tunnel.channels import Bytes, Group, Item, Kind, Packets, Tunnel, What
from ramet.tunnel.conversations import Frames, Messages, SessionMessages, pair
from ramet.tunnel.logs import LogCopy
from ramet.wire import messages


class ClientTunnel(Tunnel):
    """It begins the conversations with the daemon, and mirrors what comes of them."""

    def begin(self, descriptor: int) -> None:
        """Have a conversation with the daemon, whose end here is `descriptor`."""
        number = self.new_number()
        self.put(What.OPEN, number)
        Daemon(self, number, descriptor)

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
            return tunnel.socketed(number, Lane)
        if kind is Kind.KERNEL_PACKETS:
            return tunnel.socketed(number, lambda t, n, end: Packets(t, n, end, group))
        if kind is Kind.KERNEL_STREAM:
            return tunnel.socketed(number, lambda t, n, end: Packets(t, n, end, group), socket.SOCK_STREAM)
        raise ValueError(f"a daemon makes no {kind.name}")


class Lane(Frames):
    """With core, about commands."""

    tunnel: ClientTunnel

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
                log = LogCopy(self.tunnel, number, ended=kind is Kind.LOG_ENDED)
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
