# Generated from _async/commands.py by scripts/unasync.py. Do not edit.
"""Commands in a sandbox that stands.

They are asked for on lanes, past the daemon. Core keeps what they write in logs, so a command goes on when
whoever started it goes, and any number of readers can follow it, each at its own pace.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import IO, Any, Literal, Self, overload

from ramet.client._backends._sync import deliver, poll
from ramet.client._commands import (
    BIG,
    CoreLink,
    Disconnected,
    Following,
    check_cursor,
    malformed,
    new_command_id,
    own,
    signal_of,
)
from ramet.client._exchange import Peer, Stale
from ramet.client._held import Held, ended_error
from ramet.client._streams import CHUNK, Source, check_output, check_size, view_of
from ramet.client._sync.api import current
from ramet.client._sync.client import ATTEMPTS, PATIENCE_S, Client
from ramet.client._sync.streams import LINE_MAX, deadline_of, remaining
from ramet.errors import DaemonLost, InvalidRequest, RametError, WaitTimeout
from ramet.models.checks import check_sandbox
from ramet.models.commands import (
    CommandInfo,
    CommandRequest,
    SandboxLane,
    SandboxLaneRequest,
    check_command_id,
)
from ramet.models.limits import DEFAULT_LIMITS
from ramet.models.results import CommandResult
from ramet.models.sandboxes import SandboxInfo
from ramet.models.users import ROOT, single_uid_error
from ramet.native import _protocol as p
from ramet.native import frames
from ramet.native.frames import FrameError, raw, u32
from ramet.native.started import about, command_infos, explained_start, start_payload

OnBytes = Callable[[bytes], Any]
Words = str | Sequence[str | bytes | PathLike[str]]
Stdin = bytes | str | int | IO[Any]
# Core tells of a sandbox's end some milliseconds after it stopped taking commands, or seconds when a process
# does not die.
ENDING_S = 7.0
INPUT_PATIENCE_S = 7 * 86400.0


class Commands:
    """The commands of one sandbox."""

    def __init__(
        self,
        sandbox: str,
        *,
        client: Client | None = None,
        held: Held | None = None,
        encoding: str = "utf-8",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Those of the sandbox of this id or name; `held` is it, where this process has it."""
        self._sandbox = check_sandbox(sandbox)
        self._client = client or current()
        self._held = held
        self._encoding = encoding
        self._env = dict(env or {})
        self._lane: SandboxLane | None = None

    @property
    def sandbox(self) -> str:
        """The sandbox, by its id or name."""
        return self._sandbox

    def follow(self, sandbox: str) -> None:
        """It has another id now: so have its commands, and what has these."""
        self._sandbox = sandbox
        self._lane = None

    def beside(self) -> dict[str, Any]:
        """What makes another client of the place where it is."""
        return self._client.home_of(self._sandbox).beside()

    # --- what users call ----------------------------------------------------------------------------------

    @overload
    def run(
        self,
        command: Words,
        *,
        background: Literal[False] = False,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        stdin: Stdin | None = None,
        on_stdout: OnBytes | None = None,
        on_stderr: OnBytes | None = None,
        check: bool = False,
        encoding: str | None = None,
    ) -> CommandResult: ...
    @overload
    def run(
        self,
        command: Words,
        *,
        background: Literal[True],
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        encoding: str | None = None,
    ) -> Command: ...
    def run(
        self,
        command: Words,
        *,
        background: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        stdin: Stdin | bool | None = None,
        on_stdout: OnBytes | None = None,
        on_stderr: OnBytes | None = None,
        check: bool = False,
        encoding: str | None = None,
    ) -> CommandResult | Command:
        """Run a command and return its result; with `background` as `start` does.

        It has its own session, the sandbox's limits, and no capability. What it started and left behind goes
        on after it; at a timeout, a kill or the cancelling of this call all of that is killed too.

        Args:
            command: text is a line for /bin/sh; a sequence is a program and its arguments.
            background: return as soon as it runs.
            env: variables to add to the sandbox's.
            cwd: absolute; by default the sandbox's home.
            user: a uid, ``"UID:GID"``, or ``root``; by default the sandbox's own, which is root unless it was
                made with another.
            timeout: seconds until it is killed, with the exit code 124; by default the limit ``wall``, 300,
                and none in the background.
            stdin: text, bytes, a file or a descriptor to feed it from; by default it reads /dev/null.
            on_stdout: called with each piece of bytes as it arrives; in the result all the same.
            on_stderr: as `on_stdout`.
            check: raise CommandFailed unless it exits with 0.
            encoding: of text given as `stdin`, and of the result's text; by default the sandbox's.

        Raises:
            InvalidRequest: an argument is wrong; `field` names it. Nothing was started.
            SandboxEnded: the sandbox is dead; the message says of what.
            IsolationError: a step of confining the command failed. It did not run.
            DaemonError: the daemon, or core, ended meanwhile.
            CommandFailed: only with `check`.
        """
        if background:
            if on_stdout is not None or on_stderr is not None or check:
                raise InvalidRequest.of("background", "has no callbacks and no check: wait() takes them")
            if stdin is not None and not isinstance(stdin, bool):
                raise InvalidRequest.of("stdin", "is true or false in the background: send() takes the bytes")
            return self.start(
                command, env=env, cwd=cwd, user=user, timeout=timeout, stdin=bool(stdin), encoding=encoding
            )
        used = encoding or self._encoding
        check_output(used, {"on_stdout": on_stdout, "on_stderr": on_stderr})
        if isinstance(stdin, bool):
            raise InvalidRequest.of(
                "stdin", "is what to feed it from, unless it is started in the background"
            )
        request = CommandRequest.of(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=DEFAULT_LIMITS.wall if timeout is None else timeout,
            stdin=stdin is not None,
        )
        if stdin is None and on_stdout is None and on_stderr is None:
            result = self._run_quietly(request, used)
        else:
            source = None if stdin is None else Source(stdin, used)
            result = self._run_followed(request, source, (on_stdout, on_stderr), used)
        return result.check() if check else result

    def start(
        self,
        command: Words,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        encoding: str | None = None,
    ) -> Command:
        """Start a command and return as soon as it runs. It goes on when nobody holds the result any more.

        `stdin` true: `Command.send` feeds it. Else as `run`.
        """
        used = encoding or self._encoding
        check_output(used, {})
        request = CommandRequest.of(command, env=env, cwd=cwd, user=user, timeout=timeout, stdin=stdin)
        return self._begin(request, used, changes=False)

    def list(self) -> tuple[CommandInfo, ...]:
        """Those that run, and those started by `start` that ended in the last minutes; the oldest first.

        The sandbox's first command, which `Sandbox.logs` gives, and code in its kernel, are not among
        them.
        """
        frame = self.ask_core(p.COMMANDS, lambda lane: frames.u64(p.TAG_SANDBOX, lane.number), ended=True)
        try:
            return command_infos(frame.payload)
        except FrameError as error:
            raise malformed(error) from None

    def connect(
        self, command: int, *, cursor: tuple[int, int] = (0, 0), encoding: str | None = None
    ) -> Command:
        """Attach to a command, also for some minutes after its end, and its sandbox's.

        `cursor` is where to go on reading, as `Command.cursor` told it; by default at the beginning. In
        a fork that is where the command stood then: what it had written before its parent's log has alone.
        1 is the sandbox's first command, as `Sandbox.logs` gives it.

        Raises InvalidRequest when the sandbox has no such command.
        """
        number, places = check_command_id(command), check_cursor(cursor)
        used = encoding or self._encoding
        check_output(used, {})
        following, pid = self._attach(number, changes=False)
        try:
            places = following.begin(places)
        except BaseException:
            following.close()
            raise
        return Command(self, number, pid, following, cursor=places, encoding=used)

    def kill(self, command: int) -> None:
        """Kill every process of a command, wherever it went, also what it left behind when it ended."""
        number = check_command_id(command)
        self.ask_core(p.KILL_COMMAND, lambda lane: about(lane, number), ended=True)

    def send_signal(self, command: int, signal: int | str) -> None:
        """Send a signal, a number or a name, to the process group that a command began with.

        Raises InvalidRequest when the sandbox has no such command, or that has ended.
        """
        number, kind = check_command_id(command), signal_of(signal)
        self.ask_core(p.SIGNAL, lambda lane: about(lane, number, u32(p.TAG_SIGNAL, kind)))

    def forget(self) -> None:
        """Give up the results of commands that have ended, which are kept for some minutes."""
        self.ask_core(p.FORGET, lambda lane: frames.u64(p.TAG_SANDBOX, lane.number), ended=True)

    # --- starting -----------------------------------------------------------------------------------------

    def _run_quietly(self, request: CommandRequest, encoding: str) -> CommandResult:
        """Nobody wants its output before its end: that is the one answer."""
        number = new_command_id()
        try:
            frame, lane = self._start(request, number, p.START_AT_END)
        except Disconnected:
            following, _ = self._reattach(number)
            lane = self.known()
        else:
            following = Following(own(frame.fds))
        try:
            self._until_over(following, deadline_of(request.timeout and request.timeout + PATIENCE_S))
            return _result(following, lane, encoding)
        finally:
            following.close()

    def _run_followed(
        self,
        request: CommandRequest,
        source: Source | None,
        callbacks: tuple[OnBytes | None, OnBytes | None],
        encoding: str,
    ) -> CommandResult:
        # For the end of a cancelled call, when nothing can be waited for.
        spare = self._link()
        try:
            return self._followed(request, source, callbacks, encoding, spare)
        finally:
            self._client.give_back_link(spare)

    def _followed(
        self,
        request: CommandRequest,
        source: Source | None,
        callbacks: tuple[OnBytes | None, OnBytes | None],
        encoding: str,
        spare: CoreLink,
    ) -> CommandResult:
        command = self._begin(request, encoding, changes=True)
        lane = self.known()
        try:
            feeding = None if source is None else _Feeding(self, lane, command.id, source, encoding)
            try:
                if feeding is not None:
                    feeding.link = self._link()
                command._follow(callbacks, feeding, None)  # noqa: SLF001
                return command.wait()
            finally:
                if feeding is not None and feeding.link is not None:
                    self._client.give_back_link(feeding.link)
        except BaseException:
            spare.abandon(about(lane, command.id))
            raise
        finally:
            command.close()

    def _begin(self, request: CommandRequest, encoding: str, *, changes: bool) -> Command:
        flags = (p.START_STDIN if request.stdin else 0) | (p.START_CHANGES if changes else 0)
        flags |= p.START_TERMINAL if request.window else 0
        number = new_command_id()
        try:
            frame, _ = self._start(request, number, flags)
        except Disconnected:
            following, pid = self._reattach(number, changes=changes)
        else:
            following, pid = Following(own(frame.fds)), frames.attributes(frame.payload).u32(p.TAG_PID)
        return Command(self, number, pid, following, encoding=encoding)

    def _start(self, request: CommandRequest, number: int, flags: int) -> tuple[frames.Frame, SandboxLane]:
        """The answer to START. Cancelled, or interrupted, it kills what it may have started."""
        patience = PATIENCE_S
        if flags & p.START_AT_END:
            patience = INPUT_PATIENCE_S if request.timeout is None else request.timeout + PATIENCE_S
        for _ in range(ATTEMPTS):
            link = self._link()
            lane = self.known()
            request = request.of_user(lane.user)
            if request.user != ROOT and lane.single_uid:
                self._client.give_back_link(link)
                raise single_uid_error()
            try:
                link.send(p.START, start_payload(lane, request, number, flags=flags, env=self._env))
                return self._answer(link, patience), lane
            except Stale:
                self._lane = None
            except Disconnected:
                self._lane = None
                raise
            except RametError as error:
                raise self._explained(explained_start(error, request)) from None
            except BaseException:
                link.abandon(about(lane, number))
                raise
            finally:
                self._client.give_back_link(link)
        raise DaemonLost("daemon_lost", "the daemon ends whenever it is asked")

    def _reattach(self, number: int, *, changes: bool = False) -> tuple[Following, int]:
        """The command again whose lane ended. One that is not there was not started, or ended with core."""
        try:
            return self._attach(number, changes=changes)
        except InvalidRequest as error:
            if error.code == "unknown_command":
                raise Disconnected from None
            raise

    def _attach(self, number: int, *, changes: bool) -> tuple[Following, int]:
        flags = u32(p.TAG_FLAGS, p.START_CHANGES if changes else 0)
        frame = self.ask_core(p.ATTACH, lambda lane: about(lane, number, flags), ended=True)
        return Following(own(frame.fds)), frames.attributes(frame.payload).u32(p.TAG_PID)

    # --- the way to core ----------------------------------------------------------------------------------

    def ask_core(
        self,
        kind: int,
        payload: Callable[[SandboxLane], bytes],
        *,
        ended: bool = False,
        patience: float = PATIENCE_S,
        fds: Sequence[int] = (),
    ) -> frames.Frame:
        """The answer to a request that may be repeated. The descriptors stay the caller's.

        What core answers of commands that outlive their sandbox is asked with `ended`: else the answer would
        depend on whether a lane is at hand.
        """
        for _ in range(ATTEMPTS):
            link = self._link(ended=ended)
            try:
                link.send(kind, payload(self.known(ended=ended)), fds)
                return self._answer(link, patience)
            except (Stale, Disconnected):
                self._lane = None
            except RametError as error:
                raise self._explained(error) from None
            finally:
                self._client.give_back_link(link)
        raise DaemonLost("daemon_lost", "the daemon ends whenever it is asked")

    def _answer(self, link: CoreLink, patience: float) -> frames.Frame:
        deadline = time.monotonic() + patience
        # No answer is there at once: to look first would be a system call for nothing.
        while True:
            self._client.wait_link(link, deadline)
            if (frame := link.receive()) is not None:
                return frame

    def known(self, *, ended: bool = False) -> SandboxLane:
        """What commands of the sandbox begin with."""
        if self._lane is None:
            request = SandboxLaneRequest(self._sandbox, socket=False, ended=ended)
            try:
                answer = self._client.ask("sandbox.commands", request.to_wire())
            except InvalidRequest as error:
                raise self.unknown(error) from None
            self._lane = SandboxLane.from_wire(answer)
        return self._lane

    def living(self) -> None:
        """Raises what an operation on it would, when it has ended or never was."""
        self._lane = None
        self.known()

    def _link(self, *, ended: bool = False) -> CoreLink:
        if self._lane is not None:
            link = self._client.idle_link(self._lane.core_id)
            if link is not None:
                return link
        request = SandboxLaneRequest(self._sandbox, ended=ended)
        try:
            link, answer = self._client.open_link("sandbox.commands", request.to_wire())
        except InvalidRequest as error:
            raise self.unknown(error) from None
        self._lane = SandboxLane.from_wire(answer)
        link.core_id = self._lane.core_id
        return link

    def _explained(self, error: RametError) -> RametError:
        """What core knows only as the lack of something has a cause."""
        if error.code in {"unknown_command", "command_ended"}:
            hint = "commands.list() tells which there are; ends are kept for minutes, a kernel has no log"
            return InvalidRequest.of(
                "command", error.message, code=error.code,
                hint=hint if error.code == "unknown_command" else None,
            )  # fmt: skip
        if error.code not in {"unknown_sandbox", "sandbox_ended"}:
            return error
        return self.why_gone(error)

    def unknown(self, error: InvalidRequest) -> RametError:
        """A daemon that has not heard of what is held here came after the one that had it."""
        return self.why_gone(error) if error.code == "unknown_sandbox" and self._held else error

    def wait_link(self, link: Peer, deadline: float) -> None:
        """Wait for something to come over `link`. Raises DaemonLost when nothing does in time."""
        self._client.wait_link(link, deadline)

    def why_gone(self, error: RametError) -> RametError:
        """The end of the sandbox as an error; `error` when it has none."""
        if self._held is None or self._held.session.fileno() < 0:
            # The daemon waits for an end that is under way, and tells of what.
            ending = SandboxLaneRequest(self._sandbox, socket=False, ending=True)
            try:
                self._client.ask("sandbox.commands", ending.to_wire())
            except RametError as cause:
                return cause
            return error
        info = self._heard_end(self._held)
        if info is None:
            return error
        return ended_error(info, f"the sandbox {info.name or info.id} has ended: {info.how_it_ended()}")

    def _heard_end(self, held: Held) -> SandboxInfo | None:
        deadline = deadline_of(ENDING_S)
        with select.epoll() as poller:
            poller.register(held.session, select.EPOLLIN)
            while not held.hear() and remaining(deadline):
                poll(poller, remaining(deadline))
        return held.info if held.ended else None

    def _until_over(self, following: Following, deadline: float | None) -> None:
        if following.hear():
            return
        with select.epoll() as poller:
            poller.register(following.wakeup, select.EPOLLIN)
            while not following.hear():
                if not poll(poller, remaining(deadline)) and deadline is not None and not remaining(deadline):
                    raise WaitTimeout("wait_timeout", "the command has not ended in this time")


