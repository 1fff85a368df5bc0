"""Web sockets whose other side is asked whether it is there still."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
import websockets
from uvicorn.server import ServerState

from ramet.server.listening import Patient

PATIENCE_S = 60.0
PING_S = 0.05
App = Callable[[Any, Any, Any], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(app: App, kind: type[Patient]) -> AsyncIterator[int]:
    """A port where `app` is behind web sockets of that kind."""
    config = uvicorn.Config(
        app, ws=kind, lifespan="off", log_config=None, ws_ping_interval=PING_S, ws_ping_timeout=PING_S
    )
    config.load()
    state = ServerState()
    listening = await asyncio.get_running_loop().create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with listening:
        yield listening.sockets[0].getsockname()[1]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*state.tasks)


async def test_who_is_not_read_while_the_application_is_busy_is_not_given_up() -> None:
    overdue, asked_again, heard = asyncio.Queue[None](), asyncio.Event(), []

    class Counting(Patient):
        def keepalive_timeout(self) -> None:
            overdue.put_nowait(None)
            super().keepalive_timeout()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        heard.append((await receive())["text"])
        for _ in range(3):
            await overdue.get()
        asked_again.set()
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message["text"])

    async with (
        serving(app, Counting) as port,
        asyncio.timeout(PATIENCE_S),
        websockets.connect(f"ws://127.0.0.1:{port}", ping_interval=None) as talk,
    ):
        for number in range(9):
            await talk.send(str(number))
        await asked_again.wait()
    assert heard == [str(number) for number in range(9)]


async def test_who_answers_no_ping_is_given_up() -> None:
    last: list[str] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        last.append((await receive())["type"])

    head = (
        "GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    async with serving(app, Patient) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        assert b"keepalive" in await reader.read()
        writer.close()
        await writer.wait_closed()
    assert last == ["websocket.disconnect"]
