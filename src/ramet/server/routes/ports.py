"""Servers in a sandbox, reached through the server without any way out of the sandbox."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from ramet.client._async.ports import AsyncPorts
from ramet.errors import RametError
from ramet.server.routes.common import ERRORS, identity_of, tenant_of

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/ports", responses=ERRORS, tags=["ports"])
CHUNK = 1 << 16
STUCK_S, GONE_S = 600.0, 5.0
"""How long the guest may read nothing, and how long what a client that has gone sent may take to be read."""


@router.websocket("/{port}")
async def tunnel(websocket: WebSocket, sandbox_id: str, port: int) -> None:
    """A connection to what listens on `port` of the sandbox's loopback: its bytes as binary messages."""
    tenant = tenant_of(websocket)
    commands = await tenant.commands(sandbox_id)
    with tenant.streaming(identity_of(websocket)):
        connected = await AsyncPorts(commands).connect(port)
        try:
            reader, writer = await asyncio.open_connection(sock=connected)
        except BaseException:
            connected.close()
            raise
        try:
            await websocket.accept()
            async with tenant.kept(sandbox_id):
                await _pass_on(websocket, reader, writer)
        finally:
            writer.close()
            try:
                async with asyncio.timeout(GONE_S):
                    await writer.wait_closed()
            except TimeoutError:
                writer.transport.abort()
            except ConnectionError:
                pass


async def _pass_on(websocket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def inwards() -> None:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            writer.write(message.get("bytes") or (message.get("text") or "").encode())
            async with asyncio.timeout(STUCK_S):
                await writer.drain()

    async def outwards() -> None:
        while piece := await reader.read(CHUNK):
            await websocket.send_bytes(piece)
        await websocket.close()

    tasks = [asyncio.ensure_future(inwards()), asyncio.ensure_future(outwards())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            known = (asyncio.CancelledError, OSError, RuntimeError, WebSocketDisconnect, RametError)
            if isinstance(outcome, BaseException) and not isinstance(outcome, known):
                raise outcome
