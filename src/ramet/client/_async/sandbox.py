"""A sandbox that stays, its forks, and its snapshots."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import select
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

from ramet._descriptors import close_all
from ramet.client._async.api import current
from ramet.client._async.client import FORK_PATIENCE_S, AsyncClient
from ramet.client._async.code import AsyncCode, Forked, check_seed, known_kernel
from ramet.client._async.commands import AsyncCommand, AsyncCommands, Words
from ramet.client._async.files import AsyncFiles
from ramet.client._async.ports import AsyncPorts
from ramet.client._async.streams import AsyncReader, AsyncWriter, deadline_of, remaining
from ramet.client._async.terminals import AsyncTerminals
from ramet.client._backends._async import Opening, poll, ready
from ramet.client._exchange import Made
from ramet.client._held import Collector, Held, ended_error, result_of
from ramet.client._start import absolute, interpreter
from ramet.client._streams import check_output, view_of
from ramet.client._trees import check_directory
from ramet.errors import (
    DaemonLost,
    ForkError,
    InvalidRequest,
    RametError,
    SandboxEnded,
    SnapshotError,
    WaitTimeout,
)
from ramet.kernels import Kernel, get
from ramet.models.checks import OnUnsupported
from ramet.models.commands import FIRST
from ramet.models.creation import WORKSPACE, BeginRequest, CreateRequest
from ramet.models.differences import Difference, Process
from ramet.models.executions import Execution, Result
from ramet.models.files import Change, OnConflict
from ramet.models.forks import ForkReport, ForkRequest, PromoteRequest, RollbackRequest, fork_of
from ramet.models.limits import BY_NAME, DEFAULT_LIMITS, Limits, parse_limit
from ramet.models.names import check_environment, check_name, check_text, near
from ramet.models.results import Captured, CommandResult
from ramet.models.runs import Python
from ramet.models.sandboxes import KernelRef, Metrics, SandboxInfo, SandboxRequest
from ramet.models.snapshots import BUILT_IN, PAUSED, Snapshot, SnapshotRequest, paused_as

if TYPE_CHECKING:
    from ramet.client._forks import Forking
    from ramet.models.forks import PerChild

OnError = Literal["end", "keep"]
# Core ends a sandbox at once, or after 5 s with a process that cannot die.
END_PATIENCE_S = 15.0
LAST_WORDS_S = 2.0


class _Open(NamedTuple):
    held: Held
    stdin: AsyncWriter
    stdout: AsyncReader
    stderr: AsyncReader
    code: AsyncCode | None


class AsyncSandbox(Opening):
    """A sandbox with one command that runs, whose standard streams are the way to talk to it.

    It ends with its command, when it is killed, and when this process ends or nobody holds this object any
    more; `detach` has it outlive this process.
    """

    _env: Mapping[str, str]
    _commands: AsyncCommands | None
    _files: AsyncFiles | None
    _workspace: str | PathLike[str] | None

    def __init__(
        self,
        source: str | Snapshot | None = None,
        *,
        command: Words | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        root: str | PathLike[str] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        encoding: str = "utf-8",
        kernel: str | Kernel | None = None,
        seed: int | None = None,
        metadata: Mapping[str, str] | None = None,
        python: Python | None = None,
        workspace: str | PathLike[str] | None = None,
        tools: Sequence[str | PathLike[str]] = (),
        keep_on: Sequence[str] = (),
        user: int | str | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        """Start `command` or `kernel`, or fork the snapshot or template `source`.

        Args:
            source: a snapshot, or the name of one or of a template (``python``, ``bash``, ``node``, or one of
                your own). The sandbox is a fork of it: it goes on where the snapshot was taken, with that
                one's memory, files and directory.
            command: text is a line for /bin/sh; a sequence is a program and its arguments.
            kernel: start a fresh kernel as the command, to run code in. A template starts faster.
            env: variables to add to the sandbox's own. Nothing of this process's environment goes in. A fork
                takes them only where a kernel is there to heed them.
            seed: makes what a fork's kernel calls random repeat itself; by default no two are alike.
            metadata: what to note of it, for `ramet.sandboxes.list`.
            cwd: absolute, inside the sandbox; by default its home.
            root: a directory of the host to use as ``/``; writes to it stay in the sandbox.
            limits: Limits, or a mapping such as ``{"disk": "64M"}``; a fork takes a mapping of those that
                differ from the snapshot's. ``wall`` holds only when it is asked for.
            timeout: seconds until everything in the sandbox is killed; by default never.
            name: for people, and for the command line; no two living sandboxes have the same.
            detach: live on after this process.
            ttl: seconds that a detached sandbox lives with nobody attached and nobody asking; 300 by default.
            encoding: of text given to stdin, and of the result's text.
            python: the interpreter of the host that the default root shows; by default this one.
            workspace: a directory of the host that is copied to ``/workspace`` before anything starts, where
                the command, and further ones, then begin. Nothing goes back but by `export`.
            tools: further directories of the host to show in the default root, read-only, each at its own
                path. Their ``bin`` directories come first in PATH.
            keep_on: ``["timeout"]`` has its state kept before its timeout ends it, ``["oom"]`` before its
                want of memory does: as a snapshot, which `kept` of the result names. Where that cannot be,
                `kept_error` says why. It ends 8 s later at most.
            user: whose the command is, and further commands and terminals: a uid, ``"UID:GID"``, or ``root``,
                the default. While another's command runs, no fork can be made. The home, and what `files` and
                `workspace` write, are root's.
            client: whose daemon to use; by default the user's own.

        Raises:
            InvalidRequest: an argument is wrong; `field` names it. Nothing was started.
            IsolationError: the sandbox could not be made; `step` and `errno` say why. Nothing ran.
            DaemonError: the daemon could not be started, or ended meanwhile.
        """
        self._prepare(client or current(), DEFAULT_LIMITS.output, encoding)
        self._workspace = absolute(workspace)
        if self._workspace is not None:
            check_directory(self._workspace)
        self._request: CreateRequest | ForkRequest
        self._forked = Forked(seed=check_seed(seed), env=check_environment(env))
        if isinstance(tools, (str, bytes, PathLike)):
            raise InvalidRequest.of("tools", f"{tools!r:.80} is not a list of directories")
        self._client.check_place(root=root, tools=tools)
        if source is None:
            chosen = None if kernel is None else known_kernel(kernel)
            words = command if chosen is None else chosen.argv
            if words is None or (command is not None and chosen is not None):
                raise InvalidRequest.of(
                    "command",
                    "a sandbox has a command, a kernel, or a snapshot, and one of them",
                    hint='Sandbox("python"), or Sandbox(command=[...])',
                )
            if seed is not None:
                raise InvalidRequest.of("seed", "is for forks of a kernel")
            request = CreateRequest.of(
                words,
                kernel=None if chosen is None else KernelRef(chosen.name, chosen.channel),
                metadata=metadata,
                env=env if chosen is None else {**(env or {}), "RAMET_CHANNEL": "3"},
                cwd=WORKSPACE if cwd is None and workspace is not None else cwd,
                root=absolute(root),
                limits=limits,
                timeout=timeout,
                python=python or interpreter(),
                name=name,
                detach=detach,
                ttl=ttl,
                tools=[absolute(path) or "" for path in tools],
                keep_on=keep_on,
                user=user,
            )
            self._output = request.run.limits.output
            self._request = dataclasses.replace(request, held=workspace is not None)
        else:
            own = {
                "command": command,
                "cwd": cwd,
                "root": root,
                "kernel": kernel,
                "python": python,
                "user": user,
            }
            for field, value in {**own, "tools": tools or None}.items():
                if value is not None:
                    raise InvalidRequest.of(field, "is the snapshot's own, and no fork has another")
            snapshot = source.name if isinstance(source, Snapshot) else source
            if " " in str(snapshot):
                text = f"{snapshot!r:.80} is not the name of one"
                raise InvalidRequest.of("snapshot", text, hint="a command is given as command=")
            asked = (limits, timeout, name, metadata, ttl, keep_on or None)
            if all(one is None for one in asked) and detach is False and type(snapshot) is str:
                self._request = fork_of(snapshot)
            else:
                self._request = ForkRequest.of(
                    snapshot=snapshot,
                    limits=limits.asked() if isinstance(limits, Limits) else limits,
                    timeout=timeout,
                    names=None if name is None else [name],
                    metadata=metadata,
                    detach=detach,
                    ttl=ttl,
                    keep_on=keep_on,
                )
            self._output = int(self._request.children[0].limits.get("output", self._output))
        self._made()

    async def start(self) -> Self:
        """Open it, if that has not been done; returns itself."""
        if self._open is not None:
            return self
        held = await self._client.somewhere(self._make)
        self._take(held)
        await self._fill_workspace()
        if isinstance(self._request, CreateRequest):
            await self._boot()
        else:
            self._begin_life(self._forked, None)
        return self

    async def _make(self, client: AsyncClient) -> Held:
        if isinstance(self._request, CreateRequest):
            held = await _create(client, self._request)
        else:
            found = await _make_forks(client, self._request, plain=self._forked.plain)
            if found.errors:
                raise next(iter(found.errors.values()))
            held = found.held[0]
        self._client = client
        return held

    async def _fill_workspace(self) -> None:
        """Copy the host's directory in, and let the command begin that waits for it."""
        if self._workspace is None:
            return
        try:
            await self.files.upload(self._workspace, WORKSPACE)
            request = BeginRequest(self.id, WORKSPACE)
            self._here.held.info = SandboxInfo.from_wire(
                await self._client.ask("sandbox.begin", request.to_wire())
            )
        except BaseException:
            self.let_go()
            raise
        self.files.close()
        self._commands = self._files = None  # they begin elsewhere now

    async def _boot(self) -> None:
        code = self._here.code
        if code is None:
            return
        try:
            await code.boot()
        except BaseException:
            self.let_go()
            raise

    def _begin_life(self, forked: Forked, running: str | None) -> None:
        code = self._here.code
        self._env = dict(forked.env)
        if code is not None:
            if not (forked.plain and self._here.held.told):
                code.forked(running, seed=forked.seed, env=forked.env)
        elif not forked.plain:
            self.let_go()
            field = "env" if forked.env else "seed"
            raise InvalidRequest.of(field, "is for sandboxes with a kernel: no other process would heed it")

    def _take(self, held: Held) -> None:
        out, err = AsyncReader(held.stdout), AsyncReader(held.stderr)
        code = None
        if held.channel is not None and held.info.kernel is not None:
            kernel = get(held.info.kernel.name)
            code = AsyncCode(held, kernel, self._output, taken=not held.owner)
        self._open: _Open | None = _Open(held, AsyncWriter(held.stdin, self._encoding), out, err, code)

    @classmethod
    async def connect(
        cls, sandbox: str, *, client: AsyncClient | None = None, encoding: str = "utf-8"
    ) -> Self:
        """A living sandbox of this id or name, whoever made it. It does not end with this object.

        Its files, commands, forks and its end are there for all. Its standard streams come along where nobody
        else has them: those of a detached sandbox whose maker has gone, and with them its kernel.

        Raises InvalidRequest when there is none, SandboxEnded when it has ended.
        """
        asked = client or current()
        made: list[Made] = []
        request = SandboxRequest.from_wire({"sandbox": sandbox})
        try:
            await asked.ask("sandbox.attach", request.to_wire(), made=made)
            if not made or not made[0].fds:
                raise DaemonLost("malformed", "the daemon answered without a session")
            one = made.pop()
            held = Held(one.info, one.fds, owner=False)
        finally:
            for left in made:
                close_all(left.fds)
        return cls._of(held, asked.home_of(sandbox), DEFAULT_LIMITS.output, encoding)

    @classmethod
    def _of(cls, held: Held, client: AsyncClient, output: int, encoding: str) -> Self:
        made = cls.__new__(cls)
        made._prepare(client, output, encoding)  # noqa: SLF001  of this class
        made._workspace = None  # noqa: SLF001
        made._take(held)  # noqa: SLF001
        return made

    def _prepare(self, client: AsyncClient, output: int, encoding: str) -> None:
        check_output(encoding, {})
        self._client = client
        self._output = output
        self._encoding = encoding
        self._open = None
        self._result: CommandResult | None = None
        self._env = {}
        self._commands = None
        self._files = None

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

    @property
    def commands(self) -> AsyncCommands:
        """Further commands in it."""
        if self._commands is None:
            held = self._here.held
            self._commands = AsyncCommands(
                held.info.id, client=self._client, held=held, encoding=self._encoding, env=self._env
            )
        elif self._commands.sandbox != self.id:  # a fork has taken its place, as its end told
            self._commands.follow(self.id)
        return self._commands

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        if self._files is None:
            self._files = AsyncFiles(self.commands)
        return self._files

    @property
    def terminals(self) -> AsyncTerminals:
        """Terminals in it."""
        return AsyncTerminals(self.commands, encoding=self._encoding)

    async def logs(self, *, cursor: tuple[int, int] = (0, 0)) -> AsyncCommand:
        """Its first command as one of `commands`, with what it has written so far, whoever has its streams.

        Any number of readers can have it, each from where it likes: `cursor` is where to go on, as
        `AsyncCommand.cursor` told it. The limit ``output`` says how much is kept of each stream. It can be
        had for some minutes after the end, too. A fork's begins with the fork.

        Its standard input is its owner's: `AsyncCommand.send` is refused. Raises InvalidRequest for a sandbox
        whose command is a kernel: what that writes is told with the code that it ran.
        """
        if self.info.kernel is not None:
            raise InvalidRequest(
                "kernel_has_no_log",
                "the first command of this sandbox is a kernel, which has no log",
                hint="run_code tells what code has written; commands.start gives commands with logs",
            )
        return await self.commands.connect(FIRST, cursor=cursor)

    async def metrics(self) -> Metrics:
        """What it uses at the moment: processor time, memory, disk, processes."""
        return await self.files.usage()

    @property
    def ports(self) -> AsyncPorts:
        """Servers in it."""
        return AsyncPorts(self.commands)

    async def export(self, local: str | PathLike[str], path: str | None = None) -> int:
        """Copy its workspace, or what is at `path`, to a new place of the host; how many files.

        This and the reading methods of `files` are the only ways for files out of a sandbox, and no other but
        `files.download` writes on the host.
        """
        return await self.files.export(local, path)

    async def commit_to(
        self, other: AsyncSandbox, *, on_conflict: OnConflict = "refuse"
    ) -> tuple[Change, ...]:
        """Do to the files of `other` what was done to this one's since it was made, or forked; what that was.

        Fifos, sockets and devices are left out. A file that both have changed since, and differently, is a
        conflict; so is what one has put into a directory that the other took away.

        Args:
            other: the sandbox that this one was forked from, or another fork of the same state.
            on_conflict: ``refuse`` to change anything then, ``overwrite`` what `other` did, or ``keep`` that
                and do the rest.

        Raises CommitConflict, whose `paths` are the files that both have changed; FileError.
        """
        return await self.files.commit_to(_files_of(other), on_conflict=on_conflict)

    @overload
    async def diff(
        self, other: None = None, *, format: Literal["changes"] = "changes"
    ) -> tuple[Change, ...]: ...
    @overload
    async def diff(self, other: None = None, *, format: Literal["git"]) -> bytes: ...
    @overload
    async def diff(self, other: AsyncSandbox, *, format: Literal["changes"] = "changes") -> Difference: ...
    async def diff(
        self,
        other: AsyncSandbox | None = None,
        *,
        format: Literal["changes", "git"] = "changes",  # noqa: A002  as git's own option
    ) -> tuple[Change, ...] | Difference | bytes:
        """The files that are otherwise than when it was made, or forked, by path.

        With ``format="git"`` as a patch that ``git apply`` takes in ``/``; `files.patch` makes one of a
        directory alone.

        With another sandbox, the files and processes that are otherwise here than there. Both go on
        meanwhile: what they do may be told or not. Both have to stand on the same root, however they come
        from it; InvalidRequest (``other_root``) else.
        """
        if format not in {"changes", "git"}:
            raise InvalidRequest.of("format", f"{format!r:.40} is neither 'changes' nor 'git'")
        if format == "git":
            if other is not None:
                raise InvalidRequest.of("format", "'git' is for changes of one sandbox alone")
            return await self.files.patch()
        return await self.files.diff() if other is None else await self.files.compare(_files_of(other))

    async def processes(self) -> tuple[Process, ...]:
        """Its processes at the moment, by number; zombies too."""
        return await self.files.processes()

    # --- code ---------------------------------------------------------------------------------------------

    @property
    def _code(self) -> AsyncCode:
        code = self._here.code
        if code is None and self.info.kernel is not None:
            raise InvalidRequest(
                "kernel_elsewhere",
                "the kernel of this sandbox is another's, or went with an earlier daemon",
                hint="a fork of the sandbox has a kernel that is yours",
            )
        if code is None:
            raise InvalidRequest(
                "no_kernel",
                "this sandbox has no kernel to run code",
                hint="ramet.Sandbox('python') has one",
            )
        if self._here.held.session.fileno() < 0:
            if self._result is not None:
                raise _dead(self._here.held.info)
            raise InvalidRequest("not_held", "this object has let go of the sandbox")
        return code

    @property
    def fork_errors(self) -> tuple[str, ...]:
        """What failed of what the kernel does when it is forked, a line each; told with the first answer."""
        return self._code.fork_errors

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        on_stdout: Callable[[bytes], Any] | None = None,
        on_stderr: Callable[[bytes], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        context: str | None = None,
        stdin: str | bytes | None = None,
    ) -> Execution:
        """Run code in its kernel, which keeps its state from one call to the next.

        An error of the code is told by the Execution, and never raised here; see `Execution.check`.

        Args:
            code: what to run.
            timeout: seconds until it is interrupted. What does not heed that in 2 more ends with the sandbox.
            on_stdout: called with each piece of bytes as it arrives, which is in the Execution all the same.
            on_stderr: as `on_stdout`.
            on_result: called with each Result as it arrives.
            context: a name space of its own, made when it is first named; by default the kernel's main one.
            stdin: what is to be read from descriptor 0, for the first piece of code in a sandbox alone.

        Raises:
            InvalidRequest: an argument is wrong, the sandbox has no kernel, or that is busy.
            SandboxEnded: the kernel was dead before.
        """
        return await self._code.run(
            check_text(code, "code"),
            timeout=None if timeout is None else float(parse_limit(BY_NAME["wall"], timeout, "timeout")),
            context=None if context is None else check_name(check_text(context, "context"), "context"),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            stdin=None if stdin is None else bytes(view_of(stdin, self._encoding, "stdin")),
        )

    def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C does; the state is kept. When nothing runs, nothing happens."""
        self._code.interrupt()

    @property
    def running_code(self) -> str | None:
        """The id of the code that runs: for a fork, of what ran at that moment and has not ended here."""
        code = self._code
        return code.running or (None if code.inherited in code.past else code.inherited)

    async def attach(self, timeout: float | None = None) -> Execution:
        """How the code ended here that ran when this sandbox was forked.

        Its output is what it wrote since then. Raises WaitTimeout when it does not end in `timeout` seconds,
        InvalidRequest when nothing ran, SandboxEnded when the kernel died of it.
        """
        return await self._code.attach(timeout)

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
        flows = (held.stdout, held.stderr) if drain and not held.stdout.elsewhere else ()
        with contextlib.ExitStack() as using:
            for flow in flows:
                using.enter_context(flow.used())
            collectors = [Collector(flow, self._output) for flow in flows]
            try:
                await self._until_end(held, collectors, deadline_of(timeout))
                await self._until_read(collectors)
            except BaseException:
                for collector in collectors:
                    collector.give_back()
                raise
            out, err = [one.rest() for one in collectors] or (Captured(), Captured())
            self._result = result = result_of(held.info, out, err, self._encoding)
        return result

    @staticmethod
    async def _until_read(collectors: list[Collector]) -> None:
        """Read to the ends of the streams: core may have some of a command's last words still.

        With a process that does not die there may be no end.
        """
        deadline = deadline_of(LAST_WORDS_S)
        for one in collectors:
            while not one.flow.ended:
                if one.pull():
                    deadline = deadline_of(LAST_WORDS_S)
                    continue
                left = one.flow.descriptor  # -1 at the end
                if left >= 0 and not await ready(left, remaining(deadline)):
                    return

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
        deadline = deadline_of(END_PATIENCE_S)
        while not held.hear():
            if not await ready(held.session.fileno(), remaining(deadline)) and not remaining(deadline):
                raise DaemonLost("daemon_silent", f"the daemon does not end the sandbox {self.id}")

    async def aclose(self) -> None:
        """Let go of it: it ends now, unless it is detached. Its result, without output, can be had after."""
        if self._open is None or self._open.held.session.fileno() < 0:
            return
        held = self._open.held
        try:
            if held.owner and not held.info.detached and self._result is None:
                held.ask_end()
                await self._await_end(held)
                self._result = result_of(held.info, Captured(), Captured(), self._encoding)
        except DaemonLost:
            pass  # the sandbox went with it
        finally:
            self.let_go()

    def ask_end(self) -> None:
        """Have it ended without waiting for that, unless it is detached: the first half of `aclose`."""
        if self._open is not None and self._open.held.owner and not self._open.held.info.detached:
            self._open.held.ask_end()

    def let_go(self) -> None:
        """Close what this process has of it, without waiting: the second half of `aclose`."""
        if self._open is not None:
            if self._files is not None:
                self._files.close()
            if self._open.code is not None:
                self._open.code.close()
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
        env: Mapping[str, str] | None = None,
        seed: int | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        keep_on: Sequence[str] = (),
        on_unsupported: OnUnsupported = "refuse",
    ) -> AsyncSandbox: ...
    @overload
    async def fork(
        self,
        n: int,
        *,
        env: PerChild[Mapping[str, str] | None] = None,
        seed: PerChild[int | None] = None,
        limits: PerChild[Mapping[str, Any] | None] = None,
        metadata: PerChild[Mapping[str, str] | None] = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
        detach: bool = False,
        ttl: float | None = None,
        keep_on: Sequence[str] = (),
        on_unsupported: OnUnsupported = "refuse",
        on_error: OnError = "end",
    ) -> AsyncSandboxList: ...
    async def fork(
        self,
        n: int | None = None,
        *,
        env: PerChild[Mapping[str, str] | None] = None,
        seed: PerChild[int | None] = None,
        limits: PerChild[Mapping[str, Any] | None] = None,
        metadata: PerChild[Mapping[str, str] | None] = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        detach: bool = False,
        ttl: float | None = None,
        keep_on: Sequence[str] = (),
        on_unsupported: OnUnsupported = "refuse",
        on_error: OnError = "end",
    ) -> AsyncSandbox | AsyncSandboxList:
        """Fork it as it runs: without `n` one sandbox, with `n` a list of so many.

        Each child goes on where this one stood, with its memory, files and open descriptors of one instant,
        and standard streams of its own. This one does not notice. It does not matter to the children when it
        ends. Code that runs goes on in both: `attach` gives its end in the child. So do commands of
        `commands`: `child.commands.connect` follows one from here on.

        `env`, `seed`, `limits`, `metadata` are for all children alike, or lists with one item for each.

        Args:
            n: how many, from 1 to 1000.
            env: variables to set in the kernel's environment.
            seed: makes what a child's kernel calls random repeat itself; by default no two are alike.
            limits: those that differ from this one's, any of the table; of ``processes``, ``open_files``,
                ``file_size``, ``address_space`` and ``cpu_seconds`` no more than this one has.
            metadata: what to note of each.
            names: one for each of `n`.
            timeout: as for a new sandbox.
            name: of the one child, without `n`.
            detach: the children live on after this process.
            ttl: as for a new sandbox.
            keep_on: as for a new sandbox.
            on_unsupported: ``refuse`` to fork what holds something that cannot be carried, or ``drop`` that:
                `info.dropped` of each child tells what it lacks.
            on_error: ``end`` or ``keep`` the children that live when others could not be made.

        Raises:
            Unforkable: it holds something that cannot be carried; the message says what and where.
            SandboxEnded: it is dead; the message says of what.
            ForkError: some children could not be made, each for the reason in `errors`.
            InvalidRequest: an argument is wrong.
        """
        _check_on_error(on_error)
        if name is not None and n is not None:
            raise InvalidRequest.of("name", "is for one child: with a number of them, give names")
        count = 1 if n is None else n
        request = ForkRequest.of(
            sandbox=self.id,
            n=count,
            limits=limits,
            timeout=timeout,
            names=names if name is None else [name],
            metadata=metadata,
            detach=detach,
            ttl=ttl,
            keep_on=keep_on,
            on_unsupported=on_unsupported,
        )
        lives = Forked.of_each(count, seed, env)
        if self._result is not None:
            raise _dead(self.info)
        running = None if self._here.code is None else self._here.code.running
        try:
            children = await _forked(
                self._client,
                request,
                lives,
                output=self._output,
                encoding=self._encoding,
                running=running,
                on_error=on_error,
                source=self._here.held,
            )
        except InvalidRequest as error:
            raise await self.commands.unknown(error) from None
        return children[0] if n is None else children

    async def rollback(self, point: str | Snapshot) -> None:
        """Have it be again as it was in a snapshot, with its memory, processes and files, under the same id.

        Everything that runs in it is ended first. Its name, limits and metadata stay; a `timeout` that it was
        given is over. Whoever calls this has it afterwards: unless it is detached it ends with this object.
        Its standard streams are new ones: what was not read is lost, and who else was attached finds the end.
        Commands that ran at the snapshot go on, under the numbers that they had.

        Raises InvalidRequest when there is no such snapshot, SandboxEnded when it has ended, also in vain.
        """
        name = point.name if isinstance(point, Snapshot) else point
        request = RollbackRequest.of(self.id, name)
        before = self._here
        if self._result is not None:
            raise _dead(self.info)
        found = _Found()
        try:
            await self._client.ask(
                "sandbox.rollback", request.to_wire(), made=found.made, patience=FORK_PATIENCE_S
            )
            found.take()
        except BaseException:
            found.close()
            raise
        held = found.held[0]
        if self._files is not None:
            self._files.close()
        if before.code is not None:
            before.code.close()
        before.held.close()
        self._take(held)
        self._commands = self._files = None
        self._begin_life(Forked(seed=None, env=self._env), None)

    async def promote(self, over: str | AsyncSandbox | None = None) -> None:
        """Take the place of the one that it was forked from: its id, name, metadata and ttl. That one ends.

        It runs on as it is, with its limits, its streams and whoever has it; it is only called otherwise. Who
        has the other finds its end, and this one under the id that they know.

        Args:
            over: another ancestor, as an object, an id or a name, instead of the one that it is a fork of.

        Raises:
            InvalidRequest: it was not forked from that, code ``not_descendant``; it ends with its owner and
                that one does not, code ``not_detached``.
            SandboxEnded: one of them is dead.
            RametError: a snapshot of one of them is being taken, code ``capturing``, or it has not begun or
                is ending, code ``busy``. Both go on then.
        """
        place = over.id if isinstance(over, AsyncSandbox) else over
        request = PromoteRequest.of(self.id, place)
        if self._result is not None:
            raise _dead(self.info)
        answer = await self._client.ask("sandbox.promote", request.to_wire(), patience=END_PATIENCE_S)
        self._here.held.info = SandboxInfo.from_wire(answer)
        if self._commands is not None:
            self._commands.follow(self.id)

    async def pause(self, name: str | None = None) -> Snapshot:
        """Keep its state under a name, and end it; `resume` goes on from there.

        What it does between the two is lost, which is some milliseconds. Raises as `snapshot` does.
        """
        kept = await self.snapshot(name or f"paused-{self.id}", metadata={PAUSED: self.name or ""})
        await self.kill()
        return kept

    @classmethod
    async def resume(cls, paused: str | Snapshot, **options: Any) -> Self:
        """Go on from where `pause` kept a sandbox: a fork of that state, which is not kept any more.

        `paused` is that state, its name, or the id or name that the sandbox had: the latest state of it, if
        several are kept. `options` are those of a fork: `detach`, `ttl`, `timeout`, `limits`, `client` and so
        on.
        """
        from ramet.client._async import snapshots

        client = options.get("client")
        name = paused.name if isinstance(paused, Snapshot) else paused
        state = paused_as(name, await snapshots.list(client=client))
        if state is not None:
            name = state.name
            options.setdefault("name", state.metadata[PAUSED] or None)
        resumed = cls(name, **options)
        await resumed.start()
        if state is not None:
            try:
                await snapshots.remove(name, client=client)
            except BaseException:
                resumed.let_go()  # not killed: its state may be nowhere else any more
                raise
        return resumed

    async def snapshot(
        self,
        name: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        on_unsupported: OnUnsupported = "refuse",
    ) -> Snapshot:
        """Keep its state under `name`, for ``Sandbox(name)`` to fork later. It runs on.

        `metadata` is kept with it, and told by `ramet.snapshots.list`; `on_unsupported` is as for `fork`.

        Raises Unforkable, SandboxEnded as `fork` does, InvalidRequest when the name is taken or no name.
        """
        request = SnapshotRequest.of(self.id, name, metadata, on_unsupported)
        if self._result is not None:
            raise _dead(self.info)
        try:
            answer = await self._client.ask("sandbox.snapshot", request.to_wire(), patience=FORK_PATIENCE_S)
        except InvalidRequest as error:
            raise await self.commands.unknown(error) from None
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
    env: PerChild[Mapping[str, str] | None] = None,
    seed: PerChild[int | None] = None,
    limits: PerChild[Mapping[str, Any] | None] = None,
    metadata: PerChild[Mapping[str, str] | None] = None,
    names: Sequence[str] | None = None,
    timeout: float | None = None,
    detach: bool = False,
    ttl: float | None = None,
    keep_on: Sequence[str] = (),
    on_unsupported: OnUnsupported = "refuse",
    on_error: OnError = "end",
    client: AsyncClient | None = None,
) -> AsyncSandboxList:
    """Fork a sandbox that another process has, by its id or name, or a snapshot or template `n` times.

    Else as `AsyncSandbox.fork`.
    """
    _check_on_error(on_error)
    asked = client or current()
    request = ForkRequest.of(
        sandbox=sandbox,
        snapshot=snapshot,
        n=n,
        limits=limits,
        timeout=timeout,
        names=names,
        metadata=metadata,
        detach=detach,
        ttl=ttl,
        keep_on=keep_on,
        on_unsupported=on_unsupported,
    )
    lives = Forked.of_each(n, seed, env)
    return await _forked(
        asked, request, lives, output=DEFAULT_LIMITS.output, encoding="utf-8", running=None, on_error=on_error
    )


# --- the way to the daemon --------------------------------------------------------------------------------


class _Found:
    """What came of a request for sandboxes."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.held: list[Held] = []
        self.numbers: list[int] = []
        self.errors: dict[int, RametError] = {}

    def take(self, numbers: Sequence[int] | None = None) -> None:
        """Make what came into sandboxes, in order; `numbers`: what theirs are in the request."""
        while self.made:
            one = self.made[-1]
            self._add(one.number if numbers is None else numbers[one.number], Held(one.info, one.fds))
            self.made.pop()

    def take_forked(self, forking: Forking) -> list[int]:
        """Take what core made; the numbers that are for the daemon."""
        for number in list(forking.held):
            self._add(number, forking.held.pop(number))
        self.errors.update(forking.errors)
        return sorted(forking.refused)

    def _add(self, number: int, held: Held) -> None:
        place = bisect.bisect(self.numbers, number)
        self.held.insert(place, held)
        self.numbers.insert(place, number)

    def close(self) -> None:
        """Let go of everything."""
        self.take()
        for held in self.held:
            held.close()


