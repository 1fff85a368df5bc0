"""`ramet events`: what befalls sandboxes, a line each."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import typer

from ramet.models.limits import parse_seconds

if TYPE_CHECKING:
    from ramet.models.events import Event


def events(
    since: str | None = typer.Option(
        None, "--since", metavar="CURSOR", help="Go on after this place; start: all that is kept."
    ),
    *,
    types: list[str] = typer.Option([], "--type", metavar="TYPE", help="Only these. May be repeated."),
    sandbox: str | None = typer.Option(None, "--sandbox", metavar="SANDBOX", help="Only of this one."),
    follow: bool = typer.Option(True, "--follow/--no-follow", help="Wait for more. Default: yes."),
    timeout: str | None = typer.Option(
        None, "--timeout", metavar="SECONDS", help="End when nothing comes in this time. Default: never."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object for each event, a line each."),
) -> int:
    """Show what befalls sandboxes and snapshots, from now on or from an earlier place."""
    from ramet.client import Events
    from ramet.errors import WaitTimeout

    patience = None if timeout is None else float(parse_seconds(timeout, "timeout"))
    with Events(since, types=types or None, sandbox=sandbox, follow=follow) as stream:
        try:
            while (event := stream.next(patience)) is not None:
                print(json.dumps(event.to_wire()) if as_json else _line(event))
                sys.stdout.flush()
        except WaitTimeout:
            return 0
    return 0


def _line(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time))
    if event.type == "gap":
        missed = "another daemon" if event.missed is None else f"{event.missed} events are not kept any more"
        return f"{at}  gap  {missed}"
    words = [f"{at}  {event.type}", event.sandbox or "", event.name or ""]
    if event.command is not None:
        words.append(f"command {event.command}")
    if event.snapshot:
        words.append(f"snapshot {event.snapshot}")
    if event.parent:
        words.append(f"from {event.parent}")
    if event.reason is not None:
        words.append(f"exit code {event.exit_code}" if event.reason == "exit" else event.reason)
    if event.note:
        words.append(event.note)
    return "  ".join([word for word in words if word])
