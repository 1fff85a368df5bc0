"""What the user is told of an error: one line, and an exit code that says whose fault it was."""

from __future__ import annotations

import contextlib
import errno as _errno
import os
import sys

from ramet.errors import (
    DaemonStartError,
    FileError,
    InternalError,
    InvalidRequest,
    IsolationError,
    RametError,
)
from ramet.models.limits import LIMITS

__all__ = ["FAILED", "INTERRUPTED", "USAGE", "describe", "exit_code", "report", "say"]

USAGE = 2
"""An argument is wrong; nothing was started."""
FAILED = 125
"""Ramet itself failed, as with env(1), timeout(1) and docker."""
INTERRUPTED = 130

# Where the command line spells an argument of the API otherwise.
_OPTIONS = {
    "command": "COMMAND",
    "timeout": "--timeout",
    "env": "--env",
    "cwd": "--cwd",
    "user": "--user",
    "tools": "--tools",
    "workspace": "--workspace",
    "template": "TEMPLATE",
    "over": "--over",
    "cursor": "--cursor",
    "since": "--since",
    "types": "--type",
    "target": "--target",
    "child": "--child",
    "on_unsupported": "--on-unsupported",
    "detach_keys": "--detach-keys",
    "root": "--root",
    "stdin": "--stdin",
    "bin": "--bin",
    "file": "--file",
    "directory": "DIRECTORY",
    "sandbox": "SANDBOX",
    "snapshot": "SNAPSHOT",
    "name": "NAME",
    "n": "-n",
    "number": "NUMBER",
    "image": "--image",
    "ttl": "--ttl",
    "port": "PORT",
    "url": "--daemon-url",
    "token": "--daemon-token",
    "daemon_token": "--daemon-token",
    "keep_on": "--keep-on",
    "metadata": "--metadata",
    "data": "standard input",
    **{f"limits.{spec.name}": spec.option for spec in LIMITS},
}
# What helps is another thing here than in a program; and there a command's number is the command.
_HINTS = {
    "no_kernel": "ramet spawn --tag python makes one that has",
    "unknown_command": "the ends of commands are kept for some minutes; ramet sandbox ps lists those",
}
# A file that was named, and is none or another than was meant.
_NAMED = {"not_found", "exists", "not_a_directory", "is_a_directory", "not_regular", "loop", "too_long"}
_NUMBERED = {"unknown_command", "command_ended"}


def exit_code(error: RametError) -> int:
    """2 when the user can mend it by other arguments, else 125."""
    named = isinstance(error, FileError) and error.code in _NAMED
    return USAGE if named or isinstance(error, InvalidRequest) else FAILED


def _option(error: RametError) -> str | None:
    return "NUMBER" if error.code in _NUMBERED else _OPTIONS.get(error.field or "")


def describe(error: RametError) -> str:
    """The error in the words of the command line."""
    text = error.message
    if isinstance(error, InvalidRequest) and (option := _option(error)):
        text = f"{option}: {text.removeprefix(f'{error.field}: ')}"
    if error.step and error.step not in text:
        text += f" (step {error.step})"
    if error.errno and os.strerror(error.errno) not in text:
        text += f" ({_errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)})"
    hint = _HINTS.get(error.code, error.hint)
    if hint is None and isinstance(error, (IsolationError, DaemonStartError)):
        hint = "ramet doctor says what this machine lacks"
    if hint is None and isinstance(error, InternalError):
        hint = "this is a defect of Ramet: please report it"
    return f"{text} ({hint})" if hint else text


def say(text: str) -> None:
    """One line on standard error. That it may be closed changes nothing about the exit code."""
    try:
        print(f"ramet: {text}", file=sys.stderr, flush=True)
    except OSError:
        # Python tries once more when it ends, and takes 120 for the exit code.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 2)


def report(error: RametError) -> int:
    """Tell the error; the exit code for it."""
    say(describe(error))
    return exit_code(error)
