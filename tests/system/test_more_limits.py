"""Limits on time, on /dev/shm, on disks, and on all sandboxes together."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
from pathlib import Path

import pytest

import ramet
from ramet.doctor._cgroups import check_cgroups
from ramet.doctor._host import Host
from ramet.errors import InvalidRequest, LimitUnsupported
from ramet.models.limits import BY_NAME, WATCHER
from ramet.native.cgroups import NOTE, find_place
from ramet.native.disks import disks

PLACE = find_place()
BURN = "import os\nfor _ in range({forks}): os.fork()\nwhile True: pass"
ANSWER = """
import os, sys
for line in sys.stdin:
    try: print(repr(eval(line)), flush=True)
    except OSError as error: print(error.errno, flush=True)
"""
MIB = 1 << 20


def ask(sandbox: ramet.Sandbox, what: str) -> str:
    sandbox.stdin.write(f"{what}\n".encode())
    return sandbox.stdout.readline().decode().strip()


# --- processor time ---------------------------------------------------------------------------------------


def test_processor_time_is_that_of_all_processes_together():
    """Each has had less than the limit. On a machine that is busy the look may come so late that all are killed."""
    result = ramet.run(["python3", "-S", "-c", BURN.format(forks=2)], limits={"cpu_seconds": 2}, timeout=50)
    assert (result.limit, result.limit_value) == ("cpu_seconds", 2)
    assert (result.reason, result.signal) in {("signal", "SIGXCPU"), ("cpu", None)}
    assert result.usage.user_ms + result.usage.system_ms > 1900


def test_of_processes_that_go_on_after_the_signal_none_is_left():
    source = f"import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n{BURN.format(forks=2)}"
    result = ramet.run(["python3", "-S", "-c", source], limits={"cpu_seconds": 1}, timeout=50)
    assert (result.reason, result.exit_code, result.limit, result.limit_value) == (
        "cpu",
        137,
        "cpu_seconds",
        1,
    )
    assert result.peak >= 2


def test_time_of_processes_that_have_ended_counts():
    line = 'while :; do timeout 0.1 sh -c "while :; do :; done"; done'
    result = ramet.run(line, limits={"cpu_seconds": 1}, timeout=50)
    assert (result.limit, result.timed_out) == ("cpu_seconds", False)


CHILDREN = """
import os, time
def burn():
    while True:
        if os.fork() == 0:
            while time.process_time() < {ran}: pass
            os._exit(0)
        try: os.wait()
        except ChildProcessError: pass