async def _create(client: AsyncClient, request: CreateRequest) -> Held:
    found = _Found()
    try:
        await client.ask("sandbox.create", request.to_wire(), made=found.made)
        found.take()
    except BaseException:
        found.close()
        raise
    return found.held[0]


async def _fork(
    client: AsyncClient,
    request: ForkRequest,
    source: Held | None = None,
    *,
    plain: bool,
    fresh: bool = False,
) -> _Found:
    """Children, by core where it can be asked, and what is left of them by the daemon.

    `plain`: as for `Forking`. `fresh`: a server is to build its template anew before.
    """
    found = _Found()
    numbers = list(range(len(request.children)))
    try:
        known = client.forkables.get(request.sandbox or "")
        if source is not None:
            forking = await client.fork_live_past_daemon(request, source, FORK_PATIENCE_S, plain=plain)
        elif known is not None:
            # What runs in it is another's to know.
            forking = await client.fork_live_past_daemon(request, known, FORK_PATIENCE_S, plain=False)
        else:
            forking = await client.fork_past_daemon(request, FORK_PATIENCE_S, plain=plain)
        if forking is not None:
            numbers = found.take_forked(forking)
        if numbers:
            asked = dataclasses.replace(request, children=tuple([request.children[one] for one in numbers]))
            wire = asked.to_wire() | ({"fresh": True} if fresh else {})
            answer = await client.ask("sandbox.fork", wire, made=found.made, patience=FORK_PATIENCE_S)
            found.take(numbers)
            for number, error in ForkReport.from_wire(answer).errors:
                found.errors[numbers[number]] = RametError.from_wire(error)
    except BaseException:
        found.close()
        raise
    return found


