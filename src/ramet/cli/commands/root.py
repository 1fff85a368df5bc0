"""`ramet root build`."""

from __future__ import annotations

import dataclasses
import json

import typer

from ramet.errors import InvalidRequest


def build(
    directory: str = typer.Argument(None, metavar="DIRECTORY", help="What to make; its parent must exist."),
    binaries: list[str] = typer.Option(
        [],
        "--bin",
        metavar="PROGRAM",
        help="A program, by path or by name, with all it needs. May be repeated.",
    ),
    files: list[str] = typer.Option(
        [], "--file", metavar="SRC[:DST]", help="A file or directory to copy as it is. May be repeated."
    ),
    replace: bool = typer.Option(
        False, "--replace", help="Take the place of a root that this command built."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> int:
    """Make a root directory that holds a few programs and exactly what they need.

    Each program comes with its libraries and loader, a script with its interpreter, a Python with its
    standard library. The result is for ramet run --root DIRECTORY.
    """
    from ramet.cli.render import size
    from ramet.engine.closure import build_root

    if not directory:
        raise InvalidRequest.of("directory", "is missing")
    built = build_root(directory, binaries, files, replace=replace)
    if as_json:
        print(json.dumps({**dataclasses.asdict(built), "path": str(built.path)}))
        return 0
    for note in built.notes:
        print(f"note: {note}")
    print(f"{built.path}: {len(built.files)} files, {size(built.total_bytes)}")
    return 0
