"""Roots built of a few programs: what is in them, that they work, and what is refused."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.engine import closure
from ramet.engine.closure import build_root
from ramet.errors import InvalidRequest
from unit.engine import elves

STANDARD_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory of made-up programs, in no standard place."""
    directory = tmp_path / "tools"
    loader = elves.write(tmp_path / "host/ld-test.so")
    elves.write(tmp_path / "host/lib/liba.so.1.5", soname="liba.so.1")
    (tmp_path / "host/lib/liba.so.1").symlink_to("liba.so.1.5")
    elves.write(
        directory / "tool", interpreter=str(loader), needed=("liba.so.1",), runpath=str(tmp_path / "host/lib")
    )
    elves.write(directory / "static")
    return directory


def names(built: closure.BuiltRoot) -> set[str]:
    return set(built.files)


def refusal(*args: object, **options: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        build_root(*args, **options)
    return caught.value


# --- what is in a root


def test_a_program_brings_its_loader_and_libraries_with_their_symlinks(tmp_path, tools):
    built = build_root(tmp_path / "root", [str(tools / "tool")])
    host = tmp_path / "host"
    assert names(built) >= {
        f"{tools}/tool",
        f"{host}/ld-test.so",
        f"{host}/lib/liba.so.1",
        f"{host}/lib/liba.so.1.5",
    }
    link = built.path / str(host / "lib/liba.so.1").lstrip("/")
    assert os.readlink(link) == "liba.so.1.5"


def test_a_root_holds_nothing_that_was_not_asked_for(tmp_path, tools):
    built = build_root(tmp_path / "root", [str(tools / "static")])
    outside_etc = {name for name in names(built) if not name.startswith("/etc/")}
    assert outside_etc == {f"{tools}/static"}
    assert set(os.listdir(built.path / "etc")) == {
        "passwd", "group", "hosts", "hostname", "nsswitch.conf", "resolv.conf",
    }  # fmt: skip


def test_files_and_bytes_are_those_that_were_written(tmp_path, tools):
    built = build_root(tmp_path / "root", [str(tools / "tool")])
    on_disk = {
        "/" + str(path.relative_to(built.path)): path
        for path in built.path.rglob("*")
        if path.is_symlink() or path.is_file()
    }
    del on_disk["/.ramet-root"]
    assert names(built) == set(on_disk)
    assert built.total_bytes == sum(
        path.lstat().st_size for path in on_disk.values() if not path.is_symlink()
    )


def test_modes_and_times_are_kept_and_set_user_id_is_not(tmp_path, tools):
    program = tools / "static"
    program.chmod(0o4751)
    os.utime(program, ns=(1, 1_700_000_000_123_456_789))
    built = build_root(tmp_path / "root", [str(program)])
    status = (built.path / str(program).lstrip("/")).stat()
    assert stat.S_IMODE(status.st_mode) == 0o751
    assert status.st_mtime_ns == 1_700_000_000_123_456_789


def test_a_name_found_outside_of_the_standard_path_is_linked_into_it(tmp_path, tools):
    built = build_root(tmp_path / "root", ["tool"], search_path=str(tools))
    assert os.readlink(built.path / "usr/local/bin/tool") == f"{tools}/tool"


def test_a_script_brings_its_interpreter(tmp_path, tools):
    script = tools / "script"
    script.write_text(f"#!{tools}/static -x\n")
    script.chmod(0o755)
    assert f"{tools}/static" in names(build_root(tmp_path / "root", [str(script)]))


@pytest.mark.parametrize("line", ["env tool", "env -S tool -u", "env -S NAME=value tool"])
def test_a_script_of_env_brings_env_and_the_program_it_names(tmp_path, tools, line):
    elves.write(tools / "env")
    script = tools / "script"
    script.write_text(f"#!{tools}/{line}\n")
    script.chmod(0o755)
    built = build_root(tmp_path / "root", [str(script)], search_path=str(tools))
    assert {f"{tools}/env", f"{tools}/tool"} <= names(built)


def test_an_executable_without_an_interpreter_line_is_left_to_the_shell(tmp_path, tools):
    plain = tools / "plain"
    plain.write_text("echo hello\n")
    plain.chmod(0o755)
    assert f"{tools}/plain" in names(build_root(tmp_path / "root", [str(plain)]))


def test_files_go_where_they_are_told(tmp_path, tools):
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep/text").write_text("x")
    (data / "link").symlink_to("deep/text")
    built = build_root(
        tmp_path / "root", [str(tools / "static")], [str(data / "deep/text"), f"{data}:/srv/data"]
    )
    assert {f"{data}/deep/text", "/srv/data/deep/text", "/srv/data/link"} <= names(built)
    assert os.readlink(built.path / "srv/data/link") == "deep/text"


def test_a_file_may_take_the_place_of_a_made_one(tmp_path, tools):
    mine = tmp_path / "passwd"
    mine.write_text("root:x:0:0::/:/bin/sh\n")
    built = build_root(tmp_path / "root", [str(tools / "static")], [f"{mine}:/etc/passwd"])
    assert (built.path / "etc/passwd").read_text() == mine.read_text()


# --- that they work


def enter(root: Path, *command: str) -> str:
    """The output of a command whose / is `root`."""
    unshare, chroot = shutil.which("unshare"), shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin")
    if not (unshare and chroot):
        pytest.skip("needs the programs unshare and chroot")
    enter = [unshare, "-Ur", chroot, str(root)]
    clean = {"PATH": STANDARD_PATH}
    if subprocess.run([unshare, "-Ur", "true"], capture_output=True, env=clean, check=False).returncode:
        pytest.skip("this kernel makes no user namespace for us")
    done = subprocess.run([*enter, *command], capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MODULES = "bz2, ctypes, decimal, hashlib, json, lzma, pwd, sqlite3, ssl, subprocess, threading, zlib"
PROGRAM = f"import {MODULES}, sys; print(6 * 7, pwd.getpwuid(0).pw_name)"


def test_a_shell_and_python_run_in_a_built_root(tmp_path):
    built = build_root(tmp_path / "root", ["/bin/sh", "python3"])
    assert enter(built.path, "/bin/sh", "-c", "echo $((6*7)); echo /*").startswith("42\n")
    have = {name for name in MODULES.split(", ") if importable(name)}
    program = PROGRAM.replace(MODULES, ", ".join(sorted(have | {"pwd"})))
    assert enter(built.path, "/bin/sh", "-c", f"python3 -c '{program}'") == "42 root\n"


def importable(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="needs a python3 of the system")
def test_the_python_of_the_system_runs_in_a_built_root(tmp_path):
    built = build_root(tmp_path / "root", ["/usr/bin/python3"])
    assert enter(built.path, "/usr/bin/python3", "-c", "import json; print(json.dumps(1))") == "1\n"


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
def test_the_python_of_an_environment_runs_as_that_environment(tmp_path):
    program = f"{sys.prefix}/bin/python3"
    built = build_root(tmp_path / "root", [program])
    assert enter(built.path, program, "-c", "import sys; print(sys.prefix)") == f"{sys.prefix}\n"


def test_python_comes_without_tests_and_site_packages(tmp_path):
    built = build_root(tmp_path / "root", [f"{sys.base_prefix}/bin/python3"])
    library = [name for name in names(built) if "/lib/python3" in name]
    assert any(name.endswith("/os.py") for name in library)
    assert not [
        name for name in library if "/site-packages/" in name or "/test/" in name or "_tkinter" in name
    ]


def test_a_python_shim_gives_way_to_a_real_python(tmp_path, tools):
    shim = tools / "python3"
    shim.write_text("#!/bin/sh\nexec python-of-the-day\n")
    shim.chmod(0o755)
    built = build_root(tmp_path / "root", ["python3"], search_path=str(tools))
    assert os.readlink(built.path / "usr/local/bin/python3") == sys.executable
    assert any("script that chooses a Python" in note for note in built.notes)


def test_a_python_without_its_library_is_said_to_be_one(tmp_path, tools):
    elves.write(tools / "python3")
    built = build_root(tmp_path / "root", [str(tools / "python3")])
    assert any("no standard library" in note for note in built.notes)


# --- what is refused


@pytest.mark.parametrize(
    "name, words",
    [
        ("/nonexistent/tool", "does not exist"),
        ("no-such-tool", "is not in PATH"),
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("/usr", "is a directory"),
        ("/etc/passwd", "is not executable"),
        ("/dev/null", "neither a file nor a directory"),
    ],
)
def test_a_program_that_cannot_be_had_is_named(tmp_path, name, words):
    error = refusal(tmp_path / "root", [name])
    assert error.field == "bin"
    assert words in error.message
    assert name.replace("\0", "") == "ab" or name in error.message
    assert os.listdir(tmp_path) == []


def test_a_missing_library_is_named_with_who_needs_it(tmp_path, tools):
    (tmp_path / "host/lib/liba.so.1").unlink()
    error = refusal(tmp_path / "root", [str(tools / "tool")])
    assert error.field == "bin"
    assert "liba.so.1" in error.message
    assert str(tools / "tool") in error.message


def test_a_missing_interpreter_is_named_with_its_script(tmp_path, tools):
    script = tools / "script"
    script.write_text("#!/usr/bin/env no-such-language\n")
    script.chmod(0o755)
    error = refusal(tmp_path / "root", [str(script)], search_path="/nowhere")
    assert "no-such-language" in error.message
    assert str(script) in error.message


def test_interpreters_of_interpreters_end(tmp_path, tools):
    script = tools / "script"
    script.write_text(f"#!{tools}/other\n")
    (tools / "other").write_text(f"#!{tools}/script\n")
    script.chmod(0o755)
    (tools / "other").chmod(0o755)
    build_root(tmp_path / "root", [str(script)])
    for number in range(8):
        step = tools / f"step{number}"
        step.write_text(f"#!{tools}/step{number + 1}\n")
        step.chmod(0o755)
    error = refusal(tmp_path / "root2", [str(tools / "step0")])
    assert "nest too deeply" in error.message


def test_a_symlink_loop_is_refused(tmp_path, tools):
    (tools / "loop").symlink_to("loop")
    assert "Too many levels" in refusal(tmp_path / "root", [str(tools / "loop")]).message


def test_a_damaged_program_is_refused(tmp_path, tools):
    (tools / "static").write_bytes(b"\x7fELF\x02\x01")
    assert "damaged" in refusal(tmp_path / "root", [str(tools / "static")]).message


@pytest.mark.parametrize("spec", ["/nonexistent", "/dev/null", "/etc/passwd:/a/../../b", "a\0b"])
def test_a_file_that_cannot_be_had_is_refused(tmp_path, tools, spec):
    assert refusal(tmp_path / "root", [str(tools / "static")], [spec]).field == "file"


def test_nothing_at_all_is_refused(tmp_path):
    assert refusal(tmp_path / "root", []).field == "bin"


# --- where it is written


def test_an_empty_directory_may_be_the_destination(tmp_path, tools):
    (tmp_path / "root").mkdir()
    assert build_root(tmp_path / "root", [str(tools / "static")]).path == tmp_path / "root"


def test_a_directory_with_anything_in_it_is_never_touched(tmp_path, tools):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/precious").write_text("x")
    for replace in (False, True):
        error = refusal(tmp_path / "root", [str(tools / "static")], replace=replace)
        assert error.field == "directory"
    assert os.listdir(tmp_path / "root") == ["precious"]


def test_an_older_root_is_replaced_only_when_told(tmp_path, tools):
    build_root(tmp_path / "root", [str(tools / "tool")])
    error = refusal(tmp_path / "root", [str(tools / "static")])
    assert error.field == "directory"
    assert "--replace" in str(error)
    built = build_root(tmp_path / "root", [str(tools / "static")], replace=True)
    assert f"{tools}/static" in names(built)
    assert not (built.path / str(tools / "tool").lstrip("/")).exists()
    assert sorted(os.listdir(tmp_path)) == ["host", "root", "tools"]


@pytest.mark.parametrize(
    "destination, words",
    [
        ("", "is empty"),
        ("a\0b", "NUL"),
        ("/nonexistent/root", "is not a directory"),
        ("/etc/passwd", "exists"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(tools, destination, words):
    error = refusal(destination, [str(tools / "static")])
    assert error.field == "directory"
    assert words in error.message


def test_a_symlink_is_no_destination(tmp_path, tools):
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    assert refusal(tmp_path / "root", [str(tools / "static")]).field == "directory"


def test_a_failure_while_writing_leaves_nothing(tmp_path, tools, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr("ramet.engine._plant._copy_bytes", full)
    error = refusal(tmp_path / "root", [str(tools / "static")])
    assert "No space left" in error.message
    assert sorted(os.listdir(tmp_path)) == before


def test_a_copy_works_where_the_kernel_cannot_copy(tmp_path, tools, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    built = build_root(tmp_path / "root", [str(tools / "static")])
    copy = built.path / str(tools / "static").lstrip("/")
    assert copy.read_bytes() == (tools / "static").read_bytes()
