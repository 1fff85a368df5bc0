"""Templates that are public: forked by every tenant, changed by none, there once on disk."""

from collections.abc import Iterator

import httpx
import pytest

from server._server import ALICE_RUNS, Server, refusal, told

NAME = "shared-tools"


@pytest.fixture(scope="module")
def public(api: httpx.Client) -> Iterator[str]:
    """A template of alice's that is public."""
    told(api.post("/v1/templates", json={"name": NAME, "warm": "answer = 6 * 7"}), 201)
    assert told(api.put(f"/v1/templates/{NAME}/public"), 200)["public"] is True
    yield NAME
    told(api.delete(f"/v1/templates/{NAME}/public"), 204)
    told(api.delete(f"/v1/templates/{NAME}"), 204)


def spawn(client: httpx.Client, tag: str) -> str:
    return told(client.post("/v1/sandboxes", json={"snapshot_tag": tag}), 201)[0]["id"]


def value(client: httpx.Client, sandbox: str, code: str) -> str:
    return told(client.post(f"/v1/sandboxes/{sandbox}/eval", json={"code": code}), 200)["result"]


def images(server: Server) -> dict[int, set[str]]:
    """Whose stores have each file of a public template."""
    found: dict[int, set[str]] = {}
    for path in server.data.glob("**/snapshots/ramet.public-*/image"):
        found.setdefault(path.stat().st_ino, set()).add(path.relative_to(server.data).parts[-5])
    return found


def test_every_tenant_forks_a_public_template_that_is_on_disk_once(
    server: Server, bob: httpx.Client, public: str
) -> None:
    assert public in {one["tag"] for one in told(bob.get("/v1/snapshots"), 200) if one.get("public")}
    assert told(bob.get(f"/v1/templates/{public}"), 200)["public"] is True
    one = spawn(bob, public)
    assert value(bob, one, "answer") == "42"
    assert told(bob.get(f"/v1/sandboxes/{one}"), 200)["snapshot_tag"] == public
    assert list(images(server).values()) == [{"public", "bob"}]
    # What is built upon it is the tenant's own, and stores what differs.
    kept = told(bob.post(f"/v1/sandboxes/{one}/branch", json={"tag": "of-bob"}), 201)
    assert (kept["parent_tag"], kept.get("public")) == (public, None)
    assert told(bob.get("/v1/snapshots/of-bob/info"), 200)["ancestors"] == [public]
    told(bob.delete(f"/v1/sandboxes/{one}"), 204)
    told(bob.delete("/v1/snapshots/of-bob"), 204)


def test_nobody_but_an_administrator_changes_a_public_template(
    server: Server, bob: httpx.Client, public: str
) -> None:
    assert refusal(bob.delete(f"/v1/snapshots/{public}"), 403)["code"] == "read_only"
    assert refusal(bob.delete(f"/v1/templates/{public}"), 403)["code"] == "read_only"
    assert refusal(bob.post(f"/v1/snapshots/{public}/compact"), 403)["code"] == "read_only"
    with server.client(ALICE_RUNS) as runs:
        for method in ("PUT", "DELETE"):
            assert refusal(runs.request(method, f"/v1/templates/{public}/public"), 403)["code"] == "forbidden"
    sandbox = told(bob.post("/v1/sandboxes", json={"command": "sleep 100"}), 201)[0]["id"]
    place = f"/v1/sandboxes/{sandbox}/branch"
    assert refusal(bob.post(place, json={"tag": public}), 409)["code"] == "name_taken"
    assert refusal(bob.post(place, json={"tag": "ramet.public-x"}), 400)["field"] == "tag"
    assert refusal(bob.post("/v1/templates", json={"name": public}), 409)["code"] == "name_taken"
    told(bob.delete(f"/v1/sandboxes/{sandbox}"), 204)


def test_what_was_made_of_one_goes_on_when_it_is_public_no_more(
    server: Server, api: httpx.Client, bob: httpx.Client, public: str
) -> None:
    one = spawn(bob, public)
    told(bob.post(f"/v1/sandboxes/{one}/branch", json={"tag": "of-bob"}), 201)
    told(api.delete(f"/v1/templates/{public}/public"), 204)
    try:
        assert public not in {one["tag"] for one in told(bob.get("/v1/snapshots"), 200)}
        refusal(bob.get(f"/v1/templates/{public}"), 404)
        assert (
            refusal(bob.post("/v1/sandboxes", json={"snapshot_tag": public}), 404)["code"]
            == "unknown_snapshot"
        )
        assert value(bob, one, "answer") == "42"
        told(bob.delete(f"/v1/sandboxes/{one}"), 204)
        again = spawn(bob, "of-bob")
        assert value(bob, again, "answer") == "42"
        told(bob.delete(f"/v1/sandboxes/{again}"), 204)
        assert list(images(server).values()) == [{"bob"}]
        told(bob.delete("/v1/snapshots/of-bob"), 204)
        assert images(server) == {}
    finally:
        told(api.put(f"/v1/templates/{public}/public"), 200)


@pytest.mark.parametrize("method, name, status, code", [
    ("PUT", "absent", 404, "not_found"),
    ("PUT", "python", 400, "invalid_argument"),
    ("DELETE", "absent", 404, "not_found"),
])  # fmt: skip
def test_only_a_template_of_ones_own_is_made_public(
    api: httpx.Client, python: str, *, method: str, name: str, status: int, code: str
) -> None:
    del python  # of the built-in template, which is there now
    assert refusal(api.request(method, f"/v1/templates/{name}/public"), status)["code"] == code
