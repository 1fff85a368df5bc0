"""`ramet sandbox shell`: a terminal in a sandbox that stays, in the place of one's own."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli import _errors
from ramet.cli._arguments import command_of, number_of, variable
from ramet.cli._command import LITERAL
from ramet.cli._results import json_of
from ramet.cli._streams import passing_on
from ramet.cli.render import end_note
from ramet.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.client import Terminal, Terminals

DETACH_KEYS = "ctrl-p,ctrl-q"
_SANDBOX = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name.")


def shell(
    ctx: typer.Context,
    sandbox: str | None = _SANDBOX,
    command: list[str] | None = typer.Argument(
        None, metavar="COMMAND", help="What to run in it. Default: a shell."
    ),
    *,
    env: list[str] = typer.Option(
        [],
        "--env",
        "-e",
        metavar="NAME=VALUE",
        help="A variable for the command; NAME alone takes the value that it has here. May be repeated.",
    ),
    cwd: str | None = typer.Option(None, metavar="PATH", help="Directory inside the sandbox to start in."),
    user: str | None = typer.Option(None, "--user", "-u", metavar="UID[:GID]", help="Whose command it is."),
    attach: str | None = typer.Option(
        None,
        "--attach",
        metavar="NUMBER",
        help="Come back to a terminal that was left.",
    ),
    detach_keys: str = typer.Option(
        DETACH_KEYS, "--detach-keys", metavar="KEYS", help="Leave it open, and return. Empty: none."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object at its end."),
) -> int:
    """Open a terminal in a sandbox, with a shell.

    All keys go to it but those that detach. The exit code is the command's own. When this terminal goes, that
    one stays, as it does when it is left: --attach comes back to it.
    """
    from ramet.cli._keyboard import parse_keys

    keys, words = parse_keys(detach_keys), list(command or [])
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    if attach is not None and words:
        raise InvalidRequest.of("command", "runs already in a terminal that is attached to")
    for field, value in (("env", env), ("cwd", cwd), ("user", user)):
        if attach is not None and value:
            raise InvalidRequest.of(field, "is for a new terminal, and --attach comes back to one")
    if not os.isatty(0):
        raise InvalidRequest.of("stdin", "is no terminal", hint="ramet exec runs commands without one")
    arguments: dict[str, Any] = {
        "env": {"TERM": os.environ.get("TERM") or "dumb", **dict(variable(text) for text in env)},
        "cwd": cwd,
        "user": user,
    }
    if words:
        literal = ctx.meta.get(LITERAL) is True
        if words[:1] == ["--"]:
            words, literal = words[1:], True
        arguments["command"] = command_of(words, literal=literal)
    terminal = _opened(_terminals(sandbox), attach, arguments)
    try:
        return passing_on(lambda: _sit(terminal, sandbox, keys, as_json=as_json))
    finally:
        terminal.close()


def _sit(terminal: Terminal, sandbox: str, keys: bytes, *, as_json: bool) -> int:
    from ramet.cli._keyboard import converse

    ended = converse(terminal, keys)
    if ended == "ended":
        return _told(terminal, as_json=as_json)
    if as_json:
        print(json.dumps({"terminal": terminal.id, "pid": terminal.pid}))
    _errors.say(f"it stays open: ramet sandbox shell --attach {terminal.id} {sandbox} comes back to it")
    return 0 if ended == "detached" else 128 + signal.SIGHUP


def _terminals(sandbox: str) -> Terminals:
    from ramet.client import Commands
    from ramet.client import Terminals as Those

    return Those(Commands(sandbox))


def _opened(terminals: Terminals, attach: str | None, arguments: dict[str, Any]) -> Terminal:
    from ramet.cli._keyboard import size_here

    if attach is not None:
        return terminals.connect(number_of(attach))
    return terminals.create(size=size_here(), **arguments)


def _told(terminal: Terminal, *, as_json: bool) -> int:
    result = terminal.wait()
    if as_json:
        print(json.dumps(json_of(result)))
    elif note := end_note(result, None):
        _errors.say(note)
    return result.exit_code
