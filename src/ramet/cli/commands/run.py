"""`ramet run`: one command in a sandbox of its own, with this process's standard streams."""

from __future__ import annotations

from typing import Any, TypedDict

import typer

from ramet.cli._arguments import command_of, limit_option, variable
from ramet.cli._command import LITERAL
from ramet.cli._results import json_of, passed
from ramet.cli._streams import has_input
from ramet.errors import InvalidRequest, RametError


def run(
    ctx: typer.Context,
    command: list[str] | None = typer.Argument(
        None, metavar="COMMAND", help="A shell line, or a program's words."
    ),
    *,
    timeout: str | None = limit_option("wall"),
    env: list[str] = typer.Option(
        [],
        "--env",
        "-e",
        metavar="NAME=VALUE",
        help="A variable for the command; NAME alone takes the value that it has here. May be repeated.",
    ),
    cwd: str | None = typer.Option(None, metavar="PATH", help="Directory inside the sandbox to start in."),
    root: str | None = typer.Option(None, metavar="DIRECTORY", help="A directory of this host to use as /."),
    memory: str | None = limit_option("memory"),
    cpus: str | None = limit_option("cpus"),
    pids: str | None = limit_option("processes"),
    disk: str | None = limit_option("disk"),
    inodes: str | None = limit_option("inodes"),
    shm: str | None = limit_option("shm"),
    io: str | None = limit_option("io"),
    open_files: str | None = limit_option("open_files"),
    file_size: str | None = limit_option("file_size"),
    address_space: str | None = limit_option("address_space"),
    cpu_seconds: str | None = limit_option("cpu_seconds"),
    idle: str | None = limit_option("idle"),
    output: str | None = limit_option("output", "with --json, "),
    stdin: bool | None = typer.Option(
        None, "--stdin/--no-stdin", "-i/-n", help="Pass standard input on. Default: unless it is a terminal."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
) -> int:
    """Run a command in a sandbox made for it and gone after it.

    One COMMAND is a line for the sandbox's /bin/sh: ramet run 'seq 9 | tail -n 1'. Several, or any number
    after --, are a program and its arguments, taken literally: ramet run -- python3 script.py.

    The exit code is the command's own; 124 when it ran out of time, 128+N when signal N ended it, 125 when
    Ramet itself failed, 2 when an argument is wrong. Sizes are bytes or text such as 64M, times are seconds
    or text such as 500ms.
    """
    limits = {
        "memory": memory,
        "cpus": cpus,
        "processes": pids,
        "disk": disk,
        "inodes": inodes,
        "shm": shm,
        "io": io,
        "open_files": open_files,
        "file_size": file_size,
        "address_space": address_space,
        "cpu_seconds": cpu_seconds,
        "idle": idle,
        "output": output,
    }
    try:
        request: _Request = {"timeout": timeout, "cwd": cwd, "root": root}
        request["command"] = command_of(command or [], literal=ctx.meta.get(LITERAL) is True)
        request["env"] = dict(variable(text) for text in env)
        request["limits"] = _limits(limits, as_json=as_json)
        if stdin is True or (stdin is None and has_input()):
            request["stdin"] = 0
        return _print_json(request) if as_json else _pass_through(request)
    except RametError as error:
        if as_json:
            _print({"error": error.to_wire()})
        raise


class _Request(TypedDict, total=False):
    """Arguments of `ramet.run`. What parses text takes text."""

    command: str | list[str]
    timeout: Any
    stdin: int
    env: dict[str, str]
    cwd: str | None
    root: str | None
    limits: dict[str, str]


def _limits(asked: dict[str, str | None], *, as_json: bool) -> dict[str, str]:
    given = {name: value for name, value in asked.items() if value is not None}
    if as_json:
        return given
    if "output" in given:
        raise InvalidRequest.of("limits.output", "needs --json; without it all output is passed on")
    return {**given, "output": "0"}


def _pass_through(request: _Request) -> int:
    from ramet.client import run as run_command

    return passed(lambda **callbacks: run_command(**request, **callbacks), request.get("timeout"))


def _print_json(request: _Request) -> int:
    from ramet.client import run as run_command

    result = run_command(**request)
    _print(json_of(result))
    return result.exit_code


def _print(data: dict[str, Any]) -> None:
    import json

    print(json.dumps(data))
