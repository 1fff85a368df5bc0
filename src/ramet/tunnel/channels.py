"""Channels of a tunnel, and what both ends do with them: docs/internals/tunnel.md.

A local client is given descriptors: of sessions, pipes, lanes, logs. Over a tunnel each of them is a channel:
the end that has the descriptor says what it gives, and the other end makes one that gives the same. So the
client is the same program in both cases. All of this runs on one event loop at each end; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from ramet._descriptors import close_all
from ramet.errors import RametError
from ramet.native import _protocol as p

VERSION = 1
PATH = "/v1/tunnel"
HEAD = struct.Struct("<BI")  # what it is, and the channel's number
MEMBER = struct.Struct("<IB")  # a channel that a packet opens: its number and kind
WINDOW = 1 << 18
"""Bytes of a channel that may be under way."""
FRAME = 1 << 18
"""Most bytes of a frame."""
CHUNK = 1 << 16
PIPE_MAX = 1 << 20
"""What Linux lets anybody's pipe grow to by default (pipe(7), /proc/sys/fs/pipe-max-size)."""


class What(IntEnum):
    """What a frame is."""

    OPEN = 1  # by a client: a conversation with the daemon
    BYTES = 2  # of a stream
    PART = 3  # of a packet that is longer than a frame
    PACKET = 4  # or the last part of one: how many channels it opens, those, and what it says
    END = 5  # no more bytes in this direction
    CLOSE = 6  # the descriptor at the other end was closed
    CREDIT = 7  # so many bytes were taken
    LOG = 8  # bytes of a command's log, and where they stand in it


class Kind(IntEnum):
    """What a channel stands for."""

    DAEMON = 1
    SESSION = 2
    IN = 3  # a pipe that a client writes to
    OUT = 4  # one that a client reads
    KERNEL_PACKETS = 5
    KERNEL_STREAM = 6
    LANE = 7
    FILES = 8
    LOG = 9
    LOG_ENDED = 10
    STREAM = 11
    FILE = 12
    EVENTS = 13


class Channel:
    """One of them, at one end."""

    def __init__(self, tunnel: Tunnel, number: int) -> None:
        self.tunnel = tunnel
        self.number = number
        self.closed = False
        self._under_way = 0
        self._taken = 0
        tunnel.channels[number] = self

    @property
    def may_send(self) -> bool:
        """Whether there is room for more on the way."""
        return self._under_way < WINDOW and not self.tunnel.congested

    def say(self, what: What, payload: bytes = b"") -> None:
        """Say something that counts as under way until the other end has taken it."""
        self._under_way += len(payload)
        self.tunnel.put(what, self.number, payload)

    def say_packet(self, members: list[tuple[int, Kind]], body: bytes) -> None:
        """Say a packet, in parts where it is long."""
        head = bytes([len(members)]) + b"".join([MEMBER.pack(*one) for one in members])
        whole = head + body
        while len(whole) > FRAME:
            self.say(What.PART, whole[:FRAME])
            whole = whole[FRAME:]
        self.say(What.PACKET, whole)

    def credited(self, count: int) -> None:
        """So much was taken."""
        self._under_way -= count
        self.resume()

    def took(self, count: int) -> None:
        """So much of what came was taken; it is told some at a time."""
        self._taken += count
        if self._taken >= WINDOW // 4 and not self.closed:
            self.tunnel.put(What.CREDIT, self.number, self._taken.to_bytes(4, "little"))
            self._taken = 0

    def resume(self) -> None:
        """Go on reading, where that had to wait."""

    def heard(self, what: What, payload: bytes) -> None:
        """Take what came. Raises ValueError for what makes no sense."""
        raise ValueError(f"a channel {type(self).__name__} has no {what.name} of {len(payload)} bytes")

    def close(self, *, tell: bool = True) -> None:
        """End it; with `tell` the other end hears."""
        if self.closed:
            return
        self.closed = True
        if self.tunnel.channels.get(self.number) is self:
            del self.tunnel.channels[self.number]
        if tell:
            self.tunnel.put(What.CLOSE, self.number)
        self.release()

    def release(self) -> None:
        """Give up what is held here."""

    def held(self) -> list[int]:
        """The descriptors that are held here: all that a fork of this process closes."""
        return []


