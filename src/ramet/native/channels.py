"""The standard streams of a sandbox's command: three pipes, whose near ends go to whoever owns the sandbox.

A kernel has a channel besides, a socket pair.

A detached sandbox outlives its owner, and must see neither the end of its input nor a broken pipe when that
goes. Its ends are therefore opened for reading and writing both, which a pipe of Linux allows (fifo(7)): then
it holds the far side of each of its streams itself.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Self

from ramet._descriptors import close_all

if TYPE_CHECKING:
    from ramet.models.sandboxes import KernelRef

SOCKETS = {"packets": socket.SOCK_SEQPACKET, "lines": socket.SOCK_STREAM}


class Channel:
    """The ends of three pipes: `theirs` are the command's, `ours` the other ones; stdin, stdout, stderr.

    After them stand the ends of a kernel's channel.
    """

    __slots__ = ("ours", "theirs")

    def __init__(
        self, *, detached: bool = False, kernel: KernelRef | None = None, shared: bool = False
    ) -> None:
        """Make the pipes, and the channel of a kernel; `shared`: not for root's command. Raises OSError."""
        self.theirs: list[int] = []
        self.ours: list[int] = []
        try:
            for readers, writers in ((self.theirs, self.ours), *((self.ours, self.theirs),) * 2):
                end, other = os.pipe2(os.O_CLOEXEC)
                readers.append(end)
                writers.append(other)
            if shared or os.geteuid() == 0:
                for number in self.theirs:
                    # In a sandbox of root's their owner is nobody: to open /dev/stdout anew takes a mode.
                    os.fchmod(number, 0o666)
            if detached:
                self._open_both_ways()
            if kernel is not None:
                near, far = socket.socketpair(socket.AF_UNIX, SOCKETS[kernel.channel])
                self.ours.append(near.detach())
                self.theirs.append(far.detach())
        except OSError:
            self.close()
            raise

    @classmethod
    def of_near(cls, ours: list[int]) -> Self:
        """The near ends of streams that were made elsewhere, which it takes."""
        made = cls.__new__(cls)
        made.theirs, made.ours = [], ours
        return made

    def _open_both_ways(self) -> None:
        for place, descriptor in enumerate(self.theirs):
            self.theirs[place] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
            os.close(descriptor)

    def take_theirs(self) -> list[int]:
        """The command's ends, which are the caller's from now on."""
        taken, self.theirs = self.theirs, []
        return taken

    def take_ours(self) -> list[int]:
        """The near ends, which are the caller's from now on."""
        taken, self.ours = self.ours, []
        return taken

    def close(self) -> None:
        """Close what was not taken."""
        close_all(self.take_theirs() + self.take_ours())
