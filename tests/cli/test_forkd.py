"""The commands that users of forkd know, and what completes their words."""

import contextlib
import json
import os
import socket
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
    assert failed.stderr.decode().splitlines()[2:] == [
        "    x / 0",
        "    ~~^~~",
        "ZeroDivisionError: division by zero",
    ]
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
        (["exec", "--child", "forkd-child-1", "--", "true"], "no sandbox has one"),
        (["exec", "--target", "127.0.0.1:1", "--cwd", "/", "true"], "--target"),
        (["eval", "box", "1", "--target", "127.0.0.1:1"], "takes the place of a sandbox"),
        (["ping", "--target", "nowhere"], "127.0.0.1:8888"),
        (["fork", "box", "--keep-workdir"], "--settle-secs"),
        (["bench", "--per-child-netns", "false"], "share a network"),
    ],
)
def test_a_wrong_argument_is_named(ramet, words, told):
    done = ramet(*words)
    assert done.returncode == 2
    assert told in done.stderr.decode()


def test_a_shell_completes_commands_options_and_what_is_there(ramet):
    assert b"_RAMET_COMPLETE=complete_bash" in ramet("completion", "bash").stdout

    def completed(words, place):
        asked = {**os.environ, "_RAMET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        command = [sys.executable, "-m", "ramet"]
        return subprocess.run(command, env=asked, capture_output=True, text=True, check=False).stdout.split()

    assert completed("ramet sand", "1") == ["sandbox"]
    assert "--tag" in completed("ramet spawn --t", "2")
    assert completed("ramet fork --tag pyth", "3") == ["python"]
    assert completed("ramet events --type command_", "3") == ["command_began", "command_ended"]
    made = ramet("sandbox", "create", "--name", "completed", "--", "sleep", "1000").stdout.decode().strip()
    number = ramet("exec", "-d", "completed", "--", "sleep", "1000").stdout.decode().strip()
    assert completed("ramet kill compl", "2") == ["completed"]
    assert completed(f"ramet exec {made[:11]}", "2") == [made]
    assert completed("ramet sandbox attach completed ", "4") == [number]
    assert ramet("kill", made).returncode == 0


def test_children_that_settle_answer_at_their_targets_and_leave_their_directories(
    ramet, tmp_path, monkeypatch
):
    """As forkd's own commands of these names."""
    place = f"127.0.0.1:{free_ports(2)}"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = ("fork", "--tag", "python", "-n", "2", "--settle-secs", "1000", "--keep-workdir", "--live-fork")
    environment = {**os.environ, "FORKD_TARGET": place}
    with subprocess.Popen(
        [sys.executable, "-m", "ramet", *words], env=environment, stdout=subprocess.PIPE, text=True
    ) as standing:
        try:
            ids, targets = zip(*[standing.stdout.readline().split() for _ in range(2)], strict=True)
            assert targets[0] == place
            assert ramet("ping", "--target", place).stdout.endswith(b", python\n")
            assert ramet("eval", "--target", place, "--timeout-secs", "20", "x = 6; x * 7").stdout == b"42\n"
            failed = ramet("eval", "--target", targets[1], "x")
            assert (failed.returncode, b"NameError" in failed.stderr) == (1, True)
            done = ramet(
                "exec", "--target", place, "--", "sh", "-c", "echo $0; echo no >&2; echo >mine; exit 5", "a"
            )
            assert (done.returncode, done.stdout, done.stderr) == (5, b"a\n", b"no\n")
            assert ramet("exec", "--target", place, "echo $((6 * 7))").stdout == b"42\n"
        finally:
            standing.terminate()
        kept = [line.split() for line in standing.stdout]
    assert (standing.returncode, [one[0] for one in kept]) == (0, [*ids])
    assert ["mine" in os.listdir(path) for _, path in kept] == [True, False]
    assert b"cannot be reached" in ramet("ping", "--target", place).stderr


def free_ports(count):
    """The first of so many ports in a row that nobody listens at."""
    while True:
        with contextlib.ExitStack() as taken:
            first = taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with contextlib.suppress(OSError):
                for number in range(1, count):
                    taken.enter_context(socket.create_server(("127.0.0.1", first + number)))
                return first
