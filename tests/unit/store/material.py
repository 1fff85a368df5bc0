"""What snapshots in tests are made of: memory files and trees; and a look that leaves nothing out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramet.store import Base, Exported, IdMap, ParentRef, SnapshotInfo, Store

PAGE = 4096
BASE = Base("identity", b"a recipe")
NOBODY = 65534


def memory(data: bytes, holes: Sequence[int] = ()) -> int:
    """A memory file with `data`; pages whose numbers are in `holes` are not written."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, len(data))
    for page in range(-(-len(data) // PAGE)):
        if page not in holes:
            os.pwrite(fd, data[page * PAGE : (page + 1) * PAGE], page * PAGE)
    return fd


def content(fd: int) -> bytes:
    """All of a file."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def page(number: int) -> bytes:
    """A page of its own; number 0 is the page of zeros."""
    return bytes(PAGE) if number == 0 else hashlib.shake_128(str(number).encode()).digest(64) * 64


def pages(*numbers: int) -> bytes:
    """Pages by number."""
    return b"".join([page(number) for number in numbers])


@contextmanager
def exported(
    pages: bytes = b"", description: bytes = b"description", uppers: Sequence[Path] = ()
) -> Iterator[Exported]:
    """As core would export it."""
    fds = [memory(description), memory(pages)]
    dirs = [os.open(upper, os.O_RDONLY | os.O_DIRECTORY) for upper in uppers]
    try:
        yield Exported(fds[0], fds[1], dirs)
    finally:
        for fd in fds + dirs:
            os.close(fd)


def save(
    store: Store,
    name: str,
    pages: bytes = b"",
    *,
    parent: SnapshotInfo | ParentRef | None = None,
    uppers: Sequence[Path] = (),
    description: bytes = b"description",
    **more: Any,
) -> SnapshotInfo:
    """Save a snapshot."""
    ref = parent.ref if isinstance(parent, SnapshotInfo) else parent
    more.setdefault("base", BASE)
    with exported(pages, description, uppers) as given:
        return store.save(name, given, filter_hash="filter", parent=ref, **more)


def loaded_pages(store: Store, name: str) -> bytes:
    """The page file of a snapshot."""
    with store.load(name) as loaded:
        return content(loaded.pages)


def look(top: Path | str, ids: IdMap | None = None) -> dict[str, tuple[Any, ...]]:
    """Everything that can be told of a tree from outside, by path. Links of one file have one number."""
    found: dict[str, tuple[Any, ...]] = {}
    groups: dict[int, int] = {}

    def visit(path: str, name: str) -> None:
        status = os.lstat(path)
        group = groups.setdefault(status.st_ino, len(groups))
        kind, holes = content_of(path, status)
        attributes = {}
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            attributes = {key: os.getxattr(path, key) for key in sorted(os.listxattr(path))}
        owner = (ids or IdMap.identity()).inside(status.st_uid, status.st_gid)
        found[name] = (
            stat.filemode(status.st_mode),
            owner,
            status.st_rdev,
            status.st_mtime_ns,
            kind,
            holes,
            tuple(sorted(attributes.items())),
            None if stat.S_ISDIR(status.st_mode) or is_whiteout(status) else (group, status.st_nlink),
        )
        if stat.S_ISDIR(status.st_mode):
            for below in sorted(os.listdir(path)):
                visit(f"{path}/{below}", f"{name}/{below}")

    visit(os.fspath(top), "")
    return found


def is_whiteout(status: os.stat_result) -> bool:
    """Whether it hides what a lower layer has."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def content_of(path: str, status: os.stat_result) -> tuple[Any, Any]:
    """What a file holds, and how many blocks of it are none."""
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path), None
    if not stat.S_ISREG(status.st_mode):
        return None, None
    fd = os.open(path, os.O_RDONLY)
    try:
        runs = []
        at = 0
        while at < status.st_size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(fd, start, os.SEEK_HOLE)
            runs.append((start, hashlib.sha256(os.pread(fd, at - start, start)).hexdigest()))
        return (status.st_size, tuple(runs)), None
    finally:
        os.close(fd)


def plant(top: Path) -> Path:
    """A writable layer with one of everything that such a layer can hold."""
    upper = top / "upper"
    (upper / "home/user").mkdir(parents=True)
    (top / "shm").mkdir(mode=0o777)
    (upper / "home/user/notes.txt").write_text("hello\n")
    os.link(upper / "home/user/notes.txt", upper / "again")
    (upper / "link").symlink_to("/nowhere/at all")
    os.link(upper / "link", upper / "link too", follow_symlinks=False)
    os.mkfifo(upper / "fifo", 0o620)
    os.mknod(upper / "socket", stat.S_IFSOCK | 0o755)
    for name in ("gone", "gone too"):
        os.mknod(upper / name, stat.S_IFCHR | 0o000, 0)
    (upper / "closed").mkdir()
    (upper / "closed/secret").write_bytes(b"\0\1\2")
    os.setxattr(upper / "home", "user.overlay.opaque", b"y")
    os.setxattr(upper / "again", "user.note", b"\0\xff")
    sparse = os.open(upper / "sparse", os.O_CREAT | os.O_WRONLY, 0o640)
    os.ftruncate(sparse, 1 << 32)
    os.pwrite(sparse, b"x" * 10000, 1 << 31)
    os.close(sparse)
    (upper / "empty").touch()
    (upper / os.fsdecode(b"\xff\xfe")).write_text("a name that is no text")
    os.utime(upper / "again", ns=(1_111_111_111_222_333_444, 987_654_321_123_456_789))
    os.utime(upper / "link", ns=(1, 2), follow_symlinks=False)
    os.chmod(upper / "closed/secret", 0)
    os.chmod(upper / "closed", 0)
    os.utime(upper, ns=(5, 1_000_000_007))
    return top


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file; the same again changes it back."""
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, position)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), position)


def image_of(store: Store, name: str) -> Path:
    """The file of a snapshot."""
    return Path(store.root) / "snapshots" / name / "image"


def left_in(store: Store) -> list[str]:
    """What lies in the directory of work in progress."""
    return os.listdir(Path(store.root) / "tmp")
