"""Descriptors in flight and epoll watches, which the kernel counts for a user and for no namespace.

One sandbox that takes them loses the processes that do, with the cause; all others go on.
"""

from pathlib import Path

import pytest

import ramet

HEAD = """
import ctypes, os, socket, sys, threading, time
libc = ctypes.CDLL(None)
held = []
def fill(most=1 << 30):
    count = 0
    try:
        while count < most:
            held.append(socket.socketpair())
            held[-1][0].setblocking(False)
            try:
                while count < most:
                    socket.send_fds(held[-1][0], [b"x"], [0] * min(253, most - count))
                    count += min(253, most - count)
            except BlockingIOError:
                pass
    except OSError:
        pass
    return count
def stay():
    print("ready", flush=True)
    threading.Event().wait()
"""
HOGS = {
    "one process": "fill(); stay()",
    "one socket in several processes": "fill(); os.fork(); os.fork(); stay()",
    "a thread with a table of its own": """
def apart():
    libc.unshare(0x400)
    fill()
    stay()
threading.Thread(target=apart).start()
""",
    "sockets in flight themselves": """
near, far = socket.socketpair()
for _ in range(15): socket.send_fds(near, [b"x"], [0] * 253)
for _ in range(5):
    near, outer = socket.socketpair()
    near.send(b"plain")
    socket.send_fds(near, [b"x"], [far.fileno()])
    far.close()
    far = outer
stay()
""",
    "connections that nobody accepts": """
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/socket")
server.listen(100)
try:
    while True:
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect("/tmp/socket")
        for _ in range(2): socket.send_fds(held[-1], [b"x"], [0] * 253)
except OSError:
    pass
stay()
""",
    "a process that cannot be dumped": "libc.prctl(4, 0, 0, 0, 0); fill(); stay()",
}
PASS = """
import socket, time
near, far = socket.socketpair()
begun = time.monotonic()
while True:
    try:
        socket.send_fds(near, [b"x"], [0])
        break
    except OSError:
        if time.monotonic() - begun > 20: raise
        time.sleep(0.01)
print(len(socket.recv_fds(far, 1, 1)[1]))
"""


def sandbox(source: str) -> ramet.Sandbox:
    return ramet.Sandbox(command=["python3", "-S", "-c", HEAD + source])


def passes() -> bool:
    """Whether another sandbox can pass a descriptor, and has it then."""
    return ramet.run(["python3", "-S", "-c", PASS], timeout=50).stdout == "1\n"


@pytest.mark.parametrize("kind", HOGS)
def test_one_who_has_all_descriptors_in_flight_loses_who_holds_them(kind):
    with sandbox(HOGS[kind]) as hog:
        assert hog.stdout.readline() == b"ready\n"
        assert passes()
        result = hog.wait(timeout=30)
    assert (result.reason, result.signal, result.limit) == ("signal", "SIGKILL", "descriptors_in_flight")
    assert result.limit_value is None


def test_many_processes_that_have_a_few_each_are_found_and_their_parent_lives():
    source = """
for _ in range(30):
    if os.fork() == 0:
        fill(140)
        stay()
for _ in range(30): print(os.wait()[1], flush=True)
input()
"""
    with sandbox(source) as hog:
        lines = [hog.stdout.readline() for _ in range(60)]
        assert lines.count(b"9\n") == 30
        assert passes()
        assert hog.info.status == "running"


def test_one_that_takes_them_again_and_again_loses_all_its_processes():
    source = """
while True:
    if os.fork() == 0:
        fill()
        stay()
    os.wait()
"""
    with sandbox(source) as hog, ramet.Sandbox(command=["cat"]) as neighbour:
        result = hog.wait(timeout=60)
        assert passes()
        assert neighbour.commands.run("echo goes on").stdout == "goes on\n"
    assert (result.signal, result.limit) == ("SIGKILL", "descriptors_in_flight")
    assert result.stdout.count("ready") == 3