class Group:
    """The channels of one sandbox: what it wrote goes before what tells that it is done."""

    def __init__(self) -> None:
        self.outputs: list[Bytes] = []
        self.waiting: list[Packets] = []

    def sent(self, *, at_end: bool) -> bool:
        """Say all that the outputs hold now; False while there is no room. `at_end` takes none."""
        gone = True
        for one in [each for each in self.outputs if each.reads]:
            gone = one.pump(bounded=not at_end) and gone
        return gone

    def settled(self, *, at_end: bool) -> bool:
        """Whether all that came of outputs is in the local pipes."""
        behind = [one for one in self.outputs if one.behind]
        if at_end:
            for one in behind:
                one.widen()
            # Nobody reads, and no pipe is larger: what it is told has to be told.
            return True
        return not behind

    def moved(self) -> None:
        """An output went on."""
        for one in list(self.waiting):
            one.resume()
            one.flush()


class Bytes(Channel):
    """A stream: a pipe's end, or a socket."""

    def __init__(
        self,
        tunnel: Tunnel,
        number: int,
        descriptor: int,
        *,
        reads: bool,
        writes: bool,
        group: Group | None = None,
        own: bool = True,
    ) -> None:
        """Takes `descriptor`. `own`: nobody else has it, so that it may be made non-blocking."""
        super().__init__(tunnel, number)
        self._descriptor = descriptor
        self.reads = reads
        self._writes = writes
        self._group = group
        self._own = own
        self._left: deque[memoryview] = deque()
        self._ending = False
        self._watched = False
        self._plain = False
        if own:
            os.set_blocking(descriptor, False)
        if group is not None:
            group.outputs.append(self)
        if reads:
            self.resume()
        elif own:
            # Nothing is to be read there: epoll tells of the end of its reader (EPOLLERR of pipe(7)).
            self.tunnel.loop.add_reader(descriptor, self._refuse_more)

    @property
    def behind(self) -> bool:
        """Whether the local pipe has not room for all that came."""
        return bool(self._left)

    def widen(self) -> None:
        """Give the local pipe the most room that it can have."""
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_MAX)
        self._write()

    def resume(self) -> None:
        """Watch the descriptor again."""
        if self.reads and not self.closed and not self._watched and self.may_send:
            self._watched = True
            try:
                self.tunnel.loop.add_reader(self._descriptor, self.pump)
            except PermissionError:  # a regular file, which epoll takes for always ready
                self._watched, self._plain = False, True
                self.tunnel.loop.call_soon(self.pump)
        if self._group is not None:
            self._group.moved()

    def pump(self, *, bounded: bool = True) -> bool:
        """Say what there is; False when there is no room for more."""
        while self.reads and not self.closed:
            if bounded and not self.may_send:
                self._unwatch()
                return False
            try:
                data = os.read(self._descriptor, CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if not data:
                self._read_end()
                return True
            self.say(What.BYTES, data)
            if self._plain:
                self.tunnel.loop.call_soon(self.pump)
            if not self._own:
                return True  # another read could block
        return True

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self.tunnel.loop.remove_reader(self._descriptor)

    def _read_end(self) -> None:
        self._unwatch()
        self.reads = False
        self.tunnel.put(What.END, self.number)
        self._perhaps_over()

    def heard(self, what: What, payload: bytes) -> None:
        """Write it, as soon as there is room."""
        if what is What.END:
            self._ending = True
        elif what is What.BYTES:
            if self._writes:
                self._left.append(memoryview(payload))
        else:
            super().heard(what, payload)
        if len(self._left) <= 1:
            self._write()

    def _write(self) -> None:
        while self._left:
            piece = self._left[0]
            try:
                count = os.write(self._descriptor, piece)
            except BlockingIOError:
                self.tunnel.loop.add_writer(self._descriptor, self._write)
                return
            except OSError:  # nobody reads any more
                self._refuse_more()
                return
            self.took(count)
            if count < len(piece):
                self._left[0] = piece[count:]
            else:
                self._left.popleft()
        self.tunnel.loop.remove_writer(self._descriptor)
        if self._group is not None:
            self._group.moved()
        if self._ending:
            self._write_end()

    def _refuse_more(self) -> None:
        self._left.clear()
        self._writes = False
        if self.reads:
            self.tunnel.loop.remove_writer(self._descriptor)
        else:
            self.close()

    def _write_end(self) -> None:
        if self._writes:
            self._writes = False
            if stat.S_ISSOCK(os.fstat(self._descriptor).st_mode):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as sock:
                    sock.shutdown(socket.SHUT_WR)
        self._perhaps_over()

    def _perhaps_over(self) -> None:
        if not self.reads and not self._writes and (self._ending or not self._left):
            self.close(tell=False)

    def held(self) -> list[int]:
        """The stream."""
        return [self._descriptor]

    def release(self) -> None:
        """Close the descriptor, with what could not be written."""
        loop = self.tunnel.loop
        loop.remove_reader(self._descriptor)
        loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
        if self._group is not None:
            self._group.outputs.remove(self)
            self._group.moved()


class Item:
    """A packet that came, and the channels that it opened."""

    def __init__(self, body: bytes, members: list[tuple[int, Kind]]) -> None:
        self.body = body
        self.size = len(body)
        self.members = members
        self.fds: list[int] = []
        self.until: list[Any] = []
        """Logs that have to be here before it is passed on."""


class Packets(Channel):
    """A conversation of packets over a socket that keeps their bounds. Takes the socket's descriptor."""

    at_end_alone = False
    """Whether what is said after outputs may wait for nobody."""

    def __init__(self, tunnel: Tunnel, number: int, descriptor: int, group: Group | None = None) -> None:
        super().__init__(tunnel, number)
        self.descriptor = descriptor
        self.group = group
        self._arrived: deque[Item] = deque()
        self._parts: list[bytes] = []
        self._watched = False
        if descriptor >= 0:
            self.attach(descriptor)

    def attach(self, descriptor: int) -> None:
        """Take the descriptor, where it was not there yet."""
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)
        self.resume()
        self.flush()

    # --- from here to there -------------------------------------------------------------------------------

    def resume(self) -> None:
        """Watch the descriptor again."""
        if self.descriptor >= 0 and not self.closed and not self._watched and self.may_send:
            self._watched = True
            self.tunnel.loop.add_reader(self.descriptor, self._readable)

    def pause(self) -> None:
        """Do not look at the descriptor for now."""
        if self._watched:
            self._watched = False
            self.tunnel.loop.remove_reader(self.descriptor)

    def _readable(self) -> None:
        if not self.may_send:
            self.pause()
            return
        if self.group is not None and not self.group.sent(at_end=self.at_end_alone):
            self.pause()
            self._wait_for_group()
            return
        self._stop_waiting()
        try:
            taken = self.take()
        except BlockingIOError:
            return
        except (OSError, RametError):
            taken = None
        if taken is None:
            self.close()
            return
        body, fds = taken
        self.say_packet(self.opened(body, fds), body)

    def take(self) -> tuple[bytes, list[int]] | None:
        """The next packet of the local end and its descriptors; None at its end. Raises OSError."""
        data = os.read(self.descriptor, CHUNK)
        return (data, []) if data else None

    def opened(self, _body: bytes, fds: list[int]) -> list[tuple[int, Kind]]:
        """Make `fds` into channels: what they are told as."""
        close_all(fds)
        return []

    # --- from there to here -------------------------------------------------------------------------------

    def heard(self, what: What, payload: bytes) -> None:
        """Pass it on, as soon as there is room and what belongs before it is there."""
        if what is What.PART:
            self._parts.append(payload)
            self.check_size(sum(map(len, self._parts)))
            return
        if what is not What.PACKET:
            super().heard(what, payload)
        whole = b"".join([*self._parts, payload])
        self._parts.clear()
        count = whole[0]
        start = 1 + count * MEMBER.size
        members = [(number, Kind(kind)) for number, kind in MEMBER.iter_unpack(whole[1:start])]
        item = Item(whole[start:], members)
        item.size = len(whole)
        self.arrived(item)

    def arrived(self, item: Item) -> None:
        """Take a packet."""
        item.until = self.mirror(item)
        self._arrived.append(item)
        self.flush()

    def check_size(self, size: int) -> None:
        """Raises ValueError for a packet that is too long."""
        if size > p.PAYLOAD_MAX * 4:
            raise ValueError("a packet is too long")

    def mirror(self, item: Item) -> list[Any]:
        """Make the channels that a packet opens; what has to be there before it is passed on."""
        if item.members:
            raise ValueError(f"a channel {type(self).__name__} opens no channels")
        return []

    def flush(self) -> None:
        """Pass on what there is room for."""
        while self._arrived and not self.closed and self.descriptor >= 0:
            item = self._arrived[0]
            if any(not one.ready for one in item.until):
                return
            if self.group is not None and not self.group.settled(at_end=self.at_end_alone):
                self._wait_for_group()
                return
            self._stop_waiting()
            try:
                self.give(item)
            except BlockingIOError:
                self.tunnel.loop.add_writer(self.descriptor, self.flush)
                return
            except OSError:  # nobody is there any more
                self.close()
                return
            self._arrived.popleft()
            close_all(item.fds)
            self.took(item.size)
        if not self.closed and self.descriptor >= 0:
            self.tunnel.loop.remove_writer(self.descriptor)

    def give(self, item: Item) -> None:
        """Say a packet to the local end. Raises OSError."""
        sent = os.write(self.descriptor, item.body)
        if sent < len(item.body):  # of a stream
            item.body = item.body[sent:]
            raise BlockingIOError

    def _wait_for_group(self) -> None:
        if self.group is not None and self not in self.group.waiting:
            self.group.waiting.append(self)

    def _stop_waiting(self) -> None:
        if self.group is not None and self in self.group.waiting:
            self.group.waiting.remove(self)

    def held(self) -> list[int]:
        """The socket, and what could not be passed on."""
        mine = [self.descriptor] if self.descriptor >= 0 else []
        return mine + [one for item in self._arrived for one in item.fds]

    def release(self) -> None:
        """Close the descriptor."""
        self._stop_waiting()
        if self.descriptor >= 0:
            self.tunnel.loop.remove_reader(self.descriptor)
            self.tunnel.loop.remove_writer(self.descriptor)
            os.close(self.descriptor)
        for item in self._arrived:
            close_all(item.fds)
        self._arrived.clear()


