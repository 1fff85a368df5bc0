"""A directory as root, and roots that hold a few programs with what they need."""

# ruff: noqa: E501  -- programs and shell lines for the sandbox stay whole

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.engine.closure import build_root
from ramet.errors import InvalidRequest
from system._daemons import build


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path


def test_sh_and_python_run_in_a_root_built_of_them(rooted, place):
    top = build(place / "root", "python3")
    result = rooted.run(
        "echo from sh; python3 -c 'import json, hashlib, ssl; print(\"from python\")'", root=top
    )
    assert result.stdout == "from sh\nfrom python\n", result.stderr
    assert rooted.run("ls /usr/bin", root=top).exit_code == 127


def test_the_command_line_builds_a_root_that_works(shared, place):
    def ramet(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "ramet", *words],
            env={**os.environ, "RAMET_RUNTIME_DIR": shared.place},
            capture_output=True,
            text=True,
            check=False,
            timeout=55,
        )

    made = ramet(
        "root", "build", str(place / "root"), "--bin", "/bin/sh", "--bin", "python3", "--bin", "bash"
    )
    assert made.returncode == 0, made.stderr
    done = ramet(
        "run", "--root", str(place / "root"), "python3 -c 'print(6*7)'; bash -c 'echo ${BASH_VERSION%%.*}'"
    )
    assert done.stdout.splitlines()[0] == "42", done.stderr
    assert done.returncode == 0


def test_a_dynamically_linked_program_with_its_data_runs(rooted, place):
    (place / "data").write_text("the data\n")
    build_root(place / "root", ["cat", "sort"], [f"{place}/data:/srv/data"])
    assert rooted.run(["sort", "/srv/data"], root=place / "root").stdout == "the data\n"


def test_everything_in_a_root_can_be_changed_and_nothing_of_it_reaches_the_directory(rooted, place):
    top = build(place / "root", "rm", "ls", "cat", "mv", "chmod", "mkdir")
    (top / "etc").mkdir(exist_ok=True)
    (top / "etc" / "note").write_text("as it was\n")
    names = sorted(str(path.relative_to(top)) for path in top.rglob("*"))
    line = """
    echo new >/etc/note && cat /etc/note; echo x >/usr/bin/new; rm /usr/bin/cat; mkdir -p /a/b/c; chmod 700 /etc
    mv /etc /elsewhere && ls /elsewhere; rm -r /elsewhere; ls /
    """
    result = rooted.run(line, root=top, cwd="/")
    assert result.stdout.splitlines()[:2] == ["new", "group"], result.stderr
    assert "etc" not in result.stdout.split()
    assert sorted(str(path.relative_to(top)) for path in top.rglob("*")) == names
    assert (top / "etc" / "note").read_text() == "as it was\n"
    assert rooted.run("cat /etc/note; ls -d /a", root=top).stdout == "as it was\n"


def test_two_sandboxes_on_one_root_see_nothing_of_each_other(rooted, place):
    top = build(place / "root", "cat", "ls")
    heard: list[str] = []

    def look(_: bytes) -> None:
        if not heard:
            heard.append(rooted.run("ls /; cat /mark", root=top).stdout)

    rooted.run("echo x >/mark; echo written; ls /", root=top, on_stdout=look)
    assert "usr" in heard[0].split()
    assert "mark" not in heard[0]


def test_changes_of_the_directory_are_seen_by_the_next_run(rooted, place):
    top = build(place / "root", "cat")
    for number in range(5):
        (top / "number").write_text(str(number))
        assert rooted.run("cat /number", root=top).stdout == str(number)


def test_the_directory_may_be_given_by_a_link_or_a_relative_path(rooted, place, monkeypatch):
    top = build(place / "root")
    (place / "link").symlink_to("root")
    monkeypatch.chdir(place)
    for name in (
        "root",
        "./root",
        "link",
        Path("root"),
        f"{place}/../{place.name}/root",
        os.fsencode(str(top)),
    ):
        if isinstance(name, bytes):
            continue
        assert rooted.run("echo here", root=name).stdout == "here\n"


@pytest.mark.parametrize(
    "name", ["with blank", "with:colon", "with,comma", "with\\backslash", "ünïcode", "new\nline", "q'\"uote"]
)
def test_any_name_of_a_directory_will_do(rooted, place, name):
    """Options of overlayfs would be cut at a colon or comma: mounts are passed as descriptors."""
    top = build(place / name)
    assert rooted.run("echo here; pwd", root=top, cwd="/").stdout == "here\n/\n"


def test_home_is_that_of_uid_0_in_the_roots_own_accounts(rooted, place):
    top = build(place / "root")
    (top / "etc" / "passwd").write_text("root:x:0:0::/srv/home:/bin/sh\n")
    (top / "srv" / "home").mkdir(parents=True)
    assert rooted.run("echo $HOME; pwd", root=top).stdout == "/srv/home\n/srv/home\n"


def test_a_root_without_a_shell_says_so(rooted, place):
    (place / "empty").mkdir()
    result = rooted.run("echo x", root=place / "empty")
    assert (result.exit_code, result.stderr) == (127, "/bin/sh: No such file or directory\n")


def test_mounts_that_a_root_lacks_are_there(rooted, place):
    top = build(place / "root", "ls", "stat")
    for name in ("proc", "dev", "tmp"):
        path = top / name
        if path.is_dir():
            path.rmdir()
    line = "stat -c %F /proc/self/exe /dev/null /dev/shm /tmp; ls -d /proc/1 /dev/pts; echo x >/tmp/x; echo x >/dev/shm/x"
    result = rooted.run(line, root=top, cwd="/")
    assert result.ok, result.stderr
    assert not (top / "proc").exists()


def test_files_of_a_root_belong_to_uid_0_inside_and_can_be_changed(rooted, place):
    """Also as real root, whose files no id inside could own: their mount maps ids."""
    top = build(place / "root", "stat", "chmod", "cat")
    (top / "file").write_text("old\n")
    (top / "file").chmod(0o600)
    result = rooted.run(
        "stat -c '%u %a' /file; echo more >>/file; chmod 640 /file; cat /file; stat -c %a /file",
        root=top,
        cwd="/",
    )
    assert result.stdout.splitlines() == ["0 600", "old", "more", "640"], result.stderr
    assert stat.S_IMODE((top / "file").stat().st_mode) == 0o600


def test_a_directory_on_another_file_system_will_do(rooted):
    """/dev/shm is a tmpfs."""
    import shutil
    import tempfile

    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    place.chmod(0o755)
    try:
        top = build(place / "root", "cat")
        (top / "file").write_text("here\n")
        assert (
            rooted.run("cat /file; echo x >>/file; cat /file", root=top, cwd="/").stdout == "here\nhere\nx\n"
        )
    finally:
        shutil.rmtree(place)


def test_many_roots_are_forgotten_one_by_one(rooted, place):
    for number in range(80):
        other = place / f"root-{number}"
        other.mkdir()
        assert rooted.run(["/bin/sh"], root=other).exit_code == 127
    core = rooted.status().core
    assert core is not None
    assert core.roots <= 17


def test_a_root_with_mounts_in_it_is_refused_by_name(rooted):
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    tops = {os.path.dirname(row[4]) for row in rows} - {"/"}
    tried = 0
    for top in sorted(tops):
        if os.path.isdir(top) and not top.startswith("/proc") and os.path.realpath(top) == top and tried < 3:
            with pytest.raises(InvalidRequest) as caught:
                rooted.run("true", root=top)
            assert caught.value.field == "root"
            tried += 1
