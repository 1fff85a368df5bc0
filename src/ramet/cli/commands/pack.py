"""`ramet pack`, `ramet unpack`: a snapshot as one file."""

from __future__ import annotations

import json

import typer

from ramet.cli._arguments import JSON
from ramet.errors import InvalidRequest


def pack(
    tag: str | None = typer.Option(None, "--tag", metavar="NAME", help="A snapshot or template."),
    out: str | None = typer.Option(None, "-o", metavar="FILE", help="The file to write, which is new."),
    as_json: bool = JSON,
) -> int:
    """Write a snapshot, with all that it builds upon, into one file."""
    for field, value in (("tag", tag), ("o", out)):
        if value is None:
            raise InvalidRequest.of(field, "is missing")
    import os

    from ramet.cli.render import size
    from ramet.client import snapshots

    packed = snapshots.pack(tag or "", out or "")
    if as_json:
        print(json.dumps(packed.to_wire()))
    else:
        print(f"{out}: {packed.name}, {size(os.stat(out or '').st_size)}")
    return 0


def unpack(
    path: str | None = typer.Argument(None, metavar="FILE", help="What ramet pack wrote."),
    tag: str | None = typer.Option(None, "--tag", metavar="NAME", help="Another name than it had."),
    as_json: bool = JSON,
) -> int:
    """Make a snapshot of what ramet pack wrote, here or on another machine."""
    if path is None:
        raise InvalidRequest.of("file", "is missing")
    from ramet.client import snapshots

    made = snapshots.unpack(path, tag)
    print(json.dumps(made.to_wire()) if as_json else made.name)
    return 0
