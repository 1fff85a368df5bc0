"""The daemon as a process of its own: started on demand, once, and gone without a trace."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from _core_program import write_program
from ramet.client import Client
from ramet.errors import DaemonError, DaemonLost, DaemonStartError, InvalidRequest
from ramet.wire import places


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A place for a daemon with a core made of Python; nothing may be left in it."""
    home = tmp_path / "run"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("RAMET_RUNTIME_DIR", str(home))
    monkeypatch.setenv("RAMET_CORE", str(write_program(tmp_path / "core")))
    # As root the roots' mounts would have to be lent, which this core cannot.
    monkeypatch.setenv("RAMET_CORE_GRACE_S", "5")
    yield home
    try:
        pong = Client(str(home), start=False).shutdown()
    except DaemonLost:
        pass
    else:
        await_end(pong.pid)
    until(
        lambda: os.listdir(home) == [] or [str(one) for one in home.iterdir()] == [str(home / "daemon.log")]
    )


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def await_end(pid):
    until(lambda: not is_alive(pid))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_first_request_starts_a_daemon_and_the_next_finds_it(place):
    client = Client(str(place))
    pong = client.ping()
    assert pong.pid != os.getpid()
    assert client.ping() == pong
    assert Client(str(place), start=False).ping() == pong


def test_the_daemon_is_detached_from_whoever_started_it(place):
    pid = Client(str(place)).ping().pid
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)] == [f"{place}/daemon.log"] * 2


def test_signals_that_the_starter_blocks_or_ignores_still_reach_the_daemon(place):
    program = (
        "import signal; from ramet.client import Client\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "print(Client().ping().pid)"
    )
    pid = int(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout)
    os.kill(pid, signal.SIGTERM)
    await_end(pid)


def test_a_starter_without_standard_streams_can_start_it(place, tmp_path):
    program = (
        "import os; from ramet.client import Client\n"
        "os.closerange(0, 3); pong = Client().ping()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(pong.pid))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert Client(str(place)).ping().pid == int((tmp_path / "pid").read_text())


def test_no_descriptor_of_the_starter_reaches_the_daemon(place):
    read, write = os.pipe()
    pid = Client(str(place)).ping().pid
    mine = os.readlink(f"/proc/self/fd/{read}")
    theirs = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it is at work, and closes what it has opened
            theirs.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    assert theirs
    assert mine not in theirs
    os.close(read)
    os.close(write)


def test_many_clients_at_once_start_one_daemon(place):
    program = "from ramet.client import Client; print(Client().ping().pid)"
    clients = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(8)]
    assert len({client.communicate()[0] for client in clients}) == 1
    assert sorted(os.listdir(place)) == ["daemon.lock", "daemon.log", "daemon.sock"]


def test_a_signal_ends_the_daemon_and_nothing_is_left(place):
    for number in (signal.SIGTERM, signal.SIGINT):
        pid = Client(str(place)).ping().pid
        os.kill(pid, number)
        await_end(pid)
        assert os.listdir(place) == []


def test_an_idle_daemon_ends_by_itself(place, monkeypatch):
    monkeypatch.setenv("RAMET_DAEMON_IDLE_S", "2")
    pid = Client(str(place)).ping().pid
    await_end(pid)
    assert os.listdir(place) == []


def test_a_daemon_that_was_killed_is_replaced_over_its_remains(place):
    client = Client(str(place))
    pid = client.ping().pid
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    assert client.ping().pid != pid


@pytest.mark.rootless
def test_a_core_outlives_its_daemon_and_is_adopted_by_the_next(place):
    client = Client(str(place))
    assert client.run("true").ok
    before = client.status()
    os.kill(before.pid, signal.SIGKILL)
    await_end(before.pid)
    assert client.run("true").ok
    after = client.status()
    assert after.pid != before.pid
    assert after.core.core_id == before.core.core_id
    assert after.core.pid == before.core.pid


def test_a_place_that_is_not_ours_alone_is_refused(place):
    place.chmod(0o777)
    with pytest.raises(DaemonError) as caught:
        Client(str(place)).ping()
    assert caught.value.code == "runtime_dir"
    place.chmod(0o700)


@pytest.mark.parametrize("variable", ["RAMET_DAEMON_IDLE_S", "RAMET_CORE_GRACE_S", "RAMET_POOL"])
def test_a_setting_that_makes_no_sense_keeps_the_daemon_from_starting_and_is_named(
    place, monkeypatch, variable
):
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(InvalidRequest) as caught:
        Client(str(place)).ping()
    assert caught.value.field == variable


def test_a_daemon_that_breaks_at_its_start_shows_the_end_of_its_log(place, monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named anything' >&2\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(DaemonStartError) as caught:
        Client(str(place)).ping()
    assert "no module named anything" in caught.value.message
    (place / "daemon.log").unlink()


def test_an_interpreter_that_is_not_there_is_a_start_error(place, monkeypatch):
    for executable in ("/does/not/exist", ""):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(DaemonStartError):
            Client(str(place)).ping()


def test_the_log_is_lines_of_json(place):
    pid = Client(str(place)).ping().pid
    until(lambda: (place / "daemon.log").stat().st_size > 0)
    lines = (place / "daemon.log").read_text().splitlines()
    assert json.loads(lines[0])["event"] == "daemon started"
    assert json.loads(lines[0])["pid"] == pid


def test_modules_beside_the_caller_are_not_imported_by_the_daemon(place, tmp_path, monkeypatch):
    for name in ("asyncio", "json", "ramet"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    monkeypatch.chdir(tmp_path)
    assert Client(str(place)).ping().pid


def test_the_default_place_goes_with_its_daemon(tmp_path, monkeypatch):
    monkeypatch.delenv("RAMET_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    client = Client()
    pid = client.ping().pid
    assert places.runtime_path() == f"{tmp_path}/ramet"
    os.kill(pid, signal.SIGTERM)
    await_end(pid)
    assert os.listdir(tmp_path) == []


def test_a_caller_whose_umask_takes_all_away_starts_a_daemon_that_others_can_meet(place, tmp_path):
    below = tmp_path / "below"
    before = os.umask(0o777)
    try:
        pong = Client(str(below)).ping()
    finally:
        os.umask(before)
    assert pong.pid != os.getpid()
    assert below.stat().st_mode & 0o777 == 0o700
    assert (below / places.LOG).stat().st_mode & 0o777 == 0o600
    Client(str(below), start=False).shutdown()


def test_a_log_that_cannot_be_opened_is_the_start_that_failed(place):
    (place / places.LOG).symlink_to("elsewhere")
    with pytest.raises(DaemonStartError) as caught:
        Client(str(place)).ping()
    assert (caught.value.code, caught.value.errno) == ("daemon_start_failed", errno.ELOOP)
    (place / places.LOG).unlink()