class Session(Packets):
    """The life of a sandbox. Its end is told whether its output is read or not."""

    at_end_alone = True


class Tunnel:
    """One end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], object], *, first: int
    ) -> None:
        """`send` takes frames and does not wait. What begins here is numbered by twos from `first`."""
        self.loop = loop
        self.channels: dict[int, Channel] = {}
        self.congested = False
        self._send = send
        self._next = first

    def new_number(self) -> int:
        """For a channel that begins here."""
        number, self._next = self._next, self._next + 2
        return number

    def put(self, what: What, number: int, payload: bytes = b"") -> None:
        """Say a frame."""
        self._send(HEAD.pack(what, number) + payload)

    def congest(self) -> None:
        """What was said has not gone yet: nobody is to say more."""
        self.congested = True

    def relieve(self) -> None:
        """There is room again."""
        self.congested = False
        for channel in list(self.channels.values()):
            channel.resume()

    def heard(self, frame: bytes) -> None:
        """Take a frame of the other end. Raises ValueError for what makes no sense."""
        if len(frame) < HEAD.size:
            raise ValueError("a frame is shorter than its head")
        what, number = HEAD.unpack_from(frame)
        payload = frame[HEAD.size :]
        if what == What.OPEN:
            self.open(number, payload)
            return
        channel = self.channels.get(number)
        if channel is None:
            return  # it was closed here meanwhile
        if what == What.CLOSE:
            channel.close(tell=False)
        elif what == What.CREDIT:
            channel.credited(int.from_bytes(payload, "little"))
        else:
            channel.heard(What(what), payload)

    def open(self, _number: int, _payload: bytes) -> None:
        """The other end begins a conversation with the daemon. Raises ValueError."""
        raise ValueError("this end has no daemon")

    def close(self) -> None:
        """End all that goes through it."""
        for channel in list(self.channels.values()):
            channel.close(tell=False)