def _result(following: Following, lane: SandboxLane, encoding: str) -> CommandResult:
    try:
        return following.log.result(lane, encoding)
    except FrameError as error:
        raise malformed(error) from None


class _Feeding:
    """Sends a command its standard input, one piece after the other, each when the one before was read."""

    def __init__(
        self, commands: Commands, lane: SandboxLane, number: int, source: Source, encoding: str
    ) -> None:
        self.link: CoreLink | None = None
        self.over = False
        self._commands = commands
        self._lane = lane
        self._number = number
        self._source = source
        self._encoding = encoding

    @property
    def input(self) -> int:
        """The descriptor that has to get readable before `step` can go on; -1: none."""
        idle = not self.over and self.link is not None and not self.link.busy
        return self._source.input if idle and not self._source.waiting else -1

    def step(self) -> None:
        """Go on as far as nothing has to be waited for."""
        link = self.link
        if self.over or link is None:
            return
        try:
            if link.busy and link.receive() is None:
                return
            if not self._source.waiting and not self._source.exhausted:
                if not self._source.ready:
                    return
                self._source.refill(self._encoding)
            piece = self._source.piece(p.INPUT_MAX)
            ends = self._source.exhausted
            flags = u32(p.TAG_FLAGS, p.INPUT_END if ends else 0)
            link.send(p.INPUT, about(self._lane, self._number, flags, raw(p.TAG_BYTES, piece)))
            self.over = ends
        except (Stale, Disconnected):
            raise DaemonLost("core_lost", "core ended while the command was fed") from None
        except RametError as error:
            if error.code not in {"stdin_closed", "unknown_sandbox", "unknown_command"}:
                raise
            self.over = True  # it reads no more: its end tells the rest


