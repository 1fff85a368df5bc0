"""The short way to the operations that are asked for most.

To find a route and to resolve what its function depends on takes the framework more than all the rest of a
request. Here a request of one of some routes that is as it should be is given to its function at once.
Whatever is not goes through the framework, which knows why, and says it in its words.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive, Scope, Send

from ramet.server.routes.common import DEPENDENCIES

PLACE = 3
"""Which part of a path differs: ``/v1/sandboxes/ID/eval``."""
Given = Callable[[Request], Awaitable[Any]]
_JSON = {b"application/json", b"application/json; charset=utf-8"}


class Way(NamedTuple):
    """How to call one function: the name of its body and what that is, if it takes one, and what else."""

    function: Callable[..., Awaitable[Response]]
    body: tuple[str, type[BaseModel]] | None
    given: tuple[tuple[str, Given | None], ...]
    """None: the request itself."""
    place: str | None
    """The name of the part of the path that differs."""


def way_of(route: APIRoute) -> Way:
    """The short way to a route. Raises TypeError for a function that wants more than is known here."""
    function, place = route.endpoint, None
    body: tuple[str, type[BaseModel]] | None = None
    given: list[tuple[str, Given | None]] = []
    hints = typing.get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind = hints[name]
        depends = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, Depends)]
        if kind is str and route.path.split("/")[PLACE:][:1] == [f"{{{name}}}"]:
            place = name
        elif kind is Request:
            given.append((name, None))
        elif depends and depends[0].dependency in DEPENDENCIES:
            given.append((name, DEPENDENCIES[depends[0].dependency]))
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and body is None:
            body = (name, kind)
        else:
            raise TypeError(f"{route.path}: {name} cannot be given directly")
    return Way(function, body, tuple(given), place)


class Direct:
    """The application, with short ways to some of its routes."""

    def __init__(self, app: FastAPI, routes: Iterable[APIRoute]) -> None:
        """`routes` have at most one part of their paths in braces, that of `PLACE`."""
        self.app = app
        self._ways: dict[tuple[str, ...], Way] = {}
        for route in routes:
            way = way_of(route)
            parts = route.path.split("/")
            if way.place is not None:
                parts[PLACE] = ""
            self._ways |= {(method, *parts): way for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises RametError."""
        way, place = self._way(scope)
        if way is None:
            await self.app(scope, receive, send)
            return
        args: dict[str, Any] = {}
        if way.body is not None:
            name, model = way.body
            heard: list[Message] = []
            body = await _body(model, receive, heard)
            if body is None:
                await self.app(scope, _again(heard, receive), send)
                return
            args[name] = body
        scope["app"] = self.app
        request = Request(scope, receive, send)
        for name, give in way.given:
            args[name] = request if give is None else await give(request)
        if way.place is not None:
            args[way.place] = place
        response = await way.function(**args)
        await response(scope, receive, send)

    def _way(self, scope: Scope) -> tuple[Way | None, str]:
        if scope["type"] != "http" or scope.get("root_path"):
            return None, ""
        parts = scope["path"].split("/")
        way = self._ways.get((scope["method"], *parts))
        place = ""
        if way is None and len(parts) > PLACE:
            place, parts[PLACE] = parts[PLACE], ""
            way = self._ways.get((scope["method"], *parts))
        if way is None or (way.place is None) != (not place):
            return None, ""
        if way.body is None:
            return way, place
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        return (way, place) if kind.lower() in _JSON else (None, "")


async def _body(model: type[BaseModel], receive: Receive, heard: list[Message]) -> BaseModel | None:
    """The body; None when it is not as it should be. `heard` gets what was received."""
    parts: list[bytes] = []
    while not parts or heard[-1].get("more_body"):
        message = await receive()
        heard.append(message)
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
    try:
        return model.model_validate(json.loads(b"".join(parts)), from_attributes=True)
    except (ValueError, ValidationError, RecursionError):
        return None


def _again(heard: list[Message], receive: Receive) -> Receive:
    """What was heard, and then what comes."""

    async def next_one() -> Message:
        return heard.pop(0) if heard else await receive()

    return next_one