def test_what_holds_them_in_a_fork_is_found_and_its_parent_goes_on():
    with sandbox("input(); fill(); stay()") as parent:
        with parent.fork() as child:
            child.stdin.write("\n")
            assert child.stdout.readline() == b"ready\n"
            assert passes()
            assert child.wait(timeout=30).limit == "descriptors_in_flight"
        assert parent.commands.run("echo goes on").stdout == "goes on\n"


def test_a_shell_tells_of_it_by_its_exit_code():
    with ramet.Sandbox(command=["cat"]) as shell:
        shell.files.write("/tmp/hog.py", HEAD + "fill(); stay()")
        result = shell.commands.run("python3 -S /tmp/hog.py; exit $?")
        assert (result.reason, result.exit_code, result.limit) == ("exit", 137, "descriptors_in_flight")
        assert shell.commands.run("exit 137").limit in {None, "descriptors_in_flight"}


@pytest.mark.root
def test_users_inside_are_counted_each_for_itself():
    words = ["python3", "-S", "-c"]
    with ramet.Sandbox(command=["cat"]) as one, ramet.Sandbox(command=["cat"]) as other:
        hog = one.commands.run([*words, f"{HEAD}fill(); stay()"], user="1000", background=True)
        result = hog.wait(timeout=30)
        assert (result.limit, result.stdout) == ("descriptors_in_flight", "ready\n")
        assert other.commands.run([*words, PASS], user="1000", timeout=30).stdout == "1\n"
        assert one.commands.run([*words, PASS]).stdout == "1\n"


def test_one_who_has_its_part_in_flight_keeps_it_beside_one_who_takes_all():
    modest = """
fill(250)
print("ready", flush=True)
input()
near, far = held[0]
print(len(socket.recv_fds(far, 1, 253)[1]), flush=True)
"""
    with sandbox(modest) as neighbour:
        assert neighbour.stdout.readline() == b"ready\n"
        with sandbox(HOGS["one process"]) as hog:
            assert hog.wait(timeout=30).limit == "descriptors_in_flight"
        neighbour.stdin.write("\n")
        assert neighbour.stdout.readline() == b"250\n"


def test_who_has_less_than_half_of_what_programs_may_have_open_in_flight_is_left_alone():
    """And who has more of them for a moment, while they are received, too."""
    source = """
fill(500)
near, far = socket.socketpair()
for _ in range(100):
    for _ in range(2): socket.send_fds(near, [b"x"], [0] * 253)
    for _ in range(2):
        for fd in socket.recv_fds(far, 1, 253)[1]: os.close(fd)
    time.sleep(0.02)
print("ready", flush=True)
input()
"""
    with sandbox(source) as busy:
        assert busy.stdout.readline() == b"ready\n"
        assert busy.info.status == "running"


WATCH = """
import os, select, threading
reader, writer = os.pipe()
fds = [os.dup(reader) for _ in range(2000)]
held = []
try:
    while True:
        held.append(select.epoll())
        for fd in fds: held[-1].register(fd, 1)
except OSError as error:
    print(error.errno, flush=True)
threading.Event().wait()
"""
FEW = """
import os, select
reader, writer = os.pipe()
held = select.epoll()
for _ in range(3000): held.register(os.dup(reader), 1)
print("ready", flush=True)
input()
"""


@pytest.mark.slow
def test_one_who_takes_the_watches_of_epoll_ends_before_they_are_gone():
    allowed = int(Path("/proc/sys/fs/epoll/max_user_watches").read_text())
    # 2,000 descriptors in each of 2,000 epolls, which the default of `open_files` allows.
    if allowed > 12_000_000:
        pytest.skip("fs.epoll.max_user_watches is more than one sandbox can take here")
    with (
        ramet.Sandbox(command=["python3", "-S", "-c", FEW]) as few,
        ramet.Sandbox(command=["python3", "-S", "-c", WATCH], limits={"memory": "2G"}) as hog,
    ):
        assert few.stdout.readline() == b"ready\n"
        result = hog.wait(timeout=120)
        assert few.info.status == "running"
        assert ramet.run(["python3", "-S", "-c", FEW], stdin=b"\n").stdout == "ready\n"
    assert (result.signal, result.limit) == ("SIGKILL", "epoll_watches")
    assert "28\n" not in result.stdout  # ENOSPC
