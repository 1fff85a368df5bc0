"""The commands that users of forkd know, and what completes their words."""

import json
import os
import subprocess
import sys

import pytest

from ramet.cli.main import invoke


@pytest.fixture
def ramet(capfd):
    """Call `ramet WORDS...` in this process, which takes a tenth of the time."""

    def call(*words):
        code = invoke(words)
        told = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, told.out.encode(), told.err.encode())

    return call


@pytest.fixture(autouse=True)
def nothing_left(ramet):
    yield
    assert ramet("kill", "--all").returncode == 0
    names = [one["name"] for one in json.loads(ramet("snapshot", "ls", "--json").stdout)["snapshots"]]
    if names:
        assert ramet("rmi", "--cascade", *names).returncode in {0, 2}


ALWAYS = ("--per-child-netns", "--prewarm", "--live-fork", "--hugepages")
"""What forkd's users ask for, and every fork has."""


def spawned(ramet, *words):
    done = ramet(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


def test_code_is_evaluated_one_command_after_the_other_in_the_same_kernel(ramet):
    (one,) = spawned(ramet, "spawn", "--tag", "python", "--memory-limit-mib", "512", *ALWAYS)
    assert ramet("eval", one, "x = 20; print('so')").stdout == b"so\n"
    assert ramet("eval", one, "x + 22").stdout == b"42\n"
    failed = ramet("eval", one, "x / 0")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"ZeroDivisionError" in failed.stderr
    late = ramet("eval", one, "--timeout", "200ms", "while True: pass")
    assert late.returncode == 124
    told = json.loads(ramet("eval", one, "--json", "x").stdout)
    assert (told["text"], told["reason"]) == ("20", "ok")
    child = spawned(ramet, "fork", one)[0]
    assert ramet("eval", child, "x").stdout == b"20\n"
    (info,) = [one for one in json.loads(ramet("ls", "--json").stdout)["sandboxes"] if one["id"] == child]
    assert info["limits"]["memory"] == 512 << 20


def test_snapshots_are_told_compacted_packed_and_forgotten_with_what_builds_upon_them(ramet, tmp_path):
    first = spawned(ramet, "sandbox", "create", "--", "sleep", "1000")[0]
    ramet("snapshot", "create", first, "below")
    (second,) = spawned(ramet, "spawn", "--tag", "below", "-n", "1")
    ramet("snapshot", "create", second, "above")
    assert json.loads(ramet("snapshot-info", "above", "--json").stdout)["parent"] == "below"
    assert "builds upon" in ramet("snapshot-info", "above").stdout.decode()
    assert ramet("rmi", "below").returncode == 125
    assert ramet("snapshot-compact", "--from", "above", "--to", "other").returncode == 2
    assert b"on disk before" in ramet("snapshot-compact", "--from", "above", "--to", "above").stdout
    assert json.loads(ramet("snapshot-info", "above", "--json").stdout)["parent"] is None
    (third,) = spawned(ramet, "fork", "--tag", "above")
    ramet("snapshot", "create", third, "top")
    pack = str(tmp_path / "pack")
    assert ramet("pack", "--tag", "top", "-o", pack).stdout.decode().startswith(f"{pack}: top, ")
    assert ramet("unpack", pack).returncode == 2
    assert ramet("unpack", pack, "--tag", "unpacked").stdout == b"unpacked\n"
    removed = json.loads(ramet("rmi", "above", "--force", "--json").stdout)["snapshots"]
    assert [one["name"] for one in removed] == ["above"]
    removed = json.loads(ramet("rmi", "below", "top", "--cascade", "--json").stdout)["snapshots"]
    assert [one["name"] for one in removed] == ["below", "top"]


def test_all_forks_of_a_snapshot_are_ended_and_a_walk_is_timed(ramet, tmp_path):
    first = spawned(ramet, "sandbox", "create", "--", "sleep", "1000")[0]
    ramet("snapshot", "create", first, "point")
    assert len(spawned(ramet, "fork", "--tag", "point", "-n", "3")) == 3
    assert ramet("kill", "--tag", "point").returncode == 0
    assert [one["id"] for one in json.loads(ramet("ls", "--json").stdout)["sandboxes"]] == [first]
    file = tmp_path / "rows"
    assert b"fanout" in ramet("bench", "--tag", "point", "-n", "2", "--json", str(file)).stdout
    assert set(json.loads(file.read_text())) >= {"spawn", "exec", "branch", "pause", "fanout", "cleanup"}


@pytest.mark.parametrize(
    "words, told",
    [
        (["spawn"], "tag"),
        (["spawn", "--tag", "nothing"], "no snapshot 'nothing'"),
        (["eval", "nobody", "1"], "no sandbox 'nobody'"),
        (["eval", "nobody"], "is missing"),
        (["rmi", "nothing"], "no snapshot 'nothing'"),
        (["fork", "--tag", "../../etc"], "../../etc"),
        (["spawn", "--tag", "/etc/x"], "/etc/x"),
        (["rmi", "../x"], "../x"),
        (["snapshot-info", "../x"], "../x"),
        (["pack", "--tag", "../x", "-o", "y"], "../x"),
        (["pack", "--tag", "x"], "o: is missing"),
        (["unpack", "/nothing/here"], "cannot be opened"),
        (["unpack", "/nothing/here", "--tag", "../x"], "../x"),
        (["rmi", "a", "--cascade", "--force"], "--force"),
        (["kill", "--all", "x"], "SANDBOX"),
        (["completion", "tcsh"], "bash, zsh, fish"),
    ],
)
def test_a_wrong_argument_is_named(ramet, words, told):
    done = ramet(*words)
    assert done.returncode == 2
    assert told in done.stderr.decode()


def test_a_shell_completes_commands_and_options(ramet):
    assert b"_RAMET_COMPLETE=complete_bash" in ramet("completion", "bash").stdout

    def completed(words, place):
        asked = {**os.environ, "_RAMET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        command = [sys.executable, "-m", "ramet"]
        return subprocess.run(command, env=asked, capture_output=True, text=True, check=False).stdout.split()

    assert completed("ramet sand", "1") == ["sandbox"]
    assert "--tag" in completed("ramet spawn --t", "2")
