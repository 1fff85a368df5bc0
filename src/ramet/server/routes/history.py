"""What befalls a tenant's sandboxes and snapshots, and what they come from."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from ramet.client._async.client import PATIENCE_S
from ramet.client._async.events import AsyncEvents
from ramet.errors import RametError, WaitTimeout
from ramet.models.events import WAIT_MAX_S, EventsRequest
from ramet.models.sandboxes import ListRequest
from ramet.server import schemas
from ramet.server.faults import body_of
from ramet.server.following import ServerSent, Told
from ramet.server.routes.common import ERRORS, Asker, Json, Who, heard
from ramet.server.tenants import Tenant

router = APIRouter(prefix="/v1", responses=ERRORS, tags=["history"])
STREAM = "text/event-stream"
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {STREAM: {}}, "description": "The next events, or a stream of them"}
}


@router.get("/events", response_model=schemas.EventPage, response_model_exclude_none=True, responses=EVENTS)
async def events(
    tenant: Asker,
    who: Who,
    asked: Request,
    cursor: Annotated[
        str | None,
        Query(description="Where to go on, as the page or event before told it; `start`: all that is kept."),
    ] = None,
    wait: Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="Seconds to wait for the first.")] = 0,
    types: Annotated[list[str] | None, Query(description="Only these.")] = None,
    sandbox: Annotated[str | None, Query(description="Only of the one of this id or name.")] = None,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
    last: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """The next events after the cursor; without one, none, and the cursor of this moment.

    With ``Accept: text/event-stream`` all that follow, as server-sent events whose ids are cursors, after an
    event ``open`` that has none but its cursor. What a reader missed is told by an event ``gap``.
    """
    request = EventsRequest.of(cursor=last or cursor, wait=wait, types=types, sandbox=sandbox)
    if STREAM not in (accept or ""):
        with tenant.streaming(who) if wait else contextlib.nullcontext():
            try:
                return Json(await heard(asked, _page(tenant, request), waits=True))
            except WaitTimeout:
                return Json(await _page(tenant, dataclasses.replace(request, wait=0.0)))
    # The place is taken before the answer begins: what happens from then on is in it.
    found = await AsyncEvents(request.cursor, types=types, sandbox=sandbox, client=tenant.client).start()
    using = contextlib.AsyncExitStack()
    using.enter_context(tenant.streaming(who))
    return ServerSent(_told(found), using)


async def _page(tenant: Tenant, request: EventsRequest) -> dict[str, Any]:
    return await tenant.client.ask("events", request.to_wire(), patience=request.wait + PATIENCE_S)


async def _told(events: AsyncEvents) -> Told:
    yield {"event": "open", "cursor": events.cursor}
    try:
        async for event in events:
            yield {"event": event.type, **event.to_wire()}
    except RametError as error:
        yield {"event": "error", "cursor": events.cursor, **body_of(error)}


@router.get("/lineage", response_model=schemas.Lineage)
async def lineage(
    tenant: Asker,
    ended: Annotated[bool, Query(description="Also what nothing comes from any more.")] = False,
    name: Annotated[str | None, Query(description="Only this sandbox, and what it comes from.")] = None,
    parent: Annotated[str | None, Query(description="Only forks of this sandbox.")] = None,
    snapshot: Annotated[str | None, Query(description="Only forks of this snapshot.")] = None,
) -> Response:
    """Who was forked from what: sandboxes, snapshots and templates, and what those come from, also ended."""
    request = ListRequest.of(ended=ended, name=name, parent=parent, snapshot=snapshot)
    return Json(await tenant.client.ask("lineage", request.to_wire()))
