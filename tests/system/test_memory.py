"""The limit on memory: who exceeds it dies of it, which is told, and nobody else does."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import pytest

import ramet
from ramet.errors import InvalidRequest, SandboxEnded

MIB = 1 << 20
LIMIT = 96 * MIB
HOG = "held = []\nwhile True: held.append(bytearray(1 << 20))"
# What takes memory without being a process's own pages.
WAYS = {
    "anonymous": HOG,
    "shared": "import mmap\nheld = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 20); m.write(bytes(1 << 20)); held.append(m)",
    "memory files": "import os\nfd = os.memfd_create('x')\nwhile True: os.write(fd, bytes(1 << 20))",
    "threads": "import threading\nheld = []\ndef grow():\n    while True: held.append(bytearray(1 << 18))\nfor _ in range(4): threading.Thread(target=grow).start()",
}


def python(source: str, **options) -> ramet.CommandResult:
    return ramet.run(["python3", "-S", "-c", source], limits={"memory": LIMIT}, timeout=60, **options)


@pytest.mark.parametrize("way", WAYS)
def test_a_hog_dies_of_its_limit_and_the_result_says_so(way):
    result = python(WAYS[way])
    assert (result.reason, result.exit_code, result.limit, result.limit_value) == (
        "oom",
        137,
        "memory",
        LIMIT,
    )
    assert result.peak == result.usage.peak_memory_bytes >= LIMIT * 9 // 10
    assert result.usage.oom_kills >= 1
    with pytest.raises(ramet.CommandFailed, match="memory"):
        result.check()


def test_the_sum_of_all_processes_counts_and_one_of_them_dies_at_a_time():
    source = """
import os, signal
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        held = bytearray(os.urandom(1) * (40 << 20))
        signal.pause()
    children.append(pid)
first, status = os.wait()
print(os.WTERMSIG(status), flush=True)
for pid in children: os.kill(pid, 9) if pid != first else None
"""
    result = python(source)
    assert (result.stdout, result.reason, result.exit_code) == ("9\n", "exit", 0)
    assert result.usage.oom_kills >= 1


def test_who_did_not_exceed_it_goes_on():
    line = f"python3 -S -c '{WAYS['anonymous']}'; echo $?; python3 -S -c 'bytearray(8 << 20)'; echo $?"
    result = ramet.run(line, limits={"memory": LIMIT}, timeout=60)
    assert (result.stdout, result.reason) == ("137\n0\n", "exit")
    assert result.usage.oom_kills == 1


def test_a_shell_that_ends_as_what_was_killed_for_memory_ended_says_so():
    result = ramet.run(f"python3 -S -c '{HOG}'; exit $?", limits={"memory": LIMIT}, timeout=60)
    assert (result.reason, result.exit_code, result.limit) == ("oom", 137, "memory")


def test_who_is_killed_by_somebody_else_did_not_die_of_memory():
    result = ramet.run("kill -9 $$", limits={"memory": LIMIT})
    assert (result.reason, result.signal, result.limit, result.usage.oom_kills) == (
        "signal",
        "SIGKILL",
        None,
        0,
    )


def test_a_process_that_was_stopped_stays_stopped():
    source = f"""
import os, signal, subprocess, sys
sleeper = subprocess.Popen(["sleep", "1000"])
os.kill(sleeper.pid, signal.SIGSTOP)
os.waitpid(sleeper.pid, os.WUNTRACED)
hog = subprocess.run([sys.executable, "-S", "-c", {HOG!r}])
print(hog.returncode, open(f"/proc/{{sleeper.pid}}/stat").read().split(") ")[1][0])
"""
    assert python(source).stdout == "-9 T\n"


def test_memory_below_the_limit_is_had():
    assert python("held = bytearray(b'x' * (32 << 20)); print(len(held))").stdout == f"{32 * MIB}\n"


def test_written_files_are_memory_and_end_before_it_does():
    result = ramet.run(
        "head -c 200M /dev/zero >/dev/shm/file; stat -c %s /dev/shm/file", limits={"memory": LIMIT}
    )
    assert "No space left on device" in result.stderr
    assert (int(result.stdout), result.reason) == (LIMIT * 3 // 4, "exit")
    assert result.usage.disk_bytes == LIMIT * 3 // 4


def test_a_mapped_file_on_a_full_disk_is_told_as_the_disk():
    source = """
import mmap
file = open("/tmp/file", "w+b"); file.truncate(64 << 20)
mapped = mmap.mmap(file.fileno(), 0)
for offset in range(0, 64 << 20, 4096): mapped[offset] = 1
"""
    result = ramet.run(["python3", "-S", "-c", source], limits={"disk": "8M"})
    assert (result.reason, result.limit, result.limit_value) == ("disk", "disk", 8 * MIB)
    assert result.peak == result.usage.disk_bytes == 8 * MIB


@pytest.mark.parametrize("value", ["1M", -1, "much", float("inf"), True])
def test_an_absurd_amount_is_refused_by_name(value):
    with pytest.raises(InvalidRequest) as caught:
        ramet.run("true", limits={"memory": value})
    assert caught.value.field == "limits.memory"


GROW = """
import os, sys
for line in sys.stdin:
    count = int(line)
    pid = os.fork()
    if pid == 0:
        held = bytearray(os.urandom(1) * (count << 20))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def parent():
    with ramet.Sandbox(command=["python3", "-S", "-c", GROW], limits={"memory": LIMIT}) as sandbox:
        yield sandbox


def ask(sandbox: ramet.Sandbox, count: int) -> str:
    sandbox.stdin.write(f"{count}\n".encode())
    return sandbox.stdout.readline().decode().strip()


def test_a_sandbox_survives_what_in_it_exceeds_the_limit(parent):
    assert [ask(parent, count) for count in (8, 200, 8)] == ["0", "-9", "0"]


def test_a_fork_has_its_parents_limit_or_one_of_its_own(parent):
    with parent.fork() as same, parent.fork(limits={"memory": "512M"}) as more:
        assert (ask(same, 200), ask(same, 8)) == ("-9", "0")
        assert ask(more, 200) == "0"
        assert more.info.limits["memory"] == 512 * MIB
    assert ask(parent, 8) == "0"


def test_a_sandbox_whose_command_exceeds_the_limit_ends_of_it():
    with ramet.Sandbox(
        command=["python3", "-S", "-c", f"input()\n{HOG}"], limits={"memory": LIMIT}
    ) as sandbox:
        sandbox.stdin.write(b"\n")
        result = sandbox.wait(timeout=60)
        assert (result.reason, result.limit, result.limit_value, result.exit_code) == (
            "oom",
            "memory",
            LIMIT,
            137,
        )
        assert result.peak >= LIMIT * 9 // 10
        with pytest.raises(SandboxEnded) as caught:
            sandbox.fork()
        assert caught.value.reason == "oom"


@pytest.mark.parametrize("limits, reason", [({"wall": 1.5}, "timeout"), ({"idle": 0.5}, "idle")])
def test_what_was_killed_for_memory_before_is_not_the_cause_of_a_later_end(limits, reason):
    line = "python3 -S -c 'bytearray(b\"x\") * (200 << 20)'; echo on; sleep 1000"
    result = ramet.run(["sh", "-c", line], limits={"memory": "64M", **limits})
    assert (result.reason, result.exit_code, result.stdout) == (reason, 124, "on\n")
    assert result.usage.oom_kills == 1
