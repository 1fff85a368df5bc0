"""A core made of Python: speaks the protocol over a socket pair, and keeps what it was asked for.

By default it says yes to everything, ends every run at once with exit code 0, and a sandbox that stays when
it is told to. A test changes that by `on`: a function for a kind of frame, which sends what it likes.
"""

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence

from ramet._descriptors import close_all
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.launch import Launched

Handler = Callable[["FakeCore", frames.Frame], None]


def ended(status: int = 0, reason: int = p.REASON_EXIT, *more: bytes) -> bytes:
    """The payload of an ENDED frame."""
    return b"".join(
        (
            frames.u32(p.TAG_STATUS, status),
            frames.u32(p.TAG_REASON, reason),
            frames.u64(p.TAG_USER_NS, 1_000_000),
            frames.u64(p.TAG_SYSTEM_NS, 2_000_000),
            frames.u64(p.TAG_PEAK_BYTES, 3_000_000),
            frames.u64(p.TAG_ELAPSED_NS, 4_000_000),
            frames.u64(p.TAG_SETUP_NS, 500_000),
            frames.u64(p.TAG_DISK_PEAK, 4096),
            *more,
        )
    )


def exited(sandbox: int, status: int = 0) -> bytes:
    """The payload of an EXITED frame of a sandbox's one command."""
    return b"".join(
        (
            frames.u64(p.TAG_SANDBOX, sandbox),
            frames.u32(p.TAG_COMMAND, 1),
            frames.u32(p.TAG_STATUS, status),
            frames.u32(p.TAG_REASON, p.REASON_SIGNAL if os.WIFSIGNALED(status) else p.REASON_EXIT),
            frames.u64(p.TAG_USER_NS, 1_000_000),
            frames.u64(p.TAG_SYSTEM_NS, 2_000_000),
            frames.u64(p.TAG_PEAK_BYTES, 3_000_000),
            frames.u64(p.TAG_DISK_PEAK, 4096),
        )
    )


def snapshot_taken() -> bytes:
    """The payload of the answer to SNAPSHOT."""
    return b"".join(
        (
            frames.u64(p.TAG_PAUSE_NS, 1_500_000),
            frames.u64(p.TAG_MEMORY_BYTES, 5_000_000),
            frames.u64(p.TAG_FILE_BYTES, 7000),
            frames.u32(p.TAG_PROCESS_COUNT, 1),
            frames.u64(p.TAG_CAPTURE_NS, 4_000_000),
            frames.u64(p.TAG_STEM_NS, 2_000_000),
            frames.u32(p.TAG_BY_TWIN, 1),
            frames.text(p.TAG_WAYS, "2 twin - 0 python\n3 copied has_parent 8192 a name\n"),
        )
    )


def refused(code: str, text: str) -> bytes:
    """The payload of an ERROR frame with a code."""
    return frames.text(p.TAG_CODE, code) + frames.text(p.TAG_TEXT, text)


def sandbox_of(frame: frames.Frame) -> int:
    """The number of the sandbox that a request is about."""
    return int.from_bytes(dict(frames.decode(frame.payload))[p.TAG_SANDBOX], "little")


def failed(step: int, number: int, text: str = "no") -> bytes:
    """The payload of an ERROR frame for a step."""
    return b"".join(
        (
            frames.text(p.TAG_CODE, "isolation_failed"),
            frames.u32(p.TAG_STEP, step),
            frames.u32(p.TAG_ERRNO, number),
            frames.text(p.TAG_TEXT, text),
        )
    )


