"""How words become arguments."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from ramet.cli._server import asked, options

__all__ = ["COMPLETES", "LITERAL", "Command", "Converted", "Group", "Later", "LocalCommand", "RunCommand"]

COMPLETES = "_RAMET_COMPLETE"
"""The variable by which a shell asks for words to complete with."""

LITERAL = "ramet.literal"
"""Key in a context's `meta`: True when `--` stood before the command."""


class _AsItIs:
    """Takes the place of typer's conversion of a value."""

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        del ctx
        if value is None and (param.multiple or param.nargs == -1):
            return ()
        return value


def _unconverted(params: Any) -> Any:
    """`params`, which will take text, lists of text and flags as they are.

    All arguments here are of these types already, and typer's conversion imports pydantic, which takes longer
    than a run does. A typer that knows nothing of the attribute converts, with the same outcome.
    """
    for param in params:
        param._runtime_param = _AsItIs  # noqa: SLF001
    return params


Converted = TyperCommand
"""A command whose arguments are converted: it imports far more than that takes."""


class LocalCommand(TyperCommand):
    """A command about this machine, whose arguments are not converted."""

    def get_params(self, ctx: Any) -> Any:
        params = _unconverted(super().get_params(ctx))
        if COMPLETES in os.environ:
            from ramet.cli._complete import complete

            complete(params)
        return params


class Command(LocalCommand):
    """A command that asks the daemon, or a server in its place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *options()]

    def invoke(self, ctx: Any) -> Any:
        where = {name: ctx.params.pop(name, None) for name in ("daemon_url", "daemon_token")}
        with asked(where):
            return super().invoke(ctx)


class RunCommand(Command):
    """Remembers whether `--` stood before the command, which the parser takes away.

    Options end at the first word of the command, so that `ramet run ls -l` needs no `--`.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)
        before = len(words) - len(ctx.params["command"] or ()) - 1
        ctx.meta[LITERAL] = before >= 0 and words[before] == "--"
        return rest


class Later(TyperCommand):
    """A command by its name and the first line of its help. The rest of it is imported when it is called."""

    def __init__(self, name: str, where: str, line: str, kind: type[TyperCommand] = Command) -> None:
        """`where`: a module of `commands`, and the name of the function there."""
        super().__init__(name, help=line)
        self.module, _, self.function = where.partition(":")
        self._kind = kind

    @functools.cached_property
    def loaded(self) -> Any:
        """The whole command."""
        # Help in plain text: rich would be imported for it.
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        module = importlib.import_module(f"ramet.cli.commands.{self.module}")
        app.command(self.name, cls=self._kind)(getattr(module, self.function))
        return typer.main.get_command(app)


class Group(TyperGroup):
    """A group whose options are not converted, and of whose commands the one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{"no_args_is_help": True, "rich_markup_mode": None, **attributes})

    def get_params(self, ctx: Any) -> Any:
        return _unconverted(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if ctx.parent is None and args and self.get_command(ctx, args[0]) is None:
            from ramet.cli._habits import COMMANDS

            if (meant := COMMANDS.get(args[0])) is not None:
                ctx.fail(f"No such command {args[0]!r}: {meant}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.loaded if isinstance(command, Later) else command, rest
