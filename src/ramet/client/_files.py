"""What both clients know of files in sandboxes, without any waiting: frames, events, patches."""

from __future__ import annotations

import base64
import contextlib
import difflib
import errno
import io
import os
import socket
import stat
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ramet._descriptors import close_all
from ramet.client._exchange import Peer
from ramet.errors import DaemonLost, FileError, RametError
from ramet.models.differences import Process
from ramet.models.files import FileEvent, FileInfo, kind_of
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.faults import error_of
from ramet.native.frames import FrameError, text, u32, u64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# struct ramet_file_info of core/include/ramet/protocol.h
_INFO = struct.Struct("<4Q8I")
# struct ramet_process_info
_PROCESS = struct.Struct("<7I")
_MORE = u32(p.TAG_MORE, 1)
_CODES = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.ENOTDIR: "not_a_directory",
    errno.EISDIR: "is_a_directory",
    errno.ENODEV: "not_regular",
    errno.ENOTEMPTY: "not_empty",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EACCES: "not_permitted",
    errno.EPERM: "not_permitted",
    errno.EROFS: "read_only",
    errno.ELOOP: "loop",
    errno.ENAMETOOLONG: "too_long",
    errno.EBUSY: "in_use",
}
_NO_SPACE = "the limit disk of the sandbox is used up"
_RECURSIVE = "recursive=True takes directories with all that is in them"


class Raw(NamedTuple):
    """A file as the server tells it: its name below what was asked for, and the marks of a writable layer."""

    name: str
    info: FileInfo
    mode: int
    device: int
    opaque: bool

    @property
    def whiteout(self) -> bool:
        """Whether it stands in a writable layer for a file that was deleted."""
        return stat.S_ISCHR(self.mode) and self.device == 0


def raw_of(value: bytes, base: str) -> Raw:
    """One FILE_INFO, of a file in `base`. Raises FrameError."""
    if len(value) < _INFO.size:
        raise FrameError("a file's description is cut off")
    size, inode, mtime_ns, _, mode, uid, gid, links, device, opaque, name_size, target_size = (
        _INFO.unpack_from(value)
    )
    at = _INFO.size
    name = os.fsdecode(value[at : at + name_size])
    target = os.fsdecode(value[at + name_size : at + name_size + target_size]) if stat.S_ISLNK(mode) else None
    path = f"{base.rstrip('/')}/{name}" if name else base
    info = FileInfo(path, kind_of(mode), size, mode & 0o7777, uid, gid, mtime_ns / 1e9, inode, links, target)
    return Raw(name, info, mode, device, bool(opaque))


def processes_of(answers: list[frames.Frame]) -> tuple[Process, ...]:
    """The processes that the answers tell of, by number. Raises DaemonLost."""
    found = {}
    try:
        for frame in answers:
            for tag, value in frames.decode(frame.payload):
                if tag == p.TAG_PROCESS_INFO:
                    # One that got another parent meanwhile is told twice.
                    one = _process_of(value)
                    found[one.pid] = one
    except FrameError as error:
        raise DaemonLost("core_lost", f"a file server sent nonsense: {error}") from None
    return tuple([found[pid] for pid in sorted(found)])


def _process_of(value: bytes) -> Process:
    if len(value) < _PROCESS.size:
        raise FrameError("a process's description is cut off")
    pid, parent, uid, threads, state, name_size, command_size = _PROCESS.unpack_from(value)
    name, command = value[_PROCESS.size :][:name_size], value[_PROCESS.size + name_size :][:command_size]
    words = command.removesuffix(b"\0").split(b"\0") if command else []
    return Process(
        pid, parent, os.fsdecode(name), tuple([os.fsdecode(word) for word in words]), uid, threads, chr(state)
    )


