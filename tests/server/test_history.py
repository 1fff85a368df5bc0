"""Events by pages and as a stream, and lineage: of the tenant who asks, and of nobody else."""

import json
from collections.abc import Iterator

import httpx

from server._server import refusal, told

PAGE = "/v1/events"


def pages(api: httpx.Client, cursor: str, **query: object) -> Iterator[dict[str, object]]:
    """All events after the cursor, page by page; each waits for the next."""
    while True:
        page = told(api.get(PAGE, params={"cursor": cursor, "wait": 20, **query}), 200)
        yield from page["events"]
        cursor = page["cursor"]


def made(api: httpx.Client) -> str:
    return told(api.post("/v1/sandboxes", json={"command": ["sleep", "100"]}), 201)[0]["id"]


def test_events_are_had_page_by_page_from_a_cursor(api: httpx.Client, bob: httpx.Client) -> None:
    now = told(api.get(PAGE), 200)
    assert now["events"] == []
    sandbox = made(api)
    told(api.post(f"/v1/sandboxes/{sandbox}/branch", json={"tag": "of-events"}), 201)
    child = told(api.post("/v1/sandboxes", json={"snapshot_tag": "of-events"}), 201)[0]["id"]
    nodes = {one["key"]: one for one in told(api.get("/v1/lineage"), 200)["nodes"]}
    above = nodes[nodes[child]["above"]]
    assert (above["name"], above["kind"], above["above"]) == ("of-events", "snapshot", sandbox)
    for one in (child, sandbox):
        told(api.delete(f"/v1/sandboxes/{one}"), 204)
    found = []
    for event in pages(api, now["cursor"], sandbox=sandbox):
        found.append(event)
        if event["type"] == "ended":
            break
    assert [one["type"] for one in found] == ["created", "snapshot", "ended"]
    assert (found[1]["snapshot"], found[2]["note"]) == ("of-events", "by request")
    after = told(api.get(PAGE, params={"cursor": found[1]["cursor"], "types": ["ended", "forked"]}), 200)
    assert {(one["type"], one["sandbox"]) for one in after["events"]} >= {
        ("forked", child),
        ("ended", sandbox),
    }
    assert {one["type"] for one in after["events"]} == {"forked", "ended"}
    # Another tenant has events of its own, and a foreign id is as one that never was.
    assert sandbox not in bob.get(PAGE, params={"cursor": "start"}).text
    foreign = told(bob.get(PAGE, params={"cursor": "start", "sandbox": sandbox}), 200)
    assert [one for one in foreign["events"] if one["type"] != "gap"] == []
    elsewhere = told(bob.get(PAGE, params={"cursor": now["cursor"]}), 200)["events"]
    assert elsewhere[0]["type"] == "gap"
    assert "missed" not in elsewhere[0]
    # Of what has ended, that is known which something comes from that is there.
    ended = {one["key"]: one for one in told(api.get("/v1/lineage"), 200)["nodes"]}
    assert ended[sandbox]["how"] == "killed: by request"
    assert child not in ended
    assert sandbox not in bob.get("/v1/lineage").text
    told(api.delete("/v1/snapshots/of-events"), 204)


def streamed(api: httpx.Client, query: str = "", **headers: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The ids and the data of server-sent events."""
    with api.stream("GET", PAGE + query, headers={"accept": "text/event-stream", **headers}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        at = ""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                at = line.removeprefix("id: ")
            if line.startswith("data: "):
                yield at, json.loads(line.removeprefix("data: "))


def test_a_stream_of_events_is_come_back_to(api: httpx.Client) -> None:
    following = streamed(api)
    place, opening = next(following)
    assert opening == {"event": "open", "cursor": place}
    sandbox = made(api)
    place, event = next(following)
    assert (event["event"], event["sandbox"], event["cursor"]) == ("created", sandbox, place)
    following.close()
    told(api.delete(f"/v1/sandboxes/{sandbox}"), 204)
    again = streamed(api, f"?sandbox={sandbox}", **{"last-event-id": place})
    assert next(again)[1]["event"] == "open"
    place, event = next(again)
    assert (event["event"], event["reason"]) == ("ended", "killed")
    again.close()


def test_what_is_wrong_with_a_request_for_events_is_said(api: httpx.Client) -> None:
    assert refusal(api.get(f"{PAGE}?cursor=yesterday"), 400)["field"] == "cursor"
    assert refusal(api.get(f"{PAGE}?types=born"), 400)["field"] == "types"
    assert refusal(api.get(f"{PAGE}?wait=21"), 422)["field"] == "wait"
    wrong = api.get(PAGE, headers={"accept": "text/event-stream", "last-event-id": "yesterday"})
    assert refusal(wrong, 400)["field"] == "cursor"
