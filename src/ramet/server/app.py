"""The application: its routes, its errors, and its description."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from ramet._version import __version__
from ramet.errors import RametError
from ramet.server.direct import Direct
from ramet.server.faults import Refused, response_of
from ramet.server.guard import Audit, Guard
from ramet.server.routes import (
    files,
    guests,
    history,
    meta,
    ports,
    processes,
    sandboxes,
    snapshots,
    templates,
    terminals,
    tunnel,
    workspaces,
)
from ramet.server.settings import Settings
from ramet.server.tenants import Tenants
from ramet.server.tokens import DEFAULT_TENANT, Tokens

ROUTERS = (
    meta.router, sandboxes.router, snapshots.router, templates.router, workspaces.router, processes.router,
    terminals.router, files.router, ports.router, guests.router, history.router, tunnel.router,
)  # fmt: skip


def make_app(settings: Settings, tokens: Tokens | None, audit: Audit) -> Guard:
    """The application, behind what every request goes through."""
    app = FastAPI(
        title="Ramet",
        version=__version__,
        description="Sandboxes that fork. A superset of forkd's REST v1.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        redirect_slashes=False,
    )
    for router in ROUTERS:
        # They are whole: include_router() would work each out again, half a second of every start.
        app.router.routes.extend(router.routes)
    tenants = Tenants(settings, lambda: frozenset({DEFAULT_TENANT}) if tokens is None else tokens.tenants)
    app.state.settings = settings
    app.state.tenants = tenants
    app.state.stopping = asyncio.Event()
    """Set when the server is to end: who only waits for something is answered then."""
    app.add_exception_handler(RametError, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)
    plain = app.openapi

    def described() -> dict[str, Any]:
        return _describe(plain())

    app.openapi = described  # type: ignore[method-assign]
    guard = Guard(Direct(app, _often()), settings, tenants, tokens, audit)
    app.state.guard = guard
    return guard


def _often() -> list[APIRoute]:
    """Routes that are asked for more often than all others."""
    often = {
        sandboxes.spawn, sandboxes.fork, sandboxes.evaluate, sandboxes.run_code, sandboxes.execute,
        sandboxes.kill_sandbox,
    }  # fmt: skip
    return [one for one in sandboxes.router.routes if isinstance(one, APIRoute) and one.endpoint in often]


def _describe(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    if "securitySchemes" in components:
        return schema
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    # FastAPI's own body of 422 is none of ours.
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    schema["security"] = [{"token": []}]
    return schema


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RametError)  # noqa: S101  it is registered for these
    return response_of(error)


async def _invalid(request: Request, error: Exception) -> Response:
    """What the framework found wrong, in our words: 400 for no JSON, 415 for another type, else 422."""
    assert isinstance(error, RequestValidationError)  # noqa: S101  it is registered for these
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    field = ".".join(where[1:]) or None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if first["type"] == "json_invalid":
        return response_of(Refused(400, "malformed", f"the body is not JSON: {first['ctx']['error']}"))
    of_body = where[:1] == ["body"]
    if of_body and field is None and kind != "application/json" and not kind.endswith("+json"):
        return response_of(Refused(415, "content_type", "the body must be application/json"))
    code = "missing" if first["type"] == "missing" else "invalid_type"
    text = first["msg"] if field is None else f"{field}: {first['msg']}"
    return response_of(Refused(422, code, text, field=field))


METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_WORDS = {404: ("not_found", "there is no such path"), 405: ("method", "this path has not that method")}


def _methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """Those that the path has."""
    found: set[str] = set()
    for route in app.router.routes:
        if route.matches(scope)[0] is not Match.NONE:
            for method in METHODS:
                if route.matches({**scope, "method": method})[0] is Match.FULL:
                    found |= {method, "HEAD"} if method == "GET" else {method}
    return sorted(found)


async def _plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  it is registered for these
    cause = error.__cause__
    if isinstance(cause, RametError):
        # The framework calls everything that befalls a body an error of its parsing.
        return response_of(cause)
    if error.status_code == 400 and cause is not None:  # brackets without end, as deep as that
        return response_of(Refused(400, "malformed", "the body is no JSON that could be read"))
    code, text = _WORDS.get(error.status_code, ("refused", str(error.detail)))
    response = response_of(Refused(error.status_code, code, text))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    if error.status_code == 405:
        # The framework names those of the first route alone.
        response.headers["allow"] = ", ".join(_methods_of(request.app, request.scope))
    return response
