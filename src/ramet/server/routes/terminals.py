"""Terminals: opened with a size, followed and typed into over a web socket, left and come back to."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from fastapi import APIRouter, Response, WebSocket

from ramet.client._async.terminals import SCROLLBACK, AsyncTerminal, AsyncTerminals
from ramet.errors import InvalidRequest
from ramet.server import schemas
from ramet.server.following import Pieces, Told, bytes_of, check_known, converse, written
from ramet.server.routes.common import ERRORS, Asker, Json, Key, identity_of, tenant_of, text_of
from ramet.server.tenants import Tenant

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/terminals", responses=ERRORS, tags=["terminals"])


async def _terminals(tenant: Tenant, sandbox_id: str) -> AsyncTerminals:
    return AsyncTerminals(await tenant.commands(sandbox_id))


@router.post("", status_code=201)
async def open_terminal(sandbox_id: str, body: schemas.TerminalRequest, tenant: Asker, key: Key) -> Response:
    """A terminal with a command in it, by default a shell. It stays until the command ends or is killed."""

    async def work() -> dict[str, Any]:
        commands = await tenant.commands(sandbox_id)
        terminal = await AsyncTerminals(commands).create(
            body.command,
            size=(body.rows, body.columns),
            env=body.env,
            cwd=body.cwd,
            user=body.user,
            timeout=body.timeout,
        )
        terminal.close()
        return {"id": terminal.id, "pid": terminal.pid, "sandbox": commands.sandbox}

    told = await tenant.once(key, f"terminal {sandbox_id} {text_of(body.model_dump())}", work)
    return Json(told, 201)


@router.get("")
async def list_terminals(sandbox_id: str, tenant: Asker) -> Response:
    """Those that are open, and those that ended in the last minutes."""
    return Json([one.to_dict() for one in await (await _terminals(tenant, sandbox_id)).list()])


@router.delete("/{terminal_id}", status_code=204)
async def kill_terminal(sandbox_id: str, terminal_id: int, tenant: Asker) -> Response:
    """Kill every process that was started in it, wherever it went."""
    terminal = await (await _terminals(tenant, sandbox_id)).connect(terminal_id)
    try:
        await terminal.kill()
    finally:
        terminal.close()
    return Response(status_code=204)


@router.post("/{terminal_id}/resize", status_code=204)
async def resize(sandbox_id: str, terminal_id: int, body: schemas.SizeRequest, tenant: Asker) -> Response:
    """Give it another size; what runs in its foreground gets SIGWINCH."""
    terminal = await (await _terminals(tenant, sandbox_id)).connect(terminal_id)
    try:
        await terminal.resize(body.rows, body.columns)
    finally:
        terminal.close()
    return Response(status_code=204)


@router.websocket("/{terminal_id}/ws")
async def attach(websocket: WebSocket, sandbox_id: str, terminal_id: str) -> None:
    """``output`` (base64) from ``?cursor=`` on, or of the last ``?scrollback=`` bytes, and ``exit``.

    The other way ``input`` (base64), ``resize`` (rows and columns), ``signal``, ``kill``. It stays open when
    the web socket is closed.
    """
    tenant: Tenant = tenant_of(websocket)
    query = websocket.query_params
    cursor, back = _number(query.get("cursor"), "cursor"), _number(query.get("scrollback"), "scrollback")
    number = _number(terminal_id, "terminal")
    assert number is not None  # noqa: S101  it is a part of the path
    terminals = await _terminals(tenant, sandbox_id)
    async with contextlib.AsyncExitStack() as using:
        using.enter_context(tenant.streaming(identity_of(websocket)))
        await using.enter_async_context(tenant.kept(sandbox_id))
        terminal = await terminals.connect(
            number, cursor=cursor, scrollback=SCROLLBACK if back is None else back
        )
        using.callback(terminal.close)
        await converse(websocket, _told(terminal), lambda message: _obey(message, terminal))


def _number(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidRequest.of(field, f"{text[:40]!r} is no number")
    return int(text)


def _told(terminal: AsyncTerminal) -> Told:
    return written(lambda: _pieces(terminal), lambda: terminal.cursor, terminal.wait)


async def _pieces(terminal: AsyncTerminal) -> Pieces:
    async for data in terminal.output():
        yield "output", data


_SAID = frozenset({"input", "resize", "signal", "kill"})


async def _obey(message: dict[str, Any], terminal: AsyncTerminal) -> None:
    check_known(message, _SAID)
    if (size := message.get("resize")) is not None:
        if not isinstance(size, list) or len(size) != 2:
            raise InvalidRequest.of("resize", "must be a list of rows and columns")
        await terminal.resize(*size)
    if (data := bytes_of(message, "input")) is not None:
        await terminal.write(data)
    if (number := message.get("signal")) is not None:
        await terminal.send_signal(number)
    if message.get("kill"):
        await terminal.kill()
