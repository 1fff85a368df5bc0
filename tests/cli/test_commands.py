"""The other commands, as processes."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile

import pytest


@pytest.fixture
def own_daemon():
    """An environment in which no daemon runs yet; a path short enough for sockets."""
    directory = tempfile.mkdtemp(prefix="ramet-c-", dir="/tmp")
    yield {**os.environ, "RAMET_RUNTIME_DIR": f"{directory}/run"}
    shutil.rmtree(directory)


def test_the_daemon_starts_tells_of_itself_and_leaves_nothing(ramet, own_daemon):
    def ask(*words):
        done = ramet(*words, "--json", env=own_daemon)
        assert done.stderr == b""
        return done.returncode, json.loads(done.stdout)

    assert ask("status") == (3, {"running": False})
    assert ask("daemon", "stop") == (0, {"stopped": False})
    code, started = ask("daemon", "start")
    assert (code, started["running"]) == (0, True)
    assert ask("daemon", "start")[1]["pid"] == started["pid"]
    code, found = ask("status")
    assert (code, found["pid"], found["core"]) == (0, started["pid"], None)
    assert ramet("run", "true", env=own_daemon).returncode == 0
    assert ask("daemon", "status")[1]["core"]["runs"] == 1
    assert ask("daemon", "stop") == (0, {"stopped": True, "pid": started["pid"]})
    assert not glob.glob(own_daemon["RAMET_RUNTIME_DIR"] + "/*")
    assert ask("daemon", "status") == (3, {"running": False})


def test_status_for_people_has_a_line_for_each_fact(ramet, own_daemon):
    assert b"no daemon is running" in ramet("status", env=own_daemon).stdout
    ramet("run", "true", env=own_daemon)
    try:
        lines = ramet("status", env=own_daemon).stdout.decode().splitlines()
    finally:
        assert b"the daemon ended" in ramet("daemon", "stop", env=own_daemon).stdout
    assert [line.split()[0] for line in lines] == [
        *("daemon", "directory", "connections", "core", "pool", "sandboxes", "roots", "snapshots")
    ]


def test_doctor_passes_where_sandboxes_work_and_has_the_same_in_json(ramet):
    done = ramet("doctor", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 0
    assert data["ok"] is True
    assert {check["status"] for check in data["checks"]} <= {"pass", "warn"}
    shown = ramet("doctor").stdout.decode()
    for check in data["checks"]:
        assert check["name"] in shown
        assert check["fix"] is None or check["status"] == "pass" or f"    {check['fix']}\n" in shown


def test_a_failing_check_shows_its_command_on_a_line_of_its_own(monkeypatch, capfd):
    import ramet.doctor
    from ramet.cli.main import invoke
    from ramet.doctor import Check

    fix = "sudo sh -c '" + "a command that is wider than any terminal; " * 9 + "'"
    found = [Check("good", "pass", "it is"), Check("bad", "fail", "it is [not] good", fix)]
    monkeypatch.setattr(ramet.doctor, "run_checks", lambda: found)
    assert invoke(["doctor"]) == 1
    shown = capfd.readouterr().out
    assert f"\n    {fix}\n" in shown
    assert "it is [not] good" in shown
    assert "1 pass, 0 warn, 1 fail" in shown


def test_quickstart_shows_programs_that_got_what_they_should_and_a_hundred_forks(ramet):
    done = ramet("quickstart")
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert [line[0] for line in shown.splitlines() if line[:1].isdigit()] == ["1", "2", "3", "4", "5", "6"]
    assert "100 of 100 children knew the row" in shown
    assert "\x1b" not in shown
    assert "out of time, every process killed" in shown
    assert "Your own /etc/hosts is as it was." in shown


def test_quickstart_in_json_has_the_same(ramet):
    data = json.loads(ramet("quickstart", "-n", "3", "-y", "--json").stdout)
    assert (data["ok"], data["hosts_unchanged"], data["forks"]["right"]) == (True, True, 3)
    assert [program["result"]["reason"] for program in data["programs"]] == ["exit"] * 4 + ["timeout"]


@pytest.mark.parametrize("option, value", [("--image", "python:3.12-slim"), ("-n", "0"), ("-n", "many")])
def test_quickstart_refuses_by_name_what_it_cannot_do(option, value, capfd):
    from ramet.cli.main import invoke

    assert invoke(["quickstart", option, value]) == 2
    assert f"ramet: {option}: " in capfd.readouterr().err


def test_quickstart_says_so_when_a_program_got_something_else(monkeypatch, capfd):
    import ramet.client
    from ramet.cli.main import invoke
    from ramet.models.results import CommandResult
    from ramet.models.status import Pong

    monkeypatch.setattr(ramet.client, "ping", lambda: Pong("0", 1))
    monkeypatch.setattr(ramet.client, "run", lambda command, **options: CommandResult(1))
    assert invoke(["quickstart"]) == 1
    assert capfd.readouterr().out.count("This is not what it should have got.") == 5


def test_root_build_tells_what_it_made(ramet, tmp_path):
    (tmp_path / "data").write_text("x")
    done = ramet("root", "build", "made", "--bin", "cat", "--file", "data:/srv/data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1].startswith(f"{tmp_path}/made: ")
    assert (tmp_path / "made/srv/data").read_text() == "x"
    again = ramet("root", "build", "made", "--bin", "cat", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith(b"ramet: DIRECTORY: ")
    done = ramet("root", "build", "made", "--bin", "cat", "--replace", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert data["path"] == f"{tmp_path}/made"
    assert data["total_bytes"] > 0
    assert {"/usr/bin/cat", "/bin/cat"} & {*data["files"]}


@pytest.mark.parametrize(
    "words", [["--help"], ["version"], ["status", "--json"], ["run", "--json", "true"]], ids=" ".join
)
def test_what_a_command_prints_is_written_or_its_failure_told(program, ramet, words):
    ramet("run", "true")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*program, *words], stdout=full, stderr=subprocess.PIPE, check=False, timeout=50
        )
    assert (done.returncode, done.stderr) == (125, b"ramet: standard output: No space left on device\n")
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "wb") as closed:
        done = subprocess.run(
            [*program, *words], stdout=closed, stderr=subprocess.PIPE, check=False, timeout=50
        )
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
