"""The short way to some routes: taken by what is as it should be, and answered as by the framework."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from ramet.server.direct import Direct, way_of
from ramet.server.routes.common import Asker, Json, Key, Request


class Body(BaseModel):
    word: str
    times: int = 1


async def make(body: Body, tenant: Asker, key: Key) -> Response:
    return Json({"said": body.word * body.times, "to": tenant.name, "key": key}, 201)


async def answer(thing: str, body: Body, tenant: Asker, request: Request) -> Response:
    return Json({"of": thing, "said": body.word, "to": tenant.name, "app": request.app.title})


async def end(thing: str, tenant: Asker) -> Response:
    return Json({"ended": thing, "to": tenant.name})


async def other(thing: str, more: int = 0) -> Response:
    return Json({"of": thing, "more": more})


class Counted:
    """The framework, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.app = FastAPI(title="it", redirect_slashes=False)
        self.app.post("/v1/things", status_code=201)(make)
        self.app.post("/v1/things/{thing}/answer")(answer)
        self.app.post("/v1/things/{thing}/end")(end)
        self.app.post("/v1/things/{thing}/other")(other)
        routes = [one for one in self.app.routes if isinstance(one, APIRoute) and one.endpoint is not other]
        self.direct = Direct(self.app, routes)
        self.direct.app = self

    @property
    def title(self) -> str:
        return self.app.title

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.app(scope, receive, send)

    def client(self, app: Any) -> httpx.AsyncClient:
        async def known(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"tenant": SimpleNamespace(name="bob")}
            await app(scope, receive, send)

        return httpx.AsyncClient(transport=httpx.ASGITransport(known), base_url="http://it")


@pytest.fixture
async def counted() -> AsyncIterator[Counted]:
    return Counted()


async def told(client: httpx.AsyncClient, path: str, **sent: Any) -> tuple[int, Any, str | None]:
    async with client:
        answered = await client.post(path, **sent)
    return answered.status_code, answered.json(), answered.headers.get("content-type")


@pytest.mark.parametrize(
    "path, sent",
    [
        ("/v1/things", {"json": {"word": "a", "times": 2}}),
        ("/v1/things", {"json": {"word": "a"}, "headers": {"Idempotency-Key": "k"}}),
        ("/v1/things/7/answer", {"json": {"word": "a"}}),
        ("/v1/things/a%20b/answer?more=1", {"json": {"word": "a"}}),
        ("/v1/things/7/end", {}),
    ],
)
async def test_what_is_as_it_should_be_goes_past_the_framework(
    counted: Counted, path: str, sent: dict[str, Any]
) -> None:
    directly = await told(counted.client(counted.direct), path, **sent)
    assert counted.asked == 0
    assert directly == await told(counted.client(counted), path, **sent)


@pytest.mark.parametrize(
    "path, sent",
    [
        ("/v1/things", {"json": {"times": 2}}),
        ("/v1/things", {"json": {"word": 5}}),
        ("/v1/things", {"json": [1]}),
        ("/v1/things", {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("/v1/things", {"content": b"\xff", "headers": {"content-type": "application/json"}}),
        ("/v1/things", {"content": b'{"word": "a"}', "headers": {"content-type": "text/plain"}}),
        ("/v1/things", {"content": b'{"word": "a"}', "headers": {"content-type": "application/a+json"}}),
        ("/v1/things", {}),
        ("/v1/things//answer", {"json": {"word": "a"}}),
        ("/v1/things//end", {}),
        ("/v1/things/7/other", {"json": {"word": "a"}}),
        ("/v1/things/7/answer/", {"json": {"word": "a"}}),
        ("/v1/nothing", {"json": {"word": "a"}}),
    ],
)
async def test_what_is_not_is_answered_by_the_framework(
    counted: Counted, path: str, sent: dict[str, Any]
) -> None:
    answered = await told(counted.client(counted.direct), path, **sent)
    assert counted.asked == 1
    assert answered == await told(counted.client(counted), path, **sent)


async def test_a_body_in_pieces_is_put_together(counted: Counted) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"wo'
        yield b'rd": "a"}'

    headers = {"content-type": "application/json"}
    status, said, _ = await told(
        counted.client(counted.direct), "/v1/things", content=pieces(), headers=headers
    )
    assert (status, said["said"], counted.asked) == (201, "a", 0)


@pytest.mark.parametrize("function", [other, test_a_body_in_pieces_is_put_together])
def test_a_function_that_wants_something_else_has_no_short_way(function: Any) -> None:
    with pytest.raises(TypeError, match="/x"):
        way_of(SimpleNamespace(path="/v1/x/{thing}", endpoint=function))
