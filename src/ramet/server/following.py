"""What is told of something that goes on, as objects of JSON: by server-sent events, and by web socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ramet.errors import InvalidRequest, RametError
from ramet.models.results import CommandResult
from ramet.server.faults import body_of

BEAT_S = 15.0
"""A comment goes over a silent stream so often: proxies end what is silent for long."""
END_S = 60.0
Pieces = AsyncGenerator[tuple[str, bytes]]
Told = AsyncGenerator[dict[str, Any]]
AHEAD, STUCK_S, GONE_S = 16, 60.0, 5.0
"""Messages of a web socket that are heard ahead, how long one waits behind them, and how long what a client
that has gone said is still done."""


async def written(
    pieces: Callable[[], Pieces],
    at: Callable[[], int | str],
    wait: Callable[[float], Awaitable[CommandResult]],
) -> Told:
    """What a command writes, with the cursor `at` which it goes on after each piece, and its end."""
    while True:
        try:
            async with contextlib.aclosing(pieces()) as found:
                async for name, data in found:
                    yield {"event": name, "data": base64.b64encode(data).decode(), "cursor": at()}
            break
        except RametError as error:
            if error.code != "output_left_out":
                yield {"event": "error", "cursor": at(), **body_of(error)}
                return
            yield {"event": "gap", "cursor": at(), **body_of(error)}
    try:
        result = await wait(END_S)
    except RametError as error:
        yield {"event": "error", "cursor": at(), **body_of(error)}
        return
    end = {name: value for name, value in result.to_dict().items() if name not in {"stdout", "stderr"}}
    yield {"event": "exit", "cursor": at(), **end}


class ServerSent(StreamingResponse):
    """The same as server-sent events, whose ids are cursors. `using` is closed afterwards."""

    def __init__(self, told: Told, using: contextlib.AsyncExitStack) -> None:
        super().__init__((), media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._told = told
        self._using = using

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the server is to end: clients come back with the cursor that they have then."""
        self.body_iterator = _lines(self._told, scope["app"].state.stopping)
        # Not in the generator: that is never begun for a client that has gone already.
        async with self._using:
            await super().__call__(scope, receive, send)


async def _lines(told: Told, stopping: asyncio.Event) -> AsyncIterator[str]:
    async with contextlib.aclosing(told) as events:
        async for event in _beating(events, stopping):
            if event is None:
                yield ": nothing yet\n\n"
                continue
            kind = event["event"]
            yield f"event: {kind}\nid: {event['cursor']}\ndata: {json.dumps(event)}\n\n"


async def _beating(
    events: AsyncIterator[dict[str, Any]], stopping: asyncio.Event
) -> AsyncIterator[dict[str, Any] | None]:
    """The same, until the server is to end, and None whenever there was nothing for a while."""
    pending: asyncio.Future[dict[str, Any]] | None = None
    ending = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            both: list[asyncio.Future[Any]] = [pending, ending]
            await asyncio.wait(both, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not pending.done():
                if ending.done():
                    return
                yield None
                continue
            finished, pending = pending, None
            try:
                yield finished.result()
            except StopAsyncIteration:
                return
    finally:
        ending.cancel()
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending


# --- web sockets ------------------------------------------------------------------------------------------


async def converse(
    websocket: WebSocket, told: Told, obey: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Tell all of it as JSON text, and have `obey` do what the other side sends, until either has ended."""
    await websocket.accept()
    writing = asyncio.ensure_future(_write_all(websocket, told))
    reading = asyncio.ensure_future(_read_all(websocket, obey))
    try:
        await asyncio.wait([writing, reading], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (writing, reading):
            task.cancel()
        await asyncio.gather(writing, reading, return_exceptions=True)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close()


async def _write_all(websocket: WebSocket, told: Told) -> None:
    async with contextlib.aclosing(told) as events:
        async for event in events:
            await websocket.send_json(event)


async def _read_all(websocket: WebSocket, obey: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """What comes is heard also while `obey` waits: so a client that goes is noticed."""
    heard: asyncio.Queue[str | bytes | None] = asyncio.Queue(AHEAD)
    hearing = asyncio.ensure_future(_hear(websocket, heard))
    doing = asyncio.ensure_future(_obey_all(websocket, heard, obey))
    try:
        await asyncio.wait([hearing, doing], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            await asyncio.wait([doing], timeout=GONE_S)
    finally:
        for task in (hearing, doing):
            task.cancel()
        await asyncio.gather(hearing, doing, return_exceptions=True)


async def _hear(websocket: WebSocket, heard: asyncio.Queue[str | bytes | None]) -> None:
    while True:
        text = await _next_text(websocket)
        async with asyncio.timeout(STUCK_S):
            await heard.put(text)
        if text is None:
            return


async def _obey_all(
    websocket: WebSocket,
    heard: asyncio.Queue[str | bytes | None],
    obey: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    while True:
        try:
            text = await heard.get()
            if text is None:
                return
            await obey(_message_of(text))
        except (WebSocketDisconnect, RuntimeError):
            return
        except RametError as error:
            await websocket.send_json({"event": "error", **body_of(error)})
        except ValueError as error:
            told_error = InvalidRequest("malformed", f"not what a message is: {error}")
            await websocket.send_json({"event": "error", **body_of(told_error)})


def _message_of(text: str | bytes) -> dict[str, Any]:
    """Raises InvalidRequest, ValueError."""
    try:
        message = json.loads(text)
    except RecursionError:
        raise InvalidRequest("malformed", "brackets are within brackets too often") from None
    if not isinstance(message, dict):
        raise InvalidRequest("malformed", "a message is an object")
    return message


def check_known(message: dict[str, Any], known: frozenset[str]) -> None:
    """That all of a message is heeded. Raises InvalidRequest."""
    if unknown := message.keys() - known:
        raise InvalidRequest.of(f"{min(unknown):.80}", f"is none of {', '.join(sorted(known))}")


async def _next_text(websocket: WebSocket) -> str | bytes | None:
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    found: str | bytes = message.get("text") or message.get("bytes") or ""
    return found


def bytes_of(message: dict[str, Any], name: str) -> bytes | None:
    """The bytes that a message has under this name. Raises InvalidRequest."""
    data = message.get(name)
    if data is None:
        return None
    try:
        if not isinstance(data, str):
            raise ValueError("it is no text")  # noqa: TRY004  told as the other below
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise InvalidRequest.of(name, f"must be base64: {error}") from None
