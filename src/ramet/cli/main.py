"""The command `ramet`: its commands, and one place where every error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from ramet._version import __version__
from ramet.cli import _errors
from ramet.cli._command import COMPLETES, Command, Group, LocalCommand, RunCommand
from ramet.cli._streams import Output, open_missing, output_told, standard_output
from ramet.cli.commands import (
    bench,
    completion,
    daemon,
    doctor,
    drain,
    events,
    files,
    forkd,
    pack,
    ports,
    processes,
    quickstart,
    root,
    run,
    sandbox,
    serve,
    shell,
    snapshot,
    template,
    version,
)
from ramet.errors import RametError

__all__ = ["app", "invoke", "main"]

# Help in plain text and tracebacks of Python's own: rich would be imported for both.
app = typer.Typer(
    name="ramet",
    cls=Group,
    help="Run untrusted commands in throw-away sandboxes, without root and without KVM.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
daemon_app = typer.Typer(
    help="The daemon of this user; it starts by itself when needed.", no_args_is_help=True
)
root_app = typer.Typer(cls=Group, help="Roots: what a sandbox sees as /.", no_args_is_help=True)
sandbox_app = typer.Typer(
    cls=Group,
    help="Sandboxes that stay until their command ends, or nobody asks for them.",
    no_args_is_help=True,
)
template_app = typer.Typer(cls=Group, help="Warm kernels, kept to be forked.", no_args_is_help=True)
snapshot_app = typer.Typer(cls=Group, help="States of sandboxes, kept to be forked.", no_args_is_help=True)

# Options end at the first word of the command, so that `ramet run ls -l` needs no `--`.
app.command("run", cls=RunCommand, context_settings={"allow_interspersed_args": False})(run.run)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("quickstart", cls=Command)(quickstart.quickstart)
app.command("status", cls=Command)(daemon.status)
app.add_typer(daemon_app, name="daemon")
app.add_typer(root_app, name="root")
app.command("bench", cls=Command)(bench.bench)
# Its options are converted: it imports far more than that takes.
app.command("serve")(serve.serve)
app.command("drain", cls=LocalCommand)(drain.drain)
app.command("version", cls=LocalCommand)(version.version)
daemon_app.command("start", cls=LocalCommand)(daemon.start)
daemon_app.command("stop", cls=LocalCommand)(daemon.stop)
daemon_app.command("upgrade", cls=LocalCommand)(daemon.upgrade)
daemon_app.command("status", cls=LocalCommand)(daemon.own_status)
root_app.command("build", cls=LocalCommand)(root.build)
app.command("fork", cls=Command)(sandbox.fork)
app.command("ls", cls=Command)(sandbox.ls)
app.command("kill", cls=Command)(sandbox.kill)
app.command("events", cls=Command)(events.events)
app.command("exec", cls=RunCommand, context_settings={"allow_interspersed_args": False})(processes.exec_)
app.command("logs", cls=Command)(processes.logs)
app.command("spawn", cls=Command)(forkd.spawn)
app.command("ping", cls=LocalCommand)(processes.ping)
app.command("eval", cls=Command)(forkd.eval_)
app.command("rmi", cls=Command)(forkd.rmi)
app.command("snapshot-info", cls=Command)(forkd.snapshot_info)
app.command("snapshot-compact", cls=Command)(forkd.snapshot_compact)
app.command("pack", cls=Command)(pack.pack)
app.command("unpack", cls=Command)(pack.unpack)
app.command("completion", cls=LocalCommand)(completion.completion)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(snapshot_app, name="snapshot")
app.add_typer(template_app, name="template")
sandbox_app.command("create", cls=RunCommand, context_settings={"allow_interspersed_args": False})(
    sandbox.create
)
sandbox_app.command("ls", cls=Command)(sandbox.ls)
sandbox_app.command("kill", cls=Command)(sandbox.kill)
sandbox_app.command("cp", cls=Command)(files.cp)
sandbox_app.command("diff", cls=Command)(files.diff)
sandbox_app.command("commit", cls=Command)(files.commit)
sandbox_app.command("export", cls=Command)(files.export)
sandbox_app.command("rollback", cls=Command)(snapshot.rollback)
sandbox_app.command("promote", cls=Command)(snapshot.promote)
sandbox_app.command("pause", cls=Command)(snapshot.pause)
sandbox_app.command("resume", cls=Command)(snapshot.resume)
sandbox_app.command("forward", cls=Command)(ports.forward)
sandbox_app.command("stats", cls=Command)(sandbox.stats)
sandbox_app.command("shell", cls=RunCommand, context_settings={"allow_interspersed_args": False})(shell.shell)
sandbox_app.command("ps", cls=Command)(processes.ps)
sandbox_app.command("attach", cls=Command)(processes.attach)
sandbox_app.command("signal", cls=Command)(processes.send_signal)
snapshot_app.command("create", cls=Command)(snapshot.create)
snapshot_app.command("ls", cls=Command)(snapshot.ls)
snapshot_app.command("rm", cls=Command)(snapshot.rm)
template_app.command("build", cls=Command)(template.build)
template_app.command("ls", cls=Command)(template.ls)
template_app.command("show", cls=Command)(template.show)
template_app.command("rm", cls=Command)(template.rm)


@app.callback(invoke_without_command=True)
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
    _errors.say(f"{' '.join(text().split())} (see {command} --help)")
    return _errors.USAGE


def main() -> NoReturn:
    """The entry point of the program."""
    open_missing()
    if COMPLETES in os.environ:
        completion.begin()
    output = standard_output()
    try:
        code = invoke(sys.argv[1:], output)
    except SystemExit as error:  # typer's way out before a closed pipe
        code = error.code if isinstance(error.code, int) else _errors.FAILED
    sys.exit(output_told(output, code))
