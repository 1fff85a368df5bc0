"""`Sandbox.files`: files of a sandbox that stands, whatever its guests do to them meanwhile."""

import errno
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

import ramet
from ramet.errors import FileError
from system.sandbox._repl import PATIENCE_S


@pytest.fixture(scope="module")
def sandbox():
    """One for all tests here; each has a directory of its own."""
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        yield made


@pytest.fixture
def files(sandbox):
    return sandbox.files


@pytest.fixture
def place(request, sandbox):
    """A directory for one test."""
    path = f"/tmp/{abs(hash(request.node.name))}"
    sandbox.files.make_dir(path)
    return path


def refusal(call, *arguments, **options):
    with pytest.raises(ramet.FileError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_what_is_written_outside_is_read_inside_and_the_other_way(sandbox, files, place):
    info = files.write(f"{place}/a/b/text", "grüße\n")
    assert (info.path, info.kind, info.size, info.mode, info.uid) == (
        f"{place}/a/b/text",
        "file",
        8,
        0o644,
        0,
    )
    assert sandbox.commands.run(["cat", f"{place}/a/b/text"]).stdout == "grüße\n"
    sandbox.commands.run(f"printf '\\000\\377' > {place}/bytes; chmod 600 {place}/bytes")
    assert files.read_bytes(f"{place}/bytes") == b"\0\xff"
    assert files.stat(f"{place}/bytes").mode == 0o600
    assert files.read(f"{place}/a/b/text") == "grüße\n"
    files.write(f"{place}/a/b/text", b"more", append=True)
    assert files.read(f"{place}/a/b/text") == "grüße\nmore"
    files.write(f"{place}/a/b/text", "short")
    assert files.read(f"{place}/a/b/text") == "short"


def test_relative_paths_begin_at_the_home(sandbox, files):
    files.write("note", "here")
    assert sandbox.commands.run("cat /home/user/note").stdout == "here"
    assert "note" in [one.name for one in files.list()]


def test_a_file_of_any_length_passes_in_pieces(files, place):
    pieces = (bytes([number]) * (1 << 20) for number in range(40))
    assert files.write(f"{place}/long", pieces).size == 40 << 20
    lengths = {len(piece) for piece in files.stream(f"{place}/long", size=1 << 19)}
    assert lengths == {1 << 19}
    with files.open(f"{place}/long") as file:
        file.seek(39 << 20)
        assert file.read(3) == b"\x27\x27\x27"
    with files.open(f"{place}/long", "r+b") as file:
        file.write(b"new")
    assert files.read_bytes(f"{place}/long")[:4] == b"new\0"
    files.remove(f"{place}/long")


def test_names_are_made_listed_changed_and_removed(files, place):
    files.make_dir(f"{place}/d/e")
    files.make_dir(f"{place}/d/e")
    assert refusal(files.make_dir, f"{place}/d/e", parents=False) == "exists"
    files.write(f"{place}/d/e/one.txt", "1")
    files.write(f"{place}/d/two.txt", "2")
    files.symlink(f"{place}/link", "d/two.txt")
    assert [one.path[len(place) :] for one in files.list(place, depth=0)] == [
        "/d", "/d/e", "/d/e/one.txt", "/d/two.txt", "/link",
    ]  # fmt: skip
    assert [one.name for one in files.list(place)] == ["d", "link"]
    assert [one.name for one in files.glob(f"{place}/**/*.txt")] == ["one.txt", "two.txt"]
    assert [one.name for one in files.glob(f"{place}/d/t?o.*")] == ["two.txt"]
    assert (files.stat(f"{place}/link").kind, files.stat(f"{place}/link", follow=False).target) == (
        "file",
        "d/two.txt",
    )
    files.rename(f"{place}/d/two.txt", f"{place}/new/three.txt")
    assert not files.exists(f"{place}/link")
    assert refusal(files.rename, f"{place}/d/e/one.txt", f"{place}/new/three.txt", replace=False) == "exists"
    files.copy(f"{place}/new/three.txt", f"{place}/four.txt")
    assert refusal(files.copy, f"{place}/d", f"{place}/copy") == "is_a_directory"
    files.copy(f"{place}/d", f"{place}/copy", recursive=True)
    assert files.read(f"{place}/copy/e/one.txt") == "1"
    changed = files.set(f"{place}/four.txt", mode=0o750, mtime=1000.5)
    assert (changed.mode, changed.mtime) == (0o750, 1000.5)
    assert refusal(files.remove, f"{place}/d") == "not_empty"
    files.remove(f"{place}/d", recursive=True)
    files.remove(f"{place}/four.txt")
    assert [one.name for one in files.list(place)] == ["copy", "link", "new"]


@pytest.mark.parametrize(
    "path, code",
    [
        ("/nowhere/at/all", "not_found"),
        ("/etc/passwd/x", "not_a_directory"),
        ("/tmp", "is_a_directory"),
        ("/dev/null", "not_regular"),
        ("/proc/1/root/etc/passwd", "not_permitted"),
        ("/" + "x" * 300, "too_long"),
    ],
)
def test_what_cannot_be_read_is_told_by_code_and_path(files, path, code):
    with pytest.raises(ramet.FileError) as caught:
        files.read(path)
    assert caught.value.code in {code, "loop"} if "/proc/" in path else caught.value.code == code
    assert caught.value.path == path


@pytest.mark.parametrize("path", ["", "a\0b", "/" + "x/" * 3000, 7])
def test_what_is_no_path_is_refused_before_anything_is_asked(files, path):
    with pytest.raises(ramet.InvalidRequest) as caught:
        files.read(path)
    assert caught.value.field == "path"


def test_links_lead_nowhere_but_below_the_root(sandbox, files, place, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    sandbox.commands.run(
        f"cd {place}; ln -s {secret} absolute; ln -s ../../../../../../../../..{secret} relative;"
        f" ln -s /proc/self/root{secret} magic; ln -s loop loop; ln -s / rootlink"
    )
    for name, code in (("absolute", "not_found"), ("relative", "not_found"), ("loop", "loop")):
        assert refusal(files.read, f"{place}/{name}") == code
    with pytest.raises(ramet.FileError):
        files.read(f"{place}/magic")
    assert files.read(f"{place}/rootlink/etc/passwd") == files.read("/../../etc/passwd")
    for name in ("absolute", "relative", "magic"):
        with pytest.raises(ramet.FileError):
            files.write(f"{place}/{name}/below", "x")
    assert secret.read_text() == "the host's"


def test_a_fifo_neither_hangs_a_call_nor_is_opened(sandbox, files, place):
    sandbox.commands.run(f"mkfifo {place}/fifo")
    assert files.stat(f"{place}/fifo").kind == "fifo"
    for call in (files.read, lambda path: files.write(path, "x")):
        assert refusal(call, f"{place}/fifo") == "not_regular"
    waiting = sandbox.commands.start(f"cat {place}/fifo")
    assert refusal(files.read, f"{place}/fifo") == "not_regular"
    assert waiting.running
    waiting.kill()
    assert waiting.wait(PATIENCE_S).reason == "killed"
    files.remove(f"{place}/fifo")
    waiting.close()
    sandbox.commands.forget()


SWAPPER = """
import os, sys
os.chdir(sys.argv[1])
os.mkdir("real")
with open("real/file", "w") as file:
    file.write("inside")
os.symlink(sys.argv[2], "away")
os.mkfifo("fifo")
os.symlink("real", "link")
print("ready", flush=True)
while True:
    for other in ("away", "fifo", "real"):
        os.symlink(other, "next")
        os.rename("next", "link")
"""


def test_a_guest_that_swaps_links_under_the_calls_neither_lets_them_out_nor_stops_them(
    sandbox, files, place, tmp_path
):
    target = tmp_path / "away"
    target.mkdir()
    (target / "file").write_text("outside")
    files.write(f"{place}/swapper.py", SWAPPER)
    with sandbox.commands.start(["python3", f"{place}/swapper.py", place, str(target)]) as swapper:
        assert swapper.stdout.readline(PATIENCE_S) == b"ready\n"
        seen, number, end = set(), 0, time.monotonic() + PATIENCE_S
        while (number < 200 or len(seen) < 3) and time.monotonic() < end:
            number += 1
            try:
                seen.add(files.read(f"{place}/link/file"))
            except ramet.FileError as error:
                seen.add(error.code)
            try:
                files.write(f"{place}/link/new{number % 3}", "x")
            except ramet.FileError as error:
                seen.add(error.code)
        with pytest.raises(ramet.FileError):
            files.read(f"{place}/nothing")
    sandbox.commands.forget()
    assert seen == {"inside", "not_found", "not_a_directory"}
    assert sorted(os.listdir(target)) == ["file"]
    assert (target / "file").read_text() == "outside"


# Each moment something else stands at `entry`, and at `tree/entry`.
SHIFTER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.mkdir("tree")
def file(name):
    with open(name, "w") as made:
        made.write("inside")
def listener(name):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(name)
def directory(name):
    os.mkdir(name)
    file(name + "/file")
def to(target):
    return lambda name: os.symlink(target, name)
kinds = (file, os.mkfifo, to("/dev/zero"), listener, to("/dev/ptmx"), directory, to(sys.argv[2]), to("fifo"),
         to("/proc/self/fd/0"), to(sys.argv[2] + "/file"))
os.mkfifo("fifo")
print("ready", flush=True)
while True:
    for kind in kinds:
        for name in ("entry", "tree/entry"):
            os.system(f"rm -rf next {name}") if os.path.isdir(name) and not os.path.islink(name) else None
            try:
                kind("next")
                os.rename("next", name)
            except OSError:
                os.system("rm -rf next")
"""
SHIFTED = {
    "read": lambda files, at, _: files.read_bytes(f"{at}/entry"),
    "stream": lambda files, at, _: list(files.stream(f"{at}/entry")),
    "open": lambda files, at, _: files.open(f"{at}/entry", "r+b").close(),
    "write": lambda files, at, _: files.write(f"{at}/entry", "x"),
    "append": lambda files, at, _: files.write(f"{at}/entry/file", "x", append=True),
    "stat": lambda files, at, _: files.stat(f"{at}/entry"),
    "exists": lambda files, at, _: files.exists(f"{at}/entry/file"),
    "list": lambda files, at, _: files.list(f"{at}/entry", depth=0),
    "glob": lambda files, at, _: files.glob(f"{at}/**/file"),
    "make_dir": lambda files, at, _: files.make_dir(f"{at}/entry/new"),
    "rename": lambda files, at, _: files.rename(f"{at}/entry", f"{at}/moved"),
    "copy": lambda files, at, _: files.copy(f"{at}/tree", f"{at}/copy", recursive=True, replace=True),
    "copy one": lambda files, at, _: files.copy(f"{at}/entry", f"{at}/one", replace=True),
    "remove": lambda files, at, _: files.remove(f"{at}/entry", recursive=True),
    "symlink": lambda files, at, _: files.symlink(f"{at}/entry", "fifo", replace=True),
    "link": lambda files, at, _: files.link(f"{at}/entry", f"{at}/linked", replace=True),
    "set": lambda files, at, _: files.set(f"{at}/entry", mode=0o600, mtime=1.0),
    "upload": lambda files, at, place: files.upload(place / "up", f"{at}/tree"),
    "download": lambda files, at, place: files.download(f"{at}/tree", place / f"down-{os.urandom(8).hex()}"),
    "download one": lambda files, at, place: files.download(f"{at}/entry", place / os.urandom(8).hex()),
    "download_tar": lambda files, at, _: list(files.download_tar(at)),
    "patch": lambda files, at, _: files.patch(at),
    "watch": lambda files, at, _: files.watch(at, timeout=PATIENCE_S).__next__(),
}


@pytest.fixture(scope="module")
def shifting(sandbox, tmp_path_factory):
    """A directory in which everything is something else each moment, and one of the host."""
    place, at = tmp_path_factory.mktemp("shifting"), "/tmp/shifting"
    (place / "away").mkdir()
    (place / "away/file").write_text("outside")
    (place / "up").mkdir()
    (place / "up/entry").write_text("uploaded")
    sandbox.files.write(f"{at}/shifter.py", SHIFTER)
    with sandbox.commands.start(["python3", f"{at}/shifter.py", at, str(place / "away")]) as shifter:
        assert shifter.stdout.readline(PATIENCE_S) == b"ready\n"
        yield at, place
        assert shifter.running, shifter.stderr.read()
    sandbox.commands.forget()


@pytest.mark.parametrize("name", SHIFTED)
def test_no_call_is_let_out_or_held_by_what_a_guest_puts_in_the_way(files, shifting, name):
    at, place = shifting
    for _ in range(20):
        try:
            found = SHIFTED[name](files, at, place)
        except ramet.FileError:
            continue
        assert b"outside" not in (found if isinstance(found, bytes) else repr(found).encode())
    assert sorted(os.listdir(place / "away")) == ["file"]
    assert (place / "away/file").read_text() == "outside"
    for path in place.rglob("*"):
        assert path.is_symlink() or path.is_file() or path.is_dir(), path


def test_a_tree_that_changes_is_listed_and_removed_all_the_same(sandbox, files, place):
    again = "while :; do mkdir -p t/a/b/c; echo x > t/a/f; rm -rf t/a; done 2>/dev/null"
    grow = f"cd {place}; mkdir t; echo ready; {again}"
    with sandbox.commands.start(grow) as growing:
        assert growing.stdout.readline(PATIENCE_S) == b"ready\n"
        for _ in range(50):
            try:
                files.list(f"{place}/t", depth=0)
            except ramet.FileError as error:
                assert error.code == "not_found"  # noqa: PT017
    sandbox.commands.forget()
    files.remove(f"{place}/t", recursive=True)
    assert not files.exists(f"{place}/t")


def test_guests_neither_see_nor_signal_the_file_server(sandbox, files):
    files.stat("/")
    assert "ramet-files" not in sandbox.commands.run("cat /proc/[0-9]*/comm /proc/[0-9]*/cmdline").stdout


def test_directories_go_in_and_come_out(sandbox, files, place, tmp_path):
    source = tmp_path / "source"
    (source / "sub/empty").mkdir(parents=True)
    (source / "sub/file").write_bytes(b"\0content")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("sub/file")
    assert files.upload(source, f"{place}/in") == 3
    assert sandbox.commands.run(f"{place}/in/run.sh; cat {place}/in/link | wc -c").stdout.split() == [
        "ran",
        "8",
    ]
    assert files.download(f"{place}/in", tmp_path / "out") == 3
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"sub", "sub/empty", "sub/file", "run.sh", "link"}
    assert os.readlink(tmp_path / "out/link") == "sub/file"
    assert (tmp_path / "out/run.sh").stat().st_mode & 0o777 == 0o755
    assert files.download(f"{place}/in/sub/file", tmp_path / "one") == 1
    assert (tmp_path / "one").read_bytes() == b"\0content"
    with pytest.raises(ramet.InvalidRequest):
        files.download(f"{place}/in", tmp_path / "out")
    with pytest.raises(ramet.InvalidRequest):
        files.upload(tmp_path / "nothing", place)


def test_directories_have_the_permissions_that_were_asked_for_and_those_of_the_host(files, place, tmp_path):
    files.make_dir(f"{place}/above/private", mode=0o700)
    assert [files.stat(f"{place}/{name}").mode for name in ("above", "above/private")] == [0o755, 0o700]
    files.make_dir(f"{place}/above/private", mode=0o777)  # it was there
    assert files.stat(f"{place}/above/private").mode == 0o700
    (tmp_path / "tree/closed").mkdir(parents=True)
    (tmp_path / "tree/closed/file").write_text("x")
    (tmp_path / "tree/closed").chmod(0o500)
    assert files.upload(tmp_path / "tree", f"{place}/tree") == 1
    assert files.stat(f"{place}/tree/closed").mode == 0o500
    (tmp_path / "tree/closed").chmod(0o700)


def test_a_file_is_not_replaced_by_itself_nor_a_directory_copied_into_itself(files, place):
    files.write(f"{place}/d/file", "kept")
    files.symlink(f"{place}/way", "d")
    files.link(f"{place}/d/file", f"{place}/d/other")
    for path in ("d/file", "way/file", "d/../d/file", "d/other"):
        assert refusal(files.copy, f"{place}/d/file", f"{place}/{path}", replace=True) == "file_error"
    for path in ("d/copy", "way/copy", "d/deep/copy"):
        assert refusal(files.copy, f"{place}/d", f"{place}/{path}", recursive=True) == "file_error"
    files.link(f"{place}/d/file", f"{place}/d/file", replace=True)
    files.rename(f"{place}/d/file", f"{place}/d/file")
    assert (files.read(f"{place}/d/file"), files.stat(f"{place}/d/file").links) == ("kept", 2)
    assert refusal(files.link, f"{place}/d/file", f"{place}/d/other") == "exists"
    assert refusal(files.link, f"{place}/nothing", f"{place}/d/other", replace=True) == "not_found"
    assert files.read(f"{place}/d/other") == "kept"


@pytest.mark.parametrize(
    "name, arguments, field",
    [
        ("symlink", {"target": 7}, "target"),
        ("symlink", {"target": "a\0b"}, "target"),
        ("symlink", {"target": "x" * 5000}, "target"),
        ("set", {"mode": "rw"}, "mode"),
        ("set", {"owner": 3}, "owner"),
        ("set", {"owner": (-1, 0)}, "owner"),
        ("set", {"mtime": float("nan")}, "mtime"),
        ("write", {"data": [1]}, "data"),
        ("write", {"data": 1}, "data"),
        ("write", {"data": "x", "encoding": "klingon"}, "encoding"),
        ("write", {"data": "x", "mode": 0o10000}, "mode"),
        ("make_dir", {"mode": -1}, "mode"),
        ("read", {"encoding": "klingon"}, "encoding"),
        ("open", {"mode": "q"}, "mode"),
        ("open", {"mode": "wb", "permissions": "x"}, "permissions"),
        ("list", {"depth": -1}, "depth"),
        ("download", {"local": "/nowhere/at/all"}, "local"),
        ("upload", {"local": "/nowhere/at/all"}, "local"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(files, place, name, arguments, field):
    files.write(f"{place}/file", "x")
    local = {key: arguments.pop(key) for key in ("local",) if key in arguments and name == "upload"}
    with pytest.raises(ramet.InvalidRequest) as caught:
        getattr(files, name)(*local.values(), f"{place}/file", **arguments)
    assert caught.value.field == field
    with pytest.raises(ramet.InvalidRequest) as caught:
        next(files.stream(f"{place}/file", size=0))
    assert caught.value.field == "size"


def test_a_full_disk_of_the_host_is_told_by_name(files, place, tmp_path, monkeypatch):
    class Full(io.RawIOBase):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files.write(f"{place}/file", "x")
    monkeypatch.setattr("ramet.client._sync.files.new_local", lambda *_: Full())
    with pytest.raises(ramet.InvalidRequest) as caught:
        files.download(f"{place}/file", tmp_path / "file")
    assert (caught.value.field, caught.value.code) == ("local", "no_space")


def test_a_full_disk_is_told_by_name():
    with ramet.Sandbox(command=["sleep", "10000"], limits={"disk": "1M"}) as small:
        assert refusal(small.files.write, "big", b"x" * (2 << 20)) == "no_space"


def test_a_file_keeps_its_content_when_there_is_no_room_for_another():
    with ramet.Sandbox(command=["sleep", "10000"], limits={"disk": "1M"}) as small:
        small.files.write("kept", "the only copy\n", mode=0o600)
        small.files.link("kept", "other")
        assert refusal(small.files.write, "kept", b"x" * (2 << 20)) == "no_space"
        assert small.files.read("kept") == "the only copy\n"
        # What was tried has gone again: there is room.
        small.files.write("kept", b"y" * (512 << 10))
        assert small.files.read_bytes("other") == b"y" * (512 << 10)
        assert small.files.write("kept", "short").size == 5
        assert (small.files.read("other"), small.files.stat("kept").mode & 0o777) == ("short", 0o600)
        assert small.files.write("kept", b"").size == 0


def test_changes_are_those_since_the_fork(tmp_path):
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("kept", "same")
        parent.files.write("text", "one\ntwo\nthree\n")
        parent.files.write("binary", b"\0" * 100)
        parent.files.write("dir/inner/file", "x")
        parent.files.write("gone", "x\n")
        assert {one.path: one.change for one in parent.diff()}["/home/user/text"] == "added"
        with parent.fork() as child:
            child.files.write("text", "one\n2\nthree")
            child.files.write("binary", b"\0" * 99 + b"\1")
            child.files.write("kept", "same")
            child.files.write("new/file name", "fresh\n")
            child.files.set("dir/inner/file", mode=0o755)
            child.files.symlink("link", "text")
            child.files.remove("gone")
            child.commands.run("rm -rf dir2; mv new renamed; mkdir empty")
            found = {one.path.removeprefix("/home/user/"): one.change for one in child.diff()}
            assert found == {
                "binary": "modified", "dir/inner/file": "modified", "empty": "added", "gone": "deleted",
                "link": "added", "renamed": "added", "renamed/file name": "added", "text": "modified",
            }  # fmt: skip
            patch = child.files.patch("/home/user")
            assert child.diff(format="git") == child.files.patch("/")
            assert b"--- a/home/user/text" in child.diff(format="git")
            for wrong in ({"format": "svn"}, {"format": "git", "other": parent}):
                with pytest.raises(ramet.InvalidRequest, match="format"):
                    child.diff(**wrong)
            parent.files.remove("/home/user/.python", recursive=True) if parent.files.exists(
                ".python"
            ) else None
            parent.files.download("/home/user", tmp_path / "tree")
            subprocess.run(["git", "init", "-q", tmp_path / "tree"], check=True)
            applied = subprocess.run(
                ["git", "-C", tmp_path / "tree", "apply", "-"], input=patch, check=False, capture_output=True
            )
            assert applied.returncode == 0, applied.stderr
            child.files.download("/home/user", tmp_path / "child")
        ours, theirs = (content_of(tmp_path / name) for name in ("tree", "child"))
        assert ours == theirs


def content_of(tree):
    """Links, and files with their content and whether they are executable."""
    return {
        str(path.relative_to(tree)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes(), os.access(path, os.X_OK))
        for path in tree.rglob("*")
        if not {".git", ".python"} & set(path.relative_to(tree).parts)
        and (path.is_symlink() or path.is_file())
    }


def test_a_directory_that_replaced_another_hides_what_was_in_it():
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("/home/user/d/old", "x")
        with parent.fork() as child:
            child.commands.run("rm -r d; mkdir d; echo y > d/new", cwd="/home/user", check=True)
            found = {one.path.removeprefix("/home/user/"): one.change for one in child.diff()}
    assert found == {"d/new": "added", "d/old": "deleted"}


def test_what_comes_with_a_directory_is_told_however_soon_and_once(sandbox, files, place):
    """The watch of a new directory is always later than that; what stands there by then has no event."""
    with pytest.raises(ramet.InvalidRequest, match="NUL"):
        files.watch("a\0b")
    tree = ["a", "a/b", "a/b/c", "a/b/c/file", "last"]
    created, ready = [], threading.Event()

    def listen():
        with ramet.Client() as client:
            theirs = ramet.Files(ramet.Commands(sandbox.id, client=client))
            for event in theirs.watch(place, timeout=PATIENCE_S):
                ready.set()
                if event.kind == "created" and not event.path.endswith("/knock"):
                    created.append(event.path.removeprefix(f"{place}/"))
                if event.path.endswith("/last"):
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    while not ready.wait(0.01):
        files.write(f"{place}/knock", "x")
    sandbox.commands.run("mkdir -p a/b/c; echo x >a/b/c/file", cwd=place, check=True)
    while "a/b/c/file" not in created and listener.is_alive():
        files.stat(place)  # each look takes its time
    sandbox.commands.run("rm a/b/c/file; echo y >a/b/c/file; echo >last", cwd=place, check=True)
    listener.join()
    assert created == [*tree[:4], "a/b/c/file", "last"]


def test_what_happens_below_a_directory_is_heard(sandbox, files, place):
    heard, ready = [], threading.Event()

    def listen():
        with ramet.Client() as client:
            theirs = ramet.Files(ramet.Commands(sandbox.id, client=client))
            watching = theirs.watch(place, timeout=PATIENCE_S)
            for event in watching:
                heard.append((event.kind, event.path[len(place) :]))
                ready.set()
                if event.path.endswith("/last") and event.kind == "closed":
                    break
            watching.close()

    listener = threading.Thread(target=listen)
    listener.start()
    while not ready.wait(0.01):  # the first event says that it listens
        files.write(f"{place}/knock", "x")
    files.make_dir(f"{place}/below")
    while ("created", "/below") not in heard:
        ready.wait(0.01)
    files.write(f"{place}/below/file", "x")
    files.rename(f"{place}/below/file", f"{place}/below/other")
    files.remove(f"{place}/below/other")
    files.write(f"{place}/last", "x")
    listener.join(PATIENCE_S)
    assert not listener.is_alive()
    assert {("created", "/below"), ("moved_from", "/below/file")} < set(heard)
    assert {("moved_to", "/below/other"), ("deleted", "/below/other")} < set(heard)


@pytest.fixture
def watched(sandbox, place):
    """What happens in a place from now on, for a reader that may take its time."""
    sandbox.commands.run("mkdir -p a/deep b/deep", cwd=place, check=True)
    events = sandbox.files.watch(place, timeout=PATIENCE_S)
    begun = threading.Event()

    def knock():
        with ramet.Client() as client:
            theirs = ramet.Files(ramet.Commands(sandbox.id, client=client))
            while not begun.wait(0.01):
                theirs.write(f"{place}/knock", "x")

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        next(events)
    finally:
        begun.set()
        knocking.join()
    yield events
    events.close()


def heard(events, path):
    """Every event up to the one that says that a file there was written."""
    found = []
    for event in events:
        found.append((event.kind, event.path))
        if found[-1] == ("closed", path):
            return found
    raise AssertionError(found)


def test_a_storm_of_renames_leaves_names_as_they_are_at_its_end(sandbox, place, watched):
    storm = "mv a c; mv b a; mv c b; mkdir b/deep/n; mv b/deep b/n; mv b/n a/deep/m"
    storm += "; mv a/deep/m b/deep; rm -r b/deep/n"
    line = f"for i in $(seq 30); do {storm}; done; echo x >a/deep/one; echo x >b/deep/two; echo x >b/last"
    sandbox.commands.run(line, cwd=place, check=True)
    found = heard(watched, f"{place}/b/last")
    assert {("closed", f"{place}/a/deep/one"), ("closed", f"{place}/b/deep/two")} <= set(found)


def test_a_reader_that_is_too_slow_is_told_so_and_hears_what_comes_after(sandbox, place, watched):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    many = f"import os\nfor n in range({most}): os.close(os.open('f', 65)); os.unlink('f')"
    sandbox.commands.run(["python3", "-c", many], cwd=place, check=True)
    sandbox.commands.run("mkdir -p new/deep", cwd=place, check=True)
    while (event := next(watched)).kind != "overflow":
        assert event.path.startswith(f"{place}/")
    sandbox.files.write(f"{place}/new/deep/file", "x")
    assert ("created", f"{place}/new/deep/file") in heard(watched, f"{place}/new/deep/file")


WITHOUT_LOADING = """
import resource, sys, ramet
size, files = 1 << 30, ramet.Files(ramet.Commands(sys.argv[1]))
at = sys.argv[2]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
files.write(f"{at}/small", "x")
list(files.download_tar(f"{at}/small"))
before = peak()
assert files.write(f"{at}/written", (bytes(1 << 20) for _ in range(200))).size == 200 << 20
assert sum(len(piece) for piece in files.stream(f"{at}/large")) == size
assert sum(len(piece) for piece in files.download_tar(f"{at}/large")) > size
files.upload_tar(files.download_tar(f"{at}/written"), f"{at}/again")
print(peak() - before)
"""


def test_files_of_any_length_pass_without_being_loaded(sandbox, files, place):
    sandbox.commands.run(f"truncate -s 1G {place}/large", check=True)
    words = [sys.executable, "-c", WITHOUT_LOADING, sandbox.id, place]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24  # MiB
    files.remove(place, recursive=True)


def test_the_end_of_the_sandbox_ends_calls_with_its_cause():
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        made.files.write("x", "y")
        with made.files.open("x") as file:
            made.kill()
            with pytest.raises(ramet.SandboxEnded) as caught:
                made.files.read("x")
            assert file.read() == b"y"
    assert caught.value.reason == "killed"


def test_a_fork_after_file_calls_holds_the_files_and_no_server(sandbox, files):
    files.write("/tmp/carried", "along")
    with sandbox.fork() as child:
        assert child.files.read("/tmp/carried") == "along"
        child.files.write("/tmp/carried", "changed")
        assert files.read("/tmp/carried") == "along"


def test_forks_and_snapshots_have_the_holes_of_files_and_use_no_more():
    place = "/tmp/holes"
    make = "import os\nfor n in range(40): os.pwrite(f, b'x' * 4096, n << 24)\nos.ftruncate(f, 1 << 30)"
    script = f"import os; f = os.open('{place}', os.O_CREAT | os.O_RDWR)\n{make}"
    with ramet.Sandbox(command=["sleep", "10000"], limits={"disk": "64M"}) as parent:
        parent.commands.run(["python3", "-c", script], check=True)
        used = parent.commands.run(f"du -k {place}").stdout.split()[0]
        point = parent.snapshot("holes")
        try:
            with parent.fork() as child, ramet.Sandbox(point) as later, child.fork() as grandchild:
                for one in (child, later, grandchild):
                    assert one.files.stat(place).size == 1 << 30
                    assert one.commands.run(f"tail -c +{(39 << 24) + 1} {place} | head -c 2").stdout == "xx"
                    assert one.commands.run(f"du -k {place}").stdout.split()[0] == used
        finally:
            ramet.snapshots.remove(point)


@pytest.mark.anyio
async def test_many_calls_at_once_and_cancelled_ones_leave_nothing():
    async with ramet.AsyncSandbox(command=["sleep", "10000"]) as made, anyio.create_task_group() as group:

        async def one(number):
            await made.files.write(f"/tmp/f{number}", f"{number}")
            assert await made.files.read(f"/tmp/f{number}") == f"{number}"

        for number in range(20):
            group.start_soon(one, number)
        with anyio.move_on_after(0.05):
            while True:
                await made.files.write("/tmp/again", b"x" * 300000)


@pytest.fixture
def project(tmp_path):
    """A directory of the host."""
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/src/main.py").write_text("print('hello')\n")
    return tmp_path / "project"


def test_a_workspace_is_there_before_the_command_begins_and_never_the_hosts_own(project, tmp_path):
    with ramet.Sandbox(command="cat src/main.py; read x", workspace=project) as made:
        assert made.stdout.readline(PATIENCE_S) == b"print('hello')\n"
        result = made.commands.run("python3 src/main.py; echo 'x = 1' > src/main.py; pwd")
        assert result.stdout == "hello\n/workspace\n"
        assert (project / "src/main.py").read_text() == "print('hello')\n"
        assert made.export(tmp_path / "out") == 1
        with made.fork() as child:
            assert child.commands.run("cat src/main.py").stdout == "x = 1\n"
    assert (tmp_path / "out/src/main.py").read_text() == "x = 1\n"


def test_a_kernel_has_a_workspace_and_a_missing_one_is_refused(project):
    with ramet.Sandbox(kernel="bash", workspace=project) as made:
        assert made.run_code("cat src/main.py").stdout == "print('hello')\n"
    with pytest.raises(ramet.InvalidRequest) as caught:
        ramet.Sandbox(command="true", workspace=project / "nothing")
    assert caught.value.field == "workspace"


def test_the_winners_files_are_taken_back():
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("kept", "parent's")
        parent.files.write("gone", "x")
        parent.files.write("turned/file", "x")
        with parent.fork() as winner:
            winner.files.write("new/deep", "won")
            winner.files.set("new/deep", mode=0o755)
            winner.files.remove("gone")
            winner.files.remove("turned", recursive=True)
            winner.files.write("turned", "a file now")
            winner.files.symlink("link", "kept")
            done = {one.path.removeprefix("/home/user/"): one.change for one in winner.commit_to(parent)}
        assert done == {
            "gone": "deleted", "link": "added", "new": "added", "new/deep": "added", "turned": "modified",
        }  # fmt: skip
        listed = parent.commands.run("cat new/deep turned link; test -x new/deep; ls", check=True).stdout
        assert listed == "wona file nowparent'skept\nlink\nnew\nturned\n"


def test_what_both_have_changed_is_refused_by_name_overwritten_or_kept():
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        for name in ("both", "alike", "gone/kept", "moved/file", "mine"):
            parent.files.write(name, "x")
        with parent.fork() as child:
            child.commands.run("echo child > both; echo same > alike; rm -r gone; echo y > mine")
            child.files.write("moved/new", "y")
            parent.commands.run("echo parent > both; echo same > alike; echo z > gone/put; rm -r moved")
            for attempt in ("refuse", "keep", "overwrite"):
                before = parent.files.read("both")
                if attempt == "refuse":
                    with pytest.raises(ramet.CommitConflict) as caught:
                        child.commit_to(parent)
                    names = [path.removeprefix("/home/user/") for path in caught.value.paths]
                    assert names == ["both", "gone/put", "moved/new"]
                    assert parent.files.read("mine") == "x"
                    continue
                child.commit_to(parent, on_conflict=attempt)
                assert parent.files.read("mine") == "y\n"
                kept = attempt == "keep"
                assert parent.files.read("both") == (before if kept else "child\n")
                assert parent.files.exists("gone/put") == kept
                assert parent.files.exists("moved/new") != kept
            with pytest.raises(ramet.InvalidRequest) as wrong:
                child.commit_to(parent, on_conflict="ask")
            assert wrong.value.field == "on_conflict"


def test_what_is_of_another_kind_is_in_the_way_of_a_commit_and_no_link_is_followed():
    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("both", "x")
        parent.files.write("important", "parent's")
        with parent.fork() as child:
            child.files.write("both", "child's")
            child.files.write("out/file", "child's")
            parent.commands.run("rm both; ln -s important both; echo z > out", check=True)
            child.commit_to(parent, on_conflict="keep")
            assert parent.commands.run("readlink both; cat out").stdout == "important\nz\n"
            child.commit_to(parent, on_conflict="overwrite")
        assert parent.files.read("important") == "parent's"
        assert parent.files.stat("both", follow=False).kind == "file"
        assert (parent.files.read("both"), parent.files.read("out/file")) == ("child's", "child's")


def test_a_file_that_cannot_be_taken_away_is_not_told_as_deleted(monkeypatch):
    def refuse(path, *, recursive):
        raise FileError("busy", f"{path}: Device or resource busy", path=path, errno=errno.EBUSY)

    with ramet.Sandbox(command=["sleep", "10000"]) as parent:
        parent.files.write("kept", "x")
        with parent.fork() as winner:
            winner.files.remove("kept")
            monkeypatch.setattr(parent.files, "remove", refuse)
            with pytest.raises(FileError) as caught:
                winner.commit_to(parent)
            assert (caught.value.code, caught.value.path) == ("busy", "/home/user/kept")
            monkeypatch.undo()
            parent.files.remove("kept")
            assert [one.change for one in winner.commit_to(parent)] == ["deleted"]
