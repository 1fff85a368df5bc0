"""Whatever a guest makes of its files, they come back as they were."""

import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ramet.store import IdMap
from ramet.store.access import remove_tree
from ramet.store.blocks import Malformed
from ramet.store.packer import Packer
from ramet.store.trees import Records, TreeError
from ramet.store.unpacker import Unpacker
from unit.store.material import look

IDS = IdMap(((0, os.getuid(), 1),), ((0, os.getgid(), 1),))

names = st.one_of(
    st.sampled_from([b"a", b"b", b"upper", b"...", b" ", b"-", b"\xff\xfe", b"x" * 255, "ü".encode()]),
    st.binary(min_size=1, max_size=8).filter(
        lambda name: not set(name) & {0, 0x2F} and name not in {b".", b".."}
    ),
)
# Directories need x, and files r, to be looked at from outside: the unit tests take what is closed.
modes = st.integers(0, 0o1777).map(lambda mode: mode | 0o700)
times = st.one_of(st.integers(0, 2**33 * 10**9), st.sampled_from([0, 1, 999_999_999]))
attributes = st.dictionaries(
    st.sampled_from(["user.overlay.opaque", "user.a"]), st.binary(max_size=40), max_size=2
)
runs = st.lists(st.tuples(st.integers(0, 30), st.binary(min_size=1, max_size=30)), max_size=4)
leaves = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("file"), "runs": runs, "size": st.integers(0, 200_000) | st.just(1 << 35)}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("link"),
            "target": st.binary(min_size=1, max_size=50).map(lambda b: b.replace(b"\0", b"/")),
        }
    ),
    st.sampled_from([{"kind": "fifo"}, {"kind": "socket"}, {"kind": "whiteout"}, {"kind": "again"}]),
)
trees = st.recursive(
    leaves,
    lambda below: st.fixed_dictionaries(
        {"kind": st.just("dir"), "below": st.dictionaries(names, below, max_size=5)}
    ),
    max_leaves=12,
)
tops = st.dictionaries(names, trees, max_size=6)


class Maker:
    """Makes drawn trees."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.made: list[bytes] = []

    def make(self, path: bytes, what: dict) -> None:
        kind = what["kind"]
        if kind == "dir":
            os.mkdir(path)
            for name, below in what["below"].items():
                self.make(path + b"/" + name, below)
        elif kind == "file":
            with open(path, "wb") as file:
                for at, data in what["runs"]:
                    os.pwrite(file.fileno(), data * 3000, at * 70_000)
                os.truncate(path, max(what["size"], file.seek(0, os.SEEK_END)))
        elif kind == "link":
            os.symlink(what["target"], path)
        elif kind == "again" and self.made:
            os.link(self.data.draw(st.sampled_from(self.made)), path, follow_symlinks=False)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        else:
            os.mknod(path, stat.S_IFCHR, 0)
            return
        if kind not in {"dir", "again"}:
            self.made.append(path)
        self.dress(path, kind)

    def dress(self, path: bytes, kind: str) -> None:
        draw = self.data.draw
        if kind in {"dir", "file"}:
            for name, value in draw(attributes).items():
                os.setxattr(path, name, value)
        if kind in {"dir", "file", "fifo", "socket"}:
            os.chmod(path, draw(modes))
        os.utime(path, ns=(draw(times), draw(times)), follow_symlinks=False)


class Memory:
    """A stream in memory."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) != length:
            raise Malformed("it ends too early")
        return data

    def pieces(self, length: int) -> Iterator[memoryview]:
        while length:
            part = self.read(min(length, 10_000))
            length -= len(part)
            yield memoryview(part)

    def at_end(self) -> bool:
        return not self._file.read(1)


def pack(top: Path) -> tuple[bytes, str]:
    stream = bytearray()
    fd = os.open(top, os.O_RDONLY)
    fingerprint = Packer(IDS, stream.extend).pack(fd)
    os.close(fd)
    return bytes(stream), fingerprint


def unpack(stream: bytes, place: Path) -> None:
    fds = []
    for name in ("tree", "links"):
        (place / name).mkdir()
        fds.append(os.open(place / name, os.O_RDONLY))
    try:
        Unpacker(Memory(stream), IDS).unpack(*fds)
    finally:
        for fd in fds:
            os.close(fd)
        remove(place / "links")


def remove(path: Path) -> None:
    above = os.open(path.parent, os.O_RDONLY)
    remove_tree(above, path.name)
    os.close(above)


class Places:
    """A directory that goes with everything in it."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp())
        return self._path

    def __exit__(self, *_: object) -> None:
        remove(self._path)


@given(tops, st.data())
def test_a_tree_comes_back_as_it_was(top, data):
    with Places() as place:
        Maker(data).make(os.fsencode(place / "source"), {"kind": "dir", "below": top})
        before = look(place / "source")
        stream, fingerprint = pack(place / "source")
        Records(Memory(stream)).check()
        unpack(stream, place)
        assert look(place / "tree") == before
        again, same = pack(place / "tree")
        assert same == fingerprint
        assert len(again) == len(stream)


@given(tops, st.data())
def test_a_stream_with_changes_is_refused_or_makes_files_below_its_directory(top, data):
    with Places() as place:
        Maker(data).make(os.fsencode(place / "source"), {"kind": "dir", "below": top})
        stream = bytearray(pack(place / "source")[0])
        remove(place / "source")
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(stream) - 1))
            match data.draw(st.sampled_from(["set", "cut", "repeat"])):
                case "set":
                    stream[at] = data.draw(st.integers(0, 255))
                case "cut":
                    del stream[at : at + data.draw(st.integers(1, 60))]
                case _:
                    stream[at:at] = stream[at : at + data.draw(st.integers(1, 200))]
            if not stream:
                break
        with suppress(Malformed, TreeError):
            unpack(bytes(stream), place)
        assert sorted(os.listdir(place)) == ["tree"]
