"""What went wrong in forkd: children with one disk, a clock that is behind, one source of chance."""

import concurrent.futures
import time
from collections.abc import Iterator

import httpx
import pytest

from server._server import told

BEHIND_S = 0.5
"""How far the clock of a child may be off."""
CHANCE = "(lambda os: os.getrandom(16, os.GRND_NONBLOCK).hex())(__import__('os'))"
WRITE = (
    "i=0; while [ $i -lt 200 ]; do echo $0 > /tmp/same; [ $(cat /tmp/same) = $0 ] || exit 1; i=$((i+1)); done"
)


def evaluated(api: httpx.Client, sandbox: str, code: str) -> str:
    answer = told(api.post(f"/v1/sandboxes/{sandbox}/eval", json={"code": code}), 200)
    assert answer["error"] is None, answer
    result: str = answer["result"]
    return result


def executed(api: httpx.Client, sandbox: str, *words: str) -> dict[str, object]:
    done: dict[str, object] = told(api.post(f"/v1/sandboxes/{sandbox}/exec", json={"args": words}), 200)
    return done


@pytest.fixture
def two(api: httpx.Client) -> Iterator[list[str]]:
    """Children of one snapshot, made in one call."""
    made = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python", "n": 2}), 201)
    ids = [one["id"] for one in made]
    yield ids
    for one in ids:
        told(api.delete(f"/v1/sandboxes/{one}"), 204)


def test_each_child_has_chance_of_its_own_and_the_hosts_time(api: httpx.Client, two: list[str]) -> None:
    assert len({evaluated(api, one, CHANCE) for one in two for _ in range(2)}) == 4
    for one in two:
        before = time.time()
        theirs = float(evaluated(api, one, "__import__('time').time()"))
        assert before - BEHIND_S <= theirs <= time.time() + BEHIND_S


def test_children_that_write_the_same_path_at_once_each_read_their_own(
    api: httpx.Client, two: list[str]
) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda one: executed(api, one, "sh", "-c", WRITE, one), two))
    assert [one["exit_code"] for one in done] == [0, 0]
    assert [executed(api, one, "cat", "/tmp/same")["stdout"] for one in two] == [f"{one}\n" for one in two]
    (third,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": "python"}), 201)
    assert executed(api, third["id"], "test", "-e", "/tmp/same")["exit_code"] == 1
    told(api.delete(f"/v1/sandboxes/{third['id']}"), 204)


def test_a_snapshot_of_a_fork_of_a_snapshot_has_the_files_of_both(api: httpx.Client, two: list[str]) -> None:
    source = two[0]
    for number, tag in enumerate(("again-first", "again-second")):
        executed(api, source, "sh", "-c", f"echo {number} > /tmp/{tag}; echo {number} >> /tmp/all")
        told(api.post(f"/v1/sandboxes/{source}/branch", json={"tag": tag}), 201)
        (fork,) = told(api.post("/v1/sandboxes", json={"snapshot_tag": tag}), 201)
        if source != two[0]:
            told(api.delete(f"/v1/sandboxes/{source}"), 204)
        source = fork["id"]
    assert executed(api, source, "sh", "-c", "cat /tmp/again-* /tmp/all")["stdout"] == "0\n1\n0\n1\n"
    told(api.delete(f"/v1/sandboxes/{source}"), 204)
    told(api.delete("/v1/snapshots/again-first?cascade=true"), 204)
