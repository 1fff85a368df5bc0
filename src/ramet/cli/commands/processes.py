"""`ramet exec`, `ramet logs`, `ramet sandbox ps|attach|signal`: commands in sandboxes that stay."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import typer

from ramet.cli import _errors
from ramet.cli._arguments import command_of, number_of, variable
from ramet.cli._command import LITERAL
from ramet.cli._results import json_of, passed
from ramet.cli._streams import has_input, passing_on, writer
from ramet.cli._target import CHILD, TARGET, ask, check, default_target, exit_code_of
from ramet.errors import InvalidRequest, RametError, WaitTimeout
from ramet.models.limits import parse_seconds

if TYPE_CHECKING:
    from ramet.client import Commands
    from ramet.client._sync.commands import Command, Output
    from ramet.models.results import CommandResult

PING_S = 10.0
JSON = typer.Option(False, "--json", help="Print one JSON object.")
_SANDBOX = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name.")
_COMMAND = typer.Argument(None, metavar="NUMBER", help="The command, by its number.")


def exec_(
    ctx: typer.Context,
    sandbox: str | None = _SANDBOX,
    command: list[str] | None = typer.Argument(
        None, metavar="COMMAND", help="A shell line, or a program's words."
    ),
    *,
    timeout: str | None = typer.Option(
        None,
        "--timeout",
        "--timeout-secs",
        metavar="SECONDS",
        help="Time until it is killed. Default: 300s; detached: none.",
    ),
    target: str | None = TARGET,
    child: str | None = CHILD,
    env: list[str] = typer.Option(
        [],
        "--env",
        "-e",
        metavar="NAME=VALUE",
        help="A variable for the command; NAME alone takes the value that it has here. May be repeated.",
    ),
    cwd: str | None = typer.Option(None, metavar="PATH", help="Directory inside the sandbox to start in."),
    user: str | None = typer.Option(None, "--user", "-u", metavar="UID[:GID]", help="Whose command it is."),
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Print its number and return; ramet sandbox attach shows its output."
    ),
    stdin: bool | None = typer.Option(
        None, "--stdin/--no-stdin", "-i/-n", help="Pass standard input on. Default: unless it is a terminal."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
) -> int:
    """Run a command in a sandbox that stays.

    The command is read as by ramet run, and the exit codes are the same.
    """
    words = list(command or [])
    literal = ctx.meta.get(LITERAL) is True
    if target is not None:  # the first word is no sandbox's
        words, sandbox, literal = [*filter(None, [sandbox]), *words], None, literal or sandbox == "--"
    check(target, child, sandbox)
    if target is None and sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    if words[:1] == ["--"]:
        words, literal = words[1:], True
    arguments: dict[str, Any] = {
        "command": command_of(words, literal=literal),
        "env": dict(variable(text) for text in env),
        "cwd": cwd,
        "user": user,
        "timeout": timeout,
    }
    if target is not None:
        for option, value in (
            ("env", env),
            ("cwd", cwd),
            ("user", user),
            ("detach", detach),
            ("stdin", stdin),
        ):
            if value:
                raise InvalidRequest.of(option, "is not for --target")
        return passing_on(lambda: _exec_at(target, arguments["command"], timeout, as_json=as_json))
    commands = _commands(sandbox)
    if detach:
        if stdin:
            raise InvalidRequest.of("stdin", "is not passed on to a detached command")
        started = commands.start(**arguments)
        started.close()
        print(json.dumps({"command": started.id, "pid": started.pid}) if as_json else started.id)
        return 0
    if stdin is True or (stdin is None and has_input()):
        arguments["stdin"] = 0
    if as_json:
        try:
            result: CommandResult = commands.run(**arguments)
        except RametError as error:
            print(json.dumps({"error": error.to_wire()}))
            raise
        print(json.dumps(json_of(result)))
        return result.exit_code
    return passed(lambda **callbacks: commands.run(**arguments, **callbacks), timeout)


def _exec_at(target: str, command: str | list[str], timeout: str | None, *, as_json: bool) -> int:
    seconds = float(parse_seconds("30" if timeout is None else timeout, "timeout"))
    args = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    answer = ask(target, {"action": "exec", "args": args, "timeout": seconds}, seconds)
    if as_json:
        print(json.dumps(answer))
        return exit_code_of(answer)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        writer(stream)(str(answer.get(name) or "").encode(errors="replace"))
    if answer.get("error"):
        _errors.say(str(answer["error"]))
    return exit_code_of(answer)


def ping(target: str | None = TARGET, child: str | None = CHILD, as_json: bool = JSON) -> int:
    """Ask who speaks forkd's guest protocol at an address, $FORKD_TARGET by default."""
    check(target, child, None)
    answer = ask(target or default_target(), {"action": "ping"}, PING_S)
    if not answer.get("pong"):
        raise RametError("not_connected", str(answer.get("error") or "it says nothing of itself"))
    print(json.dumps(answer) if as_json else f"pid {answer.get('pid')}, {answer.get('agent_lang')}")
    return 0


