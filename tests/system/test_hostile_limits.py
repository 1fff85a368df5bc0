"""Sandboxes that take all they can get: they stop at their limits, and neighbours and the host go on.

How much slower a neighbour becomes is measured by benchmarks/limits.py; here it has to answer at all.
"""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import resource
import subprocess
import sys
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


TAKE = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
kinds = {
    "inotify instances": lambda n: libc.inotify_init(),
    "queues": lambda n: libc.mq_open(b"/%d" % n, os.O_CREAT | os.O_RDWR, 0o600, None),
    "signals": lambda n: libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None),
}
count = 0
while count < 100_000 and kinds[sys.argv[1]](count) >= 0: count += 1
print(count, flush=True)
"""
QUEUE = 10 * (8192 + 56)
"""Bytes that a queue of the usual size counts for (mq_overview(7))."""


@pytest.mark.parametrize("kind", ["inotify instances", "queues", "signals"])
def test_one_who_takes_all_that_the_kernel_counts_for_a_user_leaves_most_of_it(kind):
    """To other sandboxes as much as it has itself; what this very user has outside is left out of the share of all."""
    if kind == "inotify instances":
        most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // 4
    elif kind == "queues":
        most = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1] // 4 // QUEUE
    else:
        most = min(1024, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 4)
    command = ["python3", "-S", "-c", f"{TAKE}\ninput()", kind]
    limits = {"open_files": most + 100}
    with (
        ramet.Sandbox(command=command, limits=limits) as hog,
        ramet.Sandbox(command=command, limits=limits) as other,
        ramet.Sandbox(command=command, limits=limits) as third,
    ):
        assert int(hog.stdout.readline()) == most
        assert int(other.stdout.readline()) == most
        third.stdout.readline()
        with ramet.Sandbox(command=command, limits=limits) as fourth:
            left = int(fourth.stdout.readline())
        # What is left when all sandboxes have their share is for the user's own programs.
        one = f"{TAKE.replace('100_000', '1')}\nlibc.mq_unlink(b'/0')"
        words = [sys.executable, "-S", "-c", one, kind]
        outside = subprocess.run(words, check=True, capture_output=True, text=True)
    assert left < most or kind == "signals"
    assert outside.stdout == "1\n"


IN_FLIGHT = """
import socket
held, count = [], 0
try:
    while True:
        held.append(socket.socketpair())
        held[-1][0].setblocking(False)
        try:
            while True:
                socket.send_fds(held[-1][0], [b"x"], [0] * 253)
                count += 253
        except BlockingIOError:
            pass
except OSError as error:
    print(count, error.errno, flush=True)
input()
"""


@pytest.mark.parametrize("hard", [2048, 20000])
def test_one_who_has_as_many_descriptors_in_flight_as_it_can_leaves_core_and_clients_theirs(own, hard):
    """Guests' limit on open files is half of core's at most, and they are compared with it first."""
    program = own.program(
        f"""
import errno, resource, ramet
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min({hard}, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
words = ["python3", "-S", "-c", {IN_FLIGHT!r}]
with ramet.Sandbox(command=["cat"]) as neighbour, ramet.Sandbox(command=words) as hog:
    count, number = map(int, hog.stdout.readline().split())
    print(count > 256, number == errno.ETOOMANYREFS)
    print([ramet.run("echo $((6 * 7))").stdout for _ in range(3)])
    print(neighbour.commands.run("echo goes on").stdout, ramet.Sandbox("python").run_code("6 * 7").text)
    with neighbour.fork() as child:
        print(child.info.status, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    ramet.run("true", limits={{"open_files": {hard} // 2 + 1}})
except ramet.InvalidRequest as error:
    print(error.field)
"""
    )
    out, err = program.communicate(timeout=100)
    assert out.decode().splitlines() == [
        "True True",
        "['42\\n', '42\\n', '42\\n']",
        "goes on",
        " 42",
        "running 256",
        "limits.open_files",
    ], err


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
