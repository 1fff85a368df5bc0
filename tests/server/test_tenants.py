"""Tenants: nobody sees another's, each has its bounds, and tokens are replaced without a restart."""

import httpx
import pytest

from server._server import ALICE, BOB, TOKENS, Server, refusal, told


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("GET", "", None), ("DELETE", "", None), ("POST", "/ping", None), ("POST", "/exec", {"args": ["id"]}),
        ("POST", "/eval", {"code": "1"}), ("POST", "/fork", {}), ("POST", "/branch", {}),
        ("GET", "/metrics", None), ("GET", "/files/list", None), ("PUT", "/files/content?path=x", None),
        ("POST", "/processes", {"command": "id"}), ("GET", "/processes", None), ("GET", "/diff", None),
        ("POST", "/guest", None), ("POST", "/rollback", {"snapshot_tag": "python"}),
        ("POST", "/promote", {}),
    ],
)  # fmt: skip
def test_a_foreign_sandbox_is_none(
    bob: httpx.Client, shell: str, *, method: str, path: str, body: object
) -> None:
    answer = bob.request(method, f"/v1/sandboxes/{shell}{path}", json=body)
    assert refusal(answer, 404)["code"] == "unknown_sandbox"


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
    answer = api.post(f"/v1/sandboxes/{shell}/eval?q=secret-in-a-query", json={"code": code})
    number = answer.headers["x-request-id"]
    noted = server.audited(number)
    assert noted | {"tenant": "alice", "token": "boss", "method": "POST", "status": 409} == noted
    assert noted["path"] == f"/v1/sandboxes/{shell}/eval"
    text = server.audit.read_text()
    assert ALICE not in text
    assert "secret-in" not in text
    assert server.audit.stat().st_mode & 0o777 == 0o600
