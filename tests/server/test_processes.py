"""Commands over HTTP: followed from a cursor, fed, signalled; ports; files with ranges."""

import asyncio
import base64
import json
from collections.abc import Iterator

import httpx
import pytest
import websockets

from server._server import ALICE, Server, refusal, told


def events(api: httpx.Client, path: str, **headers: str) -> Iterator[dict[str, object]]:
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def output(found: list[dict[str, object]], stream: str) -> bytes:
    return b"".join(base64.b64decode(one["data"]) for one in found if one["event"] == stream)


def start(api: httpx.Client, shell: str, **body: object) -> str:
    made = told(api.post(f"/v1/sandboxes/{shell}/processes", json=body), 201)
    return f"/v1/sandboxes/{shell}/processes/{made['id']}"


def test_a_stream_goes_on_from_a_cursor_and_ends_with_the_command(api: httpx.Client, shell: str) -> None:
    place = start(api, shell, command="echo one; read x; echo err >&2; echo $x; exit 5", stdin=True)
    following = events(api, f"{place}/stream")
    first = next(following)
    assert (first["event"], base64.b64decode(first["data"]), first["cursor"]) == ("stdout", b"one\n", "4:0")
    following.close()  # the client has gone, and the command goes on
    told(api.post(f"{place}/stdin?eof=true", content=b"two\n"), 204)
    rest = list(events(api, f"{place}/stream", **{"last-event-id": first["cursor"]}))
    assert (output(rest, "stdout"), output(rest, "stderr")) == (b"two\n", b"err\n")
    assert (rest[-1]["event"], rest[-1]["exit_code"]) == ("exit", 5)
    again = list(events(api, f"{place}/stream?cursor=0:0"))
    assert output(again, "stdout") == b"one\ntwo\n"
    ended = told(api.get(place), 200)
    assert (ended["status"], ended["result"]["exit_code"]) == ("ended", 5)
    assert refusal(api.post(f"{place}/stdin", content=b"x"), 409)["code"] == "stdin_closed"


def test_a_command_is_signalled_and_killed(api: httpx.Client, shell: str) -> None:
    place = start(api, shell, command="trap 'echo caught' USR1; echo up; while :; do sleep 0.01; done")
    following = events(api, f"{place}/stream")
    next(following)
    told(api.post(f"{place}/signal", json={"signal": "USR1"}), 204)
    # Its sleep gets the signal too, of which the shell tells.
    assert any(base64.b64decode(one["data"]) == b"caught\n" for one in following)
    assert told(api.get(place), 200)["status"] == "running"
    assert int(place.rpartition("/")[2]) in {
        one["id"] for one in told(api.get(place.rpartition("/")[0]), 200) if one["status"] == "running"
    }
    told(api.delete(place), 204)
    assert list(following)[-1]["reason"] == "killed"


def test_a_web_socket_carries_both_ways(server: Server, api: httpx.Client, shell: str) -> None:
    place = start(api, shell, command="cat", stdin=True)

    async def converse() -> list[dict[str, object]]:
        url = f"ws://127.0.0.1:{server.port}{place}/ws"
        headers = {"authorization": f"Bearer {ALICE}"}
        found = []
        async with websockets.connect(url, additional_headers=headers) as talk:
            await talk.send(json.dumps({"stdin": base64.b64encode(b"there and back").decode()}))
            found.append(json.loads(await talk.recv()))
            for wrong in ("no json", "[]", "[" * 100_000, '{"stdin": "!"}', '{"kil": true}'):
                await talk.send(wrong)
                assert json.loads(await talk.recv())["event"] == "error"
            await talk.send(json.dumps({"eof": True}))
            found += [json.loads(message) async for message in talk]
        return found

    found = asyncio.run(converse())
    assert output(found, "stdout") == b"there and back"
    assert found[-1]["exit_code"] == 0


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer none-that-is-known"}])
def test_a_web_socket_needs_a_token(server: Server, shell: str, headers: dict[str, str]) -> None:
    async def connect() -> None:
        url = f"ws://127.0.0.1:{server.port}/v1/sandboxes/{shell}/ports/80"
        async with websockets.connect(url, additional_headers=headers):
            pass

    with pytest.raises(websockets.InvalidStatus) as caught:
        asyncio.run(connect())
    assert caught.value.response.status_code == 401


def test_a_port_is_reached_through_the_server(server: Server, api: httpx.Client, python: str) -> None:
    code = (
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 8000))\n"
        "def f():\n  c, _ = s.accept()\n  c.sendall(c.recv(100).upper()); c.close()\n"
        "threading.Thread(target=f, daemon=True).start()"
    )
    assert told(api.post(f"/v1/sandboxes/{python}/eval", json={"code": code}), 200)["error"] is None

    async def converse() -> bytes:
        url = f"ws://127.0.0.1:{server.port}/v1/sandboxes/{python}/ports/"
        headers = {"authorization": f"Bearer {ALICE}"}
        async with websockets.connect(f"{url}8000", additional_headers=headers) as talk:
            await talk.send(b"through")
            answer = b"".join([message async for message in talk])
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{url}8001", additional_headers=headers)
        assert caught.value.response.status_code == 502
        return answer

    assert asyncio.run(converse()) == b"THROUGH"


def test_files_are_written_and_read_in_parts(api: httpx.Client, shell: str) -> None:
    place = f"/v1/sandboxes/{shell}/files"
    content = bytes(range(256)) * 4096
    info = told(api.put(f"{place}/content?path=d/f&mode=600", content=iter([content[:7], content[7:]])), 201)
    assert (info["size"], info["mode"], info["path"]) == (len(content), 0o600, "/home/user/d/f")
    whole = api.get(f"{place}/content?path=d/f")
    assert whole.content == content
    for asked, part, shown in (
        ("bytes=10-19", content[10:20], "bytes 10-19/1048576"),
        ("bytes=1048570-", content[-6:], "bytes 1048570-1048575/1048576"),
        ("bytes=-3", content[-3:], "bytes 1048573-1048575/1048576"),
    ):
        answer = api.get(f"{place}/content?path=d/f", headers={"range": asked})
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["content-range"] == shown
    assert refusal(api.get(f"{place}/content?path=d/f", headers={"range": "bytes=9999999-"}), 416)
    told(api.put(f"{place}/content?path=d/f&append=true", content=b"more"), 201)
    assert told(api.get(f"{place}/stat?path=d/f"), 200)["size"] == len(content) + 4
    told(api.post(f"{place}/make-dir", json={"path": "e"}), 204)
    told(api.post(f"{place}/copy", json={"path": "d/f", "to": "e/g"}), 204)
    told(api.post(f"{place}/rename", json={"path": "e/g", "to": "e/h"}), 204)
    told(api.post(f"{place}/symlink", json={"path": "e/link", "to": "/etc/shadow"}), 204)
    assert [one["path"] for one in told(api.get(f"{place}/list?path=e"), 200)] == [
        "/home/user/e/h", "/home/user/e/link",
    ]  # fmt: skip
    changed = {one["path"] for one in told(api.get(f"/v1/sandboxes/{shell}/diff"), 200)}
    assert "/home/user/e/h" in changed
    assert b"+++ b/home/user/e/link" in api.get(f"/v1/sandboxes/{shell}/patch").content
    told(api.delete(f"{place}/content?path=e&recursive=true"), 204)
    assert refusal(api.post(f"{place}/copy", json={"path": "d/f"}), 422)["field"] == "to"
    # A path that leads out leads nowhere: it is looked up inside.
    refusal(api.get(f"{place}/content?path=../../../../../../root/.ssh/id_rsa"), 404)
