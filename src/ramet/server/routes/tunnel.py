"""The way in for `ramet.connect`: the table of operations, over one web socket (docs/internals/tunnel.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ramet.errors import RametError
from ramet.server.faults import Refused
from ramet.server.operations import Gate
from ramet.server.routes.common import ERRORS, identity_of, settings_of, tenant_of
from ramet.server.tunnels import ServerTunnel
from ramet.tunnel.channels import PATH, VERSION

router = APIRouter(responses=ERRORS, tags=["server"])
UNSENT_MAX = 4 << 20
"""Bytes that wait to be sent before channels are to say no more."""
SILENT_S = 60.0
"""After so long without a word the client is given up, and what it has not detached ends."""


@router.websocket(PATH)
async def tunnel(websocket: WebSocket) -> None:
    """What `ramet.connect` asks, with the answers: see docs/internals/tunnel.md."""
    tenant, identity, settings = tenant_of(websocket), identity_of(websocket), settings_of(websocket)
    version = websocket.headers.get("x-ramet-tunnel", "")
    if version != str(VERSION):
        raise Refused(
            400,
            "protocol_mismatch",
            f"the client speaks protocol {version or 'none'} of tunnels, this is {VERSION}",
        )
    guard = websocket.app.state.guard
    gate = Gate(tenant, identity, settings, lambda: guard.bound_rate(identity))
    with tenant.streaming(identity):
        await websocket.accept()
        outgoing = _Outgoing(websocket)
        end = ServerTunnel(
            asyncio.get_running_loop(),
            outgoing.put,
            gate,
            lambda operation, status, seconds: guard.note_operation(
                websocket.scope, identity, operation, status, seconds
            ),
        )
        outgoing.tunnel = end
        sending = asyncio.ensure_future(outgoing.send())
        hearing = asyncio.ensure_future(_hear(websocket, end))
        try:
            await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, hearing):
                task.cancel()
            await asyncio.gather(sending, hearing, return_exceptions=True)
            await end.aclose()
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect):
                await websocket.close()


async def _hear(websocket: WebSocket, end: ServerTunnel) -> None:
    while True:
        async with asyncio.timeout(SILENT_S):
            message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            end.heard(message.get("bytes") or b"")
        except (ValueError, RametError):
            return


class _Outgoing:
    """What waits to be sent."""

    def __init__(self, websocket: WebSocket) -> None:
        self.tunnel: ServerTunnel | None = None
        self._websocket = websocket
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._more = asyncio.Event()

    def put(self, frame: bytes) -> None:
        """Send it soon."""
        self._waiting.append(frame)
        self._size += len(frame)
        self._more.set()
        if self._size > UNSENT_MAX and self.tunnel is not None:
            self.tunnel.congest()

    async def send(self) -> None:
        """Send what comes, for as long as there is a client."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                frame = self._waiting.popleft()
                self._size -= len(frame)
                await self._websocket.send_bytes(frame)
            if self.tunnel is not None and self.tunnel.congested:
                self.tunnel.relieve()
