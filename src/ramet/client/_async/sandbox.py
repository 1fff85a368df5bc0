"""A sandbox that stays, its forks, and its snapshots."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, overload

from ramet.client._async.api import shared
from ramet.client._async.client import PATIENCE_S, AsyncClient
from ramet.client._async.streams import AsyncReader, AsyncWriter, deadline_of, remaining
from ramet.client._backends._async import Opening, poll
from ramet.client._exchange import Made
from ramet.client._held import Collector, Held, result_of
from ramet.client._start import absolute, interpreter
from ramet.errors import DaemonLost, ForkError, InvalidRequest, RametError, SandboxEnded, WaitTimeout
from ramet.models.limits import DEFAULT_LIMITS, Limits
from ramet.models.results import Captured, CommandResult
from ramet.models.sandboxes import (
    CreateRequest,
    ForkReport,
    ForkRequest,
    SandboxInfo,
    Snapshot,
    SnapshotRequest,
)

Command = str | Sequence[str | bytes | PathLike[str]]
OnError = Literal["end", "keep"]
# The memory of the source is copied first: gigabytes take seconds.
FORK_PATIENCE_S = 120.0
# Core ends a sandbox at once, or after 5 s with a process that cannot die.
END_PATIENCE_S = 15.0


class _Open(NamedTuple):
    held: Held
    stdin: AsyncWriter
    stdout: AsyncReader
    stderr: AsyncReader


class AsyncSandbox(Opening):
    """A sandbox with one command that runs, whose standard streams are the way to talk to it.

    It ends with its command, when it is killed, and when this process ends or nobody holds this object any
    more; `detach` has it outlive this process.
    """

    def __init__(
        self,
        source: str | Snapshot | None = None,
        *,
        command: Command | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        root: str | PathLike[str] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        encoding: str = "utf-8",
        client: AsyncClient | None = None,
    ) -> None:
        """Start `command`, or fork the snapshot `source`.

        Args:
            source: a snapshot, or the name of one. The sandbox is a fork of it: it goes on where the snapshot
                was taken, with that one's memory, files, environment and directory.
            command: text is a line for /bin/sh; a sequence is a program and its arguments.
            env: variables to add to the sandbox's own. Nothing of this process's environment goes in.
            cwd: absolute, inside the sandbox; by default its home.
            root: a directory of the host to use as ``/``; writes to it stay in the sandbox.
            limits: Limits, or a mapping such as ``{"disk": "64M"}``; a fork takes a mapping of those that
                differ from the snapshot's. ``wall`` holds only when it is asked for.
            timeout: seconds until everything in the sandbox is killed; by default never.
            name: for people, and for the command line; no two living sandboxes have the same.
            detach: live on after this process.
            ttl: seconds that a detached sandbox lives with nobody attached and nobody asking; 300 by default.
            encoding: of text given to stdin, and of the result's text.
            client: whose daemon to use; by default the user's own.

        Raises:
            InvalidRequest: an argument is wrong; `field` names it. Nothing was started.
            IsolationError: the sandbox could not be made; `step` and `errno` say why. Nothing ran.
            DaemonError: the daemon could not be started, or ended meanwhile.
        """
        self._prepare(client or shared, DEFAULT_LIMITS.output, encoding)
        self._request: CreateRequest | ForkRequest
        if source is None:
            if command is None:
                raise InvalidRequest.of("command", "is missing: a sandbox has a command, or a snapshot")
            request = CreateRequest.of(
                command,
                env=env,
                cwd=cwd,
                root=absolute(root),
                limits=limits,
                timeout=timeout,
                python=interpreter(),
                name=name,
                detach=detach,
                ttl=ttl,
            )
            self._output = request.run.limits.output
            self._request = request
        else:
            for field, value in (("command", command), ("env", env), ("cwd", cwd), ("root", root)):
                if value is not None:
                    raise InvalidRequest.of(field, "is the snapshot's own, and no fork has another")
            self._request = ForkRequest.of(
                snapshot=source.name if isinstance(source, Snapshot) else source,
                limits=limits.asked() if isinstance(limits, Limits) else limits,
                timeout=timeout,
                name=name,
                detach=detach,
                ttl=ttl,
            )
            self._output = int(self._request.limits.get("output", self._output))
        self._made()

    async def start(self) -> Self:
        """Open it, if that has not been done; returns itself."""
        if self._open is None:
            operation = "sandbox.create" if isinstance(self._request, CreateRequest) else "sandbox.fork"
            found = await _make(self._client, operation, self._request)
            if found.errors:
                raise next(iter(found.errors.values()))
            self._take(found.held[0])
        return self

    def _take(self, held: Held) -> None:
        out, err = AsyncReader(held.stdout), AsyncReader(held.stderr)
        self._open: _Open | None = _Open(held, AsyncWriter(held.stdin, self._encoding), out, err)

    @classmethod
    def _of(cls, held: Held, client: AsyncClient, output: int, encoding: str) -> Self:
        made = cls.__new__(cls)
        made._prepare(client, output, encoding)  # noqa: SLF001  of this class
        made._take(held)  # noqa: SLF001
        return made

    def _prepare(self, client: AsyncClient, output: int, encoding: str) -> None:
        self._client = client
        self._output = output
        self._encoding = encoding
        self._open = None
        self._result: CommandResult | None = None

    # --- what it is ---------------------------------------------------------------------------------------

    @property
    def _here(self) -> _Open:
        if self._open is None:
            raise InvalidRequest("not_started", "this sandbox is not started: await it, or enter it")
        return self._open

    @property
    def info(self) -> SandboxInfo:
        """What is known of it; its end as soon as that was waited for."""
        return self._here.held.info

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def name(self) -> str | None:
        """Its name, if it was given one."""
        return self.info.name

    @property
    def pid(self) -> int:
        """The pid of its command, inside. A fork's is its parent's."""
        return self.info.pid

    @property
    def running(self) -> bool:
        """False once its end was told."""
        return self._result is None and not self._here.held.hear()

    @property
    def stdin(self) -> AsyncWriter:
        """The command's standard input."""
        return self._here.stdin

    @property
    def stdout(self) -> AsyncReader:
        """The command's standard output."""
        return self._here.stdout

    @property
    def stderr(self) -> AsyncReader:
        """The command's standard error."""
        return self._here.stderr

    def __repr__(self) -> str:
        state = "not started" if self._open is None else f"{self.info.id}, {self.info.status}"
        return f"<{type(self).__name__} {state}>"

    # --- its end ------------------------------------------------------------------------------------------

    async def wait(self, timeout: float | None = None, *, drain: bool = True) -> CommandResult:
        """The result, when the command has ended and with it every process of the sandbox.

        Output that nobody has read is gathered meanwhile, up to the limit ``output``, and is in the result.
        With ``drain=False`` the streams are left to who reads them.

        Raises WaitTimeout when it does not end in `timeout` seconds; then what was gathered can be read, or
        waited for again. Raises DaemonLost when nobody knows of the sandbox any more.
        """
        if self._result is not None:
            return self._result
        held = self._here.held
        flows = (held.stdout, held.stderr) if drain else ()
        with contextlib.ExitStack() as using:
            for flow in flows:
                using.enter_context(flow.used())
            collectors = [Collector(flow, self._output) for flow in flows]
            try:
                await self._until_end(held, collectors, deadline_of(timeout))
            except BaseException:
                for collector in collectors:
                    collector.give_back()
                raise
            # Its processes are dead: what the pipes hold is all there will ever be.
            out, err = [one.rest() for one in collectors] or (Captured(), Captured())
            self._result = result = result_of(held.info, out, err, self._encoding)
        return result

    async def _until_end(self, held: Held, collectors: list[Collector], deadline: float | None) -> None:
        if held.hear():
            return
        with select.epoll() as poller:
            poller.register(held.session, select.EPOLLIN)
            watched = {one.flow.descriptor: one for one in collectors if not one.flow.ended}
            for descriptor in watched:
                poller.register(descriptor, select.EPOLLIN)
            while not held.hear():
                events = await poll(poller, remaining(deadline))
                for descriptor, _ in events:
                    collector = watched.get(descriptor)
                    # A closed descriptor leaves the poller by itself.
                    if collector is not None and not collector.pull() and collector.flow.ended:
                        del watched[descriptor]
                if not events and deadline is not None and not remaining(deadline) and not held.hear():
                    raise WaitTimeout("wait_timeout", f"the sandbox {self.id} has not ended in this time")

    async def kill(self) -> None:
        """End it, and return when it has ended. What it wrote can still be read, or is in the result."""
        held = self._here.held
        held.ask_end()
        await self._await_end(held)

    async def _await_end(self, held: Held) -> None:
        if held.hear():
            return
        deadline = deadline_of(END_PATIENCE_S)
        with select.epoll() as poller:
            poller.register(held.session, select.EPOLLIN)
            while not held.hear():
                if not await poll(poller, remaining(deadline)) and not remaining(deadline):
                    raise DaemonLost("daemon_silent", f"the daemon does not end the sandbox {self.id}")

    async def aclose(self) -> None:
        """Let go of it: it ends now, unless it is detached. Its result, without output, can be had after."""
        if self._open is None or self._open.held.session.fileno() < 0:
            return
        held = self._open.held
        try:
            if not held.info.detached and self._result is None:
                held.ask_end()
                await self._await_end(held)
                self._result = result_of(held.info, Captured(), Captured(), self._encoding)
        except DaemonLost:
            pass  # the sandbox went with it
        finally:
            held.close()

    def ask_end(self) -> None:
        """Have it ended without waiting for that, unless it is detached: the first half of `aclose`."""
        if self._open is not None and not self._open.held.info.detached:
            self._open.held.ask_end()

    def let_go(self) -> None:
        """Close what this process has of it, without waiting: the second half of `aclose`."""
        if self._open is not None:
            self._open.held.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- forks and snapshots ------------------------------------------------------------------------------

    @overload
    async def fork(
        self,
        n: None = None,
        *,
        limits: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
    ) -> AsyncSandbox: ...
    @overload
    async def fork(
        self,
        n: int,
        *,
        limits: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        detach: bool = False,
        ttl: float | None = None,
        on_error: OnError = "end",
    ) -> AsyncSandboxList: ...
    async def fork(
        self,
        n: int | None = None,
        *,
        limits: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        on_error: OnError = "end",
    ) -> AsyncSandbox | AsyncSandboxList:
        """Fork it as it runs: without `n` one sandbox, with `n` a list of so many.

        Each child goes on where this one stood, with its memory, files and open descriptors of one instant,
        and standard streams of its own. This one does not notice. It does not matter to the children when it
        ends.

        Args:
            n: how many, from 1 to 1000.
            limits: those that differ from this one's: ``disk``, ``inodes``, ``wall``, ``output``.
            timeout: as for a new sandbox.
            name: of the one child.
            detach: the children live on after this process.
            ttl: as for a new sandbox.
            on_error: ``end`` or ``keep`` the children that live when others could not be made.

        Raises:
            Unforkable: it holds something that cannot be carried; the message says what and where.
            SandboxEnded: it is dead; the message says of what.
            ForkError: some children could not be made, each for the reason in `errors`.
            InvalidRequest: an argument is wrong.
        """
        _check_on_error(on_error)
        request = ForkRequest.of(
            sandbox=self.id,
            n=1 if n is None else n,
            limits=limits,
            timeout=timeout,
            name=name,
            detach=detach,
            ttl=ttl,
        )
        if self._result is not None:
            raise _dead(self.info)
        found = await _make(self._client, "sandbox.fork", request)
        output = int(request.limits.get("output", self._output))
        children = AsyncSandboxList(
            [self._of(held, self._client, output, self._encoding) for held in found.held]
        )
        await _check_all(children, found, request.n, on_error)
        return children[0] if n is None else children

    async def snapshot(self, name: str) -> Snapshot:
        """Keep its state under `name`, for ``Sandbox(name)`` to fork later. It runs on.

        Raises Unforkable, SandboxEnded as `fork` does, InvalidRequest when the name is taken or no name.
        """
        request = SnapshotRequest.of(self.id, name)
        if self._result is not None:
            raise _dead(self.info)
        answer = await self._client.ask("sandbox.snapshot", request.to_wire(), patience=FORK_PATIENCE_S)
        return Snapshot.from_wire(answer)


