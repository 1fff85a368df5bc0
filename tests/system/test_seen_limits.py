"""Programs find their sandbox's limits where they look for what the machine has."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
import time

import pytest

import ramet
from ramet.native.cgroups import find_place

PATIENCE_S = 60.0
MEMORY = "import re; print(*re.findall(r'(?m)^(?:MemTotal|MemAvailable): +([0-9]+)', open('/proc/meminfo').read()))"
LOOK = f"""
import os, sys
held, kept = [], open('/proc/meminfo')
for line in sys.stdin:
    if line.strip() == 'grow': held.append(bytearray(b'x' * (64 << 20))); print(flush=True)
    elif line.strip() == 'held': kept.seek(0); print(kept.read().split()[7], flush=True)
    else: {MEMORY}; sys.stdout.flush()
"""


def ask(sandbox: ramet.Sandbox, what: str) -> list[int]:
    sandbox.stdin.write(f"{what}\n".encode())
    return [int(word) for word in sandbox.stdout.readline().split()]


@pytest.fixture(scope="module")
def parent():
    with ramet.Sandbox(command=["python3", "-S", "-c", LOOK], limits={"memory": "256M"}) as sandbox:
        yield sandbox


def test_meminfo_tells_the_limit_and_what_is_left_of_it(parent):
    total, before = ask(parent, "look")
    assert total == 256 << 10
    assert before < total
    ask(parent, "grow")
    deadline = time.monotonic() + PATIENCE_S  # without a cgroup it is counted anew at times
    while before - (now := ask(parent, "look"))[1] < 60 << 10:
        assert now[0] == total
        assert time.monotonic() < deadline


def test_who_keeps_the_file_open_reads_what_is_true_later(parent):
    with parent.fork() as child:
        (before,) = ask(child, "held")
        ask(child, "grow")
        deadline = time.monotonic() + PATIENCE_S
        while before - ask(child, "held")[0] < 60 << 10:
            assert time.monotonic() < deadline


def test_a_fork_finds_limits_of_its_own(parent):
    with parent.fork(2, limits=[{"memory": "512M"}, {"memory": "1G"}]) as children:
        assert [ask(child, "look")[0] for child in children] == [512 << 10, 1 << 20]
    assert ask(parent, "look")[0] == 256 << 10


def test_free_and_the_files_of_cgroups_say_the_same():
    line = "free -k | awk '/^Mem/ {print $2}'; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids.max"
    result = ramet.run(line, limits={"memory": "128M", "processes": 77})
    assert result.stdout.split() == [str(128 << 10), str(128 << 20), str(128 << 20), "77"]


def test_programs_that_read_cgroups_find_all_that_they_look_for():
    """libuv, as of Node.js, takes a file that is missing for a limit of 0, and for version 2 asks for the first."""
    names = "cgroup.controllers memory.high memory.swap.max memory/memory.soft_limit_in_bytes memory/memory.memsw.limit_in_bytes"
    result = ramet.run(f"cd /sys/fs/cgroup && cat {names}", limits={"memory": "128M"})
    assert result.stdout.splitlines() == [
        "cpu memory pids",
        "max",
        "0",
        str((1 << 63) - 4096),
        str(128 << 20),
    ]


def test_each_of_many_limits_is_told_also_a_second_time_and_those_of_who_lives_stay(parent):
    line = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max"
    for processes in [*range(30, 50), 30]:
        assert ramet.run(line, limits={"processes": processes}).stdout.split() == [str(processes)] * 2
    assert parent.commands.run("cat /sys/fs/cgroup/memory.max").stdout == f"{256 << 20}\n"


def test_what_tells_of_limits_cannot_be_changed_or_taken_away():
    line = "for file in /proc/meminfo /sys/fs/cgroup/memory.max; do (echo 1 >$file) 2>/dev/null || echo kept; rm -f $file 2>/dev/null || echo stays; chmod 777 $file 2>/dev/null || echo so; done"
    assert ramet.run(line).stdout.split() == ["kept", "stays", "so"] * 2


def test_a_hundred_readers_at_once_are_all_answered():
    line = (
        "for i in $(seq 100); do head -n 1 /proc/meminfo & done | sort | uniq -c | awk '{print $1, $3}'; wait"
    )
    assert ramet.run(line, limits={"memory": "128M"}, timeout=40).stdout.split() == ["100", str(128 << 10)]


@pytest.mark.skipif(not find_place().version, reason="fewer processors than the machine's need a cgroup")
def test_the_number_of_processors_is_what_may_be_used():
    count = "import os; print(os.cpu_count(), open('/proc/cpuinfo').read().count('processor\\t'), sum(line[:3] == 'cpu' for line in open('/proc/stat')) - 1)"
    result = ramet.run(f'nproc; python3 -S -c "{count}"; cat /sys/fs/cgroup/cpu.max', limits={"cpus": 0.5})
    assert result.stdout.split() == ["1", "1", "1", "1", "50000", "100000"]
    assert ramet.run(["python3", "-S", "-c", count]).stdout.split() == [str(os.cpu_count())] * 3
    with (
        ramet.Sandbox(command=["python3", "-S", "-c", f"input()\n{count}\ninput()"]) as whole,
        whole.fork(limits={"cpus": 0.5}) as child,
    ):
        for one, number in ((child, 1), (whole, os.cpu_count())):
            one.stdin.write(b"\n")
            assert one.stdout.readline().decode().split() == [str(number)] * 3


@pytest.mark.skipif(not os.path.exists("/usr/bin/node"), reason="no Node.js here")
def test_node_finds_its_memory_and_its_heap_ends_before_that_does():
    """It would allow itself 256 MiB at least."""
    script = "const v8 = require('v8'), os = require('os'); console.log(os.totalmem(), process.constrainedMemory(), v8.getHeapStatistics().heap_size_limit)"
    result = ramet.run(["node", "-e", script], limits={"memory": "160M"}, timeout=60)
    total, constrained, heap = map(int, result.stdout.split())
    assert (total, constrained) == (160 << 20, 160 << 20)
    assert heap < 160 << 20
    script = "let held = []; for (;;) held.push(new Array(1e5).fill(held.length))"
    result = ramet.run(["node", "-e", script], limits={"memory": "160M"}, timeout=60)
    assert "heap out of memory" in result.stderr
    assert result.reason != "oom"


@pytest.mark.skipif(not os.path.exists("/usr/bin/java"), reason="no Java here")
def test_java_sizes_its_heap_by_the_limit():
    """It looks at nothing that a sandbox may show it, but reads a variable."""
    result = ramet.run("java -XX:+PrintFlagsFinal -version", limits={"memory": "400M"}, timeout=60)
    (size,) = [line.split()[3] for line in result.stdout.splitlines() if " MaxHeapSize " in line]
    assert int(size) <= 200 << 20, result.stderr