"""
NO_WAITS = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    # sigaction(2) with SA_NOCLDWAIT and a handler, which no file of /proc tells.
    "handled": "libc.sigaction(17, struct.pack('P128xi4xP', ctypes.cast(libc.getpid, ctypes.c_void_p).value, 2, 0), None)",
}


@pytest.mark.parametrize("how, ran", [("ignored", "0.003"), ("ignored", "0.06"), ("handled", "0.003")])
def test_time_of_children_that_nobody_waits_for_counts(how, ran):
    """The kernel forgets it; each child has had next to nothing of the limit, and their parent as well."""
    if how == "handled" and not PLACE.version:
        pytest.skip("only a cgroup counts them")
    source = f"import ctypes, signal, struct\nlibc = ctypes.CDLL(None)\n{NO_WAITS[how]}\n{CHILDREN.format(ran=ran)}\nburn()"
    result = ramet.run(["python3", "-S", "-c", source], limits={"cpu_seconds": 1}, timeout=50)
    assert (result.limit, result.limit_value, result.timed_out) == ("cpu_seconds", 1, False)


@pytest.mark.skipif(not PLACE.version, reason="only a cgroup counts them")
def test_time_of_a_forks_children_that_nobody_waits_for_counts():
    source = f"import signal\n{CHILDREN.format(ran=0.003)}\n{ANSWER}"
    with (
        ramet.Sandbox(command=["python3", "-S", "-c", source]) as parent,
        parent.fork(limits={"cpu_seconds": 1}) as child,
    ):
        child.stdin.write(b"[signal.signal(signal.SIGCHLD, signal.SIG_IGN), burn()]\n")
        result = child.wait(timeout=50)
        assert (result.limit, result.limit_value) == ("cpu_seconds", 1)


def test_a_fork_begins_its_time_anew_and_has_no_more_than_its_parent():
    with (
        ramet.Sandbox(command=["python3", "-S", "-c", ANSWER], limits={"cpu_seconds": 100}) as parent,
        parent.fork(limits={"cpu_seconds": 1}) as child,
    ):
        child.stdin.write(b"[os.fork(), [1 for _ in iter(int, 1)]]\n")
        result = child.wait(timeout=50)
        assert (result.limit, result.limit_value) == ("cpu_seconds", 1)
        assert ask(parent, "6 * 7") == "42"
        with pytest.raises(LimitUnsupported) as caught:
            parent.fork(limits={"cpu_seconds": 101})
        assert caught.value.field == "limits.cpu_seconds"


# --- what a fork copies -----------------------------------------------------------------------------------

TWO = """
import resource, signal
if (pid := os.fork()): signal.signal(signal.SIGTERM, lambda *_: (os.kill(pid, 9), os._exit(0)))
else: signal.pause()
"""
COPIED = ("processes", "open_files", "file_size", "address_space")


@pytest.mark.parametrize("tree", ["", TWO], ids=["one process", "a tree"])
def test_a_fork_has_lower_limits_of_its_own_of_those_that_live_in_its_processes(tree):
    own = {"processes": 5, "open_files": 20, "file_size": 4096, "address_space": 1 << 40}
    source = f"import os, resource\nheld = [os.dup(0) for _ in range(30)]\n{tree}{ANSWER}"
    look = "[resource.prlimit(pid, getattr(resource, 'RLIMIT_' + name)) for pid in {pids} for name in ('NPROC', 'NOFILE', 'FSIZE', 'AS')]"
    pids = "{os.getpid(), globals().get('pid') or os.getpid()}"
    with ramet.Sandbox(command=["python3", "-S", "-c", source]) as parent:
        before = ask(parent, look.format(pids=pids))
        with parent.fork(limits=own) as child:
            expected = [(6, 6), (20, 20), (4096, 4096), (1 << 40, 1 << 40)]
            assert ask(child, look.format(pids=pids)) == str(expected * (2 if tree else 1))
            # What was open stays, and a new one has no number left.
            assert ask(child, "len([os.fstat(fd) for fd in held])") == "30"
            assert ask(child, "os.dup(0)") == "24"
            assert child.commands.run("ulimit -n; ulimit -f").stdout.split() == ["20", "8"]
            with child.fork() as grandchild:
                assert ask(grandchild, "os.dup(0)") == "24"
        assert ask(parent, look.format(pids=pids)) == before
        for name in COPIED:
            with pytest.raises(LimitUnsupported) as caught:
                parent.fork(limits={name: BY_NAME[name].default + 1})
            assert caught.value.field == f"limits.{name}"


@pytest.mark.parametrize("asked", [{"timeout": 0.2}, {"limits": {"wall": 0.2}}])
def test_a_sandbox_whose_time_is_over_tells_the_time_that_it_had(asked):
    with ramet.Sandbox(command=["cat"], **asked) as sandbox:
        result = sandbox.wait(timeout=50)
    assert (result.reason, result.limit, result.limit_value) == ("timeout", "wall", 0.2)


# --- standing idle ----------------------------------------------------------------------------------------


def test_a_sandbox_in_which_nothing_runs_ends_and_says_why():
    with ramet.Sandbox(command=["python3", "-S", "-c", ANSWER], limits={"idle": 0.3}) as sandbox:
        result = sandbox.wait(timeout=50)
    assert (result.reason, result.exit_code, result.limit, result.limit_value) == ("idle", 124, "idle", 0.3)
    result = ramet.run("sleep 1000", limits={"idle": 0.3}, timeout=50)
    assert (result.reason, result.limit, result.timed_out) == ("idle", "idle", False)


def test_a_sandbox_in_which_something_runs_now_and_then_goes_on():
    line = "for i in $(seq 40); do sleep 0.05; done"
    assert ramet.run(line, limits={"idle": 1.5}, timeout=50).reason == "exit"


def test_a_fork_stands_idle_by_itself():
    with ramet.Sandbox(command=["python3", "-S", "-c", ANSWER]) as parent:
        with parent.fork(2, limits=[{"idle": 0.3}, {}]) as (short, long):
            assert short.wait(timeout=50).reason == "idle"
            assert ask(long, "6 * 7") == "42"
        assert ask(parent, "6 * 7") == "42"


# --- /dev/shm ---------------------------------------------------------------------------------------------

FILL = "os.write(os.open('/dev/shm/fill', 65), bytes({size} << 20))"


def test_shared_memory_has_a_size_of_its_own_beside_the_disk():
    line = "head -c 9M /dev/zero >/dev/shm/file; stat -c %s /dev/shm/file; head -c 1M /dev/zero >/tmp/file && echo fits"
    result = ramet.run(line, limits={"shm": "4M", "disk": "2M"})
    assert result.stdout.split() == [str(4 * MIB), "fits"]
    assert result.usage.disk_bytes <= 2 * MIB
    assert result.enforced_by["shm"] == "tmpfs"


def test_shared_memory_of_a_fork_is_its_own_and_has_its_own_size():
    with ramet.Sandbox(command=["python3", "-S", "-c", ANSWER], limits={"shm": "4M"}) as parent:
        assert ask(parent, FILL.format(size=3)) == str(3 * MIB)
        with parent.fork(2, limits=[{}, {"shm": "8M"}]) as (same, larger):
            for child, blocks in ((same, 4), (larger, 8)):
                assert ask(child, "os.stat('/dev/shm/fill').st_size") == str(3 * MIB)
                assert ask(child, "os.statvfs('/dev/shm').f_blocks * 4 // 1024") == str(blocks)
            assert ask(larger, FILL.format(size=7)) == str(7 * MIB)
            assert ask(same, FILL.format(size=7)) == str(4 * MIB)
        assert ask(parent, "os.stat('/dev/shm/fill').st_size") == str(3 * MIB)


def test_files_that_are_open_in_both_are_carried_as_often_as_there_are_forks():
    """Their numbers are the same here and there."""
    with ramet.Sandbox(command=["python3", "-S", "-c", ANSWER], limits={"shm": "64M"}) as parent:
        files = "[open(f'/{place}/{n}', 'w+b', 0) for place in ('dev/shm', 'tmp') for n in range(12)]"
        assert ask(parent, f"len(globals().setdefault('files', {files}))") == "24"
        for generation in range(1, 4):
            write = f"[file.seek(0) + file.write(bytes([{generation}]) * (1 << 20)) for file in files][:1]"
            assert ask(parent, write) == str([MIB])
            with parent.fork() as child:
                read = "{(file.seek(0), file.read()[:1])[1] for file in files}"
                assert ask(child, read) == str({bytes([generation])})
                assert ask(child, "open('/dev/shm/7', 'rb').read(1)") == str(bytes([generation]))


# --- disks ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    "io" not in [name.replace("blkio", "io") for name, _ in PLACE.parents] or not disks(),
    reason="no cgroup that controls disks, or no disk",
)
def test_what_is_read_from_a_disk_is_bounded(rooted):
    """Of this machine's file system, or of the one that scripts/test-cgroup2 puts on a disk."""
    disk = os.environ.get("RAMET_TEST_DISK")
    source = f"""
import mmap, os, time
buffer = mmap.mmap(-1, 1 << 18)
fd = os.open({f"{disk}/bytes" if disk else os.path.realpath("/usr/bin/python3")!r}, os.O_RDONLY | os.O_DIRECT)
begun, read = time.monotonic(), 0
while read < 3 << 20:
    read += os.preadv(fd, [buffer], read % (2 << 20))
print(read / (time.monotonic() - begun))
"""

    def read(**limits):
        words, tools = ["python3", "-S", "-c", source], [disk] if disk else []
        with ramet.Sandbox(command=words, tools=tools, limits=limits, timeout=50, client=rooted) as sandbox:
            return sandbox.wait(timeout=50)

    result = read(io="2M")
    if "Invalid argument" in result.stderr:
        pytest.skip("the file system of /usr reads past no cache")
    # What the kernel lets pass at the beginning is a part of a second's.
    assert float(result.stdout) < 3.5 * MIB, result.stderr
    assert result.enforced_by["io"] == f"cgroup v{PLACE.version}"
    if disk:
        assert float(read().stdout) > 3.5 * MIB


