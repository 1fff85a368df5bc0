"""`ramet doctor`: what this machine has of what Ramet needs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import typer

from ramet.client._chosen import chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramet.doctor import Check
    from ramet.models.status import Finding


def doctor(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> int:
    """Check this machine, and show the one command that mends each thing it lacks.

    With a server it is the server's machine, for tokens with the scope admin. The exit code is 1 when a check
    fails, which means that sandboxes do not work there.
    """
    found = _checks()
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [dataclasses.asdict(check) for check in found]}))
    else:
        from ramet.cli.render import checks

        checks(found)
    return 1 if failed else 0


def _checks() -> Sequence[Check | Finding]:
    if chosen():
        from ramet.client import doctor as of_server

        return of_server().findings
    from ramet.doctor import run_checks

    return run_checks()
