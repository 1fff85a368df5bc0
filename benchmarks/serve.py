"""The server beside the local transport: `python -m benchmarks.serve [--quick]`.

Four figures: a create and the first answer over HTTP on loopback, and by `ramet.connect`, beside the same by
the library here, the end not counted; 200 sandboxes in one call, each answering; a list of them; 500 streams
at once, all of which hear an end that is caused when all are open. It starts a server of its own on
directories of its own, and ends both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import httpx

import ramet
from benchmarks._http import PATIENCE_S, Api, Asked, ask_all, connected


@contextlib.contextmanager
def server(home: str) -> Iterator[str]:
    """A server for the user's own sandboxes; its address."""
    words = [sys.executable, "-m", "ramet", "serve", "--json", "--port", "0", "--data", f"{home}/srv"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield "http://" + json.loads(process.stdout.readline())["at"][0]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        ramet.client.shutdown()


def first_answers(api: Api, url: str, times: int) -> None:
    """Create and first eval, in turn: by the library, by `ramet.connect`, over HTTP. All are detached."""
    rows: dict[str, list[float]] = {"local": [], "connect": [], "http": []}

    def by_library(client: ramet.Client) -> tuple[float, Callable[[], object]]:
        began = time.perf_counter()
        sandbox = ramet.Sandbox("python", detach=True, client=client)
        assert sandbox.run_code("6 * 7").text == "42"
        return (time.perf_counter() - began) * 1e3, sandbox.kill

    def by_http() -> tuple[float, Callable[[], object]]:
        created, (made,) = api.timed("POST", "/v1/sandboxes", {"snapshot_tag": "python"})
        place = f"/v1/sandboxes/{made['id']}"
        answered, told = api.timed("POST", f"{place}/eval", {"code": "6 * 7"})
        assert told["result"] == "42"
        return created + answered, lambda: api.ask("DELETE", place)

    with ramet.Client() as here, ramet.connect(url, select=False) as there:
        ways = {
            "local": lambda: by_library(here),
            "connect": lambda: by_library(there),
            "http": by_http,
        }
        for turn in range(-5, times):
            for name, way in ways.items():
                took, end = way()
                end()
                if turn >= 0:
                    rows[name].append(took)
    local = statistics.median(rows["local"])
    for name, values in rows.items():
        p50 = statistics.median(values)
        print(f"create, eval: {name:8} p50 {p50:6.2f} ms, lowest {min(values):6.2f}, {p50 - local:+.2f}")


def spawn_many(api: Api, n: int, times: int) -> None:
    """`n` sandboxes of one call, and an answer of each, over some connections."""
    rows: list[tuple[float, float]] = []
    for _ in range(times):
        began = time.perf_counter()
        made = api.ask("POST", "/v1/sandboxes", {"snapshot_tag": "python", "n": n})
        spawned = time.perf_counter() - began
        places = [f"/v1/sandboxes/{one['id']}" for one in made]
        evals: list[Asked] = [("POST", f"{place}/eval", {"code": "6 * 7"}) for place in places]
        told = asyncio.run(ask_all(api, evals, 8))
        assert all(one["result"] == "42" for one in told)
        rows.append((spawned * 1e3, (time.perf_counter() - began) * 1e3))
        for place in places:
            api.ask("DELETE", place)
    made_ms, all_ms = (statistics.median(column) for column in zip(*rows, strict=True))
    lowest = min(row[1] for row in rows)
    print(f"{n} in one call: made {made_ms:.0f} ms, all answered p50 {all_ms:.0f} ms, lowest {lowest:.0f}")


def list_many(api: Api, n: int, times: int) -> None:
    """A list of `n` sandboxes: the first after all of them were made, and those after that."""
    made = api.ask("POST", "/v1/sandboxes", {"snapshot_tag": "bash", "n": n})
    values = [api.timed("GET", "/v1/sandboxes")[0] for _ in range(times + 1)]
    print(f"list of {n}: first {values[0]:.1f} ms, p50 {statistics.median(values[1:]):.1f} ms,", end=" ")
    print(f"lowest {min(values):.1f} ms")
    for one in made:
        api.ask("DELETE", f"/v1/sandboxes/{one['id']}")


def hold_streams(api: Api, url: str, n: int) -> None:
    """`n` streams of one command at once, all of which hear what it writes then."""
    sandbox = api.ask("POST", "/v1/sandboxes", {"command": ["sleep", "1000"]})[0]["id"]
    place = f"/v1/sandboxes/{sandbox}/processes"
    process = api.ask("POST", place, {"command": "read x; echo $x", "stdin": True})["id"]

    async def follow() -> float:
        opened, said = 0, asyncio.Event()
        limits = httpx.Limits(max_connections=n + 1)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:

            async def one() -> bool:
                nonlocal opened
                async with client.stream("GET", f"{place}/{process}/stream") as answer:
                    assert answer.status_code == 200, answer.status_code
                    opened += 1
                    if opened == n:
                        said.set()
                    return any(["event: exit" in line async for line in answer.aiter_lines()])

            streams = [asyncio.ensure_future(one()) for _ in range(n)]
            await asyncio.wait_for(said.wait(), PATIENCE_S)
            began = time.perf_counter()
            (await client.post(f"{place}/{process}/stdin?eof=true", content=b"now\n")).raise_for_status()
            assert all(await asyncio.gather(*streams))
            return time.perf_counter() - began

    print(f"{n} streams open at once: all heard the end after {asyncio.run(follow()) * 1e3:.0f} ms")
    api.ask("DELETE", f"/v1/sandboxes/{sandbox}")


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description="the server beside the local transport")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    home = tempfile.mkdtemp(prefix="ramet-bench-", dir="/tmp")
    os.environ.update(RAMET_RUNTIME_DIR=f"{home}/run", XDG_DATA_HOME=f"{home}/data")
    try:
        with server(home) as url, connected(url) as api:
            print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
            first_answers(api, url, 20 if options.quick else 200)
            spawn_many(api, 50 if options.quick else 200, 2 if options.quick else 7)
            list_many(api, 100 if options.quick else 1000, 30)
            hold_streams(api, url, 100 if options.quick else 500)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
