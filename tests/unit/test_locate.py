"""Which ramet-core is started, and what is said when there is none."""

import os
from pathlib import Path

import pytest

from ramet.errors import DaemonStartError
from ramet.native.locate import find_program, system_copy_fault


def program(path: Path, content: bytes = b"core", mode: int = 0o755) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_packaged_program_is_taken(tmp_path):
    packaged = program(tmp_path / "packaged")
    assert find_program({}, packaged=packaged, system=tmp_path / "none") == packaged


def test_a_search_path_is_never_asked(tmp_path):
    program(tmp_path / "ramet-core")
    packaged = program(tmp_path / "packaged")
    found = find_program({"PATH": str(tmp_path)}, packaged=packaged, system=tmp_path / "none")
    assert found == packaged


@pytest.mark.root
def test_the_system_copy_goes_first_when_it_is_the_same_program(tmp_path):
    packaged, system = program(tmp_path / "packaged"), program(tmp_path / "system")
    assert find_program({}, packaged=packaged, system=system) == system


@pytest.mark.root
@pytest.mark.parametrize(
    "content,mode,fault",
    [
        (b"older", 0o755, "of another version"),
        (b"core", 0o775, "written by others than root"),
        (b"core", 0o757, "written by others than root"),
        (b"core", 0o644, "not a program"),
    ],
)
def test_a_system_copy_that_does_not_fit_is_passed_over_and_the_reason_told(tmp_path, content, mode, fault):
    packaged, system = program(tmp_path / "packaged"), program(tmp_path / "system", content, mode)
    assert find_program({}, packaged=packaged, system=system) == packaged
    assert fault in system_copy_fault(packaged=packaged, system=system)


@pytest.mark.root
def test_a_system_copy_of_another_owner_is_passed_over(tmp_path):
    packaged, system = program(tmp_path / "packaged"), program(tmp_path / "system")
    os.chown(system, 1000, 1000)
    assert find_program({}, packaged=packaged, system=system) == packaged


@pytest.mark.root
def test_the_system_copy_serves_where_the_package_has_none(tmp_path):
    system = program(tmp_path / "system")
    assert find_program({}, packaged=tmp_path / "none", system=system) == system


def test_the_environment_can_name_another_build(tmp_path):
    packaged, named = program(tmp_path / "packaged"), program(tmp_path / "asan")
    environment = {"RAMET_CORE": str(named)}
    assert find_program(environment, packaged=packaged, system=tmp_path / "none") == named


@pytest.mark.parametrize("named", ["ramet-core", "/nonexistent", "/etc/passwd", "/tmp"])
def test_a_named_program_that_is_none_is_an_error_and_no_other_is_taken(tmp_path, named):
    packaged = program(tmp_path / "packaged")
    with pytest.raises(DaemonStartError, match=f"RAMET_CORE={named} is not") as caught:
        find_program({"RAMET_CORE": named}, packaged=packaged, system=tmp_path / "none")
    assert caught.value.code == "core_missing"


def test_an_installation_without_the_program_says_how_to_mend_it(tmp_path):
    with pytest.raises(DaemonStartError) as caught:
        find_program({}, packaged=tmp_path / "none", system=tmp_path / "none")
    assert caught.value.code == "core_missing"
    assert "make build" in caught.value.hint