class FileLink(Peer):
    """A conversation with a sandbox's file server."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._request = 0
        self._buffer = bytearray(p.FRAME_BYTES)

    def send(self, kind: int, payload: bytes) -> None:
        """Send a request. Raises Stale, RametError."""
        self.busy = True
        self._request += 1
        self._sending(lambda: frames.send(self.sock, kind, self._request, payload, []))

    def receive(self) -> frames.Frame | None:
        """The next part of the answer, None if it is not here yet. Raises EOFError when nobody answers."""
        try:
            frame = frames.receive(self.sock, self._buffer)
        except BlockingIOError:
            return None
        except ConnectionError:
            raise EOFError from None
        except FrameError as error:
            raise DaemonLost("core_lost", f"a file server sent nonsense: {error}") from None
        if frame is None:
            raise EOFError
        more = frame.kind == p.OK and frame.payload.endswith(_MORE)
        self.busy = more
        return frame


class Ask(NamedTuple):
    """A request to the file server, and what it is about."""

    kind: int
    path: str
    flags: int = 0
    other: str | None = None
    mode: int | None = None
    owner: tuple[int, int] | None = None
    mtime_ns: int | None = None
    depth: int = 0
    tree: int = p.TREE_SANDBOX

    def payload(self) -> bytes:
        """Its attributes."""
        parts = [text(p.TAG_PATH, self.path), u32(p.TAG_FLAGS, self.flags), u32(p.TAG_TREE, self.tree)]
        if self.other is not None:
            parts.append(text(p.TAG_OTHER, self.other))
        if self.mode is not None:
            parts.append(u32(p.TAG_MODE, self.mode))
        if self.owner is not None:
            parts += [u32(p.TAG_UID, self.owner[0]), u32(p.TAG_GID, self.owner[1])]
        if self.mtime_ns is not None:
            parts.append(u64(p.TAG_MTIME_NS, self.mtime_ns))
        if self.depth:
            parts.append(u32(p.TAG_DEPTH, self.depth))
        return b"".join(parts)

    def infos(self, answers: list[frames.Frame]) -> list[Raw]:
        """The files that the answers tell of. Raises DaemonLost."""
        try:
            return [
                raw_of(value, self.path)
                for frame in answers
                for tag, value in frames.decode(frame.payload)
                if tag == p.TAG_FILE_INFO
            ]
        except FrameError as error:
            raise DaemonLost("core_lost", f"a file server sent nonsense: {error}") from None

    def refusal(self, frame: frames.Frame) -> RametError:
        """The error for an answer that is one."""
        close_all(frame.fds)
        error = error_of(frame)
        if error.code != "file_error":
            return error
        found = file_error(self.path, error.errno or 0, error.message)
        if self.kind in {p.FILE_COPY, p.FILE_REMOVE} and found.code in {"is_a_directory", "not_empty"}:
            found.hint = _RECURSIVE
        return found


def file_error(path: str, number: int, message: str) -> FileError:
    """The error for `path` that the kernel answered with `number`."""
    code = _CODES.get(number, "file_error")
    return FileError(
        code, f"{path}: {message}", path=path, errno=number, hint=_NO_SPACE if code == "no_space" else None
    )


# --- watching ---------------------------------------------------------------------------------------------

_EVENT = struct.Struct("iIII")
_EVENT_KINDS = (
    (0x100, "created"), (0x2, "modified"), (0x200, "deleted"), (0x40, "moved_from"), (0x80, "moved_to"),
    (0x4, "attributes"), (0x8, "closed"),
)  # fmt: skip
IN_ISDIR, IN_OVERFLOW, IN_IGNORED, IN_DELETE_SELF = 0x40000000, 0x4000, 0x8000, 0x400


def events_of(data: bytes, places: dict[int, str]) -> Iterator[FileEvent]:
    """The events in what was read of an inotify descriptor; `places` are the watched directories."""
    at = 0
    while at + _EVENT.size <= len(data):
        number, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length
        if mask & IN_OVERFLOW:
            yield FileEvent("overflow", "/")
            continue
        base = places.get(number)
        if mask & IN_IGNORED:
            places.pop(number, None)
            continue
        if base is None or not name:
            continue
        for bit, kind in _EVENT_KINDS:
            if mask & bit:
                yield FileEvent(kind, f"{base.rstrip('/')}/{name}", bool(mask & IN_ISDIR))  # type: ignore[arg-type]


# --- patches ----------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """A file before or after: its mode as git knows it, and its content."""

    mode: str
    content: bytes


def git_mode(info: FileInfo) -> str:
    """A file's mode as git writes it."""
    if info.kind == "link":
        return "120000"
    return "100755" if info.mode & 0o111 else "100644"


