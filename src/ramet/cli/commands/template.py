"""`ramet template build|ls|show|rm`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import typer

from ramet.cli._arguments import JSON
from ramet.cli._progress import working
from ramet.errors import InvalidRequest


def build(  # noqa: PLR0917  typer makes options of parameters
    name: str | None = typer.Argument(None, metavar="NAME", help="What to fork it by."),
    source: str = typer.Option("python", "--from", metavar="TEMPLATE", help="What it builds upon."),
    kernel: str = typer.Option("python", "--kernel", help="The language."),
    pip: list[str] | None = typer.Option(None, "--pip", metavar="REQUIREMENT", help="A package; repeatable."),
    from_venv: bool = typer.Option(False, "--from-venv", help="Take the packages of this environment."),
    file: list[str] | None = typer.Option(
        None, "--file", metavar="PATH=FILE", help="Put FILE of this machine at PATH; repeatable."
    ),
    env: list[str] | None = typer.Option(None, "--env", metavar="NAME=VALUE", help="A variable; repeatable."),
    warm: str | None = typer.Option(None, "--warm", metavar="CODE", help="Code to run before it is kept."),
    warm_children: int = typer.Option(
        0, "--warm-children", metavar="N", help="Children to keep forked ahead."
    ),
    as_json: bool = JSON,
) -> int:
    """Build a template: start a kernel, fill it, warm it up, keep it."""
    if name is None:
        raise InvalidRequest.of("name", "is missing")
    from ramet.client import templates

    with working(f"building {name}") as show_now:
        made = templates.build(
            name,
            source,
            pip=pip or [],
            from_venv=from_venv,
            files={path: _read(local) for path, local in _pairs(file, "file")},
            env=dict(_pairs(env, "env")),
            warm=warm,
            kernel=kernel,
            warm_children=warm_children,
            on_progress=show_now,
        )
    if as_json:
        print(json.dumps(made.to_dict()))
    elif made.cached:
        print(f"{made.name}: built already")
    else:
        print(f"{made.name}: built in {made.build_ms / 1e3:.2f} s")
    return 0


def ls(as_json: bool = JSON) -> int:
    """List the templates that are built."""
    from ramet.client import templates

    found = templates.all_built()
    if as_json:
        print(json.dumps({"templates": [one.to_dict() for one in found]}))
    elif found:
        from ramet.cli.render import age, size, table

        rows = [
            (
                one.name,
                one.kernel,
                one.source or "",
                age(time.time() - one.snapshot.created),
                size(one.snapshot.memory_bytes),
                " ".join(one.pip),
            )
            for one in found
        ]
        table(("NAME", "KERNEL", "FROM", "AGE", "MEMORY", "PACKAGES"), rows)
    return 0


def show(
    name: str | None = typer.Argument(None, metavar="TEMPLATE", help="Its name."), as_json: bool = JSON
) -> int:
    """Tell all of one template, with the log of its build."""
    if name is None:
        raise InvalidRequest.of("template", "is missing: which one to show")
    from ramet.client import templates

    found = templates.get(name)
    if as_json:
        print(json.dumps(found.to_dict()))
        return 0
    rows = {
        "name": found.name,
        "kernel": found.kernel,
        "from": found.source or "nothing",
        "interpreter": found.interpreter or "",
        "packages": " ".join(found.pip),
        "kept ahead": found.warm_children,
        "built in": f"{found.build_ms:.0f} ms",
        "snapshot": found.snapshot.name,
        "inputs": found.hash,
    }
    for label, value in rows.items():
        print(f"{label:<12} {value}")
    print(f"\n{found.log}", end="")
    return 0


def rm(
    names: list[str] | None = typer.Argument(None, metavar="TEMPLATE...", help="Names."),
    as_json: bool = JSON,
) -> int:
    """Forget templates; what was forked from them goes on."""
    if not names:
        raise InvalidRequest.of("template", "is missing: which one to forget")
    from ramet.client import templates

    removed = [templates.remove(name) for name in names]
    if as_json:
        print(json.dumps({"templates": [one.to_dict() for one in removed]}))
    return 0


def _pairs(words: list[str] | None, field: str) -> list[tuple[str, str]]:
    pairs = []
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidRequest.of(field, f"{word[:80]!r} has no '='")
        pairs.append((name, value))
    return pairs


def _read(local: str) -> bytes:
    try:
        return Path(local).read_bytes()
    except OSError as error:
        raise InvalidRequest.of("file", f"{local}: {error.strerror}", code="not_found") from None
