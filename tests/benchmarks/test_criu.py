"""The measurement beside CRIU: what it asks for, and what it says where it cannot be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CRIU = """#!/bin/sh
echo "$1" >> {log}
case $1 in
    --version) echo "Version: {version}" ;;
    check) [ -z "{refuses}" ] || {{ echo "{refuses}" >&2; exit 1; }} ;;
    dump) kill -9 "$3" 2> /dev/null || : ;;
esac
"""


def figure(directory, *, version, refuses=""):
    """What is found with a program of that version in its place, and the words that it was called with."""
    log = directory / "log"
    program = directory / "criu"
    program.write_text(CRIU.format(log=log, version=version, refuses=refuses))
    program.chmod(0o755)
    numbers = directory / "numbers"
    words = ("--scale", "tiny", "--only", "criu", "--json", str(numbers))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine", *words],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{directory}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(numbers.read_text())["figures"]
    called = [word for word in log.read_text().split() if word not in {"--version", "check"}]
    return one, called


@pytest.mark.timeout(170)
@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU needs root")
def test_dumps_and_restores_are_counted_in_turn_with_live_forks(tmp_path):
    found, called = figure(tmp_path, version="4.1")
    assert found["value"] > 0
    assert found["note"] == "4.1; 2 rounds"
    # Two rounds more come before, to warm up.
    assert called == ["dump", "restore"] * 4


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "version, refuses, note",
    [
        ("3.17.1", "", "CRIU 4 is asked for, this is 3.17.1"),
        ("4.1", "no vdso", "criu check: no vdso"),
    ],
)
def test_what_cannot_be_measured_has_its_reason_in_the_numbers(tmp_path, version, refuses, note):
    if os.geteuid() != 0:
        note = "CRIU needs root"
        (tmp_path / "log").touch()
    found, called = figure(tmp_path, version=version, refuses=refuses)
    assert (found["value"], found["verdict"], found["note"]) == (None, "not measured", note)
    assert called == []
