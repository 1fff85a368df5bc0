"""The client's end of a kernel's channel, without any waiting in it: docs/reference/kernels.md.

Whatever comes from a kernel is hostile: guests can write what they like to their end. What is no event ends
the conversation, and with it the sandbox, and nothing else.
"""

from __future__ import annotations

import errno
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ramet.client._streams import Sink
from ramet.kernels import BadEvent, Decoder
from ramet.models.executions import (
    Execution,
    ExecutionError,
    ExecutionReason,
    Result,
    error_from,
    result_from,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from ramet.kernels import Kernel

    Callback = Callable[[bytes], Any]

RECEIVE = 1 << 16
"""A packet has half of it. More would be memory of its own for each, mapped and unmapped."""
RESULTS_MAX = 1000
"""Most results of one piece of code that are kept; the callback hears of all."""
REASONS = frozenset({"ok", "error", "interrupted", "exit"})


def forked(
    epoch: int, sandbox: str, hostname: str, seed: int | None = None, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a kernel is told that is a child now."""
    return {
        "op": "forked",
        "epoch": epoch,
        "sandbox": sandbox,
        "hostname": hostname,
        "seed": seed,
        "env": dict(env or {}),
    }


class Conversation:
    """Messages to and from one kernel over a socket that never blocks."""

    def __init__(self, sock: socket.socket, kernel: Kernel, *, fresh: bool) -> None:
        """The socket stays its owner's; `fresh` when it was given to a kernel by a fork."""
        self.sock = sock
        self.kernel = kernel
        self.ended = False
        """True when nothing more can come."""
        self.garbled: str | None = None
        """What was wrong, when the kernel said what is no event."""
        self._decoder = Decoder(kernel.channel, fresh=fresh)
        self._outgoing: deque[bytes] = deque()

    @property
    def unsent(self) -> bool:
        """Whether the socket had no room for all that was said."""
        return bool(self._outgoing)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message, as far as there is room now; `flush` sends the rest."""
        self._outgoing.extend(self.kernel.request(message))
        self.flush()

    def open(self) -> None:
        """Give a kernel that was just started what it waits for."""
        self._outgoing.extend(self.kernel.opening())
        self.flush()

    def tell_forked(self, message: Mapping[str, Any]) -> None:
        """Begin a fresh channel with the message `forked`."""
        self._outgoing.extend(self.kernel.fresh(message))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        while self._outgoing:
            data = self._outgoing[0]
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.ENOBUFS, errno.ENOMEM}:
                    return
                self._outgoing.clear()  # it is dead: the end of what it says tells so
                return
            if sent < len(data):
                self._outgoing[0] = data[sent:]
            else:
                self._outgoing.popleft()

    def hear(self) -> list[dict[str, Any]]:
        """The events that have come. Sets `ended`."""
        try:
            data = self.sock.recv(RECEIVE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return []
        try:
            return self._decoder.feed(data)
        except BadEvent as error:
            self.ended = True
            self.garbled = str(error)
            return []


_numbers = itertools.count(1)


class Cell:
    """One piece of code under way."""

    def __init__(
        self,
        name: str | None,
        streams: tuple[int, int],
        limit: int,
        callbacks: tuple[Callback | None, Callback | None],
        prefix: str = "",
    ) -> None:
        """`streams` are the descriptors of stdout and stderr, -1 for one that has ended.

        `prefix` begins the id of a piece without a name.
        """
        self.id = name or f"{prefix}{next(_numbers)}"
        self.results: list[Result] = []
        self.unheard: deque[Result] | None = None
        """Results for a callback; None when there is none, or nobody waits any more."""
        self.done: dict[str, Any] | None = None
        self.out, self.err = (
            Sink(descriptor, limit, callback) for descriptor, callback in zip(streams, callbacks, strict=True)
        )
        self.sinks = {sink.descriptor: sink for sink in (self.out, self.err) if sink.descriptor >= 0}
        self.interrupts = 0
        """How often it was interrupted since its time was up."""
        self.results_left_out = 0
        self._began = time.perf_counter()

    @property
    def overdue(self) -> bool:
        """Whether its time was up, and it was interrupted."""
        return self.interrupts > 0

    @property
    def over(self) -> bool:
        """True once its end was told."""
        return self.done is not None

    def event(self, event: Mapping[str, Any]) -> None:
        """Take an event that is about it. Raises ValueError for what is none."""
        kind = event.get("event")
        if kind == "result":
            self._add(result_from(event))
        elif kind == "done":
            if event.get("reason") not in REASONS:
                raise ValueError("a piece of code ended for no reason")
            error_from(event.get("error"))
            text = event.get("text")
            # A value that has no other format comes as the text alone.
            if isinstance(text, str) and not any(one.main for one in self.results):
                self._add(Result({"text/plain": text}, main=True))
            self.done = dict(event)

    def _add(self, result: Result) -> None:
        if len(self.results) < RESULTS_MAX or result.main:
            self.results.append(result)
        else:
            self.results_left_out += 1
        if self.unheard is not None:
            self.unheard.append(result)

    def drain(self) -> list[tuple[Callback, bytes]]:
        """Read what its streams hold now: when it is done that is all it wrote. What callbacks are to get."""
        heard = []
        for sink in self.sinks.values():
            while sink.pull():
                if sink.callback is not None:
                    heard.append((sink.callback, sink.chunk))
        return heard

    def execution(self) -> Execution:
        """What became of it, once it is done."""
        done = self.done or {}
        reason: ExecutionReason = done.get("reason", "died")
        if self.overdue and reason in {"interrupted", "error"}:
            reason = "timeout"
        text, code, epoch = done.get("text"), done.get("exit_code"), done.get("epoch")
        length = done.get("truncated")
        return Execution(
            self.id,
            reason,
            text if isinstance(text, str) else None,
            tuple(self.results),
            error_from(done.get("error")),
            code if isinstance(code, int) else None,
            self._elapsed(),
            epoch if isinstance(epoch, int) else 0,
            text_length=length if isinstance(length, int) else None,
            results_left_out=self.results_left_out,
            out=self.out.captured(),
            err=self.err.captured(),
        )

    def lost(self, reason: ExecutionReason, why: str) -> Execution:
        """What became of it when the kernel is dead."""
        return Execution(
            self.id,
            reason,
            results=tuple(self.results),
            results_left_out=self.results_left_out,
            error=ExecutionError("KernelDied", why),
            duration_ms=self._elapsed(),
            state_kept=False,
            out=self.out.captured(),
            err=self.err.captured(),
        )

    def _elapsed(self) -> float:
        return (time.perf_counter() - self._began) * 1e3
