"""This process's own terminal, lent to another: raw, its size followed, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from typing import TYPE_CHECKING, Literal, Self

from ramet.cli._streams import writer
from ramet.errors import InvalidRequest, RametError

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from ramet.client import Terminal
    from ramet.client._commands import Following, Typing

__all__ = ["converse", "parse_keys", "size_here"]

Ended = Literal["ended", "detached", "hung_up"]
CHUNK = 1 << 16
# Whoever sends one of these expects this process to end; SIGHUP: its terminal has gone.
_ENDING = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_HEARD = (*_ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


def parse_keys(text: str) -> bytes:
    """The bytes of keys such as ``ctrl-p,ctrl-q``; none of an empty text. Raises InvalidRequest."""
    keys = bytearray()
    for word in text.split(",") if text else ():
        name = word.strip().lower()
        if len(name) == 1 and name.isascii() and name.isprintable():
            keys += name.encode()
        elif re.fullmatch(r"ctrl-[a-z@\[\\\]^_]", name):
            keys.append(ord(name[-1].upper()) & 0x1F)
        else:
            raise InvalidRequest.of(
                "detach_keys", f"{word!r:.40} is no key", hint="a letter, or ctrl- and one: ctrl-p,ctrl-q"
            )
    return bytes(keys)


def size_here() -> tuple[int, int]:
    """Rows and columns of standard input; of a terminal that does not tell them, 24 and 80."""
    columns, rows = os.get_terminal_size(0)
    return (rows, columns) if rows and columns else (24, 80)


class _Raw:
    """Standard input without a line discipline, until the end of the block."""

    def __init__(self) -> None:
        self._modes = termios.tcgetattr(0)

    def __enter__(self) -> Self:
        self.take()
        return self

    def take(self) -> None:
        """Make it raw."""
        tty.setraw(0, termios.TCSADRAIN)

    def give_back(self) -> None:
        """As it was. A terminal that has gone needs nothing."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


class _Signals:
    """Signals as bytes of a pipe, until the end of the block."""

    def __enter__(self) -> Self:
        self.descriptor, self._near = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came: set[int] = set()
        self._before = {number: signal.signal(number, self._heard) for number in _HEARD}
        self._wakeup = signal.set_wakeup_fd(self._near, warn_on_full_buffer=False)
        return self

    @staticmethod
    def _heard(number: int, frame: FrameType | None) -> None:
        """What counts is that Python writes its number to the pipe."""

    def read(self) -> list[int]:
        """Those that came."""
        try:
            came = list(os.read(self.descriptor, 256))
        except BlockingIOError:
            return []
        self._came.update({signal.SIGHUP}.intersection(came))
        return came

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, action in self._before.items():
            # A terminal that goes sends SIGHUP to its session's leader, then to the foreground group: twice.
            signal.signal(number, signal.SIG_IGN if number in self._came else action)
        os.close(self.descriptor)
        os.close(self._near)


class Modes:
    """What a program has switched on in its terminal: another screen, a mouse, no cursor."""

    _SWITCH = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
    # Which of them, and what they are where nobody has touched them.
    _USUAL = dict.fromkeys(
        (1, 9, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004), False
    ) | {25: True}  # fmt: skip

    def __init__(self) -> None:
        self._on: dict[int, bool] = {}
        self._rest = b""

    def see(self, output: bytes) -> None:
        """Note what `output` switches."""
        text = self._rest + output
        end = 0
        for match in self._SWITCH.finditer(text):
            end = match.end()
            for number in match[1].split(b";"):
                if number and int(number) in self._USUAL:
                    self._on[int(number)] = match[2] == b"h"
        # A switch may be cut in two.
        begun = text.rfind(b"\x1b", max(end, len(text) - 48))
        self._rest = text[begun:] if begun >= 0 else b""

    def undo(self) -> bytes:
        """What puts everything back."""
        return b"".join(
            b"\x1b[?%d%c" % (number, b"h" if self._USUAL[number] else b"l")
            for number, on in self._on.items()
            if on is not self._USUAL[number]
        ) + (b"\x1b[0m" if self._on else b"")  # fmt: skip


class _Detaching:
    """Looks for the keys that detach in what is typed."""

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def passed(self, typed: bytes) -> tuple[bytes, bool]:
        """What is to be passed on of it, and whether the keys came. Their beginning is held back."""
        text = self._held + typed
        if self._keys and (at := text.find(self._keys)) >= 0:
            return text[:at], True
        sizes = range(min(len(self._keys) - 1, len(text)), 0, -1)
        held = next((n for n in sizes if self._keys.startswith(text[-n:])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False


class _Conversation:
    """Passes on what is typed here and written there."""

    def __init__(self, terminal: Terminal, following: Following, typing: Typing, keys: bytes) -> None:
        self._terminal = terminal
        self._following = following
        self._typing = typing
        self._detaching = _Detaching(keys)
        self._write = writer(1)
        self.modes = Modes()

    def hold(self, signals: _Signals, raw: _Raw, poller: select.epoll) -> Ended:
        """Until one side is done."""
        poller.register(signals.descriptor, select.EPOLLIN)
        poller.register(self._typing, select.EPOLLIN)
        poller.register(0, select.EPOLLIN)
        if not self._following.over:
            poller.register(self._following.wakeup, select.EPOLLIN)
        self._resize()
        while not self._output():
            poller.modify(0, 0 if self._typing.full else select.EPOLLIN)
            ready = {number for number, _ in poller.poll()}
            came = signals.read()
            if not {*_ENDING}.isdisjoint(came):
                return "hung_up"
            for number in came:
                # A terminal that goes sends SIGCONT first.
                with contextlib.suppress(OSError, termios.error):
                    self._heard(number, raw)
            self._typing.step()
            if 0 in ready and (done := self._keys()):
                return done
        return "ended"

    def _output(self) -> bool:
        """Pass on what was written there; True at its end."""
        over = self._following.hear()
        while data := self._following.take(0, CHUNK):
            self.modes.see(data)
            self._write(data)
        return over

    def _keys(self) -> Ended | None:
        try:
            typed = os.read(0, CHUNK)
        except OSError:
            typed = b""
        if not typed:
            return "hung_up"
        passed, detach = self._detaching.passed(typed)
        if passed:
            self._typing.push(passed)
        return "detached" if detach else None

    def _heard(self, number: int, raw: _Raw) -> None:
        if number == signal.SIGTSTP:
            raw.give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
        if number != signal.SIGWINCH:
            raw.take()  # the shell that let this process go on has set modes of its own
        self._resize()

    def _resize(self) -> None:
        try:
            self._terminal.resize(*size_here())
        except RametError as error:
            if error.code not in {"stdin_closed", "unknown_command", "unknown_sandbox", "sandbox_ended"}:
                raise  # else its end is on its way


def converse(terminal: Terminal, keys: bytes) -> Ended:
    """Lend this process's terminal to `terminal` until that ends, `keys` are typed, or this one goes.

    Raises DaemonLost, and OutputClosed, OutputFailed when standard output takes nothing; this process's
    terminal is as it was then, too.
    """
    following = terminal.follow()
    try:
        typing = terminal.typing()
        try:
            talk = _Conversation(terminal, following, typing, keys)
            with _Signals() as signals, _Raw() as raw, select.epoll() as poller:
                try:
                    return talk.hold(signals, raw, poller)
                finally:
                    with contextlib.suppress(OSError):
                        os.write(1, talk.modes.undo())
        finally:
            typing.close()
    finally:
        following.close()