# --- all together -----------------------------------------------------------------------------------------

TOTAL = """
import contextlib, ramet
made = contextlib.ExitStack()
def one(parent=None, **limits):
    try:
        return made.enter_context(parent.fork() if parent else ramet.Sandbox(command=["cat"], limits=limits))
    except ramet.NoRoom as error:
        assert "RAMET_TOTAL" in error.hint
        print(error.code)
    except ramet.ForkError as error:
        print(next(iter(error.errors.values())).code)
"""


@pytest.mark.parametrize("total", ["memory and processes", "cpus and sandboxes"])
def test_what_would_exceed_a_total_is_refused_until_others_have_ended(own, total):
    if total == "memory and processes":
        source = """
first = one(memory="300M", processes=30)
one(memory="800M", processes=1), one(memory="8M", processes=80)
one(first), one(first), one(first)
made.close()
print(ramet.run("true", limits={"memory": "900M", "processes": 90}).exit_code)
"""
        bounds = {"RAMET_TOTAL_MEMORY": "1G", "RAMET_TOTAL_PROCESSES": "100"}
        codes = ["total_memory", "total_processes", "total_memory"]
    else:
        source = """
first = one()
one(first)
one(first)
with contextlib.suppress(ramet.NoRoom): print(ramet.run("true"))
made.close()
print(ramet.run("true").exit_code)
"""
        processors = os.cpu_count() or 1
        bounds = {"RAMET_TOTAL_CPUS": str(2 * processors), "RAMET_TOTAL_SANDBOXES": "9"}
        codes = ["total_cpus"]
    out, err = own.program(TOTAL + source, **bounds).communicate(timeout=50)
    assert out.decode().split() == [*codes, "0"], err


