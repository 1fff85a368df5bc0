"""Sandboxes that take all they can get: they stop at their limits, and neighbours and the host go on.

How much slower a neighbour becomes is measured by benchmarks/limits.py; here it has to answer at all.
"""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import threading
from pathlib import Path

import pytest

import ramet

LIMITS = {"memory": "128M", "disk": "16M", "inodes": 2000, "processes": 48, "open_files": 256}
HOGS = {
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading\nwhile True:\n    try: threading.Thread(target=threading.Event().wait, daemon=True).start()\n    except RuntimeError: pass",
    "memory of many processes": "import os\nfor _ in range(40):\n    if os.fork() == 0: break\nheld = []\nwhile True: held.append(bytearray(1 << 20))",
    "disk": "import itertools\nfor n in itertools.cycle(range(100)):\n    try: open(f'/tmp/{n}', 'ab').write(bytes(1 << 20))\n    except OSError: pass",
    "inodes": "import itertools\nfor n in itertools.count():\n    try: open(f'/tmp/{n}', 'w').close()\n    except OSError: pass",
    "descriptors": "import os, socket\nheld = []\nwhile True:\n    try: held.append(os.dup(1)); held.append(socket.socketpair())\n    except OSError: pass",
    "pipes": "import fcntl, os\nheld = []\nwhile True:\n    try:\n        pipe = os.pipe(); held.append(pipe)\n        fcntl.fcntl(pipe[1], 1031, 1 << 20); os.set_blocking(pipe[1], False); os.write(pipe[1], bytes(1 << 20))\n    except OSError: pass",
    "watches": "import ctypes, os\nlibc = ctypes.CDLL(None)\nfds = [libc.inotify_init() for _ in range(100)]\nwhile True:\n    for fd in fds:\n        for name in os.listdir('/usr/bin'): libc.inotify_add_watch(fd, f'/usr/bin/{name}'.encode(), 2)",
    "processors": "import os\nfor _ in range(16):\n    if os.fork() == 0: break\nwhile True: pass",
}


@pytest.mark.parametrize("kind", HOGS)
def test_a_hog_leaves_its_neighbours_and_the_host_at_work(kind):
    results = []

    def explode() -> None:
        with ramet.Client() as client:
            results.append(client.run(["python3", "-S", "-c", HOGS[kind]], timeout=1.2, limits=LIMITS))

    thread = threading.Thread(target=explode)
    with ramet.Client() as neighbour:
        thread.start()
        beats = 0
        while thread.is_alive() or not beats:
            line = "import os, select; r, w = os.pipe(); os.write(w, bytes(4096)); open('/tmp/f', 'wb').write(bytes(1 << 20)); print(os.fork() >= 0 and len(bytearray(8 << 20)))"
            assert (
                "8388608"
                in neighbour.run(["python3", "-S", "-c", line], limits={"memory": "64M"}, timeout=60).stdout
            )
            assert Path("/proc/self/stat").read_text()
            beats += 1
        thread.join()
    result = results[0]
    assert result.reason in {"timeout", "oom"}
    assert result.usage.disk_bytes <= 16 << 20
    assert not result.lingering


def test_one_who_takes_every_inotify_instance_that_it_can_leaves_most_to_others():
    """They count for the user of all sandboxes together, but each has a quarter at most."""
    source = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while count < 100_000 and libc.inotify_init() >= 0: count += 1
print(count, flush=True)
input()
"""
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // 4
    command = ["python3", "-S", "-c", source]
    limits = {"open_files": most + 100}
    with (
        ramet.Sandbox(command=command, limits=limits) as hog,
        ramet.Sandbox(command=command, limits=limits) as other,
    ):
        assert int(hog.stdout.readline()) == most
        assert int(other.stdout.readline()) > most // 2


def test_without_memory_for_the_machine_nobody_comes_in_and_those_inside_go_on(own):
    program = own.program(
        """
import ramet
for _ in range(2):
    try:
        ramet.run("true")
    except ramet.NoRoom as error:
        print(error.code)
try:
    ramet.Sandbox(command=["cat"])
except ramet.NoRoom as error:
    print(error.code, "RAMET_MEMORY_RESERVE" in error.hint)
""",
        RAMET_MEMORY_RESERVE="64T",
    )
    out, err = program.communicate(timeout=50)
    assert out.split() == [b"no_memory", b"no_memory", b"no_memory", b"True"], err


def test_what_is_there_only_to_be_fast_goes_first_and_the_next_fork_is_served(own):
    available = int(
        next(
            line.split()[1]
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable")
        )
    )
    program = own.program(
        """
import ramet
with ramet.Sandbox(command=["python3", "-S", "-c", "held = bytearray(b'x' * (32 << 20)); input()"]) as parent:
    with parent.fork(2):
        pass
    with parent.fork() as child:
        print(child.info.status)
""",
        RAMET_MEMORY_RESERVE=str(available * 1024 * 6 // 10),
    )
    out, err = program.communicate(timeout=50)
    assert out == b"running\n", err
