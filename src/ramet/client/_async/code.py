"""Code in a sandbox whose command is a kernel: one piece at a time, in the order of the calls."""

from __future__ import annotations

import dataclasses
import secrets
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from ramet.client._async.streams import deadline_of, remaining
from ramet.client._backends._async import deliver, poll, ready
from ramet.client._held import Held, ended_error
from ramet.client._kernel import Cell, Conversation, forked
from ramet.errors import DaemonLost, InternalError, InvalidRequest, SandboxEnded, WaitTimeout
from ramet.kernels import Kernel, get, names, register
from ramet.models.executions import Execution, Result
from ramet.models.forks import per_child
from ramet.models.names import check_environment, check_text

READY_S = 30.0
"""A kernel that has not said that it is ready by then is given up."""
INTERRUPT_S = 2.0
"""What runs has so long to heed an interrupt after its time was up; then the sandbox is ended."""
INTERRUPTS = 2
"""So many are sent in that time."""
END_S = 15.0
QUIET_S = 0.004
"""What writes more than a pipe holds waits so long, once: from then on its output is watched."""

OnBytes = Callable[[bytes], Any]
OnResult = Callable[[Result], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Forked:
    """What the kernel of one child is told of its life."""

    seed: int | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether it is told nothing but that it is a child."""
        return self.seed is None and not self.env

    @classmethod
    def of_each(cls, n: int, seed: Any, env: Any) -> list[Self]:
        """For each of `n` children. Raises InvalidRequest."""
        pairs = zip(per_child(seed, n, "seed"), per_child(env, n, "env"), strict=True)
        return [cls(check_seed(one), check_environment(more)) for one, more in pairs]


def known_kernel(kernel: str | Kernel) -> Kernel:
    """The kernel of that name; one of the caller's own is made known. Raises InvalidRequest."""
    if not isinstance(kernel, Kernel):
        return get(check_text(kernel, "kernel"))
    if kernel.name not in names():
        register(kernel)
    elif get(kernel.name) != kernel:
        raise InvalidRequest.of("kernel", f"there is another kernel {kernel.name!r}", code="name_taken")
    return kernel


def check_seed(seed: object) -> int | None:
    """`seed` as a number of 64 bits, or None. Raises InvalidRequest."""
    if seed is None:
        return None
    if type(seed) is not int or not 0 <= seed < 1 << 64:
        raise InvalidRequest.of("seed", f"{seed!r:.40} is no number from 0 to 2**64 - 1")
    return seed


class AsyncCode:
    """The conversation of one sandbox with its kernel."""

    def __init__(self, held: Held, kernel: Kernel, output: int, *, taken: bool = False) -> None:
        """`output` is the limit of that name. `held` stays its owner's.

        `taken`: another has spoken with this kernel before, of whose words the rest may still come.
        """
        assert held.channel is not None  # noqa: S101  the caller looked
        self.running: str | None = None
        """The id of what runs."""
        self.inherited: str | None = None
        """The id of what ran when this sandbox was forked, until it has ended here."""
        self.past: dict[str, Execution] = {}
        """What ended with nobody waiting for it: the inherited piece."""
        self.busy = False
        self.fork_errors: tuple[str, ...] = ()
        """What went wrong in what the kernel did because it was forked."""
        self._held = held
        self._talk = Conversation(held.channel, kernel, fresh=taken or held.info.epoch > 0)
        self._prefix = f"{secrets.token_hex(4)}-" if taken else ""
        self._output = output
        self._cell: Cell | None = None
        self._abandoned: Cell | None = None
        self._old: Cell | None = None
        self._poller: select.epoll | None = None
        self._watched: set[int] = set()
        self._writing = False
        self._ready = True
        self._input: memoryview | None = None
        """What the code has not taken yet of what it is to read."""

    # --- beginnings ---------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Start a kernel that was just created, and wait until it is ready. Raises SandboxEnded."""
        self._talk.open()
        self._ready = False
        deadline = deadline_of(READY_S)
        with self._used():
            while not self._ready:
                if not await self._step(deadline) and not remaining(deadline):
                    raise InternalError("internal", f"the kernel does not start in {READY_S:g} s")
                if self._talk.ended:
                    raise await self._dead()

    def forked(
        self, running: str | None, *, seed: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Tell the kernel that it is a child now; `running` is what its parent ran at that moment."""
        info = self._held.info
        self.inherited = running
        if running is not None:
            self._old = self._new_cell(running, (None, None))
        self._talk.tell_forked(forked(info.epoch, info.id, info.hostname, seed, env))
        if running is not None:
            # What runs looks at its channel when it is told to, which it was before there was anything.
            self._held.ask_signal(signal.SIGURG)

    # --- running ------------------------------------------------------------------------------------------

    async def run(
        self,
        code: str,
        *,
        timeout: float | None,
        context: str | None,
        on_stdout: OnBytes | None,
        on_stderr: OnBytes | None,
        on_result: OnResult | None,
        stdin: bytes | None,
    ) -> Execution:
        """Have it run, and wait for its end. Raises SandboxEnded when the kernel was dead before."""
        with self._used():
            await self._settle()
            if self._held.signals:
                await self._outlast_signals()
            if self._talk.ended:
                raise await self._dead()
            self._open_input(stdin)
            deadline, callbacks = deadline_of(timeout), (on_stdout, on_stderr, on_result)
            cell = self._cell = self._new_cell(None, (on_stdout, on_stderr))
            cell.unheard = None if on_result is None else deque()
            self.running = cell.id
            request: dict[str, Any] = {"op": "run", "id": cell.id, "code": code}
            if context is not None:
                request["context"] = context
            self._talk.say(request)
            try:
                if self._poller is None and self._input is None and callbacks == (None, None, None):
                    await self._wait_quietly(cell, deadline)
                return await self._until_done(cell, deadline, on_result)
            finally:
                self._cell = None
                self._stop_feeding()
                if cell.over:
                    self.running = None
                elif not self._talk.ended:
                    # Whoever asked has given up: an exception of a callback, a cancellation, Ctrl-C.
                    self._abandoned = cell
                    self.interrupt()

    async def _settle(self) -> None:
        """Have what was given up come to its end, whose output is nobody's. Raises InvalidRequest."""
        cell, deadline = self._abandoned, deadline_of(INTERRUPT_S)
        if cell is None:
            return
        cell.unheard = None
        for sink in (cell.out, cell.err):
            sink.callback = None
        self._cell = cell
        try:
            while not cell.over and not self._talk.ended:
                if not await self._step(deadline) and not remaining(deadline):
                    text = "what was given up does not heed an interrupt, and runs on"
                    raise InvalidRequest("kernel_busy", text, hint="interrupt it again, or end the sandbox")
        finally:
            self._cell = None
        cell.drain()
        self._abandoned = self.running = None

    async def _outlast_signals(self) -> None:
        """Wait until each interrupt that was asked for is sent: it is not meant for what runs next."""
        held, deadline = self._held, deadline_of(INTERRUPT_S)
        with select.epoll() as poller:
            poller.register(held.session, select.EPOLLIN)
            while not held.hear() and held.signals > 0 and remaining(deadline):
                await poll(poller, remaining(deadline))

    def _open_input(self, stdin: bytes | None) -> None:
        """What the first piece of code finds at descriptor 0, which is at its end after that."""
        if self._held.stdin.descriptor < 0 and stdin is not None:
            raise InvalidRequest(
                "stdin_closed", "only the first piece of code in a sandbox can be given input"
            )
        if stdin is not None and self._held.info.detached:
            # Its daemon keeps an end for whoever attaches next: the code would never find the input's end.
            text = "code in a detached sandbox has no input of its own"
            raise InvalidRequest("stdin_closed", text, hint="write a file, or give a command stdin")
        self._input = memoryview(stdin) if stdin else None
        if self._input is None:
            self._held.stdin.close()

    async def attach(self, timeout: float | None) -> Execution:
        """The end of what ran when this was forked. Raises WaitTimeout, InvalidRequest when there is none."""
        name = self.inherited
        if name is None:
            raise InvalidRequest("nothing_inherited", "nothing ran when this sandbox was forked")
        with self._used():
            deadline = deadline_of(timeout)
            while name not in self.past:
                if self._talk.ended:
                    raise await self._dead()
                if not await self._step(deadline) and timeout is not None and not remaining(deadline):
                    raise WaitTimeout("wait_timeout", f"{name} has not ended in this time")
        return self.past[name]

    def interrupt(self) -> None:
        """Have what runs stop, as Ctrl-C does. Nothing happens when nothing runs."""
        self._held.ask_signal(signal.SIGINT)

    def close(self) -> None:
        """Stop watching."""
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    async def _until_done(self, cell: Cell, deadline: float | None, on_result: OnResult | None) -> Execution:
        while not cell.over:
            if self._talk.ended:
                return await self._died(cell)
            moved = await self._step(deadline)
            while on_result is not None and cell.unheard:
                await deliver(on_result, cell.unheard.popleft())
            if not moved and deadline is not None and not remaining(deadline):
                if cell.interrupts == INTERRUPTS:
                    return await self._end_overdue(cell)
                # One can be lost to code that swallows it by mistake, as what is called amid a destructor.
                cell.interrupts += 1
                self.interrupt()
                deadline = deadline_of(INTERRUPT_S / INTERRUPTS)
        await self._deliver(cell)
        return cell.execution()

    async def _wait_quietly(self, cell: Cell, deadline: float | None) -> None:
        """Wait a little for what is soon over. Most pieces are, and then its output need not be watched."""
        until = time.monotonic() + QUIET_S
        if deadline is not None:
            until = min(until, deadline)
        while not (cell.over or self._talk.ended or self._talk.unsent):
            if not await ready(self._talk.sock.fileno(), remaining(until)):
                return
            self._listen()

    def _listen(self) -> None:
        for event in self._talk.hear():
            self._take(event)

    async def _step(self, deadline: float | None) -> bool:
        """Wait until something happens, and take it; False when nothing did."""
        poller = self._watch()
        events = await poll(poller, remaining(deadline))
        cell = self._cell or self._old
        for number, _ in events:
            if number == self._talk.sock.fileno():
                self._talk.flush()
                self._listen()
            elif number == self._held.stdin.descriptor:
                self._feed()
            elif cell is not None and (sink := cell.sinks.get(number)) is not None:
                count = sink.pull()
                if count == 0:
                    poller.unregister(number)
                    self._watched.discard(number)
                    del cell.sinks[number]
                elif count and sink.callback is not None:
                    await deliver(sink.callback, sink.chunk)
            else:
                # What runs in the background writes: it is left unread, and belongs to the next piece.
                poller.unregister(number)
                self._watched.discard(number)
        return bool(events)

    def _take(self, event: dict[str, Any]) -> None:
        kind, name = event.get("event"), event.get("id")
        try:
            if kind == "ready":
                self._ready = True
            elif kind == "forked":
                # Not of the parent, which was forked amid its own beginning.
                if event.get("epoch") == self._held.info.epoch:
                    self._take_forked(event)
            elif self._cell is not None and name == self._cell.id:
                self._cell.event(event)
            elif self._old is not None and name == self._old.id:
                self._old.event(event)
                if self._old.over:
                    self._old.drain()
                    self.past[self._old.id] = self._old.execution()
                    self._old = None
        except ValueError as error:
            self._talk.ended = True
            self._talk.garbled = str(error)

    def _take_forked(self, event: dict[str, Any]) -> None:
        errors = event.get("errors")
        if isinstance(errors, list):
            self.fork_errors = tuple([str(error) for error in errors])
        if self._old is not None and event.get("running") != self._old.id:
            # It was asked for, and not begun: requests that nobody read stay with the parent.
            self._old = None
            self.inherited = None

    def _feed(self) -> None:
        if self._input is not None:
            sent = self._held.stdin.push(self._input)
            self._input = self._input[sent:] if sent is not None else None
        if not self._input:
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        self._input = None
        number = self._held.stdin.descriptor
        if number in self._watched and self._poller is not None:
            self._watched.discard(number)
            self._poller.unregister(number)
        self._held.stdin.close()

    async def _deliver(self, cell: Cell) -> None:
        for callback, chunk in cell.drain():
            await deliver(callback, chunk)

    def _new_cell(self, name: str | None, callbacks: tuple[OnBytes | None, OnBytes | None]) -> Cell:
        streams = (self._held.stdout.descriptor, self._held.stderr.descriptor)
        return Cell(name, streams, self._output, callbacks, self._prefix)

    def _watch(self) -> select.epoll:
        if self._poller is None:
            self._poller = select.epoll()
            self._poller.register(self._talk.sock, select.EPOLLIN)
        if self._talk.unsent != self._writing:
            self._writing = self._talk.unsent
            what = select.EPOLLIN | select.EPOLLOUT if self._writing else select.EPOLLIN
            self._poller.modify(self._talk.sock, what)
        if self._input is not None and self._held.stdin.descriptor not in self._watched:
            self._poller.register(self._held.stdin.descriptor, select.EPOLLOUT)
            self._watched.add(self._held.stdin.descriptor)
        cell = self._cell or self._old
        if cell is not None:
            for number in cell.sinks:
                if number not in self._watched:
                    self._poller.register(number, select.EPOLLIN)
                    self._watched.add(number)
        return self._poller

    # --- the end of a kernel ------------------------------------------------------------------------------

    async def _await_end(self) -> str:
        """How the sandbox ended, which follows the end of its kernel. One that lives on without is ended."""
        held = self._held
        if self._talk.garbled is not None:
            held.ask_end()
        deadline = deadline_of(END_S)
        asked = time.monotonic() + INTERRUPT_S
        with select.epoll() as poller:
            poller.register(held.session, select.EPOLLIN)
            try:
                while not held.hear():
                    if time.monotonic() > asked:
                        # It closed its channel and goes on: nobody can speak to it any more.
                        held.ask_end()
                    if not await poll(poller, min(remaining(deadline), 0.25)) and not remaining(deadline):
                        return "and the daemon does not tell how"
            except DaemonLost as error:
                return error.message
        why = held.info.how_it_ended()
        return f"{why}; it said what no kernel says: {self._talk.garbled}" if self._talk.garbled else why

    async def _died(self, cell: Cell) -> Execution:
        why = await self._await_end()
        await self._deliver(cell)
        return cell.lost("timeout" if cell.overdue else "died", f"the kernel ended: {why}")

    async def _end_overdue(self, cell: Cell) -> Execution:
        self._held.ask_end()
        await self._await_end()
        await self._deliver(cell)
        self._talk.ended = True
        return cell.lost(
            "timeout", f"it did not heed an interrupt in {INTERRUPT_S:g} s: its sandbox was ended"
        )

    async def _dead(self) -> SandboxEnded:
        why = await self._await_end()
        info = self._held.info
        return ended_error(info, f"the kernel of the sandbox {info.name or info.id} has ended: {why}")

    def _used(self) -> _Turn:
        """One at a time; entering it raises InvalidRequest."""
        return _Turn(self, self._held)


class _Turn:
    """While one piece of code has the kernel, and what it writes."""

    __slots__ = ("_code", "_held")

    def __init__(self, code: AsyncCode, held: Held) -> None:
        self._code = code
        self._held = held

    def __enter__(self) -> None:
        code, held = self._code, self._held
        if code.busy:
            raise InvalidRequest("kernel_busy", "this sandbox runs code already: one piece at a time")
        held.stdout.take_up()
        try:
            held.stderr.take_up()
        except BaseException:
            held.stdout.lay_down()
            raise
        code.busy = True

    def __exit__(self, *_: object) -> None:
        self._code.busy = False
        self._held.stderr.lay_down()
        self._held.stdout.lay_down()