async def _forked(
    client: AsyncClient,
    request: ForkRequest,
    lives: list[Forked],
    *,
    output: int,
    encoding: str,
    running: str | None,
    on_error: OnError,
    source: Held | None = None,
) -> AsyncSandboxList:
    """The children of `request`, each told that it is one. `running` is what the source ran meanwhile."""
    plain = running is None and all(one.plain for one in lives)
    client, found = await _forked_somewhere(client, request, source, plain=plain)
    children = AsyncSandboxList()
    try:
        for number, held in zip(found.numbers, found.held, strict=True):
            kept = int(request.children[number].limits.get("output", output))
            child = AsyncSandbox._of(held, client, kept, encoding)  # noqa: SLF001
            children.append(child)
            child._begin_life(lives[number], running)  # noqa: SLF001
    except BaseException:
        found.close()
        raise
    await _check_all(children, found, len(request.children), on_error)
    return children


async def _forked_somewhere(
    client: AsyncClient, request: ForkRequest, source: Held | None, *, plain: bool
) -> tuple[AsyncClient, _Found]:
    """Children, and the client of the place where they are: their parent's, or any with room."""

    async def make(one: AsyncClient) -> tuple[AsyncClient, _Found]:
        return one, await _make_forks(one, request, source, plain=plain)

    if request.snapshot is not None:
        return await client.somewhere(make)
    found = await _make_forks(client, request, source, plain=plain)
    return client.home_of(request.sandbox or ""), found


