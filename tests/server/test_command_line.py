"""The command line asks a server: by forkd's options, or by the environment."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from ramet.cli.main import invoke
from server._server import ALICE, ALICE_RUNS, Server

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ramet(capfd: pytest.CaptureFixture[str]) -> Call:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        code = invoke(words)
        told = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, told.out, told.err)

    return call


def test_each_command_takes_the_server_to_ask_and_its_token(ramet: Call, server: Server) -> None:
    there = ("--daemon-url", server.url, "--daemon-token", ALICE)
    made = ramet("sandbox", "create", *there, "--name", "far", "--", "sleep", "1000").stdout.strip()
    try:
        assert made in ramet("ls", *there).stdout
        assert made not in ramet("ls").stdout
        done = ramet("exec", *there, "far", "--", "sh", "-c", "echo $0; exit 3", "--daemon-url")
        assert (done.returncode, done.stdout) == (3, "--daemon-url\n")
        assert ramet("exec", "far", "true").returncode == 2
        told = json.loads(ramet("doctor", *there, "--json").stdout)
        assert {"name", "status", "detail", "fix"} == set(told["checks"][0])
        assert json.loads(ramet("status", *there, "--json").stdout)["core"]["sandboxes"] >= 1
        asked = {**os.environ, "_RAMET_COMPLETE": "complete_bash", "COMP_CWORD": "6"}
        asked["COMP_WORDS"] = f"ramet kill {' '.join(there)} fa"
        words = [sys.executable, "-m", "ramet"]
        completed = subprocess.run(words, env=asked, capture_output=True, text=True, check=False)
        assert completed.stdout.split() == ["far"]
    finally:
        assert ramet("kill", *there, made).returncode == 0


def test_the_environment_names_the_server_to_commands_that_are_not_about_this_machine(
    ramet: Call, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = json.loads(ramet("daemon", "start", "--json").stdout)["pid"]
    monkeypatch.setenv("RAMET_URL", server.url)
    assert "token" in ramet("status", "--daemon-token", f"{ALICE}x").stderr
    assert "admin" in ramet("doctor", "--daemon-token", ALICE_RUNS).stderr
    told = json.loads(ramet("status", "--daemon-token", ALICE, "--json").stdout)
    assert told["pid"] != own
    assert json.loads(ramet("daemon", "status", "--json").stdout)["pid"] == own


@pytest.mark.parametrize(
    "words, code, told",
    [
        (["ls", "--daemon-token", "x"], 2, "--daemon-token: is for a server"),
        (["ls", "--daemon-url", ""], 2, "--daemon-url: "),
        (["ls", "--daemon-url", "ftp://here"], 2, "--daemon-url: "),
        (["ls", "--daemon-url", "http://127.0.0.1:1", "--daemon-token", "a b"], 2, "--daemon-token: "),
        (["ls", "--daemon-url", "http://127.0.0.1:1"], 125, "127.0.0.1:1"),
        (["bench", "--quick", "--daemon-url", "http://127.0.0.1:1"], 2, "--tag NAME"),
        (["daemon", "stop", "--daemon-url", "http://127.0.0.1:1"], 2, "--daemon-url"),
    ],
)
def test_a_server_that_there_cannot_be_is_named(ramet: Call, words: list[str], code: int, told: str) -> None:
    done = ramet(*words)
    assert done.returncode == code
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
