"""Options and words that several commands take."""

from __future__ import annotations

import os
from typing import Any

import typer

from ramet.cli.render import amount
from ramet.errors import InvalidRequest
from ramet.models.limits import BY_NAME

JSON = typer.Option(False, "--json", help="Print one JSON object.")
ON_UNSUPPORTED = typer.Option(
    "refuse", metavar="refuse|drop", help="What becomes of what a fork cannot carry; drop tells what it was."
)
TTL = typer.Option(
    None, "--ttl", metavar="SECONDS", help="How long it lives with nobody asking for it. Default: 300s."
)
TIMEOUT = typer.Option(
    None, "--timeout", metavar="SECONDS", help="Time until everything in it is killed. Default: none."
)
# As forkd has them.
MEMORY_MIB = typer.Option(
    None, "--memory-limit-mib", metavar="MIB", help="Memory of each, where it differs from the source's."
)
OWN_NETWORK = typer.Option(
    False, "--per-child-netns", help="A network of its own for each, as every sandbox has anyway."
)
LIVE_FORK = typer.Option(
    False, "--live-fork", help="To be forked as it runs later, as every sandbox can anyway."
)
HUGE = typer.Option(
    False, "--hugepages", help="With huge pages where the kernel makes them, as every fork anyway."
)
METADATA = typer.Option(
    [], "--metadata", metavar="KEY=VALUE", help="What to note of it, for ramet ls --filter. May be repeated."
)
KEEP_ON = typer.Option(
    [],
    "--keep-on",
    metavar="timeout|oom",
    help="Take a snapshot, kept-ID, before its time or its want of memory ends it. May be repeated.",
)

_METAVARS = {"count": "N", "processors": "N", "bytes": "SIZE", "seconds": "SECONDS"}


def limit_option(name: str, prefix: str = "") -> Any:
    """The option for a limit of the table."""
    spec = BY_NAME[name]
    text = f"{prefix}{spec.summary}. Default: {amount(spec.default, spec.unit)}."
    return typer.Option(None, spec.option, metavar=_METAVARS[spec.unit], help=text[0].upper() + text[1:])


def command_of(words: list[str], *, literal: bool) -> str | list[str]:
    """What the words of a command line mean: one is a shell line, unless `literal`. Raises InvalidRequest."""
    if not words:
        raise InvalidRequest.of("command", "is missing", code="empty_command")
    return words[0] if len(words) == 1 and not literal else words


def variable(text: str) -> tuple[str, str]:
    """Name and value of ``NAME=VALUE``, or of ``NAME`` as it is here. Raises InvalidRequest."""
    name, equals, value = text.partition("=")
    if not name:
        raise InvalidRequest.of("env", f"{text[:80]!r} is not NAME=VALUE")
    if equals:
        return name, value
    if name not in os.environ:
        raise InvalidRequest.of("env", f"{name} has no value here to pass on")
    return name, os.environ[name]


def memory_mib(text: str | None) -> dict[str, Any] | None:
    """The limits of --memory-limit-mib."""
    return None if text is None else {"memory": f"{text}M"}


def check_number(n: str) -> None:
    """Raise InvalidRequest unless it is a number of children."""
    if not n.isdecimal() or len(n) > 9:
        raise InvalidRequest.of("n", f"{n!r:.40} is not a number of children")


def number_of(text: str | None) -> int:
    """A command's number as it was typed. Raises InvalidRequest."""
    if text is None:
        raise InvalidRequest.of("number", "is missing: which command", hint="ramet sandbox ps lists them")
    if not text.isdecimal() or len(text) > 10:
        raise InvalidRequest.of(
            "number", f"{text!r:.40} is not a command's number", hint="ramet sandbox ps lists them"
        )
    return int(text)