async def _make_forks(
    client: AsyncClient, request: ForkRequest, source: Held | None = None, *, plain: bool
) -> _Found:
    """As `_fork`; a built-in template is built if need be, and anew when the host has changed under it."""
    if request.snapshot not in BUILT_IN:
        try:
            return await _fork(client, request, source, plain=plain)
        except InvalidRequest as error:
            if error.code == "unknown_snapshot" and not error.hint:
                error.hint = near(request.snapshot or "", BUILT_IN)
            raise
    from ramet.client._async.templates import ensure

    name = request.snapshot
    try:
        # A server knows its own.
        kept = name if client.remote is not None else await ensure(name, client)
        return await _fork(client, _of_snapshot(request, kept), plain=plain)
    except RametError as error:
        if (
            not isinstance(error, SnapshotError)
            and error.field != "snapshot"
            and error.code != "image_version"
        ):
            raise
        if client.remote is not None:
            return await _fork(client, request, plain=plain, fresh=True)
        kept = await ensure(name, client, fresh=True)
        return await _fork(client, _of_snapshot(request, kept), plain=plain)


def _of_snapshot(request: ForkRequest, name: str) -> ForkRequest:
    return dataclasses.replace(request, snapshot=name)


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


def _files_of(other: object) -> AsyncFiles:
    if not isinstance(other, AsyncSandbox):
        raise InvalidRequest.of("other", f"must be a sandbox, not {type(other).__name__}")
    return other.files


def _dead(info: SandboxInfo) -> SandboxEnded:
    return ended_error(info, f"the sandbox {info.name or info.id} has ended: {info.how_it_ended()}")
