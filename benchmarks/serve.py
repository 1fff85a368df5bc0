"""The server beside the local transport: `python -m benchmarks.serve [--quick]`.

Four figures: a create and the first answer over HTTP on loopback, and by `ramet.connect`, beside the same
locally; 200 sandboxes in one call, each answering; a list of them; 500 streams at once, all of which hear an
end that is caused when all are open. It starts a server of its own on directories of its own, and ends both.
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
from collections.abc import Iterator

import httpx

import ramet

PATIENCE_S = 120.0


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


def milliseconds(call: object, times: int) -> list[float]:
    """How long each of so many calls took."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()  # type: ignore[operator]
        found.append((time.perf_counter() - began) * 1e3)
    return found


def first_answers(api: httpx.Client, times: int) -> None:
    """Create and first eval, four ways in turn."""
    connected = ramet.connect(str(api.base_url), select=False)

    def local(*, detach: bool, client: ramet.Client | None = None) -> None:
        with ramet.Sandbox("python", detach=detach, client=client) as sandbox:
            assert sandbox.run_code("6 * 7").text == "42"
            if detach:
                sandbox.kill()

    def remote() -> None:
        made = api.post("/v1/sandboxes", json={"snapshot_tag": "python"}).json()[0]["id"]
        assert api.post(f"/v1/sandboxes/{made}/eval", json={"code": "6 * 7"}).json()["result"] == "42"
        ended.append(made)

    ended: list[str] = []
    rows: dict[str, list[float]] = {"local": [], "local, detached": [], "connect": [], "http": []}
    for warm in (True, False):
        for _ in range(3 if warm else times):
            one = {
                "local": milliseconds(lambda: local(detach=False), 1),
                "local, detached": milliseconds(lambda: local(detach=True), 1),
                "connect": milliseconds(lambda: local(detach=False, client=connected), 1),
                "http": milliseconds(remote, 1),
            }
            api.delete(f"/v1/sandboxes/{ended.pop()}")
            for name, values in one.items():
                rows[name] += [] if warm else values
    connected.close()
    for name, values in rows.items():
        print(f"create, eval: {name:16} p50 {statistics.median(values):7.2f} ms, lowest {min(values):.2f}")


def spawn_many(api: httpx.Client, n: int) -> None:
    """`n` sandboxes of one call, and an answer of each."""
    began = time.perf_counter()
    made = [one["id"] for one in api.post("/v1/sandboxes", json={"snapshot_tag": "python", "n": n}).json()]
    spawned = time.perf_counter() - began

    async def answer() -> None:
        async with httpx.AsyncClient(base_url=api.base_url, timeout=PATIENCE_S) as client:
            asked = [client.post(f"/v1/sandboxes/{one}/eval", json={"code": "6 * 7"}) for one in made]
            for one in await asyncio.gather(*asked):
                assert one.json()["result"] == "42"

    asyncio.run(answer())
    answered = time.perf_counter() - began
    print(f"{n} in one call: made {spawned * 1e3:.0f} ms, all answered {answered * 1e3:.0f} ms")
    for one in made:
        api.delete(f"/v1/sandboxes/{one}")


def list_many(api: httpx.Client, n: int) -> None:
    """A list of `n` sandboxes: the first after all of them were made, and those after that."""
    made = [one["id"] for one in api.post("/v1/sandboxes", json={"snapshot_tag": "bash", "n": n}).json()]
    values = milliseconds(lambda: api.get("/v1/sandboxes").read(), 31)
    print(f"list of {n}: first {values[0]:.1f} ms, p50 {statistics.median(values[1:]):.1f} ms,", end=" ")
    print(f"lowest {min(values):.1f} ms")
    for one in made:
        api.delete(f"/v1/sandboxes/{one}")


def hold_streams(api: httpx.Client, n: int) -> None:
    """`n` streams of one command at once, all of which hear what it writes then."""
    sandbox = api.post("/v1/sandboxes", json={"command": ["sleep", "1000"]}).json()[0]["id"]
    place = f"/v1/sandboxes/{sandbox}/processes"
    process = api.post(place, json={"command": "read x; echo $x", "stdin": True}).json()["id"]

    async def follow() -> float:
        opened, said = 0, asyncio.Event()
        limits = httpx.Limits(max_connections=n)
        async with httpx.AsyncClient(base_url=api.base_url, timeout=PATIENCE_S, limits=limits) as client:

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
            await asyncio.to_thread(api.post, f"{place}/{process}/stdin?eof=true", content=b"now\n")
            assert all(await asyncio.gather(*streams))
            return time.perf_counter() - began

    print(f"{n} streams open at once: all heard the end after {asyncio.run(follow()) * 1e3:.0f} ms")
    api.delete(f"/v1/sandboxes/{sandbox}")


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
        with server(home) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as api:
            print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
            first_answers(api, 20 if options.quick else 200)
            spawn_many(api, 50 if options.quick else 200)
            list_many(api, 100 if options.quick else 1000)
            hold_streams(api, 100 if options.quick else 500)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
