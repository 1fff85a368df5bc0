"""Which limit ended a command is told where it was reached, and nowhere else."""

import pytest

import ramet

MIB = 1 << 20
HOG = "python3 -S -c 'bytearray(b\"x\") * (200 << 20)'"
FILL = """
import mmap, sys
file = open(sys.argv[1], "w+b"); file.truncate(64 << 20)
mapped = mmap.mmap(file.fileno(), 0)
for offset in range(0, 64 << 20, 4096): mapped[offset] = 1
"""


def shell(line: str, **limits) -> ramet.CommandResult:
    return ramet.run(["sh", "-c", line], limits=limits, timeout=50)


# --- what a shell reports of what it waited for ------------------------------------------------------------


def test_a_shell_whose_command_wrote_too_large_a_file_says_which_limit_that_was():
    result = shell("head -c 2M /dev/zero >file; exit $?", file_size="1M")
    assert (result.reason, result.exit_code, result.signal) == ("exit", 153, None)
    assert (result.limit, result.limit_value) == ("file_size", MIB)
    with pytest.raises(ramet.CommandFailed, match="exit code 153, its limit of file_size"):
        result.check()


def test_a_command_of_a_standing_sandbox_says_the_same():
    with ramet.Sandbox(command=["cat"], limits={"file_size": "1M"}) as sandbox:
        result = sandbox.commands.run("head -c 2M /dev/zero >/tmp/file; exit $?")
        assert (result.reason, result.limit, result.limit_value) == ("exit", "file_size", MIB)
        assert sandbox.commands.run("exit 153").limit is None


def test_a_shell_whose_command_ran_too_long_says_which_limit_that_was():
    result = shell("sh -c 'while :; do :; done'; exit $?", cpu_seconds=1)
    assert (result.reason, result.exit_code) == ("exit", 152)
    assert (result.limit, result.limit_value, result.peak) == ("cpu_seconds", 1, 1)


@pytest.mark.parametrize(
    "path, limits, limit",
    [
        ("/tmp/file", {"disk": "8M"}, "disk"),
        ("/dev/shm/file", {"disk": "8M"}, "disk"),
        ("/dev/shm/file", {"shm": "8M"}, "shm"),
    ],
)
def test_a_mapped_file_that_cannot_grow_is_told_as_the_limit_of_where_it_is(path, limits, limit):
    words = ["python3", "-S", "-c", FILL, path]
    result = ramet.run(words, limits=limits, timeout=50)
    assert (result.reason, result.limit, result.limit_value, result.peak) == (
        "disk",
        limit,
        8 * MIB,
        8 * MIB,
    )
    result = ramet.run(["sh", "-c", '"$@"; exit $?', "sh", *words], limits=limits, timeout=50)
    assert (result.reason, result.exit_code, result.limit) == ("exit", 135, limit)


# --- what looks like a limit and is none -------------------------------------------------------------------


@pytest.mark.parametrize("name, code", [("XFSZ", 153), ("XCPU", 152), ("BUS", 135)])
def test_a_signal_that_a_program_sends_itself_is_no_limit(name, code):
    limits = {"file_size": "1M", "cpu_seconds": 5}
    result = shell(f"kill -{name} $$", **limits)
    assert (result.reason, result.signal, result.limit, result.limit_value) == (
        "signal",
        f"SIG{name}",
        None,
        None,
    )
    result = shell(f"exit {code}", **limits)
    assert (result.reason, result.exit_code, result.limit) == ("exit", code, None)


@pytest.mark.parametrize("end, reason", [("exit 137", "exit"), ("kill -9 $$", "signal")])
def test_who_ends_like_that_long_after_a_child_was_killed_for_memory_did_not_die_of_it(end, reason):
    result = shell(f"{HOG}; sleep 3; {end}", memory="64M")
    assert (result.reason, result.exit_code, result.limit) == (reason, 137, None)
    assert result.usage.oom_kills == 1


def test_a_limit_that_a_program_sets_itself_is_not_the_sandboxs():
    result = shell("ulimit -f 8; head -c 1M /dev/zero >file; exit $?", file_size="1M")
    assert (result.exit_code, result.limit) == (153, None)


# --- what is told of a limit -------------------------------------------------------------------------------


def test_time_of_children_that_nobody_waited_for_is_the_peak():
    source = """
import os, signal
for number in (signal.SIGCHLD, signal.SIGXCPU): signal.signal(number, signal.SIG_IGN)
for _ in range(2): os.fork()
while True: pass
"""
    result = ramet.run(["python3", "-S", "-c", source], limits={"cpu_seconds": 1}, timeout=50)
    assert (result.reason, result.limit, result.limit_value) == ("cpu", "cpu_seconds", 1)
    assert result.peak >= 2


