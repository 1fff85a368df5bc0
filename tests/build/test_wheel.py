"""The build hook: which compiler it takes, and what it puts into a wheel."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from _repository import ROOT, load

hatch_build = load("hatch_build.py")
check_elf = load("scripts/check_elf.py")

BIN = f"ramet/_native/{hatch_build.PROGRAM}"


def stub(directory: Path, name: str, status: int) -> None:
    """A compiler that answers every call with `status`."""
    (directory / name).write_text(f"#!/bin/sh\nexit {status}\n")
    (directory / name).chmod(0o755)


def test_without_any_compiler_the_hook_asks_for_ziglang(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert hatch_build.system_compiler() is None
    assert "ziglang" in hatch_build.native_file(tmp_path).read_text()


def test_a_compiler_without_a_static_libc_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("CC", raising=False)
    stub(tmp_path, "cc", 1)
    stub(tmp_path, "gcc", 0)
    assert hatch_build.system_compiler() == ["gcc"]


def test_the_compiler_that_cc_names_is_taken_with_its_arguments(tmp_path, monkeypatch):
    stub(tmp_path, "mine", 0)
    monkeypatch.setenv("CC", f"{tmp_path}/mine -v")
    assert hatch_build.system_compiler() == [f"{tmp_path}/mine", "-v"]
    assert "ziglang" not in hatch_build.native_file(tmp_path).read_text()


def test_a_named_compiler_that_does_not_serve_is_an_error_and_no_other_is_taken(tmp_path, monkeypatch):
    stub(tmp_path, "mine", 1)
    monkeypatch.setenv("CC", f"{tmp_path}/mine")
    with pytest.raises(SystemExit, match=r"CC=.*mine cannot link a static x86-64 program"):
        hatch_build.system_compiler()


def test_installing_replaces_a_program_that_is_running(tmp_path):
    running = tmp_path / "native" / hatch_build.PROGRAM
    hatch_build.install(Path("/bin/cat"), running.parent)
    with subprocess.Popen([running], stdin=subprocess.PIPE) as process:
        hatch_build.install(Path("/bin/true"), running.parent)
        assert process.poll() is None
    assert [path.name for path in running.parent.iterdir()] == [hatch_build.PROGRAM]
    subprocess.run([running], check=True)


def test_a_compiler_that_puts_constants_beside_the_restorer_does_not_pass(tmp_path, capfd):
    """As clang does for vectors: the linked program looks right, and every fork of it dies."""
    source = shutil.copytree(ROOT / "core", tmp_path / "core")
    with (source / "pie/restorer.c").open("a") as restorer:
        restorer.write('\nextern const char beside[];\nconst char beside[] = "beside";\n')
    with pytest.raises(SystemExit, match="core could not be built"):
        hatch_build.build_core(source, tmp_path / "build")
    assert "bytes in .rodata" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_builds_give_one_wheel_which_holds_the_static_program(tmp_path):
    wheels = []
    for name in ("first", "the-second-one"):
        scratch = tmp_path / name
        scratch.mkdir()
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TMPDIR": str(scratch)}
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(scratch / "dist")]
        subprocess.run(build, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        assert [path.name for path in scratch.iterdir()] == ["dist"]
        (wheel,) = (scratch / "dist").iterdir()
        wheels.append(wheel)
    assert wheels[0].name.endswith(f"-{hatch_build.TAG}.whl")
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as wheel:
        assert check_elf.faults(check_elf.parse(wheel.read(BIN))) == []
        assert wheel.getinfo(BIN).external_attr >> 16 & 0o777 == 0o755
        assert "ramet/py.typed" in wheel.namelist()
        tops = {name.partition("/")[0] for name in wheel.namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"ramet"}