def ps(
    sandbox: str | None = _SANDBOX,
    as_json: bool = JSON,
) -> int:
    """List the commands of a sandbox: those that run, and those that ended in the last minutes."""
    found = _commands(sandbox).list()
    if as_json:
        print(json.dumps({"commands": [one.to_dict() for one in found]}))
    elif found:
        from ramet.cli.render import age, table

        rows = [
            (
                str(one.id),
                str(one.pid),
                age(time.time() - one.created),
                _state(one.reason, one.exit_code),
                f"{' '.join(one.command)!s:.60}".replace("\n", " "),
            )
            for one in found
        ]
        table(("NUMBER", "PID", "AGE", "STATUS", "COMMAND"), rows)
    return 0


def attach(
    sandbox: str | None = _SANDBOX,
    command: str | None = _COMMAND,
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object at its end."),
) -> int:
    """Show what a command writes, from its beginning, until it ends; the exit code is its own.

    Interrupting this does not end the command.
    """
    with_it = _commands(sandbox).connect(number_of(command))
    try:
        if not as_json:
            return passed(with_it.wait, None)
        result = with_it.wait()
        print(json.dumps(json_of(result)))
        return result.exit_code
    finally:
        with_it.close()


def logs(
    sandbox: str | None = _SANDBOX,
    command: str = typer.Argument(
        "1", metavar="NUMBER", help="The command, by its number. Default: the first."
    ),
    *,
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on until it ends."),
    cursor: str = typer.Option(
        "0,0", metavar="OUT,ERR", help="Only what follows these positions, as --json told them."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object, with the cursor after it."),
) -> int:
    """Show what a command has written, also when it has ended or others read it too.

    Without a number that is the command that the sandbox began with. Of each stream the first and the last
    bytes are kept, up to the limit on output.
    """
    with_it = _commands(sandbox).connect(number_of(command), cursor=_cursor_of(cursor))
    try:
        return passing_on(lambda: _show(with_it, follow=follow, as_json=as_json))
    finally:
        with_it.close()


def _show(with_it: Command, *, follow: bool, as_json: bool) -> int:
    if follow and not as_json:
        with_it.wait(on_stdout=writer(1), on_stderr=writer(2))
        return 0
    if follow:
        with_it.wait()
    written = [_so_far(stream) for stream in (with_it.stdout, with_it.stderr)]
    if not as_json:
        for stream, data in zip((1, 2), written, strict=True):
            writer(stream)(data)
        return 0
    out, err = (data.decode(errors="replace") for data in written)
    told = {"command": with_it.id, "stdout": out, "stderr": err, "running": with_it.running}
    print(json.dumps(told | {"cursor": ",".join(map(str, with_it.cursor))}))
    return 0


def _so_far(stream: Output) -> bytes:
    """What is there of a stream; what is not kept is said."""
    found = bytearray()
    while True:
        try:
            piece = stream.read(timeout=0.0)
        except WaitTimeout:
            return bytes(found)
        except RametError as error:
            if error.code != "output_left_out":
                raise
            _errors.say(error.message)
            continue
        if not piece:
            return bytes(found)
        found += piece


def _cursor_of(text: str) -> tuple[int, int]:
    out, comma, err = text.partition(",")
    if not comma or not out.isdecimal() or not err.isdecimal() or len(text) > 40:
        raise InvalidRequest.of("cursor", f"{text!r:.60} is not two positions, as 120,0")
    return int(out), int(err)


def send_signal(
    sandbox: str | None = _SANDBOX,
    command: str | None = _COMMAND,
    *,
    name: str = typer.Option("KILL", "--signal", "-s", metavar="NAME", help="A signal's name or number."),
    as_json: bool = JSON,
) -> int:
    """Send a command a signal. KILL reaches every process of it, wherever it went."""
    commands = _commands(sandbox)
    number = number_of(command)
    if name.upper().removeprefix("SIG") in {"KILL", "9"}:
        commands.kill(number)
    else:
        commands.send_signal(number, int(name) if name.isdecimal() else name)
    if as_json:
        print(json.dumps({"command": number, "signal": name}))
    return 0


def _commands(sandbox: str | None) -> Commands:
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    from ramet.client import Commands as Those

    return Those(sandbox)


def _state(reason: str | None, exit_code: int | None) -> str:
    if reason is None:
        return "running"
    return f"exit code {exit_code}" if reason == "exit" else reason
