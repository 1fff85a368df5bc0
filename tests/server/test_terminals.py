"""Terminals over a web socket: sized, typed into, left, and come back to."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import websockets

from server._server import ALICE, BOB, PATIENCE_S, Server, refusal, told


class Talk:
    """One web socket at a terminal."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection
        self.text = b""
        self.cursor = 0
        self.last: dict[str, object] = {}

    async def send(self, **message: object) -> None:
        await self.connection.send(json.dumps(message))

    async def type(self, keys: bytes) -> None:
        await self.send(input=base64.b64encode(keys).decode())

    async def next(self) -> dict[str, object]:
        async with asyncio.timeout(PATIENCE_S):
            self.last = json.loads(await self.connection.recv())
        if self.last["event"] == "output":
            self.text += base64.b64decode(str(self.last["data"]))
            self.cursor = int(str(self.last["cursor"]))
        return self.last

    async def until(self, mark: bytes) -> None:
        while mark not in self.text:
            await self.next()


@asynccontextmanager
async def attached(server: Server, place: str, query: str = "", token: str = ALICE) -> AsyncIterator[Talk]:
    url = f"ws://127.0.0.1:{server.port}{place}/ws{query}"
    headers = {"authorization": f"Bearer {token}"}
    async with websockets.connect(url, additional_headers=headers) as connection:
        yield Talk(connection)


def opened(api: httpx.Client, shell: str, **body: object) -> str:
    made = told(api.post(f"/v1/sandboxes/{shell}/terminals", json=body), 201)
    return f"/v1/sandboxes/{shell}/terminals/{made['id']}"


def test_a_terminal_is_typed_into_resized_and_tells_how_it_ended(
    server: Server, api: httpx.Client, shell: str
) -> None:
    # A signal ends a shell's `read` too, with nothing read.
    code = """trap 'stty size' WINCH; stty size; until [ "$x" = end ]; do read x; echo got $x; done; exit 7"""
    place = opened(api, shell, command=["sh", "-c", code], rows=30, columns=100)

    async def converse() -> Talk:
        async with attached(server, place) as talk:
            await talk.until(b"30 100\r\n")
            await talk.send(resize=[31, 101])
            await talk.until(b"31 101\r\n")
            told(await asyncio.to_thread(api.post, f"{place}/resize", json={"rows": 9, "columns": 8}), 204)
            await talk.until(b"9 8\r\n")
            for wrong, field in (
                ({"resize": [0, 1]}, "size"),
                ({"resize": 5}, "resize"),
                ({"input": "!"}, "input"),
                ({"kill": True, "keys": ""}, "keys"),
            ):
                await talk.send(**wrong)
                while (await talk.next())["event"] != "error":
                    pass
                assert talk.last["field"] == field
            await talk.type(b"end\n")
            while (await talk.next())["event"] != "exit":
                pass
            return talk

    talk = asyncio.run(converse())
    assert b"got end\r\n" in talk.text
    assert (talk.last["exit_code"], talk.last["reason"]) == (7, "exit")


def test_a_terminal_is_left_and_come_back_to_by_cursor(server: Server, api: httpx.Client, shell: str) -> None:
    place = opened(api, shell, command="stty -echo; echo one; read x; echo two $x; read y")
    number = int(place.rpartition("/")[2])

    async def converse() -> None:
        async with attached(server, place) as first:
            await first.until(b"one\r\n")
        async with attached(server, place, f"?cursor={first.cursor}") as second:
            await second.type(b"more\n")
            await second.until(b"two more\r\n")
        assert second.text == b"two more\r\n"  # nothing twice, and nothing missed
        async with attached(server, place, "?scrollback=10") as third:
            await third.until(b"two more\r\n")
        assert third.text == b"two more\r\n"
        async with attached(server, place, "?cursor=0") as fourth:
            await fourth.until(b"two more\r\n")
            assert fourth.text == b"one\r\ntwo more\r\n"
            listed = told(await asyncio.to_thread(api.get, place.rpartition("/")[0]), 200)
            assert [one["window"] for one in listed if one["id"] == number] == [[24, 80]]
            told(await asyncio.to_thread(api.delete, place), 204)
            while (await fourth.next())["event"] != "exit":
                pass
            assert fourth.last["reason"] == "killed"

    asyncio.run(converse())


def test_what_is_no_terminal_of_ones_own_is_none(
    server: Server, api: httpx.Client, bob: httpx.Client, shell: str
) -> None:
    place = opened(api, shell)
    above = place.rpartition("/")[0]
    for method, path, body in (
        ("POST", above, {}), ("GET", above, None), ("DELETE", place, None),
        ("POST", f"{place}/resize", {"rows": 1, "columns": 1}),
    ):  # fmt: skip
        assert refusal(bob.request(method, path, json=body), 404)["code"] == "unknown_sandbox"
    command = told(api.post(f"/v1/sandboxes/{shell}/processes", json={"command": "true"}), 201)["id"]

    async def statuses() -> list[int]:
        found = []
        for path, query, token in (
            (place, "", BOB), (f"{above}/4294967295", "", ALICE), (place, "?cursor=x", ALICE),
            (f"{above}/{command}", "", ALICE),
        ):  # fmt: skip
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with attached(server, path, query, token):
                    pass
            found.append(caught.value.response.status_code)
        return found

    assert asyncio.run(statuses()) == [404, 404, 400, 400]
    assert refusal(api.delete(f"{above}/{command}"), 400)["field"] == "terminal"
    assert refusal(api.post(above, json={"rows": 0}), 400)["field"] == "size"
    told(api.delete(place), 204)