def test_the_number_of_sandboxes_is_bounded_and_a_total_that_is_no_number_is_refused(own):
    source = "one(); one(); one()\ntry: ramet.run('true')\nexcept ramet.NoRoom as error: print(error.code)"
    out, err = own.program(TOTAL + source, RAMET_TOTAL_SANDBOXES="2").communicate(timeout=50)
    assert out.split() == [b"total_sandboxes"] * 2, err
    own.end()
    source = "try: one()\nexcept ramet.RametError as error: print('RAMET_TOTAL_MEMORY' in str(error))"
    out, err = own.program(TOTAL + source, RAMET_TOTAL_MEMORY="much").communicate(timeout=50)
    assert out.split() == [b"True"], err


def test_what_doctor_says_of_cgroups_is_what_a_core_gets():
    check = check_cgroups(Host.here())
    held = ramet.run("true").enforced_by
    controllers = [name for name in ("memory", "cpu", "pids") if name in dict(PLACE.parents)]
    if controllers:
        assert check.detail.startswith(f"cgroup v{PLACE.version} holds")
        assert check.status == ("pass" if len(controllers) == 3 or PLACE.version == 1 else "warn"), check
        assert held["memory"] == f"cgroup v{PLACE.version}"
        assert (held["cpus"] == held["memory"]) == ("cpu" in controllers)
        assert (held["io"] == held["memory"]) == ("io is refused" not in check.detail)
    else:
        assert (check.status, held["memory"], held["io"]) == ("warn", WATCHER, "machine")
        assert "core's watcher holds memory; io" in check.detail


# --- without cgroups, whoever runs this -------------------------------------------------------------------


GROW = """
import ctypes, os, threading, time
def fill():
    held = []
    while len(held) < 400:
        held.append(bytes(b"x") * (1 << 20))
    time.sleep(20)
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("os.fork() or os._exit(0)\nfill()", id="a child that nobody waits for"),
        pytest.param(
            "threading.Thread(target=fill).start()\nctypes.CDLL(None).syscall(60, 0)", id="the first thread"
        ),
    ],
)
def test_what_has_ended_does_not_blind_the_watcher(own, source):
    words = ["python3", "-S", "-c", GROW + source]
    program = own.program(
        f"""
