"""What routes have in common: who asks, and the errors that all of them may answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ramet.errors import InvalidRequest, WaitTimeout
from ramet.server.encoding import encoded
from ramet.server.faults import Refused
from ramet.server.schemas import ErrorBody
from ramet.server.settings import Settings
from ramet.server.tenants import Tenant
from ramet.server.tokens import Identity

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (400, "An argument is wrong"),
        (401, "No token, or none that is known"),
        (403, "The token has not the scope"),
        (404, "There is none, or it has ended"),
        (408, "The body came too slowly"),
        (409, "It is not in a state for this"),
        (413, "The body is too large"),
        (415, "The body is no JSON"),
        (422, "A field is missing or of another type"),
        (429, "There is no room now"),
        (500, "It failed"),
        (502, "Nothing listens there"),
        (503, "The server is busy or ending"),
        (504, "It did not come in time"),
        (507, "The sandbox's disk is full"),
    )
}


def tenant_of(connection: HTTPConnection) -> Tenant:
    """The tenant who asks."""
    found: Tenant = connection.state.tenant
    return found


def identity_of(connection: HTTPConnection) -> Identity:
    """Who asks."""
    found: Identity = connection.state.identity
    return found


def settings_of(connection: HTTPConnection) -> Settings:
    """How the server runs."""
    found: Settings = connection.app.state.settings
    return found


# The framework has a thread carry out a dependency that is no coroutine: some 0.1 ms each, of every request.


async def _tenant(connection: HTTPConnection) -> Tenant:
    return tenant_of(connection)


async def _identity(connection: HTTPConnection) -> Identity:
    return identity_of(connection)


async def _settings(connection: HTTPConnection) -> Settings:
    return settings_of(connection)


async def administrator(connection: HTTPConnection) -> Identity:
    """Who asks, with the scope admin. Raises Refused."""
    identity = identity_of(connection)
    if not identity.may("admin"):
        raise Refused(403, "forbidden", "this needs a token with the scope admin")
    return identity


Asker = Annotated[Tenant, Depends(_tenant)]
Who = Annotated[Identity, Depends(_identity)]
Admin = Annotated[Identity, Depends(administrator)]
How = Annotated[Settings, Depends(_settings)]


async def idempotency_key(
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key", description="The same request with the same key is carried out once."
        ),
    ] = None,
) -> str | None:
    """The key of a request that may come twice. Raises InvalidRequest."""
    if key is not None and not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise InvalidRequest.of("Idempotency-Key", "is not 1 to 255 characters of printable ASCII")
    return key


async def _key(request: Request) -> str | None:
    return await idempotency_key(request.headers.get("idempotency-key"))


Key = Annotated[str | None, Depends(idempotency_key)]
DEPENDENCIES: dict[Any, Callable[[Request], Awaitable[Any]]] = {
    _tenant: _tenant,
    _identity: _identity,
    _settings: _settings,
    idempotency_key: _key,
}
"""How to have what a function depends on without the framework."""
T = TypeVar("T")
GONE = 499
"""What the audit log has of a request whose client did not wait for the answer."""


class Json(Response):
    """JSON, of what is JSON already: nothing is looked at again."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """As bytes."""
        return encoded(content)


async def heard(request: Request, work: Coroutine[Any, Any, T], *, waits: bool = False) -> T:
    """The result of `work`, which is cancelled when the client goes: nobody would hear of it, or end it.

    `waits`: it does nothing but that. Then it is cancelled also when the server is to end, and this raises
    WaitTimeout.
    """
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    ends: list[asyncio.Future[Any]] = [working, going]
    if waits:
        ends.append(asyncio.ensure_future(request.app.state.stopping.wait()))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if going.done():
            raise Refused(GONE, "gone", "the client has gone")
        raise WaitTimeout("wait_timeout", "the server ends")
    finally:
        for one in ends:
            one.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def text_of(body: Any) -> str:
    """A request in one line, to tell whether it is the same."""
    return json.dumps(body, sort_keys=True, default=str)


__all__ = [
    "DEPENDENCIES", "ERRORS", "Admin", "Asker", "How", "Json", "Key", "Request", "Who", "administrator",
    "heard", "text_of",
]  # fmt: skip
