"""What limits cost, how exactly they hold, and what a hog leaves to its neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
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
HOST_BEAT = """
import time
found = []
for _ in range({beats}):
    begun = time.monotonic()
    time.sleep(0.002)
    found.append((time.monotonic() - begun) * 1e3)
print(*found)
"""
HOGS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory": GROW,
    "disk": "while True:\n    try: open('/tmp/f', 'wb').write(bytes(32 << 20))\n    except OSError: pass",
    "thread bomb": (
        "import threading\nwhile True:\n"
        "    try: threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    except RuntimeError: pass"
    ),
    "descriptors": "import os\nwhile True:\n    try: os.dup(1)\n    except OSError: pass",
    "pages of pipes": (
        "import fcntl, os\nheld = []\nwhile True:\n    try:\n        ends = os.pipe(); held.append(ends)\n"
        "        os.set_blocking(ends[1], False); fcntl.fcntl(ends[1], 1031, 1 << 20)\n"
        "        os.write(ends[1], bytes(1 << 20))\n    except OSError: pass"
    ),
    "inotify": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nfds = [libc.inotify_init() for _ in range(100)]\n"
        "while True:\n    for fd in fds:\n        for name in os.listdir('/usr/bin'):\n"
        "            libc.inotify_add_watch(fd, f'/usr/bin/{name}'.encode(), 2)"
    ),
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
        # A process of its own: in this one the thread that waits for the hog would be measured too.
        words = [sys.executable, "-S", "-c", HOST_BEAT.format(beats=beats)]
        found = subprocess.run(words, check=True, capture_output=True, text=True)
        return [float(word) for word in found.stdout.split()]

    figures, series = [], []
    for kind, source in HOGS.items():
        before, during = (neighbour(), host()), _beside(source, neighbour, host)
        for who, alone, beside in zip(("neighbour", "host"), before, during, strict=True):
            one = Series(f"{who}'s heartbeat beside: {kind}", "ms", beside)
            series += [Series(f"{who}'s heartbeat before: {kind}", "ms", alone), one]
            name = f"hog_{kind.replace(' ', '_')}_{who}"
            what = f"{who}'s heartbeat beside: {kind}, p50"
            figures.append(Figure(name, what, "x", one.p50 / median(alone), 2))
    return Outcome(figures, series)


def _beside(source: str, *beats: Callable[[], list[float]]) -> list[list[float]]:
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
        return [beat() for beat in beats]
    finally:
        done.set()
        thread.join()


GREEDY = """
import ctypes, fcntl, os
libc, held = ctypes.CDLL(None), []
def all_of(make):
    try:
        while True: held.append(make())
    except OSError: pass
def inotify():
    if (fd := libc.inotify_init()) < 0: raise OSError
    return fd
def pipe():
    ends = os.pipe(); held.append(ends)
    fcntl.fcntl(ends[1], 1031, 1 << 20)
all_of(inotify), all_of(pipe), all_of(os.pipe), all_of(lambda: os.memfd_create("x"))
print(flush=True)
input()
"""
TAKERS = {
    "descriptors in flight": """
import socket, time
held = []
try:
    while True:
        held.append(socket.socketpair()); held[-1][0].setblocking(False)
        try:
            while True: socket.send_fds(held[-1][0], [b"x"], [0] * 253)
        except BlockingIOError: pass
except OSError: pass
time.sleep(50)
""",
    "epoll watches": """
import os, select, time
reader, writer = os.pipe()
fds, held = [os.dup(reader) for _ in range(3800)], []
for _ in range(2): os.fork()
try:
    while True:
        held.append(select.epoll())
        for fd in fds: held[-1].register(fd, 1)
except OSError: pass
time.sleep(50)
""",
}
MODEST = """
import ctypes, os, select, socket, time
def when_there_is_some(take):
    begun = time.monotonic()
    while True:
        try: take(); return (time.monotonic() - begun) * 1e3
        except OSError:
            if time.monotonic() - begun > 10: raise
            time.sleep(0.01)
near, far = socket.socketpair()
with open("/tmp/f", "wb") as file: file.write(bytes(4096))
reader, writer = os.pipe()
assert os.write(writer, bytes(4096)) == 4096
passed = when_there_is_some(lambda: socket.send_fds(near, [b"x"], [reader, writer]))
assert len(socket.recv_fds(far, 1, 2)[1]) == 2
instance = ctypes.CDLL(None).inotify_init()
assert instance >= 0
epoll, ends = select.epoll(), [os.dup(reader) for _ in range(100)]
watched = sum(when_there_is_some(lambda: epoll.register(end, select.EPOLLIN)) for end in ends)
print(passed, watched, flush=True)
input()
"""


def measure_quotas(settings: Settings, bubblewrap: Bubblewrap | None) -> Outcome:
    """Many sandboxes beside those that take all they can get, again and again, of what all share."""
    del bubblewrap
    count = settings.alive
    done = threading.Event()
    waits = [Series("until a sandbox could pass descriptors", "ms"), Series("until it had 100 watches", "ms")]

    def one(_: int) -> bool:
        result = ramet.run(["python3", "-S", "-c", MODEST], stdin=b"\n", timeout=120)
        for series, wait in zip(waits, result.stdout.split(), strict=False):
            series.samples.append(float(wait))
        return result.ok

    def take(source: str) -> None:
        with ramet.Client() as client:
            while not done.is_set():
                client.run(["python3", "-S", "-c", source], timeout=60)

    takers = [threading.Thread(target=take, args=(source,)) for source in TAKERS.values()]
    with ramet.Sandbox(command=["python3", "-S", "-c", GREEDY]) as greedy:
        greedy.stdout.readline()
        for taker in takers:
            taker.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                served = sum(pool.map(one, range(count)))
        finally:
            done.set()
            for taker in takers:
                taker.join()
    what = f"of {count} sandboxes beside those that took all of what they share found theirs"
    figures = [Figure("quotas", what, "", served, count, at_least=True)]
    longest = [max(series.samples, default=None) for series in waits]
    for name, series, wait in zip(("passing", "watching"), waits, longest, strict=True):
        figures.append(Figure(f"quotas_{name}", f"  longest {series.name}", "ms", wait, 2000))
    return Outcome(figures, [series for series in waits if series.samples])


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
