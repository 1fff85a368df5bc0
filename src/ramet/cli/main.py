"""The command `ramet`: its commands, and one place where every error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
import typer.main

from ramet._version import __version__
from ramet.cli import _errors
from ramet.cli._command import COMPLETES, Group
from ramet.cli._streams import Output, open_missing, output_told, standard_output
from ramet.cli._table import COMMANDS
from ramet.errors import RametError

__all__ = ["app", "invoke", "main"]

# Help in plain text: rich would be imported for it.
_app = typer.Typer(
    name="ramet",
    cls=Group,
    help="Run untrusted commands in throw-away sandboxes, without root and without KVM.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@_app.callback(invoke_without_command=True, no_args_is_help=True)
def _options(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Show the version and exit."),
) -> None:
    if version:
        print(f"ramet {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(_errors.USAGE)


app = typer.main.get_group(_app)
app.commands.update((command.name or "", command) for command in COMMANDS)

# The classes of typer's own parser; where they live has changed from one version to another.
_PARSE_ERRORS = typer.BadParameter.__mro__[typer.BadParameter.__mro__.index(Exception) - 1]


def invoke(words: Sequence[str], output: Output | None = None) -> int:
    """Carry out one command line; its exit code. Every error has been told, but that of `output`."""
    try:
        code = app(args=list(words), prog_name="ramet", standalone_mode=False)
    except RametError as error:
        return _errors.report(error)
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _errors.INTERRUPTED
    except Exception as error:
        if os.environ.get("RAMET_DEBUG") and not isinstance(error, _PARSE_ERRORS):
            raise
        return _other_error(error, output)
    return code if isinstance(code, int) else 0


def _other_error(error: Exception, output: Output | None) -> int:
    if (refused := _parse_error(error)) is not None:
        return refused
    if output is not None and output.failure is error:
        return _errors.FAILED  # `output_told` says so
    _errors.say(f"a defect of Ramet: {type(error).__name__}: {error} (RAMET_DEBUG=1 shows where)")
    return _errors.FAILED


def _parse_error(error: Exception) -> int | None:
    text = getattr(error, "format_message", None)
    if not isinstance(error, _PARSE_ERRORS) or text is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        print(text())
        return _errors.USAGE
    command = getattr(getattr(error, "ctx", None), "command_path", "ramet")
    said = " ".join(text().split())
    if type(error).__name__ == "NoSuchOption":
        from ramet.cli._habits import OPTIONS

        if (meant := OPTIONS.get(getattr(error, "option_name", ""))) is not None:
            said = f"No such option: {error.option_name}: {meant}"  # type: ignore[attr-defined]
    _errors.say(f"{said} (see {command} --help)")
    return _errors.USAGE


def main() -> NoReturn:
    """The entry point of the program."""
    open_missing()
    if COMPLETES in os.environ:
        from ramet.cli.commands import completion

        completion.begin()
    output = standard_output()
    try:
        code = invoke(sys.argv[1:], output)
    except SystemExit as error:  # typer's way out before a closed pipe
        code = error.code if isinstance(error.code, int) else _errors.FAILED
    sys.exit(output_told(output, code))
