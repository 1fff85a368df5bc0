"""`ramet completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import json

import typer

from ramet.cli._command import COMPLETES
from ramet.errors import InvalidRequest

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: str | None = typer.Argument(None, metavar="bash|zsh|fish", help="The shell."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Print a script that has a shell complete words of ramet.

    For this session: eval "$(ramet completion bash)". For all: write it to where your shell looks.
    """
    if shell not in SHELLS:
        raise InvalidRequest.of("shell", f"{shell!r:.40} is none of {', '.join(SHELLS)}")
    from typer import completion as typers

    script = typers.get_completion_script(  # type: ignore[attr-defined]
        prog_name="ramet", complete_var=COMPLETES, shell=shell
    )
    print(json.dumps({"shell": shell, "script": script}) if as_json else script)
    return 0


def begin() -> None:
    """Have the next words be completed, not carried out: the shell asks."""
    from typer import completion as typers

    typers.completion_init()  # type: ignore[attr-defined]
