# Generated from _async/terminals.py by scripts/unasync.py. Do not edit.
"""Terminals in a sandbox that stands: commands whose streams are a terminal of the sandbox's own.

Core has the other end and keeps what is written to it in a log, as of any command: a terminal goes on when
whoever opened it goes, and any number of readers can follow it, or come back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Self

from ramet.client._commands import BIG, Following, Typing, check_position, malformed
from ramet.client._streams import check_output
from ramet.client._sync.commands import Command, Commands, Words
from ramet.client._sync.streams import deadline_of, remaining
from ramet.errors import InvalidRequest
from ramet.models.commands import CommandInfo, CommandRequest, check_command_id, check_window
from ramet.models.results import CommandResult
from ramet.native import _protocol as p
from ramet.native.frames import FrameError, u32
from ramet.native.started import about, packed_window

SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null && exec bash; exec sh")
"""The sandbox's shell: bash where it has one."""
TERM = "xterm-256color"
SCROLLBACK = 1 << 16


class Terminals:
    """The terminals of one sandbox."""

    def __init__(self, commands: Commands, *, encoding: str = "utf-8") -> None:
        """Those of the sandbox that `commands` are of."""
        self._commands = commands
        self._encoding = encoding

    def create(
        self,
        command: Words | None = None,
        *,
        size: tuple[int, int] = (24, 80),
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        user: int | str | None = None,
        timeout: float | None = None,
        encoding: str | None = None,
    ) -> Terminal:
        """Open a terminal with a command in it, and return as soon as that runs.

        The terminal ends with its command. What that left behind goes on, and has no terminal any more.

        Args:
            command: as of `Commands.run`; by default a shell.
            size: rows and columns.
            env: variables to add to the sandbox's. ``TERM`` is xterm-256color unless one of both has it.
            cwd: absolute; by default the sandbox's home.
            user: a uid, ``"UID:GID"``, or ``root``, the default.
            timeout: seconds until everything in it is killed; by default it has none.
            encoding: of text given to `write`, and of the result's text.

        Raises:
            InvalidRequest: an argument is wrong; `field` names it. Nothing was started.
            SandboxEnded: the sandbox is dead; the message says of what.
            IsolationError: a step of confining the command failed. It did not run.
        """
        used = encoding or self._encoding
        check_output(used, {})
        known = {"TERM": TERM, **(self._commands.known()).environment}
        request = CommandRequest.of(
            SHELL if command is None else command,
            env={"TERM": known["TERM"], **(env or {})},
            cwd=cwd,
            user=user,
            timeout=timeout,
            stdin=True,
            window=check_window(size),
        )
        return Terminal(self._commands, self._commands._begin(request, used, changes=False))  # noqa: SLF001

    def list(self) -> tuple[CommandInfo, ...]:
        """Those that are open, and those that ended in the last minutes; the oldest first."""
        return tuple([one for one in self._commands.list() if one.window is not None])

    def connect(
        self,
        terminal: int,
        *,
        cursor: int | None = None,
        scrollback: int = SCROLLBACK,
        encoding: str | None = None,
    ) -> Terminal:
        """Attach to a terminal, also for some minutes after its end.

        Reading goes on at `cursor`, as `Terminal.cursor` told it; without one, `scrollback` bytes before
        the end of what was written so far. Raises InvalidRequest when there is no such terminal.
        """
        number = check_command_id(terminal)
        used = encoding or self._encoding
        check_output(used, {})
        back = check_position(scrollback, "scrollback")
        at = None if cursor is None else check_position(cursor, "cursor")
        following, pid = self._commands._attach(number, changes=False)  # noqa: SLF001
        try:
            header = following.log.header()
            if not header.terminal:
                raise InvalidRequest.of(
                    "terminal", "this command has no terminal", hint="commands.connect() attaches to it"
                )
            if at is not None:
                at, _ = following.begin((at, 0))
            else:
                at = following.log.oldest(header, 0, max(0, header.total(0) - back))
        except FrameError as error:
            following.close()
            raise malformed(error) from None
        except BaseException:
            following.close()
            raise
        command = Command(self._commands, number, pid, following, cursor=(at, 0), encoding=used)
        return Terminal(self._commands, command)

    def kill(self, terminal: int) -> None:
        """Kill every process that was started in it, wherever it went."""
        self._commands.kill(terminal)


