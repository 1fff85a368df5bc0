"""The units are such as systemd takes them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from _repository import ROOT

EXPOSURE_MAX = 48
UNITS = sorted((ROOT / "packaging/systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # The program is where packages put it, which is not here.
    text = unit.read_text().replace("/opt/ramet/bin/ramet", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text)
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False)
    if "Failed to" in done.stderr and unit.name not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.splitlines()[0]}")
    assert done.stderr == ""
    assert done.returncode == 0


def test_what_a_unit_can_do_without_is_taken_from_it() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = ROOT / "packaging/systemd/ramet-server.service"
    # Of 100; what is left is named in the unit: what sandboxes are made of.
    words = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Unknown" in done.stderr or "unrecognized option" in done.stderr:
        pytest.skip(f"systemd-analyze is too old: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stdout[-200:]


def test_there_are_units_for_the_system_and_for_one_user() -> None:
    assert len(UNITS) == 2