def test_the_time_that_was_over_is_told_wherever_it_came_from():
    with ramet.Sandbox(command=["cat"], timeout=100) as sandbox:
        result = sandbox.commands.run("sleep 1000", timeout=0.2)
        assert (result.reason, result.limit, result.limit_value) == ("timeout", "wall", 0.2)
        with sandbox.fork(timeout=0.3) as child:
            result = child.wait(timeout=50)
            assert (result.reason, result.limit_value) == ("timeout", 0.3)
    with ramet.Sandbox(command=["cat"], timeout=0.4, keep_on=["timeout"]) as sandbox:
        result = sandbox.wait(timeout=50)
        assert (result.reason, result.limit_value) == ("timeout", 0.4)
    ramet.snapshots.remove(result.kept)
    with ramet.Sandbox(command=["cat"], timeout=1) as sandbox:
        command = sandbox.commands.run("sleep 1000", background=True)
        assert (command.wait().reason, command.wait().limit_value) == ("timeout", 1)


@pytest.mark.parametrize(
    "limits, fill",
    [
        ({"shm": "1M"}, "head -c 2M /dev/zero >/dev/shm/file"),
        ({"shm": "16M", "inodes": 100}, "i=0; while : >/dev/shm/$i; do i=$((i+1)); done"),
    ],
)
def test_a_full_dev_shm_of_its_own_is_told_by_the_metrics(limits, fill):
    with ramet.Sandbox(command=["cat"], limits=limits) as sandbox:
        before = sandbox.metrics()
        assert not before.shm_full
        assert "No space left on device" in sandbox.commands.run(fill).stderr
        full = sandbox.metrics()
        assert full.shm_full
        assert not full.disk_full
        assert full.shm_limit == before.shm_limit > 0
        assert full.shm_bytes == full.shm_limit or full.shm_files == full.shm_files_limit
        assert sandbox.commands.run("rm /dev/shm/*").exit_code == 0
        assert not sandbox.metrics().shm_full
        assert full.to_dict()["shm_full"]


def test_a_dev_shm_that_is_part_of_the_disk_has_no_size_to_tell():
    with ramet.Sandbox(command=["cat"]) as sandbox:
        found = sandbox.metrics()
        assert (found.shm_bytes, found.shm_limit, found.shm_files, found.shm_full) == (0, 0, 0, False)


# --- memory of forks ---------------------------------------------------------------------------------------

HOLD = """
import sys
held, own = bytearray(b"x") * (150 << 20), []
def grow(mib): own.append(bytearray(mib << 20))
def write(mib):
    for offset in range(0, mib << 20, 4096): held[offset] = 1
print("ready", flush=True)
for line in sys.stdin: print(eval(line), flush=True)
"""


@pytest.fixture(scope="module")
def point():
    with ramet.Sandbox(command=["python3", "-S", "-c", HOLD], limits={"memory": "700M"}) as sandbox:
        assert sandbox.stdout.readline() == b"ready\n"
        sandbox.snapshot("causes-of-death")
    yield "causes-of-death"
    ramet.snapshots.remove("causes-of-death")


def ask(sandbox: ramet.Sandbox, what: str) -> str:
    sandbox.stdin.write(f"{what}\n".encode())
    return sandbox.stdout.readline().decode().strip()


def test_what_a_fork_writes_to_of_its_snapshots_memory_is_charged(point):
    with ramet.Sandbox(point, limits={"memory": "100M"}) as fork:
        assert ask(fork, "write(60)") == "None"
        fork.stdin.write(b"write(140)\n")
        assert fork.wait(timeout=50).reason == "oom"


def test_a_fork_is_charged_for_what_it_takes_and_not_for_what_it_has_from_its_snapshot(point):
    with ramet.Sandbox(point, limits={"memory": "100M"}) as fork:
        assert ask(fork, "grow(70)") == "None"
        fork.stdin.write(b"grow(60)\n")
        result = fork.wait(timeout=50)
        assert (result.reason, result.usage.oom_kills) == ("oom", 1)
        assert result.peak < 160 * MIB


def test_the_end_of_all_who_shared_its_memory_does_not_kill_a_fork():
    with ramet.Sandbox(command=["python3", "-S", "-c", HOLD], limits={"memory": "700M"}) as parent:
        assert parent.stdout.readline() == b"ready\n"
        *siblings, last = parent.fork(4, limits={"memory": "100M"})
        assert [ask(one, "write(20)") for one in (*siblings, last)] == ["None"] * 4
        assert last.metrics().shared_bytes > 100 * MIB
    for one in siblings:
        one.kill()
        one.wait(timeout=50)
    with last:
        assert last.metrics().shared_bytes < 20 * MIB
        # A look is due within a second of this, and finds nothing new.
        assert ask(last, "__import__('time').sleep(1.5)") == "None"
        assert ask(last, "grow(50)") == "None"
        assert ask(last, "__import__('time').sleep(1.5)") == "None"
        last.stdin.write(b"grow(60)\n")
        assert last.wait(timeout=50).reason == "oom"