class Terminal:
    """A terminal that was opened, or attached to. It stays when this object does not."""

    def __init__(self, commands: Commands, command: Command) -> None:
        """Takes `command`."""
        self._commands = commands
        self._command = command
        self.id = command.id
        """Its number in the sandbox, for `Terminals.connect`."""
        self.pid = command.pid
        """The pid of its first process, inside."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, pid {self.pid}, {'open' if self.running else 'ended'}>"

    @property
    def cursor(self) -> int:
        """How much of its output lies behind: where another may go on."""
        return self._command.stdout.position

    @property
    def running(self) -> bool:
        """False once its command has ended."""
        return self._command.running

    def write(self, data: bytes | str, timeout: float | None = None) -> None:
        r"""Type, and return when the terminal has taken all of it. Keys are bytes: Ctrl-C is ``"\x03"``.

        Raises RametError, code ``stdin_closed``, when it is closed; WaitTimeout when nobody reads in time.
        """
        self._command.send(data, timeout)

    def resize(self, rows: int, columns: int) -> None:
        """Give it another size; what runs in its foreground gets SIGWINCH."""
        window = u32(p.TAG_WINDOW, packed_window(check_window((rows, columns))))
        self._commands.ask_core(p.RESIZE, lambda lane: about(lane, self.id, window), ended=True)

    def read(self, size: int = BIG, timeout: float | None = None) -> bytes:
        """The next bytes, `size` at most, as soon as there are any; none at its end.

        Raises WaitTimeout when nothing comes in `timeout` seconds; RametError, code ``output_left_out``, once
        for a gap: more was written than its log holds before this was read.
        """
        return self._command.stdout.read(size, timeout)

    def read_until(self, mark: bytes | str, timeout: float | None = None) -> bytes:
        """All bytes up to `mark` and with it; without it at the end. Raises as `read`."""
        wanted = mark.encode() if isinstance(mark, str) else mark
        if not wanted:
            raise InvalidRequest.of("mark", "is empty")
        deadline, found = deadline_of(timeout), bytearray()
        while (end := found.find(wanted)) < 0:
            left = None if deadline is None else remaining(deadline)
            try:
                piece = self._command.stdout.read(timeout=left)
            except BaseException:
                self._command.stdout.give_back(found)
                raise
            if not piece:
                return bytes(found)
            found += piece
        self._command.stdout.give_back(found[end + len(wanted) :])
        return bytes(found[: end + len(wanted)])

    def output(self) -> Iterator[bytes]:
        """What is written from the cursor on, as it arrives, until its end."""
        for _, data in self._command.output():
            yield data

    def wait(
        self,
        timeout: float | None = None,
        *,
        on_output: Callable[[bytes], Any] | None = None,
        check: bool = False,
    ) -> CommandResult:
        """The result of its command, with all that was written up to the limit ``output`` as `stdout`.

        The callback gets what follows the cursor, as it arrives. Raises WaitTimeout when it does not end in
        `timeout` seconds; it goes on.
        """
        return self._command.wait(timeout, on_stdout=on_output, check=check)

    def send_signal(self, signal: int | str) -> None:
        """Send a signal, a number or a name, to the process group that it began with."""
        self._command.send_signal(signal)

    def kill(self) -> None:
        """Kill every process that was started in it, wherever it went; `wait` has the result then."""
        self._command.kill()

    def follow(self) -> Following:
        """A reader from the cursor on, for a loop of one's own. The caller's."""
        following, _ = self._commands._attach(self.id, changes=True)  # noqa: SLF001
        following.at[0] = self.cursor
        return following

    def typing(self) -> Typing:
        """A way to type without waiting, for a loop of one's own. The caller's."""
        link = self._commands._link()  # noqa: SLF001
        return Typing(link, about(self._commands.known(), self.id))

    def close(self) -> None:
        """Let go of it; it stays."""
        self._command.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is in it, if it is still open, and let go of it."""
        self._command.__exit__(kind, error, trace)
