"""Many commands at once, with everything they cost on the clock.

The clock stops when nothing is left to be done: every sandbox is gone, the kernel has taken its namespaces
apart, and the pool is as full as before. A pool alone would make the first hundred look good.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import ramet
from benchmarks._measure import Figure, Series
from benchmarks._peers import SHELL_TRUE, Bubblewrap, spawn_many
from benchmarks._settings import Outcome, Settings
from ramet.client import status
from ramet.models.status import CoreStatus

LEAST_PER_SECOND = 600
LARGEST_POOL = 16
SETTLE_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.001


@dataclass(frozen=True, slots=True)
class Rest:
    """What a core at rest consists of. `namespaces` is None for who may not count them."""

    children: int
    namespaces: int | None
    pool: int

    @classmethod
    def now(cls) -> Rest | None:
        """None while a sandbox lives or the pool is not full."""
        core = _core()
        if core.sandboxes or core.pool_ready != core.pool_size:
            return None
        children = _children(core.pid)
        return cls(len(children), _namespaces(children), core.pool_size)


def wait_for_rest(wanted: Rest | None = None) -> Rest:
    """Wait until core is at rest, as before, and the kernel too."""
    end = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < end:
        rest = Rest.now()
        if rest is not None and wanted in (None, rest) and not _network_cleanup_runs():
            return rest
        time.sleep(LOOK_AGAIN_S)
    raise RuntimeError(f"core does not come to rest: {Rest.now()}, not {wanted}")


def _core() -> CoreStatus:
    core = status().core
    if core is None:
        raise RuntimeError("core is gone")
    return core


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _namespaces(pids: list[str]) -> int | None:
    """How many namespaces those processes live in. Inits are not dumpable: only host root may look."""
    found = set()
    for pid in pids:
        directory = f"/proc/{pid}/ns"
        try:
            found |= {os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}
        except PermissionError:
            return None
        except FileNotFoundError:
            continue  # it has just ended
    return len(found)


def _network_cleanup_runs() -> bool:
    """Whether a kernel worker is taking network namespaces apart, which outlive processes by milliseconds.

    A worker's name ends with the queue that it works for, after "+" while it does. In a container no worker
    is seen.
    """
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                name = Path("/proc", entry, "comm").read_bytes()
            except OSError:
                continue
            if name.startswith(b"kworker/") and name.rstrip().endswith(b"+netns"):
                return True
    return False


def per_second(count: int, work: Callable[[], None]) -> float:
    """Runs per second of `work`, which makes `count`, to the last trace."""
    before = wait_for_rest()
    start = time.perf_counter()
    work()
    wait_for_rest(before)
    return count / (time.perf_counter() - start)


def run_in_threads(count: int, at_once: int) -> None:
    """The synchronous client: `at_once` threads, each running one command after the other."""
    numbers = itertools.count()
    failures: list[object] = []

    def worker() -> None:
        try:
            while next(numbers) < count:
                result = ramet.run("true")
                if result.exit_code:
                    failures.append(result)
        except Exception as error:  # noqa: BLE001  told after the threads have ended
            failures.append(error)

    threads = [threading.Thread(target=worker) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} of {count} failed, the first: {failures[0]}")


def run_in_tasks(count: int, at_once: int) -> None:
    """The asynchronous client: as many tasks on one event loop."""
    numbers = itertools.count()

    async def worker() -> None:
        while next(numbers) < count:
            result = await ramet.arun("true")
            if result.exit_code:
                raise RuntimeError(f"true: {result}")

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())

    asyncio.run(all_of_them())


def measure(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """`at_once` commands at a time, in passes: threads, tasks, the peer, and again."""
    runs, at_once = settings.runs, settings.at_once
    threads = Series(f"{at_once} at once, ramet, threads", "1/s")
    tasks = Series(f"{at_once} at once, ramet, asyncio", "1/s")
    peer = Series(f"{at_once} at once, bubblewrap", "1/s")
    run_in_threads(at_once, at_once)
    run_in_tasks(at_once, at_once)
    pool = wait_for_rest().pool
    for _ in range(settings.passes):
        threads.samples.append(per_second(runs, lambda: run_in_threads(runs, at_once)))
        tasks.samples.append(per_second(runs, lambda: run_in_tasks(runs, at_once)))
        if bubblewrap is not None:
            words = bubblewrap.plain(SHELL_TRUE)
            work = partial(spawn_many, words, settings.peer_runs, at_once)
            peer.samples.append(per_second(settings.peer_runs, work))
    note = f"{runs} runs, pool {pool}; refill and teardown on the clock"
    figures = [
        Figure("runs_threads", f"runs per second, {at_once} threads", "1/s", median(threads.samples),
               LEAST_PER_SECOND, at_least=True, note=note),
        Figure("runs_asyncio", f"runs per second, {at_once} tasks", "1/s", median(tasks.samples),
               LEAST_PER_SECOND, at_least=True, note=note),
        Figure("pool_size", "  entries in the default pool", "", pool, LARGEST_POOL),
    ]  # fmt: skip
    return Outcome(figures, [series for series in (threads, tasks, peer) if series.samples])
