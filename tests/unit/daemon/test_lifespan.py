"""Lock, log and directory of a daemon."""

import fcntl
import os

import pytest

from ramet.daemon import lifespan, logs
from ramet.errors import DaemonStartError, InvalidRequest


@pytest.fixture
def directory(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_the_lock_is_held_and_its_file_goes_with_it(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(lifespan, "LOCK_TIMEOUT_S", 0.05)
    with lifespan._lock(directory, str(tmp_path)):
        with pytest.raises(DaemonStartError) as caught, lifespan._lock(directory, str(tmp_path)):
            pass
        assert caught.value.code == "daemon_locked"
    assert os.listdir(tmp_path) == []


def test_a_lock_file_that_its_last_holder_removed_is_not_taken_for_the_lock(directory, tmp_path, monkeypatch):
    real = fcntl.flock
    removed = []

    def remove_first(descriptor, how):
        # As if another daemon ended between our open and our lock.
        if not removed:
            removed.append(os.unlink(tmp_path / "daemon.lock"))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with lifespan._lock(directory, str(tmp_path)):
        assert os.listdir(tmp_path) == ["daemon.lock"]


def test_the_log_stays_only_when_the_daemon_ends_by_an_error(directory, tmp_path):
    with lifespan._log(directory):
        pass
    assert os.listdir(tmp_path) == []
    with pytest.raises(LookupError), lifespan._log(directory):
        raise LookupError
    assert os.listdir(tmp_path) == ["daemon.log"]


def test_the_log_is_cut_to_its_last_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LOG_MAX", 1000)
    monkeypatch.setattr(logs, "KEPT", 100)
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    for number in range(200):
        os.write(descriptor, b"line %04d\n" % number)
    logs.Log(descriptor).bound()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-1] == "line 0199"
    assert all(len(line) == 9 for line in lines)
    assert len(lines) < 15
    os.write(descriptor, b"more\n")
    assert (tmp_path / "log").read_text().endswith("line 0199\nmore\n")
    os.close(descriptor)


def test_a_log_that_is_short_is_left_alone(tmp_path):
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    logs.Log(descriptor)("event", number=1)
    logs.Log(descriptor).bound()
    assert '"number": 1' in (tmp_path / "log").read_text()
    os.close(descriptor)


def test_an_exception_in_the_log_is_one_line(tmp_path):
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        raise LookupError("here")
    except LookupError:
        logs.Log(descriptor)("defect", exc_info=True)
    assert "LookupError: here" in (tmp_path / "log").read_text()
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    os.close(descriptor)


def test_whoever_started_the_daemon_hears_one_word():
    read, write = os.pipe()
    starter = lifespan.Starter(write)
    assert starter.waits
    starter.tell(b"ready")
    starter.tell(b"again")
    assert not starter.waits
    assert os.read(read, 100) == b"ready"
    assert os.read(read, 100) == b""
    os.close(read)


@pytest.mark.parametrize("text", ["x", "-1", "65", "1.5"])
def test_a_pool_that_makes_no_sense_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("RAMET_POOL", text)
    with pytest.raises(InvalidRequest) as caught:
        lifespan._pool()
    assert caught.value.field == "RAMET_POOL"


@pytest.mark.parametrize("text", ["x", "-1", "0", "1.5 bananas"])
def test_a_budget_of_snapshots_that_makes_no_sense_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("RAMET_SNAPSHOT_MEMORY", text)
    with pytest.raises(InvalidRequest) as caught:
        lifespan._snapshot_memory()
    assert caught.value.field == "RAMET_SNAPSHOT_MEMORY"


@pytest.mark.parametrize("text", ["x", "-1", "0", "2h"])
def test_a_time_for_snapshots_that_makes_no_sense_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("RAMET_SNAPSHOT_TIMEOUT", text)
    with pytest.raises(InvalidRequest) as caught:
        lifespan._snapshot_ms()
    assert caught.value.field == "RAMET_SNAPSHOT_TIMEOUT"


def test_the_time_of_a_snapshot_is_told_in_milliseconds(monkeypatch):
    monkeypatch.delenv("RAMET_SNAPSHOT_TIMEOUT", raising=False)
    assert lifespan._snapshot_ms() == 60_000
    monkeypatch.setenv("RAMET_SNAPSHOT_TIMEOUT", "250ms")
    assert lifespan._snapshot_ms() == 250


def test_the_budget_of_snapshots_is_by_default_half_of_what_is_available(monkeypatch):
    monkeypatch.delenv("RAMET_SNAPSHOT_MEMORY", raising=False)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < lifespan._snapshot_memory() <= pages // 2
    monkeypatch.setenv("RAMET_SNAPSHOT_MEMORY", "64M")
    assert lifespan._snapshot_memory() == 64 << 20


def test_errors_of_the_task_group_are_told_as_what_they_are():
    error = DaemonStartError("core_not_adopted", "no")
    assert lifespan._told(ExceptionGroup("", [ExceptionGroup("", [error])])) is error
    assert lifespan._told(OSError("disk")).code == "daemon_start_failed"
