"""What only cgroups can hold, and that nothing is left of them. Skipped where this user can have none."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import contextlib
import os
import signal
from pathlib import Path

import pytest

import _ledger
import ramet
from ramet.models.limits import WATCHER, enforced_by
from ramet.native.cgroups import NOTE, find_place
from ramet.native.disks import disks
from system._daemons import kill_hard

PLACE = find_place()
MIB = 1 << 20
BUSY = "import os, time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
pytestmark = pytest.mark.skipif(not PLACE.version, reason=f"no cgroups to be had: {PLACE.why}")


def groups(place: str) -> list[str]:
    """The cgroups of cores that are noted in a runtime directory."""
    note = Path(place, NOTE)
    return note.read_text().splitlines() if note.exists() else []


@pytest.fixture
def noted(runtime_directory):
    ramet.run("true")
    return groups(str(runtime_directory))


def test_the_result_and_the_status_name_the_version():
    name = f"cgroup v{PLACE.version}"
    assert ramet.run("true").enforced_by["memory"] == name
    with ramet.Client() as client:
        core = client.status().core
        assert core is not None
        assert enforced_by(core.cgroups)["memory"] == name


@pytest.mark.parametrize("how", ["one process", "many processes", "threads"])
def test_a_fraction_of_a_processor_is_all_that_is_had(how):
    source = {
        "one process": BUSY,
        "many processes": f"import os\nfor _ in range(3): os.fork()\n{BUSY}",
        "threads": f"import threading\nfor _ in range(4): threading.Thread(target=lambda: exec({BUSY!r})).start()",
    }[how]
    result = ramet.run(["python3", "-S", "-c", source], limits={"cpus": 0.2}, timeout=60)
    used = result.usage.user_ms + result.usage.system_ms
    # What is begun in a period may be ended; the quota is of 20 ms in each 100 ms.
    assert used <= 0.2 * result.duration_ms + 60
    assert result.enforced_by["cpus"] == f"cgroup v{PLACE.version}"


def test_programs_find_how_many_processors_they_have():
    line = "nproc; echo $GOMAXPROCS $PYTHON_CPU_COUNT"
    assert ramet.run(line, limits={"cpus": 0.2}).stdout.split() == ["1", "1", "1"]
    assert ramet.run(line, limits={"cpus": 0.2}, env={"GOMAXPROCS": "7"}).stdout.split() == ["1", "7", "1"]
    assert ramet.run("echo $OMP_NUM_THREADS").stdout == "\n"


def test_commands_of_a_sandbox_and_of_its_forks_find_what_each_may_use():
    line = "echo $GOMAXPROCS $RAYON_NUM_THREADS $GOMEMLIMIT"
    with (
        ramet.Sandbox(command=["cat"], env={"RAYON_NUM_THREADS": "9"}, limits={"memory": "200M"}) as parent,
        parent.fork(limits={"cpus": 0.5, "memory": "100M"}) as child,
    ):
        assert parent.commands.run(line).stdout.split() == ["9", str(180 * MIB)]
        assert child.commands.run(line).stdout.split() == ["1", "9", str(90 * MIB)]


def test_a_fork_with_a_fraction_of_its_own_is_held_to_it():
    source = f"import sys, resource\nfor line in sys.stdin:\n    exec({BUSY!r})\n    print(sum(os.times()[:2]), flush=True)"
    with ramet.Sandbox(command=["python3", "-S", "-c", f"import os\n{source}"]) as parent:
        parent.stdin.write(b"\n")
        float(parent.stdout.readline())
        with parent.fork(limits={"cpus": 0.1}) as child:
            assert child.info.enforced_by["cpus"] == f"cgroup v{PLACE.version}"
            assert child.info.enforced_by["memory"] == WATCHER
            child.stdin.write(b"\n")
            child.stdin.write(b"\n")
            first, second = (float(child.stdout.readline()) for _ in range(2))
            assert second - first <= 0.3


def test_a_fork_in_a_cgroup_is_held_to_its_memory_too():
    source = "import sys\nfor line in sys.stdin: bytearray(int(line) << 20); print(line, flush=True)"
    with (
        ramet.Sandbox(command=["python3", "-S", "-c", source]) as parent,
        parent.fork(limits={"cpus": 0.5, "memory": "96M"}) as child,
    ):
        child.stdin.write(b"8\n")
        assert child.stdout.readline() == b"8\n"
        child.stdin.write(b"400\n")
        result = child.wait(timeout=60)
        assert (result.reason, result.limit, result.limit_value) == ("oom", "memory", 96 << 20)


def test_a_sandbox_has_a_cgroup_of_its_own_and_leaves_none(noted):
    assert all(line.endswith(":/") for line in ramet.run("cat /proc/self/cgroup").stdout.splitlines()[-3:])
    for _ in range(20):
        ramet.run("true")
    with ramet.Client() as client:
        # Those that ended last are removed when their namespaces are.
        for _ in range(3000):
            made = {path for group in noted for path in os.listdir(group) if path.startswith("s")}
            core = client.status().core
            if len(made) == core.pool_ready + core.sandboxes:
                return
    pytest.fail(f"{len(made)} cgroups for {core}")


SECOND = {
    "memory": ("memory.max", str(77 * MIB)),
    "swap": ("memory.swap.max", "0"),  # of memory and swap together no more, then
    "cpu": ("cpu.max", "12000 100000"),
    "pids": ("pids.max", "35"),
}
FIRST = {
    "memory": ("memory.limit_in_bytes", str(77 * MIB)),
    "swap": ("memory.memsw.limit_in_bytes", str(77 * MIB)),
    "cpu": ("cpu.cfs_quota_us", "12000"),
    "pids": ("pids.max", "35"),
}


@pytest.mark.parametrize("whose", ["a sandbox", "a fork"])
def test_what_cgroups_bound_is_what_was_asked_for(noted, whose):
    """The memory of a fork is bounded by its init: the kernel would charge who had it first."""
    limits = {"memory": 77 * MIB, "cpus": 0.12, "processes": 33}
    given = {name for name, _ in PLACE.parents}
    wanted = FIRST if PLACE.version == 1 else SECOND
    with contextlib.ExitStack() as made:
        sandbox = made.enter_context(ramet.Sandbox(command=["cat"], limits={} if "fork" in whose else limits))
        if whose == "a fork":
            made.enter_context(sandbox.fork(limits=limits))
        for name, (file, value) in wanted.items():
            if (name if name != "swap" else "memory") not in given:
                continue
            found = [path.read_text().strip() for group in noted for path in Path(group).glob(f"s*/{file}")]
            if found or name != "swap":  # of which the kernel may keep no account
                assert value in found, (name, found)


@pytest.mark.skipif(not disks(), reason="no disk")
@pytest.mark.parametrize("whose", ["a sandbox", "a fork"])
def test_the_limit_on_disks_is_that_of_the_sandboxs_cgroup(noted, whose):
    if ramet.run("true").enforced_by["io"] == "machine":
        pytest.skip("no cgroup that controls disks")
    with contextlib.ExitStack() as made:
        asked = {"io": 7_654_321}
        sandbox = made.enter_context(ramet.Sandbox(command=["cat"], limits={} if "fork" in whose else asked))
        if whose == "a fork":
            made.enter_context(sandbox.fork(limits=asked))
        names = ("blkio.throttle.read_bps_device", "io.max")
        found = [
            path.read_text() for group in noted for name in names for path in Path(group).glob(f"s*/{name}")
        ]
        # One file for both ways, or one for each; entries that are made ahead have the limits of the last sandbox.
        assert {text.count("7654321") for text in found} - {0} in ({len(disks())}, {2 * len(disks())})


def test_what_was_used_is_told_of_a_run_whose_init_says_nothing_any_more(own):
    _, core = own.pids()

    def stop_init(_):
        (command,) = [one for one in _ledger.descendants(core) if one.name == "python3"]
        os.kill(command.parent, signal.SIGSTOP)

    source = "held = bytearray(b'x') * (40 << 20); print('on', flush=True); import time; time.sleep(1000)"
    result = own.client().run(
        ["python3", "-S", "-c", source], limits={"memory": "96M", "wall": 3}, on_stdout=stop_init
    )
    assert (result.reason, result.stdout) == ("timeout", "on\n")
    assert result.usage.peak_memory_bytes >= 40 * MIB


def test_limits_of_the_one_before_do_not_hold_for_the_next():
    assert ramet.run("true", limits={"memory": "16M", "cpus": 0.1, "processes": 3}).ok
    source = "held = bytearray(64 << 20)\nimport os\npids = [os.fork() for _ in range(3)]\nprint(len(held)) if all(pids) else None"
    assert ramet.run(["python3", "-S", "-c", source]).stdout == f"{64 * MIB}\n"


@pytest.mark.parametrize("victims", ["core", "daemon and core"])
def test_cgroups_of_who_was_killed_are_gone_with_the_next_start(own, victims):
    daemon, core = own.pids()
    before = groups(own.place)
    assert all(os.path.isdir(group) for group in before)
    if "daemon" in victims:
        kill_hard(daemon)
    kill_hard(core)
    own.pids()
    after = groups(own.place)
    assert [group for group in before if os.path.exists(group)] == []
    assert after
    own.end()
    assert [group for group in after if os.path.exists(group)] == []
