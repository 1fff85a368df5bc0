"""The ledger sees what is left, also what hides, and nothing of other people's."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import _ledger

WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
# Forks twice and leaves the session, as a daemon does; the grandchild lives until its pipe closes.
DETACH = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
    os._exit(0)
os.wait()
os._exit(0)
"""


def start(program: str, *wrapper: str) -> subprocess.Popen[str]:
    command = [*wrapper, sys.executable, "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    with start(WAIT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process


def empty_record(**parts: object) -> _ledger.Record:
    nothing = {
        "processes": Counter(),
        "descriptors": Counter(),
        "mounts": Counter(),
        "targets": Counter(),
        "host_mounts": frozenset(),
        "namespaces": frozenset(),
        "entries": frozenset(),
    }
    return _ledger.Record(**{**nothing, **parts})


def test_a_child_left_running_is_growth_by_its_name(tmp_path, waiting):
    now = _ledger.observe(tmp_path)
    name = next(p.name for p in _ledger.processes() if p.pid == waiting.pid)
    before = replace(now, processes=now.processes - Counter([name]))
    number = now.processes[name]
    assert now.growth_since(before) == [f"processes of {name}: {number - 1} -> {number}"]


def test_a_daemon_that_detached_itself_is_still_a_descendant():
    _ledger.adopt_orphans()
    with start(DETACH) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        assert pid in {process.pid for process in _ledger.descendants(os.getpid())}
    os.waitpid(pid, 0)


def test_adopted_zombies_are_reaped():
    _ledger.adopt_orphans()
    with start(DETACH) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert any(process.pid == pid and process.ended for process in _ledger.processes())
        _ledger.reap_adopted()
    assert pid not in {process.pid for process in _ledger.processes()}


def test_a_descriptor_left_open_is_growth(tmp_path):
    before = _ledger.observe(tmp_path)
    held = before.descriptors[_ledger.SELF]
    with open("/dev/null", "rb"):
        found = _ledger.observe(tmp_path).growth_since(before)
    assert found == [f"descriptors of {_ledger.SELF}: {held} -> {held + 1}"]
    assert _ledger.observe(tmp_path).growth_since(before) == []


def test_a_file_left_in_the_runtime_directory_is_growth(tmp_path):
    before = _ledger.observe(tmp_path)
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "socket").touch()
    found = _ledger.observe(tmp_path).growth_since(before)
    assert found == ["runtime directory: ['sandbox', 'sandbox/socket'] came"]


def test_namespaces_of_descendants_are_counted_and_their_own_mounts_too(tmp_path):
    before = _ledger.observe(tmp_path)
    with start(WAIT, "unshare", "--user", "--map-root-user", "--mount", "--ipc") as process:
        assert process.stdout is not None
        if process.stdout.readline() != "up\n":
            pytest.skip("this kernel refuses user namespaces to this user")
        now = _ledger.observe(tmp_path)
        assert len(now.namespaces) - len(before.namespaces) == 3
        assert now.mounts.total() > before.mounts.total()
        assert now.host_mounts == before.host_mounts
    assert _ledger.drift(before, lambda: _ledger.observe(tmp_path)) == []


def test_a_namespace_held_open_by_a_descriptor_alone_is_counted(tmp_path):
    with start(WAIT, "unshare", "--user", "--map-root-user", "--ipc") as process:
        assert process.stdout is not None
        if process.stdout.readline() != "up\n":
            pytest.skip("this kernel refuses user namespaces to this user")
        held = os.open(f"/proc/{process.pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert os.readlink(f"/proc/self/fd/{held}") in _ledger.observe(tmp_path).namespaces
    finally:
        os.close(held)


def test_fewer_of_anything_is_no_growth():
    before = empty_record(processes=Counter(core=3), namespaces=frozenset({"net:[1]"}))
    assert empty_record(processes=Counter(core=2)).growth_since(before) == []


def test_the_name_of_a_process_may_hold_parentheses(tmp_path):
    program = tmp_path / "a) S 1 ("
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = next(p for p in _ledger.processes() if p.pid == process.pid)
        assert found == _ledger.Process(process.pid, os.getpid(), "a) S 1 (", found.state)


def test_drift_waits_for_what_is_still_going_away():
    before = empty_record()
    seen = iter([empty_record(processes=Counter(core=2)), empty_record(processes=Counter(core=1)), before])
    assert _ledger.drift(before, lambda: next(seen)) == []


def test_drift_that_stays_is_told_at_the_deadline():
    before, after = empty_record(), empty_record(host_mounts=frozenset({"1 2 0:1 / /left"}))
    assert _ledger.drift(before, lambda: after, deadline=0) == ["mounts on the host: ['1 2 0:1 / /left']"]


def test_settle_returns_the_record_that_stays():
    grown = empty_record(processes=Counter(core=2))
    seen = iter([empty_record(), empty_record(processes=Counter(core=1))])
    assert _ledger.settle(lambda: next(seen, grown), quiet=0.05) == grown


def test_nothing_is_counted_twice_by_looking(tmp_path: Path):
    assert _ledger.observe(tmp_path) == _ledger.observe(tmp_path)
