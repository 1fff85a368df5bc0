"""`files.download_tar` and `files.upload_tar`: files as tar streams, whatever is in them or done to them."""

import gzip
import io
import os
import subprocess
import tarfile

import pytest

import ramet
from ramet.errors import InvalidRequest
from system.sandbox._repl import PATIENCE_S

TREE = """
mkdir -p d/e/empty; echo one >d/e/file; ln d/e/file d/other; ln -s other d/link; mkfifo d/fifo
chmod 750 d/e; head -c 3000000 /dev/urandom >d/big; chmod 755 d/big; touch -d @1000 d/e/file
mkdir -p d/$(printf '%0150d' 0); echo x >"d/na
me"; touch -d @2000 d/e
"""


@pytest.fixture(scope="module")
def sandbox():
    with ramet.Sandbox(command=["sleep", "10000"]) as made:
        made.commands.run(TREE, check=True)
        yield made


@pytest.fixture(scope="module")
def whole(sandbox):
    """The tree as one stream."""
    return b"".join(sandbox.files.download_tar("d"))


def listing(sandbox, directory):
    line = (
        "find . ! -type p ! -path . -printf '%p %y %m %l %Ts\\n' | sort;"
        " find . -type f -print0 | sort -z | xargs -0 md5sum"
    )
    return sandbox.commands.run(line, cwd=f"/home/user/{directory}", check=True).stdout


def test_a_stream_is_what_tar_takes(whole, tmp_path):
    subprocess.run(["tar", "-x", "-C", tmp_path], input=whole, check=True)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"e", "e/empty", "e/file", "other", "link", "big", "0" * 150, "na\nme"}
    assert (tmp_path / "e/file").stat().st_mtime == 1000
    assert (tmp_path / "e").stat().st_mode & 0o777 == 0o750
    assert os.readlink(tmp_path / "link") == "other"


@pytest.mark.parametrize(
    "form",
    [
        lambda data: data,
        lambda data: gzip.compress(data, 1),
        io.BytesIO,
        lambda data: (data[at : at + 7777] for at in range(0, len(data), 7777)),
    ],
    ids=["bytes", "compressed", "file", "pieces"],
)
def test_what_comes_out_goes_in_again_with_permissions_and_times(sandbox, whole, form):
    count = sandbox.files.upload_tar(form(whole), "in/deep")
    assert count == 5
    inside, before = (listing(sandbox, name).splitlines() for name in ("in/deep", "d"))
    # A link's own time is not set.
    own_time = [line.rpartition(" ")[0] if " l " in line else line for line in inside]
    assert own_time == [line.rpartition(" ")[0] if " l " in line else line for line in before]
    sandbox.files.remove("in", recursive=True)


def test_one_file_is_a_stream_of_one(sandbox):
    data = b"".join(sandbox.files.download_tar("d/e/file"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (member,) = archive.getmembers()
        assert (member.name, archive.extractfile(member).read()) == ("file", b"one\n")


def of(*members):
    """A stream with these members: name, type, and content or what a link says."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, kind, said in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(said)
                archive.addfile(info, io.BytesIO(said))
            else:
                info.linkname = said
                archive.addfile(info)
    return held.getvalue()


def test_hard_links_are_links_and_what_stands_there_is_written_over(sandbox):
    files = sandbox.files
    files.write("over/old", "kept by nobody")
    files.write("elsewhere", "not touched")
    files.symlink("over/led", "/home/user/elsewhere")
    stream = of(
        ("old", tarfile.REGTYPE, b"new"),
        ("led", tarfile.REGTYPE, b"a file"),
        ("/./again", tarfile.LNKTYPE, "old"),
        ("old", tarfile.LNKTYPE, "old"),
    )
    assert files.upload_tar(stream, "over") == 4
    assert (files.read("over/old"), files.read("over/led"), files.read("elsewhere")) == (
        "new",
        "a file",
        "not touched",
    )
    assert files.stat("over/again").inode == files.stat("over/old").inode
    files.remove("over", recursive=True)


@pytest.mark.parametrize("at", [0, 100, 512, 1200, -1024, -2000])
def test_a_stream_that_is_cut_off_is_told_wherever_that_is(sandbox, whole, at):
    with pytest.raises(InvalidRequest) as caught:
        sandbox.files.upload_tar(whole[:at] if at else b"", "cut")
    assert (caught.value.field, caught.value.code) == ("data", "not_tar")


@pytest.mark.parametrize(
    "data, code",
    [
        (b"x" * 5000, "not_tar"),
        ("text", "not_tar"),
        (7, "invalid_argument"),
        ([7], "invalid_argument"),
        (of(("../x", tarfile.REGTYPE, b"")), "not_unpackable"),
        (of(("a/../../x", tarfile.DIRTYPE, "")), "not_unpackable"),
        (of(("x", tarfile.LNKTYPE, "../etc/passwd")), "not_unpackable"),
        (of(("x", tarfile.CHRTYPE, "")), "not_unpackable"),
        (of(("x", tarfile.FIFOTYPE, "")), "not_unpackable"),
    ],
)
def test_what_is_no_stream_or_has_what_cannot_be_unpacked_is_refused_by_name(sandbox, data, code):
    with pytest.raises(InvalidRequest) as caught:
        sandbox.files.upload_tar(data, "refused")
    assert (caught.value.field, caught.value.code) == ("data", code)


def test_a_file_that_gets_shorter_is_told_and_one_that_grows_is_as_long_as_it_was(sandbox):
    size = 8 << 20
    for change, told in (("truncate -s 10", True), ("echo more >>", False)):
        sandbox.commands.run(f"mkdir -p live; head -c {size} /dev/zero >live/file", check=True)
        pieces = sandbox.files.download_tar("live")
        first = next(pieces)
        sandbox.commands.run(f"{change} live/file", check=True)
        if told:
            with pytest.raises(ramet.FileError) as caught:
                list(pieces)
            assert (caught.value.code, caught.value.path) == ("changed", "/home/user/live/file")
        else:
            with tarfile.open(fileobj=io.BytesIO(first + b"".join(pieces))) as archive:
                assert [one.size for one in archive.getmembers()] == [size]


def test_a_tree_that_changes_meanwhile_makes_a_whole_stream_of_what_stays(sandbox):
    again = (
        "while :; do echo x >t/f; mkfifo t/g; rm -r t/f t/g; ln -s away t/f; mkdir t/g; rm -r t/f t/g; done"
    )
    with sandbox.commands.start(f"mkdir t; echo kept >t/kept; echo ready; {again} 2>/dev/null") as busy:
        assert busy.stdout.readline(PATIENCE_S) == b"ready\n"
        for _ in range(50):
            data = b"".join(sandbox.files.download_tar("t"))
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                assert "kept" in archive.getnames()
    sandbox.commands.forget()


@pytest.mark.anyio
async def test_streams_pass_from_one_sandbox_to_another():
    async with ramet.AsyncSandbox(command=["sleep", "1000"]) as one:
        await one.files.write("tree/file", "content")
        data = b"".join([piece async for piece in one.files.download_tar("tree")])
        async with ramet.AsyncSandbox(command=["sleep", "1000"]) as other:
            assert await other.files.upload_tar(io.BytesIO(data), "/tmp/new") == 1
            assert await other.files.read("/tmp/new/file") == "content"
