"""The engine's own time from a fork's request to its first answer: what crosses sockets, without a client.

Core, init, stem and kernel are those that the SDK asks, and so are the bytes, but for numbers. What can be
made before the request is made before the clock: descriptors, plan, messages.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from typing import Self

from ramet._descriptors import close_all, rights
from ramet.client import Client
from ramet.client._forks import ANSWER_BYTES, question
from ramet.client._kernel import forked
from ramet.kernels import get
from ramet.models.forks import Child, ForkRequest
from ramet.models.sandboxes import hostname_of
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.channels import Channel

PATIENCE_S = 30.0
RECEIVE = 1 << 16


class BareForks:
    """Forks of one snapshot, each asked for over one lane to core."""

    def __init__(self, snapshot: str) -> None:
        self._client = Client()
        request = question(ForkRequest(snapshot=snapshot), lane=True)
        opened = self._client._open_fork_lane(request)  # noqa: SLF001  there is no other way to core
        if opened is None:
            raise RuntimeError(f"there is no lane to the core that has {snapshot}")
        self._known, self._lane = opened
        self._lane.sock.setblocking(True)  # noqa: FBT003
        kernel = self._known.info.kernel
        if kernel is None:
            raise RuntimeError(f"{snapshot} has no kernel")
        self._kernel = get(kernel.name)
        self._requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._lane.close()
        self._client.close()

    def first_answer(self, code: str, told: bytes) -> float:
        """Milliseconds from the request for a child until it has said `told` of `code`; it is ended then."""
        number = secrets.randbits(48) or 1
        name = f"{number:012x}"
        session, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(kernel=self._known.info.kernel)
        kernel = socket.socket(fileno=os.dup(channel.ours[3]))
        kernel.settimeout(PATIENCE_S)
        session.settimeout(PATIENCE_S)
        self._requests += 1
        plan = self._known.plan(Child(), number, time.time(), None)
        asked = frames.encode(p.CREATE, self._requests, plan, 5)
        fds = rights([*channel.theirs, theirs.fileno()])
        (is_child,) = self._kernel.fresh(forked(self._known.info.epoch, name, hostname_of(None, name)))
        (run,) = self._kernel.request({"op": "run", "id": "bare", "code": code})
        buffer, said = bytearray(ANSWER_BYTES), b""
        try:
            begin = time.perf_counter()
            self._lane.sock.sendmsg([asked], fds)
            kernel.send(is_child)
            frame = frames.receive(session, buffer)
            kernel.send(run)
            while told not in said:
                piece = kernel.recv(RECEIVE)
                if not piece:
                    raise RuntimeError("the child has ended")
                said += piece
            took = (time.perf_counter() - begin) * 1e3
            if frame is None or frame.kind != p.OK:
                raise RuntimeError("core has not made the child")
            # As the SDK does: its teardown would be on the next one's bill.
            frames.send(session, p.KILL, 0, b"", [])
            frames.receive(session, buffer)
            return took
        finally:
            for one in (kernel, session, theirs):
                one.close()
            channel.close()
            close_all(channel.take_theirs())
