"""`ramet doctor`: what this machine has of what Ramet needs."""

from __future__ import annotations

import json

import typer


def doctor(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> int:
    """Check this machine, and show the one command that mends each thing it lacks.

    The exit code is 1 when a check fails, which means that sandboxes do not work here.
    """
    from ramet.doctor import run_checks

    found = run_checks()
    failed = any(check.status == "fail" for check in found)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [check.to_dict() for check in found]}))
    else:
        from ramet.cli.render import checks

        checks(found)
    return 1 if failed else 0