def git_patch(path: str, before: Side | None, after: Side | None, hashed: Callable[[bytes], str]) -> bytes:
    """The part of a patch about one file, which ``git apply`` takes."""
    lines = [f"diff --git {_quoted('a/' + path)} {_quoted('b/' + path)}"]
    if before is None and after is not None:
        lines.append(f"new file mode {after.mode}")
    elif after is None and before is not None:
        lines.append(f"deleted file mode {before.mode}")
    elif before is not None and after is not None and before.mode != after.mode:
        lines += [f"old mode {before.mode}", f"new mode {after.mode}"]
    old, new = before.content if before else b"", after.content if after else b""
    head = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"
    if old == new and before is not None and after is not None:
        return head
    zero = "0" * 40
    index = f"index {hashed(old) if before else zero}..{hashed(new) if after else zero}"
    if before is not None and after is not None and before.mode == after.mode:
        index += f" {after.mode}"
    head += index.encode() + b"\n"
    if old == new:  # an empty file
        return head
    if b"\0" in old or b"\0" in new:
        return head + b"GIT binary patch\n" + _binary(new) + _binary(old)
    old_name = "/dev/null" if before is None else _quoted("a/" + path)
    new_name = "/dev/null" if after is None else _quoted("b/" + path)
    head += f"--- {old_name}\n+++ {new_name}\n".encode("utf-8", "surrogateescape")
    return head + _unified(old, new)


def _quoted(path: str) -> str:
    raw = path.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return path
    escapes = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\", ord("\r"): "\\r"}
    parts = [escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in raw]
    return '"' + "".join(parts) + '"'


def _unified(old: bytes, new: bytes) -> bytes:
    # Latin-1 carries every byte through difflib, which compares text.
    before, after = ([line + "\n" for line in data.decode("latin-1").split("\n")] for data in (old, new))
    for lines in (before, after):
        last = lines.pop()
        if last != "\n":
            lines.append(last[:-1])
    lines = list(difflib.unified_diff(before, after, n=3))[2:]
    end = "\n\\ No newline at end of file\n"
    return "".join([line if line.endswith("\n") else line + end for line in lines]).encode("latin-1")


def _binary(content: bytes) -> bytes:
    packed = zlib.compress(content)
    lines = [b"literal %d" % len(content)]
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        size = len(piece)
        letter = chr(ord("A") + size - 1) if size <= 26 else chr(ord("a") + size - 27)
        lines.append(letter.encode() + base64.b85encode(piece + bytes(-size % 4)))
    return b"\n".join(lines) + b"\n\n"


@contextlib.contextmanager
def unless_gone() -> Iterator[None]:
    """What is not there, or has become something else, needs nothing more. Any other FileError is raised."""
    try:
        yield
    except FileError as error:
        if error.code not in {"not_found", "not_a_directory", "loop"}:
            raise


# --- files that are open ----------------------------------------------------------------------------------


def file_of(descriptor: int, mode: str, *, append: bool = False) -> io.RawIOBase:
    """The file that was opened: itself, or a socket to whoever has it. Takes the descriptor."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.set_blocking(descriptor, True)
            return io.FileIO(descriptor, mode)
        from ramet.tunnel.content import RemoteFile

        return RemoteFile(socket.socket(fileno=descriptor), mode, append=append)
    except BaseException:
        os.close(descriptor)
        raise


def status_of(file: io.RawIOBase) -> tuple[int, float]:
    """The size of an open file, and when it was changed. Blocks."""
    if isinstance(file, io.FileIO):
        found = os.fstat(file.fileno())
        return found.st_size, found.st_mtime
    from ramet.tunnel.content import RemoteFile

    assert isinstance(file, RemoteFile)  # noqa: S101  there are two kinds
    return file.status()
