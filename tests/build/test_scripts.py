"""What scripts/venv says on machines that lack something: each message names the remedy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from _repository import ROOT

TOOLS = ("sh", "id", "env", "dirname", "mktemp", "rm", "tail")


@pytest.fixture
def machine(tmp_path):
    """A PATH with little more than a shell; `python3` and others are added by the test."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in TOOLS:
        program = next(path for path in (f"/usr/bin/{name}", f"/bin/{name}") if os.path.exists(path))
        (directory / name).symlink_to(program)
    return directory


def script(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def venv(machine: Path, target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts/venv"), str(target)]
    variables = {"PATH": str(machine), "HOME": str(target.parent), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_without_any_python_the_message_says_which_is_needed(machine, tmp_path):
    done = venv(machine, tmp_path / "venv")
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert "PYTHON=" in done.stderr


def test_a_shim_for_a_version_that_is_not_there_is_passed_over(machine, tmp_path):
    script(machine, "python3", "echo 'python3: command not found' >&2; exit 127")
    script(machine, "python3.12", f'exec {sys.executable} "$@"')
    done = venv(machine, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "venv/bin/python").exists()


def test_a_named_python_that_is_too_old_is_an_error_and_no_other_is_taken(machine, tmp_path):
    script(machine, "old", "exit 1")
    script(machine, "python3", f'exec {sys.executable} "$@"')
    done = venv(machine, tmp_path / "venv", PYTHON="old")
    assert done.returncode == 1
    assert done.stderr.startswith("PYTHON=old is not a Python >= 3.11")


def test_an_ordinary_user_without_the_venv_package_is_told_the_one_command(machine, tmp_path):
    script(
        machine,
        "python3",
        f'case "$2" in *ensurepip*) exit 1;; *) exec {sys.executable} "$@";; esac',
    )
    script(machine, "apt-get", "echo must not run; exit 1")
    (machine / "id").unlink()
    script(machine, "id", "echo 1000")
    done = venv(machine, tmp_path / "venv")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1
    assert f"sudo apt-get install -y python{version}-venv" in done.stderr
    assert done.stdout == ""


def test_a_place_that_cannot_be_written_is_told(machine, tmp_path):
    script(machine, "python3", f'exec {sys.executable} "$@"')
    (tmp_path / "file").write_text("")
    done = venv(machine, tmp_path / "file/venv")
    assert done.returncode == 1
    assert f"cannot make {tmp_path}/file/venv" in done.stderr


def test_an_environment_that_stands_is_left_as_it_is(machine, tmp_path):
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    script(python.parent, "python", "exit 0")
    before = python.stat()
    assert venv(machine, tmp_path / "venv").returncode == 0
    assert python.stat() == before


@pytest.mark.parametrize("name", ["venv", "quickstart", "fuzz"])
def test_the_scripts_are_plain_posix_shell(name):
    subprocess.run(["/bin/sh", "-n", ROOT / "scripts" / name], check=True)
    assert (ROOT / "scripts" / name).read_text().startswith("#!/bin/sh\n")


def test_an_interpreter_that_others_may_not_enter_is_told(machine, tmp_path):
    script(machine, "python3", f'exec {sys.executable} "$@"')
    done = venv(machine, tmp_path / "venv")
    above = (tmp_path / "venv/bin/python").resolve().parents
    closed = [place for place in above if not place.stat().st_mode & 1]
    assert ("is for one user alone" in done.stderr) == bool(closed), done.stderr
    assert all(str(place) in done.stderr for place in closed[-1:])


@pytest.mark.rootless
def test_a_clone_of_another_user_is_told(machine):
    done = venv(machine, Path("/usr/ramet-venv"))
    assert done.returncode == 1
    assert done.stderr.startswith("/usr is not yours to write to: make a clone of your own")
