"""Each step that core can fail at arrives in Python by name and errno, and leaves nothing."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import dataclasses
import errno
import re
import secrets
from pathlib import Path

import pytest

import _ledger
from ramet.client import Client
from ramet.errors import InvalidRequest, IsolationError
from ramet.models.runs import RunRequest
from ramet.native import _protocol as p
from ramet.native.locate import find_program
from system._daemons import marked, own_daemon

NAMES = {number: name for number, name in p.STEP_NAMES.items() if number}
START = [NAMES[number] for number in NAMES if number < p.STEP_ROOT_SKELETON]
OF_A_ROOT = [NAMES[number] for number in NAMES if p.STEP_ROOT_SKELETON <= number < p.STEP_CLONE_INIT]
OF_A_RUN = [
    NAMES[number]
    for number in NAMES
    if p.STEP_CLONE_INIT <= number <= p.STEP_NETWORK or p.STEP_FORK_COMMAND <= number <= p.STEP_EXEC
]


@pytest.fixture(scope="module")
def faulty(runtime_directory):
    """A client of a daemon under test, which takes faults."""
    with pytest.MonkeyPatch.context() as patch, own_daemon() as daemon:
        patch.setenv("RAMET_TEST_FAULTS", "1")
        client = daemon.client()
        for _ in range(2):  # the second opens a lane, which stays
            client.run_request(RunRequest.of(["true"], streams=(1, 2)))
        _ledger.settle(lambda: _ledger.observe(runtime_directory))  # the pool fills up
        yield client


def fail_at(client: Client, step: str, mark: str) -> IsolationError:
    request = RunRequest.of(["sh", "-c", "echo executed; sleep 1000", mark], streams=(1, 2), timeout=20)
    heard: list[bytes] = []
    with pytest.raises(IsolationError) as caught:
        client.run_request(dataclasses.replace(request, fault=step), on_stdout=heard.append)
    assert heard == []
    return caught.value


@pytest.mark.parametrize("step", OF_A_RUN)
def test_a_step_of_a_run_that_fails_is_named_and_nothing_was_executed(faulty, runtime_directory, step):
    mark = f"mark-{secrets.token_hex(6)}"
    # The entry that the test before broke is made up for meanwhile.
    before = _ledger.settle(lambda: _ledger.observe(runtime_directory), quiet=0.1)
    error = fail_at(faulty, step, mark)
    if step == "init_protect" and error.step == "map_init":
        # Init has gone of it before core could write its maps: under load that is what core sees.
        assert error.errno in {errno.EACCES, errno.ENOENT, errno.ESRCH, errno.EPERM}
    else:
        assert (error.code, error.step, error.errno) == ("isolation_failed", step, errno.EIO)
    assert error.step in str(error)
    assert marked(mark) == []
    assert faulty.run_request(RunRequest.of("echo next", streams=(1, 2))).stdout == "next\n"
    assert _ledger.drift(before, lambda: _ledger.observe(runtime_directory)) == []


def test_sandboxes_are_counted_down_after_failures(faulty):
    fail_at(faulty, "pivot_root", "x")
    core = faulty.status().core
    assert core is not None
    assert core.sandboxes == 0


@pytest.mark.parametrize("step", ["no_such_step", "", 7])
def test_a_fault_that_is_no_step_is_refused_by_name(faulty, step):
    request = dataclasses.replace(RunRequest.of(["true"], streams=(1, 2)), fault=step)
    with pytest.raises(InvalidRequest) as caught:
        faulty.run_request(request)
    assert caught.value.field == "fault"


def faulty_core(path: Path, step: str) -> Path:
    """A core whose start fails at a step."""
    number = next(number for number, name in NAMES.items() if name == step)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = serve ] || exec {find_program()} "$@"\nexec {find_program()} "$@" --fault {number}\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("step", START)
def test_a_step_of_cores_start_that_fails_is_named_and_the_daemon_serves_on(own, monkeypatch, tmp_path, step):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("RAMET_CORE", str(faulty_core(tmp_path / "core", step)))
    client = own.client()
    for _ in range(2):
        with pytest.raises(IsolationError) as caught:
            client.run("echo executed")
        assert (caught.value.step, caught.value.errno) == (step, errno.EIO)
    status = client.status()
    assert status.core is None
    below = [process.name for process in _ledger.descendants(status.pid)]
    assert below == [], "what began must have ended, and been waited for"
    assert "core.sock" not in own.entries()
    assert re.search(rf'"{step}"|{step}:', Path(own.place, "daemon.log").read_text())


def test_a_core_that_is_no_program_is_told(own, monkeypatch, tmp_path):
    for content, mode in (
        (b"", 0o644),
        (b"garbage", 0o755),
        (b"#!/bin/sh\nexit 3\n", 0o755),
        (b"#!/bin/cat\n", 0o755),
    ):
        (tmp_path / "core").write_bytes(content)
        (tmp_path / "core").chmod(mode)
        monkeypatch.setenv("RAMET_CORE", str(tmp_path / "core"))
        with pytest.raises(Exception, match="core") as caught:
            own.client().run("true")
        assert type(caught.value).__name__ in {"DaemonStartError", "IsolationError"}
        own.end()


def test_what_fails_at_the_start_can_work_the_next_time(own, monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    real = find_program()
    program = faulty_core(tmp_path / "core", "core_root")
    monkeypatch.setenv("RAMET_CORE", str(program))
    client = own.client()
    with pytest.raises(IsolationError):
        client.run("true")
    program.unlink()
    program.symlink_to(real)
    assert client.run("echo works").stdout == "works\n"
