"""Commands with logs in standing sandboxes, as core reads and tells them: core/PROTOCOL.md, "Commands"."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.errors import RametError
from ramet.models.commands import CommandInfo
from ramet.models.limits import Limits
from ramet.models.results import Captured, CommandResult, result_of
from ramet.models.runs import RunEnd
from ramet.models.users import ROOT
from ramet.native import _protocol as p
from ramet.native.frames import Attributes, FrameError, decode, raw, text, u32, u64
from ramet.native.runs import end_of, environment_part, explained, reached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ramet.models.commands import CommandRequest, SandboxLane
    from ramet.models.results import Reason

# struct ramet_log and struct ramet_command_info of core/include/ramet/protocol.h
_LOG = struct.Struct("<II QQQ 2Q 2I II 4Q 2Q 2Q II 2Q 8x I4x 3Q")
_INFO = struct.Struct("<8I Q 2Q")
TURN = struct.Struct("<Q")
TURN_PLACE = p.LOG_HEADER - TURN.size
"""Behind the header: core writes nothing there."""
TURN_S = 0.0002


def start_payload(
    lane: SandboxLane, request: CommandRequest, number: int, *, flags: int, env: Mapping[str, str]
) -> bytes:
    """The payload of START."""
    uid, gid = request.user or lane.user
    parts = [
        u64(p.TAG_SANDBOX, lane.number),
        u32(p.TAG_COMMAND, number),
        u32(p.TAG_UID, uid),
        u32(p.TAG_GID, gid),
        u64(p.TAG_LOG_BYTES, lane.output),
        u32(p.TAG_FLAGS, flags),
        raw(p.TAG_RECORD, request.record()),
        text(p.TAG_CWD, request.run.cwd or lane.home),
    ]
    if request.window is not None:
        parts.append(u32(p.TAG_WINDOW, packed_window(request.window)))
    if request.timeout is not None:
        parts.append(u64(p.TAG_WALL_NS, int(request.timeout * 1e9)))
    parts += [text(p.TAG_ARG, word) for word in request.run.argv]
    parts.append(environment_part({**lane.environment, **env, **request.run.env}))
    return b"".join(parts)


def packed_window(window: tuple[int, int]) -> int:
    """Rows and columns as TAG_WINDOW has them."""
    return window[0] << 16 | window[1]


def about(lane: SandboxLane, number: int, *more: bytes) -> bytes:
    """The payload of a request about one command."""
    return b"".join((u64(p.TAG_SANDBOX, lane.number), u32(p.TAG_COMMAND, number), *more))


def explained_start(error: RametError, request: CommandRequest) -> RametError:
    """A step that failed for what the caller asked becomes a refusal of that argument."""
    return explained(error, request.run, request.user or ROOT)


class Header(NamedTuple):
    """The beginning of a log."""

    magic: int
    state: int
    head: int
    ring: int
    tail: int
    out_total: int
    err_total: int
    out_failed: int
    err_failed: int
    reason: int
    status: int
    user_ns: int
    system_ns: int
    peak_bytes: int
    disk_bytes: int
    elapsed_ns: int
    setup_ns: int
    memory_peak: int
    oom_kills: int
    lingering: int
    terminal: int
    out_begin: int
    err_begin: int
    limit: int
    cpu_peak_ns: int
    shm_bytes: int
    wall_ns: int

    @property
    def ended(self) -> bool:
        """True when nothing follows."""
        return self.state == p.COMMAND_ENDED

    def total(self, stream: int) -> int:
        """Bytes written to a stream so far: 0 is standard output, 1 standard error."""
        return self.err_total if stream else self.out_total

    def begin(self, stream: int) -> int:
        """The first position that the log has; above 0 of a command that was forked while it ran."""
        return self.err_begin if stream else self.out_begin


class Log:
    """A command's log, which core writes and everybody else reads. Owns `descriptor`."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def header(self) -> Header:
        """As it is now. Raises FrameError when it is none."""
        header = Header._make(_LOG.unpack(os.pread(self.descriptor, _LOG.size, 0)))
        if header.magic != p.LOG_MAGIC:
            raise FrameError("a log does not begin as one")
        return header

    def read(self, stream: int, at: int, size: int) -> tuple[int, bytes]:
        """Bytes of a stream from position `at` on, at most `size`, and how many had been lost before them."""
        while True:
            turn = self._turn()
            header = self.header()
            start = self.oldest(header, stream, at)
            data = self._bytes(header, stream, start, min(size, header.total(stream) - start))
            # What was overwritten meanwhile is not what it was.
            kept = start < header.head or start >= self.oldest(self.header(), stream, start)
            if kept and turn == self._turn():
                return start - at, data

    def _turn(self) -> bytes:
        """How often a copy of a log was changed, which is odd while it is; nothing of core's own log."""
        while (turn := os.pread(self.descriptor, TURN.size, TURN_PLACE))[:1] and turn[0] & 1:
            time.sleep(TURN_S)
        return turn

    @staticmethod
    def oldest(header: Header, stream: int, at: int) -> int:
        """The first position at or behind `at` that can still be read."""
        at = max(at, header.begin(stream))
        if at < header.head:
            return at
        readable = header.ring if header.ended else header.ring - p.LOG_CHUNK
        return max(at, header.head, header.total(stream) - readable)

    def pieces(
        self, header: Header, stream: int, at: int, size: int, most: int
    ) -> Iterator[tuple[int, bytes]]:
        """What stands there, at most `most` bytes at a time, each with its place in the file."""
        start = p.LOG_HEADER + stream * (header.head + header.ring)
        while size > 0:
            if at < header.head:
                place, room = at, header.head - at
            else:
                inside = (at - header.head) % header.ring
                place, room = header.head + inside, header.ring - inside
            part = os.pread(self.descriptor, min(size, room, most), start + place)
            if not part:
                raise FrameError("a log is shorter than it says")
            yield start + place, part
            at += len(part)
            size -= len(part)

    def _bytes(self, header: Header, stream: int, at: int, size: int) -> bytes:
        return b"".join([part for _, part in self.pieces(header, stream, at, size, size)])

    def captured(self, header: Header, stream: int) -> Captured:
        """A stream of a command that has ended, as far as it is kept."""
        total, begin = header.total(stream), header.begin(stream)
        head_end = max(min(total, header.head), begin)
        kept = self._bytes(header, stream, begin, head_end - begin)
        tail = min(total - head_end, header.tail)
        if tail:
            kept += self._bytes(header, stream, total - tail, tail)
        written = total - begin
        return Captured(kept, written, head_end - begin if written > len(kept) else len(kept))

    def result(self, lane: SandboxLane, encoding: str) -> CommandResult:
        """The end of the command. Raises FrameError, RametError when output could not be kept."""
        header = self.header()
        for failed in (header.out_failed, header.err_failed):
            if failed:
                raise RametError("output_lost", "output could not be kept", errno=failed)
        limits = Limits.of(lane.limits)
        reason, code, signal = outcome(header.reason, header.status)
        end = RunEnd(
            exit_code=code,
            reason=reason,
            signal=signal,
            duration_ms=header.elapsed_ns / 1e6,
            setup_ms=header.setup_ns / 1e6,
            user_ms=header.user_ns / 1e6,
            system_ms=header.system_ns / 1e6,
            peak_rss_bytes=header.peak_bytes,
            disk_bytes=header.disk_bytes,
            single_uid=lane.single_uid,
            lingering=bool(header.lingering),
            memory_peak=header.memory_peak,
            oom_kills=header.oom_kills,
            memory_limit=limits.takeable,
            disk_limit=limits.writable,
            cgroups=lane.cgroups,
            reached=reached(header.limit),
            cpu_peak_ms=header.cpu_peak_ns / 1e6,
            shm_bytes=header.shm_bytes,
            wall=header.wall_ns / 1e9,
        )
        captured = (self.captured(header, stream) for stream in (0, 1))
        return result_of(end, *captured, limits=limits, encoding=encoding)

    def close(self) -> None:
        """Give it up."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def outcome(reason: int, status: int) -> tuple[Reason, int, str | None]:
    """Reason, exit code and signal of a command that core told the end of. Raises FrameError."""
    end = end_of(Attributes({p.TAG_STATUS: _word(status), p.TAG_REASON: _word(reason)}))
    return end.reason, end.exit_code, end.signal


def _word(number: int) -> bytes:
    return number.to_bytes(4, "little")


def command_infos(payload: bytes) -> tuple[CommandInfo, ...]:
    """The answer to COMMANDS, the oldest first. Raises FrameError."""
    found = [_info(value) for tag, value in decode(payload) if tag == p.TAG_COMMAND_INFO]
    return tuple(sorted(found, key=lambda one: one.created))


def _info(value: bytes) -> CommandInfo:
    if len(value) < _INFO.size:
        raise FrameError("a command's description is cut off")
    number, pid, state, reason, status, stdin, window, _, elapsed, out_total, err_total = _INFO.unpack_from(
        value
    )
    ended = state == p.COMMAND_ENDED
    end = outcome(reason, status) if ended else (None, None, None)
    return CommandInfo(
        id=number,
        pid=pid,
        status="ended" if ended else "running",
        stdin=bool(stdin),
        window=(window >> 16, window & 0xFFFF) if window else None,
        duration_ms=elapsed / 1e6,
        stdout_total=out_total,
        stderr_total=err_total,
        reason=end[0],
        exit_code=end[1],
        signal=end[2],
        **recorded(value[_INFO.size :]),
    )


def recorded(record: bytes) -> dict[str, Any]:
    """What the starter noted; another client's of another version may have noted other things."""
    try:
        told = json.loads(record)
        return {
            "command": tuple([str(word) for word in told["command"]]),
            "created": float(told["created"]),
            "cwd": told.get("cwd"),
            "user": (int(told["user"][0]), int(told["user"][1])),
            "timeout": told.get("timeout"),
        }
    except (ValueError, KeyError, TypeError, IndexError):
        return {"command": (), "created": 0.0}
