"""REST v1 as forkd's clients know it: paths, fields, defaults, statuses, errors."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ramet.server.following import BEAT_S
from server._server import ALICE_READS, ALICE_RUNS, PATIENCE_S, TOKENS, Server, refusal, told

FORKD = {
    "id", "snapshot_tag", "netns", "guest_addr", "created_at_unix", "pid", "memory_limit_mib", "has_branched",
    "last_branch_memory_path", "branch_count",
}  # fmt: skip


@pytest.fixture
def snapshot(api: httpx.Client, shell: str) -> Iterator[str]:
    told(api.post(f"/v1/sandboxes/{shell}/branch", json={"tag": "point"}), 201)
    yield "point"
    assert api.delete("/v1/snapshots/point?cascade=true").status_code in {204, 404}


def end(api: httpx.Client, made: object) -> None:
    for one in made:
        told(api.delete(f"/v1/sandboxes/{one['id']}"), 204)


def test_health_needs_no_token_with_or_without_a_slash(server: Server) -> None:
    with server.client(None) as nobody:
        assert told(nobody.get("/healthz"), 200) == {"ok": True}
        assert told(nobody.get("/healthz/"), 200) == {"ok": True}
        for path in ("/version", "/metrics", "/v1/sandboxes", "/v1/openapi.json", "/nothing"):
            assert refusal(nobody.get(path), 401)["error"] == "missing bearer token"
    with server.client("a-token-that-is-none") as stranger:
        assert refusal(stranger.get("/version"), 401)["error"] == "invalid bearer token"


def test_version_and_metrics_have_what_forkd_tells(api: httpx.Client) -> None:
    assert told(api.get("/version"), 200)["api"] == "v1"
    text = api.get("/metrics").text
    for name in (
        "forkd_snapshots_total", "forkd_sandboxes_active", "forkd_branches_in_flight",
        "forkd_branch_concurrency_cap", "forkd_build_info{version=",
    ):  # fmt: skip
        assert f"\n{name}" in text


def test_spawn_makes_n_of_one_snapshot_each_with_a_network_of_its_own(api: httpx.Client) -> None:
    body = {"snapshot_tag": "python", "n": 3, "per_child_netns": True, "memory_limit_mib": 256}
    made = told(api.post("/v1/sandboxes", json=body | {"prewarm": True, "unknown": 1}), 201)
    assert len({one["id"] for one in made}) == len({one["netns"] for one in made}) == 3
    assert all(one.keys() >= FORKD and one["memory_limit_mib"] == 256 for one in made)
    listed = told(api.get("/v1/sandboxes"), 200)
    assert {one["id"] for one in made} <= {one["id"] for one in listed}
    end(api, made)
    refusal(api.get(f"/v1/sandboxes/{made[0]['id']}"), 404)
    assert told(api.get(f"/v1/sandboxes/{made[0]['id']}?ended=true"), 200)["end"]["reason"] == "killed"


def test_code_keeps_its_state_and_its_errors_are_answers(api: httpx.Client, python: str) -> None:
    def run(code: str) -> dict[str, object]:
        return told(api.post(f"/v1/sandboxes/{python}/eval", json={"code": code}), 200)

    assert run("x = [41]")["result"] is None
    assert run("x + [1]") == run("x + [1]") | {"result": "[41, 1]", "error": None, "exit_code": 0}
    assert run("1/0") | {"traceback": ""} == run("1/0") | {
        "result": None, "error": "ZeroDivisionError: division by zero", "exit_code": 1, "traceback": "",
    }  # fmt: skip
    pong = told(api.post(f"/v1/sandboxes/{python}/ping"), 200)
    assert (pong["pong"], pong["agent_lang"], pong["warmup_ready"]) == (True, "python", True)
    shown = told(api.post(f"/v1/sandboxes/{python}/code", json={"code": "print(x); x"}), 200)
    assert (shown["stdout"], shown["text"]) == ("[41]\n", "[41]")


def test_a_command_that_runs_out_of_time_says_so(api: httpx.Client, shell: str) -> None:
    body = {"args": ["sh", "-c", "sleep 1000 & echo out; echo err >&2; wait"], "timeout_secs": 1}
    result = told(api.post(f"/v1/sandboxes/{shell}/exec", json=body), 200)
    assert result["exit_code"] == 124
    assert result["timed_out"]
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    ended = told(api.post(f"/v1/sandboxes/{shell}/exec", json={"args": ["sh", "-c", "exit 7"]}), 200)
    assert (ended["exit_code"], ended["timed_out"]) == (7, False)


@pytest.mark.parametrize("mode", ["full", "diff", "live"])
def test_a_branch_of_each_mode_can_be_forked_while_its_source_goes_on(
    api: httpx.Client, python: str, mode: str
) -> None:
    api.post(f"/v1/sandboxes/{python}/eval", json={"code": "y = 1"})
    taken = told(api.post(f"/v1/sandboxes/{python}/branch", json={"tag": f"b-{mode}", "mode": mode}), 201)
    assert (taken["tag"], taken["branched_from"], taken["status"]) == (f"b-{mode}", python, "ready")
    assert isinstance(taken["pause_ms"], int)
    assert ("diff_physical_bytes" in taken) == (mode == "diff")
    api.post(f"/v1/sandboxes/{python}/eval", json={"code": "y = 2"})
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": f"b-{mode}"}), 201)
    seen = [
        told(api.post(f"/v1/sandboxes/{one}/eval", json={"code": "y"}), 200)["result"]
        for one in (made[0]["id"], python)
    ]
    assert seen == ["1", "2"]
    assert told(api.get(f"/v1/sandboxes/{python}"), 200)["has_branched"]
    end(api, made)
    told(api.delete(f"/v1/snapshots/b-{mode}"), 204)


def test_a_branch_that_nobody_waits_for_is_of_the_moment_of_the_call(api: httpx.Client, python: str) -> None:
    api.post(f"/v1/sandboxes/{python}/eval", json={"code": "z = 'x' * (64 << 20)"})
    body = {"tag": "later", "mode": "live", "wait": False}
    begun = told(api.post(f"/v1/sandboxes/{python}/branch", json=body), 202)
    assert begun["status"] == "writing"
    assert not begun["bootable"]
    refused = api.post("/v1/sandboxes", json={"snapshot_tag": "later"})
    assert refusal(refused, 409)["code"] == "snapshot_writing"
    refusal(api.post(f"/v1/sandboxes/{python}/branch", json=body), 409)
    api.post(f"/v1/sandboxes/{python}/eval", json={"code": "z = 'changed'"})
    until = time.monotonic() + PATIENCE_S
    while (now := _listed(api, "later"))["status"] == "writing":
        assert time.monotonic() < until
    assert now["status"] == "ready"
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "later"}), 201)
    length = told(api.post(f"/v1/sandboxes/{made[0]['id']}/eval", json={"code": "len(z)"}), 200)
    assert length["result"] == str(64 << 20)
    end(api, made)
    told(api.delete("/v1/snapshots/later"), 204)


def _listed(api: httpx.Client, tag: str) -> dict[str, object]:
    return next(one for one in told(api.get("/v1/snapshots"), 200) if one["tag"] == tag)


def test_what_others_build_upon_is_removed_only_on_request(
    api: httpx.Client, shell: str, snapshot: str
) -> None:
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": snapshot}), 201)
    told(api.post(f"/v1/sandboxes/{made[0]['id']}/branch", json={"tag": "upon"}), 201)
    info = told(api.get(f"/v1/snapshots/{snapshot}/info"), 200)
    assert info["dependents"] == ["upon"]
    upon = told(api.get("/v1/snapshots/upon/info"), 200)
    assert (upon["parent_tag"], upon["ancestors"], upon["chain_depth"]) == (snapshot, [snapshot], 1)
    refused = refusal(api.delete(f"/v1/snapshots/{snapshot}"), 409)
    assert (refused["code"], "upon" in refused["error"]) == ("has_dependents", True)
    refusal(api.delete(f"/v1/snapshots/{snapshot}?cascade=true&force=true"), 400)
    told(api.delete(f"/v1/snapshots/{snapshot}?force=true"), 204)
    child = told(api.post("/v1/sandboxes", json={"snapshot_tag": "upon"}), 201)
    told(api.delete("/v1/snapshots/upon"), 204)
    end(api, made + child)


def test_what_was_removed_by_force_still_joins_those_above_and_below_it(
    api: httpx.Client, shell: str, snapshot: str
) -> None:
    own, made = shell, []
    for tag in ("middle", "top"):
        of = snapshot if tag == "middle" else "middle"
        (one,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": of}), 201)
        made.append(one)
        told(api.post(f"/v1/sandboxes/{one['id']}/branch", json={"tag": tag}), 201)
    told(api.delete("/v1/snapshots/middle?force=true"), 204)
    top = told(api.get("/v1/snapshots/top/info"), 200)
    assert (top["ancestors"], top["chain_depth"]) == ([snapshot, "middle"], 2)
    assert told(api.get(f"/v1/snapshots/{snapshot}/info"), 200)["dependents"] == ["top"]
    again = refusal(api.post(f"/v1/sandboxes/{own}/branch", json={"tag": "middle"}), 409)
    assert (again["code"], "removed by force" in again["error"]) == ("name_taken", True)
    refused = refusal(api.delete(f"/v1/snapshots/{snapshot}"), 409)
    assert (refused["code"], "middle" in refused["error"]) == ("has_dependents", False)
    told(api.delete(f"/v1/snapshots/{snapshot}?cascade=true"), 204)
    assert not {snapshot, "middle", "top"} & {one["tag"] for one in told(api.get("/v1/snapshots"), 200)}
    for one in made:  # what was forked goes on without what it was forked from
        answer = told(api.post(f"/v1/sandboxes/{one['id']}/exec", json={"args": ["echo", "up"]}), 200)
        assert answer["stdout"] == "up\n"
    for tag in (snapshot, "middle"):  # the names are free again
        told(api.post(f"/v1/sandboxes/{own}/branch", json={"tag": tag}), 201)
    told(api.delete("/v1/snapshots/middle"), 204)
    end(api, made)


def test_a_built_in_template_goes_with_what_builds_upon_it_or_stays(server: Server) -> None:
    # A tenant of its own, as it takes a template away that all tests of another share.
    carol = "carol-token-0123456789"
    tokens = f'{TOKENS}[tenants.carol]\ntokens = [{{ token = "{carol}" }}]\n'
    with server.with_tokens(tokens), server.client(carol) as api:
        (made,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}), 201)
        told(api.post(f"/v1/sandboxes/{made['id']}/branch", json={"tag": "upon"}), 201)
        for query in ("", "?force=true"):
            refused = refusal(api.delete(f"/v1/snapshots/python{query}"), 409)
            assert (refused["code"], "upon" in refused["error"]) == ("has_dependents", True)
        told(api.delete("/v1/snapshots/python?cascade=true"), 204)
        refusal(api.get("/v1/snapshots/upon/info"), 404)
        answer = told(api.post(f"/v1/sandboxes/{made['id']}/eval", json={"code": "6 * 7"}), 200)
        assert answer["result"] == "42"
        end(api, [made])


def test_a_walk_over_pages_meets_each_once_though_those_it_met_have_ended(api: httpx.Client) -> None:
    (first,) = told(api.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}), 201)
    told(api.post(f"/v1/sandboxes/{first['id']}/branch", json={"tag": "paged"}), 201)
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "paged", "n": 10}), 201)
    met: list[str] = []
    after, last = f"&after={first['id']}", ""
    while after:
        page = api.get(f"/v1/sandboxes?limit=3{after}")
        rows = told(page, 200)
        assert int(page.headers["x-total-count"]) >= len(rows)
        met += [one["id"] for one in rows]
        last = page.headers.get("x-next-after", "")
        after = last and f"&after={last}"
        end(api, rows)
        if first:  # so that the walk begins after one that lives, and goes on after ones that do not
            end(api, [first])
            first = {}
    assert sorted(met) == sorted(one["id"] for one in made)
    (late,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": "paged"}), 201)
    rows = told(api.get(f"/v1/sandboxes?after={met[-1]}"), 200)  # an id serves for as long as it is known
    assert [one["id"] for one in rows] == [late["id"]]
    end(api, [late])
    for wrong in ("nothing", "nan~x", "x~x", "inf~x"):
        assert refusal(api.get(f"/v1/sandboxes?after={wrong}"), 400)["field"] == "after"
    tags: list[str] = []
    after = "&after="
    while after:
        page = api.get(f"/v1/snapshots?limit=2{after}")
        tags += [one["tag"] for one in told(page, 200)]
        after = page.headers.get("x-next-after", "")
        after = after and f"&after={after}"
        if "paged" in tags:
            api.delete("/v1/snapshots/paged")
    assert "paged" in tags
    assert tags == sorted(set(tags))
    refusal(api.delete("/v1/snapshots/paged"), 404)


def test_a_sandbox_is_rolled_back_under_its_id(api: httpx.Client) -> None:
    body = {"snapshot_tag": "python", "names": ["rolled"], "ttl": 500, "metadata": {"of": "me"}}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]
    place = f"/v1/sandboxes/{made['id']}"

    def value(code: str) -> object:
        return told(api.post(f"{place}/eval", json={"code": code}), 200)["result"]

    value("x = 1")
    told(api.post(f"{place}/branch", json={"tag": "before"}), 201)
    value("x = 2; open('after', 'w').close()")
    told(api.post(f"{place}/processes", json={"command": "sleep 1000"}), 201)
    refusal(api.post(f"{place}/rollback", json={"snapshot_tag": "none-such"}), 404)
    refusal(api.post(f"{place}/rollback", json={}), 422)
    for number in (1, 2):
        after = told(api.post(f"{place}/rollback", json={"snapshot_tag": "before"}), 200)
        kept = ("id", "name", "ttl", "metadata", "snapshot_tag", "limits")
        assert [after[one] for one in kept] == [made[one] for one in kept]
        assert after["epoch"] > made["epoch"] + number - 1
        assert value("x, __import__('os').path.exists('after')") == "(1, False)"
        assert {one["status"] for one in told(api.get(f"{place}/processes"), 200)} == {"ended"}
        value("x = 3")
    done = told(api.post(f"{place}/exec", json={"args": ["echo", "up"]}), 200)
    assert done["stdout"] == "up\n"
    with ThreadPoolExecutor(1) as pool:
        code = "open('runs', 'w').close(); __import__('time').sleep(1000)"
        running = pool.submit(api.post, f"{place}/eval", json={"code": code})
        until = time.monotonic() + PATIENCE_S
        while api.get(f"{place}/files/stat?path=runs").status_code != 200:
            assert time.monotonic() < until
        busy = api.post(f"{place}/rollback", json={"snapshot_tag": "before"})
        told(api.post(f"{place}/interrupt"), 204)
        assert "KeyboardInterrupt" in told(running.result(PATIENCE_S), 200)["error"]
    assert refusal(busy, 409)["code"] == "kernel_busy"
    end(api, [made])
    refusal(api.post(f"{place}/rollback", json={"snapshot_tag": "before"}), 404)
    told(api.delete("/v1/snapshots/before"), 204)


def test_a_fork_takes_the_place_of_its_parent(api: httpx.Client) -> None:
    body = {"command": ["sleep", "1000"], "ttl": 500, "metadata": {"of": "me"}}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]
    place = f"/v1/sandboxes/{made['id']}"
    told(api.get(f"{place}/files/list?path=/tmp"), 200)
    fork = told(api.post(f"{place}/fork", json={}), 201)["children"][0]["sandbox"]
    own = f"/v1/sandboxes/{fork['id']}"
    told(api.post(f"{own}/exec", json={"args": ["touch", "/tmp/of-the-fork"]}), 200)
    assert refusal(api.post(f"{place}/promote", json={"over": fork["id"]}), 400)["code"] == "not_descendant"
    after = told(api.post(f"{own}/promote", json={}), 200)
    kept = ("id", "ttl", "metadata")
    assert [after[one] for one in kept] == [made[one] for one in kept]
    assert "of-the-fork" in api.get(f"{place}/files/list?path=/tmp").text
    refusal(api.get(own), 404)
    assert "replaced" in told(api.get(f"{own}?ended=true"), 200)["note"]
    end(api, [after])


def test_a_list_tells_of_each_what_it_is_now(api: httpx.Client, shell: str) -> None:
    body = {"command": ["sleep", "100"], "metadata": {"of": "\u00e9t\u00e9"}}
    made = told(api.post("/v1/sandboxes", json=body), 201)[0]
    place = f"/v1/sandboxes/{made['id']}"

    def listed() -> dict[str, object]:
        found = {one["id"]: one for one in told(api.get("/v1/sandboxes?ended=true"), 200)}
        assert found[made["id"]] == told(api.get(f"{place}?ended=true"), 200)
        return found[made["id"]]

    assert listed() == listed() == made
    told(api.post(f"{place}/branch", json={"tag": "listed"}), 201)
    assert listed()["branch_count"] == 1
    address = told(api.post(f"{place}/guest"), 201)["guest_addr"]
    assert listed()["guest_addr"] == address
    told(api.delete(f"{place}/guest"), 204)
    assert listed()["guest_addr"] == ""
    told(api.delete(place), 204)
    assert listed()["status"] == "ended"
    told(api.delete("/v1/snapshots/listed"), 204)


def test_a_snapshot_is_made_to_build_upon_nothing(api: httpx.Client, bob: httpx.Client, shell: str) -> None:
    base = {"tag": "ground"}
    told(api.post(f"/v1/sandboxes/{shell}/branch", json=base), 201)
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "ground"}), 201)
    told(api.post(f"/v1/sandboxes/{made[0]['id']}/branch", json={"tag": "upon"}), 201)
    end(api, made)
    place = "/v1/snapshots/upon/compact"
    for body in (None, {"to": "stolen"}):
        assert refusal(bob.post(place, json=body), 404)["code"] == "unknown_snapshot"
    copied = told(api.post(place, json={"to": "alone"}), 200)
    assert (copied["tag"], copied["branched_from"]) == ("alone", "compact:upon")
    assert told(api.get("/v1/snapshots/alone/info"), 200)["ancestors"] == []
    assert refusal(api.post(place, json={"to": "alone"}), 409)["field"] == "to"
    assert refusal(api.post(place, json={"to": "upon"}), 400)["field"] == "to"
    # What was kept for it alone goes, and its name is free again.
    told(api.delete("/v1/snapshots/ground?force=true"), 204)
    refusal(api.post(f"/v1/sandboxes/{shell}/branch", json=base), 409)
    assert "parent_tag" not in told(api.post(place), 200)
    told(api.post(f"/v1/sandboxes/{shell}/branch", json=base), 201)
    for tag in ("upon", "alone"):
        child = told(api.post("/v1/sandboxes", json={"snapshot_tag": tag}), 201)
        answer = told(api.post(f"/v1/sandboxes/{child[0]['id']}/exec", json={"args": ["echo", "up"]}), 200)
        assert answer["stdout"] == "up\n"
        end(api, child)
    for tag in ("upon", "alone", "ground"):
        told(api.delete(f"/v1/snapshots/{tag}"), 204)
    refusal(api.post(place), 404)


def test_workspaces_keep_their_state_and_their_options(api: httpx.Client) -> None:
    body = {"name": "desk", "snapshot_tag": "python", "memory_limit_mib": 300, "metadata": {"of": "me"}}
    made = told(api.post("/v1/workspaces", json=body), 201)
    assert made["status"] == "running"
    refusal(api.post("/v1/workspaces", json=body), 409)
    api.post(f"/v1/sandboxes/{made['live_sandbox_id']}/eval", json={"code": "kept = 6 * 7"})
    assert refusal(api.post("/v1/workspaces/desk/resume"), 400)["code"] == "already_running"
    away = told(api.post("/v1/workspaces/desk/suspend", json={}), 200)
    assert away["status"] == "suspended"
    assert "live_sandbox_id" not in away
    again = api.post("/v1/workspaces/desk/suspend", json={})
    assert refusal(again, 400)["code"] == "not_running"
    back = told(api.post("/v1/workspaces/desk/resume"), 200)
    sandbox = back["live_sandbox_id"]
    assert told(api.post(f"/v1/sandboxes/{sandbox}/eval", json={"code": "kept"}), 200)["result"] == "42"
    info = told(api.get(f"/v1/sandboxes/{sandbox}"), 200)
    assert (info["memory_limit_mib"], info["metadata"]) == (300, {"of": "me"})
    told(api.delete(f"/v1/sandboxes/{sandbox}"), 204)
    assert told(api.get("/v1/workspaces/desk"), 200)["status"] == "stale"
    told(api.delete("/v1/workspaces/desk"), 204)
    assert told(api.get("/v1/workspaces"), 200) == []
    refusal(api.get("/v1/workspaces/desk"), 404)
    assert not [one for one in told(api.get("/v1/snapshots"), 200) if one["tag"].startswith("ws-")]


def test_a_directory_becomes_a_snapshot_only_where_that_was_allowed(
    api: httpx.Client, server: Server
) -> None:
    body = {"tag": "of-root", "kernel": "/bin/sh", "rootfs": "/"}
    assert refusal(api.post("/v1/snapshots", json=body), 403)["code"] == "forbidden"
    with server.client(ALICE_RUNS) as runs:
        refusal(runs.post("/v1/snapshots", json=body), 403)


def test_a_head_alone_is_that_of_the_whole(server: Server, api: httpx.Client, shell: str) -> None:
    process = told(api.post(f"/v1/sandboxes/{shell}/processes", json={"command": "sleep 1000"}), 201)["id"]
    place = f"/v1/sandboxes/{shell}"
    told(api.put(f"{place}/files/content?path=headed", content=b"12345"), 201)
    for path in ("/healthz", "/v1/sandboxes", f"{place}/files/content?path=headed&x=1", "/v1/nothing"):
        whole, head = api.get(path), api.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        for name in ("content-type", "content-length"):
            assert head.headers.get(name) == whole.headers.get(name)
    # What has no end has a head, too, and before anything is said there.
    stream = api.head(f"{place}/processes/{process}/stream", timeout=BEAT_S / 2)
    assert (stream.status_code, stream.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    until = time.monotonic() + PATIENCE_S
    while told(api.get("/v1/me"), 200)["streams"]:
        assert time.monotonic() < until
    told(api.delete(f"{place}/processes/{process}"), 204)
    with server.client(ALICE_READS) as reader:
        assert reader.head("/v1/sandboxes").status_code == 200


def test_a_path_without_a_method_says_which_it_has(api: httpx.Client) -> None:
    for method, path, allowed in (
        ("PUT", "/v1/sandboxes", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/sandboxes/x", "DELETE, GET, HEAD"),
        ("HEAD", "/v1/run", "POST"),
    ):
        refused = api.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)


MACHINE = {"tag": "machine", "kernel": "/bin/sh", "rootfs": "/"}


@pytest.mark.parametrize(
    "method, path, body, status, code",
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("PUT", "/v1/sandboxes", None, 405, "method"),
        ("POST", "/v1/sandboxes", b"{", 400, "malformed"),
        ("POST", "/v1/sandboxes", b"[" * 100000, 400, "malformed"),
        ("POST", "/v1/sandboxes", b"", 422, "missing"),
        ("POST", "/v1/sandboxes", b"[]", 422, "invalid_type"),
        ("POST", "/v1/sandboxes", {}, 422, "missing"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": 1}, 422, "invalid_type"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "python", "n": "3"}, 422, "invalid_type"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "python", "n": 0}, 400, "out_of_range"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "python", "n": 1001}, 400, "out_of_range"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "../../etc"}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "absent"}, 404, "unknown_snapshot"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "python", "memory_limit_mib": 1}, 400, "out_of_range"),
        ("POST", "/v1/sandboxes", {"snapshot_tag": "a", "metadata": {"ramet.x": ""}}, 400,
         "invalid_argument"),
        ("POST", "/v1/sandboxes", {"command": ["true"], "root": "/"}, 403, "forbidden"),
        ("GET", "/v1/sandboxes?limit=0", None, 422, "invalid_type"),
        ("GET", "/v1/sandboxes/absent", None, 404, "unknown_sandbox"),
        ("DELETE", "/v1/sandboxes/absent", None, 404, "unknown_sandbox"),
        ("POST", "/v1/sandboxes/absent/ping", None, 404, "unknown_sandbox"),
        ("POST", "/v1/sandboxes/absent/exec", {"args": ["true"]}, 404, "unknown_sandbox"),
        ("POST", "/v1/sandboxes/absent/eval", {"code": "1"}, 404, "unknown_sandbox"),
        ("POST", "/v1/sandboxes/absent/fork", {}, 404, "unknown_sandbox"),
        ("POST", "/v1/sandboxes/SHELL/exec", {"args": []}, 400, "empty_command"),
        ("POST", "/v1/sandboxes/SHELL/exec", {"args": ["true"], "timeout_secs": -1}, 422, "invalid_type"),
        ("POST", "/v1/sandboxes/SHELL/eval", {"code": "1"}, 409, "no_kernel"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"tag": "../x"}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"tag": "python"}, 409, "name_taken"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"mode": "full", "diff": True}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"diff": True, "live": True}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"wait": False}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"parent_tag": "x"}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/branch", {"parent_tag": "x", "mode": "diff"}, 400, "invalid_argument"),
        ("DELETE", "/v1/snapshots/absent", None, 404, "unknown_snapshot"),
        ("DELETE", "/v1/snapshots/..%2f..%2fetc", None, 404, "not_found"),
        ("DELETE", "/v1/snapshots/.hidden", None, 400, "invalid_argument"),
        ("GET", "/v1/snapshots/absent/info", None, 404, "unknown_snapshot"),
        ("POST", "/v1/workspaces", {"name": "../x", "snapshot_tag": "python"}, 400, "invalid_argument"),
        ("POST", "/v1/workspaces", {"name": "w", "snapshot_tag": "absent"}, 404, "unknown_snapshot"),
        ("GET", "/v1/workspaces/absent", None, 404, "unknown_workspace"),
        ("DELETE", "/v1/workspaces/absent", None, 404, "unknown_workspace"),
        ("POST", "/v1/workspaces/absent/suspend", {}, 404, "unknown_workspace"),
        ("POST", "/v1/workspaces/absent/resume", None, 404, "unknown_workspace"),
        ("POST", "/v1/workspaces/..%2fx/resume", None, 404, "not_found"),
        ("POST", "/v1/snapshots", MACHINE | {"tag": "/etc/x"}, 400, "invalid_argument"),
        ("POST", "/v1/snapshots", MACHINE | {"tag": "../../x"}, 400, "invalid_argument"),
        ("POST", "/v1/snapshots", MACHINE | {"boot_wait_secs": 61}, 400, "out_of_range"),
        ("POST", "/v1/snapshots", MACHINE | {"tap": "tap0"}, 400, "invalid_argument"),
        ("POST", "/v1/snapshots", MACHINE, 403, "forbidden"),
        ("POST", "/v1/snapshots/absent/compact", {}, 404, "unknown_snapshot"),
        ("POST", "/v1/sandboxes/SHELL/rollback", {"snapshot_tag": "../x"}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/exec", {"args": ["true"], "user": "-1"}, 400, "invalid_argument"),
        ("POST", "/v1/sandboxes/SHELL/processes/77/signal", {"signal": "KILL"}, 404, "unknown_command"),
        ("DELETE", "/v1/sandboxes/SHELL/processes/77", None, 404, "unknown_command"),
        ("DELETE", "/v1/sandboxes/SHELL/terminals/77", None, 404, "unknown_command"),
        ("GET", "/v1/templates/absent", None, 404, "not_found"),
        ("GET", "/v1/templates/..%2f..%2fetc", None, 404, "not_found"),
        ("GET", "/v1/sandboxes/SHELL/files/stat?path=/absent", None, 404, "not_found"),
        ("GET", "/v1/sandboxes/SHELL/files/content?path=/etc", None, 409, "is_a_directory"),
        ("GET", "/v1/sandboxes/SHELL/processes/77", None, 404, "unknown_command"),
        ("GET", "/v1/sandboxes/SHELL/processes/77/stream?cursor=x", None, 400, "invalid_argument"),
    ],
)  # fmt: skip
def test_each_wrong_request_is_refused_by_status_and_code(
    api: httpx.Client, shell: str, *, method: str, path: str, body: object, status: int, code: str
) -> None:
    headers = {"content-type": "application/json"} if isinstance(body, bytes) else {}
    given = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
    answer = api.request(method, path.replace("SHELL", shell), headers=headers, **given)
    assert refusal(answer, status)["code"] == code


def test_a_body_of_another_type_is_refused(api: httpx.Client, shell: str) -> None:
    answer = api.post(f"/v1/sandboxes/{shell}/exec", content=b'{"args": ["true"]}')
    assert refusal(answer, 415)["code"] == "content_type"


def test_a_key_makes_one_sandbox_of_two_requests(api: httpx.Client) -> None:
    body, headers = {"command": ["sleep", "100"]}, {"idempotency-key": f"key-{os.getpid()}"}
    first = told(api.post("/v1/sandboxes", json=body, headers=headers), 201)
    assert told(api.post("/v1/sandboxes", json=body, headers=headers), 201)[0]["id"] == first[0]["id"]
    other = api.post("/v1/sandboxes", json={"command": ["sleep", "101"]}, headers=headers)
    assert refusal(other, 409)["code"] == "idempotency_key"
    end(api, first)


def test_a_fork_tells_of_each_child_by_number(api: httpx.Client, python: str) -> None:
    api.post(f"/v1/sandboxes/{python}/eval", json={"code": "n = 10"})
    children = [
        {"env": {"WHICH": "a"}, "metadata": {"who": "a"}, "limits": {"memory": "512M"}},
        {"env": {"WHICH": "c"}},
    ]
    answer = told(api.post(f"/v1/sandboxes/{python}/fork", json={"children": children}), 201)
    made = [row["sandbox"] for row in answer["children"] if "sandbox" in row]
    assert [row["number"] for row in answer["children"]] == [0, 1]
    assert answer["pause_ms"] > 0
    first = made[0]["id"]
    assert (made[0]["metadata"], made[0]["parent"]) == ({"who": "a"}, python)
    code = {"code": "import os; n + 1, os.environ['WHICH']"}
    assert told(api.post(f"/v1/sandboxes/{first}/eval", json=code), 200)["result"] == "(11, 'a')"
    words = {"args": ["sh", "-c", "echo $WHICH"]}
    assert told(api.post(f"/v1/sandboxes/{made[-1]['id']}/exec", json=words), 200)["stdout"] == "c\n"
    end(api, made)


def test_forks_in_a_row_are_of_the_state_of_their_call(api: httpx.Client) -> None:
    (made,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python", "metadata": {"of": "me"}}), 201)
    place = f"/v1/sandboxes/{made['id']}"
    told(api.post(f"{place}/branch", json={"tag": "in-a-row"}), 201)
    epochs = []
    for turn in range(3):
        told(api.post(f"{place}/eval", json={"code": f"turn = {turn}"}), 200)
        rows = told(api.post(f"{place}/fork", json={"n": 2, "metadata": {"turn": str(turn)}}), 201)
        children = [row["sandbox"] for row in rows["children"]]
        seen = [api.post(f"/v1/sandboxes/{one['id']}/eval", json={"code": "turn"}) for one in children]
        assert [told(one, 200)["result"] for one in seen] == [str(turn)] * 2
        listed = {one["id"]: one for one in told(api.get("/v1/sandboxes"), 200)}
        assert [listed[one["id"]] for one in children] == children
        assert {one["parent"] for one in children} == {made["id"]}
        epochs += [one["epoch"] for one in children]
        end(api, children)
        if turn == 1:
            told(api.post(f"{place}/rollback", json={"snapshot_tag": "in-a-row"}), 200)
    # What comes after a rollback is not of before it.
    assert epochs[:4] == [made["epoch"] + 1] * 4
    assert min(epochs[4:]) > epochs[0]
    end(api, [made])
    told(api.delete("/v1/snapshots/in-a-row"), 204)


def test_a_reader_changes_nothing(server: Server, shell: str) -> None:
    with server.client(ALICE_READS) as reader:
        assert shell in {one["id"] for one in told(reader.get("/v1/sandboxes"), 200)}
        for method, path in (
            ("POST", "/v1/sandboxes"), ("DELETE", f"/v1/sandboxes/{shell}"), ("GET", "/metrics"),
            ("POST", f"/v1/sandboxes/{shell}/exec"),
        ):  # fmt: skip
            assert refusal(reader.request(method, path), 403)["code"] == "forbidden"
