"""Passing connections of this machine on to a sandbox: threads, whichever client asked."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import Any, Self

from ramet.errors import InvalidRequest, RametError
from ramet.models.limits import shown

CHUNK = 1 << 16
BUSY_MS = 50


def check_port(value: object, field: str = "port", *, free: bool = False) -> int:
    """`value` as a port; 0 is any with `free`. Raises InvalidRequest naming `field`."""
    if type(value) is not int or not (0 if free else 1) <= value <= 65535:
        raise InvalidRequest.of(field, f"{shown(value)} is no port")
    return value


class Forward:
    """A listening port of this machine that leads to one of a sandbox."""

    def __init__(self, sandbox: str, port: int, address: tuple[str, int], place: dict[str, Any]) -> None:
        """`place` is what makes a client. Raises InvalidRequest naming ``local``."""
        self.port = port
        """The port in the sandbox."""
        try:
            self._listener = socket.create_server(address)
        except (OSError, OverflowError) as error:
            # create_server() adds the address to what the system says, which has an errno above 0.
            number = getattr(error, "errno", None) or 0
            said = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
            raise InvalidRequest.of("local", f"{address[0]}:{address[1]}: {said}") from None
        self._listener.setblocking(False)  # noqa: FBT003  who knocked may have gone
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        """Where it listens: host and port."""
        self._sandbox = sandbox
        self._place = place
        self._wake, self._waker = socket.socketpair()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._serve, name=f"ramet-forward-{port}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """As an address for HTTP."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def close(self) -> None:
        """Stop listening, and end the connections."""
        self._waker.close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        from ramet.client._sync.client import Client
        from ramet.client._sync.commands import Commands
        from ramet.client._sync.ports import Ports

        with Client(**self._place) as client, self._listener, self._wake:
            ports = Ports(Commands(self._sandbox, client=client))
            passing: list[threading.Thread] = []
            while (near := self._accepted()) is not None:
                try:
                    far = ports.connect(self.port)
                except RametError:
                    near.close()
                    continue
                self._open |= {near, far}
                passing = [one for one in passing if one.is_alive()]
                passing.append(threading.Thread(target=self._pass_on, args=(near, far), daemon=True))
                passing[-1].start()
            for one in list(self._open):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in passing:
                thread.join()

    def _accepted(self) -> socket.socket | None:
        """The next connection; None when there are to be no more."""
        waiting = select.poll()  # select(2) cannot name descriptors above 1023
        waiting.register(self._wake, select.POLLIN)
        while True:
            waiting.register(self._listener, select.POLLIN)
            if any(number == self._wake.fileno() for number, _ in waiting.poll()):
                return None
            try:
                return self._listener.accept()[0]
            except (BlockingIOError, ConnectionError):
                continue  # it went again
            except OSError:  # this process has no descriptor left for it, now
                waiting.unregister(self._listener)
                if waiting.poll(BUSY_MS):
                    return None

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        self._open -= {near, far}
        near.close()
        far.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Everything that comes, and then its end."""
    with contextlib.suppress(OSError):
        while piece := source.recv(CHUNK):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
