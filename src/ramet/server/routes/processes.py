"""Commands that go on when nobody listens: started, followed from a cursor, fed, ended."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response, WebSocket
from starlette.responses import StreamingResponse

from ramet.client._async.commands import AsyncCommand
from ramet.errors import InvalidRequest, RametError, WaitTimeout
from ramet.server import following, schemas
from ramet.server.following import Pieces, ServerSent, Told, bytes_of, check_known, written
from ramet.server.routes.common import ERRORS, Asker, Json, Key, Who, heard, identity_of, tenant_of, text_of
from ramet.server.tenants import Tenant

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/processes", responses=ERRORS, tags=["processes"])
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Events: stdout, stderr, gap, exit"}
}


@router.post("", status_code=201)
async def start(sandbox_id: str, body: schemas.ProcessRequest, tenant: Asker, key: Key) -> Response:
    """Start a command; it goes on until it ends, is killed, or its time is up."""

    async def work() -> dict[str, Any]:
        commands = await tenant.commands(sandbox_id)
        command = await commands.start(
            body.command,
            env=body.env,
            cwd=body.cwd,
            user=body.user,
            timeout=body.timeout,
            stdin=body.stdin,
        )
        command.close()
        return {"id": command.id, "pid": command.pid, "sandbox": commands.sandbox}

    told = await tenant.once(key, f"start {sandbox_id} {text_of(body.model_dump())}", work)
    return Json(told, 201)


@router.get("")
async def list_processes(sandbox_id: str, tenant: Asker) -> Response:
    """Those that run, and those that ended in the last minutes."""
    return Json([one.to_dict() for one in await (await tenant.commands(sandbox_id)).list()])


@router.get("/{process_id}")
async def get_process(
    sandbox_id: str,
    process_id: int,
    tenant: Asker,
    who: Who,
    request: Request,
    wait: Annotated[float, Query(ge=0, le=3600, description="Seconds to wait for its end.")] = 0,
) -> Response:
    """What is known of it, and once it has ended its result. To wait takes the place of a stream."""
    commands = await tenant.commands(sandbox_id)
    command = await commands.connect(process_id)
    try:
        with contextlib.suppress(WaitTimeout), tenant.streaming(who) if wait else contextlib.nullcontext():
            async with tenant.kept(sandbox_id):
                result = await heard(request, command.wait(wait), waits=True)
            return Json({"id": command.id, "pid": command.pid, "status": "ended", "result": result.to_dict()})
        return Json({"id": command.id, "pid": command.pid, "status": "running", "result": None})
    finally:
        command.close()


@router.delete("/{process_id}", status_code=204)
async def kill_process(sandbox_id: str, process_id: int, tenant: Asker) -> Response:
    """Kill every process of it, wherever it went."""
    await (await tenant.commands(sandbox_id)).kill(process_id)
    return Response(status_code=204)


@router.post("/{process_id}/signal", status_code=204)
async def send_signal(
    sandbox_id: str, process_id: int, body: schemas.SignalRequest, tenant: Asker
) -> Response:
    """Send a signal to the group that it began with."""
    await (await tenant.commands(sandbox_id)).send_signal(process_id, body.signal)
    return Response(status_code=204)


@router.post("/{process_id}/stdin", status_code=204)
async def feed(
    sandbox_id: str,
    process_id: int,
    request: Request,
    tenant: Asker,
    eof: Annotated[bool, Query(description="Its standard input ends here.")] = False,
    timeout: Annotated[float | None, Query(ge=0, le=3600)] = None,
) -> Response:
    """The body is what it reads next. Answers when all of it is in its pipe."""
    command = await (await tenant.commands(sandbox_id)).connect(process_id)
    try:
        if data := await request.body():
            await command.send(data, timeout)
        if eof:
            await _end_input(command)
    finally:
        command.close()
    return Response(status_code=204)


async def _end_input(command: AsyncCommand) -> None:
    try:
        await command.close_stdin()
    except RametError as error:
        # It has ended meanwhile of what it read, and so has its input.
        if error.code != "stdin_closed":
            raise


# --- streams ----------------------------------------------------------------------------------------------


def _cursor(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    out, _, err = text.partition(":")
    if not (out.isdecimal() and err.isdecimal() and len(out) < 20 and len(err) < 20):
        raise InvalidRequest.of("cursor", f"{text[:40]!r} is not two numbers, as 12:0")
    return int(out), int(err)


@router.get("/{process_id}/stream", response_class=StreamingResponse, responses=STREAM)
async def stream(
    sandbox_id: str,
    process_id: int,
    tenant: Asker,
    who: Who,
    cursor: Annotated[str | None, Query(description="Where to go on, as the ids of events tell it.")] = None,
    last: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """What it writes, as server-sent events, from the cursor on until its end; `data` is JSON."""
    command = await (await tenant.commands(sandbox_id)).connect(process_id, cursor=_cursor(last or cursor))
    using = contextlib.AsyncExitStack()
    using.callback(command.close)
    try:
        using.enter_context(tenant.streaming(who))
        await using.enter_async_context(tenant.kept(sandbox_id))
    except BaseException:
        await using.aclose()
        raise
    return ServerSent(told(command), using)


def told(command: AsyncCommand) -> Told:
    """What a command writes as objects of JSON, and its end."""
    return written(lambda: _pieces(command), lambda: "{}:{}".format(*command.cursor), command.wait)


async def _pieces(command: AsyncCommand) -> Pieces:
    async for name, data in command.output():
        yield name, data


_SAID = frozenset({"stdin", "eof", "signal", "kill"})


@router.websocket("/{process_id}/ws")
async def converse(websocket: WebSocket, sandbox_id: str, process_id: int) -> None:
    """The same events as JSON text, and the other way ``stdin`` (base64), ``eof``, ``signal``, ``kill``."""
    tenant: Tenant = tenant_of(websocket)
    who = identity_of(websocket)
    commands = await tenant.commands(sandbox_id)
    cursor = _cursor(websocket.query_params.get("cursor"))
    async with contextlib.AsyncExitStack() as using:
        using.enter_context(tenant.streaming(who))
        await using.enter_async_context(tenant.kept(sandbox_id))
        command = await commands.connect(process_id, cursor=cursor)
        using.callback(command.close)
        await following.converse(websocket, told(command), lambda message: _obey(message, command))


async def _obey(message: dict[str, Any], command: AsyncCommand) -> None:
    check_known(message, _SAID)
    if (data := bytes_of(message, "stdin")) is not None:
        await command.send(data)
    if message.get("eof"):
        await _end_input(command)
    if (number := message.get("signal")) is not None:
        await command.send_signal(number)
    if message.get("kill"):
        await command.kill()
