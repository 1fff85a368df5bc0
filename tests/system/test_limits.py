"""Each limit of the table holds, says so, and is refused when it cannot hold."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import contextlib
import json
import os
import resource
import threading
from pathlib import Path

import pytest

import ramet
from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.limits import BY_NAME, LIMITS

MIB = 1 << 20


def test_every_result_says_what_enforces_each_limit():
    found = dict(ramet.run("true").enforced_by)
    for spec in LIMITS:
        by_cgroup = spec.controller is not None and found[spec.name] in {"cgroup v1", "cgroup v2"}
        assert by_cgroup or found[spec.name] == spec.enforced_by
    assert found.keys() == {spec.name for spec in LIMITS}
    assert ramet.run("true", limits={"disk": "1M"}).enforced_by["disk"] == "tmpfs"


def test_the_defaults_are_what_a_command_finds():
    source = """
import json, os, resource
stat = os.statvfs("/")
print(json.dumps({
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "file_size": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
    "address_space": resource.getrlimit(resource.RLIMIT_AS)[0],
    "cpu_seconds": resource.getrlimit(resource.RLIMIT_CPU)[0],
    "processes": resource.getrlimit(resource.RLIMIT_NPROC)[0] - 1,
    "disk": stat.f_blocks * stat.f_frsize,
    "inodes": stat.f_files,
}))
"""
    found = json.loads(ramet.run(["python3", "-c", source]).stdout)
    half = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2  # of what the daemon has; core keeps the other
    expected = {name: BY_NAME[name].default for name in found}
    assert found == {**expected, "open_files": min(half, expected["open_files"])}


# Forks until it may not, then says how many there are with itself; each child waits to be ended.
BOMB = """
import os, signal, sys, threading
kind = sys.argv[1]
count = 1
try:
    while count < 10_000:
        if kind == "threads":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif os.fork() == 0:
            signal.pause()
        count += 1
except (BlockingIOError, RuntimeError) as error:
    pass
