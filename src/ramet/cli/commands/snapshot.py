"""`ramet snapshot create|ls|rm`, `ramet sandbox rollback|promote`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import typer

from ramet.cli._arguments import JSON, ON_UNSUPPORTED, TIMEOUT, TTL
from ramet.cli._each import each
from ramet.cli._results import tell_made
from ramet.errors import InvalidRequest
from ramet.models.snapshots import Snapshot


def create(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    name: str | None = typer.Argument(None, metavar="NAME", help="The snapshot's name."),
    on_unsupported: str = ON_UNSUPPORTED,
    as_json: bool = JSON,
) -> int:
    """Keep the state of a running sandbox under a name; it runs on."""
    if sandbox is None or name is None:
        missing = "sandbox" if sandbox is None else "name"
        raise InvalidRequest.of(missing, "is missing")
    from ramet.cli.render import size
    from ramet.client import sandboxes
    from ramet.models.checks import check_on_unsupported

    wanted = check_on_unsupported(on_unsupported)
    taken = sandboxes.snapshot(sandbox, name, on_unsupported=wanted)
    if as_json:
        print(json.dumps(taken.to_dict()))
    else:
        kept = f"{size(taken.memory_bytes)} of memory and {size(taken.file_bytes)} of files"
        print(f"{taken.name}: {kept}; the sandbox stood still for {taken.pause_ms:.1f} ms")
        for what in taken.dropped:
            print(f"ramet: left out: {what}", file=sys.stderr)
    return 0


def rollback(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    name: str | None = typer.Argument(None, metavar="SNAPSHOT", help="The snapshot's name."),
    as_json: bool = JSON,
) -> int:
    """Have a detached sandbox be again as it was in a snapshot, under the same id."""
    if sandbox is None or name is None:
        raise InvalidRequest.of("sandbox" if sandbox is None else "snapshot", "is missing")
    from ramet.client import Sandbox

    known = Sandbox.connect(sandbox)
    try:
        if not known.info.detached:
            # It would end with this program.
            text = "is another program's, which alone can roll it back"
            raise InvalidRequest.of("sandbox", text, code="not_detached")
        known.rollback(name)
    finally:
        known.let_go()
    if as_json:
        print(json.dumps(known.info.to_wire()))
    else:
        print(known.id)
    return 0


def promote(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The fork, by its id or name."),
    over: str | None = typer.Option(
        None, "--over", metavar="SANDBOX", help="An ancestor, instead of the one that it is a fork of."
    ),
    as_json: bool = JSON,
) -> int:
    """Have a detached fork take the place of the sandbox that it was forked from, under that one's id."""
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing")
    from ramet.client import Sandbox

    known = Sandbox.connect(sandbox)
    try:
        known.promote(over)
    finally:
        known.let_go()
    if as_json:
        print(json.dumps(known.info.to_wire()))
    else:
        print(known.id)
    return 0


def pause(
    sandbox: str | None = typer.Argument(None, metavar="SANDBOX", help="The sandbox, by its id or name."),
    name: str | None = typer.Argument(None, metavar="NAME", help="The state's name. Default: paused-ID."),
    as_json: bool = JSON,
) -> int:
    """Keep a sandbox's state under a name, and end it; ramet sandbox resume goes on from there."""
    if sandbox is None:
        raise InvalidRequest.of("sandbox", "is missing: which one")
    from ramet.client import Sandbox

    known = Sandbox.connect(sandbox)
    try:
        kept = known.pause(name)
    finally:
        known.let_go()
    print(json.dumps(kept.to_dict()) if as_json else kept.name)
    return 0


def resume(
    name: str | None = typer.Argument(
        None, metavar="SNAPSHOT", help="What ramet sandbox pause printed, or the sandbox as it was called."
    ),
    ttl: str | None = TTL,
    timeout: str | None = TIMEOUT,
    as_json: bool = JSON,
) -> int:
    """Go on from where a sandbox was paused, under its name, and print the new id."""
    if name is None:
        raise InvalidRequest.of("snapshot", "is missing: which one to go on from")
    from ramet.client import Sandbox

    options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "detach": True}
    with Sandbox.resume(name, **options) as resumed:
        tell_made([resumed.info], as_json=as_json)
    return 0


def ls(as_json: bool = JSON) -> int:
    """List the snapshots."""
    from ramet.client import snapshots

    found = snapshots.list()
    if as_json:
        print(json.dumps({"snapshots": [one.to_dict() for one in found]}))
    elif found:
        from ramet.cli.render import age, size, table

        rows = [
            (
                one.name,
                one.sandbox,
                age(time.time() - one.created),
                size(one.memory_bytes),
                size(one.file_bytes),
                "yes" if one.durable else "no",
            )
            for one in found
        ]
        table(("NAME", "SANDBOX", "AGE", "MEMORY", "FILES", "DURABLE"), rows)
    return 0


def rm(
    names: list[str] | None = typer.Argument(None, metavar="SNAPSHOT...", help="Names."),
    as_json: bool = JSON,
) -> int:
    """Forget snapshots; what was forked from them goes on."""
    if not names:
        raise InvalidRequest.of("snapshot", "is missing: which one to forget")
    from ramet.client import snapshots

    removed: list[Snapshot] = []
    failed = each(names, lambda name: removed.append(snapshots.remove(name)))
    if as_json:
        print(json.dumps({"snapshots": [one.to_dict() for one in removed]}))
    if failed is not None:
        raise failed
    return 0
