# Generated from _async/ports.py by scripts/unasync.py. Do not edit.
"""Servers in a sandbox, reached from outside without any way out of it."""

from __future__ import annotations

import socket

from ramet.client._forward import Forward, check_port
from ramet.client._sync.commands import Commands
from ramet.native import _protocol as p
from ramet.native.frames import u32, u64


class Ports:
    """The ports of one sandbox. Each fork has its own, with the same numbers."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def connect(self, port: int) -> socket.socket:
        """A socket that is connected to what listens on `port` of the sandbox's loopback; it blocks.

        Raises RametError, code ``connection_refused``, when nothing does.
        """
        number = check_port(port)
        frame = self._commands.ask_core(
            p.CONNECT, lambda lane: u64(p.TAG_SANDBOX, lane.number) + u32(p.TAG_PORT, number)
        )
        connected = socket.socket(fileno=frame.fds[0])
        connected.setblocking(True)  # noqa: FBT003
        return connected

    def forward(self, port: int, *, local: int = 0, host: str = "127.0.0.1") -> Forward:
        """Listen on a port of this machine, by default any that is free, and pass connections on.

        It serves until it is closed, or its `with` block ends. Connections that find nobody listening in the
        sandbox are closed.
        """
        number = check_port(port)
        chosen = check_port(local, "local", free=True)
        self._commands.living()  # says by name what is wrong with the sandbox
        return Forward(self._commands.sandbox, number, (host, chosen), self._commands.beside())