class AsyncSandboxList(list[AsyncSandbox]):
    """The children of one fork. Leaving it as a context ends all of them."""

    async def aclose(self) -> None:
        """Let go of each, as `AsyncSandbox.aclose` does."""
        # First all are asked, then all awaited: their ends overlap.
        for sandbox in self:
            sandbox.ask_end()
        try:
            for sandbox in self:
                await sandbox.aclose()
        finally:
            for sandbox in self:
                sandbox.let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def fork(
    *,
    sandbox: str | None = None,
    snapshot: str | None = None,
    n: int = 1,
    limits: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    name: str | None = None,
    detach: bool = False,
    ttl: float | None = None,
    on_error: OnError = "end",
    client: AsyncClient | None = None,
) -> AsyncSandboxList:
    """Fork a sandbox that another process has, by its id or name, or a snapshot `n` times.

    Else as `AsyncSandbox.fork`.
    """
    _check_on_error(on_error)
    request = ForkRequest.of(
        sandbox=sandbox,
        snapshot=snapshot,
        n=n,
        limits=limits,
        timeout=timeout,
        name=name,
        detach=detach,
        ttl=ttl,
    )
    asked = client or shared
    found = await _make(asked, "sandbox.fork", request)
    output = int(request.limits.get("output", DEFAULT_LIMITS.output))
    children = AsyncSandboxList([AsyncSandbox._of(held, asked, output, "utf-8") for held in found.held])  # noqa: SLF001
    await _check_all(children, found, n, on_error)
    return children