import ramet
result = ramet.run({words!r}, limits={{"memory": "64M"}}, timeout=30)
print(result.reason, result.limit, result.enforced_by["memory"])
""",
        RAMET_CGROUPS="none",
    )
    out, err = program.communicate(timeout=50)
    assert out.decode() == "oom memory core watcher\n", err


HELD = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
TRACEME, CONT, SETOPTIONS, TRACEEXIT, EXITS = 0, 7, 0x4200, 0x40, 5 | 6 << 8
while True:
    if (pid := os.fork()) == 0:
        libc.ptrace(TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        held = []
        while True: held.append(bytes(b"x") * (1 << 20))
    os.waitpid(pid, 0)
    libc.ptrace(SETOPTIONS, pid, 0, TRACEEXIT)
    libc.ptrace(CONT, pid, 0, 0)
    while (status := os.waitpid(pid, 0)[1]) >> 8 != EXITS:
        if not os.WIFSTOPPED(status): break
        libc.ptrace(CONT, pid, 0, os.WSTOPSIG(status) if os.WSTOPSIG(status) != signal.SIGSTOP else 0)
"""


def test_one_who_holds_what_the_watcher_killed_at_its_end_goes_with_it(own):
    words = ["python3", "-S", "-c", HELD]
    program = own.program(
        f"""
import ramet
result = ramet.run({words!r}, limits={{"memory": "64M"}}, timeout=30)
print(result.reason, result.limit, result.enforced_by["memory"])
""",
        RAMET_CGROUPS="none",
    )
    out, err = program.communicate(timeout=50)
    assert out.decode() == "oom memory core watcher\n", err


def test_without_cgroups_the_watcher_and_init_hold_what_they_say(own):
    program = own.program(
        """
import ramet
source = "import os, signal\\nfd = os.open('/dev/shm/x', 65)\\ntry:\\n while True: os.write(fd, bytes(1 << 20))\\nexcept OSError: signal.pause()"
result = ramet.run(["python3", "-S", "-c", source], limits={"memory": "32M", "shm": "32M"}, timeout=30)
print(result.reason, result.limit, result.enforced_by["memory"])
for limits in ({"memory": "32M", "shm": "64M"}, {"shm": 100}, {"io": "1M"}, {"cpus": 0.01}):
    try:
        ramet.run("true", limits=limits)
    except ramet.InvalidRequest as error:
        print(error.field, "in memory" in (error.hint or ""))
with ramet.Sandbox(command=["cat"]) as parent:
    for limits in ({"io": "1M"}, {"cpus": 0.01}):
        try:
            parent.fork(limits=limits)
        except ramet.ForkError as error:
            print([one.field for one in error.errors.values()])
look = "import re; print(*re.findall('(?m)^(?:MemTotal|MemAvailable): +([0-9]+)', open('/proc/meminfo').read()))"
words = ["python3", "-S", "-c", f"{look}; held = bytearray(b'x' * (64 << 20)); {look}"]
total, before, again, after = map(int, ramet.run(words, limits={"memory": "256M"}).stdout.split())
print(total, again, before - after > 60 << 10)
""",
        RAMET_CGROUPS="none",
    )
    out, err = program.communicate(timeout=50)
    assert out.decode().splitlines() == [
        "oom memory core watcher",
        "limits.shm False",
        "limits.shm False",
        "limits.io True",
        "limits.cpus False",
        "['limits.io']",
        "['limits.cpus']",
        "262144 262144 True",
    ], err
    assert not Path(own.place, NOTE).exists()


def test_a_wrong_value_is_refused_by_the_field():
    for limits in ({"shm": "64E"}, {"idle": 0}, {"idle": "soon"}, {"io": 1}, {"cpu_seconds": 0}):
        with pytest.raises(InvalidRequest) as caught:
            ramet.run("true", limits=limits)
        assert caught.value.field == f"limits.{next(iter(limits))}"