class FakeCore:
    """Serves one control connection, and the lanes that come over it, each in a thread until it is closed.

    An answer goes where the request came from; over a lane the numbers of requests are larger than any of the
    daemon's.
    """

    def __init__(self) -> None:
        self.daemon_end, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._begin(ours)
        self._thread = threading.Thread(target=self._serve, args=(ours,), daemon=True)
        self._thread.start()

    def _begin(self, sock: socket.socket) -> None:
        """Nothing was asked so far; `sock` is the conversation with the daemon."""
        self.sock = sock
        self.seen: list[frames.Frame] = []
        self.on: dict[int, Handler] = {}
        self.standing: set[int] = set()
        self.lanes: dict[int, socket.socket] = {}
        """By the number of the request that is under way there."""
        self.close_unread = False
        """Close the next lane with its first request unread, as a core does that ends."""
        self._lanes: list[socket.socket] = []
        self.arrived = threading.Condition()

    def launched(self) -> Launched:
        """What starting it would have told."""
        return Launched(self.daemon_end, 0, 0xC0DE, "fake", single_uid=True)

    def wait_for(self, kind: int, timeout: float = 5) -> frames.Frame:
        """The first frame of this kind, when it has come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: any(one.kind == kind for one in self.seen), timeout)
            return next(one for one in self.seen if one.kind == kind)

    def kinds(self) -> list[int]:
        """The kinds of all frames so far."""
        return [frame.kind for frame in self.seen]

    def send(self, kind: int, request: int, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Say something to the daemon. `fds` stay the caller's."""
        frames.send(self.lanes.pop(request, self.sock), kind, request, payload, list(fds))

    def close(self) -> None:
        """Die, and be gone."""
        self.die()
        self._thread.join(5)
        self.sock.close()

    def die(self) -> None:
        """End every conversation."""
        for sock in (self.sock, *self._lanes):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def open_lane(self, sock: socket.socket) -> None:
        """Serve a lane. Takes `sock`."""
        self._lanes.append(sock)
        if self.close_unread:
            self.close_unread = False
            threading.Thread(target=self._close_unread, args=(sock,), daemon=True).start()
            return
        threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def close_lanes(self) -> None:
        """Close those without a request."""
        for sock in self._lanes:
            if sock not in self.lanes.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _serve(self, sock: socket.socket) -> None:
        buffer = bytearray(p.FRAME_BYTES)
        while True:
            try:
                frame = frames.receive(sock, buffer)
            except OSError:
                return
            if frame is None:
                if sock is not self.sock:
                    self._lane_gone(sock)
                return
            if sock is not self.sock:
                self.lanes[frame.request] = sock
            # Shown before the answer, so that a test that has the answer finds the question.
            with self.arrived:
                self.seen.append(frame)
                self.arrived.notify_all()
            handler = self.on.get(frame.kind, answer)
            handler(self, frame)
            close_all(frame.fds)

    def _close_unread(self, sock: socket.socket) -> None:
        sock.recv(1, socket.MSG_PEEK)
        self._lanes.remove(sock)
        sock.close()

    def _lane_gone(self, sock: socket.socket) -> None:
        """What ran over it ends, which a test sees as it sees a KILL of the daemon's."""
        gone = [request for request, lane in self.lanes.items() if lane is sock]
        for request in gone:
            del self.lanes[request]
        if gone:
            with self.arrived:
                self.seen.append(frames.Frame(p.KILL, 0, b"", []))
                self.arrived.notify_all()
        self._lanes.remove(sock)
        sock.close()


STATUS = frames.u32(p.TAG_POOL_SIZE, 8) + frames.u64(p.TAG_RUNS, 7) + frames.u64(p.TAG_IDLE_NS, 1 << 62)


def answer(core: FakeCore, frame: frames.Frame) -> None:
    """The default: yes to everything, and an end at once to every run."""
    if frame.kind == p.RUN:
        core.send(p.ENDED, frame.request, ended())
    elif frame.kind == p.LANE:
        core.open_lane(socket.socket(fileno=frame.fds.pop()))
        core.send(p.OK, frame.request)
    elif frame.kind == p.CLOSE_LANES:
        core.close_lanes()
        core.send(p.OK, frame.request, frames.u32(p.TAG_LANES, len(core.lanes)))
    elif frame.kind == p.STATUS:
        core.send(p.OK, frame.request, STATUS)
    elif frame.kind == p.CREATE:
        core.standing.add(sandbox_of(frame))
        core.send(p.OK, frame.request, frames.u64(p.TAG_SETUP_NS, 900_000))
    elif frame.kind == p.SPAWN:
        core.send(p.OK, frame.request, frames.u32(p.TAG_COMMAND, 1) + frames.u32(p.TAG_PID, 2))
    elif frame.kind == p.SNAPSHOT:
        core.send(p.OK, frame.request, snapshot_taken())
    elif frame.kind == p.EXPORT_SNAPSHOT:
        export(core, frame)
    elif frame.kind == p.KILL and (number := sandbox_of(frame)) in core.standing:
        core.standing.remove(number)
        core.send(p.OK, frame.request)
        core.send(p.ENDED, 0, ended(9, p.REASON_KILLED, frames.u64(p.TAG_SANDBOX, number)))
    else:
        core.send(p.OK, frame.request)


def export(core: FakeCore, frame: frames.Frame) -> None:
    """A snapshot without processes: an empty description, no pages, one empty layer."""
    with tempfile.TemporaryDirectory() as layer:
        fds = [os.memfd_create("description"), os.memfd_create("pages"), os.open(layer, os.O_RDONLY)]
        try:
            core.send(p.OK, frame.request, b"", fds)
        finally:
            close_all(fds)


def silence(_core: FakeCore, _frame: frames.Frame) -> None:
    """Say nothing."""
