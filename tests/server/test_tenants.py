"""Tenants: nobody sees another's, each has its bounds, and tokens are replaced without a restart."""

import asyncio
import re

import httpx
import pytest
import websockets

from server._server import ALICE, BOB, TOKENS, Server, refusal, told

SAID = {
    "args": ["id"], "code": "1", "command": "id", "path": "x", "to": "y", "snapshot_tag": "python",
    "signal": 9, "rows": 9, "columns": 9,
}  # fmt: skip
"""What any request for a sandbox has to say; what it need not is ignored."""
PLACE = "/v1/sandboxes/{sandbox_id}"
WEB_SOCKETS = ("ports/80", "processes/1/ws", "terminals/1/ws")


def test_a_foreign_sandbox_is_none_by_whatever_path(api: httpx.Client, bob: httpx.Client, shell: str) -> None:
    tried = 0
    for path, methods in told(api.get("/v1/openapi.json"), 200)["paths"].items():
        for method in methods if path.startswith(PLACE) else ():
            place = re.sub(r"{(process|terminal)_id}", "1", path).format(sandbox_id=shell)
            body = None if method in {"get", "delete"} else SAID
            answer = bob.request(method, place, params={"path": "x"}, json=body)
            assert refusal(answer, 404)["code"] == "unknown_sandbox", (method, path)
            tried += 1
    assert tried > 30
    assert told(api.get(f"/v1/sandboxes/{shell}"), 200)["status"] == "running"


@pytest.mark.parametrize("path", WEB_SOCKETS)
def test_a_foreign_sandbox_has_no_web_socket(server: Server, shell: str, path: str) -> None:
    async def connect() -> None:
        url = f"ws://127.0.0.1:{server.port}/v1/sandboxes/{shell}/{path}"
        async with websockets.connect(url, additional_headers={"authorization": f"Bearer {BOB}"}):
            pass

    with pytest.raises(websockets.InvalidStatus) as caught:
        asyncio.run(connect())
    assert caught.value.response.status_code == 404


def test_a_foreign_sandbox_has_no_history_and_no_place_to_take(bob: httpx.Client, shell: str) -> None:
    assert told(bob.get(f"/v1/lineage?ended=true&parent={shell}"), 200)["nodes"] == []
    assert told(bob.get(f"/v1/events?cursor=start&sandbox={shell}"), 200)["events"] == []
    assert told(bob.get(f"/v1/sandboxes?ended=true&parent={shell}"), 200) == []
    mine = told(bob.post("/v1/sandboxes", json={"command": ["sleep", "100"]}), 201)[0]["id"]
    taken = bob.post(f"/v1/sandboxes/{mine}/promote", json={"over": shell})
    assert refusal(taken, 404)["code"] == "unknown_sandbox"
    told(bob.delete(f"/v1/sandboxes/{mine}"), 204)


def test_nothing_of_another_tenant_is_listed_or_forked(
    api: httpx.Client, bob: httpx.Client, shell: str
) -> None:
    told(api.post(f"/v1/sandboxes/{shell}/branch", json={"tag": "secret"}), 201)
    assert shell not in bob.get("/v1/sandboxes").text
    assert "secret" not in bob.get("/v1/snapshots").text
    refusal(bob.post("/v1/sandboxes", json={"snapshot_tag": "secret"}), 404)
    refusal(bob.get("/v1/snapshots/secret/info"), 404)
    refusal(bob.delete("/v1/snapshots/secret"), 404)
    # The same name is free for another tenant.
    mine = told(bob.post("/v1/sandboxes", json={"command": ["sleep", "100"]}), 201)[0]["id"]
    told(bob.post(f"/v1/sandboxes/{mine}/branch", json={"tag": "secret"}), 201)
    full = bob.post(f"/v1/sandboxes/{mine}/branch", json={"tag": "one-more"})
    assert refusal(full, 429)["code"] == "quota"
    told(bob.delete("/v1/snapshots/secret"), 204)
    told(api.delete("/v1/snapshots/secret"), 204)
    told(bob.delete(f"/v1/sandboxes/{mine}"), 204)


def test_a_tenant_with_all_it_may_have_is_told_when_to_come_again(bob: httpx.Client) -> None:
    made = [told(bob.post("/v1/sandboxes", json={"command": ["sleep", "9"]}), 201)[0]["id"] for _ in "ab"]
    for path, body in (
        ("/v1/sandboxes", {"command": ["sleep", "9"]}), (f"/v1/sandboxes/{made[0]}/fork", {}),
        ("/v1/run", {"command": "true"}),
    ):  # fmt: skip
        full = bob.post(path, json=body)
        assert refusal(full, 429)["code"] == "quota"
        assert int(full.headers["retry-after"]) > 0
    for one in made:
        told(bob.delete(f"/v1/sandboxes/{one}"), 204)
    assert told(bob.post("/v1/run", json={"command": "echo done"}), 200)["stdout"] == "done\n"


def test_tokens_are_rotated_without_a_restart(server: Server) -> None:
    fresh = "bob-fresh-token-0123456789"
    with server.client(BOB) as old, server.client(fresh) as new:
        told(old.get("/v1/me"), 200)
        try:
            server.write_tokens(TOKENS.replace(BOB, fresh))
            refusal(old.get("/v1/me"), 401)
            assert told(new.get("/v1/me"), 200)["tenant"] == "bob"
            server.write_tokens("short")  # wrong: what held goes on to hold
            assert told(new.get("/v1/me"), 200)["tenant"] == "bob"
        finally:
            server.write_tokens(TOKENS)
        told(old.get("/v1/me"), 200)


def test_what_was_asked_is_audited_without_secrets(server: Server, api: httpx.Client, shell: str) -> None:
    code = "secret-in-a-body"
    proxy = {"x-forwarded-for": "192.0.2.1"}
    answer = api.post(f"/v1/sandboxes/{shell}/eval?q=secret-in-a-query", json={"code": code}, headers=proxy)
    number = answer.headers["x-request-id"]
    noted = server.audited(number)
    assert noted | {"tenant": "alice", "token": "boss", "method": "POST", "status": 409} == noted
    assert noted["path"] == f"/v1/sandboxes/{shell}/eval"
    assert (noted["remote"], noted["forwarded"]) == ("127.0.0.1", "192.0.2.1")
    text = server.audit.read_text()
    assert ALICE not in text
    assert "secret-in" not in text
    assert server.audit.stat().st_mode & 0o777 == 0o600