print(count, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize("limit", [1, 2, 16, 200])
def test_processes_and_threads_stop_at_their_number(kind, limit):
    result = ramet.run(["python3", "-S", "-c", BOMB, kind], limits={"processes": limit})
    assert (result.stdout, result.exit_code) == (f"{limit}\n", 0)


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_bomb_stops_while_a_neighbour_works(kind):
    """The neighbour, of the same user, has processes of its own left, and the bomb ends at its deadline."""
    bomb = f"""
import os, threading
while True:
    try:
        {"os.fork()" if kind == "processes" else "threading.Thread(target=threading.Event().wait, daemon=True).start()"}
    except (BlockingIOError, RuntimeError):
        pass
"""
    results = []

    def explode() -> None:
        with ramet.Client() as client:
            results.append(client.run(["python3", "-S", "-c", bomb], timeout=2, limits={"processes": 64}))

    thread = threading.Thread(target=explode)
    with ramet.Client() as client:
        thread.start()
        line = "for n in 1 2 3 4 5 6 7 8; do (sleep 0.01; echo $n) & done; wait"
        while thread.is_alive():
            assert len(client.run(line, timeout=30).stdout.split()) == 8
    thread.join()
    assert results[0].timed_out


def test_the_classic_bomb_of_the_shell_is_ended_at_its_deadline():
    result = ramet.run("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout=1, limits={"processes": 50})
    assert result.exit_code in {124, 2}
    assert ramet.run("echo alive").stdout == "alive\n"


def test_open_files_stop_at_their_number():
    source = """
import os
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.errno, max(held))
"""
    result = ramet.run(["python3", "-S", "-c", source], limits={"open_files": 64})
    assert result.stdout == "24 63\n"


def test_a_file_stops_at_its_size_and_the_signal_is_told_apart():
    result = ramet.run("head -c 5M /dev/zero >file", limits={"file_size": "1M"})
    assert result.exit_code == 128 + 25
    result = ramet.run(["dd", "if=/dev/zero", "of=file", "bs=64K", "count=100"], limits={"file_size": "1M"})
    assert (result.reason, result.signal, result.limit) == ("signal", "SIGXFSZ", "file_size")
    source = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    open("file", "wb", 0).write(bytes(1 << 20)); open("file", "ab", 0).write(b"x")
except OSError as error:
    print(error.errno)
"""
    assert ramet.run(["python3", "-c", source], limits={"file_size": "1M"}).stdout == "27\n"


@pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm", "/var/tmp", "/root", "/etc"])
def test_what_is_written_anywhere_counts_as_disk(place):
    line = f"cd {place} && head -c 3M /dev/zero >file; stat -c %s file; rm file; head -c 500K /dev/zero >file && echo fits"
    result = ramet.run(line, limits={"disk": "1M"})
    size, fits = result.stdout.split()
    assert "No space left on device" in result.stderr
    assert 512 * 1024 < int(size) <= MIB
    assert fits == "fits"
    assert result.usage.disk_bytes <= MIB


def test_disk_is_one_sum_over_all_places():
    line = "for place in /tmp /dev/shm /home/user; do head -c 400K /dev/zero >$place/file || echo full; done"
    result = ramet.run(line, limits={"disk": "1M"})
    assert result.stdout == "full\n"
    assert 1024 * 1024 * 9 // 10 < result.usage.disk_bytes <= MIB


def test_a_full_disk_leaves_the_next_sandbox_as_it_was():
    assert "No space" in ramet.run("head -c 9M /dev/zero >file", limits={"disk": "4M"}).stderr
    assert (
        ramet.run("head -c 3M /dev/zero >file; stat -c %s file", limits={"disk": "4M"}).stdout
        == f"{3 * MIB}\n"
    )


@pytest.mark.parametrize(
    "limits, fill",
    [
        ({"disk": "1M"}, "head -c 2M /dev/zero >/var/tmp/file"),
        ({"inodes": 100}, "i=0; while : >/var/tmp/$i; do i=$((i+1)); done"),
    ],
)
def test_a_full_disk_is_an_error_inside_and_told_by_the_metrics_of_its_sandbox_alone(limits, fill):
    with ramet.Sandbox(command=["cat"]) as parent, parent.fork(limits=limits) as child:
        assert not child.metrics().disk_full
        assert "No space left on device" in child.commands.run(fill).stderr
        assert child.metrics().disk_full
        assert not parent.metrics().disk_full
        assert child.commands.run("rm /var/tmp/*").exit_code == 0
        assert not child.metrics().disk_full


def test_inodes_stop_at_their_number():
    source = """
import os
count = 0
try:
    while count < 10_000:
        os.close(os.open(f"/tmp/{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    print(error.errno, count)
"""
    result = ramet.run(["python3", "-S", "-c", source], limits={"inodes": 100})
    number, count = map(int, result.stdout.split())
    assert number == 28
    assert 60 < count < 100


def test_directories_and_links_count_as_inodes():
    line = "i=0; while [ $i -lt 5000 ] && mkdir /tmp/$i && ln -s x /tmp/l$i; do i=$((i+1)); done; echo $i"
    assert 10 < int(ramet.run(line, limits={"inodes": 100}).stdout) < 60


def test_address_space_stops_at_its_size():
    source = """
import mmap
try:
    mmap.mmap(-1, 256 << 20)
    print("mapped")
except OSError as error:
    print(error.errno)
"""
    assert ramet.run(["python3", "-c", source], limits={"address_space": "200M"}).stdout == "12\n"
    assert ramet.run(["python3", "-c", source], limits={"address_space": "1G"}).stdout == "mapped\n"


def test_processor_time_stops_at_its_seconds_and_the_signal_is_told_apart():
    result = ramet.run("while :; do :; done", limits={"cpu_seconds": 1}, timeout=50)
    assert (result.reason, result.signal, result.limit) == ("signal", "SIGXCPU", "cpu_seconds")
    assert result.exit_code == 128 + 24
    # The kernel counts ticks for the limit and tells exact times.
    assert 500 < result.usage.user_ms + result.usage.system_ms < 5000


def test_a_command_that_catches_the_warning_is_killed_a_second_later():
    source = "import signal; signal.signal(signal.SIGXCPU, lambda *_: print('warned', flush=True))\nwhile True: pass"
    result = ramet.run(["python3", "-S", "-c", source], limits={"cpu_seconds": 1}, timeout=50)
    assert {*result.stdout.split()} == {"warned"}  # the kernel does so every second
    assert (result.reason, result.limit, result.exit_code) == ("cpu", "cpu_seconds", 137)


@pytest.mark.parametrize("name", ["memory_mb", "cpu", "iops", "swap", "pids_max", "network"])
def test_a_limit_that_nothing_enforces_is_refused_by_name(name):
    with pytest.raises(LimitUnsupported) as caught:
        ramet.run("true", limits={name: 1})
    assert (caught.value.code, caught.value.field) == ("limit_unsupported", f"limits.{name}")
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "limits, field",
    [
        *(({spec.name: -1}, f"limits.{spec.name}") for spec in LIMITS),
        *(({spec.name: spec.maximum * 2}, f"limits.{spec.name}") for spec in LIMITS),
        *(({spec.name: "plenty"}, f"limits.{spec.name}") for spec in LIMITS),
        *(({spec.name: [1]}, f"limits.{spec.name}") for spec in LIMITS),
        ({"wall": float("nan")}, "limits.wall"),
        ({"wall": float("inf")}, "limits.wall"),
        ({"disk": True}, "limits.disk"),
        ({"disk": 10**5000}, "limits.disk"),
        ({"processes": 0}, "limits.processes"),
        ({3: 4}, "limits"),
        ("disk", "limits"),
        (7, "limits"),
    ],
)
def test_an_absurd_limit_is_refused_by_name_and_nothing_runs(limits, field):
    ran = []
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("echo ran", limits=limits, on_stdout=ran.append)
    assert caught.value.field == field
    assert ran == []


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "soon", 10**9, True, [1]])
def test_an_absurd_timeout_is_refused_by_name(timeout):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", timeout=timeout)
    assert caught.value.field == "timeout"


@pytest.mark.parametrize("name", [spec.name for spec in LIMITS if spec.unit != "seconds"])
def test_the_smallest_limit_is_an_end_and_no_failure_of_ramet(name):
    """Little can run with it; what comes is a result all the same, or an error that names the limit."""
    try:
        result = ramet.run("echo hello; echo >file", limits={name: BY_NAME[name].minimum}, timeout=20)
    except InvalidRequest as error:
        assert error.field == f"limits.{name}"  # noqa: PT017  either will do
    else:
        assert result.reason in {"exit", "signal"}


@pytest.mark.parametrize("name", [spec.name for spec in LIMITS if spec.name != "wall"])
def test_the_largest_limit_is_taken_or_refused_by_name(name):
    try:
        assert ramet.run("echo hello", limits={name: BY_NAME[name].maximum}).stdout == "hello\n"
    except InvalidRequest as error:
        assert error.field == f"limits.{name}"  # noqa: PT017  either will do
        assert "hard limit" in error.message  # noqa: PT017  either will do


def test_a_limit_is_one_sandboxs_and_not_the_next_ones():
    assert ramet.run("ulimit -n; ulimit -f", limits={"open_files": 99, "file_size": 512}).stdout == "99\n1\n"
    assert ramet.run("ulimit -n").stdout == f"{BY_NAME['open_files'].default}\n"
    # The layers of both were made ahead, for whom nobody knew.
    look = "stat -f -c '%b %c' /"
    for disk, inodes in (
        (64 << 20, 99),
        (1 << 31, 500_000),
        (BY_NAME["disk"].default, BY_NAME["inodes"].default),
    ):
        limits = {"disk": disk, "inodes": inodes}
        assert ramet.run(look, limits=limits).stdout == f"{disk // 4096} {inodes}\n"


def threads_of(user: int) -> int:
    count = 0
    for entry in Path("/proc").glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == user:
                count += len(os.listdir(entry))
    return count


def test_a_daemon_whose_own_user_may_have_few_processes_gives_fewer(own):
    """RLIMIT_NPROC is hard for everybody without privileges in the first user namespace."""
    if threads_of(os.getuid()) > 100:
        pytest.skip("this user runs so much already that a daemon would not start with 200 processes")
    program = own.program(
        """
import resource, ramet
resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))
source = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
print(ramet.run(["python3", "-S", "-c", source]).stdout)
try:
    ramet.run("true", limits={"processes": 200})
except ramet.InvalidRequest as error:
    print(error.field)
"""
    )
    out, err = program.communicate(timeout=50)
    assert out.split() == [b"200", b"limits.processes"], err