class Command:
    """A command that was started, or attached to. It goes on when this object does not."""

    def __init__(
        self,
        commands: Commands,
        number: int,
        pid: int,
        following: Following,
        *,
        cursor: tuple[int, int] = (0, 0),
        encoding: str,
    ) -> None:
        """Takes `following`."""
        self._commands = commands
        self._following = following
        self._encoding = encoding
        self._result: CommandResult | None = None
        self.id = number
        """Its number in the sandbox, for `Commands.connect`."""
        self.pid = pid
        """The pid of its first process, inside."""
        self.stdout = Output(commands, number, 0, cursor[0])
        self.stderr = Output(commands, number, 1, cursor[1])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, pid {self.pid}, {'running' if self.running else 'ended'}>"

    @property
    def cursor(self) -> tuple[int, int]:
        """How much of stdout and stderr was read through this object: where another may go on."""
        return self.stdout.position, self.stderr.position

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self._result is None and not self._following.hear()

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_stdout: OnBytes | None = None,
        on_stderr: OnBytes | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Its result, with all that it wrote up to the limit ``output``, whoever has read of that before.

        Callbacks get what follows the cursor, as it arrives. Raises WaitTimeout when it does not end in
        `timeout` seconds; it goes on.
        """
        check_output(self._encoding, {"on_stdout": on_stdout, "on_stderr": on_stderr})
        deadline = deadline_of(timeout)
        if on_stdout is not None or on_stderr is not None:
            following, _ = self._commands._attach(self.id, changes=True)  # noqa: SLF001
            own_one, self._following = self._following, following
            own_one.close()
            self._follow((on_stdout, on_stderr), None, deadline)
        if self._result is None:
            self._commands._until_over(self._following, deadline)  # noqa: SLF001
            lane = self._commands.known(ended=True)
            self._result = _result(self._following, lane, self._encoding)
        return self._result.check() if check else self._result

    def _follow(
        self,
        callbacks: tuple[OnBytes | None, OnBytes | None],
        feeding: _Feeding | None,
        deadline: float | None,
    ) -> None:
        """Deliver what it writes, and feed it, until it has ended."""
        following, outputs = self._following, (self.stdout, self.stderr)
        following.at[:] = self.cursor
        watched: set[int] = set()
        with select.epoll() as poller:
            if not following.over:
                poller.register(following.wakeup, select.EPOLLIN)
            if feeding is not None and feeding.link is not None:
                poller.register(feeding.link.sock, select.EPOLLIN)
            events: list[tuple[int, int]] = []
            while True:
                over = following.hear()
                for stream, callback in enumerate(callbacks):
                    while callback is not None and (data := following.take(stream)):
                        outputs[stream].position = following.at[stream]
                        deliver(callback, data)
                if over:
                    return
                if feeding is not None:
                    _feed(feeding, poller, watched)
                events = poll(
                    poller,
                    0.0 if feeding and not feeding.over and _ready(feeding, watched) else remaining(deadline),
                )
                if not events and deadline is not None and not remaining(deadline):
                    raise WaitTimeout("wait_timeout", "the command has not ended in this time")

    def output(self) -> Iterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """What it writes from the cursor on, as it arrives, until its end: the stream's name, and bytes."""
        following, _ = self._commands._attach(self.id, changes=True)  # noqa: SLF001
        following.at[:] = self.cursor
        streams: tuple[tuple[Literal["stdout", "stderr"], Output], ...] = (
            ("stdout", self.stdout), ("stderr", self.stderr),
        )  # fmt: skip
        try:
            with select.epoll() as poller:
                if not following.over:
                    poller.register(following.wakeup, select.EPOLLIN)
                while True:
                    over = following.hear()
                    for stream, (name, output) in enumerate(streams):
                        while data := following.take(stream, CHUNK):
                            output.check_gap(following)
                            output.position = following.at[stream]
                            yield name, data
                    if over:
                        return
                    poll(poller, -1.0)
        finally:
            following.close()

    def send(self, data: bytes | str, timeout: float | None = None) -> None:
        """Write to its standard input, and return when all of it is in its pipe.

        Raises RametError, code ``stdin_closed``, when it reads no more or was started without one;
        WaitTimeout when it does not read in time, and then part of it may have been written.
        """
        left = view_of(data, self._encoding)
        deadline = deadline_of(timeout)
        while left:
            self._input(bytes(left[: p.INPUT_MAX]), 0, deadline)
            left = left[p.INPUT_MAX :]

    def close_stdin(self) -> None:
        """It reads the end of its standard input from here on."""
        self._input(b"", p.INPUT_END, None)

    def _input(self, data: bytes, flags: int, deadline: float | None) -> None:
        patience = INPUT_PATIENCE_S if deadline is None else remaining(deadline)
        try:
            self._commands.ask_core(
                p.INPUT,
                lambda lane: about(lane, self.id, u32(p.TAG_FLAGS, flags), raw(p.TAG_BYTES, data)),
                ended=True,
                patience=patience,
            )
        except DaemonLost as error:
            if deadline is not None and error.code == "daemon_silent":
                raise WaitTimeout("wait_timeout", "the command did not read all of it in this time") from None
            raise

    def kill(self) -> None:
        """Kill every process of it, wherever it went; `wait` has the result then."""
        self._commands.kill(self.id)

    def send_signal(self, signal: int | str) -> None:
        """Send a signal, a number or a name, to the process group that it began with."""
        self._commands.send_signal(self.id, signal)

    def close(self) -> None:
        """Let go of it; it goes on."""
        self._following.close()
        self.stdout.close()
        self.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it, if it still runs, and let go of it."""
        try:
            if self._result is None and not self._following.hear():
                with contextlib.suppress(RametError):
                    self.kill()
                    self._commands._until_over(self._following, deadline_of(PATIENCE_S))  # noqa: SLF001
        finally:
            self.close()


def _ready(feeding: _Feeding, watched: set[int]) -> bool:
    """Whether `feeding` can go on without any event: a regular file is always ready."""
    return feeding.link is not None and not feeding.link.busy and not watched


def _feed(feeding: _Feeding, poller: select.epoll, watched: set[int]) -> None:
    feeding.step()
    wanted = {feeding.input} - {-1}
    for number in watched - wanted:
        poller.unregister(number)
    watched &= wanted
    for number in wanted - watched:
        with contextlib.suppress(PermissionError):
            poller.register(number, select.EPOLLIN)
            watched.add(number)


class Output:
    """One output stream of a command, from a position on. Iterating gives lines."""

    def __init__(self, commands: Commands, number: int, stream: int, position: int) -> None:
        self._commands = commands
        self._number = number
        self._stream = stream
        self._following: Following | None = None
        self._buffer = bytearray()
        self._lost = 0
        self.position = position
        """How many bytes of the stream lie behind."""

    def read(self, size: int = BIG, timeout: float | None = None) -> bytes:
        """The next bytes, `size` at most, as soon as there are any; none at the end of the command.

        Raises WaitTimeout when nothing comes in `timeout` seconds; RametError, code ``output_left_out``, once
        for a gap: the command wrote more than its log holds before this was read.
        """
        check_size(size)
        deadline = deadline_of(timeout)
        while not self._buffer:
            if not self._more(deadline):
                return b""
        return self._take(size)

    def readline(self, timeout: float | None = None, size: int = LINE_MAX) -> bytes:
        """The next line with its end. It lacks that at the end of the command, and after `size` bytes."""
        check_size(size)
        deadline = deadline_of(timeout)
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned, size)) < 0 and len(self._buffer) < size:
            scanned = len(self._buffer)
            if not self._more(deadline):
                return self._take(size)
        return self._take(end + 1 if end >= 0 else size)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.position += len(taken)
        return taken

    def give_back(self, data: bytes | bytearray) -> None:
        """What was read last is the next again."""
        self._buffer[:0] = data
        self.position -= len(data)

    def _more(self, deadline: float | None) -> bool:
        """Put more into the buffer; False at the end."""
        if self._following is None:
            self._following, _ = self._commands._attach(self._number, changes=True)  # noqa: SLF001
            self._following.at[self._stream] = self.position + len(self._buffer)
        following = self._following
        with select.epoll() as poller:
            if not following.over:
                poller.register(following.wakeup, select.EPOLLIN)
            while True:
                over = following.hear()
                if data := following.take(self._stream):
                    self._buffer += data
                    self.check_gap(following)
                    return True
                if over:
                    return False
                if not poll(poller, remaining(deadline)) and deadline is not None and not remaining(deadline):
                    raise WaitTimeout("wait_timeout", "the command wrote nothing more in this time")

    def check_gap(self, following: Following) -> None:
        """Say once that bytes are missing here."""
        lost = following.lost[self._stream] - self._lost
        if lost:
            self._lost += lost
            self.position += lost
            text = f"{lost} bytes were written before a fork, or replaced before they were read"
            raise RametError("output_left_out", text, hint="the limit output says how much is kept")

    def close(self) -> None:
        """Stop reading."""
        if self._following is not None:
            self._following.close()
            self._following = None