# --- the way to the daemon --------------------------------------------------------------------------------


class _Found:
    """What came of a request for sandboxes."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.held: list[Held] = []
        self.errors: dict[int, RametError] = {}

    def take(self) -> None:
        """Make what came into sandboxes, in the order of their numbers."""
        self.made.sort(key=lambda one: one.number, reverse=True)
        while self.made:
            one = self.made[-1]
            self.held.append(Held(one.info, one.fds))
            self.made.pop()

    def close(self) -> None:
        """Let go of everything."""
        self.take()
        for held in self.held:
            held.close()


async def _make(client: AsyncClient, operation: str, request: CreateRequest | ForkRequest) -> _Found:
    found = _Found()
    patience = PATIENCE_S if operation == "sandbox.create" else FORK_PATIENCE_S
    try:
        answer = await client.ask(operation, request.to_wire(), made=found.made, patience=patience)
        found.take()
        if operation == "sandbox.fork":
            for number, error in ForkReport.from_wire(answer).errors:
                found.errors[number] = RametError.from_wire(error)
    except BaseException:
        found.close()
        raise
    return found


async def _check_all(children: AsyncSandboxList, found: _Found, n: int, on_error: str) -> None:
    if not found.errors:
        return
    if on_error == "end":
        await children.aclose()
        children.clear()
    number, first = next(iter(found.errors.items()))
    text = f"{len(found.errors)} of {n} children could not be made; child {number}: {first.message}"
    raise ForkError(text, children, found.errors)


def _check_on_error(on_error: str) -> None:
    if on_error not in {"end", "keep"}:
        raise InvalidRequest.of("on_error", f"{on_error!r:.40} is neither 'end' nor 'keep'")


def _dead(info: SandboxInfo) -> SandboxEnded:
    end = info.end
    return SandboxEnded(
        f"the sandbox {info.name or info.id} has ended: {info.how_it_ended()}",
        sandbox=info.id,
        reason=end and end.reason,
        exit_code=end and end.exit_code,
        signal=end and end.signal,
    )
