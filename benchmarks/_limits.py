"""What limits cost, how exactly they hold, and what a hog leaves to its neighbours."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import ramet
from benchmarks._measure import Figure, Series, alternate, timed
from benchmarks._peers import Bubblewrap
from benchmarks._settings import Outcome, Settings

MIB = 1 << 20
LIMITS = {"memory": "128M", "disk": "16M", "inodes": 2000, "processes": 48, "open_files": 256}
BUSY = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
GROW = """
import time
held = []
while True:
    held.append(bytearray(1 << 20))
    if len(held) % 8 == 0: print(len(held), time.monotonic(), flush=True)
"""
BEAT = """
import os, time
worst = []
for _ in range({beats}):
    begun = time.monotonic()
    time.sleep(0.002)
    held = bytearray(1 << 20)
    with open("/tmp/beat", "wb") as file: file.write(held)
    reader, writer = os.pipe(); os.write(writer, b"x"); os.read(reader, 1); os.close(reader); os.close(writer)
    worst.append((time.monotonic() - begun) * 1e3)
print(*worst)
"""
HOGS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": GROW,
    "disk": "while True:\n    try: open('/tmp/f', 'wb').write(bytes(32 << 20))\n    except OSError: pass",
    "descriptors": "import os\nwhile True:\n    try: os.dup(1)\n    except OSError: pass",
    "busy loops": "import os\nfor _ in range(16):\n    if os.fork() == 0: break\nwhile True: pass",
}


@contextmanager
def daemon_without_cgroups() -> Iterator[ramet.Client]:
    """A second daemon, which makes none."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-", dir="/tmp") as directory:
        before = os.environ.get("RAMET_CGROUPS")
        os.environ["RAMET_CGROUPS"] = "none"
        try:
            with ramet.Client(directory) as client:
                client.run("true")
                os.environ.pop("RAMET_CGROUPS")
                yield client
                client.shutdown()
        finally:
            if before is not None:
                os.environ["RAMET_CGROUPS"] = before
            while any(Path(directory).iterdir()):
                time.sleep(0.01)


def measure_cost(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """`true` with and without cgroups, and with limits of its own."""
    del bubblewrap
    usual = Series("true, default limits", "ms")
    limited = Series("true, limits of its own", "ms")
    bare = Series("true, without cgroups", "ms")
    with ramet.Client() as client, daemon_without_cgroups() as other:
        alternate(
            [
                (bare, lambda: timed(lambda: other.run(["true"]))),
                (usual, lambda: timed(lambda: client.run(["true"]))),
                (limited, lambda: timed(lambda: client.run(["true"], limits=LIMITS))),
            ],
            settings.true_rounds,
            settle_s=settings.settle_s or 0.01,
        )
    added = {
        one.name: median(a - b for a, b in zip(one.samples, bare.samples, strict=True))
        for one in (usual, limited)
    }
    figures = [
        Figure("limits_added", "limits add to create, p50", "ms", added[usual.name], 0.25),
        Figure("own_limits_added", "  limits of its own add, p50", "ms", added[limited.name], None),
    ]
    return Outcome(figures, [bare, usual, limited])


def measure_exactness(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """How near to its fraction a busy loop is held, and how soon a hog dies."""
    del bubblewrap
    seconds = 2.0 if settings.true_rounds > 10 else 0.2
    shares = Series("share of a fraction of 0.5 that was had", "")
    deaths = Series("from the limit on memory to the result", "ms")
    by_cgroup = ramet.run("true").enforced_by["cpus"] != "machine"
    for _ in range(max(1, settings.limit_rounds // 10)):
        if by_cgroup:
            words = ["python3", "-S", "-c", BUSY.format(seconds=seconds)]
            result = ramet.run(words, limits={"cpus": 0.5})
            used = result.usage.user_ms + result.usage.system_ms
            shares.samples.append(used / result.duration_ms / 0.5)
        result = ramet.run(["python3", "-S", "-c", GROW], limits={"memory": "64M"})
        ended = time.monotonic()
        if result.reason != "oom":
            raise RuntimeError(f"the hog ended otherwise: {result}")
        rows = [line.split() for line in result.stdout.splitlines()]
        reached = [float(at) for count, at in rows if int(count) <= 64]
        deaths.samples.append((ended - reached[-1]) * 1e3)
    deviation = abs(shares.p50 - 1) * 100 if shares.samples else None
    figures = [
        Figure("fraction", "a fraction of processor time, off by", "%", deviation, 5),
        Figure("hog_dies", "a hog at its limit on memory is dead and told, p50", "ms", deaths.p50, 200),
    ]
    return Outcome(figures, [series for series in (shares, deaths) if series.samples])


def measure_hogs(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """The heartbeat of a neighbour and of the host, alone and beside each hog."""
    del bubblewrap
    beats = 200 if settings.true_rounds > 10 else 5

    def neighbour() -> list[float]:
        words = ["python3", "-S", "-c", BEAT.format(beats=beats)]
        return [float(word) for word in ramet.run(words, limits={"memory": "64M"}).stdout.split()]

    def host() -> list[float]:
        found = []
        for _ in range(beats):
            begun = time.monotonic()
            time.sleep(0.002)
            found.append((time.monotonic() - begun) * 1e3)
        return found

    figures, series = [], []
    for kind, source in HOGS.items():
        for who, beat in (("neighbour", neighbour), ("host", host)):
            alone, beside = beat(), _beside(source, beat)
            one = Series(f"{who}'s heartbeat beside: {kind}", "ms", beside)
            series += [Series(f"{who}'s heartbeat before: {kind}", "ms", alone), one]
            name = f"hog_{kind.replace(' ', '_')}_{who}"
            what = f"{who}'s heartbeat beside: {kind}, p50"
            figures.append(Figure(name, what, "x", one.p50 / median(alone), 2))
    return Outcome(figures, series)


def _beside(source: str, beat: Callable[[], list[float]]) -> list[float]:
    done = threading.Event()

    def hog() -> None:
        with ramet.Client() as client:
            while not done.is_set():
                limits = LIMITS | ({"cpus": 1} if client.run("true").enforced_by["cpus"] != "machine" else {})
                client.run(["python3", "-S", "-c", source], limits=limits, timeout=1)

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        ramet.run("sleep 0.3")
        return beat()
    finally:
        done.set()
        thread.join()


def measure_many(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """Limited sandboxes at once: who is within the limits goes on, who is not dies, and nothing is left."""
    del bubblewrap
    count = min(200, settings.alive)

    def one(number: int) -> bool:
        size = 200 if number % 10 == 0 else 8
        words = ["python3", "-S", "-c", f"held = bytearray({size} << 20)"]
        result = ramet.run(words, limits={"memory": "64M", "processes": 8}, timeout=120)
        return result.reason == ("oom" if number % 10 == 0 else "exit")

    def left() -> int:
        with ramet.Client() as client:
            status = client.status().core
        return status.sandboxes if status is not None else 0

    with ThreadPoolExecutor(count) as pool:
        right = sum(pool.map(one, range(count)))
    what = f"of {count} limited at once ended as they should"
    figures = [
        Figure("limited_right", what, "", right, count, at_least=True),
        Figure("limited_left", "  sandboxes left", "", left(), 0),
    ]
    return Outcome(figures, [])
